"""Which streams are to run, and how they failed last: what outlives the process that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from headwater.config import is_writable
from headwater.state.sqlite import connect, transaction

_MAKE = """
CREATE TABLE IF NOT EXISTS streams (
    name TEXT PRIMARY KEY, wanted INTEGER NOT NULL, restarts INTEGER NOT NULL, error TEXT, error_at REAL) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one stream; `restarts` counts those that a failure made necessary."""

    wanted: bool = True
    restarts: int = 0
    error: str | None = None
    error_at: float | None = None


class StreamStore:
    """Standings by name, in the lake's state file."""

    def __init__(self, path: Path, busy_timeout: float, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._now = now
        with self._opened() as db:
            # A lake that cannot be written, and in which no stream ever ran, has no such table.
            self._exists = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'streams'").fetchone() is not None
            if not self._exists and is_writable(path):
                db.execute(_MAKE)
                self._exists = True

    def get(self, name: str) -> Standing:
        if not self._exists:
            return Standing()
        with self._opened() as db:
            row = db.execute("SELECT wanted, restarts, error, error_at FROM streams WHERE name = ?", (name,)).fetchone()
        return Standing() if row is None else Standing(bool(row[0]), *row[1:])

    def want(self, name: str, wanted: bool) -> None:
        """Whether the stream is to run."""
        with self._opened() as db, transaction(db, write=True):
            db.execute(
                "INSERT INTO streams VALUES (?1, ?2, 0, NULL, NULL) ON CONFLICT (name) DO UPDATE SET wanted = ?2",
                (name, int(wanted)),
            )

    def failed(self, name: str, error: str) -> None:
        """The stream has failed, and will be started again."""
        with self._opened() as db, transaction(db, write=True):
            db.execute(
                "INSERT INTO streams VALUES (?1, 1, 1, ?2, ?3) ON CONFLICT (name) DO UPDATE "
                "SET restarts = restarts + 1, error = ?2, error_at = ?3",
                (name, error, self._now()),
            )

    def forget(self, name: str) -> None:
        with self._opened() as db, transaction(db, write=True):
            db.execute("DELETE FROM streams WHERE name = ?", (name,))

    @contextmanager
    def _opened(self) -> Iterator[Connection]:
        with closing(connect(self._path, self._busy_timeout)) as db:
            yield db
