"""Spark's types and its rules for combining them, with Arrow's types as the vocabulary.

Only what is exact is here: where Spark would lose precision (a decimal beyond 38 digits), the rules raise NotProven.
"""

from __future__ import annotations

import pyarrow as pa
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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.serving.agreement.values import NotProven

NULL = pa.null()
BOOLEAN = pa.bool_()
INT = pa.int32()
BIGINT = pa.int64()
FLOAT = pa.float32()
DOUBLE = pa.float64()
STRING = pa.string()
BINARY = pa.binary()
DATE = pa.date32()
TIME = pa.time64("us")
TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

INTEGRAL = (INT, BIGINT)
FRACTIONAL = (FLOAT, DOUBLE)
TIMESTAMPS = (TIMESTAMP, TIMESTAMP_NTZ)
DATETIMES = (DATE, *TIMESTAMPS)
MAX_PRECISION = 38

_PRIMITIVES: dict[type[IcebergType], pa.DataType] = {
    BooleanType: BOOLEAN,
    IntegerType: INT,
    LongType: BIGINT,
    FloatType: FLOAT,
    DoubleType: DOUBLE,
    DateType: DATE,
    TimeType: TIME,
    TimestampType: TIMESTAMP_NTZ,
    TimestamptzType: TIMESTAMP,
    StringType: STRING,
    UUIDType: STRING,
    BinaryType: BINARY,
    FixedType: BINARY,
}
_NAMES: dict[pa.DataType, tuple[str, str]] = {
    BOOLEAN: ("BOOLEAN", "BOOLEAN"),
    INT: ("INT", "INTEGER"),
    BIGINT: ("BIGINT", "BIGINT"),
    FLOAT: ("FLOAT", "FLOAT"),
    DOUBLE: ("DOUBLE", "DOUBLE"),
    STRING: ("STRING", "VARCHAR"),
    BINARY: ("BINARY", "BLOB"),
    DATE: ("DATE", "DATE"),
    TIMESTAMP: ("TIMESTAMP", "TIMESTAMPTZ"),
    TIMESTAMP_NTZ: ("TIMESTAMP_NTZ", "TIMESTAMP"),
}


def spark_type(of: IcebergType) -> pa.DataType:
    """The type in which Spark shows values of an Iceberg type, as `toArrow` of PySpark gives it."""
    match of:
        case DecimalType():
            return pa.decimal128(of.precision, of.scale)
        case ListType():
            return pa.list_(pa.field("element", _nested(of.element_type), nullable=not of.element_required))
        case MapType():
            value = pa.field("value", _nested(of.value_type), nullable=not of.value_required)
            return pa.map_(pa.field("key", _nested(of.key_type), nullable=False), value)
        case StructType():
            return pa.struct([pa.field(f.name, _nested(f.field_type), nullable=not f.required) for f in of.fields])
    if known := _PRIMITIVES.get(type(of)):
        return known
    raise NotProven(f'type "{of}" is not proven to agree')


def _nested(of: IcebergType) -> pa.DataType:
    # A column is converted where it is read; a value inside another one would surface as DuckDB's UUID or TIME.
    if isinstance(of, UUIDType | TimeType):
        raise NotProven(f'type "{of}" inside another type is not proven to agree')
    return spark_type(of)


def duck_name(of: pa.DataType) -> str:
    """The DuckDB type that holds a Spark type's values."""
    return f"DECIMAL({of.precision},{of.scale})" if is_decimal(of) else _name(of)[1]


def spark_name(of: pa.DataType) -> str:
    """A type as Spark writes it in the names of result columns."""
    return f"DECIMAL({of.precision},{of.scale})" if is_decimal(of) else _name(of)[0]


def _name(of: pa.DataType) -> tuple[str, str]:
    if known := _NAMES.get(of):
        return known
    raise NotProven(f'type "{of}" is not proven to agree here')


def is_decimal(of: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(of))


def is_integral(of: pa.DataType) -> bool:
    return of in INTEGRAL


def is_fractional(of: pa.DataType) -> bool:
    return of in FRACTIONAL


def is_numeric(of: pa.DataType) -> bool:
    return is_integral(of) or is_fractional(of) or is_decimal(of)


def is_comparable(of: pa.DataType) -> bool:
    """Whether both engines compare, sort and group values of this type alike."""
    return is_decimal(of) or of in _NAMES


def decimal(precision: int, scale: int) -> pa.DataType:
    """Spark's decimal type, when it keeps every digit."""
    if precision > MAX_PRECISION:
        raise NotProven("decimals beyond 38 digits are not proven to agree")
    return pa.decimal128(precision, scale)


def as_decimal(of: pa.DataType) -> pa.DataType:
    """The decimal type that Spark gives to a whole number or a decimal."""
    if is_decimal(of):
        return of
    return decimal(10, 0) if of == INT else decimal(20, 0)


def wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The decimal type that holds the values of both."""
    scale = max(left.scale, right.scale)
    return decimal(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def decimal_result(operator: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of a decimal `+`, `-`, `*` or `/` in Spark."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    match operator:
        case "+" | "-":
            scale = max(s1, s2)
            return decimal(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case "*":
            return decimal(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(6, s1 + p2 + 1)
            return decimal(p1 - s1 + s2 + scale, scale)
    raise NotProven(f'operator "{operator}" on decimals is not proven to agree')


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type to which Spark brings two values that must be of one type (ANSI rules)."""
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right)
    if left in DATETIMES and right in DATETIMES:
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    raise NotProven(f'types "{_shown(left)}" and "{_shown(right)}" together are not proven to agree')


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_fractional(left) or is_fractional(right):
        return FLOAT if left == right == FLOAT else DOUBLE
    if is_decimal(left) or is_decimal(right):
        return wider_decimal(as_decimal(left), as_decimal(right))
    return BIGINT


def _shown(of: pa.DataType) -> str:
    try:
        return spark_name(of).lower()
    except NotProven:
        return str(of)
