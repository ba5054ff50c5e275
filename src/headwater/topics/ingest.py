"""Drain the log into the table: Spark tasks write Parquet, one Iceberg commit carries files and offsets, then a trim.

Crash behaviour: before the commit, files are orphans and the log still has every record; after it, the table has them
and the position says so, and the next run trims what is left over. Whoever comes second to a range finds the position
moved (StaleCommit), removes its own files and has lost nothing but time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile

from headwater.catalog.definitions import P_ACKNOWLEDGED, P_OFFSET, S_FROM, S_TO
from headwater.catalog.topics import Topic, Topics
from headwater.errors import Corrupt, HeadwaterError, StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.spark.jobs import query_errors
from headwater.storage.commit import Committed, MadeFor, Position, append
from headwater.storage.layout import layout_of
from headwater.storage.projection import Projection, first_schema
from headwater.storage.writer import PartitionedWriter, Target, local_path
from headwater.topics.ingest_failures import came_too_late, ingest_error, storage_errors
from headwater.topics.ingest_plan import Ingest, IngestPlan, Wait, plan_ingest, split
from headwater.topics.log import Entry, EntryReader, Log, LogTopic
from headwater.topics.log_entries import check_dense
from headwater.types import OFFSET, TIMESTAMP, Offsets, TopicOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSITION = Position(P_OFFSET, S_FROM, S_TO)
CHUNK_ROWS = 256 * 1024
CHUNK_BYTES = 32 * 1024**2


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one commit did."""

    topic: str
    offsets: Offsets
    snapshot_id: int
    files: int
    bytes: int
    seconds: float
    reason: str


def log_topic(topic: Topic) -> LogTopic:
    """The topic as the log knows it."""
    return LogTopic(topic.id, topic.name, topic.committed, topic.definition.options.log, topic.acknowledged)


def with_system_columns(batch: pa.RecordBatch, offsets: Offsets, appended_at: int) -> pa.RecordBatch:
    """The batch with `_offset` and `_timestamp` appended."""
    numbers = _column(pa.int64(), np.arange(offsets.start, offsets.end, dtype=np.int64))
    stamps = _column(pa.timestamp("us", "UTC"), np.full(len(offsets), appended_at, dtype=np.int64))
    return pa.RecordBatch.from_arrays([*batch.columns, numbers, stamps], names=[*batch.schema.names, OFFSET, TIMESTAMP])


def _column(of: pa.DataType, values: np.ndarray) -> pa.Array:
    # Not pa.array: its first call imports pandas, which a short-lived process would notice.
    return pa.Array.from_buffers(of, len(values), [None, pa.py_buffer(values)])


class Ingester:
    """Moves records of one lake from the log to the tables."""

    def __init__(
        self,
        topics: Topics,
        log: Log,
        spark: Callable[[], SparkSession],
        *,
        max_bytes: int,
        now: Callable[[], float] = time.time,
        on_commit: Callable[[], None] = lambda: None,
        awaited: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        self._topics = topics
        self._log = log
        self._spark = spark
        self._max_bytes = max_bytes
        self._now = now
        self._on_commit = on_commit
        self._awaited = awaited
        self._last_commit: dict[str, float] = {}

    def plan(self, name: str, *, force: bool = False) -> tuple[Topic, IngestPlan]:
        """What is due for the topic now; `force` makes any waiting record due."""
        topic = self._topics.load(name)
        plan = plan_ingest(
            self._options(topic),
            self._entries(topic),
            now=self._now(),
            last_commit=self._last_commit.get(topic.id, 0.0),
            max_bytes=self._max_bytes,
            force=force,
        )
        return topic, plan

    def _options(self, topic: Topic) -> TopicOptions:
        """The topic's options; where somebody waits for commits, they come at least so often."""
        options, wait = topic.definition.options, self._awaited(topic.name)
        if wait is None:
            return options
        rotation, interval = min(options.rotation_timeout, wait), min(options.commit_interval, wait)
        return replace(options, rotation_timeout=rotation, commit_interval=interval)

    def _entries(self, topic: Topic) -> list[Entry]:
        entries = self._log.entries(log_topic(topic), topic.committed)
        if not entries:
            return []
        found = Offsets(topic.committed, entries[-1].offsets.end)
        if entries[0].offsets.start > found.start and self._moved(topic):
            raise came_too_late(topic.name, found)  # another committed and trimmed since the topic was loaded
        check_dense(log_topic(topic), entries, found.start, found.end)
        return entries

    def _moved(self, topic: Topic) -> bool:
        now = self._topics.load(topic.name)
        return (now.id, now.committed) != (topic.id, topic.committed)

    def run(self, name: str, *, force: bool = False) -> Ingested | Wait:
        """One commit of the topic, if one is due."""
        topic, plan = self.plan(name, force=force)
        if isinstance(plan, Ingest):
            return self._commit(topic, plan)
        self._trim_committed(topic)
        return plan

    def _trim_committed(self, topic: Topic) -> None:
        """Forget what a crash between a commit and its trim left in the log."""
        if self._log.stats(log_topic(topic)).start < topic.committed:
            self._log.trim(log_topic(topic), topic.committed)

    def drain(self, name: str, progress: Callable[[Ingested], None] = lambda _: None) -> list[Ingested]:
        """See that everything that waited when this was called is committed, by this ingester or by another."""
        topic = self._topics.load(name)
        end = self._log.stats(log_topic(topic)).end
        done: list[Ingested] = []
        while (now := self._topics.load(name)).committed < end and now.id == topic.id:
            try:
                outcome = self.run(name, force=True)
            except StaleCommit:
                continue  # another ingester has moved the position, so this ends
            if isinstance(outcome, Wait):
                break
            progress(outcome)
            done.append(outcome)
        self._trim_committed(now)
        return done

    def _commit(self, topic: Topic, plan: Ingest) -> Ingested:
        try:
            return self._write_and_commit(topic, plan)
        except storage_errors() as failed:
            raise ingest_error(failed, topic.name) from failed

    def _write_and_commit(self, topic: Topic, plan: Ingest) -> Ingested:
        started = time.perf_counter()
        failpoint("ingest.planned")
        files = self._write(topic, plan)
        failpoint("ingest.file_written")
        failpoint("ingest.before_commit")
        committed = self._append(topic, plan, files)
        failpoint("ingest.after_commit")
        self._last_commit[topic.id] = self._now()
        failpoint("ingest.before_trim")
        self._log.trim(log_topic(topic), plan.consumed.end)
        if topic.definition.options.dedup_key:
            self._log.forget_keys(log_topic(topic), topic.definition.options.dedup_horizon)
        failpoint("ingest.after_trim")
        self._on_commit()
        seconds = time.perf_counter() - started
        return Ingested(
            topic.name, plan.consumed, committed.snapshot_id, committed.files, committed.bytes, seconds, plan.reason
        )

    def _write(self, topic: Topic, plan: Ingest) -> list[DataFile]:
        try:
            reader = self._log.reader(log_topic(topic), plan.entries)
            files = write_files(self._spark(), reader, target(topic), plan.entries)
        except storage_errors(HeadwaterError) as failed:
            if self._moved(topic):  # entries that were planned for have left the log
                raise came_too_late(topic.name, plan.consumed) from failed
            raise
        rows = sum(file.record_count for file in files)
        if rows != len(plan.consumed):
            remove_files(files)
            raise Corrupt(f'files of topic "{topic.name}" hold {rows} rows instead of {len(plan.consumed)}')
        return files

    def _append(self, topic: Topic, plan: Ingest, files: Sequence[DataFile]) -> Committed:
        tables = self._topics.tables
        try:
            made_for = MadeFor.of(topic.table)
            return append(
                lambda: tables.load_for_commit(topic.table_name),
                files,
                plan.consumed,
                POSITION,
                topic.id,
                made_for,
                self._acknowledged(topic),
            )
        except (StaleCommit, NoSuchTableError) as late:
            remove_files(files)  # no table will ever refer to them
            self._topics.load(topic.name)  # TopicNotFound, if that is why
            raise came_too_late(topic.name, plan.consumed) from late

    def _acknowledged(self, topic: Topic) -> dict[str, str]:
        """What the table notes about its log in SQLite, so that one that is lost or older is noticed."""
        if topic.definition.options.log != "sqlite":  # Kafka knows by itself what it has lost
            return {}
        return {P_ACKNOWLEDGED: str(self._log.stats(log_topic(topic)).end)}


def target(topic: Topic) -> Target:
    """Where and how the topic's files are written."""
    return Target(
        topic.name,
        topic.table.location(),
        topic.table.schema(),
        topic.table.spec(),
        layout_of(topic),
        dict(topic.table.metadata.properties),
        first_schema(topic.table.metadata),
    )


def write_files(spark: SparkSession, reader: EntryReader, into: Target, entries: Sequence[Entry]) -> list[DataFile]:
    """Write the entries by a Spark job; the files are durable, and in no table yet. A failure leaves none of them."""
    context = spark.sparkContext
    splits = split(entries, int(context.defaultParallelism))

    def task(assigned: Iterator[Sequence[Entry]]) -> Iterator[list[DataFile] | HeadwaterError]:
        for entries in assigned:
            try:
                yield write_entries(reader, into, entries)
            except storage_errors(HeadwaterError) as failed:
                # As a value: Spark would turn it into text, and the files of other tasks would stay.
                yield ingest_error(failed, into.table)

    with query_errors():
        outcomes = context.parallelize(splits, len(splits)).mapPartitions(task).collect()
    files = [file for outcome in outcomes if isinstance(outcome, list) for file in outcome]
    for file in files:
        file.spec_id = into.spec.spec_id  # pickling loses it
    for outcome in outcomes:
        if isinstance(outcome, HeadwaterError):
            remove_files(files)
            raise outcome
    return files


def remove_files(files: Sequence[DataFile]) -> None:
    """Delete written files that no snapshot refers to."""
    for file in files:
        local_path(file.file_path).unlink(missing_ok=True)


def write_entries(reader: EntryReader, into: Target, entries: Sequence[Entry]) -> list[DataFile]:
    """Runs in a worker: read entries from the log, write them as Parquet."""
    from ulid import ULID

    projection = Projection.to(into.schema, into.first or into.schema)
    writer = PartitionedWriter(into, new_id=lambda: str(ULID()))
    try:
        for chunk in read_chunks(reader, entries, projection):
            writer.write(chunk)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def read_chunks(reader: EntryReader, entries: Sequence[Entry], projection: Projection) -> Iterator[pa.Table]:
    """The entries' rows in the table's columns, with the system's, in tables of a bounded size."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for entry, batch in zip(entries, reader.read(entries), strict=True):
        pending.append(with_system_columns(projection(batch), entry.offsets, entry.appended_at))
        rows, size = rows + len(entry.offsets), size + entry.bytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)
