"""The log on SQLite: Arrow payloads in a WAL-mode file, with group commit.

Order within a commit: check everything, then write, then one fsync (SQLite's COMMIT with synchronous=FULL), then the
acknowledgements. A crash before the COMMIT leaves nothing of the group; a crash after it leaves all of it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headwater.errors import Backpressure, HeadwaterError, IdempotencyMismatch, TopicNotFound, Unavailable
from headwater.observability.failpoints import failpoint
from headwater.state.sqlite import connect, named_errors, storage_error, transaction
from headwater.topics.log import Append, Dedup, Entry, LogAck, LogStats, LogTopic, Part, PartAck, TailBatch
from headwater.topics.log_entries import (
    Payload,
    TailCache,
    check_dense,
    digest,
    list_entries,
    read_entry,
    serialise,
)
from headwater.types import Offsets

# An entry's id is never given twice (AUTOINCREMENT): caches of other processes and running ingests hold on to ids.
SCHEMA = """
CREATE TABLE IF NOT EXISTS log_topics(
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL UNIQUE, name TEXT NOT NULL, next_offset INTEGER NOT NULL,
    trimmed INTEGER NOT NULL, bytes INTEGER NOT NULL DEFAULT 0, last_at INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS log_schemas(id INTEGER PRIMARY KEY, schema BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS log_entries(
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER NOT NULL, first_offset INTEGER NOT NULL, rows INTEGER NOT NULL,
    appended_at INTEGER NOT NULL, schema INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL,
    payload BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS log_entries_offset ON log_entries(topic, first_offset);
CREATE TABLE IF NOT EXISTS log_producers(
    topic INTEGER NOT NULL, producer TEXT NOT NULL, sequence INTEGER NOT NULL, digest BLOB NOT NULL,
    acks TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(topic, producer, sequence)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log_keys(
    topic INTEGER NOT NULL, key BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(topic, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS log_keys_age ON log_keys(topic, at);
"""

GROUP_BYTES = 64 * 1024**2
COMMITS_PER_WAL = 128
_TRIM = 64


@dataclass(slots=True)
class _Waiting:
    request: Append
    payloads: list[list[Payload]]
    digest: bytes
    outcome: LogAck | HeadwaterError | None = None

    @property
    def bytes(self) -> int:
        return sum(payload.data.size for part in self.payloads for payload in part)


class SqliteLog:
    """See `headwater.topics.log.Log`. Safe for many threads and, through SQLite's locks, many processes."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout: float = 30.0,
        max_tail_bytes: int = 256 * 1024**2,
        producer_horizon: float = 86_400.0,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._max_tail_bytes = max_tail_bytes
        self._producer_horizon = int(producer_horizon * 1e6)
        self._now = now
        self._readers: deque[sqlite3.Connection] = deque()
        self._schemas: dict[int, pa.Schema] = {}
        self._schema_ids: dict[bytes, int] = {}
        self._tail = TailCache(max_tail_bytes)
        self._queue: deque[_Waiting] = deque()
        self._closed = False
        self._commits = 0
        self._lock = threading.Lock()
        with named_errors(path):
            self._db = connect(path, busy_timeout)
            self._db.executescript(SCHEMA)

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, request: Append) -> LogAck:
        """Store the request with whatever else waits: who gets the lock commits for all, others find it done."""
        # With a deduplication key the rows to keep are only known inside the transaction.
        payloads = [[serialise(batch) for batch in part.batches] for part in request.parts]
        waiting = _Waiting(request, payloads, digest(payloads) if request.producer else b"")
        self._queue.append(waiting)
        try:
            with self._lock:
                while waiting.outcome is None:
                    self._commit(self._group())
        finally:
            if waiting.outcome is None:  # interrupted while it waited: nobody is to store it later
                with suppress(ValueError):
                    self._queue.remove(waiting)
        if isinstance(waiting.outcome, LogAck):
            return waiting.outcome
        raise waiting.outcome

    def _group(self) -> list[_Waiting]:
        """What waits, in order, up to a number of bytes."""
        group, size = [self._queue.popleft()], 0
        while self._queue and size < GROUP_BYTES:
            group.append(self._queue.popleft())
            size += group[-1].bytes
        return group

    def _commit(self, group: list[_Waiting]) -> None:
        outcomes: list[LogAck | HeadwaterError] = []
        try:
            if self._closed:
                raise Unavailable(f'log "{self._path.name}" is closed')
            with transaction(self._db, write=True):
                for waiting in group:
                    try:
                        outcomes.append(self._store(waiting))
                    except HeadwaterError as refused:  # raised before anything of this request was written
                        outcomes.append(refused)
                failpoint("log.before_commit")
            failpoint("log.after_commit")
        except BaseException as failed:
            outcomes = [failed if isinstance(failed, HeadwaterError) else storage_error(failed, self._path)] * len(
                group
            )
            if not isinstance(failed, Exception):
                raise
        finally:  # also when interrupted: whoever waits must learn of it
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.outcome = outcome
        self._reuse_wal()

    def _reuse_wal(self) -> None:
        """Let the WAL be written over after a number of commits, before SQLite would do it by its size.

        An fsync that need not extend the file takes half as long, which is what small appends wait for; large ones
        reach the size first, and copying less often suits them.
        """
        self._commits += 1
        if self._commits % COMMITS_PER_WAL == 0 and not self._closed:
            with suppress(sqlite3.Error):  # nothing depends on it, and SQLite's own checkpoint comes later
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _store(self, waiting: _Waiting) -> LogAck:
        request = waiting.request
        rows = [self._topic_row(part.topic) for part in request.parts]
        if request.producer is not None and (known := self._known(request, rows[0][0], waiting.digest)):
            return known
        self._check_room(waiting.bytes)
        acks = tuple(
            self._store_part(part, row_id, payloads)
            for part, (row_id, _, _), payloads in zip(request.parts, rows, waiting.payloads, strict=True)
        )
        if request.producer is not None:
            text = ";".join(f"{ack.offsets.start},{ack.offsets.end},{ack.duplicates}" for ack in acks)
            self._db.execute(
                "INSERT INTO log_producers VALUES (?, ?, ?, ?, ?, ?)",
                (rows[0][0], request.producer, request.sequence, waiting.digest, text, self._now()),
            )
        return LogAck(acks)

    def _topic_row(self, topic: LogTopic) -> tuple[int, int, int]:
        row = self._db.execute(
            "SELECT id, next_offset, last_at, dropped FROM log_topics WHERE topic = ?", (topic.id,)
        ).fetchone()
        if row is None:
            cursor = self._db.execute(
                "INSERT INTO log_topics(topic, name, next_offset, trimmed) VALUES (?, ?, ?, ?)",
                (topic.id, topic.name, topic.committed, topic.committed),
            )
            return (int(cursor.lastrowid or 0), topic.committed, 0)
        if row[3]:
            raise TopicNotFound(f'topic "{topic.name}" was dropped')
        return (row[0], row[1], row[2])

    def _known(self, request: Append, topic: int, digest: bytes) -> LogAck | None:
        row = self._db.execute(
            "SELECT digest, acks FROM log_producers WHERE topic = ? AND producer = ? AND sequence = ?",
            (topic, request.producer, request.sequence),
        ).fetchone()
        if row is None:
            return None
        if row[0] != digest:
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
            raise Backpressure(
                "the log is full",
                detail=f"{held} bytes wait to be committed to tables; the limit is {self._max_tail_bytes}.",
                hint="Try again after Retry-After, or run `headwater flush`.",
                retry_after=1,
            )

    def _store_part(self, part: Part, topic: int, payloads: list[Payload]) -> PartAck:
        # Read again, not from the row seen at the start: one request may name a topic twice.
        offset, last = self._db.execute("SELECT next_offset, last_at FROM log_topics WHERE id = ?", (topic,)).fetchone()
        offset = max(offset, part.topic.committed)  # a log older than its table must not give the table's offsets again
        at = max(self._now(), last)
        duplicates = 0
        if part.dedup is not None:
            kept = self._first_of_keys(topic, part, part.dedup, at)
            duplicates = part.rows - sum(batch.num_rows for batch in kept)
            payloads = [serialise(batch) for batch in kept] if duplicates else payloads
        schema = self._schema_id(part.batches[0].schema) if payloads else 0
        start, size = offset, 0
        for payload in payloads:
            if payload.rows == 0:
                continue
            self._db.execute(
                "INSERT INTO log_entries(topic, first_offset, rows, appended_at, schema, bytes, checksum, payload) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    topic,
                    offset,
                    payload.rows,
                    at,
                    schema,
                    payload.data.size,
                    payload.checksum,
                    memoryview(payload.data),
                ),
            )
            offset += payload.rows
            size += payload.data.size
        self._db.execute(
            "UPDATE log_topics SET next_offset = ?, last_at = ?, bytes = bytes + ? WHERE id = ?",
            (offset, at, size, topic),
        )
        return PartAck(Offsets(start, offset), duplicates)

    def _first_of_keys(self, topic: int, part: Part, dedup: Dedup, at: int) -> list[pa.RecordBatch]:
        """The rows whose key was not seen within the horizon, the first of each."""
        cutoff = at - int(dedup.horizon * 1e6)
        insert = (
            "INSERT INTO log_keys VALUES (?, ?, ?) ON CONFLICT(topic, key) DO UPDATE SET at = excluded.at WHERE at < ?"
        )
        keep = [key is None or self._db.execute(insert, (topic, key, at, cutoff)).rowcount > 0 for key in dedup.keys]
        kept, position = [], 0
        for batch in part.batches:
            kept.append(batch.filter(pa.array(keep[position : position + batch.num_rows], pa.bool_())))
            position += batch.num_rows
        return kept

    def _schema_id(self, schema: pa.Schema) -> int:
        data = schema.remove_metadata().serialize().to_pybytes()
        if data not in self._schema_ids:
            row = self._db.execute("SELECT id FROM log_schemas WHERE schema = ?", (data,)).fetchone()
            if row is None:  # not remembered yet: this transaction may still fail
                return int(self._db.execute("INSERT INTO log_schemas(schema) VALUES (?)", (data,)).lastrowid or 0)
            self._schema_ids[data] = int(row[0])
        return self._schema_ids[data]

    # -- reading ------------------------------------------------------------------------------------------------

    def stats(self, topic: LogTopic) -> LogStats:
        with self._reading() as db:
            row = _topic(db, topic)
            if row is None:
                return LogStats(topic.committed, topic.committed, 0, 0, None)
            row_id, end, start, size = row
            count, oldest = db.execute(
                "SELECT count(*), min(appended_at) FROM log_entries WHERE topic = ?", (row_id,)
            ).fetchone()
            return LogStats(start, end, size, count, oldest)

    def waiting(self) -> list[LogTopic]:
        with self._reading() as db:
            rows = db.execute("SELECT topic, name, trimmed FROM log_topics WHERE NOT dropped AND bytes > 0").fetchall()
            return [LogTopic(*row) for row in rows]

    def entries(self, topic: LogTopic, start: int) -> list[Entry]:
        with self._reading() as db:
            row = _topic(db, topic)
            return [] if row is None else list_entries(db, row[0], start)

    def tail(self, topic: LogTopic, start: int) -> list[TailBatch] | None:
        with self._reading() as db:
            row = _topic(db, topic)
            if row is None:
                return None if _is_dropped(db, topic) else []
            row_id, end, trimmed, _ = row
            if trimmed > start:
                return None
            found = list_entries(db, row_id, start)
            check_dense(topic, found, start, end)
            return [self._cut(TailBatch(entry, self._batch(db, entry)), start) for entry in found]

    def _cut(self, tail: TailBatch, start: int) -> TailBatch:
        entry = tail.entry
        if entry.offsets.start >= start:
            return tail
        return TailBatch(
            replace(entry, offsets=Offsets(start, entry.offsets.end)), tail.batch.slice(start - entry.offsets.start)
        )

    def _batch(self, db: sqlite3.Connection, entry: Entry) -> pa.RecordBatch:
        return self._tail.get(entry.id) or self._tail.put(entry, read_entry(db, entry.id, self._schemas))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the database, on a connection that the next reader uses again."""
        with named_errors(self._path):
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = connect(self._path, self._busy_timeout, read_only=True)
            try:
                with transaction(reader, write=False):
                    yield reader
            finally:
                self._readers.append(reader)

    # -- forgetting ---------------------------------------------------------------------------------------------

    def trim(self, topic: LogTopic, before: int) -> None:
        """In small transactions, so that an acknowledgement never waits long for it."""
        with named_errors(self._path), closing(connect(self._path, self._busy_timeout)) as db:
            while self._trim_some(db, topic, before):
                pass
            with transaction(db, write=True):
                db.execute("DELETE FROM log_producers WHERE at < ?", (self._now() - self._producer_horizon,))
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _trim_some(self, db: sqlite3.Connection, topic: LogTopic, before: int) -> bool:
        with transaction(db, write=True):
            row = _topic(db, topic)
            if row is None:
                return False
            row_id, end, start, _ = row
            doomed = db.execute(
                "SELECT id, first_offset + rows, bytes FROM log_entries WHERE topic = ? AND first_offset + rows <= ? "
                "ORDER BY first_offset LIMIT ?",
                (row_id, before, _TRIM),
            ).fetchall()
            db.executemany("DELETE FROM log_entries WHERE id = ?", [(entry,) for entry, _, _ in doomed])
            trimmed = max([start, *(upto for _, upto, _ in doomed)])
            if len(doomed) < _TRIM:
                trimmed = max(trimmed, min(before, end))
            db.execute(
                "UPDATE log_topics SET trimmed = ?, bytes = bytes - ? WHERE id = ?",
                (trimmed, sum(size for _, _, size in doomed), row_id),
            )
        self._tail.forget({entry for entry, _, _ in doomed})
        return len(doomed) == _TRIM

    def forget_keys(self, topic: LogTopic, horizon: float) -> None:
        """Drop deduplication keys that are past their horizon."""
        with named_errors(self._path), self._writing() as db:
            if (row := _topic(db, topic)) is not None:
                cutoff = self._now() - int(horizon * 1e6)
                db.execute("DELETE FROM log_keys WHERE topic = ? AND at < ?", (row[0], cutoff))

    def drop(self, topic: LogTopic) -> None:
        with named_errors(self._path), self._writing() as db:
            db.execute(
                "INSERT INTO log_topics(topic, name, next_offset, trimmed, dropped) VALUES (?, ?, 0, 0, 1) "
                "ON CONFLICT(topic) DO UPDATE SET dropped = 1, bytes = 0, trimmed = next_offset",
                (topic.id, topic.name),
            )
            row_id = db.execute("SELECT id FROM log_topics WHERE topic = ?", (topic.id,)).fetchone()[0]
            db.execute("DELETE FROM log_entries WHERE topic = ?", (row_id,))
            db.execute("DELETE FROM log_producers WHERE topic = ?", (row_id,))
            db.execute("DELETE FROM log_keys WHERE topic = ?", (row_id,))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with closing(connect(self._path, self._busy_timeout)) as db, transaction(db, write=True):
            yield db

    def close(self) -> None:
        """Finish the commit under way, then stop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for connection in (*self._readers, self._db):
            connection.close()


def _is_dropped(db: sqlite3.Connection, topic: LogTopic) -> bool:
    return db.execute("SELECT 1 FROM log_topics WHERE topic = ? AND dropped", (topic.id,)).fetchone() is not None


def _topic(db: sqlite3.Connection, topic: LogTopic) -> tuple[int, int, int, int] | None:
    """The topic's row: id, next offset, first retained offset, bytes."""
    row = db.execute(
        "SELECT id, next_offset, trimmed, bytes FROM log_topics WHERE topic = ? AND NOT dropped", (topic.id,)
    ).fetchone()
    return None if row is None else (row[0], row[1], row[2], row[3])
