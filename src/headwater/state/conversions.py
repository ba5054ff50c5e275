"""Which files were brought into which topics, and how far: a second run brings nothing twice, however late it comes.

The log remembers a producer's sequences for a while only. This is kept for as long as the topic has its id.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headwater.state.sqlite import connect, named_errors

_MAKE = """
CREATE TABLE IF NOT EXISTS conversions (
    topic TEXT NOT NULL, file TEXT NOT NULL, path TEXT NOT NULL, chunk_rows INTEGER NOT NULL, chunks INTEGER NOT NULL,
    rows INTEGER NOT NULL, finished_at REAL, PRIMARY KEY (topic, file)) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file as far as it is in a topic: so many chunks with so many rows; `chunk_rows` is how it was cut."""

    chunk_rows: int
    chunks: int = 0
    rows: int = 0
    finished: bool = False


class Conversions:
    """The conversions of a lake, in its state file."""

    def __init__(self, path: Path, busy_timeout: float, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._now = now

    def get(self, topic: str, file: str) -> Conversion | None:
        asked = "SELECT chunk_rows, chunks, rows, finished_at FROM conversions WHERE topic = ? AND file = ?"
        with named_errors(self._path), closing(self._open()) as db:
            row = db.execute(asked, (topic, file)).fetchone()
        return None if row is None else Conversion(row[0], row[1], row[2], row[3] is not None)

    def begin(self, topic: str, file: str, path: str, chunk_rows: int) -> Conversion:
        """Note how a file is cut before any of it is stored; what another run noted first stays."""
        with named_errors(self._path), closing(self._open()) as db:
            row = (topic, file, path, chunk_rows)
            db.execute("INSERT OR IGNORE INTO conversions VALUES (?, ?, ?, ?, 0, 0, NULL)", row)
        found = self.get(topic, file)
        assert found is not None
        return found

    def advance(self, topic: str, file: str, chunks: int, rows: int) -> None:
        """So many chunks are stored."""
        change = "UPDATE conversions SET chunks = ?, rows = ? WHERE topic = ? AND file = ? AND chunks < ?"
        with named_errors(self._path), closing(self._open()) as db:
            db.execute(change, (chunks, rows, topic, file, chunks))

    def finish(self, topic: str, file: str) -> None:
        """All of the file is stored."""
        change = "UPDATE conversions SET finished_at = ? WHERE topic = ? AND file = ?"
        with named_errors(self._path), closing(self._open()) as db:
            db.execute(change, (self._now(), topic, file))

    def _open(self) -> sqlite3.Connection:
        db = connect(self._path, self._busy_timeout)
        db.execute(_MAKE)
        return db
