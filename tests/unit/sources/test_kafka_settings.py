"""What a stream says to librdkafka, where it begins, and what it is told when messages are gone."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.connections import KafkaConnection
from headwater.errors import InvalidOption, InvalidSetting
from headwater.sources.kafka_positions import Gap, Sources, first_offset, made_anew, replaced
from headwater.sources.kafka_reader import KafkaReader, Limits
from headwater.sources.kafka_settings import consumer_settings, loss_policy
from headwater.sources.kafka_status import KafkaStatus, PartitionStatus
from headwater.types import StreamDefinition, StreamOptions

LOCAL = {"local": KafkaConnection(type="kafka", bootstrap_servers="127.0.0.1:1")}


def stream(*pairs: tuple[str, str], **options: Any) -> StreamDefinition:
    options = {"connector": "kafka", "connection": "local", "kafka_topic": "k", **options}
    return StreamDefinition("s", None, StreamOptions(**options, kafka_options=pairs))


def test_settings_are_the_connectors_then_the_connections_then_the_streams() -> None:
    options = {"fetch.min.bytes": "5", "security.protocol": "PLAINTEXT"}
    local = {"local": KafkaConnection(type="kafka", bootstrap_servers="127.0.0.1:1", options=options)}
    settings = consumer_settings(stream(("fetch.min.bytes", "10"), ("group.id", "mine")), local)
    assert (settings["bootstrap.servers"], settings["security.protocol"]) == ("127.0.0.1:1", "PLAINTEXT")
    assert (settings["fetch.min.bytes"], settings["group.id"]) == ("10", "mine")
    assert (settings["enable.auto.commit"], settings["isolation.level"]) == (False, "read_committed")


def test_librdkafka_never_jumps_by_itself() -> None:
    for policy in ("error", "earliest", "latest"):
        jumping = stream(("auto.offset.reset", policy))
        assert consumer_settings(jumping, LOCAL)["auto.offset.reset"] == "error"
        assert loss_policy(jumping) == policy
    assert loss_policy(stream()) == "error"
    with pytest.raises(InvalidOption, match=r'stream "s" cannot set "auto\.offset\.reset"'):
        consumer_settings(stream(("auto.offset.reset", "smallest")), LOCAL)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("fetch.min.bytes", "many"), 'Invalid value for configuration property "fetch.min.bytes".'),
        (("compression.type", "x"), 'Invalid value "x" for configuration property "compression.codec".'),
    ],
)
def test_settings_that_librdkafka_refuses(pair: tuple[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match='stream "s" has kafka_options that cannot be used') as refused:
        consumer_settings(stream(pair), LOCAL)
    assert refused.value.detail == said


def test_a_connection_that_librdkafka_refuses() -> None:
    options = {"security.protocol": "SSL", "ssl.ca.location": "/no/such"}
    broken = {"local": KafkaConnection(type="kafka", bootstrap_servers="127.0.0.1:1", options=options)}
    with pytest.raises(InvalidSetting, match='connection "local" cannot be used') as refused:
        KafkaReader(stream(), consumer_settings(stream(), broken), Limits())
    assert "ssl" not in f"{refused.value} {refused.value.detail} {refused.value.hint}"


def test_positions_have_names() -> None:
    sources = Sources("11-22", "orders")
    assert (sources.begun, sources.partition(3)) == ("kafka/11-22/orders", "kafka/11-22/orders/3")


@pytest.mark.parametrize(
    ("start", "begun", "offset"),
    [("earliest", False, 5), ("earliest", True, 5), ("latest", False, 9), ("latest", True, 5)],
)
def test_where_a_partition_without_a_position_begins(start: Any, begun: bool, offset: int) -> None:
    assert first_offset(stream(kafka_start=start), (5, 9), begun=begun) == offset


def test_a_gap_says_how_much_is_gone_and_how_to_go_on() -> None:
    assert not Gap(0, 5, 5, 5).exists
    gap = Gap(2, 10, 17, 30)
    assert gap.exists
    error = gap.error(stream())
    assert error.message == 'kafka topic "k" no longer has the next message of partition 2'
    assert "the first one that Kafka has is 17: 7 offsets were deleted before they were read." in str(error.detail)
    assert "auto.offset.reset=earliest" in str(error.hint)
    anew = Gap(2, 10, 0, 3)
    assert anew.exists and anew.lost == 0
    assert "the partition ends at 3" in str(anew.error(stream()).detail)


def test_the_way_on_keeps_the_other_settings() -> None:
    others = stream(("fetch.min.bytes", "5"), ("auto.offset.reset", "error"))
    statement = "ALTER STREAM s SET (kafka_options = 'fetch.min.bytes=5, auto.offset.reset=earliest')"
    for error in (Gap(2, 10, 17, 30).error(others), made_anew(others)):
        assert statement in str(error.hint)


@pytest.mark.parametrize(
    ("known", "is_now", "said"),
    [(None, "a", False), ("a", "a", False), ("a", None, False), ("3", "a", False), ("a", "b", True)],
)
def test_a_topic_is_another_one_if_both_ids_are_known_and_differ(
    known: str | None, is_now: str | None, said: bool
) -> None:
    assert replaced(known, is_now) == said


def test_lag_is_known_once_all_partitions_were_read() -> None:
    def status(*partitions: PartitionStatus) -> KafkaStatus:
        return KafkaStatus("running", None, 0, 0, 0, 0, 0, partitions, None, None, None, None)

    assert status().lag is None
    assert status(PartitionStatus(0, 3, 10), PartitionStatus(1, 0, None)).lag is None
    both = status(PartitionStatus(0, 3, 10), PartitionStatus(1, 9, 8))
    assert both.lag == 7
    assert both.describe()["partitions"][1] == {"partition": 1, "position": 9, "high": 8, "lag": 0}
