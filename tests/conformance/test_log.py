"""Every log must behave like this. The suite runs once per implementation."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import Backpressure, Corrupt, IdempotencyMismatch, SchemaChanged, StaleCommit, TopicNotFound
from headwater.topics.log import Append, Dedup, Log, LogAck, LogTopic, Moved, Part, PartAck
from headwater.topics.log_kafka import KafkaLog
from headwater.topics.log_kafka_place import KafkaPlace
from headwater.topics.log_sqlite import SqliteLog
from headwater.types import Offsets

ORDERS = LogTopic("id-orders", "orders", 0)
OTHER = LogTopic("id-other", "other", 0)


class Clock:
    """Time that only moves when told to, in microseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Open = Callable[[], Log]
SQLITE, KAFKA = "sqlite", pytest.param("kafka", marks=pytest.mark.slow)
MACHINES = pytest.param("kafka on two machines", marks=pytest.mark.slow)


@contextmanager
def opening(request: pytest.FixtureRequest, folder: Path, clock: Clock) -> Iterator[Open]:
    """What opens the same log again and again, as processes would, or machines that share nothing but Kafka."""
    opened: list[Log] = []
    settings: dict[str, Any] = {"max_tail_bytes": 1024**2, "producer_horizon": 60, "now": clock}

    def open_log() -> Log:
        if request.param == "sqlite":
            opened.append(SqliteLog(folder / "state.db", **settings))
        else:
            place = KafkaPlace(request.getfixturevalue("kafka").bootstrap, f"log-{folder.name}", timeout=180.0)
            index = f"index-{len(opened)}.db" if "machines" in request.param else "index.db"
            opened.append(KafkaLog(place, folder / index, **settings))
        return opened[-1]

    yield open_log
    for log in opened:
        log.close()


@pytest.fixture(params=[SQLITE, KAFKA])
def log(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Log]:
    with opening(request, tmp_path, clock) as open_log:
        yield open_log()


@pytest.fixture(params=[SQLITE, KAFKA, MACHINES])
def open_log(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Open]:
    with opening(request, tmp_path, clock) as open_log:
        yield open_log


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def part(*values: int, topic: LogTopic = ORDERS, dedup: Dedup | None = None) -> Part:
    return Part(topic, (batch(*values),), dedup)


def append(log: Log, *parts: Part, producer: str | None = None, sequence: int = 0) -> list[Offsets]:
    ack = log.append(Append(parts, producer, sequence))
    return [each.offsets for each in ack.parts]


def log_ack(ack: LogAck) -> tuple[tuple[PartAck, ...], bool]:
    return ack.parts, ack.repeated


def values(log: Log, topic: LogTopic = ORDERS, start: int = 0) -> list[int]:
    tail = log.tail(topic, start)
    assert tail is not None
    expected = start
    for each in tail:  # dense, without gap or overlap
        assert each.entry.offsets.start == expected
        assert each.batch.num_rows == len(each.entry.offsets)
        expected = each.entry.offsets.end
    return [value for each in tail for value in each.batch.column("n").to_pylist()]


def test_offsets_are_dense_from_zero(log: Log) -> None:
    assert append(log, part(1, 2)) == [Offsets(0, 2)]
    assert append(log, part(3)) == [Offsets(2, 3)]
    assert values(log) == [1, 2, 3]


def test_topics_do_not_share_offsets(log: Log) -> None:
    assert append(log, part(1), part(9, 8, topic=OTHER)) == [Offsets(0, 1), Offsets(0, 2)]
    assert values(log, OTHER) == [9, 8]


def test_a_log_without_the_topic_of_a_table_with_records(log: Log) -> None:
    old = LogTopic("id-old", "old", 500, acknowledged=500)
    if log.kind == "kafka":  # a copy of a lake starts a new log in Kafka
        assert append(log, part(1, topic=old)) == [Offsets(500, 501)]
        return
    uses: list[Callable[[], object]] = [
        lambda: append(log, part(1, topic=old)),
        lambda: log.tail(old, 500),
        lambda: log.stats(old),
        lambda: log.entries(old, 500),
        lambda: log.guard(old),
    ]
    for use in uses:
        with pytest.raises(Corrupt, match="older than its table"):
            use()


def test_a_log_without_the_topic_of_a_table_that_no_ingest_wrote(log: Log) -> None:
    assert append(log, part(1, topic=LogTopic("id-filled", "filled", 500))) == [Offsets(500, 501)]


def test_a_refused_request_leaves_nothing(log: Log) -> None:
    append(log, part(1))
    log.drop(OTHER)
    new = LogTopic("id-new", "new", 0)
    with pytest.raises(TopicNotFound):
        append(log, part(2, topic=new), part(3, topic=OTHER))
    with pytest.raises(IdempotencyMismatch):
        append(log, part(1), producer="p", sequence=1)
        append(log, part(2), part(1, topic=new), producer="p", sequence=1)
    log.drop(ORDERS)
    assert log.waiting() == []
    with sqlite3.connect(log._path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM log_topics WHERE NOT dropped")] == []


def test_a_tail_can_start_inside_an_entry(log: Log) -> None:
    append(log, part(1, 2, 3))
    assert values(log, start=2) == [3]
    assert values(log, start=3) == []


def test_an_unknown_topic_has_an_empty_tail(log: Log) -> None:
    assert log.tail(OTHER, 0) == []
    assert log.stats(OTHER).end == 0


def test_trimmed_offsets_are_gone_and_said_to_be(log: Log) -> None:
    append(log, part(1, 2))
    append(log, part(3))
    log.trim(ORDERS, 2)
    assert log.tail(ORDERS, 0) is None
    assert values(log, start=2) == [3]
    assert log.stats(ORDERS).start == 2
    assert append(log, part(4)) == [Offsets(3, 4)]


def test_trimming_everything_keeps_the_next_offset(log: Log) -> None:
    append(log, part(1, 2))
    log.trim(ORDERS, 2)
    stats = log.stats(ORDERS)
    assert (stats.start, stats.end, stats.bytes, stats.entries) == (2, 2, 0, 0)
    assert append(log, part(3)) == [Offsets(2, 3)]


def test_trimming_many_entries(log: Log) -> None:
    for value in range(200):
        append(log, part(value))
    log.trim(ORDERS, 150)
    assert values(log, start=150) == list(range(150, 200))


def test_a_repeated_sequence_is_acknowledged_again_and_stored_once(log: Log) -> None:
    first = append(log, part(1, 2), producer="p", sequence=7)
    ack = log.append(Append((part(1, 2),), "p", 7))
    assert ack.repeated
    assert [each.offsets for each in ack.parts] == first
    assert values(log) == [1, 2]


def test_a_repeated_sequence_is_known_after_a_trim(log: Log) -> None:
    first = append(log, part(1, 2), producer="p", sequence=7)
    log.trim(ORDERS, 2)
    assert append(log, part(1, 2), producer="p", sequence=7) == first
    assert log.stats(ORDERS).end == 2


def test_a_sequence_reused_for_other_records_is_refused(log: Log) -> None:
    append(log, part(1), producer="p", sequence=7)
    with pytest.raises(IdempotencyMismatch, match="used sequence 7 for other records"):
        append(log, part(2), producer="p", sequence=7)
    assert values(log) == [1]


def test_producers_and_topics_have_sequences_of_their_own(log: Log) -> None:
    append(log, part(1), producer="p", sequence=1)
    append(log, part(2), producer="q", sequence=1)
    append(log, part(3, topic=OTHER), producer="p", sequence=1)
    assert values(log) == [1, 2]
    assert values(log, OTHER) == [3]


def test_sequences_are_forgotten_after_their_horizon(log: Log, clock: Clock) -> None:
    append(log, part(1), producer="p", sequence=1)
    clock.now += 61_000_000
    log.trim(ORDERS, 1)
    assert append(log, part(2), producer="p", sequence=1) == [Offsets(1, 2)]


def test_the_first_record_of_a_key_is_kept(log: Log) -> None:
    ack = log.append(Append((part(1, 2, 3, dedup=Dedup((b"a", b"a", None), 10.0)),)))
    assert (ack.parts[0].offsets, ack.parts[0].duplicates) == (Offsets(0, 2), 1)
    ack = log.append(Append((part(4, 5, 6, dedup=Dedup((b"a", b"b", None), 10.0)),)))
    assert (ack.parts[0].offsets, ack.parts[0].duplicates) == (Offsets(2, 4), 1)
    assert values(log) == [1, 3, 5, 6]


def test_a_key_comes_back_after_its_horizon(log: Log, clock: Clock) -> None:
    append(log, part(1, dedup=Dedup((b"a",), 10.0)))
    clock.now += 9_000_000
    append(log, part(2, dedup=Dedup((b"a",), 10.0)))
    clock.now += 2_000_000
    append(log, part(3, dedup=Dedup((b"a",), 10.0)))
    assert values(log) == [1, 3]


def test_old_keys_are_forgotten_and_young_ones_kept(log: Log, clock: Clock) -> None:
    append(log, part(1, dedup=Dedup((b"old",), 1000.0)))
    clock.now += 20_000_000
    append(log, part(2, dedup=Dedup((b"young",), 1000.0)))
    log.forget_keys(ORDERS, 10.0)
    append(log, part(3, 4, dedup=Dedup((b"old", b"young"), 1000.0)))
    assert values(log) == [1, 2, 3]


def test_only_duplicates_take_no_offset(log: Log) -> None:
    append(log, part(1, dedup=Dedup((b"a",), 10.0)))
    assert append(log, part(2, dedup=Dedup((b"a",), 10.0))) == [Offsets(1, 1)]
    assert append(log, part(3)) == [Offsets(1, 2)]


def test_a_full_log_pushes_back_and_takes_again_after_a_trim(log: Log) -> None:
    large = Part(ORDERS, (pa.record_batch({"n": pa.array(range(100_000), pa.int64())}),))
    append(log, large)
    with pytest.raises(Backpressure) as full:
        append(log, large)
    assert full.value.retry_after >= 1
    assert log.stats(ORDERS).end == 100_000
    log.trim(ORDERS, 100_000)
    assert append(log, large) == [Offsets(100_000, 200_000)]


def test_a_dropped_topic_takes_no_more(log: Log) -> None:
    append(log, part(1))
    log.drop(ORDERS)
    with pytest.raises(TopicNotFound):
        append(log, part(2))
    with pytest.raises(TopicNotFound):
        append(log, part(9, topic=OTHER), part(2))
    assert log.tail(OTHER, 0) == []  # the whole request was refused


def test_the_log_knows_what_it_holds(log: Log) -> None:
    append(log, part(1), part(2, topic=OTHER))
    assert {topic.id for topic in log.waiting()} == {ORDERS.id, OTHER.id}
    log.trim(ORDERS, 1)
    log.drop(OTHER)
    assert log.waiting() == []


def test_timestamps_never_go_back(log: Log, clock: Clock) -> None:
    append(log, part(1))
    clock.now -= 5_000_000
    append(log, part(2))
    tail = log.tail(ORDERS, 0)
    assert tail is not None
    assert tail[0].entry.appended_at <= tail[1].entry.appended_at


def test_concurrent_producers_get_dense_offsets(log: Log) -> None:
    def produce(worker: int) -> list[tuple[int, int]]:
        return [(append(log, part(worker * 1000 + i))[0].start, worker * 1000 + i) for i in range(50)]

    with ThreadPoolExecutor(8) as pool:
        acked = dict(pair for pairs in pool.map(produce, range(8)) for pair in pairs)
    assert sorted(acked) == list(range(400))
    assert values(log) == [acked[offset] for offset in range(400)]


def test_readers_see_whole_appends_while_producers_write(log: Log) -> None:
    done = threading.Event()

    def produce() -> None:
        for i in range(100):
            append(log, part(i, i, i))
        done.set()

    writer = threading.Thread(target=produce)
    writer.start()
    while not done.is_set():
        seen = values(log)
        assert len(seen) % 3 == 0
        assert seen == sorted(seen)
    writer.join()
    assert len(values(log)) == 300


def test_what_was_acknowledged_is_there_after_reopening(open_log: Open) -> None:
    log = open_log()
    first = log.append(Append((part(1, 2, dedup=Dedup((b"a", b"b"), 60.0)),), "p", 1, moved=Moved("s", None, "2")))
    log.close()
    again = open_log()
    assert (values(again), again.position("s")) == ([1, 2], "2")
    assert log_ack(again.append(Append((part(1, 2),), "p", 1))) == (first.parts, True)
    assert append(again, part(9, 3, dedup=Dedup((b"a", b"c"), 60.0))) == [Offsets(2, 3)]
    assert values(again) == [1, 2, 3]


def test_two_processes_worth_of_logs_share_everything(open_log: Open) -> None:
    one, two = open_log(), open_log()
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(lambda log=log: [append(log, part(i))[0] for i in range(50)]) for log in (one, two)]
        offsets = [each.start for part in done for each in part.result()]
    assert sorted(offsets) == list(range(100))
    assert values(one) == values(two)
    two.trim(ORDERS, 60)
    assert (one.tail(ORDERS, 0), one.stats(ORDERS).start) == (None, 60)
    one.append(Append((part(7),), "p", 1, moved=Moved("s", None, "1")))
    assert two.append(Append((part(7),), "p", 1)).repeated
    with pytest.raises(StaleCommit):
        two.append(Append((part(8),), moved=Moved("s", None, "1")))
    one.drop(ORDERS)
    with pytest.raises(TopicNotFound):
        append(two, part(1))


def test_one_process_holds_and_guards_against_another(open_log: Open) -> None:
    one, two = open_log(), open_log()
    append(two, part(1))

    def refuse() -> None:
        raise SchemaChanged("the columns changed")

    one.guard(ORDERS)
    with ThreadPoolExecutor(1) as pool:
        with one.holding(ORDERS):
            waiting = pool.submit(append, two, part(2))
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            assert values(one) == values(two) == [1]
        assert waiting.result(180) == [Offsets(1, 2)]
    with pytest.raises(SchemaChanged):
        two.append(Append((part(3),), verify=refuse))
    assert values(one) == [1, 2]


def test_a_guarded_topic_has_its_appends_verified(log: Log) -> None:
    asked: list[str] = []

    def refuse() -> None:
        asked.append("orders")
        raise SchemaChanged("the columns changed")

    log.append(Append((part(1),), verify=refuse))
    assert asked == []
    log.guard(ORDERS)
    with pytest.raises(SchemaChanged):
        log.append(Append((part(2), part(7, topic=OTHER)), verify=refuse))
    log.append(Append((part(3, topic=OTHER),), verify=refuse))
    log.append(Append((part(4),)))
    assert (values(log), values(log, OTHER)) == ([1, 4], [3])


def test_nothing_is_appended_while_the_log_is_held(log: Log) -> None:
    append(log, part(1))
    appended = threading.Event()

    def produce() -> None:
        append(log, part(2))
        appended.set()

    with log.holding(ORDERS):
        thread = threading.Thread(target=produce)
        thread.start()
        assert not appended.wait(0.2)
        assert values(log) == [1]
    thread.join(180)
    assert appended.is_set()
    assert values(log) == [1, 2]


def test_columns_are_stored_with_their_ids(log: Log) -> None:
    columns = pa.schema([pa.field("n", pa.int64(), metadata={b"PARQUET:field_id": b"7"})])
    log.append(Append((Part(ORDERS, (batch(1),), columns=columns),)))
    log.append(Append((part(2),)))
    tail = log.tail(ORDERS, 0)
    assert tail is not None
    assert [each.batch.schema.field("n").metadata for each in tail] == [{b"PARQUET:field_id": b"7"}, None]


def test_a_sequence_that_is_repeated_in_other_columns_is_known(log: Log) -> None:
    def columns(id_: bytes) -> pa.Schema:
        return pa.schema([pa.field("n", pa.int64(), metadata={b"PARQUET:field_id": id_})])

    first = log.append(Append((Part(ORDERS, (batch(1),), columns=columns(b"1")),), "p", 1))
    again = log.append(Append((Part(ORDERS, (batch(9),), columns=columns(b"2")),), "p", 1))
    assert again.repeated and again.parts == first.parts
    with pytest.raises(IdempotencyMismatch):
        log.append(Append((Part(ORDERS, (batch(9),), columns=columns(b"1")),), "p", 1))


def test_a_source_moves_with_its_records(log: Log) -> None:
    assert log.position("kafka:a") is None
    log.append(Append((part(1, 2),), moved=Moved("kafka:a", None, "0=2")))
    log.append(Append((part(3),), moved=Moved("kafka:a", "0=2", "0=3")))
    log.append(Append((part(9),), moved=Moved("kafka:b", None, "0=1")))
    assert (log.position("kafka:a"), log.position("kafka:b")) == ("0=3", "0=1")
    assert values(log) == [1, 2, 3, 9]


def test_a_source_that_is_elsewhere_writes_nothing(log: Log) -> None:
    log.append(Append((part(1),), moved=Moved("s", None, "1")))
    for start in (None, "0", "2"):
        with pytest.raises(StaleCommit, match='position of source "s" has moved'):
            log.append(Append((part(2), part(9, topic=OTHER)), moved=Moved("s", start, "3")))
    assert (log.position("s"), values(log)) == ("1", [1])
    assert log.tail(OTHER, 0) == []


def test_a_source_moves_without_records(log: Log) -> None:
    log.append(Append((Part(ORDERS, ()),), moved=Moved("s", None, "1")))
    log.append(Append((Part(ORDERS, (batch(),)),), moved=Moved("s", "1", "2")))
    assert (log.position("s"), values(log)) == ("2", [])
    assert append(log, part(1)) == [Offsets(0, 1)]


def test_one_of_many_readers_of_a_source_moves_it(log: Log) -> None:
    def move(number: int) -> int:
        try:
            log.append(Append((part(number),), moved=Moved("s", None, str(number))))
        except StaleCommit:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(move, range(16))) == 1
    assert [str(value) for value in values(log)] == [log.position("s")]


def test_a_refused_request_does_not_move_its_source(log: Log) -> None:
    append(log, part(1), producer="p", sequence=1)
    with pytest.raises(IdempotencyMismatch):
        log.append(Append((part(2),), "p", 1, moved=Moved("s", None, "1")))
    assert log.position("s") is None


def test_positions_go_with_their_topic(log: Log) -> None:
    log.append(Append((part(1),), moved=Moved("s", None, "1")))
    log.append(Append((part(1, topic=OTHER),), moved=Moved("t", None, "1")))
    log.drop(ORDERS)
    assert (log.position("s"), log.position("t")) == (None, "1")


def test_entries_are_read_in_another_process(log: Log) -> None:
    append(log, part(1, 2), part(9, topic=OTHER))
    append(log, Part(ORDERS, (batch(3), batch(4, 5))))
    entries = log.entries(ORDERS, 0)
    reader = pickle.loads(pickle.dumps(log.reader(ORDERS, entries)))
    assert [rows.column("n").to_pylist() for rows in reader.read(entries)] == [[1, 2], [3], [4, 5]]
    assert [rows.num_rows for rows in reader.read(entries[1:2])] == [1]


def test_requests_of_several_megabytes(log: Log) -> None:
    numbers = list(range(110_000))
    append(log, Part(ORDERS, tuple(batch(*numbers[start : start + 50_000]) for start in range(0, 110_000, 50_000))))
    entries = log.entries(ORDERS, 0)
    assert [len(entry.offsets) for entry in entries] == [50_000, 50_000, 10_000]
    read = list(log.reader(ORDERS, entries).read(entries))
    assert pa.concat_tables([pa.Table.from_batches([each]) for each in read]).column("n").to_pylist() == numbers
    assert values(log) == numbers


def test_columns_of_an_append_that_was_taken_back_are_not_remembered(open_log: Open) -> None:
    """Two processes bring a schema each, in requests that name it twice: whoever comes second starts over."""
    one, two = open_log(), open_log()

    def named(column: str) -> Part:
        return Part(ORDERS, (pa.record_batch({column: pa.array([1], pa.int64())}),))

    for number in range(5):
        for log, column in ((one, f"one{number}"), (two, f"two{number}")):
            append(log, named(column), named(column))
    tail = one.tail(ORDERS, 0)
    assert tail is not None
    names = [f"{name}{number}" for number in range(5) for name in ("one", "one", "two", "two")]
    assert [each.batch.schema.names for each in tail] == [[name] for name in names]
