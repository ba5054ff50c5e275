"""Which columns have bloom filters, and the bytes by which a filter knows a value: Parquet's plain encoding of it.

A column gets them by Iceberg's table property `write.parquet.bloom-filter-enabled.column.<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes, decimal_to_unscaled

from headwater.storage.layout import leaves
from headwater.storage.schemas import arrow_schema

ENABLED = "write.parquet.bloom-filter-enabled.column."
FALSE_POSITIVES = "write.parquet.bloom-filter-fpp.column."
DEFAULT_FALSE_POSITIVES = 0.01

Physical = tuple[str, int]
"""A Parquet type, and the length of its values if that is fixed by the schema, otherwise 0."""


def bloom_columns(schema: Schema, properties: Mapping[str, str]) -> dict[str, IcebergType]:
    """The paths and types of the columns that have filters."""
    names = [key.removeprefix(ENABLED) for key, value in properties.items() if key.startswith(ENABLED) and _on(value)]
    known = set(schema.column_names) if names else set()
    types = {name: schema.find_field(name).field_type for name in names if name in known}
    return {name: of for name, of in types.items() if physical(of) is not None}


def _on(value: str) -> bool:
    return value.lower() == "true"


def bloom_options(schema: Schema, properties: Mapping[str, str], rows: int) -> dict[str, dict[str, float]]:
    """What Arrow's writer takes, for row groups of up to `rows` rows; it shrinks a filter to the values it got."""
    columns = bloom_columns(schema, properties)
    return {
        leaf.path: {"ndv": rows, "fpp": _false_positives(properties.get(FALSE_POSITIVES + leaf.column))}
        for leaf in (leaves(arrow_schema(schema)) if columns else ())
        if leaf.column in columns
    }


def _false_positives(text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        return DEFAULT_FALSE_POSITIVES
    return value if 0 < value < 1 else DEFAULT_FALSE_POSITIVES


def physical(of: IcebergType) -> Physical | None:
    """How Headwater's writer stores a type; None for types that get no filter.

    Among those are floats: 0.0 and -0.0 are equal and hash differently, and not every engine asks for both.
    """
    match of:
        case IntegerType() | DateType():
            return "INT32", 0
        case LongType() | TimeType() | TimestampType() | TimestamptzType():
            return "INT64", 0
        case StringType() | BinaryType():
            return "BYTE_ARRAY", 0
        case UUIDType():
            return "FIXED_LEN_BYTE_ARRAY", 16
        case FixedType():
            return "FIXED_LEN_BYTE_ARRAY", len(of)
        case DecimalType() if of.precision > 18:
            return "FIXED_LEN_BYTE_ARRAY", decimal_required_bytes(of.precision)
        case DecimalType():
            return ("INT32" if of.precision <= 9 else "INT64"), 0
        case _:
            return None


def plain(value: Any, of: IcebergType) -> bytes:
    """A literal of a bound expression as Parquet stores it in a column that has a filter."""
    stored = physical(of)
    assert stored is not None
    kind, length = stored
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")  # such a string is in no file, and found in no filter
    number = decimal_to_unscaled(value) if isinstance(of, DecimalType) else value
    if isinstance(number, bytes):
        return number
    if kind == "FIXED_LEN_BYTE_ARRAY":
        return int(number).to_bytes(length, "big", signed=True)
    return int(number).to_bytes(4 if kind == "INT32" else 8, "little", signed=True)
