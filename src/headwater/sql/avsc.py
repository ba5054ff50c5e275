"""Avro record schemas to columns.

Unions with null become nullable fields and enums become strings. Defaults and aliases say how to read old Avro files,
not what a record holds, and are left out. A logical type that Avro does not define stands for its plain type, as Avro
itself says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

from headwater.errors import InvalidSchema
from headwater.sql.schema_rules import check_count, check_decimal, check_depth, check_fixed, checked_schema, nested
from headwater.sql.schema_text import UNASSIGNED

_PRIMITIVES: Mapping[str, type[IcebergType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "bytes": BinaryType,
    "string": StringType,
}
_LOGICAL: Mapping[tuple[str, str], type[IcebergType]] = {
    ("int", "date"): DateType,
    ("int", "time-millis"): TimeType,
    ("long", "time-micros"): TimeType,
    ("long", "timestamp-millis"): TimestamptzType,
    ("long", "timestamp-micros"): TimestamptzType,
    ("long", "local-timestamp-millis"): TimestampType,
    ("long", "local-timestamp-micros"): TimestampType,
    ("string", "uuid"): UUIDType,
}
_TOO_FINE = ("timestamp-nanos", "local-timestamp-nanos", "duration")

Path = tuple[str, ...]


@dataclass(slots=True)
class _Known:
    """Named types by full name, None while a record is being read; and how many fields were read so far.

    Records used by name multiply: a few lines can stand for billions of fields, so they are counted while reading.
    """

    types: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)
    fields: int = 0


def schema_from_avro(value: object) -> Schema:
    """The checked schema of an Avro record schema."""
    if not isinstance(value, dict) or value.get("type") != "record":
        raise InvalidSchema("Avro schema is not a record", hint='It looks like {"type": "record", "fields": [...]}.')
    record = _record(value, (), "", _Known())
    return checked_schema(record.fields)


def _record(value: Mapping[str, Any], path: Path, namespace: str, known: _Known) -> StructType:
    name, inner = _full_name(value, path, namespace)
    fields = value.get("fields")
    if not isinstance(fields, list):
        raise InvalidSchema(f'{_where(path)} is a record without a list "fields"')
    known.types[name] = None
    result = StructType(*(_field(each, path, place, inner, known) for place, each in enumerate(fields)))
    known.types[name] = {**value, "namespace": inner}
    return result


def _field(value: object, path: Path, place: int, namespace: str, known: _Known) -> NestedField:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or "type" not in value:
        raise InvalidSchema(f'field {place + 1} of {_where(path)} has no "name" or no "type"')
    here = (*path, value["name"][:128])
    known.fields += 1
    check_count(known.fields)
    comment = value.get("doc")
    if not isinstance(comment, str | None):
        raise InvalidSchema(f'{_where(here)} has a "doc" that is not a text')
    of, required = _nullable(value["type"], here, namespace, known)
    return NestedField(UNASSIGNED, value["name"], of, required=required, doc=comment)


def _nullable(value: object, path: Path, namespace: str, known: _Known) -> tuple[IcebergType, bool]:
    """A type and whether a value is required: `["null", T]` is a T that may be missing."""
    if not isinstance(value, list):
        return _type(value, path, namespace, known), True
    others = [branch for branch in value if branch != "null"]
    if len(others) != 1:
        raise InvalidSchema(
            f"{_where(path)} is a union of {len(others)} types",
            detail="A union has one type, or null and one type.",
            hint="Use a record with one nullable field for each type.",
        )
    return _type(others[0], path, namespace, known), len(others) == len(value)


def _type(value: object, path: Path, namespace: str, known: _Known) -> IcebergType:
    check_depth(path, len(path))
    if isinstance(value, str):
        return _by_name(value, path, namespace, known)
    if not isinstance(value, dict):
        raise InvalidSchema(
            f"{_where(path)} has no type", detail="An Avro type is a text, an object or a union in a field."
        )
    match value.get("type"):
        case "record" | "error":
            return _record(value, path, namespace, known)
        case "enum":
            known.types[_full_name(value, path, namespace)[0]] = value
            return StringType()
        case "fixed":
            known.types[_full_name(value, path, namespace)[0]] = value
            return _fixed(value, path)
        case "array":
            return _array(value, path, namespace, known)
        case "map":
            of, required = _nullable(value.get("values"), (*path, "value"), namespace, known)
            return MapType(UNASSIGNED, StringType(), UNASSIGNED, of, value_required=required)
        case str() as name if name in _PRIMITIVES:
            return _logical(name, value, path)
        case inner:
            return _type(inner, path, namespace, known)


def _array(value: Mapping[str, Any], path: Path, namespace: str, known: _Known) -> IcebergType:
    """A list, or a map where Iceberg wrote one as an array of keys and values."""
    of, required = _nullable(value.get("items"), (*path, "element"), namespace, known)
    if value.get("logicalType") != "map":
        return ListType(UNASSIGNED, of, element_required=required)
    if not isinstance(of, StructType) or [each.name for each in of.fields] != ["key", "value"]:
        raise InvalidSchema(f'{_where(path)} is a map whose items are not records of "key" and "value"')
    key, item = of.fields
    return MapType(UNASSIGNED, key.field_type, UNASSIGNED, item.field_type, value_required=item.required)


def _by_name(name: str, path: Path, namespace: str, known: _Known) -> IcebergType:
    if of := _PRIMITIVES.get(name):
        return of()
    if name == "null":
        raise InvalidSchema(f"{_where(path)} is always null", hint='Use a union: ["null", "string"].')
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    if full not in known.types:
        raise InvalidSchema(
            f'{_where(path)} has the unknown type "{name[:128]}"', detail="Named types are defined before use."
        )
    found = known.types[full]
    if found is None:
        raise InvalidSchema(
            f'{_where(path)} contains the record "{full}" again', detail="Recursive types cannot be stored."
        )
    if found["type"] in ("record", "error"):
        return _record(found, path, namespace, known)
    return StringType() if found["type"] == "enum" else _fixed(found, path)


def _logical(name: str, value: Mapping[str, Any], path: Path) -> IcebergType:
    logical = value.get("logicalType")
    if not isinstance(logical, str):
        return _PRIMITIVES[name]()
    _check_fineness(logical, path)
    if logical == "decimal" and name == "bytes":
        return _decimal(value, path)
    if logical in ("timestamp-millis", "timestamp-micros") and value.get("adjust-to-utc") is False:
        return TimestampType()
    return _LOGICAL.get((name, logical), _PRIMITIVES[name])()


def _fixed(value: Mapping[str, Any], path: Path) -> IcebergType:
    size = value.get("size")
    if not isinstance(size, int) or isinstance(size, bool):
        raise InvalidSchema(f'{_where(path)} is fixed without a whole "size"')
    logical = value.get("logicalType")
    _check_fineness(logical, path)
    if logical == "decimal":
        return _decimal(value, path)
    if logical == "uuid" and size == 16:
        return UUIDType()
    check_fixed(size)
    return FixedType(size)


def _decimal(value: Mapping[str, Any], path: Path) -> DecimalType:
    precision, scale = value.get("precision"), value.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        raise InvalidSchema(f'{_where(path)} is a decimal without a whole "precision" and "scale"')
    check_decimal(precision, scale)
    return DecimalType(precision, scale)


def _check_fineness(logical: object, path: Path) -> None:
    if logical in _TOO_FINE:
        raise InvalidSchema(
            f'{_where(path)} has the logical type "{logical}", which topics do not have',
            hint="Use timestamp-micros." if logical != "duration" else "Use a long and name its unit.",
        )


def _full_name(value: Mapping[str, Any], path: Path, namespace: str) -> tuple[str, str]:
    """The full name of a named type, and the namespace in which names inside it are looked up."""
    name = value.get("name")
    if not isinstance(name, str):
        raise InvalidSchema(f'{_where(path)} has a named type without "name"')
    if "." in name:
        return name, name.rpartition(".")[0]
    own = value.get("namespace")
    inner = own if isinstance(own, str) else namespace
    return (f"{inner}.{name}" if inner else name), inner


def _where(path: Path) -> str:
    return f'Avro field "{nested(path)}"' if path else "Avro record"
