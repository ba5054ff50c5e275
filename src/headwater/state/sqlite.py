"""SQLite as operational state: one way to open it, one way to name its failures."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import Corrupt, HeadwaterError, StorageBusy

_PAGE = 8_192


def connect(path: Path, busy_timeout: float, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in WAL mode whose commits reach the disk before they return; transactions are begun by hand."""
    uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    if not read_only:
        connection.execute(f"PRAGMA page_size={_PAGE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=16000")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[sqlite3.Connection]:
    """All or nothing; a reader sees one moment of the database."""
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def storage_error(error: BaseException, path: Path) -> HeadwaterError:
    """What a failing SQLite file means to a user."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return StorageBusy(
            f'state "{path.name}" stayed locked',
            detail="Another process held it for longer than the setting busy_timeout.",
            hint="Try again; nothing was written.",
        )
    if "full" in text or "No space" in text:
        return StorageBusy(f'disk of "{path}" is full', detail="Nothing was written.", hint="Free some space.")
    if "malformed" in text or "not a database" in text:
        return Corrupt(
            f'state "{path.name}" is damaged', detail=f"SQLite says: {text}.", hint="Run `headwater doctor`."
        )
    return StorageBusy(f'state "{path.name}" failed', detail=f"SQLite says: {text}. Nothing was written.")


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's failures on `path` into Headwater's."""
    try:
        yield
    except sqlite3.Error as failed:
        raise storage_error(failed, path) from failed
