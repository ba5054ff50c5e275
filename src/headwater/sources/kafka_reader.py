"""One Kafka topic read through librdkafka, partition by partition from given offsets. It commits nothing to Kafka.

Errors are sorted here, once: what the reader can wait out (`BrokerAway`), what a person has to settle (a
HeadwaterError) and what is not an error at all (the end of a partition).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headwater.connections import refused_client
from headwater.errors import HeadwaterError, NotFound, Unavailable
from headwater.observability.logs import seldom
from headwater.sources.kafka_columns import Message
from headwater.types import StreamDefinition

log = seldom(__name__)

REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,
    }
)
UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""A topic's id of zeros: brokers before Kafka 2.8 give none."""


_ERROR, _PARTITION = methodcaller("error"), methodcaller("partition")


class BrokerAway(Exception):
    """No broker answers; it is waited for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken at once, and how long is waited: for a first message, for more of them, for a broker."""

    rows: int = 65_536
    bytes: int = 16 * 1024**2
    idle: float = 0.25
    linger: float = 0.05
    answer: float = 5.0
    away: float = 1.0
    refresh: float = 15.0


@dataclass(slots=True)
class Taken:
    """What one look at Kafka found, by partition: messages, where it ended, whether its next offset is gone."""

    messages: dict[int, list[Message]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    rows: int = 0
    bytes: int = 0


class KafkaReader:
    """A consumer of all partitions of the stream's Kafka topic."""

    def __init__(self, stream: StreamDefinition, settings: Mapping[str, object], limits: Limits) -> None:
        self.topic = stream.options.kafka_topic
        self.away: str | None = None
        self.doubtful = False
        self._connection = stream.options.connection
        self._limits = limits
        self._failure: HeadwaterError | None = None
        # Asks for the topic's id, which a consumer does not tell; that settings are a consumer's is nothing to log.
        self._asking: dict[str, Any] = {**settings, "log_level": 0}
        self._admin: AdminClient | None = None
        try:
            self._consumer = Consumer({**settings, "error_cb": self._on_error}, logger=log)
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_client(self._connection, _said(error), settings) from None

    def partitions(self) -> list[int]:
        """The topic's partitions; BrokerAway if none answers, NotFound if there is no such topic."""
        try:
            found = self._consumer.list_topics(self.topic, timeout=self._limits.answer).topics[self.topic]
        except KafkaException as error:
            raise self._sorted(error.args[0]) from None
        if found.error is not None:
            raise self._sorted(found.error)
        self.away, self.doubtful = None, False
        return sorted(found.partitions)

    def topic_id(self) -> str | None:
        """What tells the topic from another one of its name; None if the brokers are too old to know."""
        if self._admin is None:
            self._admin = AdminClient(self._asking)
        try:
            asked = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=self._limits.answer)
            found = str(asked[self.topic].result().topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE:
                return None
            raise self._sorted(error.args[0]) from None
        return None if found == NO_ID else found

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset that Kafka has of a partition, and the one that its next message will get."""
        try:
            low, high = self._consumer.get_watermark_offsets(self._at(partition), timeout=self._limits.answer)
        except KafkaException as error:
            raise self._sorted(error.args[0]) from None
        return int(low), int(high)

    def high(self, partition: int) -> int | None:
        """Where the partition ended when it was last read, without asking."""
        _, high = self._consumer.get_watermark_offsets(self._at(partition), cached=True)
        return int(high) if high >= 0 else None

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        self._consumer.assign([self._at(partition, offset) for partition, offset in positions.items()])

    def take(self) -> Taken:
        """What there is, up to the limits: all that came within the linger after the first message."""
        taken = Taken()
        batch = self._consumer.consume(1, self._limits.idle)
        until = time.monotonic() + self._limits.linger
        while batch:
            self._sort(taken, batch)
            left = until - time.monotonic()
            if left <= 0 or taken.rows >= self._limits.rows or taken.bytes >= self._limits.bytes:
                break
            batch = self._consumer.consume(self._next_step(taken), left)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return taken

    def close(self) -> None:
        self._admin = None
        self._consumer.close()

    def _next_step(self, taken: Taken) -> int:
        """How many messages fit into what is left of the bytes, going by those that came."""
        size = max(1, taken.bytes // max(1, taken.rows))
        return max(1, min(self._limits.rows - taken.rows, (self._limits.bytes - taken.bytes) // size))

    def _sort(self, taken: Taken, batch: list[Any]) -> None:
        # By map and not message by message: this loop would cost as much as parsing their JSON.
        if any(map(_ERROR, batch)):  # not compared with None: that leaves a KafkaError's C code in disorder
            for message in batch:
                if (error := message.error()) is not None:
                    self._sort_error(taken, message, error)
            batch = [message for message in batch if message.error() is None]
        if batch:
            self.away = None
        taken.rows += len(batch)
        taken.bytes += sum(map(len, batch))
        partitions = list(map(_PARTITION, batch))
        for partition in set(partitions):
            found = taken.messages.setdefault(partition, [])
            found += (
                batch
                if partitions.count(partition) == len(batch)
                else compress(batch, map(partition.__eq__, partitions))
            )

    def _sort_error(self, taken: Taken, message: Any, error: KafkaError) -> None:
        partition = message.partition()
        if error.code() == KafkaError._PARTITION_EOF:
            taken.ends[partition] = message.offset()
            self.away = None
        elif error.code() in GONE and partition is not None and partition >= 0:
            taken.gone.add(partition)
        else:
            self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        """Called by librdkafka, too, while it is polled: raising here would be lost."""
        if error.code() in UNKNOWN:
            self.doubtful = True  # a broker that has just started may not know all topics yet: `partitions` asks again
        elif error.code() in REFUSED or error.fatal():
            failure = self._sorted(error)
            self._failure = failure if isinstance(failure, HeadwaterError) else None
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.away = f'no broker of connection "{self._connection}" answers'
        else:
            log.info("kafka said", extra={"topic": self.topic, "error": error.str()})

    def _sorted(self, error: KafkaError) -> Exception:
        code = error.code()
        if code in UNKNOWN:
            return NotFound(
                f'kafka topic "{self.topic}" does not exist',
                detail=f'The brokers of connection "{self._connection}" said: {error.str()}.',
                hint="Create it, or correct the stream's option kafka_topic.",
            )
        if code in REFUSED:
            return Unavailable(
                f'kafka topic "{self.topic}" may not be read',
                detail=f'The brokers of connection "{self._connection}" said: {error.str()}.',
                hint="Set credentials in the connection, or have the right to read granted.",
            )
        if error.fatal():
            return Unavailable(f'kafka topic "{self.topic}" cannot be read', detail=f"{error.str()}.")
        return BrokerAway(f'the brokers of connection "{self._connection}" do not answer: {error.str()}')

    def _at(self, partition: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition, offset)


def _said(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)
