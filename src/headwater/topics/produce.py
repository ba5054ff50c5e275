"""From what a producer sends to an acknowledgement: decode, check, split, append, wait for the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.catalog.evolve import plan_evolution
from headwater.catalog.topics import Topic, Topics
from headwater.errors import BodyTooLarge, InvalidInput, RecordsRejected, SchemaChanged
from headwater.observability.failpoints import failpoint
from headwater.sql.statements import AlterTopic
from headwater.storage.decode import Account, Decoded, RecordDecoder, Reject, ignore_size, rejection
from headwater.storage.schemas import arrow_schema
from headwater.topics.dead_letters import dead_batch
from headwater.topics.evolution_merge import additions, not_added
from headwater.topics.ingest import log_topic
from headwater.topics.log import Append, Dedup, Log, LogAck, Moved, Part
from headwater.types import DEAD_SUFFIX, Offsets

Format = Literal["ndjson", "json", "csv", "arrow", "parquet", "rows", "pandas"]
_TEXT = ("ndjson", "json", "csv")

ATTEMPTS = 5
MAX_DECODERS = 256
ENTRY_ROWS = 128 * 1024
ENTRY_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Source:
    """Who sends, for retries and for dead letters, and how far a source was read with it.

    The origin is that of all records, or says it of each by its row.
    """

    origin: str | Callable[[int], str]
    producer: str | None = None
    sequence: int = 0
    moved: Moved | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sequence, bool) or not isinstance(self.sequence, int) or not 0 <= self.sequence < 2**63:
            raise InvalidInput(
                f"sequence {self.sequence!r} is not valid", detail="It is a whole number from 0 to 2^63 - 1."
            )
        if self.producer is not None and not isinstance(self.producer, str):
            raise InvalidInput(f"producer {self.producer!r} is not valid", detail="It is a text.")


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

    def __init__(
        self,
        topics: Topics,
        log: Log,
        *,
        max_rejects: int,
        max_body_bytes: int,
        evolve: Callable[[AlterTopic], object],
    ) -> None:
        self._evolve = evolve
        self._topics = topics
        self._log = log
        self._max_rejects = max_rejects
        self._max_body_bytes = max_body_bytes
        self._decoders: dict[tuple[UUID, int], tuple[RecordDecoder, pa.Schema]] = {}
        self._lock = Lock()

    def append(
        self, name: str, blocks: Iterable[Any], format: Format, source: Source, account: Account | None = None
    ) -> Ack:
        """Store all records of `blocks` (parts of one request) or none; return when they are on disk.

        The account hears how many bytes the records have before they are decoded, and may raise.
        """
        if account is None:
            account = self._limited(name) if format in _TEXT else ignore_size
        for attempt in count(1):
            topic = self._topics.load(name)
            try:
                if topic.definition.options.evolution == "merge":
                    blocks = list(self._bounded(topic, blocks))
                    return self._store(*self._merged(topic, blocks, format, account), source)
                return self._store(topic, self._read(topic, blocks, format, account), source)
            except SchemaChanged:
                if attempt == ATTEMPTS or not isinstance(blocks, list | tuple):  # what was read is gone
                    raise
        raise AssertionError

    def _merged(self, topic: Topic, blocks: Sequence[Any], format: Format, account: Account) -> tuple[Topic, Decoded]:
        """The topic with columns for all fields of the records, and the records."""
        if (decoded := self._fitting(topic, blocks, format, account)) is not None:
            return topic, decoded
        for _ in range(ATTEMPTS):  # another producer may have added a part of a struct meanwhile
            if not (added := additions(topic, blocks, format)):
                break
            statement = AlterTopic(topic.name, added)
            try:
                planned = plan_evolution(topic, statement)
                # Rehearsed: records that are rejected all the same must not leave columns behind.
                self._read(topic, blocks, format, account, tolerant=planned.definition.schema)
                self._evolve(statement)
            except InvalidInput as refused:
                raise not_added(topic, refused) from None
            topic = self._topics.load(topic.name)
        return topic, self._read(topic, blocks, format, account, tolerant=topic.definition.schema)

    def _fitting(self, topic: Topic, blocks: Sequence[Any], format: Format, account: Account) -> Decoded | None:
        """The records, if all of them fit the topic as it is."""
        try:
            decoded = merge(self._decode(topic, blocks, format, 1, account), 1)
        except RecordsRejected:
            return None
        return None if decoded.rejects else decoded

    def _read(
        self,
        topic: Topic,
        blocks: Iterable[Any],
        format: Format,
        account: Account,
        *,
        tolerant: Schema | None = None,
    ) -> Decoded:
        """The records, in the topic's columns or in those for which unknown fields may be there that say nothing."""
        dead_letters = topic.definition.options.on_invalid == "dead_letter"
        limit = None if dead_letters else self._max_rejects
        decoded = merge(self._decode(topic, blocks, format, limit, account, tolerant=tolerant), limit)
        if decoded.rejects and not dead_letters:
            raise rejection(topic.name, decoded, self._max_rejects)
        return decoded

    def store(self, topic: Topic, decoded: Decoded, source: Source) -> Ack:
        """Store records that were decoded for `topic`, rejects as its dead letters; SchemaChanged if it is altered."""
        return self._store(topic, decoded, source)

    def _store(self, topic: Topic, decoded: Decoded, source: Source) -> Ack:
        failpoint("produce.validated")
        ack = self._log.append(self._request(topic, decoded, source))
        failpoint("produce.before_ack")
        return _ack(topic, decoded, ack)

    def _verify(self, topic: Topic) -> None:
        """SchemaChanged if the topic has other columns than those for which records were decoded."""
        now = self._topics.load(topic.name)
        if now.id == topic.id and now.schema.schema_id != topic.schema.schema_id:
            raise SchemaChanged(
                f'columns of topic "{topic.name}" were altered meanwhile',
                detail="Nothing was written.",
                hint="Send the request again.",
            )

    def _decode(
        self,
        topic: Topic,
        blocks: Iterable[Any],
        format: Format,
        limit: int | None,
        account: Account,
        *,
        tolerant: Schema | None = None,
    ) -> Iterator[Decoded]:
        decoder = self._decoder(topic)[0] if tolerant is None else RecordDecoder(tolerant, tolerant=True)
        before = 0
        for block in self._bounded(topic, blocks):
            decoded = decode(decoder, block, format, limit, partial(_add, account, before))
            before += decoded.size
            yield decoded

    def _bounded(self, topic: Topic, blocks: Iterable[Any]) -> Iterator[Any]:
        """The blocks, as long as they are not too large together."""
        size = 0
        for block in blocks:
            size += len(block) if isinstance(block, bytes) else 0
            if size > self._max_body_bytes:
                raise too_large(topic.name, self._max_body_bytes)
            yield block

    def _limited(self, name: str) -> Account:
        def account(size: int) -> None:
            if size > self._max_body_bytes:
                raise too_large(name, self._max_body_bytes, "once it is decoded")

        return account

    def _decoder(self, topic: Topic) -> tuple[RecordDecoder, pa.Schema]:
        """What decodes records of the topic, and their columns with the ids of the table's fields."""
        key = (topic.table.metadata.table_uuid, topic.table.metadata.current_schema_id)
        with self._lock:
            if key not in self._decoders:
                if len(self._decoders) >= MAX_DECODERS:
                    self._decoders.clear()  # topics were dropped or altered: those in use are built again
                self._decoders[key] = RecordDecoder(topic.definition.schema), arrow_schema(topic.columns)
            return self._decoders[key]

    def _request(self, topic: Topic, decoded: Decoded, source: Source) -> Append:
        options = topic.definition.options
        batches = tuple(entries_of(decoded.table))
        fields = [topic.columns.find_field(name) for name in options.dedup_key]
        dedup = Dedup(record_keys(decoded.table, fields), options.dedup_horizon) if fields else None
        parts = [Part(log_topic(topic), batches, dedup, self._decoder(topic)[1])]
        if decoded.rejects:
            dead = self._topics.load(topic.name + DEAD_SUFFIX)
            parts.append(Part(log_topic(dead), (dead_batch(decoded.rejects, source.origin, source.producer),)))
        verify = partial(self._verify, topic)
        return Append(tuple(parts), source.producer, source.sequence, verify, source.moved)


def _add(account: Account, before: int, size: int) -> None:
    account(before + size)


def too_large(topic: str, limit: int, when: str = "") -> BodyTooLarge:
    """The error for a request of more than max_body_bytes."""
    return BodyTooLarge(
        f'request to topic "{topic}" is too large',
        detail=f"It has more than {limit} bytes{' ' * bool(when)}{when}. Nothing was written.",
        hint="Send it in several requests, or raise the setting max_body_bytes.",
    )


def decode(
    decoder: RecordDecoder, block: Any, format: Format, limit: int | None, account: Account = ignore_size
) -> Decoded:
    """One block in one of the accepted forms."""
    match format:
        case "ndjson":
            return decoder.ndjson(block, max_rejects=limit, account=account)
        case "json":
            return decoder.json(block, max_rejects=limit, account=account)
        case "csv":
            return decoder.csv(block, max_rejects=limit, account=account)
        case "rows":
            return decoder.rows(block, max_rejects=limit, account=account)
        case "pandas":
            return decoder.pandas(block, max_rejects=limit, account=account)
        case "arrow" | "parquet":
            return decoder.arrow(block, max_rejects=limit, account=account)


def merge(parts: Iterable[Decoded], limit: int | None) -> Decoded:
    """The parts of one request as one, rows numbered through; stops reading once `limit` rejects are known."""
    tables: list[pa.Table] = []
    rejects: list[Reject] = []
    rows, size, truncated = 0, 0, False
    for part in parts:
        rejects += [Reject(reject.row + rows, reject.field, reject.reason, reject.raw) for reject in part.rejects]
        rows, size = rows + part.rows, size + part.size
        tables.append(part.table)
        truncated = part.truncated or (limit is not None and len(rejects) >= limit)
        if truncated and rejects:
            break
    if not tables:
        raise InvalidInput("request has no records", detail="There is nothing in its body, or nothing but blank lines.")
    return Decoded(pa.concat_tables(tables), tuple(rejects), rows, truncated, size)


def entries_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The table as log entries: whole batches of at most ENTRY_ROWS rows and about ENTRY_BYTES bytes."""
    # Combined first: where entries are cut must not depend on how the body arrived.
    for batch in table.combine_chunks().to_batches():
        per_row = max(1, pa.ipc.get_record_batch_size(batch) // batch.num_rows)
        rows = max(1, min(ENTRY_ROWS, ENTRY_BYTES // per_row))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def record_keys(table: pa.Table, fields: Sequence[NestedField]) -> tuple[bytes | None, ...]:
    """A key per row for deduplication; None for a row in which a key column is null.

    Equal values of other columns are other keys: which columns they are may be altered.
    """
    ids = repr([field.field_id for field in fields]).encode()
    values = zip(*(table.column(field.name).to_pylist() for field in fields), strict=True)
    return tuple(
        None if None in key else hashlib.blake2b(ids + repr(key).encode(), digest_size=16).digest() for key in values
    )


def _ack(topic: Topic, decoded: Decoded, ack: LogAck) -> Ack:
    good = ack.parts[0]
    return Ack(topic.name, good.offsets, good.duplicates, len(decoded.rejects), ack.repeated)
