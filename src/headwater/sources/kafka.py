"""The Kafka connector: messages of a Kafka topic become records of a topic, each once, whatever dies in between.

Positions are Headwater's, not Kafka's: the log stores the records of a batch and the next offset of their partition in
one transaction, and a consumer always begins at the stored offsets. So a crash before that transaction repeats the
reading and a crash after it repeats nothing. Of two connectors of one stream, one commits and the other is told that
its position is stale, reads the positions again, and goes on from there.

A broker that is away is waited for. An error ends the run: whoever runs the connector may run it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import Protocol

from headwater.catalog.topics import Topic, Topics
from headwater.connections import Connections
from headwater.errors import Backpressure, HeadwaterError, RecordsRejected, SchemaChanged, StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.sources.kafka_columns import Message, Messages
from headwater.sources.kafka_decode import MessageDecoder
from headwater.sources.kafka_positions import Sources
from headwater.sources.kafka_reader import BrokerAway, KafkaReader, Limits, Taken
from headwater.sources.kafka_reading import Reading, TopicReplaced
from headwater.sources.kafka_settings import consumer_settings
from headwater.sources.kafka_status import KafkaStatus, PartitionStatus, State
from headwater.storage.decode import Decoded, Reject
from headwater.topics.log import Log, Moved
from headwater.topics.produce import ATTEMPTS, Ack, Source
from headwater.types import StreamDefinition

log = logging.getLogger(__name__)

SHOWN = 10


class Store(Protocol):
    """Where decoded records go: `Producer.store`, or what counts them on the way there."""

    def __call__(self, topic: Topic, decoded: Decoded, source: Source) -> Ack: ...


def check_connector(stream: StreamDefinition, topic: Topic, connections: Connections) -> None:
    """The error that a connector of the stream would end with at once, without asking a broker."""
    MessageDecoder(stream, topic.columns)
    KafkaReader(stream, consumer_settings(stream, connections), Limits()).close()


class KafkaConnector:
    """Reads one stream's Kafka topic into its topic. One thread runs it; others may ask for its status."""

    def __init__(
        self,
        stream: StreamDefinition,
        topics: Topics,
        wal: Log,
        store: Store,
        connections: Connections,
        *,
        limits: Limits | None = None,
    ) -> None:
        self._stream = stream
        self._topics = topics
        self._wal = wal
        self._store = store
        self._connections = connections
        self._limits = limits or Limits()
        self._stop = Event()
        self._reading: Reading | None = None
        self._decoder: tuple[tuple[str, int], MessageDecoder] | None = None
        self._state: State = "starting"
        self._waiting_for: str | None = None
        self._messages = self._bytes = self._dead = self._appends = self._lost = 0
        self._started_at = datetime.now(UTC)
        self._last_message_at: datetime | None = None
        self._last_error: str | None = None
        self._last_error_at: datetime | None = None
        self._known: tuple[PartitionStatus, ...] = ()

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, stop: Event) -> None:
        """Read until `stop` is set; what was taken by then is stored first. An error ends it and is raised."""
        self._stop = stop
        try:
            while not stop.is_set():
                self.poll_once()
            self._state = "stopped"
        finally:
            self.close()

    def poll_once(self) -> int:
        """Store what Kafka has now, up to the limits; returns how many messages that were."""
        try:
            return self._turn()
        except StaleCommit as stale:  # another connector was first: what it stored must not be stored again
            log.info("kafka connector steps back", extra={"stream": self._stream.name, "reason": str(stale)})
            self.close()
        except BrokerAway as away:
            self._wait_for(str(away))
            self._stop.wait(self._limits.away)
        except (_Stopped, TopicReplaced):
            self.close()  # of a topic that was replaced, the next turn decides
        except Exception as failed:
            self._failed(failed)
            self.close()
            raise
        return 0

    def close(self) -> None:
        """Leave Kafka. The next turn begins at the stored positions."""
        if self._reading is not None:
            reading, self._reading = self._reading, None
            reading.reader.close()

    def _turn(self) -> int:
        reading = self._reading = self._reading or self._begin()
        taken = reading.take()
        if reading.reader.away is not None:
            self._wait_for(reading.reader.away)
        else:
            self._state, self._waiting_for = "running", None
        failpoint("kafka.taken")
        self._keep(reading, taken)
        self._bytes += taken.bytes
        self._known = reading.status()
        return taken.rows

    def _begin(self) -> Reading:
        """A consumer at the stored positions."""
        topic = self._topics.load(self._stream.topic)
        self._decoder_of(topic)  # first: a stream that does not fit its topic asks no broker
        reader = KafkaReader(self._stream, consumer_settings(self._stream, self._connections), self._limits)
        sources = Sources(topic.id, self._stream.options.kafka_topic)
        reading = Reading(self._stream, reader, sources, self._wal, partial(self._move, sources), self._limits)
        try:
            reading.begin()
        except BaseException:
            reader.close()
            raise
        return reading

    # -- records ------------------------------------------------------------------------------------------------

    def _keep(self, reading: Reading, taken: Taken) -> None:
        """Store what was taken, partition by partition, each with its position."""
        for partition in sorted(taken.messages.keys() | taken.ends.keys()):
            at = reading.positions[partition]
            messages = _from(at, taken.messages.get(partition, []))
            # The end of a partition may lie behind its last message: ends of transactions have offsets, too.
            end = max(at, messages[-1].offset() + 1 if messages else 0, taken.ends.get(partition, 0))
            if end > at:
                for part, upto in self._portions(messages, end):
                    self._append(reading, partition, part, upto)
        for partition in sorted(taken.gone):
            try:
                self._count_lost(partition, reading.bridge(partition))
            except BrokerAway:
                self.close()  # the consumer has told of it once and would be silent about the partition from now on
                raise

    def _portions(self, messages: Messages, end: int) -> Iterator[tuple[Messages, int]]:
        """The messages in portions that take bounded memory once they are decoded, each with where it ends."""
        assert self._decoder is not None
        most = self._decoder[1].most_rows
        while len(messages) > most:
            yield messages[:most], messages[most].offset()
            messages = messages[most:]
        yield messages, end

    def _count_lost(self, partition: int, lost: int) -> None:
        if lost:
            self._lost += lost
            offsets = "offset" if lost == 1 else "offsets"
            self._last_error = f"{lost} {offsets} of partition {partition} passed: Kafka had deleted the next message"
            self._last_error_at = datetime.now(UTC)

    def _append(self, reading: Reading, partition: int, messages: Messages, end: int) -> None:
        origin = f"kafka:{reading.reader.topic}/{partition}@"
        source = Source(lambda row: f"{origin}{messages[row].offset()}", moved=reading.moved(partition, end))
        ack = self._decode_and_store(reading.sources, partition, messages, source)
        failpoint("kafka.stored")
        reading.positions[partition] = end
        self._messages += len(messages)
        self._dead += ack.dead
        self._appends += 1
        self._last_message_at = datetime.now(UTC) if messages else self._last_message_at

    def _decode_and_store(self, sources: Sources, partition: int, messages: Messages, source: Source) -> Ack:
        for attempt in range(ATTEMPTS):
            topic = self._topic(sources)
            decoded = self._decoder_of(topic).decode(messages)
            failpoint("kafka.decoded")
            if decoded.rejects and topic.definition.options.on_invalid == "reject":
                raise _rejection(topic, partition, messages, decoded)
            try:
                return self._when_there_is_room(topic, decoded, source)
            except SchemaChanged:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _when_there_is_room(self, topic: Topic, decoded: Decoded, source: Source) -> Ack:
        """Store it once the log has room; meanwhile nothing more is taken from Kafka."""
        while True:
            try:
                return self._store(topic, decoded, source)
            except Backpressure as full:
                self._wait_for(full.message)
                if self._stop.wait(full.retry_after):
                    raise _Stopped from None

    def _move(self, sources: Sources, moved: Moved) -> None:
        """Store a position by itself."""
        topic = self._topic(sources)
        nothing = self._decoder_of(topic).decode([])
        self._when_there_is_room(topic, nothing, Source(f"kafka:{sources.kafka_topic}", moved=moved))

    def _topic(self, sources: Sources) -> Topic:
        topic = self._topics.load(self._stream.topic)
        if topic.id != sources.topic_id:
            raise StaleCommit(f'topic "{topic.name}" was dropped and made anew')
        return topic

    def _decoder_of(self, topic: Topic) -> MessageDecoder:
        key = (topic.id, topic.schema.schema_id)
        if self._decoder is None or self._decoder[0] != key:
            self._decoder = key, MessageDecoder(self._stream, topic.columns)
        return self._decoder[1]

    # -- telling ------------------------------------------------------------------------------------------------

    def status(self) -> KafkaStatus:
        """How it is doing."""
        return KafkaStatus(
            self._state,
            self._waiting_for,
            self._messages,
            self._bytes,
            self._dead,
            self._appends,
            self._lost,
            self._known,
            self._started_at,
            self._last_message_at,
            self._last_error,
            self._last_error_at,
        )

    def _wait_for(self, what: str) -> None:
        if self._waiting_for is None:
            log.warning("kafka connector waits", extra={"stream": self._stream.name, "reason": what})
        self._state, self._waiting_for = "waiting", what

    def _failed(self, failed: Exception) -> None:
        self._state = "failed"
        self._last_error = str(failed) if isinstance(failed, HeadwaterError) else repr(failed)
        self._last_error_at = datetime.now(UTC)


class _Stopped(Exception):
    """It was to stop while it waited for room: what it holds is read again by the next run."""


def _from(position: int, messages: list[Message]) -> list[Message]:
    """The messages from an offset on; those before it were stored, and came once more after a new assignment."""
    if not messages or messages[0].offset() >= position:
        return messages
    return [message for message in messages if message.offset() >= position]


def _rejection(topic: Topic, partition: int, messages: Messages, decoded: Decoded) -> RecordsRejected:
    count, shown = len(decoded.rejects), decoded.rejects[:SHOWN]
    lines = "; ".join(
        f"partition {partition}, offset {messages[reject.row].offset()}{_field(reject)}: {reject.reason}"
        for reject in shown
    )
    more = f"; and {count - len(shown)} more" if count > len(shown) else ""
    return RecordsRejected(
        f'topic "{topic.name}" rejected {count} of {decoded.rows} message{"s" if decoded.rows != 1 else ""}',
        detail=f"{lines}{more}.",
        hint="Nothing of them was stored. "
        f"ALTER TOPIC {topic.name} SET (on_invalid = 'dead_letter') keeps such messages aside and goes on.",
        rejected=count,
        rows=decoded.rows,
    )


def _field(reject: Reject) -> str:
    return "" if reject.field is None else f', field "{reject.field}"'
