"""A torn log gives what was on disk, whole batches and in order; a damaged one says so and never gives wrong rows."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import Corrupt
from headwater.topics import ingest

pytestmark = pytest.mark.leaves_damage

BATCHES = 8


def visible(lake: Lake) -> list[int]:
    rows = lake.sql("SELECT n, _offset FROM t ORDER BY _offset").rows()
    assert [row["_offset"] for row in rows] == list(range(len(rows)))
    return [row["n"] for row in rows]


class Torn:
    """A lake that was copied while its producer ran, and the length of the WAL after each acknowledgement."""

    def __init__(self, quick: Any, *, flush: bool = False) -> None:
        self._path, self._copy = quick.path, quick.folder / "copy"
        self.lengths: list[int] = []
        with quick.open() as lake:
            for sequence in range(BATCHES):
                lake.topic("t").append(quick.worker.records(sequence), producer="p", sequence=sequence)
                self.lengths.append((self._path / "state.db-wal").stat().st_size)
            if flush:
                lake.flush()
            shutil.copytree(self._path, self._copy, ignore=shutil.ignore_patterns("*-shm"))
        self.all = list(range(BATCHES * quick.rows))

    def restore(self, length: int) -> Path:
        """Make the lake what a crash would leave when only `length` bytes of the log's WAL reached the disk."""
        shutil.rmtree(self._path)
        shutil.copytree(self._copy, self._path)
        wal: Path = self._path / "state.db-wal"
        with wal.open("r+b") as file:
            file.truncate(length)
        return wal

    def cuts(self) -> Iterator[int]:
        """Inside a header, inside each transaction, right at and right behind each acknowledgement, and at the end."""
        yield from (0, 1, 32)
        before = 0
        for length in self.lengths:
            yield from (before + (length - before) // 2, length - 1, length, length + 1)
            before = length


def test_a_torn_log_has_every_batch_before_the_tear(quick: Any) -> None:
    torn = Torn(quick)
    for cut in torn.cuts():
        torn.restore(cut)
        with quick.open() as lake:
            whole = sum(length <= cut for length in torn.lengths)
            assert visible(lake) == torn.all[: whole * quick.rows]
            for sequence in range(BATCHES):  # the producer, who heard of none of them, sends all again
                lake.topic("t").append(quick.worker.records(sequence), producer="p", sequence=sequence)
            assert visible(lake) == torn.all
            lake.flush()
            assert visible(lake) == torn.all


def test_flipped_bits_in_the_log_end_it_there(quick: Any) -> None:
    """SQLite's own checksums of frames: what follows a damaged frame is not there, what precedes it is."""
    torn = Torn(quick)
    for number, length in enumerate(torn.lengths):
        with torn.restore(torn.lengths[-1]).open("r+b") as wal:
            wal.seek(length - 5000)
            byte = wal.read(1)[0]
            wal.seek(length - 5000)
            wal.write(bytes([byte ^ 0x10]))
        with quick.open() as lake:
            assert visible(lake) == torn.all[: number * quick.rows]


def test_a_log_older_than_its_table_is_refused(quick: Any) -> None:
    """It may have lost records that were acknowledged: nothing is read or written as if it had not."""
    torn = Torn(quick, flush=True)
    torn.restore(torn.lengths[3])
    with quick.open() as lake:
        for attempt in (lambda: visible(lake), lambda: lake.topic("t").append([{"n": -1, "text": "new"}]), lake.flush):
            with pytest.raises(Corrupt, match="older than its table"):
                attempt()
        assert len(lake.sql("SELECT n FROM t", tail=False).rows()) == len(torn.all)


def flip_stored_byte(state: Path, text: str) -> None:
    """One bit of a stored record, found by its content."""
    data = bytearray(state.read_bytes())
    at = data.index(text.encode())
    data[at + 3] ^= 1
    state.write_bytes(data)


def test_a_flipped_bit_in_a_stored_record_is_named_and_never_served(quick: Any) -> None:
    with quick.open() as lake:
        for sequence in range(3):
            lake.topic("t").append(quick.worker.records(sequence), producer="p", sequence=sequence)
        entries = lake.log.entries(ingest.log_topic(lake.topics.load("t")), 0)
    flip_stored_byte(quick.path / "state.db", f"record {quick.rows}")  # in the second batch
    with quick.open() as lake:
        for attempt in (lambda: lake.sql("SELECT n FROM t").rows(), lake.flush):
            with pytest.raises(Corrupt, match=f"log entry {entries[1].id} is damaged") as damaged:
                attempt()
            assert damaged.value.hint == "Run `headwater doctor`; do not trim the log."
        assert quick.check_table() == []
        assert not list((quick.path / "warehouse").rglob("*.parquet"))
        assert lake.sql("SELECT n FROM t", tail=False).rows() == []


@pytest.mark.spark
def test_a_damaged_record_is_named_from_inside_a_spark_task(abused: Any) -> None:
    with abused.open() as lake:
        for sequence in range(2):
            lake.topic("t").append(abused.worker.records(sequence), producer="p", sequence=sequence)
    flip_stored_byte(abused.path / "state.db", "record 1")
    with abused.open() as lake:
        with pytest.raises(Corrupt, match="log entry 1 is damaged"):
            lake.flush()
        assert abused.check_table() == []
        assert not list((abused.path / "warehouse").rglob("*.parquet"))


def test_a_missing_entry_is_neither_skipped_nor_committed_around(quick: Any) -> None:
    with quick.open() as lake:
        for sequence in range(3):
            lake.topic("t").append(quick.worker.records(sequence), producer="p", sequence=sequence)
        with closing(sqlite3.connect(quick.path / "state.db")) as db, db:
            db.execute("DELETE FROM log_entries WHERE first_offset = ?", (quick.rows,))
        for attempt in (lambda: lake.sql("SELECT n FROM t").rows(), lake.flush):
            with pytest.raises(Corrupt, match='log of topic "t" is not dense'):
                attempt()
        assert quick.check_table() == []


def test_a_state_file_that_is_no_database_is_named(quick: Any) -> None:
    (quick.path / "state.db").write_bytes(b"this is not a database" * 1000)
    with pytest.raises(Corrupt, match=r'state "state\.db" is damaged'):
        quick.open()
