"""What the Kafka log stores, without a broker: blobs, their messages, and the entries in them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Corrupt, Unavailable
from headwater.topics import log_kafka_journal
from headwater.topics.log import Append, Dedup, Entry, LogTopic, Part
from headwater.topics.log_entries import Payload, serialise
from headwater.topics.log_kafka import KafkaLog
from headwater.topics.log_kafka_changes import (
    KafkaWriter,
    apply_blob,
    begin_index,
    decode,
    encode,
    load_snapshot,
    place_of,
)
from headwater.topics.log_kafka_index import Wrote, note_written, open_index, standing
from headwater.topics.log_kafka_journal import MESSAGE_BYTES, Blob, Journal, cut, message_count
from headwater.topics.log_kafka_place import KafkaPlace
from headwater.topics.log_kafka_reader import GAP, runs
from headwater.topics.log_tables import Prepared
from headwater.types import Offsets

TOPIC = LogTopic("id", "t", 0, "kafka")
values = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary())


def blob_of(data: bytes, first: int = 0, before: int = 0) -> Blob:
    messages = tuple(cut(data))
    return Blob(b"mark", first, first + len(messages), before, messages)


@given(st.lists(st.tuples(st.text(), st.lists(st.one_of(values, st.lists(values))).map(tuple))))
def test_changes_come_back_as_they_were(changes: list[tuple[str, tuple[object, ...]]]) -> None:
    assert decode(blob_of(encode([], changes))) == changes


@pytest.mark.parametrize("size", [0, 1, MESSAGE_BYTES - 20, MESSAGE_BYTES, 3 * MESSAGE_BYTES])
def test_a_blob_of_any_size_is_cut_and_read(size: int) -> None:
    data = encode([Payload(1, pa.py_buffer(b"r" * size), 0)], [("change", (1, b"x" * size))])
    messages = list(cut(data))
    assert b"".join(messages) == data and len(messages) == message_count(data)
    assert {len(each) for each in messages[:-1]} <= {MESSAGE_BYTES}
    assert decode(blob_of(data)) == [("change", (1, b"x" * size))]


def test_a_damaged_blob_is_told() -> None:
    data = encode([], [("change", (1,))])
    for broken in (data[:-1] + b"!", b"HWL2" + data[4:]):
        with pytest.raises(Corrupt, match="message 7 of the log in Kafka cannot be read"):
            decode(blob_of(broken, 7))


def test_a_change_of_a_later_version_is_told(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="cannot be read") as told:
        apply_blob(open_index(tmp_path / "i.db", 1), blob_of(encode([], [("transmute", ())])))
    assert told.value.hint == "Upgrade Headwater."


def _dump(db: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables if table != "log_journal"}


def _index(path: Path, at: int) -> sqlite3.Connection:
    db = open_index(path, 1)
    db.execute("INSERT INTO log_journal VALUES (1, ?, ?, 0, 0, 0, 0)", (at, at))
    return db


def test_whoever_applies_a_blob_has_what_its_writer_has(tmp_path: Path) -> None:
    one, two, three = _index(tmp_path / "1.db", 40), _index(tmp_path / "2.db", 40), open_index(tmp_path / "3.db", 1)
    writer = KafkaWriter(one, max_tail_bytes=2**30, now=lambda: 1_000)
    writer.begin(40)
    rows = pa.record_batch({"n": pa.array(range(200_000), pa.int64())})
    keys = Dedup(tuple(b"%d" % (n % 150_000) for n in range(200_000)), 10.0)
    writer.store(Prepared.of(Append((Part(TOPIC, (rows,), keys),), "p", 1)))
    writer.store(Prepared.of(Append((Part(TOPIC, (rows.slice(0, 5),)), Part(TOPIC, (rows.slice(5, 5),))))))
    writer.guard(TOPIC)
    data = writer.blob()
    note_written(one, Wrote(40, 40 + message_count(data), len(data), snapshot=False))
    apply_blob(two, blob_of(data, 40, 40))
    assert _dump(two) == _dump(one)
    places = [place_of(entry.id) for entry, _, _ in writer.entries]
    for (message, start), (_, _, stored) in zip(places, writer.entries, strict=True):
        position = (message - 40) * MESSAGE_BYTES + start
        assert data[position : position + stored.size] == stored.to_pybytes()

    now = standing(one)
    assert now is not None
    writer.begin(now.next)
    writer.snapshot()
    load_snapshot(three, blob_of(writer.blob(), now.next, now.head))
    assert _dump(three) == _dump(one)
    assert now.next == 40 + message_count(data) and standing(three) is not None


def test_entries_are_read_in_runs() -> None:
    def entry(message: int, size: int = 100) -> Entry:
        return Entry(message << 20, Offsets(0, 1), 0, size)

    near, far = entry(5 + GAP), entry(1000)
    long = entry(20, 50 * MESSAGE_BYTES)
    assert list(runs([entry(4), near, far])) == [[entry(4), near], [far]]
    assert list(runs([long, entry(70 + GAP)])) == [[long, entry(70 + GAP)]]
    assert list(runs([])) == []


def test_a_payload_is_stored_once(tmp_path: Path) -> None:
    payload = serialise(pa.record_batch({"n": pa.array([1, 2], pa.int64())}))
    assert encode([payload], []).count(payload.data.to_pybytes()) == 1
    assert log_kafka_journal.MESSAGE_BYTES < 2**20  # a place in a message has so many bits


def test_a_log_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Journal] = []
    close = Journal.close
    monkeypatch.setattr(Journal, "close", lambda journal: (close(journal), closed.append(journal)))
    begin_index(open_index(tmp_path / "i.db", 1), 0)  # so that it does not try to make the topic
    with pytest.raises(Unavailable, match="does not answer"):
        KafkaLog(KafkaPlace("127.0.0.1:1", "t", timeout=0.3), tmp_path / "i.db")
    assert len(closed) == 1
