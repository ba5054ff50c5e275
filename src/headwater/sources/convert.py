"""Existing files into a topic, validated and stored as anything that is produced: offsets, duplicates, dead letters.

A file is looked at as a whole before any of it is stored, so that one bad row keeps all of its file out. Then it goes
to the log chunk by chunk under a producer of its own. A run that was killed goes on where the log is; a file that is
stored is not stored again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headwater.catalog.topics import Topic, Topics
from headwater.errors import HeadwaterError, RecordsRejected, StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.sources.files import SourceFile, rows_per_chunk, table_chunks, text_chunks
from headwater.sources.reading import Chunk, located
from headwater.state.conversions import Conversion, Conversions
from headwater.storage.decode import RecordDecoder, rejection
from headwater.storage.decode.sizes import rows_at_once
from headwater.topics.produce import Ack, Source, decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STALE_RETRIES = 5
HINT = "Nothing of this file was written. Correct the records, or create the topic with on_invalid=dead_letter."

Progress = Callable[[Mapping[str, Any]], None]
Append = Callable[[str, list[Any], Any, Source], Ack]


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of a file: `converted`, `already converted`, or `checked` by a dry run.

    In a topic that takes new fields as columns, a dry run cannot tell what fits: there it is `not checked`.
    """

    file: str
    format: str
    status: str
    rows: int
    dead: int = 0
    duplicates: int = 0
    start: int | None = None
    end: int | None = None
    bytes: int = 0
    seconds: float = 0.0

    def with_ack(self, ack: Ack) -> Converted:
        """The sum after one more request."""
        return replace(
            self,
            rows=self.rows + ack.rows,
            dead=self.dead + ack.dead,
            duplicates=self.duplicates + ack.duplicates,
            start=ack.offsets.start if self.start is None else self.start,
            end=ack.offsets.end,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a record may be, and how many bad ones are named."""

    max_record: int
    max_rejects: int


class Converter:
    """Brings files into the topics of one lake."""

    def __init__(
        self,
        topics: Topics,
        append: Append,
        conversions: Conversions,
        spark: Callable[[], SparkSession],
        limits: Limits,
    ) -> None:
        self._topics = topics
        self._append = append
        self._conversions = conversions
        self._spark = spark
        self._limits = limits

    def run(self, name: str, files: Sequence[SourceFile], *, dry_run: bool, progress: Progress) -> list[Converted]:
        """Convert the files one after the other; an error tells which were converted before it."""
        topic, done = self._topics.load(name), list[Converted]()
        for number, file in enumerate(files, 1):

            def told(rows: int, doing: str, number: int = number, file: SourceFile = file) -> None:
                said = {"file": str(file.path), "number": number, "files": len(files), "rows": rows, "doing": doing}
                progress(said)

            begun = time.perf_counter()
            try:
                converted = self._one(topic, file, dry_run, told)
            except HeadwaterError as error:
                raise _with_done(error, done) from None
            done.append(replace(converted, seconds=round(time.perf_counter() - begun, 3)))
        return done

    def _one(self, topic: Topic, file: SourceFile, dry_run: bool, told: Callable[[int, str], None]) -> Converted:
        known = self._conversions.get(topic.id, file.id)
        about = Converted(str(file.path), file.format, "already converted", 0, bytes=file.bytes)
        if known is not None and known.finished:
            return replace(about, rows=known.rows)
        told(0, "reading")
        # New fields become columns when they are stored: what fits is known only then.
        merges = topic.definition.options.evolution == "merge"
        if merges and dry_run:
            return replace(about, status="not checked")
        with self._chunks(topic, file, known) as (chunks, chunk_rows):
            rows, dead = (0, 0) if merges else self._check(topic, file, chunks(), told)
            if dry_run:
                return replace(about, status="checked", rows=rows - dead, dead=dead)
            failpoint("convert.checked")
            begun = self._conversions.begin(topic.id, file.id, str(file.path), chunk_rows)
            return self._store(topic, file, chunks(), begun, replace(about, status="converted", rows=begun.rows), told)

    @contextmanager
    def _chunks(
        self, topic: Topic, file: SourceFile, known: Conversion | None
    ) -> Iterator[tuple[Callable[[], Iterator[Chunk]], int]]:
        """What gives the file's chunks, as often as it is asked; and the rows of each.

        A conversion that goes on cuts the file as it did before, even if the topic has other columns by now. Of text,
        0 rows mean that bytes alone decide, as in conversions of earlier versions.
        """
        if file.is_text:
            columns = RecordDecoder(topic.definition.schema).arrow_schema
            most = known.chunk_rows if known is not None else rows_at_once(columns)
            yield lambda: text_chunks(file, self._limits.max_record, most), most
            return
        from headwater.sources.files_spark import spool
        from headwater.spark.arrow_spark import query_folder

        session = self._spark()
        with query_folder(session) as folder:
            parts = spool(session, file, folder)
            rows = known.chunk_rows if known is not None else rows_per_chunk(parts)
            yield lambda: table_chunks(parts, rows), rows

    def _check(
        self, topic: Topic, file: SourceFile, chunks: Iterator[Chunk], told: Callable[[int, str], None]
    ) -> tuple[int, int]:
        """How many rows the file has, and how many of them are bad; RecordsRejected if the topic takes no bad ones."""
        options = topic.definition.options
        limit = None if options.on_invalid == "dead_letter" else self._limits.max_rejects
        decoder, rows, dead = RecordDecoder(topic.definition.schema), 0, 0
        for chunk in chunks:
            try:
                decoded = decode(decoder, chunk.block, chunk.format, limit)
                if decoded.rejects and limit is not None:
                    raise rejection(topic.name, decoded, limit)
            except RecordsRejected as error:
                raise located(error, chunk, str(file.path), HINT) from None
            rows, dead = rows + decoded.rows, dead + len(decoded.rejects)
            told(rows, "checking")
        return rows, dead

    def _store(
        self,
        topic: Topic,
        file: SourceFile,
        chunks: Iterator[Chunk],
        begun: Conversion,
        sum: Converted,
        told: Callable[[int, str], None],
    ) -> Converted:
        source = Source(f"convert:{file.path.name}", f"convert:{file.id}")
        for sequence, chunk in enumerate(chunks):
            if sequence < begun.chunks:
                continue
            try:
                sum = sum.with_ack(self._sent(topic.name, chunk, replace(source, sequence=sequence)))
            except RecordsRejected as error:
                raise located(error, chunk, str(file.path)) from None
            failpoint("convert.stored")
            self._conversions.advance(topic.id, file.id, sequence + 1, sum.rows)
            failpoint("convert.noted")
            told(sum.rows, "storing")
        self._conversions.finish(topic.id, file.id)
        failpoint("convert.finished")
        return sum

    def _sent(self, name: str, chunk: Chunk, source: Source) -> Ack:
        for attempt in range(STALE_RETRIES):
            try:
                return self._append(name, [chunk.block], chunk.format, source)
            except StaleCommit:  # making room in the log, another process was first
                if attempt == STALE_RETRIES - 1:
                    raise
        raise AssertionError


def _with_done(error: HeadwaterError, done: Sequence[Converted]) -> HeadwaterError:
    """The error, which also says what had been converted before it."""
    finished = [each.file for each in done if each.status != "checked"]
    if not finished:
        return error
    said = f"Before that, {len(finished)} file{'s' if len(finished) > 1 else ''} had been converted."
    detail = f"{error.detail}\n{said}" if error.detail else said
    return type(error)(error.message, detail=detail, hint=error.hint, **{**error.data, "converted": finished})
