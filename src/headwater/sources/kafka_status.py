"""What a Kafka connector is doing, as a value: counters since it was made, and how far behind it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

State = Literal["starting", "running", "waiting", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition: the offset that is read next, and where it ended when it was last read."""

    partition: int
    position: int
    high: int | None

    @property
    def lag(self) -> int | None:
        """How many messages wait in Kafka; offsets that hold none, such as ends of transactions, count too."""
        return None if self.high is None else max(0, self.high - self.position)


@dataclass(frozen=True, slots=True)
class KafkaStatus:
    """A connector at one moment. `lost` are messages that Kafka had deleted before they were read."""

    state: State
    waiting_for: str | None
    messages: int
    bytes: int
    dead_letters: int
    appends: int
    lost: int
    partitions: tuple[PartitionStatus, ...]
    started_at: datetime | None
    last_message_at: datetime | None
    last_error: str | None
    last_error_at: datetime | None

    @property
    def lag(self) -> int | None:
        """The partitions' lag together; None while one is not known."""
        lags = [partition.lag for partition in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None

    def describe(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "state": self.state,
            "waiting_for": self.waiting_for,
            "messages": self.messages,
            "bytes": self.bytes,
            "dead_letters": self.dead_letters,
            "appends": self.appends,
            "lost": self.lost,
            "lag": self.lag,
            "partitions": [
                {"partition": each.partition, "position": each.position, "high": each.high, "lag": each.lag}
                for each in self.partitions
            ],
            "started_at": self.started_at and self.started_at.isoformat(),
            "last_message_at": self.last_message_at and self.last_message_at.isoformat(),
            "last_error": self.last_error,
            "last_error_at": self.last_error_at and self.last_error_at.isoformat(),
        }
