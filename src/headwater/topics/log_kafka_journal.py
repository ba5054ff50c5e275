"""A journal in one partition of a Kafka topic: blobs of bytes in one order that all writers agree on.

A blob is stored as messages that follow each other, and names the blob that it was written after. It counts if that one
was the last that counted: of two writers that did not know of each other one wins, and the other finds out when it
reads. So nothing has to be locked or fenced, and a blob whose delivery is in doubt never has to be asked for: once
another one follows the same predecessor, it cannot count any more.

Nothing here is a Kafka transaction, so offsets have no holes, and a writer whose messages got the offsets that it
expected knows without reading that its blob counts.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headwater.errors import Corrupt, HeadwaterError, Unavailable
from headwater.topics.log_kafka_place import KafkaPlace, unavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

MESSAGE_BYTES = 900_000
"""The size of all messages of a blob but its last: brokers take a megabyte, with everything around it, without being
told. What is stored refers to it, so it stays."""
ASKING = 5.0
"""Seconds to wait for a small answer: an ingest that finds no broker must not hold up other topics for long."""
AGAIN = 1.0
"""Seconds after which brokers that did not answer for as long are asked again."""
_HEADER = "headwater"
_PLACE = struct.Struct("<8sIIq")
"""Of a message: its blob's mark, its number in it, how many there are, and where the blob before it ended."""


@dataclass(frozen=True, slots=True)
class Blob:
    """What was written at once: messages `[first, end)`, after a blob that ended at `before`."""

    mark: bytes
    first: int
    end: int
    before: int
    messages: tuple[bytes, ...] = field(repr=False)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.messages))


class Journal:
    """Writes and reads blobs. One thread writes at a time; reading has a lock of its own."""

    def __init__(self, place: KafkaPlace) -> None:
        self.place = place
        self._producer: Producer | None = None
        self._watcher: Consumer | None = None
        self._reader: Consumer | None = None
        self._away: tuple[float, Unavailable] | None = None
        self._watching = threading.Lock()
        self._reading = threading.Lock()

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, blob: bytes, before: int) -> tuple[bytes, int, int]:
        """Store the blob on all replicas: its mark and the offsets `[first, end)` that its messages got.

        Unavailable when that is not known in time; then it may be there all the same, whole or in part. `end - first`
        is more than its messages when those of others came between: then it does not count.
        """
        mark = secrets.token_bytes(8)
        producer, self._producer = self._producer or self._new_producer(), None
        offsets = self._deliver(producer, mark, list(cut(blob)), before)
        self._producer = producer  # only now: one that failed may still have messages under way
        return mark, offsets[0], offsets[-1] + 1

    def _new_producer(self) -> Producer:
        from confluent_kafka import Producer

        settings = {
            "acks": "all",
            # In order. Not Kafka's idempotence, whose first message waits half a second for an id: of a message that
            # is sent again both copies may be stored, and only one can count.
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 0,
            "message.timeout.ms": self.place.millis,
            "queue.buffering.max.kbytes": 2**21 - 1,
        }
        return Producer(self.place.client(**settings))

    def _deliver(self, producer: Producer, mark: bytes, messages: list[bytes], before: int) -> list[int]:
        delivered: dict[int, int] = {}
        failures: list[KafkaError] = []

        def report(number: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                delivered[number] = int(message.offset() or 0)

        try:
            for number, value in enumerate(messages):
                header = _PLACE.pack(mark, number, len(messages), before)
                told = partial(report, number)
                producer.produce(self.place.topic, value, partition=0, headers=[(_HEADER, header)], on_delivery=told)
            left = producer.flush(self.place.timeout + 1)
        except BaseException:
            producer.purge()
            raise
        if left or failures:
            producer.purge()
            raise unavailable(self.place, "did not take an append", failures[0].str() if failures else "no answer")
        return [delivered[number] for number in range(len(messages))]

    # -- reading ------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """The first message that is there, and the end: everything that any writer was told of is below it.

        Unavailable if no broker answers, also to those who ask a moment later: many topics share the journal, and each
        would wait in turn.
        """
        with self._watching:
            if self._away is not None and time.monotonic() < self._away[0]:
                raise self._away[1]
            asked = time.monotonic()
            try:
                return self._bounds()
            except Unavailable as away:
                if (now := time.monotonic()) - asked >= AGAIN:  # what is told at once may be asked at once
                    self._away = now + AGAIN, away
                raise

    def _bounds(self) -> tuple[int, int]:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        moving = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
        patience = min(ASKING, self.place.timeout)
        deadline = time.monotonic() + patience
        if self._watcher is None:
            self._watcher = new_consumer(self.place)
        while True:
            try:
                low, high = self._watcher.get_watermark_offsets(TopicPartition(self.place.topic, 0), timeout=patience)
                return int(low), int(high)
            except KafkaException as failed:
                error = failed.args[0]
                if error.code() not in moving or time.monotonic() > deadline:  # a leader is chosen in a moment
                    raise unavailable(self.place, "does not answer", error.str()) from failed
            time.sleep(0.1)

    def blobs(self, start: int, end: int) -> Iterator[Blob]:
        """The whole blobs below `end` whose first message is at `start` or after; not all of them count."""
        pending: list[tuple[int, bytes]] = []
        mark = b""
        for message in self._messages(start, end):
            at, (of, number, count, before) = int(message.offset() or 0), _place_of(message)
            if number != len(pending) or (number and of != mark):  # another writer's came between
                pending = []
                if number:
                    continue
            mark = of
            pending.append((at, message.value() or b""))
            if len(pending) == count:
                yield Blob(mark, pending[0][0], at + 1, before, tuple(value for _, value in pending))
                pending = []

    def _messages(self, start: int, end: int) -> Iterator[Message]:
        with self.consumer() as consumer:
            yield from messages(self.place, consumer, start, end)

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """A consumer of the journal's, kept open, for one reader at a time."""
        with self._reading:
            consumer, self._reader = self._reader or new_consumer(self.place), None
            try:
                yield consumer
            except BaseException:
                consumer.close()
                raise
            self._reader = consumer

    # -- forgetting ---------------------------------------------------------------------------------------------

    def cut(self, before: int) -> None:
        """Have Kafka delete the messages below `before`."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.place.client())
        wanted = TopicPartition(self.place.topic, 0, before)
        try:
            done = admin.delete_records([wanted], request_timeout=self.place.timeout)
            done[wanted].result()
        except KafkaException as failed:
            raise unavailable(self.place, "cannot be cut", failed.args[0].str()) from failed

    def close(self) -> None:
        for consumer in (self._watcher, self._reader):
            if consumer is not None:
                consumer.close()


def cut(blob: bytes) -> Iterator[bytes]:
    """The blob in messages; there is always one."""
    for start in range(0, max(1, len(blob)), MESSAGE_BYTES):
        yield blob[start : start + MESSAGE_BYTES]


def message_count(blob: bytes) -> int:
    return max(1, -(-len(blob) // MESSAGE_BYTES))


def new_consumer(place: KafkaPlace) -> Consumer:
    from confluent_kafka import Consumer

    settings = {
        "group.id": f"{place.topic}.reader",  # never joined: partitions are assigned by hand, nothing is committed
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",  # what a stranger left open must not hold up anyone
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.wait.max.ms": 10,
    }
    return Consumer(place.client(**settings))


def messages(place: KafkaPlace, consumer: Consumer, start: int, end: int) -> Generator[Message, None, None]:
    """The messages `[start, end)`, which are there; the ends of a stranger's transactions have offsets, too."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    position, until = start, time.monotonic() + place.timeout
    if start >= end:
        return
    try:
        consumer.assign([TopicPartition(place.topic, 0, start)])
        while position < end:
            for message in consumer.consume(min(500, end - position), timeout=0.5):
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        position = max(position, int(message.offset() or 0))
                        continue
                    raise _read_error(place, error, position)
                until = time.monotonic() + place.timeout
                position = int(message.offset() or 0) + 1
                if position <= end:
                    yield message
            if time.monotonic() > until:
                raise unavailable(place, "cannot be read", f"no message came after offset {position}")
    except KafkaException as failed:
        raise unavailable(place, "cannot be read", failed.args[0].str()) from failed
    finally:
        consumer.unassign()


def _read_error(place: KafkaPlace, error: KafkaError, position: int) -> HeadwaterError:
    from confluent_kafka import KafkaError as Kinds

    if error.code() in (Kinds._AUTO_OFFSET_RESET, Kinds.OFFSET_OUT_OF_RANGE):
        return Corrupt(
            f'log in Kafka topic "{place.topic}" has lost messages',
            detail=f"Message {position} is not there: {error.str()}.",
            hint="Do not delete or expire messages of this topic in Kafka.",
        )
    return unavailable(place, "cannot be read", error.str())


def _place_of(message: Message) -> tuple[bytes, int, int, int]:
    """Mark, number, count and predecessor; of a message that is not ours, ones that fit nothing."""
    try:
        headers: Any = message.headers() or []
    except UnicodeDecodeError:  # the client wants names to be text
        headers = []
    for name, value in headers:
        if name == _HEADER and isinstance(value, bytes) and len(value) == _PLACE.size:
            mark, number, count, before = _PLACE.unpack(value)
            return mark, number, count, before
    return b"", 1, 0, -1
