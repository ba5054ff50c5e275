"""The Arrow shapes that a topic's Iceberg types take on the way in.

* the plain type is what decoding returns: `storage.schemas.arrow_type` without field metadata;
* the parse type is what Arrow's JSON reader is asked for. The reader is lenient or wrong for several types (it reads
  a zoned text into a zone-less timestamp, turns 1e39 into a float infinity, wraps decimals that are too large), so
  these are read as text or in a wider type and converted afterwards;
* the small type is what Python's reader of small bodies builds: the parse type, with decimals as they stay;
* the storage type is what `pa.array` can build from Python values (it cannot build a nested uuid).

All but the plain type are nullable throughout: `columns` checks required fields, because the JSON reader refuses a null
struct that has a required field.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimestampType,
    TimeType,
    UUIDType,
)

from headwater.storage.schemas import arrow_type

DECIMAL_DIGITS = 38
"""Most significant digits that a decimal's text may have. Together with a scale of at most 38 they fit 256 bits."""

_AS_TEXT = (DateType, TimeType, TimestampType, UUIDType, FixedType, BinaryType)


def type_name(of: IcebergType) -> str:
    """The type as messages name it."""
    match of:
        case DecimalType():
            return f"decimal({of.precision},{of.scale})"
        case FixedType():
            return f"fixed({len(of)})"
        case ListType():
            return "list"
        case MapType():
            return "map"
        case StructType():
            return "struct"
    return str(of)


def plain_type(of: IcebergType) -> pa.DataType:
    """The Arrow type of decoded values."""
    return _shape(of, arrow_type, nullable=False)


def plain_field(field: NestedField) -> pa.Field:
    """The Arrow field of a decoded column, without metadata."""
    return pa.field(field.name, plain_type(field.field_type), nullable=not field.required)


def parse_type(of: IcebergType) -> pa.DataType:
    """The Arrow type that the JSON reader is asked for."""
    return _shape(of, _parse_leaf, nullable=True)


def small_type(of: IcebergType) -> pa.DataType:
    """The Arrow type that the reader of small bodies builds."""
    return _shape(of, _small_leaf, nullable=True)


def storage_type(of: IcebergType) -> pa.DataType:
    """The Arrow type that is built from checked Python values."""
    return _shape(of, _storage_leaf, nullable=True)


def has_type(of: IcebergType, *kinds: type[IcebergType]) -> bool:
    """Whether a type is, or holds at any depth, one of `kinds`."""
    match of:
        case ListType():
            inner: tuple[IcebergType, ...] = (of.element_type,)
        case MapType():
            inner = (of.key_type, of.value_type)
        case StructType():
            inner = tuple(field.field_type for field in of.fields)
        case _:
            inner = ()
    return isinstance(of, kinds) or any(has_type(part, *kinds) for part in inner)


def _parse_leaf(of: IcebergType) -> pa.DataType:
    if isinstance(of, _AS_TEXT):
        return pa.string()
    if isinstance(of, DecimalType):
        return pa.decimal256(DECIMAL_DIGITS, of.scale)
    return pa.float64() if isinstance(of, FloatType) else arrow_type(of)


def _small_leaf(of: IcebergType) -> pa.DataType:
    return arrow_type(of) if isinstance(of, DecimalType) else _parse_leaf(of)


def _storage_leaf(of: IcebergType) -> pa.DataType:
    return pa.binary(16) if isinstance(of, UUIDType) else arrow_type(of)


def _shape(of: IcebergType, leaf: Callable[[IcebergType], pa.DataType], *, nullable: bool) -> pa.DataType:
    def field(name: str, inner: IcebergType, required: bool) -> pa.Field:
        return pa.field(name, _shape(inner, leaf, nullable=nullable), nullable=nullable or not required)

    match of:
        case ListType():
            return pa.list_(field("element", of.element_type, of.element_required))
        case MapType():
            key = pa.field("key", _shape(of.key_type, leaf, nullable=nullable), nullable=False)
            return pa.map_(key, field("value", of.value_type, of.value_required))
        case StructType():
            return pa.struct([field(part.name, part.field_type, part.required) for part in of.fields])
    return leaf(of)
