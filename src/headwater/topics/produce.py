"""From what a producer sends to an acknowledgement: decode, check, split, append, wait for the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa

from headwater.catalog.topics import Topic, Topics
from headwater.errors import BodyTooLarge, InvalidInput
from headwater.observability.failpoints import failpoint
from headwater.storage.decode import Decoded, RecordDecoder, Reject, rejection
from headwater.topics.dead_letters import dead_batch
from headwater.topics.ingest import log_topic
from headwater.topics.log import Append, Dedup, Log, LogAck, Part
from headwater.types import DEAD_SUFFIX, Offsets

Format = Literal["ndjson", "json", "csv", "arrow", "parquet", "rows", "pandas"]

ENTRY_ROWS = 128 * 1024
ENTRY_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Source:
    """Who sends, for retries and for dead letters."""

    origin: str
    producer: str | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """A durable acknowledgement: the rows have these offsets; some were duplicates, some went to the dead letters."""

    topic: str
    offsets: Offsets
    duplicates: int = 0
    dead: int = 0
    repeated: bool = False

    @property
    def rows(self) -> int:
        return len(self.offsets)


class Producer:
    """Appends to the topics of one lake."""

    def __init__(self, topics: Topics, log: Log, *, max_rejects: int, max_body_bytes: int) -> None:
        self._topics = topics
        self._log = log
        self._max_rejects = max_rejects
        self._max_body_bytes = max_body_bytes
        self._decoders: dict[tuple[UUID, int], RecordDecoder] = {}
        self._lock = Lock()

    def append(self, name: str, blocks: Iterable[Any], format: Format, source: Source) -> Ack:
        """Store all records of `blocks` (parts of one request) or none; return when they are on disk."""
        topic = self._topics.load(name)
        dead_letters = topic.definition.options.on_invalid == "dead_letter"
        limit = None if dead_letters else self._max_rejects
        decoded = merge(self._decode(topic, blocks, format, limit), limit)
        if decoded.rejects and not dead_letters:
            raise rejection(name, decoded, self._max_rejects)
        failpoint("produce.validated")
        ack = self._log.append(self._request(topic, decoded, source))
        failpoint("produce.before_ack")
        return _ack(topic, decoded, ack)

    def _decode(self, topic: Topic, blocks: Iterable[Any], format: Format, limit: int | None) -> Iterator[Decoded]:
        decoder = self._decoder(topic)
        size = 0
        for block in blocks:
            size += len(block) if isinstance(block, bytes) else 0
            if size > self._max_body_bytes:
                raise BodyTooLarge(
                    f'request to topic "{topic.name}" is too large',
                    detail=f"It has more than {self._max_body_bytes} bytes. Nothing was written.",
                    hint="Send it in several requests, or raise the setting max_body_bytes.",
                )
            yield decode(decoder, block, format, limit)

    def _decoder(self, topic: Topic) -> RecordDecoder:
        key = (topic.table.metadata.table_uuid, topic.table.metadata.current_schema_id)
        with self._lock:
            if key not in self._decoders:
                self._decoders[key] = RecordDecoder(topic.definition.schema)
            return self._decoders[key]

    def _request(self, topic: Topic, decoded: Decoded, source: Source) -> Append:
        options = topic.definition.options
        batches = tuple(entries_of(decoded.table))
        dedup = (
            Dedup(record_keys(decoded.table, options.dedup_key), options.dedup_horizon) if options.dedup_key else None
        )
        parts = [Part(log_topic(topic), batches, dedup)]
        if decoded.rejects:
            dead = self._topics.load(topic.name + DEAD_SUFFIX)
            parts.append(Part(log_topic(dead), (dead_batch(decoded.rejects, source.origin, source.producer),)))
        return Append(tuple(parts), source.producer, source.sequence)


def decode(decoder: RecordDecoder, block: Any, format: Format, limit: int | None) -> Decoded:
    """One block in one of the accepted forms."""
    match format:
        case "ndjson":
            return decoder.ndjson(block, max_rejects=limit)
        case "json":
            return decoder.json(block, max_rejects=limit)
        case "csv":
            return decoder.csv(block, max_rejects=limit)
        case "rows":
            return decoder.rows(block, max_rejects=limit)
        case "pandas":
            return decoder.pandas(block, max_rejects=limit)
        case "arrow" | "parquet":
            return decoder.arrow(block, max_rejects=limit)


def merge(parts: Iterable[Decoded], limit: int | None) -> Decoded:
    """The parts of one request as one, rows numbered through; stops reading once `limit` rejects are known."""
    tables: list[pa.Table] = []
    rejects: list[Reject] = []
    rows, truncated = 0, False
    for part in parts:
        rejects += [Reject(reject.row + rows, reject.field, reject.reason, reject.raw) for reject in part.rejects]
        rows += part.rows
        tables.append(part.table)
        truncated = part.truncated or (limit is not None and len(rejects) >= limit)
        if truncated and rejects:
            break
    if not tables:
        raise InvalidInput("request has no records", detail="The body is empty.")
    return Decoded(pa.concat_tables(tables), tuple(rejects), rows, truncated)


def entries_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The table as log entries: whole batches of at most ENTRY_ROWS rows and about ENTRY_BYTES bytes."""
    # Combined first: where entries are cut must not depend on how the body arrived.
    for batch in table.combine_chunks().to_batches():
        per_row = max(1, pa.ipc.get_record_batch_size(batch) // batch.num_rows)
        rows = max(1, min(ENTRY_ROWS, ENTRY_BYTES // per_row))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def record_keys(table: pa.Table, columns: Sequence[str]) -> tuple[bytes | None, ...]:
    """A key per row for deduplication; None for a row in which a key column is null."""
    values = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return tuple(
        None if None in key else hashlib.blake2b(repr(key).encode(), digest_size=16).digest() for key in values
    )


def _ack(topic: Topic, decoded: Decoded, ack: LogAck) -> Ack:
    good = ack.parts[0]
    return Ack(topic.name, good.offsets, good.duplicates, len(decoded.rejects), ack.repeated)
