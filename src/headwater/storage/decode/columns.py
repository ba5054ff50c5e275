"""Turning a column of one Arrow type into the decoded type, nested ones included, all rows at once.

`plan_column` compares types once and refuses what can never fit; the function that it returns works on data. Required
fields are checked here for every source. Below a null struct, required fields are filled with zeros that nobody
reads, because Parquet writers refuse a null in a field that is declared non-null, even there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    FixedType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from headwater.storage.decode.check import MISSING, NULL
from headwater.storage.decode.leaves import Convert, Leaf
from headwater.storage.decode.outcome import Unfit
from headwater.storage.decode.shapes import plain_field, plain_type, type_name


def plan_column(source: pa.DataType, target: IcebergType, leaf: Leaf) -> Convert | None:
    """How columns of `source` become decoded ones of `target`; None when they are already; Unfit when they cannot."""
    if pa.types.is_dictionary(source):
        inner = plan_column(source.value_type, target, leaf)
        return lambda column: _apply(inner, column.dictionary_decode())
    if isinstance(source, pa.BaseExtensionType) and not source.equals(pa.uuid()):
        inner = plan_column(source.storage_type, target, leaf)
        return lambda column: _apply(inner, column.storage)
    if pa.types.is_null(source):
        return lambda column: null_column(len(column), target)
    match target:
        case StructType():
            return _plan_struct(source, target, leaf)
        case ListType():
            return _plan_list(source, target, leaf)
        case MapType():
            return _plan_map(source, target, leaf)
    return leaf(source, target)


def null_column(length: int, of: IcebergType) -> pa.Array:
    """A column of nulls."""
    if not isinstance(of, StructType):
        return pa.nulls(length, plain_type(of))
    children = [_absent(length, field) for field in of.fields]
    return pa.StructArray.from_arrays(
        children, fields=[plain_field(field) for field in of.fields], mask=pa.array(np.ones(length, bool))
    )


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a struct or of a row: where it is in the source (None: nowhere), and how it is converted."""

    field: NestedField
    index: int | None
    convert: Convert | None

    def column(self, source: Sequence[pa.Array], length: int, absent: pa.Array | None) -> pa.Array:
        """The decoded column; `absent` marks rows whose parent is null."""
        if self.index is None:
            return null_column(length, self.field.field_type)
        try:
            column = _apply(self.convert, source[self.index])
            return _required(column, self.field.field_type, absent) if self.field.required else column
        except Unfit as unfit:
            raise unfit.within(self.field.name) from None
        except pa.ArrowInvalid as error:
            raise Unfit(str(error), self.field.name) from None


def plan_members(source: Sequence[pa.Field], fields: Sequence[NestedField], leaf: Leaf) -> tuple[Member, ...]:
    """The fields matched by name: unknown, repeated and missing required ones are Unfit."""
    places: dict[str, int] = {}
    names = {field.name for field in fields}
    for index, given in enumerate(source):
        if given.name not in names:
            raise Unfit("unknown field", given.name)
        if given.name in places:
            raise Unfit("field appears more than once", given.name)
        places[given.name] = index
    return tuple(_plan_member(source, places.get(field.name), field, leaf) for field in fields)


def _plan_member(source: Sequence[pa.Field], index: int | None, field: NestedField, leaf: Leaf) -> Member:
    try:
        if index is not None:
            return Member(field, index, plan_column(source[index].type, field.field_type, leaf))
        if field.required:
            raise Unfit(MISSING)
    except Unfit as unfit:
        raise unfit.within(field.name) from None
    return Member(field, None, None)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How record batches of one Arrow schema become decoded tables."""

    members: tuple[Member, ...]
    schema: pa.Schema

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        """The decoded batch, or Unfit."""
        return self.table_of(batch.columns, batch.num_rows)

    def table_of(self, given: Sequence[pa.Array], rows: int) -> pa.Table:
        """The decoded columns, or Unfit."""
        columns = [member.column(given, rows, None) for member in self.members]
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, schema=self.schema)])


def plan_rows(source: Sequence[pa.Field], target: Schema, leaf: Leaf) -> RowPlan:
    """The plan from a source's fields to a topic's columns."""
    schema = pa.schema([plain_field(field) for field in target.fields])
    return RowPlan(plan_members(source, target.fields, leaf), schema)


def _apply(convert: Convert | None, column: pa.Array) -> pa.Array:
    return column if convert is None else convert(column)


def _plan_struct(source: pa.DataType, target: StructType, leaf: Leaf) -> Convert | None:
    if not pa.types.is_struct(source):
        raise _mismatch(source, target)
    members = plan_members(list(source), target.fields, leaf)
    settled = all(member.convert is None and not member.field.required for member in members)
    if settled and source.equals(plain_type(target)):
        return None
    fields = [plain_field(field) for field in target.fields]

    def convert(column: pa.Array) -> pa.Array:
        absent = column.is_null() if column.null_count else None
        # flatten() carries the parent's nulls into the children, so that what lies below a null is never judged.
        inner = column.flatten()
        children = [member.column(inner, len(column), absent) for member in members]
        return pa.StructArray.from_arrays(children, fields=fields, mask=absent)

    return convert


def _plan_list(source: pa.DataType, target: ListType, leaf: Leaf) -> Convert | None:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(kind(source) for kind in kinds):
        raise _mismatch(source, target)
    element = _plan_inner(source.value_type, target.element_type, leaf)
    wanted = plain_type(target)
    if element is None and not target.element_required and source.equals(wanted):
        return None

    def convert(column: pa.Array) -> pa.Array:
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        # flatten() cannot make an empty array of a type that holds UUIDs, so it is not asked to.
        flat = column.flatten() if pc.sum(lengths).as_py() else column.values.slice(0, 0)
        values = _inner(element, flat, target.element_type, target.element_required)
        return pa.ListArray.from_arrays(_offsets(lengths), values, type=wanted, mask=_nulls(column))

    return convert


def _plan_map(source: pa.DataType, target: MapType, leaf: Leaf) -> Convert | None:
    if not pa.types.is_map(source):
        raise _mismatch(source, target)
    key = _plan_inner(source.key_type, target.key_type, leaf)
    value = _plan_inner(source.item_type, target.value_type, leaf)
    wanted = plain_type(target)

    def convert(column: pa.Array) -> pa.Array:
        # take() copies into fresh children: no slice, and nothing below nulls.
        column = column.take(pa.array(np.arange(len(column))))
        start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
        keys = _inner(key, column.keys.slice(start, stop - start), target.key_type, True)
        items = _inner(value, column.items.slice(start, stop - start), target.value_type, target.value_required)
        lengths = np.diff(column.offsets.to_numpy())
        _distinct(keys, lengths)
        return pa.MapArray.from_arrays(_offsets(pa.array(lengths)), keys, items, type=wanted, mask=_nulls(column))

    return convert


def _plan_inner(source: pa.DataType, target: IcebergType, leaf: Leaf) -> Convert | None:
    try:
        return plan_column(source, target, leaf)
    except Unfit as unfit:
        raise unfit.within("[]") from None


def _inner(convert: Convert | None, column: pa.Array, of: IcebergType, required: bool) -> pa.Array:
    try:
        result = _apply(convert, column)
        return _required(result, of, None) if required else result
    except Unfit as unfit:
        raise unfit.within("[]") from None


def _required(column: pa.Array, of: IcebergType, absent: pa.Array | None) -> pa.Array:
    """The column without nulls: those below a null parent become zeros, any other is Unfit."""
    if not column.null_count:
        return column
    empty = column.is_null()
    if absent is None or pc.any(pc.and_(empty, pc.invert(absent))).as_py():
        raise Unfit(NULL)
    places = np.where(empty.to_numpy(zero_copy_only=False), len(column), np.arange(len(column)))
    return pa.concat_arrays([column, _zero(of)]).take(pa.array(places))


def _absent(length: int, field: NestedField) -> pa.Array:
    if not field.required:
        return null_column(length, field.field_type)
    return _zero(field.field_type).take(pa.array(np.zeros(length, np.int64)))


def _zero(of: IcebergType) -> pa.Array:
    """One value of a type, for places that nobody reads."""
    wanted = plain_type(of)
    match of:
        case StructType():
            fields = [plain_field(field) for field in of.fields]
            return pa.StructArray.from_arrays([_absent(1, field) for field in of.fields], fields=fields)
        case ListType():
            return pa.ListArray.from_arrays(_offsets(pa.array([0])), pa.nulls(0, wanted.value_type), type=wanted)
        case MapType():
            keys, items = pa.nulls(0, wanted.key_type), pa.nulls(0, wanted.item_type)
            return pa.MapArray.from_arrays(_offsets(pa.array([0])), keys, items, type=wanted)
        case StringType() | BinaryType():
            return pa.array([b""], pa.binary()).cast(wanted)
        case UUIDType() | FixedType():
            return pa.array([bytes(16 if isinstance(of, UUIDType) else len(of))], wanted)
        case BooleanType():
            return pa.array([False])
    width = wanted.bit_width // 8
    return pa.Array.from_buffers(wanted, 1, [None, pa.py_buffer(bytes(width))])


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
    return pa.array(np.concatenate([np.zeros(1, np.int64), ends])).cast(pa.int32())


def _nulls(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _distinct(keys: pa.Array, lengths: np.ndarray) -> None:
    if pa.types.is_nested(keys.type):
        return
    plain = keys.storage if isinstance(keys, pa.ExtensionArray) else keys
    rows = pa.array(np.repeat(np.arange(len(lengths)), lengths))
    if pa.table({"row": rows, "key": plain}).group_by(["row", "key"]).aggregate([]).num_rows != len(keys):
        raise Unfit("key appears more than once")


def _mismatch(source: pa.DataType, target: IcebergType) -> Unfit:
    return Unfit(f"expected {type_name(target)}, got Arrow type {source}")
