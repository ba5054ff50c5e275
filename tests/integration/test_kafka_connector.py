"""A real broker, a producer that knows nothing of Headwater, and a connector between them and a lake."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

from headwater.connections import KafkaConnection
from headwater.engine import Lake
from headwater.errors import HeadwaterError, InvalidOption, NotFound, RecordsRejected, TopicNotFound, Unavailable
from headwater.sources.kafka import KafkaConnector, check_connector
from headwater.sources.kafka_positions import Sources
from headwater.sources.kafka_reader import Limits
from headwater.topics.ingest import log_topic
from headwater.topics.log import Append, Moved, Part
from headwater.types import StreamDefinition, StreamOptions

pytestmark = pytest.mark.slow

QUICK = Limits(idle=0.1, linger=0.02, answer=2.0, away=0.1, refresh=0.2)
_NUMBERS = count()


class World:
    """A topic `t` of a lake of its own, a Kafka topic of its own, and connectors from one to the other."""

    def __init__(self, kafka: Any, path: Path) -> None:
        self.kafka = kafka
        self.path = path
        self.name = f"messages-{next(_NUMBERS)}"
        self.lake = Lake.init(path)
        self.connections = {"local": KafkaConnection(type="kafka", bootstrap_servers=kafka.bootstrap)}
        self._producer = self._new_producer()
        self._connectors: list[KafkaConnector] = []

    def topics(self, columns: str, partitions: int = 1, on_invalid: str = "dead_letter") -> None:
        self.lake.sql(f"CREATE TOPIC t ({columns}) WITH (on_invalid = '{on_invalid}')")
        self.kafka.create_topic(self.name, partitions)

    def stream(self, *pairs: tuple[str, str], **options: Any) -> StreamDefinition:
        options = {"connection": "local", "kafka_topic": self.name, **options}
        return StreamDefinition("t", None, StreamOptions(connector="kafka", kafka_options=pairs, **options))

    def connector(self, *pairs: tuple[str, str], **options: Any) -> KafkaConnector:
        made = KafkaConnector(
            self.stream(*pairs, **options),
            self.lake.topics,
            self.lake.log,
            self.lake._intake.store,
            self.connections,
            limits=QUICK,
        )
        self._connectors.append(made)
        return made

    def _new_producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 2, "log_level": 0})

    def add_partitions(self, total: int) -> None:
        self.kafka.add_partitions(self.name, total)
        self._producer = self._new_producer()  # the old one looks for new partitions once in five minutes

    def remake(self, partitions: int) -> None:
        """Delete the Kafka topic and make another one of its name."""
        self.kafka.delete_topic(self.name)
        self.kafka.create_topic(self.name, partitions)
        self._producer = self._new_producer()

    def send(self, *values: bytes | None, partition: int = 0, **parts: Any) -> None:
        for value in values:
            self._producer.produce(self.name, value, partition=partition, **parts)
        assert self._producer.flush(120) == 0

    def numbers(self, *numbers: int, partition: int = 0) -> None:
        self.send(*(b'{"n": %d}' % n for n in numbers), partition=partition)

    def rows(self, query: str = "SELECT n FROM t ORDER BY _offset") -> list[Any]:
        rows = self.lake.sql(query).rows()
        return [row["n"] for row in rows] if rows and list(rows[0]) == ["n"] else rows

    def logged(self) -> list[dict[str, Any]]:
        """The rows as the log has them."""
        tail = self.lake.log.tail(log_topic(self.lake.topics.load("t")), 0)
        return [row for each in tail or [] for row in each.batch.to_pylist()]

    def dead(self) -> list[tuple[str, str, str]]:
        rows = self.lake.sql("SELECT reason, raw, origin FROM t__dead ORDER BY _offset").rows()
        return [(row["reason"], row["raw"], row["origin"].removeprefix(f"kafka:{self.name}/")) for row in rows]

    def close(self) -> None:
        for connector in self._connectors:
            connector.close()
        self.lake.close()


@pytest.fixture
def world(kafka: Any, tmp_path: Path) -> Iterator[World]:
    made = World(kafka, tmp_path / "lake")
    yield made
    made.close()


def until(connector: KafkaConnector, true: Callable[[], bool], timeout: float = 180) -> None:
    """Poll until it is true."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, connector.status()
        connector.poll_once()


def drain(connector: KafkaConnector, messages: int) -> None:
    until(connector, lambda: connector.status().messages >= messages and connector.status().lag == 0)


def test_many_messages_for_a_wide_topic_are_stored_in_portions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.sources.kafka_decode.rows_at_once", lambda _: 3)
    world.topics("n BIGINT NOT NULL")
    world.numbers(*range(8))
    world.send(b"no number")
    world.numbers(9)
    drain(world.connector(), 10)
    assert world.rows() == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert [origin for *_, origin in world.dead()] == ["0@8"]
    again = world.connector()
    world.numbers(10)
    drain(again, 1)
    assert world.rows()[-2:] == [9, 10]


# -- formats ----------------------------------------------------------------------------------------------------


def test_json_with_all_parts_of_a_message(world: World) -> None:
    world.topics(
        "n BIGINT NOT NULL, text STRING, k STRING, h MAP<STRING, STRING>, at TIMESTAMP, p INT, o BIGINT", partitions=2
    )
    world.send(b'{"n": 1,\n "text": "\xc3\xa9"}', key=b"a", headers={"x": b"1"}, timestamp=1_777_777_777_000)
    world.send(b'{"n": 2}', partition=1, timestamp=1_777_777_778_000)
    world.send(b'{"n": 2}', partition=1, timestamp=1_777_777_778_000)  # a second message, though it is the same
    connector = world.connector(
        key_field="k", headers_field="h", record_time_field="at", partition_field="p", offset_field="o"
    )
    drain(connector, 3)
    at = datetime(2026, 5, 3, 3, 9, 37, tzinfo=UTC)
    second = {"n": 2, "text": None, "k": None, "h": [], "at": at + timedelta(seconds=1), "p": 1}
    assert sorted(world.logged(), key=lambda row: (row["p"], row["o"])) == [
        {"n": 1, "text": "é", "k": "a", "h": [("x", "1")], "at": at, "p": 0, "o": 0},
        {**second, "o": 0},
        {**second, "o": 1},
    ]
    status = connector.status()
    assert (status.state, status.messages, status.dead_letters, status.lag) == ("running", 3, 0, 0)
    assert [(each.partition, each.position, each.high) for each in status.partitions] == [(0, 1, 1), (1, 2, 2)]
    assert status.bytes == len(b'{"n": 1,\n "text": "\xc3\xa9"}') + 2 * len(b'{"n": 2}')


def test_csv_avro_and_raw(world: World) -> None:
    world.topics("n BIGINT NOT NULL, text STRING")
    world.send(b"1,a", b'2,"x, y"')
    drain(world.connector(format="csv"), 2)
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"n": 3})
    world.send(body.getvalue(), b"\x00\x00\x00\x00\x09" + body.getvalue())
    drain(world.connector(format="avro", avro_schema=json.dumps(schema)), 2)
    world.send(b"any text", None)
    world.lake.sql("ALTER TOPIC t ALTER COLUMN n DROP NOT NULL")
    drain(world.connector(format="raw", offset_field="n"), 2)
    assert [(row["n"], row["text"]) for row in world.rows("SELECT n, text FROM t ORDER BY _offset")] == [
        (1, "a"),
        (2, "x, y"),
        (3, None),
        (3, None),
        (4, "any text"),
        (5, None),
    ]


def test_bad_messages_are_dead_letters_that_say_where_they_were(world: World) -> None:
    world.topics("n BIGINT NOT NULL", partitions=2)
    world.send(b'{"n": 1}', b"\xff\x00", None, b'{"n": "x"}', b'{"n": 2}', b'{"n":\n3}', partition=1)
    connector = world.connector()
    drain(connector, 6)
    assert world.rows() == [1, 2, 3]
    first, second, third = world.dead()
    assert first[0].startswith("not valid UTF-8") and first[1:] == ("\\xff\x00", "1@1")
    assert second == ("the message has no value", "", "1@2")
    assert third == ('expected long, got string "x"', '{"n": "x"}', "1@3")
    assert connector.status().dead_letters == 3


def test_a_topic_that_rejects_stops_the_connector_until_it_does_not(world: World) -> None:
    world.topics("n BIGINT NOT NULL", on_invalid="reject")
    world.numbers(1, 2)
    world.send(b'{"n": "x"}')
    connector = world.connector()
    with pytest.raises(RecordsRejected, match='topic "t" rejected 1 of 3 messages') as rejected:
        until(connector, lambda: False)
    assert rejected.value.detail == 'partition 0, offset 2, field "n": expected long, got string "x".'
    assert world.rows() == []
    assert connector.status().state == "failed"
    assert "offset 2" in str(connector.status().last_error)
    world.lake.sql("ALTER TOPIC t SET (on_invalid = 'dead_letter')")
    drain(connector, 3)
    assert world.rows() == [1, 2]
    assert world.dead() == [('expected long, got string "x"', '{"n": "x"}', "0@2")]


# -- positions --------------------------------------------------------------------------------------------------


def test_a_new_connector_goes_on_where_the_last_one_stopped(world: World) -> None:
    world.topics("n BIGINT NOT NULL", partitions=3)
    for n in range(60):
        world.numbers(n, partition=n % 2)  # the third partition stays idle
    drain(world.connector(), 60)
    world.numbers(60, partition=1)
    second = world.connector()
    drain(second, 1)
    assert sorted(world.rows()) == list(range(61))
    assert second.status().messages == 1
    assert [each.position for each in second.status().partitions] == [30, 31, 0]


def test_latest_begins_with_the_first_start_and_new_partitions_from_their_beginning(world: World) -> None:
    world.topics("n BIGINT NOT NULL", partitions=2)
    world.numbers(1, 2)
    connector = world.connector(kafka_start="latest")
    until(connector, lambda: connector.status().lag == 0)
    connector.close()
    world.numbers(3)  # while nobody reads: after the first start all the same
    world.add_partitions(3)
    world.numbers(4, partition=2)
    again = world.connector(kafka_start="latest")
    drain(again, 2)
    assert sorted(world.rows()) == [3, 4]


def test_partitions_that_are_added_while_it_runs(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    connector = world.connector()
    drain(connector, 1)
    world.add_partitions(4)
    world.numbers(2, partition=3)
    world.numbers(3)
    until(connector, lambda: connector.status().messages == 3)
    assert sorted(world.rows()) == [1, 2, 3]
    assert [each.partition for each in connector.status().partitions] == [0, 1, 2, 3]


def test_aborted_transactions_are_not_seen_and_their_ends_are_passed(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap, "transactional.id": world.name, "log_level": 0})
    producer.init_transactions()
    connector = world.connector()
    for n, end in enumerate([producer.commit_transaction, producer.abort_transaction, producer.commit_transaction]):
        producer.begin_transaction()
        producer.produce(world.name, b'{"n": %d}' % n)
        producer.flush()
        for _ in range(4):  # what is not committed is neither seen nor passed
            connector.poll_once()
        end()
    until(connector, lambda: connector.status().partitions[0].position == 6)  # three messages, three ends
    assert world.rows() == [0, 2]
    world.kafka.delete_records(world.name, 0, 6)
    again = world.connector()  # that everything is deleted by now costs nothing: there was no message behind
    world.numbers(7)
    drain(again, 1)
    assert world.rows() == [0, 2, 7]


def test_clocks_of_producers_do_not_matter(world: World) -> None:
    world.topics("n BIGINT NOT NULL, at TIMESTAMP", partitions=2)
    for n in range(20):
        world.send(b'{"n": %d}' % n, partition=n % 2, timestamp=1_777_777_777_000 + (n % 2) * 3_600_000 - n * 60_000)
    drain(world.connector(record_time_field="at"), 20)
    found = {row["n"]: int(row["at"].timestamp() * 1000) for row in world.logged()}
    assert found == {n: 1_777_777_777_000 + (n % 2) * 3_600_000 - n * 60_000 for n in range(20)}


def test_deleted_messages_are_an_error_with_a_number_and_a_way_on(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(*range(3))
    drain(world.connector(), 3)
    world.numbers(*range(3, 10))
    world.kafka.delete_records(world.name, 0, 8)
    connector = world.connector()
    with pytest.raises(Unavailable, match="no longer has the next message of partition 0") as gone:
        until(connector, lambda: False)
    assert "The next offset is 3, the first one that Kafka has is 8: 5 offsets were deleted" in str(gone.value.detail)
    with pytest.raises(Unavailable):  # and stays one
        until(connector, lambda: False)
    going_on = world.connector(("auto.offset.reset", "earliest"))
    drain(going_on, 2)
    assert world.rows() == [0, 1, 2, 8, 9]
    assert going_on.status().lost == 5
    assert going_on.status().last_error == "5 offsets of partition 0 passed: Kafka had deleted the next message"


# -- others -----------------------------------------------------------------------------------------------------


def test_two_connectors_at_once_repeat_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headwater.sources.kafka")
    world.topics("n BIGINT NOT NULL", partitions=2)
    stop = threading.Event()
    connectors = [world.connector() for _ in range(2)]
    threads = [threading.Thread(target=each.run, args=(stop,)) for each in connectors]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 180
        while any(each.status().state != "running" for each in connectors) and time.monotonic() < end:
            time.sleep(0.01)  # until both have begun: then both take what comes, and one of them is second
        for n in range(0, 600, 20):
            world.numbers(*range(n, n + 20), partition=(n // 20) % 2)
            time.sleep(0.02)
        end = time.monotonic() + 180
        while len(world.rows()) < 600 and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join(180)
    assert sorted(world.rows()) == list(range(600))
    assert sum(each.status().messages for each in connectors) == 600
    assert all(each.status().state == "stopped" for each in connectors)
    assert "kafka connector steps back" in caplog.messages, "they never met"


def test_a_column_that_is_added_while_it_runs(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    connector = world.connector()
    drain(connector, 1)
    world.lake.sql("ALTER TOPIC t ADD COLUMN text STRING")
    world.send(b'{"n": 2, "text": "new"}')
    drain(connector, 2)
    assert world.rows("SELECT n, text FROM t ORDER BY n") == [{"n": 1, "text": None}, {"n": 2, "text": "new"}]


def test_a_topic_that_is_dropped_ends_it_and_one_made_anew_begins_again(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    connector = world.connector()
    drain(connector, 1)
    world.lake.sql("DROP TOPIC t")
    world.numbers(2)
    with pytest.raises(TopicNotFound):
        until(connector, lambda: False)
    world.lake.sql("CREATE TOPIC t (n BIGINT NOT NULL)")
    drain(connector, 3)
    assert world.rows() == [1, 2]


def test_a_full_log_is_waited_for(world: World) -> None:
    world.topics("n BIGINT NOT NULL, text STRING")
    world.send(*[b"x" * 1000] * 2000)
    world.lake.close()
    world.lake = Lake.open(world.path, max_tail_bytes=1024**2)
    stream = world.stream(format="raw", offset_field="n")
    few = Limits(rows=100, idle=0.1, linger=0.01)
    connector = KafkaConnector(
        stream, world.lake.topics, world.lake.log, world.lake._intake.store, world.connections, limits=few
    )
    stop = threading.Event()
    thread = threading.Thread(target=connector.run, args=(stop,))
    thread.start()
    end = time.monotonic() + 180
    while connector.status().waiting_for != "the log is full" and time.monotonic() < end:
        time.sleep(0.01)
    stored = connector.status().messages
    stop.set()
    thread.join(180)
    assert 0 < stored < 2000
    assert connector.status().messages == stored
    world.lake.close()
    world.lake = Lake.open(world.path)
    assert world.rows() == list(range(stored))
    drain(world.connector(format="raw", offset_field="n"), 2000 - stored)
    assert world.rows() == list(range(2000))


def test_mistakes_are_told_before_anything_is_read(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    with pytest.raises(NotFound, match='kafka topic "no-such" does not exist'):
        until(world.connector(kafka_topic="no-such"), lambda: False)
    topic = world.lake.topics.load("t")
    wrong: list[tuple[StreamDefinition, type[HeadwaterError]]] = [
        (world.stream(("no.such", "1")), InvalidOption),
        (world.stream(("fetch.min.bytes", "many")), InvalidOption),
        (world.stream(key_field="n"), InvalidOption),
        (world.stream(format="raw"), InvalidOption),
        (world.stream(format="avro", avro_schema="{"), InvalidOption),
    ]
    for stream, error in wrong:
        with pytest.raises(error, match='stream "t"'):
            check_connector(stream, topic, world.connections)
    check_connector(world.stream(), topic, world.connections)


def test_a_kafka_topic_that_may_not_be_read(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    running = world.connector()
    drain(running, 1)
    world.kafka.reserve(world.name, "somebody-else")
    for connector in (running, world.connector()):
        with pytest.raises(Unavailable, match=f'kafka topic "{world.name}" may not be read') as refused:
            until(connector, lambda: False)
        assert "authorization failed" in str(refused.value.detail).lower()
    assert world.rows() == [1]


def test_a_broker_that_goes_away_is_waited_for(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    running = world.connector()
    drain(running, 1)
    world.kafka.kill()
    late = world.connector()  # begins while there is no broker
    for connector in (running, late):
        until(connector, lambda c=connector: c.status().state == "waiting")
        assert "answer" in str(connector.status().waiting_for)
    world.kafka.start()
    world.numbers(2, 3)
    drain(running, 3)
    until(late, lambda: late.status().lag == 0)
    assert (late.status().state, late.status().waiting_for) == ("running", None)
    assert world.rows() == [1, 2, 3]
    assert late.status().messages == 0


def test_a_kafka_topic_that_is_deleted_while_it_is_read(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    connector = world.connector()
    drain(connector, 1)
    world.kafka.delete_topic(world.name)
    with pytest.raises(NotFound, match=f'kafka topic "{world.name}" does not exist'):
        until(connector, lambda: False)


@pytest.mark.parametrize("running", [True, False], ids=["while it is read", "while nobody reads"])
def test_a_kafka_topic_that_is_made_anew_is_not_gone_on_with(world: World, running: bool) -> None:
    """It has as many messages as the one before it and more: by offsets alone the first of them would be passed."""
    world.topics("n BIGINT NOT NULL", partitions=2)
    world.numbers(1, 2, 3)
    connector = world.connector()
    drain(connector, 3)
    if not running:
        connector.close()
        connector = world.connector()
    world.remake(partitions=1)
    world.numbers(*range(10, 15))
    time.sleep(QUICK.refresh)  # then it looks
    with pytest.raises(Unavailable, match=f'kafka topic "{world.name}" is not the one that was read before') as told:
        until(connector, lambda: False)
    assert "auto.offset.reset=earliest" in str(told.value.hint)
    assert world.rows() == [1, 2, 3]
    drain(world.connector(("auto.offset.reset", "earliest")), 5)
    assert world.rows() == [1, 2, 3, *range(10, 15)]
    world.add_partitions(2)
    world.numbers(20, partition=1)
    drain(world.connector(), 1)  # which had a position in the first topic
    world.remake(partitions=1)
    world.numbers(30)
    latest = world.connector(("auto.offset.reset", "latest"))
    until(latest, lambda: latest.status().lag == 0)
    world.numbers(31)
    drain(latest, 1)
    assert world.rows()[-2:] == [20, 31]


def test_positions_of_before_ids_were_kept_are_gone_on_from(world: World) -> None:
    world.topics("n BIGINT NOT NULL")
    world.numbers(1)
    first = world.connector()
    drain(first, 1)
    topic = world.lake.topics.load("t")
    begun = Sources(topic.id, world.name).begun
    known = world.lake.log.position(begun)
    assert known is not None and not known.isdecimal()
    moved = Moved(begun, known, "1")  # the number of partitions, as it was kept before
    world.lake.log.append(Append((Part(log_topic(topic), ()),), moved=moved))
    world.numbers(2)
    drain(world.connector(), 1)
    assert world.rows() == [1, 2]
    assert world.lake.log.position(begun) == known
