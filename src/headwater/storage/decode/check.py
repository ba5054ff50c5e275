"""Checking whole records in Python: the slow, talkative way into a topic.

It explains rows that the vectorised way has refused, and decodes alone where Arrow's JSON reader cannot: schemas with
maps, and Python's own rows. A map is a JSON object whose keys are the keys' text, or an array of {"key": …, "value":
…}.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from headwater.storage.decode.outcome import Unfit, too_heavy
from headwater.storage.decode.scalars import Check, Number, scalar_check, shown
from headwater.storage.decode.shapes import type_name
from headwater.storage.decode.sizes import RECORD_BYTES, python_bytes
from headwater.types import SYSTEM_COLUMNS

RowCheck = Callable[[object], dict[str, object]]

MISSING = "required field is missing"
NULL = "required field is null"

_LONGEST_LONG = 20


class Repeated(dict[str, object]):
    """A JSON object in which `name` appears more than once."""

    name = ""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    names = [name for name, _ in pairs]
    repeated = Repeated(result)
    repeated.name = next(name for name in names if names.count(name) > 1)
    return repeated


def _integer(literal: str) -> object:
    return int(literal) if len(literal) <= _LONGEST_LONG and literal != "-0" else Number(literal)


_JSON = json.JSONDecoder(parse_float=Number, parse_int=_integer, object_pairs_hook=_object)


def loads(record: bytes) -> object:
    """One JSON text as Python values, numbers exact and repeated names remembered.

    Unfit if the values may take more than RECORD_BYTES: a few letters of text can be a hundred bytes in Python.
    """
    if python_bytes(record) > RECORD_BYTES:
        raise too_heavy()
    try:
        return _JSON.decode(record.decode())
    except UnicodeDecodeError as error:
        raise Unfit(f"not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and record.startswith(b"{"):
            raise Unfit("more than one value on the line") from None
        problem = error.msg[:1].lower() + error.msg[1:].removesuffix(" starting at")
        raise Unfit(f"not JSON at column {error.colno}: {problem}") from None
    except RecursionError:
        raise Unfit("nested too deeply") from None


def row_check(schema: Schema) -> RowCheck:
    """The check for records of a schema: the values to store by column, or Unfit."""
    check = _struct(schema.fields)

    def row(value: object) -> dict[str, object]:
        if not isinstance(value, Mapping):
            raise Unfit(f"expected an object, got {shown(value)}")
        return check(value)

    return row


def value_check(of: IcebergType) -> Check:
    """The check for values of a type, never called with None."""
    match of:
        case ListType():
            return _list(of)
        case MapType():
            return _map(of)
        case StructType():
            return _nested_struct(of)
    return scalar_check(of)


def key_check(of: IcebergType) -> Check:
    """The check for a value that comes as text only: a map's key or a cell of a CSV file."""
    check = value_check(of)
    match of:
        case BooleanType():
            read: Callable[[str], object] = _boolean
        case IntegerType() | LongType() | FloatType() | DoubleType():
            read = _number
        case ListType() | MapType() | StructType():
            read = _json
        case _:
            return check
    return lambda value: check(read(value) if isinstance(value, str) else value)


def _boolean(literal: str) -> object:
    return {"true": True, "false": False}.get(literal.lower(), literal)


def _json(literal: str) -> object:
    return loads(literal.encode("utf-8", "surrogatepass"))


def _number(literal: str) -> object:
    try:
        value = _json(literal)
    except Unfit:
        return literal
    return literal if isinstance(value, str) or value is None or literal != literal.strip() else value


def _struct(fields: Iterable[NestedField]) -> Callable[[Mapping[object, object]], dict[str, object]]:
    columns = tuple((field.name, field.required, value_check(field.field_type)) for field in fields)
    names = frozenset(name for name, _, _ in columns)

    @lru_cache(maxsize=256)
    def unknown(name: str) -> str:
        if name in SYSTEM_COLUMNS:
            return "unknown field, Headwater assigns it"
        close = difflib.get_close_matches(name[:128], names, n=1)
        return f'unknown field, did you mean "{close[0]}"?' if close else "unknown field"

    def check(value: Mapping[object, object]) -> dict[str, object]:
        if type(value) is Repeated:
            raise Unfit("field appears more than once", value.name)
        if not value.keys() <= names:
            name = next(str(key) for key in value if key not in names)
            raise Unfit(unknown(name), name[:128])
        result: dict[str, object] = {}
        for name, required, check_value in columns:
            item = value.get(name)
            if item is not None:
                try:
                    result[name] = check_value(item)
                except Unfit as unfit:
                    raise unfit.within(name) from None
            elif required:
                raise Unfit(NULL if name in value else MISSING, name)
            else:
                result[name] = None
        return result

    return check


def _nested_struct(of: StructType) -> Check:
    check = _struct(of.fields)

    def nested(value: object) -> object:
        if not isinstance(value, Mapping):
            raise Unfit(f"expected {type_name(of)}, got {shown(value)}")
        return check(value)

    return nested


def _list(of: ListType) -> Check:
    check_element, required = value_check(of.element_type), of.element_required

    def check(value: object) -> list[object]:
        items = _items(value)
        if items is None:
            raise Unfit(f"expected list, got {shown(value)}")
        result: list[object] = []
        for index, item in enumerate(items):
            try:
                result.append(_element(item, required, check_element))
            except Unfit as unfit:
                raise unfit.within(f"[{index}]") from None
        return result

    return check


def _items(value: object) -> list[object] | tuple[object, ...] | None:
    if isinstance(value, list | tuple):
        return value
    return list(value) if isinstance(value, np.ndarray) and value.ndim else None


def _element(item: object, required: bool, check: Check) -> object:
    if item is not None:
        return check(item)
    if required:
        raise Unfit(NULL)
    return None


def _map(of: MapType) -> Check:
    check_key, check_item, required = key_check(of.key_type), value_check(of.value_type), of.value_required

    def check(value: object) -> list[tuple[object, object]]:
        result: list[tuple[object, object]] = []
        seen: set[object] = set()
        for key, item in _entries(value):
            step = f"[{_cut_key(key)}]"
            try:
                stored = check_key(key) if key is not None else _element(None, True, check_key)
                result.append((stored, _element(item, required, check_item)))
            except Unfit as unfit:
                raise unfit.within(step) from None
            identity = repr(stored) if isinstance(stored, list | dict) else stored
            if identity in seen:
                raise Unfit("key appears more than once", step)
            seen.add(identity)
        return result

    return check


def _cut_key(key: object) -> str:
    return json.dumps(str(key)[:128], ensure_ascii=True)


def _entries(value: object) -> Iterable[tuple[object, object]]:
    """The pairs of an object, of an array of {"key", "value"}, or of Python pairs."""
    if type(value) is Repeated:
        raise Unfit("key appears more than once", f"[{_cut_key(value.name)}]")
    if isinstance(value, Mapping):
        return value.items()
    if not isinstance(value, list | tuple):
        raise Unfit(f"expected map, got {shown(value)}")
    return [_entry(index, entry) for index, entry in enumerate(value)]


def _entry(index: int, entry: object) -> tuple[object, object]:
    if isinstance(entry, tuple) and len(entry) == 2:
        return entry[0], entry[1]
    if (
        isinstance(entry, Mapping)
        and type(entry) is not Repeated
        and "key" in entry
        and entry.keys() <= {"key", "value"}
    ):
        return entry["key"], entry.get("value")
    raise Unfit('expected an object with "key" and "value"', f"[{index}]")
