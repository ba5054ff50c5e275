"""Iceberg's own JSON form of a schema, as the table spec defines it, to columns. Its field ids are replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from headwater.sql.schema_rules import check_decimal, check_depth, check_fixed, checked_schema, nested
from headwater.sql.schema_text import UNASSIGNED

_PRIMITIVES: Mapping[str, type[IcebergType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "date": DateType,
    "time": TimeType,
    "timestamp": TimestampType,
    "timestamptz": TimestamptzType,
    "string": StringType,
    "uuid": UUIDType,
    "binary": BinaryType,
}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*\)\Z")
_FIXED = re.compile(r"fixed\[([0-9]{1,10})\]\Z")

Path = tuple[str, ...]


def schema_from_iceberg(value: Mapping[str, Any]) -> Schema:
    """The checked schema of an Iceberg schema's JSON form, with field ids assigned afresh."""
    if value.get("type") != "struct":
        raise InvalidSchema("Iceberg schema is not a struct", hint='It looks like {"type": "struct", "fields": [...]}.')
    if value.get("identifier-field-ids"):
        raise InvalidSchema(
            "Iceberg schema has identifier fields", hint="Use the option dedup_key to keep one record per key."
        )
    return checked_schema(_fields(value, ()))


def _fields(value: Mapping[str, Any], path: Path) -> list[NestedField]:
    fields = value.get("fields")
    if not isinstance(fields, list):
        raise InvalidSchema(f'{_where(path)} has no list "fields"')
    return [_field(field, path, place) for place, field in enumerate(fields)]


def _field(value: object, path: Path, place: int) -> NestedField:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise InvalidSchema(f'field {place + 1} of {_where(path)} has no text "name"')
    here = (*path, value["name"][:128])
    if "initial-default" in value or "write-default" in value:
        raise InvalidSchema(f"{_where(here)} has a default value", detail="Topics have no default values.")
    comment = value.get("doc")
    if not isinstance(comment, str | None):
        raise InvalidSchema(f'{_where(here)} has a "doc" that is not a text')
    required = _required(value, "required", here)
    return NestedField(UNASSIGNED, value["name"], _type(value.get("type"), here), required=required, doc=comment)


def _type(value: object, path: Path) -> IcebergType:
    check_depth(path, len(path))
    if isinstance(value, str):
        return _primitive(value, path)
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "struct":
        return StructType(*_fields(value, path))
    if isinstance(value, dict) and kind == "list":
        element = _type(value.get("element"), (*path, "element"))
        return ListType(UNASSIGNED, element, element_required=_required(value, "element-required", path))
    if isinstance(value, dict) and kind == "map":
        key, of = _type(value.get("key"), (*path, "key")), _type(value.get("value"), (*path, "value"))
        return MapType(UNASSIGNED, key, UNASSIGNED, of, value_required=_required(value, "value-required", path))
    raise InvalidSchema(f"{_where(path)} has no type", detail="A type is a text, a struct, a list or a map.")


def _primitive(text: str, path: Path) -> IcebergType:
    if of := _PRIMITIVES.get(text):
        return of()
    if found := _DECIMAL.match(text):
        precision, scale = int(found.group(1)), int(found.group(2))
        check_decimal(precision, scale)
        return DecimalType(precision, scale)
    if found := _FIXED.match(text):
        check_fixed(int(found.group(1)))
        return FixedType(int(found.group(1)))
    raise InvalidSchema(
        f'{_where(path)} has the type "{text[:64]}", which topics do not have',
        detail=f"The types are {', '.join(_PRIMITIVES)}, decimal(p, s), fixed[n], struct, list and map.",
    )


def _required(value: Mapping[str, Any], key: str, path: Path) -> bool:
    required = value.get(key)
    if not isinstance(required, bool):
        raise InvalidSchema(f'{_where(path)} needs "{key}", true or false')
    return required


def _where(path: Path) -> str:
    return f'field "{nested(path)}"' if path else "Iceberg schema"
