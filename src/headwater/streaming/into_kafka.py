"""Rows of a view as messages of a Kafka topic, each once: a part of an epoch and the note that it was sent are one
transaction.

The note is a consumer group's offset, in Kafka itself: of the group that is named for the view, in the first partition
of the topic, a number made of generation, epoch and part. Consumers that read with `isolation.level = read_committed`
see every row once, whatever died in between.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import View
from headwater.connections import Connections, kafka_client, refused_client
from headwater.errors import HeadwaterError, NotFound, Unavailable
from headwater.sql.kafka_texts import split_target
from headwater.storage.encode import json_lines
from headwater.streaming.outbox import At
from headwater.types import ViewDefinition

TIMEOUT = 30.0
_MOVING = frozenset(
    (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)
)
_GENERATIONS, _EPOCHS, _PARTS = 2**12, 2**33, 2**18
"""How many of each a number of 63 bits tells apart: epochs for 27 years at ten a second."""


def check_target(definition: ViewDefinition, connections: Connections) -> None:
    """What sending would end with at once: NotFound without such a topic, Unavailable if no broker says."""
    connection, topic = split_target(definition.options.into_kafka)
    settings = _client_settings(definition, connections)
    try:
        consumer = Consumer({**settings, "group.id": "headwater"})
        try:
            found = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic]
        finally:
            consumer.close()
    except KafkaException as failed:
        raise _failure(definition, failed, "Nothing was created.", settings) from failed
    if found.error is not None:
        if found.error.code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
            raise _failure(definition, KafkaException(found.error), "Nothing was created.")
        raise NotFound(
            f'Kafka topic "{topic}" cannot be sent to',
            detail=f'The brokers of connection "{connection}" said: {found.error.str()}.',
            hint="Create it, or correct INTO KAFKA.",
        )


class KafkaOutlet:
    """Sends a view's rows to a Kafka topic: the keys of its groups as the key, the row as JSON.

    `prefix` and the view's id name the producer and the group; no other lake may use the same.
    """

    def __init__(self, view: View, connections: Connections, prefix: str = "headwater") -> None:
        self._topic = split_target(view.definition.options.into_kafka)[1]
        self._connections = connections
        self._group = f"{prefix}-{view.id}"
        self._keys = Layout.from_json(view.layout).keys
        self._view = view
        self._open: tuple[Producer, object] | None = None
        self._sent: At | None = None
        self._shaken = False

    @property
    def sent(self) -> At | None:
        self._opened()
        return self._sent

    def send(self, at: At, rows: pa.Table) -> None:
        producer, group = self._opened()
        if self._sent is not None and self._sent >= at:
            return
        try:
            producer.begin_transaction()
            self._produce(producer, rows)
            note = [TopicPartition(self._topic, 0, _packed(at))]
            _within(TIMEOUT, lambda: producer.send_offsets_to_transaction(note, group, TIMEOUT))
            producer.commit_transaction(TIMEOUT)
        except (KafkaException, TimeoutError) as failed:
            # Whether it was committed is unknown: a new producer ends what this one left, and the note is read again.
            self._open = None
            raise self._unavailable(failed) from failed
        self._sent = at

    def _produce(self, producer: Producer, rows: pa.Table) -> None:
        keys = json_lines(rows.select(list(self._keys))) if self._keys else itertools.repeat(None)
        for key, value in zip(keys, json_lines(rows), strict=False):
            while True:
                try:
                    producer.produce(self._topic, value, key)
                    break
                except BufferError:  # as many as fit are on their way
                    producer.poll(0.1)

    def _opened(self) -> tuple[Producer, object]:
        """A producer and its group. The producer before it cannot send from here on, so `sent` stays true."""
        if self._open is not None:
            self._open[0].poll(0)  # hears of errors
        if self._open is None or self._shaken:
            settings = {**_client_settings(self._view.definition, self._connections), "error_cb": self._heard}
            try:
                producer = Producer({"linger.ms": 5, **settings, "transactional.id": self._group})
                producer.init_transactions(TIMEOUT)
                consumer = Consumer({**settings, "group.id": self._group, "enable.auto.commit": False})
                try:
                    offset = _committed(consumer, TopicPartition(self._topic, 0))
                    group = consumer.consumer_group_metadata()
                finally:
                    consumer.close()
            except KafkaException as failed:
                raise self._unavailable(failed, settings) from failed
            self._sent = None if offset < 0 else _unpacked(offset)
            self._open, self._shaken = (producer, group), False
        return self._open

    def _heard(self, _: KafkaError) -> None:
        """Something is wrong between here and a broker: a producer that outlives this may wait for it for ever."""
        self._shaken = True

    def _unavailable(
        self, failed: KafkaException | TimeoutError, settings: Mapping[str, object] | None = None
    ) -> HeadwaterError:
        return _failure(self._view.definition, failed, "It is tried again.", settings)


def _client_settings(definition: ViewDefinition, connections: Connections) -> dict[str, object]:
    connection, owner = split_target(definition.options.into_kafka)[0], f'materialized view "{definition.name}"'
    client = kafka_client(connections, connection, definition.options.kafka_options, owner, transactional=True)
    return {**client, "client.id": "headwater", "log_level": 2}


def _failure(
    definition: ViewDefinition,
    failed: KafkaException | TimeoutError,
    hint: str,
    settings: Mapping[str, object] | None = None,
) -> HeadwaterError:
    connection, topic = split_target(definition.options.into_kafka)
    said = failed.args[0] if failed.args and isinstance(failed.args[0], KafkaError) else failed
    if isinstance(said, KafkaError) and said.code() == KafkaError._INVALID_ARG:
        return refused_client(connection, said.str(), settings or {})
    return Unavailable(f'Kafka topic "{topic}" does not take rows', detail=f"Kafka says: {said}.", hint=hint)


def _committed(consumer: Consumer, at: TopicPartition) -> int:
    """The group's offset, once its coordinator is there: it moves when brokers come and go, which the client tells."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            (found,) = consumer.committed([at], timeout=TIMEOUT)
            return int(found.offset)
        except KafkaException as failed:
            if failed.args[0].code() not in _MOVING or time.monotonic() > until:
                raise
        time.sleep(0.1)


def _within(seconds: float, work: Callable[[], object]) -> None:
    """Do it, or TimeoutError: librdkafka waits for a coordinator that restarted without end (its issue 5456).

    What is given up waits on in a thread of its own, and can do nothing any more once a new producer has begun.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failed:
            failures.append(failed)

    thread = threading.Thread(target=run, name="headwater-into-kafka", daemon=True)
    thread.start()
    thread.join(seconds + 1)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    if failures:
        raise failures[0]


def _packed(at: At) -> int:
    generation, epoch, part = at
    assert generation < _GENERATIONS and epoch < _EPOCHS and part < _PARTS, at
    return (generation * _EPOCHS + epoch) * _PARTS + part


def _unpacked(number: int) -> At:
    rest, part = divmod(number, _PARTS)
    generation, epoch = divmod(rest, _EPOCHS)
    return generation, epoch, part
