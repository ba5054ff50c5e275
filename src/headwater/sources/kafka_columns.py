"""The columns of a stream that take parts of the message other than its value: key, headers, time, partition, offset.

* A key is text or bytes; a message without one has a null.
* Headers are a map; of headers with one name the last is kept, and a message without headers has an empty map.
* The time is the one that the message carries: the producer's, or the broker's if the Kafka topic says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headwater.errors import InvalidOption
from headwater.sources.kafka_formats import bytes_column
from headwater.storage.decode.check import NULL
from headwater.storage.decode.outcome import Unfit
from headwater.storage.decode.shapes import plain_type
from headwater.types import StreamDefinition

FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000, 253_402_300_799_999
"""The milliseconds of the years 0001 to 9999."""


class Message(Protocol):
    """What is read of a Kafka message."""

    def value(self) -> bytes | None: ...
    def key(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...


Messages = Sequence[Message]
Misfits = dict[int, Unfit]
"""The rows that do not fit, each with the reason."""


@dataclass(frozen=True, slots=True)
class MessageColumn:
    """A column and the part of messages that it takes."""

    field: NestedField
    read: Callable[[Messages, NestedField], tuple[pa.Array, Misfits]]


def message_columns(stream: StreamDefinition, columns: Schema) -> tuple[MessageColumn, ...]:
    """The columns among `columns` that the stream's options name; InvalidOption if one cannot take its part."""
    return tuple(_planned(stream, columns))


def _planned(stream: StreamDefinition, columns: Schema) -> Iterator[MessageColumn]:
    fields = {field.name: field for field in columns.fields}
    taken: dict[str, str] = {}
    for option, (types, read) in _PARTS.items():
        if not (name := getattr(stream.options, option)):
            continue
        if name not in fields:
            raise _refused(stream, option, f'It has no column "{name}".')
        if name in taken:
            raise _refused(stream, option, f'Its column "{name}" is taken by {taken[name]} already.')
        if not _fits(fields[name].field_type, types):
            raise _refused(stream, option, f'Its column "{name}" has type {fields[name].field_type}.')
        taken[name] = option
        yield MessageColumn(fields[name], read)


def _fits(of: IcebergType, types: tuple[type[IcebergType], ...]) -> bool:
    if isinstance(of, MapType):
        return MapType in types and _fits(of.key_type, (StringType,)) and _fits(of.value_type, (StringType, BinaryType))
    return isinstance(of, types)


def _refused(stream: StreamDefinition, option: str, detail: str) -> InvalidOption:
    types = {
        "key_field": "STRING or BINARY",
        "headers_field": "MAP<STRING, STRING> or MAP<STRING, BINARY>",
        "record_time_field": "TIMESTAMP",
        "partition_field": "INT or BIGINT",
        "offset_field": "BIGINT",
    }
    return InvalidOption(
        f'stream "{stream.name}" cannot have the option {option}',
        detail=detail,
        hint=f"It names a column of type {types[option]}.",
    )


# -- parts ------------------------------------------------------------------------------------------------------


def _keys(messages: Messages, field: NestedField) -> tuple[pa.Array, Misfits]:
    return bytes_column([message.key() for message in messages], field)


def _headers(messages: Messages, field: NestedField) -> tuple[pa.Array, Misfits]:
    assert isinstance(field.field_type, MapType)
    maps: list[list[tuple[str, object]]] = []
    misfits: Misfits = {}
    for row, message in enumerate(messages):
        try:
            maps.append(_header_map(message.headers() or [], field.field_type))
        except Unfit as unfit:
            misfits[row] = unfit.within(field.name)
            maps.append([])
        except UnicodeDecodeError:  # raised by the client, for which names are text
            misfits[row] = Unfit("the name of a header is not valid UTF-8", field.name)
            maps.append([])
    return pa.array(maps, plain_type(field.field_type)), misfits


def _header_map(headers: Sequence[tuple[str, bytes | None]], of: MapType) -> list[tuple[str, object]]:
    return [(name, _header(name, value, of)) for name, value in dict(headers).items()]


def _header(name: str, value: bytes | None, of: MapType) -> object:
    if value is None:
        if of.value_required:
            raise Unfit(NULL, name)
        return None
    if isinstance(of.value_type, BinaryType):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unfit("not valid UTF-8", name) from None


def _times(messages: Messages, field: NestedField) -> tuple[pa.Array, Misfits]:
    moments: list[int | None] = []
    misfits: Misfits = {}
    for row, message in enumerate(messages):
        kind, at = message.timestamp()
        moment = at if kind and FIRST_MOMENT <= at <= LAST_MOMENT else None
        moments.append(moment)
        if kind and moment is None:
            misfits[row] = Unfit(f"{at} milliseconds are outside of the years 0001 to 9999", field.name)
        elif moment is None and field.required:
            misfits[row] = Unfit(NULL, field.name)
    target = plain_type(field.field_type)
    return pa.array(moments, pa.timestamp("ms", target.tz)).cast(target), misfits


def _partitions(messages: Messages, field: NestedField) -> tuple[pa.Array, Misfits]:
    return _numbers([message.partition() for message in messages], field)


def _offsets(messages: Messages, field: NestedField) -> tuple[pa.Array, Misfits]:
    return _numbers([message.offset() for message in messages], field)


def _numbers(numbers: list[int], field: NestedField) -> tuple[pa.Array, Misfits]:
    return pa.array(np.array(numbers, np.int64)).cast(plain_type(field.field_type)), {}


_PARTS: dict[str, tuple[tuple[type[IcebergType], ...], Callable[[Messages, NestedField], tuple[pa.Array, Misfits]]]] = {
    "key_field": ((StringType, BinaryType), _keys),
    "headers_field": ((MapType,), _headers),
    "record_time_field": ((TimestampType, TimestamptzType), _times),
    "partition_field": ((IntegerType, LongType), _partitions),
    "offset_field": ((LongType,), _offsets),
}
