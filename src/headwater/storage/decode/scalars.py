"""Checking one scalar Python value against its Iceberg type, with a reason that names what came.

A check takes what `json.loads` yields and, beyond that, Python's own value of the type (datetime, Decimal, UUID,
bytes …). It returns the value that `pa.array` stores, or raises `Unfit`.
"""

from __future__ import annotations

import json
import numbers
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TypeGuard

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
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.storage.decode import text
from headwater.storage.decode.outcome import Unfit
from headwater.storage.decode.shapes import type_name

Check = Callable[[object], object]

_SHOWN = 40
_FORMS: dict[type[IcebergType], str] = {
    DateType: 'text "YYYY-MM-DD"',
    TimeType: 'text "HH:MM:SS[.ffffff]"',
    TimestampType: 'text "YYYY-MM-DDTHH:MM:SS[.ffffff]" without a zone',
    TimestamptzType: 'text "YYYY-MM-DDTHH:MM:SS[.ffffff]Z" or with an offset',
    UUIDType: "text with hyphens",
    BinaryType: "base64 text",
    FixedType: "base64 text",
}


class Number:
    """A JSON number kept as its text, because a float would lose digits."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def shown(value: object) -> str:
    """A value as a message shows it: its kind and the beginning of its text."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean {str(value).lower()}"
        case str():
            return f"string {_quoted(value)}"
        case Number():
            return f"number {_cut(value.text)}"
        case int():
            return f"number {value}" if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
        case float():
            return f"number {value}"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
    return f"{type(value).__name__} {_cut(str(value))}"


def _quoted(value: str) -> str:
    return (
        json.dumps(value if len(value) <= _SHOWN else value[:_SHOWN] + "…", ensure_ascii=False)
        .encode("utf-8", "backslashreplace")
        .decode()
    )


def _cut(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"


def scalar_check(of: IcebergType) -> Check:
    """The check for a scalar type."""
    match of:
        case BooleanType():
            return _boolean
        case IntegerType():
            return _integer(of, 31)
        case LongType():
            return _integer(of, 63)
        case FloatType() | DoubleType():
            return _floating(of)
        case DecimalType():
            return _decimal(of)
        case StringType():
            return _string
        case UUIDType():
            return _from_text(of, text.parse_uuid, _native_uuid)
        case BinaryType() | FixedType():
            return _binary(of)
    return _from_text(of, *_TEMPORAL[type(of)])


def _expected(of: IcebergType, value: object) -> Unfit:
    form = f" as {_FORMS[type(of)]}" if type(of) in _FORMS and isinstance(value, str) else ""
    return Unfit(f"expected {type_name(of)}{form}, got {shown(value)}")


def _does_not_fit(of: IcebergType, value: object) -> Unfit:
    return Unfit(f"{shown(value)} does not fit {type_name(of)}")


def _boolean(value: object) -> bool:
    if isinstance(value, bool) or _is_numpy_bool(value):
        return bool(value)
    raise _expected(BooleanType(), value)


def _is_numpy_bool(value: object) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", None) == "b"


def _integer(of: IcebergType, bits: int) -> Check:
    low, high = -(1 << bits), (1 << bits) - 1

    def check(value: object) -> int:
        if isinstance(value, Number) and text.is_integer(value.text):
            if value.text == "-0":
                return 0
            raise _does_not_fit(of, value)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise _expected(of, value)
        if not low <= (number := int(value)) <= high:
            raise _does_not_fit(of, value)
        return number

    return check


def _floating(of: IcebergType) -> Check:
    single = isinstance(of, FloatType)

    def check(value: object) -> float:
        try:
            if isinstance(value, Number):
                result = text.parse_float(value.text)
            elif isinstance(value, numbers.Real) and not isinstance(value, bool):
                result = float(value)
            else:
                raise _expected(of, value)
            if single:
                struct.pack("<f", result)
        except (text.DoesNotFit, OverflowError):
            raise _does_not_fit(of, value) from None
        return result

    return check


def _decimal(of: DecimalType) -> Check:
    precision, scale = of.precision, of.scale

    def check(value: object) -> Decimal:
        if isinstance(value, Number):
            literal = value.text
        elif isinstance(value, str | Decimal) or (isinstance(value, numbers.Integral) and not isinstance(value, bool)):
            literal = value if isinstance(value, str) else _digits(value)
        else:
            raise _expected(of, value)
        try:
            return text.parse_decimal(literal, precision, scale)
        except text.DoesNotFit:
            raise _does_not_fit(of, value) from None
        except ValueError:
            raise _expected(of, value) from None

    return check


def _digits(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return "1e99"  # beyond every decimal, and beyond what str() may take
    return str(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _expected(StringType(), value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit(f"{shown(value)} has a lone surrogate and is not valid UTF-8") from None
    return value


def _binary(of: BinaryType | FixedType) -> Check:
    length = len(of) if isinstance(of, FixedType) else None

    def check(value: object) -> bytes:
        if isinstance(value, str):
            try:
                result = text.parse_base64(value)
            except ValueError:
                raise _expected(of, value) from None
        elif isinstance(value, bytes | bytearray | memoryview):
            result = bytes(value)
        else:
            raise _expected(of, value)
        if length is not None and len(result) != length:
            raise Unfit(f"expected {type_name(of)}, got {len(result)} bytes")
        return result

    return check


def _from_text(of: IcebergType, parse: Callable[[str], object], native: Callable[[object], object]) -> Check:
    """Text by `parse`; any other value by `native`, which returns None for what is not of the type."""

    def check(value: object) -> object:
        if isinstance(value, str):
            try:
                return parse(value)
            except ValueError:
                raise _expected(of, value) from None
        if (result := native(value)) is None:
            raise _expected(of, value)
        return result

    return check


def _native_uuid(value: object) -> bytes | None:
    if isinstance(value, bytes) and len(value) == 16:
        return value
    return value.bytes if isinstance(value, uuid.UUID) else None


def _native_date(value: object) -> date | None:
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _native_time(value: object) -> time | None:
    return value if isinstance(value, time) and value.tzinfo is None else None


def _native_timestamp(value: object) -> datetime | None:
    return value if _is_moment(value) and value.tzinfo is None else None


def _native_timestamptz(value: object) -> datetime | None:
    if not _is_moment(value) or value.utcoffset() is None:
        return None
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return None


def _is_moment(value: object) -> TypeGuard[datetime]:
    """A datetime of whole microseconds (pandas' subclass has nanoseconds, and its NaT is not equal to itself)."""
    return isinstance(value, datetime) and value == value and not getattr(value, "nanosecond", 0)


_TEMPORAL: dict[type[IcebergType], tuple[Callable[[str], object], Callable[[object], object]]] = {
    DateType: (text.parse_date, _native_date),
    TimeType: (text.parse_time, _native_time),
    TimestampType: (lambda value: text.parse_timestamp(value, zoned=False), _native_timestamp),
    TimestamptzType: (lambda value: text.parse_timestamp(value, zoned=True), _native_timestamptz),
}
