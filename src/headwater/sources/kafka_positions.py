"""Where each partition is read on: names of positions in the log, where to begin, and what Kafka may have deleted.

A position is the next offset of a partition, stored by the log in the transaction that stores the records before it. A
further position says that the topic as a whole was begun, so that a partition without one can be told from a new one,
and which topic it was: one of the same name that was made later, or is on other brokers, has other messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import Unavailable
from headwater.sources.kafka_settings import RESET
from headwater.types import StreamDefinition


@dataclass(frozen=True, slots=True)
class Sources:
    """The names under which the log keeps the positions of one Kafka topic that is read into one topic."""

    topic_id: str
    kafka_topic: str

    @property
    def begun(self) -> str:
        return f"kafka/{self.topic_id}/{self.kafka_topic}"

    def partition(self, partition: int) -> str:
        return f"{self.begun}/{partition}"


def first_offset(stream: StreamDefinition, bounds: tuple[int, int], *, begun: bool) -> int:
    """Where a partition without a position is begun.

    `latest` means what comes after the stream's first start. A partition that Kafka got later is read from its first
    message on: all of them came after it.
    """
    low, high = bounds
    return high if stream.options.kafka_start == "latest" and not begun else low


def replaced(known: str | None, is_now: str | None) -> bool:
    """Whether a topic's id is another one. Where none was known, the number of partitions is in its place."""
    return known is not None and is_now is not None and known != is_now and not known.isdecimal()


def _earliest(stream: StreamDefinition) -> str:
    """The statement that goes on; it names the other settings, too, as it replaces them all."""
    pairs = {**dict(stream.options.kafka_options), RESET: "earliest"}
    text = ", ".join(f"{name}={value}" for name, value in pairs.items()).replace("'", "''")
    return f"ALTER STREAM {stream.name} SET (kafka_options = '{text}')"


def made_anew(stream: StreamDefinition) -> Unavailable:
    """What is told to whoever has to decide."""
    topic = stream.options.kafka_topic
    return Unavailable(
        f'kafka topic "{topic}" is not the one that was read before',
        detail="It was made anew, or the brokers are others: the positions up to which it was read mean nothing in it.",
        hint=f"To read it from its oldest message on: {_earliest(stream)}, or latest for what comes from now on.",
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """A partition of which Kafka does not have the next offset: it begins at `low` and ends at `high`."""

    partition: int
    position: int
    low: int
    high: int

    @property
    def lost(self) -> int:
        """How many offsets are gone, as far as can be told; none if the partition ends before the position."""
        return max(0, self.low - self.position)

    @property
    def exists(self) -> bool:
        return not self.low <= self.position <= self.high

    def error(self, stream: StreamDefinition) -> Unavailable:
        """What is told to whoever has to decide."""
        topic = stream.options.kafka_topic
        if self.lost:
            detail = (
                f"The next offset is {self.position}, the first one that Kafka has is {self.low}: "
                f"{self.lost} {'offset was' if self.lost == 1 else 'offsets were'} deleted before they were read."
            )
        else:
            detail = (
                f"The next offset is {self.position}, but the partition ends at {self.high}: "
                "the Kafka topic was made anew, or lost messages."
            )
        return Unavailable(
            f'kafka topic "{topic}" no longer has the next message of partition {self.partition}',
            detail=detail,
            hint=f"To go on with the oldest message that is left: {_earliest(stream)}, or latest for the newest.",
        )
