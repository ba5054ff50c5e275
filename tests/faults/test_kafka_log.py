"""The log in Kafka under kill -9 of processes and of the broker, without a broker, and beside what others write."""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import Corrupt, HeadwaterError, InvalidSetting, Unavailable
from headwater.topics.log import Append, LogTopic, Part
from headwater.topics.log_kafka import KafkaLog
from headwater.topics.log_kafka_changes import encode
from headwater.topics.log_kafka_journal import Journal
from headwater.topics.log_kafka_place import KafkaPlace

pytestmark = pytest.mark.slow

TOPIC = LogTopic("id-t", "t", 0, "kafka")
POINTS = {
    "produce.validated": 3,
    "log.before_commit": 3,
    "kafka_log.journaled": 4,
    "log.after_commit": 4,
    "produce.before_ack": 4,
}
"""Where a process is killed, and how many batches are stored then."""
PATIENT = 180.0
"""Seconds that an answer may take where it is not the point that none comes."""


@pytest.fixture
def place(kafka: Any) -> KafkaPlace:
    return KafkaPlace(kafka.bootstrap, f"faults-{secrets.token_hex(6)}", timeout=PATIENT)


@pytest.fixture
def opened(place: KafkaPlace, tmp_path: Path) -> Iterator[Callable[..., KafkaLog]]:
    logs: list[KafkaLog] = []

    def open_log(index: str = "index.db", timeout: float = PATIENT, **settings: Any) -> KafkaLog:
        where = KafkaPlace(place.bootstrap, place.topic, timeout=timeout)
        logs.append(KafkaLog(where, tmp_path / index, **settings))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def append(log: KafkaLog, *numbers: int, producer: str | None = None, sequence: int = 0) -> int:
    rows = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    return log.append(Append((Part(TOPIC, (rows,)),), producer, sequence)).parts[0].offsets.start


def numbers(log: KafkaLog) -> list[int]:
    tail = log.tail(TOPIC, 0)
    assert tail is not None
    return [n for each in tail for n in each.batch.column("n").to_pylist()]


def have_patience(log: KafkaLog, seconds: float) -> None:
    """From now on, wait so long for answers."""
    log._journal.place = replace(log._journal.place, timeout=seconds)
    log._journal._producer = None  # it keeps to what it was told when it was made


@pytest.fixture
def on_kafka(quick: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The mistreated lake, its topic's log in Kafka, in this process and in workers."""
    local = {"type": "kafka", "bootstrap_servers": kafka.bootstrap}
    monkeypatch.setenv("HEADWATER_CONNECTIONS", json.dumps({"local": local}))
    monkeypatch.setenv("HEADWATER_KAFKA_CONNECTION", "local")
    with quick.open() as lake:
        lake.sql("DROP TOPIC t")
        lake.sql("CREATE TOPIC t (n BIGINT NOT NULL, text STRING) PARTITIONED BY (bucket(2, n)) WITH (log = 'kafka')")
    return quick


@pytest.mark.parametrize("point", POINTS)
def test_a_process_is_killed_while_it_appends(on_kafka: Any, point: str) -> None:
    assert on_kafka.run("--clean", "3", points=f"{point}=kill") == -signal.SIGKILL, on_kafka.said()
    assert (len(on_kafka.noted("ack")), len(on_kafka.noted("send"))) == (3, 4)
    with on_kafka.open() as lake:
        assert len(on_kafka.check_visible(lake)) // on_kafka.rows == POINTS[point]
        on_kafka.retry_and_check(lake)


def test_processes_are_killed_while_they_append_and_commit(on_kafka: Any) -> None:
    """Two at once, one of them killed at any moment; the index is lost in between."""
    for number in range(3):
        before = len(on_kafka.noted("ack"))
        start = max((sequence for _, sequence in on_kafka.noted("send")), default=-1) + 1
        other = on_kafka.start("--start", str(start + 50_000), "--batches", "15", "--producer", "other")
        worker = on_kafka.start("--start", str(start), "--batches", "100000", "--flush-every", "4", "--no-spark")
        on_kafka.wait_for("ack", before + 5)
        time.sleep(0.1 * number)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert other.wait(240) == 0, on_kafka.said()
        if number == 1:
            for file in on_kafka.path.glob("kafka-log.db*"):
                file.unlink()
        with on_kafka.open() as lake:
            on_kafka.check_table()
            on_kafka.check_visible(lake)
            lake.flush()
    with on_kafka.open() as lake:
        on_kafka.retry_and_check(lake)


def test_the_broker_is_killed_while_threads_append(kafka: Any, opened: Callable[..., KafkaLog]) -> None:
    log = opened()
    acked: dict[int, int] = {}
    down = threading.Event()

    def produce(worker: int) -> None:
        for i in range(30):
            number = worker * 1000 + i
            acked[number] = append(log, number, producer=f"p{worker}", sequence=i)
            if i == 10:
                down.set()

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(produce, worker) for worker in range(4)]
        down.wait(120)
        kafka.restart(kill=True)
        for each in working:
            each.result(400)
    stored = numbers(log)
    assert sorted(stored) == sorted(acked)
    assert all(stored[offset] == number for number, offset in acked.items())
    assert numbers(opened("elsewhere.db")) == stored


def test_without_a_broker_appends_fail_in_time_and_leave_nothing(kafka: Any, opened: Callable[..., KafkaLog]) -> None:
    log = opened()
    append(log, 1)
    kafka.kill()
    have_patience(log, 2.0)
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable, match="did not take an append") as refused:
            append(log, 2, producer="p", sequence=1)
        assert time.monotonic() - started < 90
        assert refused.value.hint is not None and "nothing is stored twice" in refused.value.hint
        with pytest.raises(Unavailable, match="does not answer"):
            log.tail(TOPIC, 0)
    finally:
        kafka.start()
    have_patience(log, PATIENT)
    assert set(numbers(log)) <= {1, 2}  # it may have been under way when it was given up
    assert append(log, 2, producer="p", sequence=1) == 1
    assert append(log, 3) == 2
    assert numbers(log) == numbers(opened("elsewhere.db")) == [1, 2, 3]


def test_what_does_not_count_is_not_seen(place: KafkaPlace, opened: Callable[..., KafkaLog]) -> None:
    """Blobs of writers that came too late, small and large; messages that are not ours."""
    from confluent_kafka import Producer

    log = opened()
    append(log, 1)
    journal = Journal(place)
    head = journal.bounds()[1]
    row = ("topic", ("id-late", "late", 0, 0))
    late = encode([], [row, ("advance", (5, 1, 10, 2))])
    assert journal.write(late, head - 1)[1] == head  # after a blob that was not the last
    stranger = Producer(place.client())
    stranger.produce(place.topic, b"hello", partition=0)
    assert stranger.flush(120) == 0
    _send_in_transaction(place)
    assert numbers(log) == numbers(opened("another.db")) == [1]  # the journal ends with the end of a transaction
    large = encode([], [("schema", (b"x" * 2_000_000,))])
    _, first, end = journal.write(large, journal.bounds()[1])  # after a message that is no blob
    assert (end - first, [each.id for each in log.waiting()]) == (3, ["id-t"])
    assert append(log, 2) == 1
    assert numbers(log) == numbers(opened("elsewhere.db")) == [1, 2]
    journal.close()


def _send_in_transaction(place: KafkaPlace) -> None:
    from confluent_kafka import Producer

    stranger = Producer(place.client(**{"transactional.id": place.topic}))
    stranger.init_transactions(120)
    stranger.begin_transaction()
    stranger.produce(place.topic, b"hello", partition=0)
    stranger.commit_transaction(120)


def test_a_blob_is_whole_or_it_does_not_count(place: KafkaPlace, opened: Callable[..., KafkaLog]) -> None:
    """The first message of two, then another writer, then the second: as a slow writer and a quick one leave it."""
    log = opened()
    append(log, 1)
    slow, head = Journal(place), Journal(place).bounds()[1]
    parts = []
    slow._deliver = lambda producer, mark, messages, before: (
        parts.extend(  # type: ignore[method-assign]
            (mark, number, value, before) for number, value in enumerate(messages)
        )
        or [0]
    )
    slow.write(encode([], [("topic", ("id-slow", "slow", 0, 0)), ("schema", (b"x" * 1_000_000,))]), head)
    _send(place, *parts[0], count=2)
    append(log, 2)
    _send(place, *parts[1], count=2)
    assert append(log, 3) == 2
    assert numbers(log) == numbers(opened("elsewhere.db")) == [1, 2, 3]


def _send(place: KafkaPlace, mark: bytes, number: int, value: bytes, before: int, *, count: int) -> None:
    from confluent_kafka import Producer

    from headwater.topics.log_kafka_journal import _HEADER, _PLACE

    producer = Producer(place.client())
    producer.produce(place.topic, value, partition=0, headers=[(_HEADER, _PLACE.pack(mark, number, count, before))])
    assert producer.flush(120) == 0


def test_a_hold_whose_holder_died_is_broken(opened: Callable[..., KafkaLog]) -> None:
    log, dead = opened(lease=0.5), opened("elsewhere.db")
    dead._publish(lambda writer: writer.hold("dead", 0))
    started = time.monotonic()
    assert append(log, 1) == 0
    assert time.monotonic() - started > 0.5
    with dead.holding(TOPIC), pytest.raises(HeadwaterError, match="stayed held"):
        append(opened("third.db", busy_timeout=0.3), 2)
    assert append(dead, 3) == 1


def test_an_append_that_always_loses_holds_the_log(
    opened: Callable[..., KafkaLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = opened(), opened("elsewhere.db")
    write, lost = Journal.write, []

    def contended(journal: Journal, blob: bytes, before: int) -> Any:
        if journal is one._journal and b'"entry"' in blob and not one._db.execute("SELECT 1 FROM log_holds").fetchall():
            lost.append(append(two, 0))
        return write(journal, blob, before)

    monkeypatch.setattr(Journal, "write", contended)
    assert append(one, 1) == 3
    assert (lost, numbers(two)) == ([0, 1, 2], [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("name", "value"), [("retention.ms", "3600000"), ("retention.bytes", "1000"), ("cleanup.policy", "compact")]
)
def test_a_topic_that_forgets_messages_cannot_be_a_log(
    place: KafkaPlace, opened: Callable[..., KafkaLog], kafka: Any, name: str, value: str
) -> None:
    """As brokers make them that make topics by themselves."""
    kafka.create_topic(place.topic, 1, {name: value})
    with pytest.raises(InvalidSetting, match="cannot be a log") as refused:
        opened()
    assert refused.value.detail == f"It has {name}={value}: Kafka would delete messages that are needed."


def test_a_journal_that_lost_messages_is_told(place: KafkaPlace, opened: Callable[..., KafkaLog], kafka: Any) -> None:
    log = opened()
    append(log, 1, 2)
    append(log, 3)
    kafka.delete_records(place.topic, 0, 1)
    with pytest.raises(Corrupt, match="has lost its beginning"):
        opened("elsewhere.db")
    kafka.delete_topic(place.topic)
    kafka.create_topic(place.topic)
    with pytest.raises(Corrupt, match="has lost messages"):
        append(log, 4)
