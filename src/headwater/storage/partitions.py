"""The rows of an Arrow table by the values of a partition spec."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType


def split_by_partition(table: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[tuple[Record, pa.Table]]:
    """The rows of each partition value, keeping their order."""
    if not spec.fields or table.num_rows == 0:
        yield Record(), table
        return
    found = pa.table({str(i): _partition_values(table, schema, field) for i, field in enumerate(spec.fields)})
    keys = pa.table({name: _distinct(found.column(name)) for name in found.column_names})
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    keys, found, table = keys.take(order), found.take(order), table.take(order)
    for start, stop in _runs(keys):
        raw = [column[start].as_py() for column in found.columns]
        values = [_record_value(field, schema, value) for field, value in zip(spec.fields, raw, strict=True)]
        yield Record(*values), table.slice(start, stop - start)


def partition_key(partition: Record) -> tuple[Any, ...]:
    """The values of a partition as a key: 0.0 and -0.0 are two, and NaN is one."""
    values = (partition[place] for place in range(len(partition)))
    return tuple(struct.pack("d", value) if isinstance(value, float) else value for value in values)


def _distinct(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values to group by. Readers take a partition's value for that of its rows, so -0.0 needs one of its own; and NaN
    equals nothing, itself included. Floats are told apart by their bits."""
    if not pa.types.is_floating(values.type):
        return values
    values = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    bits = pa.int64() if pa.types.is_float64(values.type) else pa.int32()
    return pa.chunked_array([chunk.view(bits) for chunk in values.chunks], bits)


def _partition_values(table: pa.Table, schema: Schema, field: Any) -> pa.ChunkedArray:
    source = schema.find_field(field.source_id)
    path = (schema.find_column_name(field.source_id) or source.name).split(".")
    column = table.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_decimal(column.type):
        # Copied: the log's buffers lie at any multiple of 8 bytes, and PyIceberg's core panics on decimals at some.
        column = pc.take(column, pa.array(np.arange(len(column))))
    values = field.transform.pyarrow_transform(source.field_type)(column)
    if isinstance(field.transform, TruncateTransform) and isinstance(source.field_type, DecimalType):
        least = pa.scalar(least_multiple(source.field_type, field.transform.width), values.type)
        return pc.max_element_wise(values, least, skip_nulls=False)
    return values


def least_multiple(of: DecimalType, width: int) -> Decimal:
    """The least multiple of `width` units that a decimal of this type can hold.

    The smallest decimals are below it. Truncated, they would need one more digit than a manifest has room for, so they
    belong to the partition of this value; the planner never skips that one.
    """
    units = (10**of.precision - 1) // width * width
    return Decimal((1, Decimal(units).as_tuple().digits, -of.scale))


def _record_value(field: Any, schema: Schema, value: Any) -> Any:
    if isinstance(field.transform, IdentityTransform):
        return partition_record_value(field, value, schema)
    return value


def _runs(keys: pa.Table) -> Iterator[tuple[int, int]]:
    """The ranges of equal rows in sorted `keys`; null equals null."""
    changed = None
    for column in keys.columns:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        same = pc.or_(pc.fill_null(pc.equal(before, after), False), pc.and_(pc.is_null(before), pc.is_null(after)))
        differs = pc.invert(same)
        changed = differs if changed is None else pc.or_(changed, differs)
    bounds = [0, *(i + 1 for i in pc.indices_nonzero(changed).to_pylist()), keys.num_rows]
    yield from pairwise(bounds)
