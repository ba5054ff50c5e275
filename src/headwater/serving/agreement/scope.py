"""Names to columns, as Spark resolves them: without regard to case, qualified first, then as a field of a struct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.serving.agreement.values import Ambiguous, NotProven, Typed


def quoted(name: str) -> str:
    """An identifier in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(value: str) -> str:
    """A string in DuckDB's SQL."""
    if "\x00" in value:
        raise NotProven("a zero byte in a string literal is not proven to agree")
    return "'" + value.replace("'", "''") + "'"


@dataclass(eq=False, slots=True)
class Reference:
    """One place where a query reads a stored table, and what rows must meet there to have an effect on the result."""

    table: str
    schema: Schema
    filter: BooleanExpression = AlwaysTrue()  # noqa: RUF009  a value without parts


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a relation offers; `table` and `origin` name the stored column it is, if it is one.

    A column of a type that is not proven has no type: it is in the way of nothing until it is read. `stored` are the
    stored columns whose values it has, each row the value of the row below it: several below a set operation.
    """

    name: str
    sql: str
    type: pa.DataType | None
    table: str | None = None
    origin: str | None = None
    stored: tuple[tuple[Reference, NestedField], ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """One item of FROM: the qualifier it goes by in the query, and its columns."""

    qualifier: str | None
    columns: tuple[Column, ...]

    def named(self, name: str) -> list[Column]:
        return [column for column in self.columns if column.name.lower() == name]


@dataclass(frozen=True, slots=True)
class Scope:
    """The relations that an expression may speak about."""

    relations: tuple[Relation, ...]

    def resolve(self, parts: Sequence[str]) -> tuple[Column, Sequence[str]]:
        """The column that a dotted name means, and the struct fields that follow it."""
        low = [part.lower() for part in parts]
        found: list[Column] = []
        used = 2
        if len(parts) > 1:
            found = [c for r in self._qualified(low[0]) for c in r.named(low[1])]
        if not found:
            used = 1
            found = [c for r in self.relations for c in r.named(low[0])]
        if len(found) > 1:
            raise Ambiguous(f'column "{".".join(parts)}" is ambiguous')
        if not found:
            raise NotProven(f'column "{".".join(parts)}" does not exist')
        return found[0], parts[used:]

    def star(self, qualifier: str | None) -> list[Column]:
        """The columns that `*` or `qualifier.*` stands for."""
        relations = self.relations if qualifier is None else self._qualified(qualifier.lower())
        if not relations:
            raise NotProven(f'table "{qualifier}" does not exist' if qualifier else "there is nothing to select from")
        return [column for relation in relations for column in relation.columns]

    def _qualified(self, qualifier: str) -> Sequence[Relation]:
        return [r for r in self.relations if r.qualifier is not None and r.qualifier.lower() == qualifier]


def field(base: Typed, name: str) -> Typed:
    """A field of a struct."""
    if not pa.types.is_struct(base.type):
        raise NotProven(f'field "{name}" of something that is not a struct')
    found = [f for f in base.type if f.name.lower() == name.lower()]
    if len(found) != 1:
        raise NotProven(f'field "{name}" {"is ambiguous" if found else "does not exist"}')
    sql = f"struct_extract({base.sql}, {text_literal(found[0].name)})"
    return Typed(sql, found[0].type, f"{base.name}.{name}" if base.name else None)
