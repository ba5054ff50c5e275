"""Reading entries of the Kafka log, in the process that has its index and in workers that have nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import Corrupt
from headwater.topics.log import Entry
from headwater.topics.log_kafka_changes import place_of
from headwater.topics.log_kafka_journal import MESSAGE_BYTES, messages, new_consumer
from headwater.topics.log_kafka_place import KafkaPlace

if TYPE_CHECKING:
    from confluent_kafka import Consumer

HINT = "Do not write to the log's topic in Kafka, and do not trim the log."
GAP = 8
"""Messages that are read and thrown away rather than sought over."""


@dataclass(frozen=True, slots=True)
class KafkaReader:
    """Reads some entries. `stored`: the schema's id and the checksum of each."""

    place: KafkaPlace
    stored: Mapping[int, tuple[int, int]] = field(repr=False)
    schemas: Mapping[int, pa.Schema] = field(repr=False)

    def read(self, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        with closing(new_consumer(self.place)) as consumer:
            yield from self.read_by(consumer, entries)

    def read_by(self, consumer: Consumer, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        for run in runs(entries):
            for entry, payload in zip(run, self._payloads(consumer, run), strict=True):
                if entry.id not in self.stored:
                    raise Corrupt(f"log entry {entry.id} is missing", hint=HINT)
                schema, checksum = self.stored[entry.id]
                yield _batch(entry, payload, self.schemas[schema], checksum)

    def _payloads(self, consumer: Consumer, run: Sequence[Entry]) -> Iterator[bytes]:
        first, end = place_of(run[0].id)[0], _end(run[-1])
        with closing(messages(self.place, consumer, first, end)) as stream:
            at, value = -1, b""
            for entry in run:
                message, start = place_of(entry.id)
                pieces, size = [], entry.bytes
                while size:
                    while at < message:
                        if (found := next(stream, None)) is None:
                            raise Corrupt(f"log entry {entry.id} is cut short", hint=HINT)
                        at, value = int(found.offset() or 0), found.value() or b""
                    pieces.append(value[start : start + size])
                    size -= len(pieces[-1])
                    message, start = message + 1, 0
                yield b"".join(pieces)


def _end(entry: Entry) -> int:
    """The message after the last that holds a part of the entry."""
    message, start = place_of(entry.id)
    return message + max(1, -(-(start + entry.bytes) // MESSAGE_BYTES))


def runs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """The entries, which are in order, in runs that are worth reading through."""
    run: list[Entry] = []
    for entry in entries:
        if run and place_of(entry.id)[0] - _end(run[-1]) > GAP:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _batch(entry: Entry, payload: bytes, schema: pa.Schema, checksum: int) -> pa.RecordBatch:
    if zlib.crc32(payload) != checksum:
        raise Corrupt(f"log entry {entry.id} is damaged", detail="Its checksum does not match.", hint=HINT)
    return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
