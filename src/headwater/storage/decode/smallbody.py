"""Small newline-delimited bodies, read by Python's own JSON scanner in place of Arrow's reader.

Arrow's reader hands even ten lines to another thread, and waking that costs several times what Python needs to read
them. What is read here becomes the columns that Arrow's reader would have made, and is converted as those are.

Nothing is judged here: a body that is not plainly good, because a record is bad or a good one is spelled in a rare way,
is left to Arrow's reader as a whole. So one thing has to hold: what is read here, Arrow's reader reads to the same
values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from types import NoneType
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StructType,
    TimestamptzType,
)

from headwater.storage.decode.columns import plan_rows
from headwater.storage.decode.leaves import small_leaf
from headwater.storage.decode.outcome import Unfit
from headwater.storage.decode.shapes import has_type, small_type

SMALL = 8 * 1024
"""Bodies up to this many bytes are read here: above it, Arrow's reader is the quicker one."""

Build = Callable[[Sequence[Any]], pa.Array]


class NotPlain(ValueError):
    """The body is left to Arrow's reader."""


class Literal(str):
    """A JSON number with a fraction or an exponent, as it is written."""

    __slots__ = ()


def _or_null(*kinds: type) -> frozenset[type]:
    return frozenset({*kinds, NoneType})


_OBJECTS, _ARRAYS, _TEXTS = _or_null(dict), _or_null(list), _or_null(str)
_BOOLEANS, _INTEGERS = _or_null(bool), _or_null(int)
_NUMBERS, _NUMBERS_AND_TEXTS = _or_null(int, Literal), _or_null(int, Literal, str)

_MINUS_ZERO = re.compile(r"-0(?![.0-9])")
_NEAR_FLOAT = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d\d?)?", re.ASCII)
_MOMENT = re.compile(r"(?!9999)[1-9]\d{3}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise NotPlain("a name appears twice")
    return result


def _constant(name: str) -> object:
    raise NotPlain(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=Literal, parse_constant=_constant)
_SCAN: Callable[[str, int], tuple[object, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


class SmallReader:
    """Reads bodies of one schema, which has no maps."""

    __slots__ = ("_build", "_has_floats", "_rows")

    def __init__(self, schema: Schema) -> None:
        self._build = _members(schema.fields)
        self._has_floats = has_type(schema.as_struct(), FloatType, DoubleType)
        fields = [pa.field(field.name, small_type(field.field_type)) for field in schema.fields]
        self._rows = plan_rows(fields, schema, small_leaf)

    def table(self, data: bytes) -> pa.Table | None:
        """The decoded records; None when Arrow's reader has to be asked."""
        try:
            text = data.decode()
            if self._has_floats and _MINUS_ZERO.search(text):  # as an integer it would lose its sign
                return None
            objects = _objects(text)
            return self._rows.table_of(self._build(objects), len(objects))
        except (ValueError, ArithmeticError, RecursionError, StopIteration, Unfit):
            return None


def _objects(text: str) -> list[Any]:
    """The objects that stand one on each line."""
    objects: list[Any] = []
    place, end = 0, len(text)
    while place < end:
        value, place = _SCAN(text, place)
        if text[place : place + 1] not in ("\n", ""):
            raise NotPlain("more on the line")
        objects.append(value)
        place += 1
    # Every object ends where a line does, so as many of them as lines means that none goes over several.
    if len(objects) != text.count("\n") + (text[-1:] != "\n") or set(map(type, objects)) != {dict}:
        raise NotPlain("not an object on each line")
    return objects


def _members(fields: Sequence[NestedField]) -> Callable[[Sequence[dict[str, Any]]], list[pa.Array]]:
    builds = tuple((field.name, _plan_build(field.field_type)) for field in fields)
    names = frozenset(name for name, _ in builds)

    def build(objects: Sequence[dict[str, Any]]) -> list[pa.Array]:
        if not all(map(names.issuperset, objects)):
            raise NotPlain("unknown field")
        return [build([each.get(name) for each in objects]) for name, build in builds]

    return build


def _plan_build(of: IcebergType) -> Build:
    """How the values of one type become the column that Arrow's reader makes of them; NotPlain if it may not."""
    match of:
        case StructType():
            return _structs(of)
        case ListType():
            return _lists(of)
        case BooleanType():
            return _plain(_BOOLEANS, pa.bool_())
        case IntegerType() | LongType():
            return _plain(_INTEGERS, small_type(of))
        case FloatType() | DoubleType():
            return _floats
        case DecimalType():
            return _decimals(of)
        case TimestamptzType():
            return _moments
    return _plain(_TEXTS, pa.string())


def _check_kinds(values: Sequence[object], kinds: frozenset[type]) -> None:
    if not kinds.issuperset(map(type, values)):
        raise NotPlain("a value of another kind")


def _plain(kinds: frozenset[type], of: pa.DataType) -> Build:
    def build(values: Sequence[object]) -> pa.Array:
        _check_kinds(values, kinds)
        return pa.array(values, of)

    return build


def _floats(values: Sequence[Any]) -> pa.Array:
    _check_kinds(values, _NUMBERS)
    for value in values:
        if type(value) is Literal and not _NEAR_FLOAT.fullmatch(value):  # Arrow's reader refuses 0e999
            raise NotPlain("a far exponent")
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _decimals(of: DecimalType) -> Build:
    """Only digits that surely fit: neither rounding nor a rescale is left to judge."""
    whole = of.precision - of.scale
    fraction = rf"(?:\.\d{{1,{of.scale}}})?" if of.scale else ""
    fits = re.compile((rf"-?\d{{1,{whole}}}" if whole else "-?0") + fraction, re.ASCII)
    limit, wanted = 10**whole, small_type(of)

    def exact(value: Any) -> Decimal | None:
        if value is None:
            return None
        if not (-limit < value < limit if type(value) is int else fits.fullmatch(value)):
            raise NotPlain("a decimal that may not fit")
        return Decimal(value)

    def build(values: Sequence[Any]) -> pa.Array:
        _check_kinds(values, _NUMBERS_AND_TEXTS)
        return pa.array([exact(value) for value in values], wanted)

    return build


def _moments(values: Sequence[Any]) -> pa.Array:
    _check_kinds(values, _TEXTS)
    return pa.array([None if value is None else _zoned(value) for value in values], pa.string()).cast(
        pa.timestamp("us", "UTC")
    )


def _zoned(value: str) -> str:
    if (match := _MOMENT.fullmatch(value)) is None:
        raise NotPlain("a rare form of timestamp")
    return value if match[1] else f"{value}Z"


def _structs(of: StructType) -> Build:
    members, wanted = _members(of.fields), small_type(of)
    empty: dict[str, Any] = {}

    def build(values: Sequence[Any]) -> pa.Array:
        _check_kinds(values, _OBJECTS)
        children = members([empty if value is None else value for value in values])
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=_nulls(values))

    return build


def _lists(of: ListType) -> Build:
    build_element, wanted = _plan_build(of.element_type), small_type(of)

    def build(values: Sequence[Any]) -> pa.Array:
        _check_kinds(values, _ARRAYS)
        offsets = accumulate((len(value or ()) for value in values), initial=0)
        elements = build_element(list(chain.from_iterable(filter(None, values))))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=wanted, mask=_nulls(values))

    return build


def _nulls(values: Sequence[object]) -> pa.Array | None:
    return pa.array([value is None for value in values]) if None in values else None
