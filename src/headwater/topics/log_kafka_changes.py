"""What a blob of the Kafka log holds: rows of entries, and the changes of the log's tables that go with them.

The tables are the log's index, a SQLite file that can be made again from the journal at any time: whoever applies the
blobs that count, in their order, has the same tables. A snapshot is a blob that holds all rows of the tables, for those
who come when the journal's beginning was deleted; to everyone else it says nothing new.

An entry's id is its place: the message in which its rows begin, and the byte there.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import Corrupt
from headwater.topics.log import Entry, LogTopic
from headwater.topics.log_entries import Payload
from headwater.topics.log_kafka_journal import MESSAGE_BYTES, Blob
from headwater.topics.log_tables import CHANGES, ENTRIES, TABLES, LogWriter, find_topic
from headwater.types import Offsets

_START_BITS = 20
_BLOB = struct.Struct("<4sQI")
"""At the beginning of a blob: what it is, where its changes begin, and their CRC-32. Rows of entries lie between."""
_MAGIC = b"HWL1"
_KEY = struct.Struct("<H")

INDEX_SCHEMA = (
    TABLES
    + ENTRIES.format(counted="", payload="")
    + """
CREATE TABLE IF NOT EXISTS log_journal(
    one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER NOT NULL, head INTEGER NOT NULL, bytes INTEGER NOT NULL,
    snapshot_at INTEGER NOT NULL, snapshot_bytes INTEGER NOT NULL, cut INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS log_holds(holder TEXT PRIMARY KEY, beat INTEGER NOT NULL) WITHOUT ROWID;
"""
)
KAFKA_CHANGES: Mapping[str, str] = {
    **CHANGES,
    "entry": "INSERT INTO log_entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "trim": "DELETE FROM log_entries WHERE topic = ? AND first_offset + rows <= ?",
    "trimmed": "UPDATE log_topics SET trimmed = max(trimmed, min(?2, next_offset)), bytes = (SELECT "
    "coalesce(sum(bytes), 0) FROM log_entries WHERE topic = ?1) WHERE id = ?1",
    "hold": "INSERT OR REPLACE INTO log_holds VALUES (?, ?)",
    "release": "DELETE FROM log_holds WHERE holder = ?",
    "cut": "UPDATE log_journal SET bytes = 0, cut = ?",
}
_LOADED = (
    "log_topics",
    "log_schemas",
    "log_entries",
    "log_producers",
    "log_keys",
    "log_guards",
    "log_positions",
    "log_holds",
)

Changes = list[tuple[str, tuple[Any, ...]]]


def place_of(entry: int) -> tuple[int, int]:
    """The message in which an entry begins, and the byte there."""
    return entry >> _START_BITS, entry & ((1 << _START_BITS) - 1)


def _entry_id(first: int, position: int) -> int:
    message, start = divmod(position, MESSAGE_BYTES)
    return (first + message) << _START_BITS | start


# -- blobs ------------------------------------------------------------------------------------------------------


def encode(payloads: Sequence[Payload], changes: Changes) -> bytes:
    text = json.dumps(changes, default=_encoded, separators=(",", ":")).encode()
    rows = [memoryview(payload.data) for payload in payloads]
    head = _BLOB.pack(_MAGIC, _BLOB.size + sum(map(len, rows)), zlib.crc32(text))
    return b"".join([head, *rows, text])


def _encoded(value: object) -> dict[str, str]:
    assert isinstance(value, bytes)
    return {"b": base64.b64encode(value).decode()}


def decode(blob: Blob) -> Changes:
    """The changes of a blob; Corrupt when it is damaged, or of a later version."""
    magic, position, checksum = _BLOB.unpack_from(blob.messages[0])
    message, start = divmod(position, MESSAGE_BYTES)
    text = b"".join(blob.messages[message:])[start:]
    if magic != _MAGIC or zlib.crc32(text) != checksum:
        raise Corrupt(
            f"message {blob.first} of the log in Kafka cannot be read",
            detail="Its checksum does not match." if magic == _MAGIC else "It was written by another Headwater.",
        )
    return [(name, tuple(map(_decoded, values))) for name, values in json.loads(text)]


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    return base64.b64decode(value["b"]) if isinstance(value, dict) else value


# -- writing ----------------------------------------------------------------------------------------------------


class KafkaWriter(LogWriter):
    """Makes the changes of requests in the index, and remembers them for the journal."""

    def __init__(self, db: sqlite3.Connection, *, max_tail_bytes: int, now: Callable[[], int]) -> None:
        super().__init__(db, max_tail_bytes=max_tail_bytes, now=now)
        self.begin(0)

    def begin(self, first: int) -> None:
        """Start a blob that is expected to begin with message `first`; the one before may have been taken back."""
        self.rolled_back()
        self._first = first
        self._position = _BLOB.size
        self._payloads: list[Payload] = []
        self.changes: Changes = []
        self.entries: list[tuple[Entry, int, pa.Buffer]] = []

    def blob(self) -> bytes:
        return encode(self._payloads, self.changes)

    def trim(self, topic: LogTopic, before: int) -> None:
        row = find_topic(self._db, topic)
        if row is not None and row[2] < min(before, row[1]):
            self._change("trim", row[0], before)
            self._change("trimmed", row[0], before)

    def forget_producers(self, before: int) -> None:
        if self._db.execute("SELECT 1 FROM log_producers WHERE at < ? LIMIT 1", (before,)).fetchone():
            super().forget_producers(before)

    def hold(self, holder: str, beat: int) -> None:
        self._change("hold", holder, beat)

    def release(self, holder: str) -> None:
        self._change("release", holder)

    def snapshot(self) -> None:
        """Everything that the index holds, for whoever starts here."""
        for table in _LOADED:
            rows = self._db.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
            self.changes.append(("load", (table, rows)))

    def cut(self, before: int) -> None:
        """Note that what is below message `before` is going to be deleted; it proves that the snapshot counts."""
        self._change("cut", before)

    def _change(self, name: str, *values: object) -> sqlite3.Cursor:
        self.changes.append((name, values))
        return self._db.execute(KAFKA_CHANGES[name], values)

    def _insert_entries(self, topic: int, offset: int, at: int, schema: int, payloads: list[Payload]) -> None:
        for payload in payloads:
            values = (topic, offset, payload.rows, at, schema, payload.data.size, payload.checksum)
            self.changes.append(("entry", (self._position, *values)))
            id_ = _entry_id(self._first, self._position)
            self._db.execute(KAFKA_CHANGES["entry"], (id_, *values))
            self._payloads.append(payload)
            entry = Entry(id_, Offsets(offset, offset + payload.rows), at, payload.data.size)
            self.entries.append((entry, schema, payload.data))
            offset += payload.rows
            self._position += payload.data.size

    def _keys_kept(self, topic: int, keys: list[bytes], at: int) -> None:
        if keys:
            packed = b"".join(_KEY.pack(len(key)) + key for key in keys)
            self.changes.append(("keys", (topic, at, packed)))


# -- applying ---------------------------------------------------------------------------------------------------


def apply_blob(db: sqlite3.Connection, blob: Blob) -> None:
    """Make the changes of a blob that counts."""
    for name, values in decode(blob):
        match name:
            case "load":
                db.execute("UPDATE log_journal SET snapshot_at = ?, snapshot_bytes = ?", (blob.first, blob.bytes))
            case "entry":
                db.execute(KAFKA_CHANGES[name], (_entry_id(blob.first, values[0]), *values[1:]))
            case "keys":
                topic, at, packed = values
                db.executemany(
                    "INSERT OR REPLACE INTO log_keys VALUES (?, ?, ?)", ((topic, key, at) for key in _unpacked(packed))
                )
            case _ if name in KAFKA_CHANGES:
                db.execute(KAFKA_CHANGES[name], values)
            case _:
                raise Corrupt(
                    f"message {blob.first} of the log in Kafka cannot be read",
                    detail=f'It has the change "{name}", which this Headwater does not know.',
                    hint="Upgrade Headwater.",
                )


def is_snapshot(blob: Blob) -> bool:
    return any(name == "load" for name, _ in decode(blob))


def load_snapshot(db: sqlite3.Connection, blob: Blob) -> None:
    """Make the index what the snapshot says."""
    clear(db)
    for _, (table, rows) in decode(blob):
        if table not in _LOADED:
            raise Corrupt(f'snapshot of the log in Kafka has the table "{table}"', hint="Upgrade Headwater.")
        if rows:
            places = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
    begin_index(db, blob.end, blob.first, blob.bytes)


def begin_index(db: sqlite3.Connection, at: int, snapshot_at: int = 0, snapshot_bytes: int = 0) -> None:
    """Note that the index stands at message `at`, behind a blob that counts."""
    db.execute("INSERT INTO log_journal VALUES (1, ?, ?, 0, ?, ?, 0)", (at, at, snapshot_at, snapshot_bytes))


def clear(db: sqlite3.Connection) -> None:
    """Make the index empty."""
    for table in (*_LOADED, "log_journal"):
        db.execute(f"DELETE FROM {table}")  # noqa: S608


def _unpacked(packed: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(packed):
        (size,) = _KEY.unpack_from(packed, position)
        position += _KEY.size + size
        yield packed[position - size : position]
