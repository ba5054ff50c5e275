"""`ORDERED BY (a ASC NULLS LAST, b DESC)` and `CLUSTERED BY ZORDER (a, b)`: how rows lie in files."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, IcebergType

from headwater.errors import InvalidSchema
from headwater.sql.cursor import Cursor
from headwater.sql.partitioning import unknown_column
from headwater.types import SortKey

MAX_KEYS = 16
MAX_ZORDER = 8


def parse_ordering(text: str) -> tuple[SortKey, ...]:
    """The keys of a text such as `a ASC NULLS LAST, b DESC`; none for an empty text."""
    cursor = Cursor(text, context="ordering")
    if cursor.token.kind == "end":
        return ()
    keys = read_ordering(cursor)
    cursor.expect_end()
    return keys


def parse_clustering(text: str) -> tuple[str, ...]:
    """The columns of a text such as `a, b`."""
    cursor = Cursor(text, context="clustering")
    if cursor.token.kind == "end":
        return ()
    columns = read_clustering(cursor)
    cursor.expect_end()
    return columns


def read_ordering(cursor: Cursor) -> tuple[SortKey, ...]:
    """Read sort keys separated by commas."""
    keys = [_read_key(cursor)]
    while cursor.accept_symbol(","):
        keys.append(_read_key(cursor))
    return tuple(keys)


def _read_key(cursor: Cursor) -> SortKey:
    column = _read_column(cursor)
    descending = cursor.accept("DESC")
    if not descending:
        cursor.accept("ASC")
    nulls_first = not descending
    if cursor.accept("NULLS"):
        nulls_first = cursor.accept("FIRST")
        if not nulls_first:
            cursor.expect("LAST")
    return SortKey(column, descending, nulls_first)


def read_clustering(cursor: Cursor) -> tuple[str, ...]:
    """Read the columns of a Z-order, separated by commas."""
    columns = [_read_column(cursor)]
    while cursor.accept_symbol(","):
        columns.append(_read_column(cursor))
    return tuple(columns)


def _read_column(cursor: Cursor) -> str:
    if cursor.token.kind not in ("word", "quoted"):
        raise cursor.unexpected("a column name")
    column = cursor.advance().value
    if cursor.at_symbol("."):
        raise cursor.unexpected("a top-level column", hint="Rows cannot be ordered by fields inside a struct.")
    return column


def check_ordering(schema: Schema, keys: Iterable[SortKey]) -> tuple[SortKey, ...]:
    """The same keys, if rows can be sorted by them; otherwise InvalidSchema."""
    found = tuple(keys)
    _check_columns(schema, [key.column for key in found], "ordering")
    if len(found) > MAX_KEYS:
        raise InvalidSchema(f"ordering has {len(found)} columns", detail=f"It has {MAX_KEYS} at the most.")
    return found


def check_clustering(schema: Schema, columns: Iterable[str], ordering: tuple[SortKey, ...]) -> tuple[str, ...]:
    """The same columns, if rows can be clustered by them; otherwise InvalidSchema."""
    found = tuple(columns)
    if not found:
        return found
    if ordering:
        raise InvalidSchema(
            "topic has both an ordering and a clustering",
            detail="Rows lie in one order.",
            hint="Leave one of them out.",
        )
    of = _check_columns(schema, found, "clustering")
    if not 2 <= len(found) <= MAX_ZORDER:
        raise InvalidSchema(
            f"clustering has {len(found)} column{'' if len(found) == 1 else 's'}",
            detail=f"A Z-order goes through 2 to {MAX_ZORDER} columns.",
            hint=f"Use ORDERED BY ({found[0]})." if len(found) == 1 else None,
        )
    if flag := next((name for name, each in zip(found, of, strict=True) if isinstance(each, BooleanType)), None):
        raise InvalidSchema(f'clustering names the boolean column "{flag}"', hint="Order or partition by it instead.")
    return found


def _check_columns(schema: Schema, names: Iterable[str], what: str) -> list[IcebergType]:
    columns = {field.name: field.field_type for field in schema.fields}
    seen: set[str] = set()
    found: list[IcebergType] = []
    for name in names:
        of = columns.get(name)
        if of is None:
            raise unknown_column(what, name, tuple(columns))
        if not of.is_primitive:
            raise InvalidSchema(
                f'{what} names the nested column "{name}"', detail="Only primitive columns have an order."
            )
        if name in seen:
            raise InvalidSchema(f'{what} names column "{name}" twice')
        seen.add(name)
        found.append(of)
    return found
