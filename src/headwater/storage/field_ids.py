"""Rows of an older file in the columns that the table has now, matched by field id as Iceberg says.

A column may have been renamed, moved, widened, added or dropped since the file was written, at any depth. A file
without field ids, as other tools write and import them, is matched by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.errors import Corrupt
from headwater.storage.schemas import FIELD_ID, arrow_field

Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class FileReading:
    """Which top-level columns of a file to read, and how they become those of the table."""

    columns: tuple[str, ...]
    schema: pa.Schema
    makers: tuple[Callable[[pa.RecordBatch], pa.Array], ...]

    def batch(self, read: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that has `columns`, in the table's schema."""
        return pa.RecordBatch.from_arrays([make(read) for make in self.makers], schema=self.schema)


def plan_reading(stored: pa.Schema, wanted: Schema, file: str) -> FileReading:
    """How to read a file with the Arrow schema `stored` as rows of `wanted`; Corrupt if it cannot hold such rows."""
    by_id = any(_has_id(each) for each in stored)
    found = _by_key(stored, by_id)
    fields = [arrow_field(each) for each in wanted.fields]
    sources = [found.get(_key(field, by_id)) for field in fields]
    makers = [
        _missing_column(each, file) if source is None else _column(source.name, _converter(source, field, by_id, file))
        for each, field, source in zip(wanted.fields, fields, sources, strict=True)
    ]
    columns = tuple(source.name for source in sources if source is not None)
    # A file may lack all columns; its rows are counted by any that it has.
    return FileReading(columns or tuple(stored.names[:1]), pa.schema(fields), tuple(makers))


def _has_id(field: pa.Field) -> bool:
    return field.metadata is not None and FIELD_ID in field.metadata


def _key(field: pa.Field, by_id: bool) -> Any:
    return int(field.metadata[FIELD_ID]) if by_id else field.name


def _by_key(fields: Iterable[pa.Field], by_id: bool) -> Mapping[Any, pa.Field]:
    return {_key(field, by_id): field for field in fields if not by_id or _has_id(field)}


def _column(name: str, convert: Convert) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: convert(batch.column(name))


def _missing_column(field: NestedField, file: str) -> Callable[[pa.RecordBatch], pa.Array]:
    fill = _filler(arrow_field(field), field.initial_default, file)
    return lambda batch: fill(batch.num_rows)


def _filler(field: pa.Field, default: Any, file: str) -> Callable[[int], pa.Array]:
    """Values of a field that came after the file was written."""
    if default is None and not field.nullable:
        raise Corrupt(
            f'data file "{file}" lacks column "{field.name}"',
            detail="The column is NOT NULL, and no default is known for older rows.",
        )
    if default is None:
        return lambda length: pa.nulls(length, field.type)
    value = pa.scalar(default, field.type)
    return lambda length: pa.repeat(value, length)


def _converter(source: pa.Field, target: pa.Field, by_id: bool, file: str) -> Convert:
    """How values of a stored field become those of the table's field."""
    old, new = source.type, target.type
    if old == new and source.equals(target, check_metadata=True):
        return lambda values: values
    types = pa.types
    if types.is_struct(new) and types.is_struct(old):
        return _struct(old, new, by_id, file)
    if types.is_list(new) and (types.is_list(old) or types.is_large_list(old)):
        return _list(old, new, by_id, file)
    if types.is_map(new) and types.is_map(old):
        return _map(old, new, by_id, file)
    return _leaf(new)


def _leaf(new: pa.DataType) -> Convert:
    def convert(values: pa.Array) -> pa.Array:
        if values.type == new:
            return values
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        if isinstance(new, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(new, values.cast(new.storage_type))
        return values.cast(new)

    return convert


def _struct(old: pa.StructType, new: pa.StructType, by_id: bool, file: str) -> Convert:
    found = _by_key(old, by_id)
    parts: list[Callable[[pa.StructArray], pa.Array]] = []
    for field in new:
        source = found.get(_key(field, by_id))
        parts.append(
            _missing_field(field, file)
            if source is None
            else _field(old.get_field_index(source.name), _converter(source, field, by_id, file))
        )
    fields = list(new)

    def convert(values: pa.StructArray) -> pa.Array:
        made = [part(values) for part in parts]
        if not values.null_count:
            return pa.StructArray.from_arrays(made, fields=fields)
        absent = values.is_null()
        made = [each if field.nullable else _with_any(each, absent) for field, each in zip(fields, made, strict=True)]
        return pa.StructArray.from_arrays(made, fields=fields, mask=absent)

    return convert


def _with_any(values: pa.Array, absent: pa.Array) -> pa.Array:
    """The values of a field that became required: below absent structs some that nobody reads, because Arrow's writer
    wants no null there either."""
    there = pc.any(pc.and_(values.is_null(), pc.invert(absent))).as_py()
    return values if there else _without_nulls(values)


def _without_nulls(values: pa.Array) -> pa.Array:
    """The same values, where nulls are whatever their places happen to hold."""
    of, length, offset = values.type, len(values), values.offset
    if not values.null_count:
        return values
    if isinstance(of, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(of, _without_nulls(values.storage))
    if pa.types.is_struct(of):
        return pa.StructArray.from_arrays([values.field(index) for index in range(of.num_fields)], fields=list(of))
    if pa.types.is_list(of):
        return pa.Array.from_buffers(of, length, [None, values.buffers()[1]], 0, offset, [values.values])
    if pa.types.is_map(of):
        entries = pa.StructArray.from_arrays([values.keys, values.items], fields=[of.key_field, of.item_field])
        return pa.Array.from_buffers(of, length, [None, values.buffers()[1]], 0, offset, [entries])
    return pa.Array.from_buffers(of, length, [None, *values.buffers()[1:]], 0, offset)


def _field(index: int, convert: Convert) -> Callable[[pa.StructArray], pa.Array]:
    return lambda values: convert(values.field(index))


def _missing_field(field: pa.Field, file: str) -> Callable[[pa.StructArray], pa.Array]:
    fill = _filler(field, None, file)
    return lambda values: fill(len(values))


def _list(old: pa.DataType, new: pa.ListType, by_id: bool, file: str) -> Convert:
    element = _converter(old.value_field, new.value_field, by_id, file)

    def convert(values: pa.Array) -> pa.Array:
        if pa.types.is_large_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        # The buffers as they are: `values.values` is the whole child, whatever part of it the array is.
        return pa.Array.from_buffers(
            new, len(values), values.buffers()[:2], values.null_count, values.offset, [element(values.values)]
        )

    return convert


def _map(old: pa.MapType, new: pa.MapType, by_id: bool, file: str) -> Convert:
    key = _converter(old.key_field, new.key_field, by_id, file)
    value = _converter(old.item_field, new.item_field, by_id, file)

    def convert(values: pa.MapArray) -> pa.Array:
        entries = pa.StructArray.from_arrays(
            [key(values.keys), value(values.items)], fields=[new.key_field, new.item_field]
        )
        return pa.Array.from_buffers(
            new, len(values), values.buffers()[:2], values.null_count, values.offset, [entries]
        )

    return convert
