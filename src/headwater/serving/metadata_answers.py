"""Counts, minima and maxima that the table's metadata knows: answered without opening a data file.

Only what is exact qualifies: counts of rows and of non-null values, and bounds of types whose bounds Iceberg stores
unshortened (whole numbers, decimals, dates, timestamps); floats (NaN) and strings (cut) do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
)
from sqlglot import exp

from headwater.serving.agreement import Agreed
from headwater.serving.plan import Scan

_EXACT = (IntegerType, LongType, DecimalType, DateType, TimestampType, TimestamptzType)
_LIKELY = re.compile(r"\s*select\s+(count|min|max)\s*\(", re.IGNORECASE)

Kind = Literal["rows", "count", "min", "max"]
_KINDS: dict[type[exp.Expression], Kind] = {exp.Count: "count", exp.Min: "min", exp.Max: "max"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output column: rows, or a column's non-null count, minimum or maximum."""

    kind: Kind
    column: str | None


def wanted(text: str, schema: Schema) -> tuple[Wanted, ...] | None:
    """What a query asks of metadata, if that is all it asks of one topic."""
    if not _LIKELY.match(text):
        return None
    tree = sqlglot.parse_one(text, read="spark")
    if not isinstance(tree, exp.Select) or _has_more(tree):
        return None
    source = (tree.args.get("from_") or tree.args["from"]).this.alias_or_name.lower()
    found = [_wanted(item.unalias(), schema, source) for item in tree.expressions]
    return None if None in found else tuple(item for item in found if item is not None)


def _has_more(tree: exp.Select) -> bool:
    source = tree.args.get("from_") or tree.args.get("from")
    used = {name for name, value in tree.args.items() if value} - {"expressions", "from", "from_", "kind"}
    return bool(used) or source is None or not isinstance(source.this, exp.Table)


def _wanted(item: exp.Expression, schema: Schema, source: str) -> Wanted | None:
    if isinstance(item, exp.Count) and isinstance(item.this, exp.Star | exp.Literal) and not item.expressions:
        return Wanted("rows", None)
    kind = _KINDS.get(type(item))
    if kind is None or item.expressions or not isinstance(item.this, exp.Column):
        return None
    if item.this.table.lower() not in ("", source) or item.this.db:  # a.b may be a field of the struct a
        return None
    column = next((field for field in schema.fields if field.name == item.this.name.lower()), None)
    if column is None or not isinstance(column.field_type, PrimitiveType):
        return None
    return Wanted(kind, column.name) if kind == "count" or isinstance(column.field_type, _EXACT) else None


def known(items: Sequence[Wanted], files: Sequence[DataFile], schema: Schema) -> bool:
    """Whether every file's metadata has what is wanted of it."""
    return all(_known(item, file, schema) for item in items for file in files)


def _known(item: Wanted, file: DataFile, schema: Schema) -> bool:
    if item.column is None:
        return True
    field_id = schema.find_field(item.column).field_id
    counts = field_id in (file.value_counts or {}) and field_id in (file.null_value_counts or {})
    if item.kind == "count" or not counts:
        return counts
    bounded = field_id in (file.lower_bounds or {}) and field_id in (file.upper_bounds or {})
    return bounded or file.null_value_counts[field_id] == file.value_counts[field_id]


def answer(items: Sequence[Wanted], scan: Scan, agreed: Agreed) -> pa.Table:
    """The one row that the query asks for, from the files' metadata and the tail's rows."""
    schema = pa.schema([pa.field(column.name, column.type) for column in agreed.output])
    arrays = [
        pa.array([_value(item, scan)], _source_type(item, scan, column.type)).cast(column.type)
        for item, column in zip(items, agreed.output, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _source_type(item: Wanted, scan: Scan, otherwise: pa.DataType) -> pa.DataType:
    return scan.tail_rows.schema.field(item.column).type if item.kind in ("min", "max") else otherwise


def _value(item: Wanted, scan: Scan) -> Any:
    files, tail = scan.files.files, scan.tail_rows
    if item.column is None:
        return sum(file.record_count for file in files) + tail.num_rows
    column = scan.schema.find_field(item.column)
    tail_column = tail.column(item.column)
    if item.kind == "count":
        stored = sum(file.value_counts[column.field_id] - file.null_value_counts[column.field_id] for file in files)
        return stored + len(tail_column) - tail_column.null_count
    return _extreme(item.kind, column, files, tail_column)


def _extreme(kind: Kind, column: NestedField, files: Sequence[DataFile], tail: pa.ChunkedArray) -> Any:
    choose: Callable[..., Any] = min if kind == "min" else max
    bounds = [(file.lower_bounds if kind == "min" else file.upper_bounds).get(column.field_id) for file in files]
    of = column.field_type
    assert isinstance(of, PrimitiveType)
    values = [from_bytes(of, bound) for bound in bounds if bound is not None]
    in_tail = pc.min_max(tail)[kind]
    if in_tail.is_valid:
        values.append(_physical(in_tail, column))
    return choose(values) if values else None


def _physical(scalar: Any, column: NestedField) -> Any:
    """A tail value in the form that Iceberg's bounds have: days and microseconds as integers."""
    match column.field_type:
        case DateType() | TimestampType() | TimestamptzType():
            return scalar.value
        case _:
            return scalar.as_py()
