"""SQLite as operational state: one way to open it, one way to name its failures."""

from __future__ import annotations

import os
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from headwater.config import is_writable, read_only_uri
from headwater.errors import Corrupt, HeadwaterError, StorageBusy, full_disk, system_error

_PAGE = 8_192
_DAMAGED = ("malformed", "not a database", "is damaged", "decode to UTF-8")


def connect(path: Path, busy_timeout: float, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in WAL mode whose commits reach the disk before they return; transactions are begun by hand.

    In a folder that cannot be written it only reads, and a write fails."""
    read_only = read_only or not is_writable(path)
    if not read_only:
        create_private_file(path)
    uri = read_only_uri(path) if read_only else f"{path.as_uri()}?mode=rwc"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    connection.create_function("log_checksum", -1, row_checksum, deterministic=True)
    if not read_only:
        connection.execute(f"PRAGMA page_size={_PAGE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=16000")
    return connection


def create_private_file(path: Path) -> None:
    """Make an empty file that only its owner may use, if there is none; SQLite gives -wal and -shm the same mode.

    The file must not be opened here. When a process closes any descriptor of a database, the system drops the locks
    that SQLite holds on it in that process; another process then deletes the -wal file with commits still in it.
    """
    with suppress(OSError):  # it exists; or what is wrong, SQLite says in a moment
        os.mknod(path, 0o600 | stat.S_IFREG)


def is_open(path: Path, patience: float = 0.0) -> bool:
    """Whether a connection, of this process or another, keeps the database open for longer than `patience` seconds;
    False if the file is not a database.

    A connection in WAL mode holds a shared lock on the file for as long as it lives, also while nothing is asked of it,
    and the system releases the lock however the process ends. So an exclusive lock is refused while there is one.
    """
    if not path.exists():
        return False
    uri = f"{path.as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None)) as db:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")
            db.execute("ROLLBACK")
    except sqlite3.Error as error:
        return "locked" in str(error)
    return False


def row_checksum(*values: object) -> int:
    """The CRC-32 of a row's values; the log's triggers know it as `log_checksum`."""
    return zlib.crc32(repr(values).encode())


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
        return full_disk(str(path))
    if (known := system_error(error)) is not None:
        return known
    if any(sign in text for sign in _DAMAGED):
        return Corrupt(
            f'state "{path.name}" is damaged',
            detail=f"SQLite says: {text}. Records that wait in the log may be lost; committed ones are not affected.",
            hint=f"Keep a copy of {path.name}, run `headwater doctor`, and restore the file from a backup.",
        )
    return StorageBusy(
        f'state "{path.name}" failed',
        detail=f"SQLite says: {text}. Nothing was written.",
        hint="Try again; `headwater doctor` checks it.",
    )


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's failures on `path` into Headwater's."""
    try:
        yield
    except sqlite3.Error as failed:
        raise storage_error(failed, path) from failed
