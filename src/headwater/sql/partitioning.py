"""`PARTITIONED BY (days(placed_at), bucket(8, customer))`: from text to partition fields that fit the columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema

from headwater.errors import InvalidSchema
from headwater.sql.cursor import Cursor, closest
from headwater.types import SYSTEM_COLUMNS, Partition, Transform

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform as IcebergTransform

_TRANSFORMS: dict[str, Transform] = {
    "IDENTITY": "identity",
    "BUCKET": "bucket",
    "TRUNCATE": "truncate",
    "YEAR": "year",
    "YEARS": "year",
    "MONTH": "month",
    "MONTHS": "month",
    "DAY": "day",
    "DAYS": "day",
    "HOUR": "hour",
    "HOURS": "hour",
}
_TIME: tuple[Transform, ...] = ("year", "month", "day", "hour")
_MAX_PARAMETER = 2**31 - 1


def parse_partitioning(text: str) -> tuple[Partition, ...]:
    """The partition fields of a text such as `days(placed_at), bucket(8, customer)`; none for an empty text."""
    cursor = Cursor(text, context="partitioning")
    if cursor.token.kind == "end":
        return ()
    parts = read_partitioning(cursor)
    cursor.expect_end()
    return parts


def read_partitioning(cursor: Cursor) -> tuple[Partition, ...]:
    """Read partition fields separated by commas."""
    parts = [_read_partition(cursor)]
    while cursor.accept_symbol(","):
        parts.append(_read_partition(cursor))
    return tuple(parts)


def _read_partition(cursor: Cursor) -> Partition:
    token, bracket = cursor.token, cursor.ahead(1)
    if not (token.kind == "word" and bracket.kind == "symbol" and bracket.text == "("):
        return Partition("identity", _read_column(cursor))
    transform = _TRANSFORMS.get(token.keyword)
    if transform is None:
        guess = closest(token.text, ("identity", "bucket", "truncate", "years", "months", "days", "hours"))
        raise cursor.located(
            InvalidSchema(
                f'partition transform "{token.text[:64]}" is not known',
                detail="There are years, months, days, hours, bucket(n, x), truncate(n, x) and identity.",
                hint=f"Did you mean {guess}?" if guess else None,
            )
        )
    cursor.advance()
    cursor.advance()
    parameter = None
    if transform in ("bucket", "truncate"):
        parameter = cursor.integer(f"the number of {transform}(8, x)")
        cursor.expect_symbol(",", "the number")
    column = _read_column(cursor)
    cursor.expect_symbol(")", "the column")
    return Partition(transform, column, parameter)


def _read_column(cursor: Cursor) -> str:
    """A column's name as it is written: whether there is such a column is checked against the schema, not here."""
    if cursor.token.kind not in ("word", "quoted"):
        raise cursor.unexpected("a column name")
    column = cursor.advance().value
    if cursor.at_symbol("."):
        raise cursor.unexpected("a top-level column", hint="Fields inside a struct cannot be partitioned by.")
    return column


def check_partitioning(schema: Schema, parts: Iterable[Partition]) -> tuple[Partition, ...]:
    """The same partition fields, if Iceberg can partition these columns that way; otherwise InvalidSchema."""
    result = tuple(parts)
    names: set[str] = set()
    timed: set[str] = set()
    for part in result:
        _check_source(schema, part)
        if part.name in names or (part.transform in _TIME and part.column in timed):
            raise InvalidSchema(
                f'column "{part.column}" is partitioned twice',
                detail="A column has one partition field per transform, and one of years, months, days and hours.",
            )
        if part.transform != "identity" and part.name in schema.column_names:
            raise InvalidSchema(
                f'partition "{part}" has the name of column "{part.name}"', hint=f'Rename the column "{part.name}".'
            )
        names.add(part.name)
        if part.transform in _TIME:
            timed.add(part.column)
    return result


def _check_source(schema: Schema, part: Partition) -> None:
    columns = {field.name: field.field_type for field in schema.fields}
    of = columns.get(part.column)
    if of is None:
        raise unknown_column(f'partition "{part}"', part.column, tuple(columns))
    if not of.is_primitive:
        raise InvalidSchema(
            f'partition "{part}" is of a nested column', detail="Only primitive columns can be partitioned by."
        )
    if not _iceberg_transform(part).can_transform(of):
        raise InvalidSchema(
            f'partition "{part}" cannot be made of a column of type "{of}"', detail=_TAKES[part.transform]
        )


def unknown_column(where: str, column: str, columns: tuple[str, ...]) -> InvalidSchema:
    """The error for something that names a column which the topic does not have."""
    if column in SYSTEM_COLUMNS:
        return InvalidSchema(f'{where} names the system column "{column}"', hint="Use one of the topic's own columns.")
    guess = closest(column, columns)
    shown = ", ".join(columns[:20]) + (", …" if len(columns) > 20 else "")
    return InvalidSchema(
        f'{where} names the unknown column "{column[:128]}"',
        detail=f"The columns are {shown}.",
        hint=f'Did you mean "{guess}"?' if guess else None,
    )


_TAKES: dict[Transform, str] = {
    "identity": "Every primitive column can be partitioned by its value.",
    "bucket": "Columns of type boolean, float and double cannot be bucketed.",
    "truncate": "Integers, decimals, strings and binary columns can be truncated.",
    "year": "Dates and timestamps have years.",
    "month": "Dates and timestamps have months.",
    "day": "Dates and timestamps have days.",
    "hour": "Timestamps have hours.",
}


def _iceberg_transform(part: Partition) -> IcebergTransform[Any, Any]:
    """Iceberg's transform, which knows the types that it takes."""
    from pyiceberg import transforms

    takes_number = part.transform in ("bucket", "truncate")
    number = part.parameter
    if takes_number and (number is None or isinstance(number, bool) or not 1 <= number <= _MAX_PARAMETER):
        raise InvalidSchema(
            f'partition "{part}" needs a number from 1 to {_MAX_PARAMETER}',
            hint=f"Write {part.transform}(8, {part.column}).",
        )
    if not takes_number and number is not None:
        raise InvalidSchema(f'partition "{part}" takes no number')
    match part.transform:
        case "identity":
            return transforms.IdentityTransform()
        case "bucket":
            return transforms.BucketTransform(number or 0)
        case "truncate":
            return transforms.TruncateTransform(number or 0)
        case "year":
            return transforms.YearTransform()
        case "month":
            return transforms.MonthTransform()
        case "day":
            return transforms.DayTransform()
        case "hour":
            return transforms.HourTransform()
