"""Which Parquet encoding a column gets: the one that its topic sets, or else one that fits a sample of its values.

A dictionary pays when values repeat. Where they do not, building one costs most of the write and gains nothing:
whole numbers and times are then stored as deltas (ordered ones shrink to almost nothing). Floats would shrink as split
bytes, but not every engine that reads Iceberg tables knows that encoding: a topic has to ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.storage.layout import Layout, Leaf, leaves

SAMPLE = 16_384
REPEATS = 8
"""How often a value must come back, on average, for a dictionary to pay."""

PARQUET_ENCODINGS: Mapping[str, str] = {
    "plain": "PLAIN",
    "delta": "DELTA_BINARY_PACKED",
    "byte_stream_split": "BYTE_STREAM_SPLIT",
    "delta_length": "DELTA_LENGTH_BYTE_ARRAY",
    "delta_strings": "DELTA_BYTE_ARRAY",
}
"""The encodings that the option `encoding_columns` knows, as Parquet names them."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Paths of Parquet columns with a dictionary, and the encodings of the others that do not take the plain one."""

    dictionary: tuple[str, ...]
    others: dict[str, str]


def choose_encodings(table: pa.Table, layout: Layout) -> Encodings:
    """Encodings for files that begin with the rows of `table`."""
    sample = table.slice(0, SAMPLE)
    encoded, switched = dict(layout.encoding_columns), dict(layout.dictionary_columns)
    dictionary: list[str] = []
    others: dict[str, str] = {}
    for leaf in leaves(sample.schema):
        if (encoding := leaf.setting(encoded)) is not None:
            others[leaf.path] = PARQUET_ENCODINGS[encoding]
        elif _with_dictionary(sample, leaf, leaf.setting(switched) or layout.dictionary):
            dictionary.append(leaf.path)
        elif (fitting := _without_dictionary(leaf.type)) is not None:
            others[leaf.path] = fitting
    return Encodings(tuple(dictionary), others)


def _with_dictionary(sample: pa.Table, leaf: Leaf, switch: str) -> bool:
    if pa.types.is_boolean(leaf.type) or switch != "auto":
        return switch == "on" and not pa.types.is_boolean(leaf.type)
    return leaf.path not in sample.schema.names or _repeats(sample.column(leaf.path))


def _repeats(column: pa.ChunkedArray) -> bool:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return bool(pc.count_distinct(column).as_py() * REPEATS <= len(column))


def _without_dictionary(of: pa.DataType) -> str | None:
    types = pa.types
    if types.is_integer(of) or types.is_temporal(of) or (types.is_decimal(of) and of.precision <= 18):
        return "DELTA_BINARY_PACKED"
    return None
