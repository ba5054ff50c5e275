"""Rows of a view in a real Kafka topic: each once for whoever reads what is committed, whatever ends in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headwater.catalog.identity import P_COPIED_FROM, P_LAKE, outlet_prefix
from headwater.catalog.view_layout import Layout
from headwater.connections import KafkaConnection
from headwater.engine import Lake
from headwater.engine.copies import restore_lake
from headwater.errors import InvalidOption, InvalidSetting, NotFound, Unavailable
from headwater.state.streams import StreamStore
from headwater.streaming import into_kafka
from headwater.streaming.into_kafka import KafkaOutlet, check_target
from headwater.types import ViewDefinition, ViewOptions

pytestmark = pytest.mark.slow

Message = tuple[dict[str, Any] | None, dict[str, Any]]
_numbers = count()


class Seen:
    """What a view is for an outlet."""

    def __init__(self, into: str, *pairs: tuple[str, str]) -> None:
        self.id = f"view-{next(_numbers)}-{time.time_ns()}"
        self.name = "v"
        self.layout = Layout("latest", (("k", "bigint", "k"), ("n", "bigint", "n")), ("k",)).to_json()
        options = ViewOptions(mode="continuous", into_kafka=into, kafka_options=pairs)
        self.definition = ViewDefinition("v", "SELECT 1", options)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests is not a broker that is away."""
    monkeypatch.setattr(into_kafka, "TIMEOUT", 60.0)


@pytest.fixture
def topic(kafka: Any) -> str:
    return str(kafka.create_topic(f"sent-{next(_numbers)}-{time.time_ns()}", 2))


@pytest.fixture
def connections(kafka: Any) -> dict[str, KafkaConnection]:
    tls = {"security.protocol": "SSL", "ssl.ca.location": "/no/such"}
    return {
        "local": KafkaConnection(type="kafka", bootstrap_servers=kafka.bootstrap),
        "gone": KafkaConnection(type="kafka", bootstrap_servers="127.0.0.1:1"),
        "broken": KafkaConnection(type="kafka", bootstrap_servers="127.0.0.1:1", options=tls),
    }


@pytest.fixture
def view(kafka: Any, topic: str) -> Any:
    return Seen(f"local/{topic}")


def messages(kafka: Any, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Keys and values of all partitions up to their ends, in the order of their keys and their arrival."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "a-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found: list[Message] = []
    ended = 0
    while ended < 2:
        message = consumer.poll(60)
        assert message is not None, "Kafka does not answer"
        if message.error():
            ended += 1
        else:
            key, value = message.key(), message.value()
            found.append((json.loads(key) if key else None, json.loads(value or b"null")))
    consumer.close()
    return sorted(found, key=lambda each: json.dumps(each[0]))


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"k": [k for k, _ in pairs], "n": [n for _, n in pairs]})


def told(*pairs: tuple[int, int]) -> list[Message]:
    return [({"k": k}, {"k": k, "n": n}) for k, n in pairs]


def test_parts_are_sent_once_by_whoever_sends_them(kafka: Any, topic: str, view: Any, connections: Any) -> None:
    outlet = KafkaOutlet(view, connections)
    assert outlet.sent is None
    outlet.send((1, 0, 0), rows((1, 10), (2, 20)))
    outlet.send((1, 0, 1), rows((3, 30)))
    outlet.send((1, 0, 0), rows((1, 10), (2, 20)))
    assert outlet.sent == (1, 0, 1)
    again = KafkaOutlet(view, connections)  # another process, after a crash
    assert again.sent == (1, 0, 1)
    again.send((1, 0, 1), rows((3, 30)))
    again.send((1, 7, 0), rows((4, 40)))
    again.send((2, 0, 0), rows((5, 50)))  # of a query that replaced the first
    assert KafkaOutlet(view, connections).sent == (2, 0, 0)
    assert messages(kafka, topic) == told((1, 10), (2, 20), (3, 30), (4, 40), (5, 50))


def test_values_are_json_as_everywhere(kafka: Any, topic: str, view: Any, connections: Any) -> None:
    moment = datetime(2026, 1, 1, 10, tzinfo=UTC)
    values = {"k": [1], "at": [moment], "d": [Decimal("1.50")], "raw": [b"\x00\xff"], "f": [float("nan")], "s": ["ä\n"]}
    KafkaOutlet(view, connections).send((1, 0, 0), pa.table(values))
    ((_, sent),) = messages(kafka, topic)
    assert sent == {"k": 1, "at": "2026-01-01T10:00:00Z", "d": "1.50", "raw": "AP8=", "f": "NaN", "s": "ä\n"}


def test_what_a_dead_process_left_is_taken_back(kafka: Any, topic: str, view: Any, connections: Any) -> None:
    """It died between its rows and its commit: its rows are in Kafka, and no reader sees them."""
    dead = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"headwater-{view.id}"})
    dead.init_transactions(120)
    dead.begin_transaction()
    dead.produce(topic, b'{"k": 1, "n": 10}', b'{"k": 1}')
    assert dead.flush(120) == 0
    outlet = KafkaOutlet(view, connections)
    assert outlet.sent is None
    outlet.send((1, 0, 0), rows((1, 10)))
    assert messages(kafka, topic) == told((1, 10))
    assert len(messages(kafka, topic, "read_uncommitted")) == 2


def test_one_that_was_replaced_sends_nothing(kafka: Any, topic: str, view: Any, connections: Any) -> None:
    slow = KafkaOutlet(view, connections)
    slow.send((1, 0, 0), rows((1, 10)))
    KafkaOutlet(view, connections).send((1, 1, 0), rows((2, 20)))
    with pytest.raises(Unavailable, match="does not take rows"):
        slow.send((1, 1, 0), rows((2, 20)))
    slow.send((1, 1, 0), rows((2, 20)))  # tried again, it looks what was sent
    assert messages(kafka, topic) == told((1, 10), (2, 20))


def test_a_copy_of_the_lake_takes_nothing_from_the_original(
    kafka: Any, topic: str, view: Any, connections: Any
) -> None:
    """The view of a copy has the same id; neither ends the other's producer, nor takes the other's rows for sent."""
    original = KafkaOutlet(view, connections)
    original.send((1, 150, 0), rows((1, 10)))
    copy = KafkaOutlet(view, connections, outlet_prefix({P_LAKE: "01copy", P_COPIED_FROM: "01original"}))
    assert copy.sent is None
    for epoch in range(151, 154):
        copy.send((1, epoch, 0), rows((2, epoch)))
    original.send((1, 151, 0), rows((3, 30)))
    assert KafkaOutlet(view, connections).sent == (1, 151, 0)
    assert messages(kafka, topic) == told((1, 10), (2, 151), (2, 152), (2, 153), (3, 30))


def test_a_broker_that_restarts(kafka: Any, topic: str, view: Any, connections: Any) -> None:
    outlet = KafkaOutlet(view, connections)
    outlet.send((1, 0, 0), rows((1, 10)))
    kafka.restart(kill=True)
    until = time.monotonic() + 180
    while True:
        try:
            outlet.send((1, 1, 0), rows((2, 20)))
            break
        except Unavailable:  # as a stream does, which tries again
            assert time.monotonic() < until
    assert messages(kafka, topic) == told((1, 10), (2, 20))


def test_a_call_that_does_not_end_is_given_up(
    kafka: Any, topic: str, view: Any, connections: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that outlives its broker, and did not hear of it, waits for the coordinator that it knew."""
    monkeypatch.setattr(KafkaOutlet, "_heard", lambda *_: None)
    outlet = KafkaOutlet(view, connections)
    outlet.send((1, 0, 0), rows((1, 10)))
    kafka.restart(kill=True)
    monkeypatch.setattr(into_kafka, "TIMEOUT", 3.0)
    until = time.monotonic() + 180
    while True:
        try:
            outlet.send((1, 1, 0), rows((2, 20)))
            break
        except Unavailable:
            assert time.monotonic() < until
            monkeypatch.setattr(into_kafka, "TIMEOUT", 60.0)  # what comes next is told from what does not end
    assert messages(kafka, topic) == told((1, 10), (2, 20))


def test_a_coordinator_that_moves_is_waited_for(view: Any, connections: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does while a broker comes or goes, and when a cluster has its first group."""
    asked, moving = Consumer.committed, [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]

    class Moving(Consumer):
        def committed(self, *arguments: Any, **named: Any) -> Any:
            if moving:
                raise KafkaException(KafkaError(moving.pop()))
            return asked(self, *arguments, **named)

    monkeypatch.setattr(into_kafka, "Consumer", Moving)
    assert KafkaOutlet(view, connections).sent is None
    assert moving == []


def test_brokers_that_are_not_there(connections: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(into_kafka, "TIMEOUT", 1.0)
    with pytest.raises(Unavailable, match='Kafka topic "t" does not take rows'):
        _ = KafkaOutlet(Seen("gone/t"), connections).sent  # type: ignore[arg-type]


def test_a_target_is_looked_at_before_anything_is_made(
    kafka: Any, topic: str, connections: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(into: str, *pairs: tuple[str, str]) -> None:
        check_target(Seen(into, *pairs).definition, connections)

    check(f"local/{topic}", ("compression.type", "lz4"))
    check(f"{kafka.bootstrap}/{topic}")  # a definition from before connections: the operator has named these brokers
    with pytest.raises(NotFound, match='Kafka topic "no-such" cannot be sent to') as refused:
        check("local/no-such")
    assert 'connection "local"' in str(refused.value.detail)
    with pytest.raises(InvalidOption, match=r'cannot set "ssl\.key\.location" in kafka_options'):
        check(f"local/{topic}", ("ssl.key.location", "/etc/passwd"))
    with pytest.raises(InvalidOption, match=r'connection "127\.0\.0\.1:2" is not configured'):
        check("127.0.0.1:2/t")
    monkeypatch.setattr(into_kafka, "TIMEOUT", 1.0)
    with pytest.raises(Unavailable, match='Kafka topic "t" does not take rows'):
        check("gone/t")


def test_settings_of_the_client(kafka: Any, topic: str, connections: Any) -> None:
    into = f"local/{topic}"
    KafkaOutlet(Seen(into, ("compression.type", "zstd")), connections).send((1, 0, 0), rows((1, 1)))  # type: ignore[arg-type]
    assert messages(kafka, topic) == told((1, 1))
    with pytest.raises(InvalidOption, match="has kafka_options that cannot be used") as refused:
        _ = KafkaOutlet(Seen(into, ("compression.type", "env:HOME")), connections).sent  # type: ignore[arg-type]
    assert "env:HOME" in str(refused.value.detail)  # the text that was given, and not what it would stand for
    with pytest.raises(InvalidSetting, match='connection "broken" cannot be used') as broken:
        _ = KafkaOutlet(Seen("broken/t"), connections).sent  # type: ignore[arg-type]
    assert "/no/such" not in f"{broken.value} {broken.value.detail} {broken.value.hint}"


# -- whole views ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_from_kafka_to_kafka_through_a_log_in_kafka(
    kafka_service: Lake, kafka: Any, topic: str, tmp_path: Path
) -> None:
    """A connector fills a topic whose log is in Kafka, and a continuous view of it sends every change on, once."""
    source = kafka.create_topic(f"source-{time.time_ns()}", 2)
    kafka_service.sql(
        "CREATE STREAM from_kafka (page STRING, at TIMESTAMP) WITH (connector = 'kafka', "
        f"connection = 'local', kafka_topic = '{source}', timestamp_field = 'at', log = 'kafka')"
    )
    kafka_service.sql(
        "CREATE MATERIALIZED VIEW visits AS SELECT page, count(*) AS n FROM from_kafka GROUP BY page "
        f"EMIT CHANGES INTO KAFKA 'local/{topic}' "
        "WITH (refresh = 'continuous', kafka_options = 'compression.type=lz4')"
    )
    try:
        with pytest.raises(NotFound, match='Kafka topic "no-such" cannot be sent to'):
            kafka_service.sql(
                "CREATE MATERIALIZED VIEW nowhere AS SELECT page, count(*) AS n FROM from_kafka GROUP BY page "
                "EMIT CHANGES INTO KAFKA 'local/no-such' WITH (refresh = 'continuous')"
            )
        assert "nowhere" not in kafka_service.views.names()
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(1, 61):
            value = json.dumps({"page": f"p{number % 3}", "at": "2026-01-01T10:00:00Z"})
            producer.produce(source, value, partition=number % 2)
            if number % 20 == 0:
                assert producer.flush(120) == 0
                wait_for(lambda number=number: sum(newest(kafka, topic).values()) == number)
        assert newest(kafka, topic) == {"p0": 20, "p1": 20, "p2": 20}
        assert {row["page"]: row["n"] for row in kafka_service.sql("SELECT * FROM visits").rows()} == newest(
            kafka, topic
        )
        for page in ("p0", "p1", "p2"):
            sent = [value["n"] for key, value in messages(kafka, topic) if key == {"page": page}]
            assert sent == sorted(set(sent))  # no change is sent twice
        assert kafka_service.sql("VERIFY MATERIALIZED VIEW visits").rows()[0]["equal"]
        (shown,) = kafka_service.sql("SELECT count(*) AS n FROM from_kafka").rows()
        assert shown["n"] == 60
        kafka_service.backup(tmp_path / "backup")
        assert restore_lake(tmp_path / "backup", tmp_path / "new").stopped == ("visits",)
        streams = StreamStore(tmp_path / "new" / "state.db", 5)
        assert (streams.get("visits").wanted, streams.get("from_kafka").wanted) == (False, True)
    finally:
        kafka_service.sql("DROP MATERIALIZED VIEW visits")
        kafka_service.sql("DROP STREAM from_kafka")
        kafka_service.sql("DROP TOPIC from_kafka")


def newest(kafka: Any, topic: str) -> dict[str, int]:
    return {value["page"]: value["n"] for _, value in messages(kafka, topic)}


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
