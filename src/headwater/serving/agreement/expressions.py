"""Expressions of Spark SQL in DuckDB's SQL, node by node; a node that is not listed here is not proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headwater.serving.agreement import literals, operators
from headwater.serving.agreement import types as t
from headwater.serving.agreement.casts import cast_by_name, failing
from headwater.serving.agreement.functions import CASTS, PARTS, SCALARS, part
from headwater.serving.agreement.operators import ARITHMETIC, COMPARISONS
from headwater.serving.agreement.parsing import only
from headwater.serving.agreement.relations import Reads
from headwater.serving.agreement.scope import Column, Scope, field
from headwater.serving.agreement.values import NotProven, Typed, spelled, written_call

PREDICATES = (*COMPARISONS, exp.In, exp.Between, exp.Like, exp.Is, exp.Not, exp.And, exp.Or, exp.Exists, exp.Interval)
"""Nodes whose place among other operators sqlglot and Spark see differently unless there are parentheses."""

_EXTRACTED = {"year", "quarter", "month", "week", "day", "hour", "minute", "dayofweek", "doy"}


class Expressions:
    """Translates expressions over a scope. What aggregates, ranks or asks a subquery is left to subclasses and hooks.

    `whole_structs` reads a struct as a whole when one field of it is wanted. DuckDB fails internally, and its database
    with it, when it sorts and cuts rows that it filtered by a field it read alone.
    """

    def __init__(
        self,
        scope: Scope,
        reads: Reads,
        subquery: Callable[[exp.Expression], tuple[str, Sequence[tuple[str, pa.DataType]]]],
        whole_structs: bool = False,
    ) -> None:
        self.scope = scope
        self.reads = reads
        self.subquery = subquery
        self.whole_structs = whole_structs

    def expr(self, node: exp.Expression) -> Typed:
        """A node's translation."""
        handler = HANDLERS.get(type(node))
        if handler is None:
            raise NotProven(f"{type(node).__name__.lower()} is not proven to agree")
        found = handler(self, node)
        self.reads.count_text(found.sql)
        return found

    def condition(self, node: exp.Expression) -> str:
        """A boolean expression's SQL."""
        return operators.boolean_only(self.expr(node)).sql

    def operand(self, node: exp.Expression) -> Typed:
        """An operand of an operator, refused where only parentheses would say how Spark groups it."""
        if isinstance(node, PREDICATES):
            raise NotProven("operators without parentheses are not proven to group alike")
        return self.expr(node)

    def column(self, column: Column, written: str) -> Typed:
        """A column under the name it was called by."""
        if column.type is None:
            raise NotProven(f'the type of column "{written}" is not proven to agree')
        self.reads.column(column)
        return Typed(column.sql, column.type, written, attribute=written)

    def fields(self, base: Typed, names: Sequence[str]) -> Typed:
        """A field inside a struct."""
        found = base
        for name in names:
            found = field(found, name)
        if not self.whole_structs or not names:
            return found
        return replace(found, sql=f"(CASE WHEN {base.sql} IS NULL THEN NULL ELSE {found.sql} END)")

    def call(self, node: exp.Anonymous) -> Typed:
        """A function call."""
        only(node, "this", "expressions")
        name = str(node.this).lower()
        if name in CASTS and isinstance(node.this, str) and len(node.expressions) == 1:
            return cast_by_name(self.expr(node.expressions[0]), CASTS[name])
        proven = SCALARS.get(name)
        if proven is None or not isinstance(node.this, str):
            raise NotProven(f'function "{name}" is not proven to agree')
        if not proven.least <= len(node.expressions) <= proven.most:
            raise NotProven(f'function "{name}" with {len(node.expressions)} arguments is not proven to agree')
        args = [self.expr(argument) for argument in node.expressions]
        sql, of = proven.build(args)
        shown = [a.name for a in args] + list(proven.defaults if len(args) < proven.most else ())
        return Typed(sql, of, written_call(proven.shown or name, shown), all(a.constant for a in args))

    def window(self, node: exp.Window) -> Typed:
        """A window function."""
        raise NotProven("a window function here is not proven to agree")


def _column(self: Expressions, node: exp.Expression) -> Typed:
    parts = _parts(node)
    column, fields = self.scope.resolve(parts)
    found = self.column(column, parts[-len(fields) - 1])
    found = self.fields(found, fields)
    return Typed(found.sql, found.type, found.name, attribute=parts[-1])


def _parts(node: exp.Expression) -> list[str]:
    if isinstance(node, exp.Dot):
        only(node, "this", "expression")
        return [*_parts(node.this), *_parts(node.expression)]
    if isinstance(node, exp.Identifier):
        return [node.name]
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        only(node, "this", "table", "db", "catalog")
        return [part.name for part in node.parts]
    raise NotProven(f"{type(node).__name__.lower()} is not proven to agree")


def _dot(self: Expressions, node: exp.Expression) -> Typed:
    root = node
    while isinstance(root, exp.Dot):
        root = root.this
    if isinstance(root, exp.Column):
        return _column(self, node)
    base = self.expr(node.this)
    found = self.fields(base, [node.expression.name])
    return replace(found, attribute=node.expression.name if base.attribute else None)


def _paren(self: Expressions, node: exp.Expression) -> Typed:
    return self.expr(node.this)


def _exists(self: Expressions, node: exp.Expression) -> Typed:
    return Typed(f"EXISTS ({self.subquery(node.this)[0]})", t.BOOLEAN, "exists()", True)


def _scalar(self: Expressions, node: exp.Expression) -> Typed:
    sql, columns = self.subquery(node)
    if len(columns) != 1:
        raise NotProven("a subquery of several columns is not proven to agree")
    return Typed(f"({sql})", columns[0][1], "scalarsubquery()", True)


def _extract(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "expression")
    unit = node.this.name.lower()
    if unit not in _EXTRACTED:
        raise NotProven(f'extract of "{unit}" is not proven to agree')
    value = self.operand(node.expression)
    sql, of = part(unit, value) if unit in PARTS else part("day", value)
    # sqlglot writes the unit in upper case, Spark's name keeps what was written.
    return Typed(sql, of, None, value.constant)


def _bracket(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "expressions")
    base, key = self.operand(node.this), self.operand(node.expressions[0])
    name = spelled("{}[{}]", base, key)
    if pa.types.is_list(base.type) and isinstance(key.literal, int) and key.literal >= 0 and key.type == t.INT:
        # Spark raises where an array is too short; DuckDB counts from 1 and gives null.
        guard = f"CASE WHEN len({base.sql}) <= {key.literal} THEN {failing('no such element', t.INT)}"
        return Typed(f"{base.sql}[{guard} ELSE {key.literal + 1} END]", base.type.value_type, name)
    if pa.types.is_map(base.type) and key.type == base.type.key_type and t.is_comparable(key.type):
        return Typed(f"{base.sql}[{key.sql}]", base.type.item_type, name)
    raise NotProven("this element access is not proven to agree")


def _current(name: str) -> Callable[[Expressions, exp.Expression], Typed]:
    def build(self: Expressions, node: exp.Expression) -> Typed:
        only(node)
        return self.call(exp.Anonymous(this=name))

    return build


HANDLERS: dict[type[exp.Expression], Callable[[Expressions, Any], Typed]] = {
    exp.Column: _column,
    exp.Dot: _dot,
    exp.Literal: literals.literal,
    exp.Boolean: literals.boolean,
    exp.Null: literals.null,
    exp.Paren: _paren,
    exp.Neg: literals.negative,
    exp.And: operators.connected("AND"),
    exp.Or: operators.connected("OR"),
    exp.Not: operators.negation,
    exp.Is: operators.null_test,
    exp.Between: operators.between,
    exp.In: operators.membership,
    exp.Exists: _exists,
    exp.Subquery: _scalar,
    exp.Like: operators.like,
    exp.Case: operators.case,
    exp.If: operators.conditional,
    exp.Cast: literals.typed_literal,
    exp.TryCast: literals.written_cast,
    exp.Extract: _extract,
    exp.Bracket: _bracket,
    exp.DPipe: operators.concatenation,
    exp.CurrentDate: _current("current_date"),
    exp.CurrentTimestamp: _current("current_timestamp"),
    exp.Anonymous: lambda self, node: self.call(node),
    exp.Window: lambda self, node: self.window(node),
    **dict.fromkeys(COMPARISONS, operators.comparison),
    **dict.fromkeys(ARITHMETIC, operators.arithmetic_operation),
}
