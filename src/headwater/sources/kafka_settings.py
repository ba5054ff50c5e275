"""What a stream's options say to librdkafka, and what they may not say.

The connector depends on some settings and sets them itself. Others would have the process run a command or load a
library that the statement names, which no statement may do.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.errors import InvalidOption
from headwater.sql.kafka_texts import CODE, resolved
from headwater.types import StreamDefinition

OURS: Mapping[str, str] = {
    "bootstrap.servers": "Use the option bootstrap_servers.",
    "enable.auto.commit": "Positions are committed with the records, never to Kafka.",
    "enable.auto.offset.store": "Positions are committed with the records, never to Kafka.",
    "enable.partition.eof": "The connector needs to know where partitions end.",
}
"""Settings that the connector makes, and what to say to whoever tries to."""

RESET = "auto.offset.reset"
RESETS = ("error", "earliest", "latest")

_DEFAULTS = {
    "group.id": "headwater",
    "client.id": "headwater",
    "isolation.level": "read_committed",
    "reconnect.backoff.max.ms": "2000",
    "max.partition.fetch.bytes": str(4 * 1024**2),
}


def consumer_settings(stream: StreamDefinition, environment: Mapping[str, str]) -> dict[str, object]:
    """The settings of the stream's consumer; InvalidOption if one cannot be accepted."""
    given = {name: _value(stream, name, value, environment) for name, value in stream.options.kafka_options}
    loss_policy(stream)
    return {
        **_DEFAULTS,
        **given,
        "bootstrap.servers": stream.options.bootstrap_servers,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # Never librdkafka's own jump: `loss_policy` decides, after what is lost was counted.
        RESET: "error",
    }


def loss_policy(stream: StreamDefinition) -> str:
    """What happens when Kafka no longer has the next message: error, or going on at the earliest or latest one."""
    policy = dict(stream.options.kafka_options).get(RESET, "error")
    if policy not in RESETS:
        raise _refused(stream, RESET, f"It takes {', '.join(RESETS)}, not {policy}.")
    return policy


def _value(stream: StreamDefinition, name: str, value: str, environment: Mapping[str, str]) -> str:
    if name in OURS:
        raise _refused(stream, name, f"The connector makes this setting. {OURS[name]}")
    if name in CODE:
        raise _refused(stream, name, "It would run or load something that a statement names.")
    if (found := resolved(value, environment)) is None:
        raise _refused(stream, name, f'"{value}" is not set in the environment of the process that runs the stream.')
    return found


def refused_setting(stream: StreamDefinition, said: str) -> InvalidOption:
    """The error for settings that librdkafka refuses, in its words."""
    return InvalidOption(
        f'stream "{stream.name}" has kafka_options that cannot be used',
        detail=f"{said}.",
        hint="The settings are those of librdkafka's consumer, as 'name=value, name=value'.",
    )


def _refused(stream: StreamDefinition, name: str, detail: str) -> InvalidOption:
    return InvalidOption(f'stream "{stream.name}" cannot set "{name}" in kafka_options', detail=detail)
