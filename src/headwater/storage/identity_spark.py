"""What tells two values apart where GROUP BY does not: the sign of a zero, and maps.

A view adds rows and takes them back by their values, so equal must mean the same: grouped as they are, 0.0 and -0.0 are
one value, and a map fails where one of its values is null.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructField, StructType


def identity(field: StructField) -> tuple[str, ...] | None:
    """The SQL expressions to group by in place of a column; None for one that is grouped as it is."""
    name = _quoted(field.name)
    if isinstance(field.dataType, DoubleType | FloatType):
        return (name, _is_minus_zero(name))
    return None if _is_plain(field.dataType) else (_exact(name, field.dataType, 0),)


def identities(fields: Iterable[StructField]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns that are not grouped as they are, with the SQL expressions to group by in their place."""
    return tuple((field.name, found) for field in fields if (found := identity(field)) is not None)


def _is_plain(of: DataType) -> bool:
    """Whether GROUP BY tells all values of the type apart."""
    match of:
        case DoubleType() | FloatType() | MapType():
            return False
        case ArrayType():
            return _is_plain(of.elementType)
        case StructType():
            return all(_is_plain(field.dataType) for field in of.fields)
        case _:
            return True


def _exact(value: str, of: DataType, depth: int) -> str:
    """The value in a form that GROUP BY tells apart from every other one."""
    if _is_plain(of):
        return value
    each = f"e{depth}"
    match of:
        case MapType():
            entry = StructType([StructField("key", of.keyType), StructField("value", of.valueType)])
            return _exact(f"MAP_ENTRIES({value})", ArrayType(entry), depth)
        case ArrayType():
            inside = _exact(each, of.elementType, depth + 1)
            return value if inside == each else f"TRANSFORM({value}, {each} -> {inside})"
        case StructType():
            parts = [
                f"'f{place}', {_exact(f'{value}.{_quoted(field.name)}', field.dataType, depth)}"
                for place, field in enumerate(of.fields)
            ]
            return f"CASE WHEN {value} IS NOT NULL THEN NAMED_STRUCT({', '.join(parts)}) END"
        case _:
            return f"NAMED_STRUCT('v', {value}, 'z', {_is_minus_zero(value)})"


def _is_minus_zero(value: str) -> str:
    return f"({value} = 0 AND CAST({value} AS STRING) = '-0.0')"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
