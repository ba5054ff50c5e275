"""Checksums over every row of the log in SQLite but deduplication keys, the set of its topics, and who the log is.

SQLite has no checksums: one flipped bit in a page changes a time, an offset or the id of a topic, and nothing notices.
Triggers keep a checksum beside each row, so that no statement can forget it, and refuse to change a row that does not
match its own. They call a function that `state.sqlite.connect` defines; a version of Headwater that does not know the
function cannot write to the log.

Entries have no trigger: their checksum continues that of the payload, which is computed before the transaction.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headwater.config import is_writable
from headwater.errors import Corrupt, StorageBusy
from headwater.state.sqlite import connect, named_errors, row_checksum, transaction
from headwater.topics.log import LogTopic
from headwater.topics.log_entries import entry_checksum
from headwater.topics.log_tables import ENTRIES, TABLES
from headwater.version import __version__, newer_version

VERSION = 2
"""Of the log's tables. 1: checksums of payloads only."""
HINT = "Run `headwater doctor`; it says what can be done."
LOST_HINT = (
    "Put the file back, or restore the lake from a backup. `headwater doctor` says what is lost without it, and "
    "`headwater doctor --repair --start-new-log` goes on without it."
)
_LOST = (
    "It holds the records that were acknowledged and not committed to tables yet, the sequences of producers, the "
    "deduplication keys and the positions of Kafka connectors."
)

_SCHEMA = TABLES + ENTRIES.format(counted="AUTOINCREMENT", payload=", payload BLOB NOT NULL")
_STATE = (
    "CREATE TABLE log_state(one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, version INTEGER NOT NULL, "
    "written_by TEXT NOT NULL, topics INTEGER NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class _Covered:
    """A table whose rows have a checksum: its key, and its other columns."""

    key: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.key + self.values


_COVERED = {
    "log_topics": _Covered(("id",), ("topic", "name", "next_offset", "trimmed", "bytes", "last_at", "dropped")),
    "log_schemas": _Covered(("id",), ("schema",)),
    "log_producers": _Covered(("topic", "producer", "sequence"), ("digest", "acks", "at")),
    "log_positions": _Covered(("source",), ("topic", "position")),
}


@dataclass(frozen=True, slots=True)
class LogState:
    """Who a log is: the id that its lake's catalog records, and the version of its tables."""

    id: str
    version: int
    written_by: str


# -- opening ----------------------------------------------------------------------------------------------------------


def open_tables(db: sqlite3.Connection, path: Path) -> LogState:
    """Make the log's tables, or bring older ones up to date; NewerVersion if they are those of a newer Headwater."""
    found = read_state(db, path)
    if found is None:
        if not is_writable(path):
            raise StorageBusy(
                f'state "{path.name}" is of an older version, and cannot be written',
                detail=f"It has to be migrated to version {VERSION} first.",
                hint="Open the lake once with a user who can write to its folder.",
            )
        with transaction(db, write=True):
            if read_state(db, path) is None:  # another process may have been quicker
                _upgrade(db)
        found = read_state(db, path)
    assert found is not None
    return found


def create_log(path: Path, busy_timeout: float) -> LogState:
    """Make a log in a file, unless there is one."""
    with named_errors(path), closing(connect(path, busy_timeout)) as db:
        return open_tables(db, path)


def check_log(path: Path, expected: str | None, busy_timeout: float) -> None:
    """Corrupt unless the file holds the log of which the lake's catalog has the id; None: it has none yet."""
    if not path.exists():
        raise Corrupt(f'state "{path.name}" is missing', detail=_LOST, hint=LOST_HINT)
    with named_errors(path), closing(connect(path, busy_timeout, read_only=True)) as db:
        found = read_state(db, path)
        is_log = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'log_topics'").fetchone() is not None
    if not is_log:
        raise Corrupt(f'state "{path.name}" is empty', detail=_LOST, hint=LOST_HINT)
    if expected is not None and (found is None or found.id != expected):
        raise Corrupt(f'state "{path.name}" is not the one of this lake', detail=_LOST, hint=LOST_HINT)


def read_state(db: sqlite3.Connection, path: Path) -> LogState | None:
    """Who the log is; None if it has version 1, or is new."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'log_state'").fetchone():
        return None
    row = db.execute("SELECT id, version, written_by FROM log_state").fetchone()
    if row is None:
        raise Corrupt(f'state "{path.name}" is damaged', detail="It does not say which log it holds.", hint=HINT)
    if row[1] > VERSION:
        raise newer_version(f'state "{path.name}"', "version", row[1], VERSION, row[2])
    return LogState(*row)


def _upgrade(db: sqlite3.Connection) -> None:
    from ulid import ULID

    for statement in filter(str.strip, _SCHEMA.split(";")):
        db.execute(statement)
    for table, covered in _COVERED.items():
        db.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
        db.execute(f"UPDATE {table} SET checksum = log_checksum({', '.join(covered.columns)})")  # noqa: S608
    _upgrade_entries(db)
    db.execute(_STATE)
    count = "INSERT INTO log_state SELECT 1, ?, ?, ?, count(*) FROM log_topics"
    db.execute(count, (str(ULID()).lower(), VERSION, __version__))
    for statement in _triggers():
        db.execute(statement)


def _upgrade_entries(db: sqlite3.Connection) -> None:
    """Have the checksums of entries cover their other columns; a damaged one keeps a checksum that does not match."""
    last = 0
    find = (
        "SELECT id, topic, first_offset, rows, appended_at, schema, bytes, checksum, payload FROM log_entries "
        "WHERE id > ? ORDER BY id LIMIT 1"
    )
    while row := db.execute(find, (last,)).fetchone():
        last, *header, checksum, payload = row
        new = entry_checksum(header, checksum) if zlib.crc32(payload) == checksum else -1
        db.execute("UPDATE log_entries SET checksum = ? WHERE id = ?", (new, last))


def _triggers() -> Iterator[str]:
    for table, covered in _COVERED.items():
        new = ", ".join(f"NEW.{column}" for column in covered.columns)
        old = ", ".join(f"OLD.{column}" for column in covered.columns)
        row = " AND ".join(f"{column} = NEW.{column}" for column in covered.key)
        seal = f"UPDATE {table} SET checksum = log_checksum({new}) WHERE {row}"  # noqa: S608
        changed = f"UPDATE OF {', '.join(covered.columns)} ON {table}"
        yield f"CREATE TRIGGER {table}_added AFTER INSERT ON {table} BEGIN {seal}; END"
        yield f"CREATE TRIGGER {table}_changed AFTER {changed} BEGIN {seal}; END"
        yield (
            f"CREATE TRIGGER {table}_checked BEFORE {changed} WHEN OLD.checksum IS NOT log_checksum({old}) "
            f"BEGIN SELECT RAISE(ABORT, 'a row of {table} is damaged'); END"
        )
    yield (
        "CREATE TRIGGER log_topics_counted AFTER INSERT ON log_topics "
        "BEGIN UPDATE log_state SET topics = topics + 1; END"
    )


# -- checking ---------------------------------------------------------------------------------------------------------


def check_row(db: sqlite3.Connection, table: str, *key: object) -> None:
    """Corrupt if the row of this key, which exists, does not match its checksum."""
    covered = _COVERED[table]
    where = " AND ".join(f"{column} = ?" for column in covered.key)
    row = db.execute(f"SELECT {', '.join(covered.columns)}, checksum FROM {table} WHERE {where}", key).fetchone()  # noqa: S608
    if row is None or row_checksum(*row[:-1]) != row[-1]:
        raise _damaged(table)


def check_tables(db: sqlite3.Connection) -> None:
    """Corrupt if any row with a checksum does not match it, or a topic is missing."""
    for table, covered in _COVERED.items():
        for row in db.execute(f"SELECT {', '.join(covered.columns)}, checksum FROM {table}"):  # noqa: S608
            if row_checksum(*row[:-1]) != row[-1]:
                raise _damaged(table)
    check_topics(db)


def check_topics(db: sqlite3.Connection) -> None:
    """Corrupt if the log does not have all of its topics, each as it was written."""
    covered = _COVERED["log_topics"]
    rows = db.execute(f"SELECT {', '.join(covered.columns)}, checksum FROM log_topics").fetchall()  # noqa: S608
    if any(row_checksum(*row[:-1]) != row[-1] for row in rows):
        raise _damaged("log_topics")
    (count,) = db.execute("SELECT topics FROM log_state").fetchone()
    if len(rows) != count:
        detail = f"It has {len(rows)} topics instead of {count}. Nothing was written."
        raise Corrupt("the log is damaged", detail=detail, hint=HINT)


def check_not_stale(topic: LogTopic, end: int | None) -> None:
    """Corrupt if the log, which ends at `end`, is older than the topic's table; None: the log lacks the topic.

    Every ingest records how much the log had acknowledged, so a log without the topic belongs to a table that no
    ingest has written.
    """
    known = topic.acknowledged if end is None else max(topic.committed, topic.acknowledged)
    if known > (end or 0):
        ends = "It does not have the topic" if end is None else f"It ends at offset {end}"
        raise Corrupt(
            f'log of topic "{topic.name}" is older than its table',
            detail=f"{ends}; the table has everything below {topic.committed}, and offsets below {known} were "
            "acknowledged. Was an older state.db put into the lake?",
            hint=HINT,
        )


def _damaged(table: str) -> Corrupt:
    return Corrupt(
        "the log is damaged", detail=f"A row of {table} does not match its checksum. Nothing was written.", hint=HINT
    )
