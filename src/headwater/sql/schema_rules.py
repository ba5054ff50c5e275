"""What a topic's columns must be, whoever describes them: SQL text, a schema file, an HTTP body or Python."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.schema import Schema, assign_fresh_schema_ids
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

from headwater.errors import InvalidSchema
from headwater.sql.tokens import UNSENDABLE
from headwater.types import checked_name

MAX_DEPTH = 32
MAX_FIELDS = 5000
MAX_COMMENT = 4096
MAX_FIXED = 1024**2
MAX_PRECISION = 38

_PRIMITIVES = (
    BooleanType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    StringType,
    UUIDType,
    BinaryType,
)


def checked_schema(fields: Iterable[NestedField]) -> Schema:
    """A schema of these columns with field ids assigned afresh, top-level columns first, or InvalidSchema."""
    columns = tuple(fields)
    if not columns:
        raise InvalidSchema(
            "a topic has at least one column", hint="Name the columns: (order_id BIGINT NOT NULL, ...)."
        )
    _check_fields(columns, (), 1)
    fresh = assign_fresh_schema_ids(StructType(*columns))
    schema = Schema(*fresh.fields)
    check_count(len(schema.field_ids))
    return schema


def nested(path: Iterable[str]) -> str:
    """How an error names a column or a field inside one."""
    return ".".join(path)


def check_count(fields: int) -> None:
    """Refuse more fields than a table can sensibly have."""
    if fields > MAX_FIELDS:
        raise InvalidSchema(f"a topic has at most {MAX_FIELDS} fields", detail="Nested fields count too.")


def check_depth(path: tuple[str, ...], depth: int) -> None:
    """Refuse types so deep that a recursive reader could not follow them."""
    if depth > MAX_DEPTH:
        raise InvalidSchema(
            f'column "{path[0]}" is nested too deeply' if path else "type is nested too deeply",
            detail=f"Types nest at most {MAX_DEPTH} levels.",
        )


def check_decimal(precision: int, scale: int) -> None:
    """Refuse a decimal that Iceberg cannot hold."""
    if not (1 <= precision <= MAX_PRECISION and 0 <= scale <= precision):
        raise InvalidSchema(
            f'type "DECIMAL({precision}, {scale})" is not allowed',
            detail=f"The precision is 1 to {MAX_PRECISION} and the scale 0 to the precision.",
        )


def check_fixed(length: int) -> None:
    """Refuse a fixed length that a file cannot hold."""
    if not 1 <= length <= MAX_FIXED:
        raise InvalidSchema(f'type "FIXED({length})" is not allowed', detail=f"The length is 1 to {MAX_FIXED} bytes.")


def _check_fields(fields: tuple[NestedField, ...], path: tuple[str, ...], depth: int) -> None:
    seen: set[str] = set()
    for field in fields:
        here = (*path, checked_name(field.name, "column"))
        if field.name in seen:
            raise InvalidSchema(f'column "{nested(here)}" is defined twice')
        seen.add(field.name)
        if field.initial_default is not None or field.write_default is not None:
            raise InvalidSchema(f'column "{nested(here)}" has a default value', detail="Topics have no default values.")
        _check_comment(field.doc, here)
        _check_type(field.field_type, here, depth)


def _check_comment(comment: str | None, path: tuple[str, ...]) -> None:
    if comment is not None and (len(comment) > MAX_COMMENT or UNSENDABLE.search(comment)):
        raise InvalidSchema(
            f'column "{nested(path)}" has a comment that cannot be stored',
            detail=f"Comments are Unicode text of at most {MAX_COMMENT} characters.",
        )


def _check_type(of: IcebergType, path: tuple[str, ...], depth: int) -> None:
    check_depth(path, depth)
    match of:
        case DecimalType():
            check_decimal(of.precision, of.scale)
        case FixedType():
            check_fixed(len(of))
        case ListType():
            _check_type(of.element_type, (*path, "element"), depth + 1)
        case MapType():
            _check_key(of.key_type, path)
            _check_type(of.key_type, (*path, "key"), depth + 1)
            _check_type(of.value_type, (*path, "value"), depth + 1)
        case StructType():
            if not of.fields:
                raise InvalidSchema(f'column "{nested(path)}" is a struct without fields')
            _check_fields(of.fields, path, depth + 1)
        case _ if not isinstance(of, _PRIMITIVES):
            raise InvalidSchema(
                f'column "{nested(path)}" has the type "{of}", which topics do not have',
                detail="Topics have the types of Iceberg format version 2.",
            )


def _check_key(key: IcebergType, path: tuple[str, ...]) -> None:
    """Refuse keys that hold maps: Spark cannot compare them."""
    inside: list[IcebergType] = [key]
    while inside:
        match inside.pop():
            case MapType():
                raise InvalidSchema(
                    f'column "{nested(path)}" has a map inside a map\'s key', detail="Keys of maps cannot contain maps."
                )
            case ListType() as of:
                inside.append(of.element_type)
            case StructType() as of:
                inside.extend(field.field_type for field in of.fields)
