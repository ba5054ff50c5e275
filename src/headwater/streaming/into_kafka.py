"""Rows of a view as messages of a Kafka topic, each once: a part of an epoch and the note that it was sent are one
transaction.

The note is a consumer group's offset, in Kafka itself: of the group that is named for the view, in the first partition
of the topic, a number made of generation, epoch and part. Whoever reads with `isolation.level = read_committed` sees
every row once, whatever died in between.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import View
from headwater.errors import Unavailable
from headwater.sql.kafka_texts import split_target
from headwater.streaming.outbox import At

TIMEOUT = 30.0
_EPOCHS, _PARTS = 2**36, 2**12
"""How many epochs and parts a number tells apart; what is left of 63 bits is for generations."""


class KafkaOutlet:
    """Sends a view's rows to a Kafka topic: the keys of its groups as the key, the row as JSON."""

    def __init__(self, view: View, into: str) -> None:
        self._servers, self._topic = split_target(into)
        self._group = f"headwater-{view.id}"
        self._keys = Layout.from_json(view.layout).keys
        self._producer: Producer | None = None

    @property
    def sent(self) -> At | None:
        consumer = self._consumer()
        try:
            (found,) = consumer.committed([TopicPartition(self._topic, 0)], timeout=TIMEOUT)
        except KafkaException as failed:
            raise self._unavailable(failed) from failed
        finally:
            consumer.close()
        return None if found.offset < 0 else _unpacked(int(found.offset))

    def send(self, at: At, rows: pa.Table) -> None:
        if (known := self.sent) is not None and known >= at:
            return
        producer, consumer = self._opened(), self._consumer()
        try:
            producer.begin_transaction()
            for row in rows.to_pylist():
                self._produce(producer, row)
            note = [TopicPartition(self._topic, 0, _packed(at))]
            producer.send_offsets_to_transaction(note, consumer.consumer_group_metadata(), TIMEOUT)
            producer.commit_transaction(TIMEOUT)
        except KafkaException as failed:
            # Whether it was committed is unknown: a new producer ends what this one left, and the note is read again.
            self._producer = None
            raise self._unavailable(failed) from failed
        finally:
            consumer.close()

    def _produce(self, producer: Producer, row: dict[str, Any]) -> None:
        key = json.dumps({name: row[name] for name in self._keys}, default=str) if self._keys else None
        while True:
            try:
                producer.produce(self._topic, json.dumps(row, default=str), key)
                return
            except BufferError:  # as many as fit are on their way
                producer.poll(0.1)

    def _opened(self) -> Producer:
        if self._producer is None:
            producer = Producer(
                {
                    "bootstrap.servers": self._servers,
                    "transactional.id": self._group,
                    "client.id": "headwater",
                    "linger.ms": 5,
                }
            )
            try:
                producer.init_transactions(TIMEOUT)
            except KafkaException as failed:
                raise self._unavailable(failed) from failed
            self._producer = producer
        return self._producer

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self._servers, "group.id": self._group, "enable.auto.commit": False})

    def _unavailable(self, failed: KafkaException) -> Unavailable:
        said = failed.args[0] if failed.args and isinstance(failed.args[0], KafkaError) else failed
        return Unavailable(
            f'Kafka topic "{self._topic}" does not take rows', detail=f"Kafka says: {said}.", hint="It is tried again."
        )


def _packed(at: At) -> int:
    generation, epoch, part = at
    return (generation * _EPOCHS + epoch) * _PARTS + part


def _unpacked(number: int) -> At:
    rest, part = divmod(number, _PARTS)
    generation, epoch = divmod(rest, _EPOCHS)
    return generation, epoch, part
