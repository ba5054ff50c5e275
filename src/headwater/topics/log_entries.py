"""How an entry of the SQLite log is stored and read back: an Arrow record batch message with a CRC-32.

The schema is stored once per distinct schema, not per entry, so that small appends stay small. Used by the log and by
the Spark workers that drain it.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa

from headwater.errors import Corrupt, StaleCommit
from headwater.state.sqlite import row_checksum
from headwater.topics.log import Entry, LogTopic, Moved, Part
from headwater.types import Offsets

DIGEST = 32
"""The bytes of a digest; those behind them tell the columns."""
_HINT = "Run `headwater doctor`; do not trim the log."


@dataclass(frozen=True, slots=True)
class Payload:
    """A serialised batch."""

    rows: int
    data: pa.Buffer
    checksum: int


def serialise(batch: pa.RecordBatch) -> Payload:
    data = batch.serialize()
    return Payload(batch.num_rows, data, zlib.crc32(data))


def digest(parts: Sequence[Sequence[Payload]]) -> bytes:
    """What tells two requests with one producer sequence apart."""
    content = hashlib.sha256()
    for payloads in parts:
        content.update(len(payloads).to_bytes(4, "little"))
        for payload in payloads:
            content.update(payload.data)
    return content.digest()


def fingerprint(part: Part) -> bytes:
    """What tells the columns of two requests apart, by those of their records."""
    return zlib.crc32(b"" if part.columns is None else part.columns.serialize()).to_bytes(4, "little")


def check_position(moved: Moved, stored: str | None) -> None:
    """StaleCommit unless the source stands where its reader went on from."""
    if stored != moved.start:
        raise StaleCommit(
            f'position of source "{moved.source}" has moved',
            detail=f"It is {stored or 'at the beginning'}, not {moved.start or 'at the beginning'}. "
            "Nothing was written.",
            hint="Read the position again, and go on from there.",
        )


def entry_checksum(header: Sequence[int], payload: int) -> int:
    """The checksum of an entry in SQLite: of its topic, first offset, rows, time, schema, size and payload."""
    return zlib.crc32(b"%d %d %d %d %d %d" % tuple(header), payload)


def read_entry(db: sqlite3.Connection, entry: Entry, schemas: dict[int, pa.Schema]) -> pa.RecordBatch:
    """The rows of an entry, as `list_entries` gave it; Corrupt when a column or the payload is damaged."""
    row = db.execute(
        "SELECT topic, first_offset, rows, appended_at, schema, bytes, checksum, payload FROM log_entries WHERE id = ?",
        (entry.id,),
    ).fetchone()
    if row is None:
        raise Corrupt(f"log entry {entry.id} is missing", hint=_HINT)
    *header, checksum, payload = row
    _, first, rows, at, schema_id, size = header
    same = Entry(entry.id, Offsets(first, first + rows), at, size) == entry
    if not same or entry_checksum(header, zlib.crc32(payload)) != checksum:
        raise Corrupt(f"log entry {entry.id} is damaged", detail="Its checksum does not match.", hint=_HINT)
    if schema_id not in schemas:
        schemas[schema_id] = _read_schema(db, schema_id)
    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schemas[schema_id])
    if batch.num_rows != rows:
        raise Corrupt(f"log entry {entry.id} has {batch.num_rows} rows instead of {rows}", hint=_HINT)
    return batch


def _read_schema(db: sqlite3.Connection, schema: int) -> pa.Schema:
    row = db.execute("SELECT id, schema, checksum FROM log_schemas WHERE id = ?", (schema,)).fetchone()
    if row is None or row_checksum(*row[:2]) != row[2]:
        raise Corrupt(f"schema {schema} of the log is damaged", detail="Its checksum does not match.", hint=_HINT)
    return pa.ipc.read_schema(pa.py_buffer(row[1]))


def list_entries(db: sqlite3.Connection, topic: int, start: int) -> list[Entry]:
    """The entries that hold offsets from `start` on, in order."""
    rows = db.execute(
        "SELECT id, first_offset, rows, appended_at, bytes FROM log_entries WHERE topic = ?1 AND first_offset >= "
        "coalesce((SELECT max(first_offset) FROM log_entries WHERE topic = ?1 AND first_offset <= ?2), ?2) "
        "AND first_offset + rows > ?2 ORDER BY first_offset",
        (topic, start),
    )
    return [Entry(id_, Offsets(first, first + rows), at, size) for id_, first, rows, at, size in rows]


def check_dense(topic: LogTopic, entries: Sequence[Entry], start: int, end: int) -> None:
    """Corrupt unless the entries cover `[start, end)` without gap or overlap."""
    expected = start
    for entry in entries:
        if max(entry.offsets.start, start) != expected:
            break
        expected = entry.offsets.end
    if expected != max(start, end):
        raise Corrupt(
            f'log of topic "{topic.name}" is not dense',
            detail=f"Offset {expected} is missing; the log should hold [{start}, {end}).",
            hint=_HINT,
        )


class TailCache:
    """Decoded entries by id, up to a number of bytes, the least recently used leaving first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[int, tuple[Entry, pa.RecordBatch]] = OrderedDict()
        self._lock = Lock()

    def get(self, entry: Entry) -> pa.RecordBatch | None:
        """The rows of the entry, if they were read when it was the same: a damaged one is read, and found, again."""
        with self._lock:
            held = self._held.get(entry.id)
            if held is None or held[0] != entry:
                return None
            self._held.move_to_end(entry.id)
            return held[1]

    def put(self, entry: Entry, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self._lock:
            if entry.id not in self._held:
                self._held[entry.id] = (entry, batch)
                self._bytes += entry.bytes
            while self._bytes > self._max_bytes:
                _, (oldest, _) = self._held.popitem(last=False)
                self._bytes -= oldest.bytes
        return batch

    def forget(self, entries: set[int]) -> None:
        """Drop entries that the log no longer has."""
        with self._lock:
            for entry in entries & self._held.keys():
                self._bytes -= self._held.pop(entry)[0].bytes
