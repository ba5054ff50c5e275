"""What a log answers from its tables, whatever keeps the rows of its entries."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headwater.config import is_writable
from headwater.state.sqlite import connect, named_errors, transaction
from headwater.topics.log import Entry, LogStats, LogTopic, TailBatch
from headwater.topics.log_entries import TailCache, check_dense, list_entries
from headwater.topics.log_tables import find_position, find_topic, is_dropped
from headwater.types import LogKind, Offsets


class IndexedLog(ABC):
    """The reading half of a log."""

    kind: ClassVar[LogKind]

    def __init__(self, path: Path, busy_timeout: float, max_tail_bytes: int) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._is_writable = is_writable(path)
        self._readers: deque[sqlite3.Connection] = deque()
        self._tail = TailCache(max_tail_bytes)

    @abstractmethod
    def _read(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        """The rows of each entry, in order."""

    def position(self, source: str) -> str | None:
        with self._reading() as db:
            found = find_position(db, source)
            if found is not None:
                self._check_row(db, "log_positions", source)
            return found

    def stats(self, topic: LogTopic) -> LogStats:
        with self._reading() as db:
            row = self._find(db, topic)
            if row is None:
                return LogStats(topic.committed, topic.committed, 0, 0, None)
            row_id, end, start, size = row
            count, oldest = db.execute(
                "SELECT count(*), min(appended_at) FROM log_entries WHERE topic = ?", (row_id,)
            ).fetchone()
            return LogStats(start, end, size, count, oldest)

    def waiting(self) -> list[LogTopic]:
        with self._reading() as db:
            self._check_topics(db)
            rows = db.execute("SELECT topic, name, trimmed FROM log_topics WHERE NOT dropped AND bytes > 0").fetchall()
            return [LogTopic(id_, name, trimmed, self.kind) for id_, name, trimmed in rows]

    def entries(self, topic: LogTopic, start: int) -> list[Entry]:
        with self._reading() as db:
            row = self._find(db, topic)
            return [] if row is None else list_entries(db, row[0], start)

    def tail(self, topic: LogTopic, start: int) -> list[TailBatch] | None:
        with self._reading() as db:
            row = self._find(db, topic)
            if row is None:
                return None if is_dropped(db, topic) else []
            row_id, end, trimmed, _ = row
            if trimmed > start:
                return None
            found = list_entries(db, row_id, start)
            check_dense(topic, found, start, end)
            batches = self._batches(db, found)
            return [_cut(TailBatch(*pair), start) for pair in zip(found, batches, strict=True)]

    def _find(self, db: sqlite3.Connection, topic: LogTopic) -> tuple[int, int, int, int] | None:
        """The topic's row, checked; None if the log has never had the topic, or it was dropped."""
        row = find_topic(db, topic)
        if row is None:
            self._check_topics(db)
        else:
            self._check_row(db, "log_topics", row[0])
        return row

    def _check_row(self, db: sqlite3.Connection, table: str, *key: object) -> None:  # noqa: B027
        """Corrupt if the row of this key does not match its checksum, where rows have one."""

    def _check_topics(self, db: sqlite3.Connection) -> None:  # noqa: B027
        """Corrupt if a topic is missing, where topics are counted."""

    def _batches(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> list[pa.RecordBatch]:
        held = {entry.id: batch for entry in entries if (batch := self._tail.get(entry)) is not None}
        missing = [entry for entry in entries if entry.id not in held]
        for entry, batch in zip(missing, self._read(db, missing), strict=True):
            held[entry.id] = self._tail.put(entry, batch)
        return [held[entry.id] for entry in entries]

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
                if self._is_writable:
                    self._readers.append(reader)
                else:  # it would not notice what others write
                    reader.close()

    def _close_readers(self) -> None:
        for connection in self._readers:
            connection.close()


def _cut(tail: TailBatch, start: int) -> TailBatch:
    entry = tail.entry
    if entry.offsets.start >= start:
        return tail
    return TailBatch(
        replace(entry, offsets=Offsets(start, entry.offsets.end)), tail.batch.slice(start - entry.offsets.start)
    )
