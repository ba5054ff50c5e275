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

from headwater.errors import HeadwaterError, Unavailable
from headwater.observability.failpoints import failpoint
from headwater.state.sqlite import connect, named_errors, storage_error, transaction
from headwater.topics.log import Append, Entry, LogAck, LogStats, LogTopic, TailBatch
from headwater.topics.log_entries import TailCache, check_dense, list_entries, read_entry
from headwater.topics.log_tables import SCHEMA, LogWriter, Prepared, find_topic, is_dropped
from headwater.types import Offsets

GROUP_BYTES = 64 * 1024**2
COMMITS_PER_WAL = 128
_TRIM = 64


@dataclass(slots=True)
class _Waiting:
    prepared: Prepared
    outcome: LogAck | HeadwaterError | None = None


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
        self._producer_horizon = int(producer_horizon * 1e6)
        self._now = now
        self._readers: deque[sqlite3.Connection] = deque()
        self._schemas: dict[int, pa.Schema] = {}
        self._tail = TailCache(max_tail_bytes)
        self._queue: deque[_Waiting] = deque()
        self._closed = False
        self._commits = 0
        self._lock = threading.Lock()
        with named_errors(path):
            self._db = connect(path, busy_timeout)
            self._db.executescript(SCHEMA)
        self._writer = LogWriter(self._db, max_tail_bytes=max_tail_bytes, now=now)

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, request: Append) -> LogAck:
        """Store the request with whatever else waits: who gets the lock commits for all, others find it done."""
        waiting = _Waiting(Prepared.of(request))
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
            size += group[-1].prepared.bytes
        return group

    def _commit(self, group: list[_Waiting]) -> None:
        outcomes: list[LogAck | HeadwaterError] = []
        try:
            if self._closed:
                raise Unavailable(f'log "{self._path.name}" is closed')
            with transaction(self._db, write=True):
                for waiting in group:
                    try:
                        outcomes.append(self._writer.store(waiting.prepared))
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

    def guard(self, topic: LogTopic) -> None:
        """On disk before it returns: from then on every append to the topic, by any process, is verified."""
        with named_errors(self._path), self._lock, transaction(self._db, write=True):
            self._writer.guard(topic)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """SQLite has one writer: whoever appends waits for this one."""
        with named_errors(self._path), self._writing():
            yield

    # -- reading ------------------------------------------------------------------------------------------------

    def stats(self, topic: LogTopic) -> LogStats:
        with self._reading() as db:
            row = find_topic(db, topic)
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
            row = find_topic(db, topic)
            return [] if row is None else list_entries(db, row[0], start)

    def tail(self, topic: LogTopic, start: int) -> list[TailBatch] | None:
        with self._reading() as db:
            row = find_topic(db, topic)
            if row is None:
                return None if is_dropped(db, topic) else []
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
            row = find_topic(db, topic)
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
            if (row := find_topic(db, topic)) is not None:
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
            db.execute("DELETE FROM log_guards WHERE topic = ?", (row_id,))

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
