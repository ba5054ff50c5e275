"""Columns that records have and their topic has not: found, typed by their values, in the order of first appearance.

For topics with `evolution = 'merge'`, when a request does not fit. A field whose values say nothing (nulls, empty
lists, empty objects) has no type and is passed over. Whole numbers and others together are DOUBLE; any other mixture
has no type that holds all of it, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.storage.decode.check import loads
from headwater.storage.decode.csvbody import cells_of
from headwater.storage.decode.json_records import lines_of
from headwater.storage.decode.lines import body_lines
from headwater.storage.decode.outcome import Unfit
from headwater.storage.decode.scalars import Number
from headwater.storage.decode.tables import frame_records, frame_table, has_object_columns
from headwater.types import SYSTEM_COLUMNS

Path = tuple[str, ...]

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})\Z")
_REAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")


@dataclass(slots=True)
class Kind:
    """What is known of a field's type: a primitive one, or what is inside; nothing yet if it has only been null."""

    of: IcebergType | None = None
    element: Kind | None = None
    fields: dict[str, Kind] | None = None
    conflict: bool = False

    def see(self, other: Kind) -> None:
        """Take into account what another value says."""
        if other.conflict or self._contradicts(other):
            self.conflict = True
        if other.of is not None:
            self.of = other.of if self.of is None else _wider(self.of, other.of)
        if other.element is not None:
            self.element = self.element or Kind()
            self.element.see(other.element)
        if other.fields is not None:
            self.fields = {} if self.fields is None else self.fields
            for name, kind in other.fields.items():
                self.fields.setdefault(name, Kind()).see(kind)

    def _contradicts(self, other: Kind) -> bool:
        if self.of is not None and other.of is not None:
            return _wider(self.of, other.of) is None
        shapes = [
            {place for place, part in enumerate((each.of, each.element, each.fields)) if part is not None}
            for each in (self, other)
        ]
        return all(shapes) and shapes[0] != shapes[1]

    def type(self) -> IcebergType | None:
        """The type that holds all values which were seen; None if they said nothing, Unfit if there is none."""
        if self.conflict:
            raise Unfit("values are of several types")
        if self.of is not None:
            return self.of
        if self.element is not None:
            inner = self.element.type()
            return None if inner is None else ListType(0, inner, element_required=False)
        found = [(name, kind.type()) for name, kind in (self.fields or {}).items()]
        inside = [NestedField(0, name, of, required=False) for name, of in found if of is not None]
        return StructType(*inside) if inside else None


def _wider(one: IcebergType, other: IcebergType) -> IcebergType | None:
    if one == other:
        return one
    return DoubleType() if {type(one), type(other)} == {LongType, DoubleType} else None


@dataclass(slots=True)
class Unknown:
    """Fields that are not in the schema, by their paths, in the order in which they came."""

    kinds: dict[Path, Kind] = field(default_factory=dict)

    def see(self, path: Path, kind: Kind) -> None:
        self.kinds.setdefault(path, Kind()).see(kind)

    def see_text(self, path: Path, kind: Kind) -> None:
        """The same for cells, which are texts whatever else they are."""
        known = self.kinds.setdefault(path, Kind())
        if known.of is not None and kind.of is not None and _wider(known.of, kind.of) is None:
            known.of = StringType()
        else:
            known.see(kind)

    def records(self, records: Iterable[object], schema: Schema) -> None:
        for record in records:
            self._inside(record, schema.as_struct(), ())

    def _inside(self, value: object, of: IcebergType, at: Path) -> None:
        match of:
            case StructType() if isinstance(value, Mapping):
                known = {each.name: each.field_type for each in of.fields}
                for name, item in value.items():
                    if name in known:
                        self._inside(item, known[name], (*at, name))
                    elif name not in SYSTEM_COLUMNS:
                        self.see((*at, str(name)), kind_of(item))
            case ListType() if isinstance(value, list | tuple):
                for item in value:
                    self._inside(item, of.element_type, (*at, "element"))
            case MapType() if isinstance(value, Mapping):
                for item in value.values():
                    self._inside(item, of.value_type, (*at, "value"))


def kind_of(value: object) -> Kind:
    """What one value says about its field's type."""
    match value:
        case None:
            return Kind()
        case bool() | np.bool_():
            return Kind(BooleanType())
        case int() | np.integer():
            return Kind(LongType()) if -(2**63) <= value < 2**63 else Kind(conflict=True)
        case Number() | float() | np.floating():
            return Kind(DoubleType())
        case str():
            return Kind(StringType())
        case datetime():
            return Kind(TimestamptzType() if value.tzinfo else TimestampType())
        case date():
            return Kind(DateType())
        case time():
            return Kind(TimeType())
        case UUID():
            return Kind(UUIDType())
        case bytes() | bytearray() | memoryview():
            return Kind(BinaryType())
        case Mapping():
            return Kind(fields={str(name): kind_of(item) for name, item in value.items()})
        case list() | tuple() | np.ndarray():
            element = Kind()
            for item in cast(Iterable[object], value):
                element.see(kind_of(item))
            return Kind(element=element)
        case Decimal() | _:
            return Kind(conflict=True)  # a decimal does not say how many digits its column needs


def find_unknown(schema: Schema, block: Any, format: str, found: Unknown) -> None:
    """Add the fields of one block in one of the accepted forms; what cannot be read is left to the decoder."""
    match format:
        case "ndjson" | "json":
            found.records(_values(lines_of(block) if format == "json" else block), schema)
        case "rows":
            found.records(block, schema)
        case "csv":
            _csv(schema, block, found)
        case "pandas" if has_object_columns(block):
            found.records(frame_records(block, schema), schema)
        case _:
            _table(schema, frame_table(block) if format == "pandas" else block, found)


def _values(body: bytes) -> Iterator[object]:
    for lines in body_lines(body):
        for row in range(len(lines)):
            try:
                yield loads(lines[row])
            except Unfit:
                continue


def _csv(schema: Schema, body: bytes, found: Unknown) -> None:
    known = {each.name for each in schema.fields}
    names, cells = cells_of(body)
    for name in dict.fromkeys(names):
        if name not in known and name not in SYSTEM_COLUMNS and names.count(name) == 1:
            found.see_text((name,), _text_kind(cells.column(name).drop_null().to_pylist()))


def _text_kind(cells: Iterable[bytes]) -> Kind:
    """The type of which all texts are, or STRING: numbers with leading zeros are texts."""
    texts = {cell.decode("utf-8", "replace") for cell in cells}
    if not texts:
        return Kind()
    if all(text.lower() in ("true", "false") for text in texts):
        return Kind(BooleanType())
    if all(_WHOLE.match(text) and -(2**63) <= int(text) < 2**63 for text in texts):
        return Kind(LongType())
    return Kind(DoubleType()) if all(_REAL.match(text) for text in texts) else Kind(StringType())


def _table(schema: Schema, table: pa.Table | pa.RecordBatch, found: Unknown) -> None:
    try:
        table.validate(full=True)  # before its nulls are counted: it may point outside of its buffers
    except (pa.ArrowInvalid, ValueError):
        return
    told = [each for place, each in enumerate(table.schema) if table.column(place).null_count < table.num_rows]
    _arrow_struct(told, schema.as_struct(), (), found)


def _arrow_struct(fields: Iterable[pa.Field], of: IcebergType, at: Path, found: Unknown) -> None:
    """Fields of an Arrow struct that the schema's struct lacks, and those inside of fields that it has."""
    if not isinstance(of, StructType):
        return
    known = {each.name: each.field_type for each in of.fields}
    for each in fields:
        if each.name not in known:
            if each.name not in SYSTEM_COLUMNS:
                found.see((*at, each.name), _arrow_kind(each.type))
        else:
            _arrow_inside(each.type, known[each.name], (*at, each.name), found)


def _arrow_inside(given: pa.DataType, of: IcebergType, at: Path, found: Unknown) -> None:
    if pa.types.is_struct(given):
        _arrow_struct(given, of, at, found)
    elif isinstance(of, ListType) and (pa.types.is_list(given) or pa.types.is_large_list(given)):
        _arrow_inside(given.value_type, of.element_type, (*at, "element"), found)
    elif isinstance(of, MapType) and pa.types.is_map(given):
        _arrow_inside(given.item_type, of.value_type, (*at, "value"), found)


_ARROW: tuple[tuple[Any, IcebergType], ...] = (
    (pa.types.is_boolean, BooleanType()),
    (lambda of: pa.types.is_signed_integer(of) and of.bit_width <= 32, IntegerType()),
    (lambda of: pa.types.is_unsigned_integer(of) and of.bit_width <= 16, IntegerType()),
    (lambda of: pa.types.is_integer(of) and of != pa.uint64(), LongType()),
    (lambda of: of in (pa.float16(), pa.float32()), FloatType()),
    (pa.types.is_float64, DoubleType()),
    (lambda of: pa.types.is_string(of) or pa.types.is_large_string(of) or of == pa.string_view(), StringType()),
    (lambda of: pa.types.is_binary(of) or pa.types.is_large_binary(of), BinaryType()),
    (pa.types.is_date, DateType()),
    (pa.types.is_time, TimeType()),
    (lambda of: pa.types.is_timestamp(of) and of.tz is not None, TimestamptzType()),
    (pa.types.is_timestamp, TimestampType()),
    (lambda of: of == pa.uuid(), UUIDType()),
)


def _arrow_kind(of: pa.DataType) -> Kind:
    if pa.types.is_null(of):
        return Kind()
    if pa.types.is_dictionary(of):
        return _arrow_kind(of.value_type)
    if pa.types.is_decimal(of) and of.precision <= 38 and 0 <= of.scale <= of.precision:
        return Kind(DecimalType(of.precision, of.scale))
    if pa.types.is_fixed_size_binary(of):
        return Kind(FixedType(of.byte_width))
    if pa.types.is_struct(of):
        return Kind(fields={each.name: _arrow_kind(each.type) for each in of})
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return Kind(element=_arrow_kind(of.value_type))
    return next((Kind(kind) for test, kind in _ARROW if test(of)), Kind(conflict=True))


def says_nothing(value: object) -> bool:
    """Whether a value tells no type: a null, or nothing but nulls inside."""
    if isinstance(value, Mapping):
        return all(map(says_nothing, value.values()))
    return value is None or (isinstance(value, list | tuple) and all(map(says_nothing, value)))


def without_nothing(value: object, of: IcebergType) -> object:
    """The record without unknown fields that say nothing, at any depth; those that say something stay, and are told."""
    match of:
        case StructType() if type(value) is dict:
            known = {each.name: each.field_type for each in of.fields}
            return {
                name: without_nothing(item, known[name]) if name in known else item
                for name, item in value.items()
                if name in known or not says_nothing(item)
            }
        case ListType() if isinstance(value, list | tuple):
            return [without_nothing(item, of.element_type) for item in value]
        case MapType() if type(value) is dict:
            return {key: without_nothing(item, of.value_type) for key, item in value.items()}
    return value
