"""Vectorised conversions of scalar columns, chosen by where the column came from.

Each returns the column in its decoded type or fails (`Unfit`, `pa.ArrowInvalid`) if any value does not fit; nobody
here asks which one. A conversion of None means that the column is already right. Nothing is ever rounded or cut,
except a JSON number read as a float, which is the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from headwater.storage.decode.shapes import DECIMAL_DIGITS, plain_type, type_name

Convert = Callable[[pa.Array], pa.Array]
Leaf = Callable[[pa.DataType, IcebergType], Convert | None]

_UUID_TEXT = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_SHORT_DECIMAL = r"^-?[0-9]{1,19}(\.[0-9]{1,19})?$"
_ZONED = r"^.{10}[T ].*(Z|[+-][0-9]{2}:?[0-9]{2})$"
_HYPHENS = (8, 13, 18, 23)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, counted from 1970-01-01
_DAY = 24 * 60 * 60 * 1_000_000


class Infinite(Unfit):
    """A float column holds an infinity, which the JSON reader also makes of numbers that are too large."""


def json_leaf(source: pa.DataType, target: IcebergType, *, infinities: bool = False) -> Convert | None:
    """The conversion of a column that the JSON reader parsed; `infinities` lets them through."""
    match target:
        case FloatType():
            return partial(_single, infinities=infinities)
        case DoubleType():
            return None if infinities else _finite
        case DecimalType():
            return _cast(plain_type(target))
        case TimestamptzType():
            return partial(_within, target)
    return text_leaf(source, target)


def small_leaf(source: pa.DataType, target: IcebergType) -> Convert | None:
    """The conversion of a column that the reader of small bodies built."""
    match target:
        case FloatType():
            return partial(_single, infinities=False)
        case DoubleType():
            return _finite
    return text_leaf(source, target)


def text_leaf(source: pa.DataType, target: IcebergType) -> Convert | None:
    """The conversion of a text column for the types that have one text form in JSON and CSV alike."""
    match target:
        case DateType() | TimestampType():
            return _then(_cast(plain_type(target)), partial(_within, target))
        case TimeType():
            return _times
        case UUIDType():
            return _uuids
        case BinaryType():
            return partial(_each, text.parse_base64, pa.binary())
        case FixedType():
            return partial(_fixed, target)
    return None


def storage_leaf(source: pa.DataType, target: IcebergType) -> Convert | None:
    """The conversion of a column that was built from checked Python values."""
    return _as_uuid if isinstance(target, UUIDType) else None


def arrow_leaf(source: pa.DataType, target: IcebergType) -> Convert | None:
    """The lossless conversion of a caller's Arrow column; Unfit when its type is another kind of value."""
    wanted = plain_type(target)
    if pa.types.is_null(source):
        return lambda column: pa.nulls(len(column), wanted)
    if isinstance(target, _BOUNDED) and _same_kind(source, target):
        return _then(_cast(wanted), partial(_within, target))
    if isinstance(target, TimeType) and pa.types.is_time(source):
        return _then(_cast(wanted), _within_day)
    if source.equals(wanted):
        return None
    if convert := _lossless(source, target, wanted):
        return convert
    raise Unfit(f"expected {type_name(target)}, got Arrow type {source}")


_BOUNDED = (DateType, TimestampType, TimestamptzType)


def _same_kind(source: pa.DataType, target: IcebergType) -> bool:
    if isinstance(target, DateType):
        return bool(pa.types.is_date(source))
    return bool(pa.types.is_timestamp(source)) and (source.tz is not None) == isinstance(target, TimestamptzType)


def _lossless(source: pa.DataType, target: IcebergType, wanted: pa.DataType) -> Convert | None:
    types = pa.types
    match target:
        case IntegerType() | LongType() if types.is_integer(source) or types.is_floating(source):
            return _cast(wanted)  # pandas keeps integers with gaps as floats; a fraction is refused
        case FloatType() | DoubleType() if types.is_integer(source):
            return _cast(wanted)
        case FloatType() | DoubleType() if types.is_floating(source):
            return partial(_exact_float, wanted)
        case DecimalType() if types.is_integer(source):
            return lambda column: column.cast(pa.decimal128(20, 0)).cast(pa.decimal256(DECIMAL_DIGITS, 0)).cast(wanted)
        case DecimalType() if types.is_decimal(source):
            # Arrow checks a rescale only in the wider type: within 128 bits it may wrap. 38 digits and 38 more fit 256.
            wide = pa.decimal256(DECIMAL_DIGITS, source.scale)
            return lambda column: column.cast(wide).cast(wanted)
        case StringType() if types.is_large_string(source) or types.is_string_view(source):
            return _cast(wanted)
        case UUIDType() if source.equals(pa.binary(16)):
            return _as_uuid
        case UUIDType() if types.is_string(source) or types.is_large_string(source) or types.is_string_view(source):
            return lambda column: _uuids(column.cast(pa.string()))
        case BinaryType() | FixedType() if _is_bytes(source):
            return _then(_cast(pa.binary()), _cast(wanted))
    return None


def _is_bytes(source: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(kind(source) for kind in kinds)


def csv_leaf(source: pa.DataType, target: IcebergType) -> Convert | None:
    """The conversion of a CSV column, which comes as text."""
    wanted = plain_type(target)
    match target:
        case BooleanType():
            return lambda column: _matching(column, "(?i)^(true|false)$", target).cast(pa.bool_())
        case IntegerType() | LongType():
            return lambda column: _matching(column, "^-?(0|[1-9][0-9]*)$", target).cast(wanted)
        case FloatType() | DoubleType():
            single = _single if isinstance(target, FloatType) else (lambda column, infinities: column)
            return lambda column: single(_each(text.parse_float, pa.float64(), column), infinities=True)
        case DecimalType():
            parse = partial(text.parse_decimal, precision=target.precision, scale=target.scale)
            wide = pa.decimal256(DECIMAL_DIGITS, target.scale)
            # Digits that fit before and after the rescale; Arrow neither checks nor survives all others.
            return _if_matching(_SHORT_DECIMAL, _then(_cast(wide), _cast(wanted)), partial(_each, parse, wanted))
        case TimestamptzType():
            cast = _then(_cast(wanted), partial(_within, target))
            return _if_matching(_ZONED, cast, partial(_each, partial(text.parse_timestamp, zoned=True), wanted))
    return text_leaf(source, target)


def _cast(wanted: pa.DataType) -> Convert:
    return lambda column: column.cast(wanted)


def _then(first: Convert, second: Convert) -> Convert:
    return lambda column: second(first(column))


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())


def _finite(column: pa.Array) -> pa.Array:
    if _any(pc.is_inf(column)):
        raise Infinite("a number does not fit double")
    return column


def _single(column: pa.Array, infinities: bool) -> pa.Array:
    result = column.cast(pa.float32())
    infinite = pc.is_inf(result)
    if _any(infinite) and _any(pc.and_(infinite, pc.invert(pc.is_inf(column)))):
        raise Unfit("a number does not fit float")
    if not infinities and _any(infinite):
        raise Infinite("a number does not fit float")
    return result


def _exact_float(wanted: pa.DataType, column: pa.Array) -> pa.Array:
    result = column.cast(wanted, safe=False)
    same = pc.or_(pc.equal(result.cast(pa.float64()), column.cast(pa.float64())), pc.is_nan(column))
    if _any(pc.invert(same)):
        raise Unfit(f"a {column.type} value cannot be held exactly by {wanted}")
    return result


def _within(target: IcebergType, column: pa.Array) -> pa.Array:
    """The column, if every moment has a four-digit year from 0001 on: what SQL, Python and Spark can all show."""
    days = isinstance(target, DateType)
    unit = 1 if days else _DAY
    if not _between(column.view(pa.int32() if days else pa.int64()), _FIRST_DAY * unit, (_LAST_DAY + 1) * unit):
        raise Unfit(f"a value does not fit {type_name(target)}: years go from 0001 to 9999")
    return column


def _within_day(column: pa.Array) -> pa.Array:
    if not _between(column.view(pa.int64()), 0, _DAY):
        raise Unfit("a value does not fit time: it is not within one day")
    return column


def _between(column: pa.Array, start: int, stop: int) -> bool:
    extent = pc.min_max(column).as_py()
    return extent["min"] is None or (start <= extent["min"] and extent["max"] < stop)


def _times(column: pa.Array) -> pa.Array:
    # Arrow casts text to a timestamp but not to a time.
    moments = pc.binary_join_element_wise("1970-01-01", column, "T").cast(pa.timestamp("us"))
    return moments.cast(pa.time64("us"))


def _if_matching(pattern: str, quick: Convert, thorough: Convert) -> Convert:
    def convert(column: pa.Array) -> pa.Array:
        plain = pc.all(pc.match_substring_regex(column, pattern)).as_py()
        return quick(column) if plain is not False else thorough(column)

    return convert


def _matching(column: pa.Array, pattern: str, target: IcebergType) -> pa.Array:
    if _any(pc.invert(pc.match_substring_regex(column, pattern))):
        raise Unfit(f"a value is not of type {type_name(target)}")
    return column


def _uuids(column: pa.Array) -> pa.Array:
    dense = _matching(column, _UUID_TEXT, UUIDType()).drop_null()
    if not len(dense):
        return pa.nulls(len(column), pa.uuid())
    # Every text has 36 ASCII characters, so the characters form a matrix.
    _, offsets, letters = dense.buffers()
    start = np.frombuffer(offsets, np.int32)[dense.offset]
    digits = np.frombuffer(letters, np.uint8)[start : start + 36 * len(dense)].reshape(-1, 36)
    digits = np.delete(digits, _HYPHENS, axis=1)
    nibbles = np.where(digits > ord("9"), (digits | 32) - (ord("a") - 10), digits - ord("0"))
    packed = np.ascontiguousarray((nibbles[:, 0::2] << 4) | nibbles[:, 1::2])
    stored = pa.Array.from_buffers(pa.binary(16), len(dense), [None, pa.py_buffer(packed)])
    if column.null_count:
        places = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False)) - 1
        stored = stored.take(pa.array(places, mask=column.is_null().to_numpy(zero_copy_only=False)))
    return _as_uuid(stored)


def _as_uuid(column: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), column)


def _fixed(target: FixedType, column: pa.Array) -> pa.Array:
    return _each(text.parse_base64, pa.binary(), column).cast(plain_type(target))


def _each(parse: Callable[[str], object], wanted: pa.DataType, column: pa.Array) -> pa.Array:
    """The column by a Python function of each text, for forms that Arrow has no strict or no safe parser for."""
    try:
        return pa.array([None if value is None else parse(value) for value in column.to_pylist()], wanted)
    except ValueError as error:
        raise Unfit(f"a value does not fit {wanted}") from error
