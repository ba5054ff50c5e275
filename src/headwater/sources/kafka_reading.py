"""A Kafka topic that is being read: its consumer, and the positions of its partitions as the log has them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic

from headwater.errors import Unavailable
from headwater.sources.kafka_positions import Gap, Sources, first_offset, made_anew, replaced
from headwater.sources.kafka_reader import KafkaReader, Limits, Taken
from headwater.sources.kafka_settings import loss_policy
from headwater.sources.kafka_status import PartitionStatus
from headwater.topics.log import Log, Moved
from headwater.types import StreamDefinition

log = logging.getLogger(__name__)


class TopicReplaced(Exception):
    """The Kafka topic is not the one that was begun: nothing more of it may be taken from here."""


class Reading:
    """One consumer from its first look at the log's positions to its end. `move` stores a position by itself."""

    def __init__(
        self,
        stream: StreamDefinition,
        reader: KafkaReader,
        sources: Sources,
        wal: Log,
        move: Callable[[Moved], None],
        limits: Limits,
    ) -> None:
        self.sources = sources
        self.reader = reader
        self.positions: dict[int, int] = {}
        self._stream = stream
        self._wal = wal
        self._move = move
        self._limits = limits
        self._refreshed = monotonic()
        self._topic_id: str | None = None

    def begin(self) -> None:
        """Read all partitions from the positions that the log has of them."""
        partitions = self.reader.partitions()
        known, is_now = self._wal.position(self.sources.begun), self.reader.topic_id()
        if replaced(known, is_now):
            self._start_over(partitions)
        self._add(partitions)
        # Only now: a crash before leaves the topic to be begun again, its partitions without a position as first ones.
        if known is None or is_now not in (None, known):
            self._move(Moved(self.sources.begun, known, is_now or str(len(partitions))))
        self._topic_id = is_now

    def take(self) -> Taken:
        """What Kafka has now, after a look whether there are new partitions if it is time for one."""
        pause = self._limits.refresh if self.reader.away is None else self._limits.away
        if self.reader.doubtful or monotonic() - self._refreshed >= pause:
            self._refresh()
        return self.reader.take()

    def moved(self, partition: int, end: int) -> Moved:
        """The step of a partition from where it is to `end`."""
        return Moved(self.sources.partition(partition), str(self.positions[partition]), str(end))

    def bridge(self, partition: int) -> int:
        """Go on behind offsets that Kafka does not have, if the stream says so; returns how many were passed."""
        gap = Gap(partition, self.positions[partition], *self.reader.bounds(partition))
        policy, passed = loss_policy(self._stream), 0
        if gap.exists and policy == "error":
            raise gap.error(self._stream)
        if gap.exists:
            target = gap.low if policy == "earliest" else gap.high
            self._move(self.moved(partition, target))
            self.positions[partition] = target
            passed = max(0, target - gap.position)
            fields = {"stream": self._stream.name, "partition": partition, "from": gap.position, "to": target}
            log.warning("kafka messages are gone", extra=fields)
        self.reader.assign(self.positions)
        return passed

    def status(self) -> tuple[PartitionStatus, ...]:
        """How far each partition was read."""
        return tuple(
            PartitionStatus(partition, position, self.reader.high(partition))
            for partition, position in sorted(self.positions.items())
        )

    def _start_over(self, partitions: Sequence[int]) -> None:
        """Leave the positions in a topic that is gone, also of partitions that the one of its name does not have."""
        if (policy := loss_policy(self._stream)) == "error":
            raise made_anew(self._stream)
        for partition in count():
            name = self.sources.partition(partition)
            if (stored := self._wal.position(name)) is None:
                break
            low, high = self.reader.bounds(partition) if partition in partitions else (0, 0)
            self._move(Moved(name, stored, str(low if policy == "earliest" else high)))
        log.warning("kafka topic was made anew", extra={"stream": self._stream.name, "begun_at": policy})

    def _refresh(self) -> None:
        partitions = self.reader.partitions()
        if replaced(self._topic_id, self.reader.topic_id()):
            raise TopicReplaced
        self._refreshed = monotonic()
        if missing := sorted(self.positions.keys() - set(partitions)):
            raise Unavailable(
                f'kafka topic "{self.reader.topic}" has no partition {missing[0]} any more',
                detail="It was made anew with fewer partitions.",
                hint="Create the Kafka topic with as many partitions as it had, or the stream with another topic.",
            )
        if added := [partition for partition in partitions if partition not in self.positions]:
            self._add(added)

    def _add(self, partitions: Sequence[int]) -> None:
        """Read these partitions, too; for those that have none, a position is stored first."""
        begun = self._wal.position(self.sources.begun) is not None
        for partition in partitions:
            name = self.sources.partition(partition)
            if (stored := self._wal.position(name)) is None:
                stored = str(first_offset(self._stream, self.reader.bounds(partition), begun=begun))
                self._move(Moved(name, None, stored))
            self.positions[partition] = int(stored)
        self.reader.assign(self.positions)
