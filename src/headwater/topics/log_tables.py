"""The log's tables in SQLite, and what one request writes into them.

Every change is one of `CHANGES` with its values, which is what a journal of changes has to hold. Ids of topics and
schemas are counted up and never given back, so that the same changes make the same ids anywhere.

Transactions are the caller's: everything here happens between its BEGIN and its COMMIT. A request is checked as a whole
before its first row is written, so that one that is refused leaves nothing in a transaction that others share.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import Backpressure, IdempotencyMismatch, TopicNotFound
from headwater.topics.log import Append, Dedup, LogAck, LogTopic, Part, PartAck
from headwater.topics.log_entries import DIGEST, Payload, check_position, digest, entry_checksum, fingerprint, serialise
from headwater.types import Offsets

TABLES = """
CREATE TABLE IF NOT EXISTS log_topics(
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL UNIQUE, name TEXT NOT NULL, next_offset INTEGER NOT NULL,
    trimmed INTEGER NOT NULL, bytes INTEGER NOT NULL DEFAULT 0, last_at INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS log_schemas(id INTEGER PRIMARY KEY, schema BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS log_producers(
    topic INTEGER NOT NULL, producer TEXT NOT NULL, sequence INTEGER NOT NULL, digest BLOB NOT NULL,
    acks TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(topic, producer, sequence)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log_keys(
    topic INTEGER NOT NULL, key BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(topic, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS log_keys_age ON log_keys(topic, at);
CREATE TABLE IF NOT EXISTS log_guards(topic INTEGER PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log_positions(
    source TEXT PRIMARY KEY, topic INTEGER NOT NULL, position TEXT NOT NULL) WITHOUT ROWID;
"""
# An entry's id is never given twice: caches of other processes and running ingests hold on to ids.
ENTRIES = """
CREATE TABLE IF NOT EXISTS log_entries(
    id INTEGER PRIMARY KEY {counted}, topic INTEGER NOT NULL, first_offset INTEGER NOT NULL, rows INTEGER NOT NULL,
    appended_at INTEGER NOT NULL, schema INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL
    {payload});
CREATE UNIQUE INDEX IF NOT EXISTS log_entries_offset ON log_entries(topic, first_offset);
"""

CHANGES: Mapping[str, str] = {
    "topic": "INSERT INTO log_topics(topic, name, next_offset, trimmed) VALUES (?, ?, ?, ?)",
    "schema": "INSERT INTO log_schemas(schema) VALUES (?)",
    "advance": "UPDATE log_topics SET next_offset = ?, last_at = ?, bytes = bytes + ? WHERE id = ?",
    "producer": "INSERT INTO log_producers(topic, producer, sequence, digest, acks, at) VALUES (?, ?, ?, ?, ?, ?)",
    "position": "INSERT OR REPLACE INTO log_positions(source, topic, position) VALUES (?, ?, ?)",
    "guard": "INSERT OR IGNORE INTO log_guards VALUES (?)",
    "forget_producers": "DELETE FROM log_producers WHERE at < ?",
    "forget_keys": "DELETE FROM log_keys WHERE topic = ? AND at < ?",
    "drop": "INSERT INTO log_topics(topic, name, next_offset, trimmed, dropped) VALUES (?, ?, 0, 0, 1) "
    "ON CONFLICT(topic) DO UPDATE SET dropped = 1, bytes = 0, trimmed = next_offset",
    "drop_entries": "DELETE FROM log_entries WHERE topic = ?",
    "drop_producers": "DELETE FROM log_producers WHERE topic = ?",
    "drop_keys": "DELETE FROM log_keys WHERE topic = ?",
    "drop_guards": "DELETE FROM log_guards WHERE topic = ?",
    "drop_positions": "DELETE FROM log_positions WHERE topic = ?",
}
_DROPPED = tuple(name for name in CHANGES if name.startswith("drop_"))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as it will be stored: its serialised batches, part by part, and what tells it from another one."""

    request: Append
    payloads: list[list[Payload]]
    digest: bytes

    @classmethod
    def of(cls, request: Append) -> Prepared:
        # With a deduplication key the rows to keep are only known inside the transaction.
        payloads = [[serialise(batch) for batch in part.batches] for part in request.parts]
        return cls(request, payloads, digest(payloads) + fingerprint(request.parts[0]) if request.producer else b"")

    @property
    def bytes(self) -> int:
        return sum(payload.data.size for part in self.payloads for payload in part)


def find_topic(db: sqlite3.Connection, topic: LogTopic) -> tuple[int, int, int, int] | None:
    """The topic's row: id, next offset, first retained offset, bytes."""
    row = db.execute(
        "SELECT id, next_offset, trimmed, bytes FROM log_topics WHERE topic = ? AND NOT dropped", (topic.id,)
    ).fetchone()
    return None if row is None else (row[0], row[1], row[2], row[3])


def is_dropped(db: sqlite3.Connection, topic: LogTopic) -> bool:
    return db.execute("SELECT 1 FROM log_topics WHERE topic = ? AND dropped", (topic.id,)).fetchone() is not None


def find_position(db: sqlite3.Connection, source: str) -> str | None:
    row = db.execute("SELECT position FROM log_positions WHERE source = ?", (source,)).fetchone()
    return None if row is None else str(row[0])


class LogWriter:
    """Writes requests through one connection."""

    def __init__(self, db: sqlite3.Connection, *, max_tail_bytes: int, now: Callable[[], int]) -> None:
        self._db = db
        self._max_tail_bytes = max_tail_bytes
        self._now = now
        self._schema_ids: dict[bytes, int] = {}

    def store(self, prepared: Prepared) -> LogAck:
        """Write the request; HeadwaterError, and no record written, when it is refused."""
        request = prepared.request
        found = [self._find_id(part.topic) for part in request.parts]
        if found[0] is not None:  # a topic that is new here has neither guard nor producers
            if self._guarded(found[0]):
                request.verify()
            if request.producer is not None and (known := self._known(request, found[0], prepared.digest)):
                return known
        if request.moved is not None:
            stored = find_position(self._db, request.moved.source)
            if stored is not None:
                self._check_row("log_positions", request.moved.source)
            check_position(request.moved, stored)
        self._check_room(prepared.bytes)
        topics = [
            self._topic_id(part.topic) if id is None else id for part, id in zip(request.parts, found, strict=True)
        ]
        acks = tuple(map(self._store_part, request.parts, topics, prepared.payloads))
        if request.producer is not None:
            text = ";".join(f"{ack.offsets.start},{ack.offsets.end},{ack.duplicates}" for ack in acks)
            self._change("producer", topics[0], request.producer, request.sequence, prepared.digest, text, self._now())
        if request.moved is not None:
            self._change("position", request.moved.source, topics[0], request.moved.end)
        return LogAck(acks)

    def rolled_back(self) -> None:
        """Forget what was learnt inside a transaction that came to nothing."""
        self._schema_ids.clear()

    def guard(self, topic: LogTopic) -> None:
        """Have every later append to the topic verified."""
        self._change("guard", self._topic_id(topic))

    def forget_producers(self, before: int) -> None:
        """Forget sequences that are older than `before`."""
        self._change("forget_producers", before)

    def forget_keys(self, topic: LogTopic, before: int) -> None:
        """Forget deduplication keys that are older than `before`."""
        if (row := find_topic(self._db, topic)) is not None:
            self._change("forget_keys", row[0], before)

    def drop(self, topic: LogTopic) -> None:
        """Forget the topic, but for its having been dropped."""
        self._change("drop", topic.id, topic.name)
        row_id = self._db.execute("SELECT id FROM log_topics WHERE topic = ?", (topic.id,)).fetchone()[0]
        for name in _DROPPED:
            self._change(name, row_id)

    def _change(self, name: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(CHANGES[name], values)

    def _topic_id(self, topic: LogTopic) -> int:
        """The id of the topic's row, which is added if the topic is new here."""
        if (found := self._find_id(topic)) is not None:
            return found
        return int(self._change("topic", topic.id, topic.name, topic.committed, topic.committed).lastrowid or 0)

    def _find_id(self, topic: LogTopic) -> int | None:
        """The id of the topic's row, checked; None if the topic is new here."""
        row = self._db.execute(
            "SELECT id, dropped, next_offset FROM log_topics WHERE topic = ?", (topic.id,)
        ).fetchone()
        if row is None:
            self._check_topics()
            self._check_end(topic, None)
            return None
        if row[1]:
            raise TopicNotFound(f'topic "{topic.name}" was dropped')
        self._check_row("log_topics", row[0])
        self._check_end(topic, row[2])
        return int(row[0])

    def _check_end(self, topic: LogTopic, end: int | None) -> None:
        """Corrupt if the log, which ends at `end`, is older than the topic's table, where the table can tell."""

    def _check_row(self, table: str, *key: object) -> None:
        """Corrupt if the row of this key does not match its checksum, where rows have one."""

    def _check_topics(self) -> None:
        """Corrupt if a topic is missing, where topics are counted."""

    def _guarded(self, topic: int) -> bool:
        return self._db.execute("SELECT 1 FROM log_guards WHERE topic = ?", (topic,)).fetchone() is not None

    def _known(self, request: Append, topic: int, digest: bytes) -> LogAck | None:
        row = self._db.execute(
            "SELECT digest, acks FROM log_producers WHERE topic = ? AND producer = ? AND sequence = ?",
            (topic, request.producer, request.sequence),
        ).fetchone()
        if row is None:
            return None
        self._check_row("log_producers", topic, request.producer, request.sequence)
        # The same records in other columns have other bytes: a retry after an ALTER is known by its sequence alone.
        if row[0] != digest and row[0][DIGEST:] == digest[DIGEST:]:
            raise IdempotencyMismatch(
                f'producer "{request.producer}" used sequence {request.sequence} for other records before',
                detail="Nothing was written.",
                hint="Use a new sequence (HTTP: a new Idempotency-Key) for new records.",
            )
        parts = (tuple(int(n) for n in part.split(",")) for part in row[1].split(";"))
        return LogAck(tuple(PartAck(Offsets(start, end), dup) for start, end, dup in parts), repeated=True)

    def _check_room(self, size: int) -> None:
        held = self._db.execute("SELECT coalesce(sum(bytes), 0) FROM log_topics").fetchone()[0]
        if held and held + size > self._max_tail_bytes:
            self._check_topics()
            raise Backpressure(
                "the log is full",
                detail=f"{held} bytes wait to be committed to tables; the limit is {self._max_tail_bytes}.",
                hint="Try again after Retry-After, or run `headwater flush`.",
                retry_after=1,
            )

    def _store_part(self, part: Part, topic: int, payloads: list[Payload]) -> PartAck:
        # Only now, not with the topic's id: one request may name a topic twice.
        offset, last = self._db.execute("SELECT next_offset, last_at FROM log_topics WHERE id = ?", (topic,)).fetchone()
        start = max(offset, part.topic.committed)  # a log older than its table must not give the table's offsets again
        at = max(self._now(), last)
        duplicates = 0
        if part.dedup is not None:
            kept = self._first_of_keys(topic, part, part.dedup, at)
            duplicates = part.rows - sum(batch.num_rows for batch in kept)
            payloads = [serialise(batch) for batch in kept] if duplicates else payloads
        payloads = [payload for payload in payloads if payload.rows]
        if payloads:
            self._insert_entries(topic, start, at, self._schema_id(part.columns or part.batches[0].schema), payloads)
        end = start + sum(payload.rows for payload in payloads)
        self._change("advance", end, at, sum(payload.data.size for payload in payloads), topic)
        return PartAck(Offsets(start, end), duplicates)

    def _insert_entries(self, topic: int, offset: int, at: int, schema: int, payloads: list[Payload]) -> None:
        for payload in payloads:
            data = payload.data
            header = (topic, offset, payload.rows, at, schema, data.size)
            self._db.execute(
                "INSERT INTO log_entries(topic, first_offset, rows, appended_at, schema, bytes, checksum, payload) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*header, entry_checksum(header, payload.checksum), memoryview(data)),
            )
            offset += payload.rows

    def _first_of_keys(self, topic: int, part: Part, dedup: Dedup, at: int) -> list[pa.RecordBatch]:
        """The rows whose key was not seen within the horizon, the first of each."""
        cutoff = at - int(dedup.horizon * 1e6)
        insert = (
            "INSERT INTO log_keys VALUES (?, ?, ?) ON CONFLICT(topic, key) DO UPDATE SET at = excluded.at WHERE at < ?"
        )
        keep = [key is None or self._db.execute(insert, (topic, key, at, cutoff)).rowcount > 0 for key in dedup.keys]
        self._keys_kept(topic, [key for key, new in zip(dedup.keys, keep, strict=True) if new and key is not None], at)
        kept, position = [], 0
        for batch in part.batches:
            kept.append(batch.filter(pa.array(keep[position : position + batch.num_rows], pa.bool_())))
            position += batch.num_rows
        return kept

    def _keys_kept(self, topic: int, keys: list[bytes], at: int) -> None:
        """These keys were seen at `at`, for whoever has to note it elsewhere."""

    def _schema_id(self, schema: pa.Schema) -> int:
        data = schema.remove_metadata().serialize().to_pybytes()
        if data not in self._schema_ids:
            row = self._db.execute("SELECT id FROM log_schemas WHERE schema = ?", (data,)).fetchone()
            if row is None:  # not remembered yet: this transaction may still fail
                return int(self._change("schema", data).lastrowid or 0)
            self._schema_ids[data] = int(row[0])
        return self._schema_ids[data]
