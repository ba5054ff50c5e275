"""The index of the Kafka log, brought up to what the journal holds.

The file is a copy: it is written without waiting for the disk, and a crash of the machine takes it back to an earlier
moment, from which it goes on. Every function here runs inside the caller's write transaction.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import Corrupt
from headwater.state.sqlite import connect
from headwater.topics.log_kafka_changes import INDEX_SCHEMA, apply_blob, begin_index, is_snapshot, load_snapshot
from headwater.topics.log_kafka_journal import Blob, Journal


@dataclass(frozen=True, slots=True)
class Standing:
    """How far an index is: what is below message `next` was read; the last blob that counts ended at `head`.

    `bytes` were stored since the journal was last cut; the last snapshot is at message `snapshot_at`.
    """

    next: int
    head: int
    bytes: int
    snapshot_at: int
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """A blob that this process wrote behind everything that its index knew: it counts, and its changes are made."""

    first: int
    end: int
    bytes: int
    snapshot: bool


def open_index(path: Path, busy_timeout: float) -> sqlite3.Connection:
    db = connect(path, busy_timeout)
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(INDEX_SCHEMA)
    return db


def standing(db: sqlite3.Connection) -> Standing | None:
    """How far the index is; None when it is new."""
    row = db.execute("SELECT next, head, bytes, snapshot_at, snapshot_bytes FROM log_journal").fetchone()
    return None if row is None else Standing(*row)


def note_written(db: sqlite3.Connection, wrote: Wrote) -> None:
    db.execute("UPDATE log_journal SET next = ?1, head = ?1, bytes = bytes + ?2", (wrote.end, wrote.bytes))
    if wrote.snapshot:
        db.execute("UPDATE log_journal SET snapshot_at = ?, snapshot_bytes = ?", (wrote.first, wrote.bytes))


def catch_up(db: sqlite3.Connection, journal: Journal) -> set[bytes]:
    """Apply what the journal has beyond the index; the marks of the blobs that counted."""
    low, high = journal.bounds()
    now = standing(db)
    if now is None or now.next < low:
        now = _begin(db, journal, low, high)
    if high < now.next:
        high = _wait_for(journal, now.next)
    counted: set[bytes] = set()
    read, head, size = now.next, now.head, 0
    for blob in journal.blobs(now.next, high):
        read = blob.end
        if blob.before == head:
            apply_blob(db, blob)
            head, size = blob.end, size + blob.bytes
            counted.add(blob.mark)
    db.execute("UPDATE log_journal SET next = ?, head = ?, bytes = bytes + ?", (read, head, size))
    return counted


def _begin(db: sqlite3.Connection, journal: Journal, low: int, high: int) -> Standing:
    """An index that is new, or older than anything that the journal still has."""
    if low == 0:
        begin_index(db, 0)
        return Standing(0, 0, 0, 0, 0)
    snapshot = _last_snapshot(journal, low, high)
    load_snapshot(db, snapshot)
    return Standing(snapshot.end, snapshot.end, 0, snapshot.first, snapshot.bytes)


def _last_snapshot(journal: Journal, low: int, high: int) -> Blob:
    """The last snapshot that counts. Whoever writes after a blob has seen that it counts, so that proves it."""
    found: dict[int, Blob] = {}
    proven: Blob | None = None
    for blob in journal.blobs(low, high):
        proven = found.get(blob.before, proven)
        if is_snapshot(blob):
            found = {blob.end: blob}
    if proven is None:
        raise Corrupt(
            f'log in Kafka topic "{journal.place.topic}" has lost its beginning',
            detail=f"It begins with message {low}, and has no snapshot.",
            hint="Messages of this topic must not be deleted or expire in Kafka.",
        )
    return proven


def _wait_for(journal: Journal, end: int) -> int:
    """The journal's end, once it is not before `end`: after a change of leaders it may seem to be for a moment."""
    until = time.monotonic() + min(5.0, journal.place.timeout)
    while (high := journal.bounds()[1]) < end:
        if time.monotonic() > until:
            raise Corrupt(
                f'log in Kafka topic "{journal.place.topic}" has lost messages',
                detail=f"It ends at message {high}; {end} were there before.",
                hint="Was the topic made anew? Its records are gone; remove kafka-log.db to go on without them.",
            )
        time.sleep(0.1)
    return high
