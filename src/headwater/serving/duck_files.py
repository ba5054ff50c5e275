"""A topic's files as DuckDB reads them: by the ids of their columns, once the topic has had other columns.

DuckDB matches top-level columns by id, and makes the types wider. Fields inside a column it matches by their names or
even by their places, whatever their ids: a column whose inside was altered since a file was written is Spark's to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
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

from headwater.catalog.topics import Topic
from headwater.serving.plan import Scan
from headwater.storage.schemas import FIELD_ID, arrow_type
from headwater.storage.writer import local_name
from headwater.types import OFFSET

Shape = tuple[object, ...]
"""The ids and names of what a column is made of, in their order."""

_TYPES: dict[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimeType: "TIME",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    StringType: "VARCHAR",
    UUIDType: "UUID",
    BinaryType: "BLOB",
    FixedType: "BLOB",
}


def read_parquet(scan: Scan, files: Sequence[DataFile]) -> str:
    """DuckDB's SQL for the rows of some of the scan's files, at least one, with the scan's columns."""
    paths = ", ".join(literal(local_name(file.file_path)) for file in files)
    return f"read_parquet([{paths}], hive_partitioning = false{_by_id(scan)})"


def stored_names(scan: Scan) -> frozenset[str]:
    """All names under which the scan's columns may be in files."""
    if not _has_evolved(scan):
        return frozenset(scan.columns)
    ids = {scan.schema.find_field(name).field_id for name in scan.columns}
    return frozenset(field.name for schema in _schemas(scan) for field in schema.fields if field.field_id in ids)


def unreadable(scan: Scan) -> str | None:
    """Why DuckDB cannot read the scan's files; None if it can."""
    if not _has_evolved(scan):
        return None
    for name in scan.columns:
        column = scan.schema.find_field(name)
        if column.field_type.is_primitive or not _altered_inside(column, _schemas(scan)):
            continue
        if any(_differs(local_name(file.file_path), column) for file in scan.files.files):
            return f'fields inside column "{name}" were altered since some files were written'
    return None


def _schemas(scan: Scan) -> Sequence[Schema]:
    return scan.of.table.metadata.schemas


def _has_evolved(scan: Scan) -> bool:
    return isinstance(scan.of, Topic) and len(_schemas(scan)) > 1


def _by_id(scan: Scan) -> str:
    if not _has_evolved(scan):
        return ""
    columns = scan.columns or (OFFSET,)  # something must be named, and this is in every file
    known = {field.name: field for field in scan.schema.fields}
    listed = ", ".join(_column(known[name]) for name in columns if name in known)
    return f", schema = MAP {{{listed}}}"


def _column(field: NestedField) -> str:
    name, of = literal(field.name), literal(duck_type(field.field_type))
    return f"{field.field_id}: {{name: {name}, type: {of}, default_value: NULL}}"


def duck_type(of: IcebergType) -> str:
    """The type in which DuckDB reads a stored column."""
    match of:
        case DecimalType():
            return f"DECIMAL({of.precision},{of.scale})"
        case ListType():
            return f"{duck_type(of.element_type)}[]"
        case MapType():
            return f"MAP({duck_type(of.key_type)}, {duck_type(of.value_type)})"
        case StructType():
            fields = (f'"{field.name}" {duck_type(field.field_type)}' for field in of.fields)
            return f"STRUCT({', '.join(fields)})"
        case _:
            return _TYPES[type(of)]


def _altered_inside(column: NestedField, schemas: Iterable[Schema]) -> bool:
    """Whether the column was ever made of other fields, or of the same in another order."""
    others = (field for schema in schemas for field in schema.fields if field.field_id == column.field_id)
    now = _arrow_shape(arrow_type(column.field_type))
    return any(_arrow_shape(arrow_type(other.field_type)) != now for other in others)


def _differs(path: str, column: NestedField) -> bool:
    """Whether the file has the column, made of other fields than it is now."""
    stored = _stored_columns(path).get(column.field_id)
    return stored is not None and stored != _arrow_shape(arrow_type(column.field_type))


@lru_cache(maxsize=4096)
def _stored_columns(path: str) -> dict[int, Shape]:
    """What the columns of a file, which never changes, are made of, by their ids."""
    return {
        int(field.metadata[FIELD_ID]): _arrow_shape(field.type)
        for field in pq.read_schema(path)
        if field.metadata is not None and FIELD_ID in field.metadata
    }


def _arrow_shape(of: pa.DataType) -> Shape:
    if pa.types.is_struct(of):
        return tuple((_id(field), field.name, _arrow_shape(field.type)) for field in of)
    if pa.types.is_map(of):
        key, value = of.key_field, of.item_field
        return (_id(key), _arrow_shape(key.type), _id(value), _arrow_shape(value.type))
    return (_id(of.value_field), _arrow_shape(of.value_type)) if pa.types.is_list(of) else ()


def _id(field: pa.Field) -> int | None:
    said = (field.metadata or {}).get(FIELD_ID)
    return None if said is None else int(said)


def literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
