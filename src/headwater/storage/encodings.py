"""Which Parquet encoding a column gets, from a sample of its values.

A dictionary pays when values repeat. Where they do not, building one costs most of the write and gains nothing:
whole numbers and times are then stored as deltas (ordered ones shrink to almost nothing), floats as split bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

SAMPLE = 16_384
REPEATS = 8
"""How often a value must come back, on average, for a dictionary to pay."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Paths of Parquet columns with a dictionary, and the encodings of the others that do not take the plain one."""

    dictionary: tuple[str, ...]
    others: dict[str, str]


def choose_encodings(table: pa.Table) -> Encodings:
    """Encodings for files that begin with the rows of `table`."""
    sample = table.slice(0, SAMPLE)
    dictionary: list[str] = []
    others: dict[str, str] = {}
    for name in sample.schema.names:
        column = sample.column(name)
        if pa.types.is_nested(column.type):
            dictionary += leaf_paths(name, column.type)
        elif not pa.types.is_boolean(column.type) and _repeats(column):
            dictionary.append(name)
        elif (encoding := _without_dictionary(column.type)) is not None:
            others[name] = encoding
    return Encodings(tuple(dictionary), others)


def _repeats(column: pa.ChunkedArray) -> bool:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return bool(pc.count_distinct(column).as_py() * REPEATS <= len(column))


def _without_dictionary(of: pa.DataType) -> str | None:
    types = pa.types
    if types.is_integer(of) or types.is_temporal(of) or (types.is_decimal(of) and of.precision <= 18):
        return "DELTA_BINARY_PACKED"
    if types.is_floating(of):
        return "BYTE_STREAM_SPLIT"
    return None


def leaf_paths(path: str, of: pa.DataType) -> Iterator[str]:
    """The Parquet paths of the leaves below a column."""
    if pa.types.is_struct(of):
        for field in of:
            yield from leaf_paths(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(of):
        yield from leaf_paths(f"{path}.list.element", of.value_type)
    elif pa.types.is_map(of):
        yield from leaf_paths(f"{path}.key_value.key", of.key_type)
        yield from leaf_paths(f"{path}.key_value.value", of.item_type)
    else:
        yield path
