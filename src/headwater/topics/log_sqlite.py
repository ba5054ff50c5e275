"""The log on SQLite: Arrow payloads in a WAL-mode file, with group commit.

Order within a commit: check everything, then write, then one fsync (SQLite's COMMIT with synchronous=FULL), then the
acknowledgements. A crash before the COMMIT leaves nothing of the group; a crash after it leaves all of it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headwater.errors import HeadwaterError, Unavailable
from headwater.observability.failpoints import failpoint
from headwater.state.sqlite import connect, named_errors, storage_error, transaction
from headwater.topics.log import Append, Entry, EntryReader, LogAck, LogTopic
from headwater.topics.log_entries import read_entry
from headwater.topics.log_group import GroupCommit, Outcome
from headwater.topics.log_index import IndexedLog
from headwater.topics.log_integrity import check_not_stale, check_row, check_topics, open_tables
from headwater.topics.log_tables import LogWriter, Prepared, find_topic, is_dropped
from headwater.types import LogKind

COMMITS_PER_WAL = 128
_TRIM = 64


@dataclass(frozen=True, slots=True)
class SqliteReader:
    """Reads entries from the log's file."""

    path: Path

    def read(self, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        schemas: dict[int, pa.Schema] = {}
        with named_errors(self.path), closing(connect(self.path, 30.0, read_only=True)) as db:
            for entry in entries:
                yield read_entry(db, entry, schemas)


class _Writer(LogWriter):
    """Writes requests where rows have checksums."""

    def _check_end(self, topic: LogTopic, end: int | None) -> None:
        check_not_stale(topic, end)

    def _check_row(self, table: str, *key: object) -> None:
        check_row(self._db, table, *key)

    def _check_topics(self) -> None:
        check_topics(self._db)


class SqliteLog(IndexedLog):
    """See `headwater.topics.log.Log`. Safe for many threads and, through SQLite's locks, many processes."""

    kind: ClassVar[LogKind] = "sqlite"

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout: float = 30.0,
        max_tail_bytes: int = 256 * 1024**2,
        producer_horizon: float = 86_400.0,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__(path, busy_timeout, max_tail_bytes)
        self._producer_horizon = int(producer_horizon * 1e6)
        self._now = now
        self._max_tail_bytes = max_tail_bytes
        self._schemas: dict[int, pa.Schema] = {}
        self._closed = False
        self._commits = 0
        with named_errors(path):
            self._db = connect(path, busy_timeout)
            self.state = open_tables(self._db, path)
            check_topics(self._db)
        self._writer = _Writer(self._db, max_tail_bytes=max_tail_bytes, now=now)
        self._group = GroupCommit(self._commit, lambda failed: storage_error(failed, path))

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, request: Append) -> LogAck:
        return self._group.append(request)

    def _commit(self, group: Sequence[Prepared]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        if self._closed:
            raise Unavailable(f'log "{self._path.name}" is closed')
        try:
            with transaction(self._db, write=True):
                for prepared in group:
                    try:
                        outcomes.append(self._writer.store(prepared))
                    except HeadwaterError as refused:  # raised before anything of this request was written
                        outcomes.append(refused)
                failpoint("log.before_commit")
        except BaseException:
            self._writer.rolled_back()
            raise
        failpoint("log.after_commit")
        self._reuse_wal()
        return outcomes

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
        with named_errors(self._path), self._group.lock, transaction(self._db, write=True):
            self._writer.guard(topic)

    @contextmanager
    def holding(self, topic: LogTopic) -> Iterator[None]:
        """SQLite has one writer: whoever appends, to any topic, waits for this one."""
        with named_errors(self._path), self._writing():
            yield

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        return (read_entry(db, entry, self._schemas) for entry in entries)

    def _find(self, db: sqlite3.Connection, topic: LogTopic) -> tuple[int, int, int, int] | None:
        row = super()._find(db, topic)
        if row is not None or not is_dropped(db, topic):
            check_not_stale(topic, None if row is None else row[1])
        return row

    def _check_row(self, db: sqlite3.Connection, table: str, *key: object) -> None:
        check_row(db, table, *key)

    def _check_topics(self, db: sqlite3.Connection) -> None:
        check_topics(db)

    def reader(self, topic: LogTopic, entries: Sequence[Entry]) -> EntryReader:
        return SqliteReader(self._path)

    # -- forgetting ---------------------------------------------------------------------------------------------

    def trim(self, topic: LogTopic, before: int) -> None:
        """In small transactions, so that an acknowledgement never waits long for it."""
        with named_errors(self._path), closing(connect(self._path, self._busy_timeout)) as db:
            while self._trim_some(db, topic, before):
                pass
            with transaction(db, write=True):
                self._writer_on(db).forget_producers(self._now() - self._producer_horizon)
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
            self._writer_on(db).forget_keys(topic, self._now() - int(horizon * 1e6))

    def drop(self, topic: LogTopic) -> None:
        with named_errors(self._path), self._writing() as db:
            self._writer_on(db).drop(topic)

    def _writer_on(self, db: sqlite3.Connection) -> LogWriter:
        return _Writer(db, max_tail_bytes=self._max_tail_bytes, now=self._now)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with closing(connect(self._path, self._busy_timeout)) as db, transaction(db, write=True):
            yield db

    def close(self) -> None:
        """Finish the commit under way, then stop."""
        with self._group.lock:
            if self._closed:
                return
            self._closed = True
        self._close_readers()
        self._db.close()
