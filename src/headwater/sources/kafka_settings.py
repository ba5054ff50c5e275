"""The settings of a stream's Kafka consumer: the connection's, the stream's own, and those the connector depends on."""

from __future__ import annotations

from headwater.connections import Connections, kafka_client
from headwater.errors import InvalidOption
from headwater.types import StreamDefinition

RESET = "auto.offset.reset"
RESETS = ("error", "earliest", "latest")

_DEFAULTS = {
    "group.id": "headwater",
    "client.id": "headwater",
    "isolation.level": "read_committed",
    "reconnect.backoff.max.ms": "2000",
    "max.partition.fetch.bytes": str(4 * 1024**2),
}


def consumer_settings(stream: StreamDefinition, connections: Connections) -> dict[str, object]:
    """The settings of the stream's consumer, secrets included; InvalidOption if one cannot be accepted."""
    loss_policy(stream)
    options = stream.options
    client = kafka_client(connections, options.connection, options.kafka_options, f'stream "{stream.name}"')
    return {
        **_DEFAULTS,
        **client,
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
        raise InvalidOption(
            f'stream "{stream.name}" cannot set "{RESET}" in kafka_options',
            detail=f"It is one of {', '.join(RESETS)}, not {policy}.",
        )
    return policy
