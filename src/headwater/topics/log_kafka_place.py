"""Where the log in Kafka is, and that its topic is there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import InvalidSetting, Unavailable

_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "unclean.leader.election.enable": "false",
}


@dataclass(frozen=True, slots=True)
class KafkaPlace:
    """Where a journal is: clients' settings and the topic. It can be pickled."""

    bootstrap: str
    topic: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = 30.0

    def client(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,  # librdkafka writes to stderr; what fails comes back as an error
            **dict(self.options),
            **more,
        }

    @property
    def millis(self) -> int:
        return int(self.timeout * 1000)


def unavailable(place: KafkaPlace, what: str, error: object) -> Unavailable:
    return Unavailable(
        f'log in Kafka topic "{place.topic}" {what}',
        detail=f"Kafka at {place.bootstrap} says: {error}.",
        hint="Try again once the brokers answer; with the same producer and sequence nothing is stored twice.",
    )


def make_topic(place: KafkaPlace, replication: int | None) -> None:
    """See that the journal's topic is there, with one partition that nothing expires from."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient(place.client())
    config = _TOPIC_CONFIG | ({"min.insync.replicas": "2"} if (replication or 0) > 2 else {})
    topic = NewTopic(place.topic, 1, replication or -1, config=config)
    try:
        admin.create_topics([topic], operation_timeout=place.timeout, request_timeout=place.timeout)[
            place.topic
        ].result()
    except KafkaException as failed:
        if failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise unavailable(place, "cannot be made", failed.args[0].str()) from failed
        _check_kept(place, admin)
    _check_partitions(place, admin)


def _check_kept(place: KafkaPlace, admin: Any) -> None:
    """InvalidSetting if a topic that is there already forgets messages by itself, read or not."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    asked = ConfigResource(ResourceType.TOPIC, place.topic)
    try:
        found = admin.describe_configs([asked], request_timeout=place.timeout)[asked].result()
    except KafkaException:  # not everybody may look; then it has to be as the guide says
        return
    for name in ("cleanup.policy", "retention.ms", "retention.bytes"):
        if name in found and found[name].value != _TOPIC_CONFIG[name]:
            raise InvalidSetting(
                f'Kafka topic "{place.topic}" cannot be a log',
                detail=f"It has {name}={found[name].value}: Kafka would delete messages that are needed.",
                hint=f"Set its {name} to {_TOPIC_CONFIG[name]}, or choose another setting kafka_topic_prefix.",
            )


def _check_partitions(place: KafkaPlace, admin: Any) -> None:
    from confluent_kafka import KafkaException

    try:
        until = time.monotonic() + place.timeout
        while not (found := len(admin.list_topics(place.topic, place.timeout).topics[place.topic].partitions)):
            if time.monotonic() > until:
                raise unavailable(place, "has no partition yet", "its metadata is not there")
            time.sleep(0.02)
    except KafkaException as failed:
        raise unavailable(place, "cannot be reached", failed.args[0].str()) from failed
    if found != 1:
        raise InvalidSetting(
            f'Kafka topic "{place.topic}" cannot be a log',
            detail=f"It has {found} partitions instead of one.",
            hint="Choose another setting kafka_topic_prefix.",
        )
