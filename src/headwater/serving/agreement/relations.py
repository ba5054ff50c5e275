"""What stands in FROM: topics, views, subqueries, common table expressions and joins, in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, UUIDType
from sqlglot import exp

from headwater.serving.agreement.casts import aware, cast, failing, naive
from headwater.serving.agreement.folds import sorts
from headwater.serving.agreement.intervals import micros_of
from headwater.serving.agreement.parsing import only
from headwater.serving.agreement.scope import Column, Relation, Scope, quoted
from headwater.serving.agreement.types import BIGINT, INT, TIMESTAMP, TIMESTAMPS, spark_type
from headwater.serving.agreement.values import MAX_ALL_TEXT, MAX_RELATIONS, Folded, NotProven, Tables, Typed
from headwater.types import TOPICS

JOINS: Mapping[tuple[str, str], str] = {
    ("", ""): "JOIN",
    ("", "INNER"): "JOIN",
    ("", "CROSS"): "CROSS JOIN",
    ("LEFT", ""): "LEFT JOIN",
    ("LEFT", "OUTER"): "LEFT JOIN",
    ("RIGHT", ""): "RIGHT JOIN",
    ("RIGHT", "OUTER"): "RIGHT JOIN",
    ("FULL", ""): "FULL JOIN",
    ("FULL", "OUTER"): "FULL JOIN",
    ("LEFT", "SEMI"): "SEMI JOIN",
    ("", "SEMI"): "SEMI JOIN",
    ("LEFT", "ANTI"): "ANTI JOIN",
    ("", "ANTI"): "ANTI JOIN",
}


@dataclass(frozen=True, slots=True)
class Query:
    """A translated query: its columns are c0, c1, … in `sql`, and these in Spark."""

    sql: str
    columns: tuple[tuple[str | None, pa.DataType], ...]
    ordered: bool = False


@dataclass(slots=True)
class Reads:
    """Collects, while a query is translated, the columns that it reads of each stored table, and its size."""

    columns: dict[str, set[str]] = field(default_factory=dict)
    aliases: int = 0
    text: int = 0  # characters of all parts so far
    sorts: bool = False  # whether a view that it reads sorts rows

    def alias(self) -> str:
        self.aliases += 1
        if self.aliases > MAX_RELATIONS:
            raise NotProven("it joins too many tables")
        return f"t{self.aliases}"

    def count_text(self, sql: str) -> None:
        """NotProven where the parts of the translation have become too long together."""
        self.text += len(sql)
        if self.text > MAX_ALL_TEXT:
            raise NotProven("the statement is too long")

    def table(self, name: str) -> set[str]:
        return self.columns.setdefault(name, set())

    def column(self, column: Column) -> None:
        if column.table is not None and column.origin is not None:
            self.columns[column.table].add(column.origin)


@dataclass(frozen=True, slots=True)
class Known:
    """What a table name can mean: a topic or a view, or a common table expression that is in sight."""

    tables: Tables
    expressions: Mapping[str, Callable[[], Query]]


def table_name(node: exp.Table, tables: Tables) -> str:
    """The topic or view that `orders`, `topics.orders` or `topic('orders')` names."""
    call = node.this
    if isinstance(call, exp.Anonymous) and str(call.this).lower() == "topic" and len(call.expressions) == 1:
        only(call, "this", "expressions")
        name = call.expressions[0].this if isinstance(call.expressions[0], exp.Literal) else ""
    else:
        name = node.name if isinstance(call, exp.Identifier) else ""
    found = str(name).lower()
    # One look-up, not a search: `tables` may read a table when it is asked for it.
    if not found or node.text("catalog") or node.db.lower() not in ("", TOPICS) or found not in tables:
        raise NotProven(f'table "{name or node.sql("spark")}" does not exist')
    return found


def stored_relation(table: str, schema: Schema, qualifier: str, alias: str) -> Relation:
    """A stored table's columns, under the alias that DuckDB's SQL gives it."""
    names = [column.name.lower() for column in schema.fields]
    if len(set(names)) != len(names):
        raise NotProven(f'columns of topic "{table}" that differ in case only are not proven to agree')
    return Relation(qualifier, tuple(_stored(table, column, alias) for column in schema.fields))


def _stored(table: str, column: NestedField, alias: str) -> Column:
    sql = f"{alias}.{quoted(column.name)}"
    if isinstance(column.field_type, UUIDType):
        sql = f"CAST({sql} AS VARCHAR)"
    try:
        of = spark_type(column.field_type)
    except NotProven:
        of = None
    return Column(column.name, sql, of, table, column.name)


def items(select: exp.Select) -> list[exp.Expression]:
    """The items of FROM, in the order in which they are written."""
    origin = select.args.get("from_")
    return [] if origin is None else [origin.this, *(join.this for join in select.args.get("joins") or [])]


class From:
    """Translates one FROM clause."""

    def __init__(
        self,
        known: Known,
        reads: Reads,
        query: Callable[[exp.Expression], Query],
        folded: Callable[[Folded], tuple[Query, frozenset[str]]],
    ) -> None:
        self.known = known
        self.reads = reads
        self.query = query
        self.folded = folded

    def translate(self, select: exp.Select, on: Callable[[Scope, exp.Expression], str]) -> tuple[str, Scope]:
        """The SQL after FROM, and the scope it opens."""
        found = [self._item(item) for item in items(select)]
        relations = [relation for _, relation in found]
        if not found:
            return "", Scope(())
        sql, visible = found[0][0], [relations[0]]
        for number, join in enumerate(select.args.get("joins") or [], 1):
            word = _join_word(join, explicit=bool(join.args.get("on")))
            here = Scope((*visible, relations[number]))
            sql += f" {word} {found[number][0]}" + (f" ON {on(here, join.args['on'])}" if join.args.get("on") else "")
            if word not in ("SEMI JOIN", "ANTI JOIN"):
                visible.append(relations[number])
        return sql, Scope(tuple(visible))

    def _item(self, node: exp.Expression) -> tuple[str, Relation]:
        alias = self.reads.alias()
        if isinstance(node, exp.Subquery):
            only(node, "this", "alias")
            return self._derived(self.query(node.this), _qualifier(node), alias)
        if not isinstance(node, exp.Table):
            raise NotProven(f"{type(node).__name__.lower()} in from is not proven to agree")
        expression = self.known.expressions.get(node.name.lower()) if not node.db else None
        if expression is not None and isinstance(node.this, exp.Identifier):
            only(node, "this", "alias")
            return self._derived(expression(), _qualifier(node) or node.name, alias)
        only(node, "this", "alias", "db")
        name = table_name(node, self.known.tables)
        table = self.known.tables[name]
        if isinstance(table, Folded):
            return self._derived(self._view(name, table), _qualifier(node) or name, alias)
        self.reads.table(name)
        return f"{quoted(name)} AS {alias}", stored_relation(name, table, _qualifier(node) or name, alias)

    def _view(self, name: str, view: Folded) -> Query:
        try:
            query, columns = self.folded(view)
        except NotProven as reason:
            raise NotProven(f'view "{name}" is made of its states by Spark alone: {reason}') from None
        self.reads.table(view.states).update(columns)
        self.reads.sorts |= sorts(view)
        return query

    def _derived(self, query: Query, qualifier: str | None, alias: str) -> tuple[str, Relation]:
        if any(name is None for name, _ in query.columns):
            raise NotProven("an expression without an alias is not proven to be named alike")
        columns = tuple(Column(name or "", f"{alias}.c{n}", of) for n, (name, of) in enumerate(query.columns))
        return f"({query.sql}) AS {alias}", Relation(qualifier, columns)


_ONE = (cast("1", BIGINT), cast(cast("1", INT), BIGINT))


MAX_REPEATS = 10_000
"""Rows that a query may make of each: DuckDB makes them of a whole chunk at once, beside its memory limit."""


def repeated(
    sql: str,
    scope: Scope,
    lateral: exp.Expression,
    alias: str,
    expr: Callable[[exp.Expression], Typed],
    most: int | None,
) -> tuple[str, Scope]:
    """`LATERAL VIEW explode(sequence(1, n)) x AS c`: every row n times, which is how signed rows are read; or from a
    time to another by an interval, which is how rows of overlapping windows are. More than `most` are left to Spark."""
    only(lateral, "this", "view", "alias")
    names = lateral.args["alias"].args.get("columns") or []
    calls = [lateral.this, *(lateral.this.expressions if isinstance(lateral.this, exp.Anonymous) else ())]
    known = [str(call.this).lower() for call in calls] == ["explode", "sequence"] and len(names) == 1
    if not known or len(calls[1].expressions) not in (2, 3):
        raise NotProven("this lateral view is not proven to agree")
    first, last = (expr(argument) for argument in calls[1].expressions[:2])
    if len(calls[1].expressions) == 3:
        joined, column = _moments(first, last, micros_of(calls[1].expressions[2]), names[0].name, alias, most)
        return f"{sql} {joined}", Scope((*scope.relations, Relation(lateral.args["alias"].name or None, (column,))))
    if first.sql not in _ONE or last.type != BIGINT:
        raise NotProven("this lateral view is not proven to agree")
    # Below one, Spark counts downwards.
    count = _count(last.sql, f"{last.sql} < 1", most)
    relation = Relation(lateral.args["alias"].name or None, (Column(names[0].name, f"{alias}.c0", BIGINT),))
    return f"{sql} CROSS JOIN unnest(range(1, {count} + 1)) AS {alias}(c0)", Scope((*scope.relations, relation))


def _count(value: str, counts_down: str, most: int | None) -> str:
    """How long a sequence is, checked."""
    down = f"CASE WHEN {counts_down} THEN {failing('a sequence that counts down', BIGINT)}"
    long = "" if most is None else f" WHEN {value} > {most} THEN {failing('a long sequence', BIGINT)}"
    return f"{down}{long} ELSE {value} END"


def _moments(first: Typed, last: Typed, step: int, name: str, alias: str, most: int | None) -> tuple[str, Column]:
    """Every `step` microseconds from a time to another, and the column that holds them."""
    if first.type not in TIMESTAMPS or last.type != first.type or not step:
        raise NotProven("this lateral view is not proven to agree")
    low, high = naive(first), naive(last)
    count = _count(f"(epoch_us({high}) - epoch_us({low})) // {step}", f"{high} < {low}", most)
    moment = f"({low} + to_microseconds({step} * {alias}.c0))"
    column = Column(name, aware(moment) if first.type == TIMESTAMP else moment, first.type)
    return f"CROSS JOIN unnest(range(0, {count} + 1)) AS {alias}(c0)", column


def _qualifier(node: exp.Expression) -> str | None:
    alias = node.args.get("alias")
    if alias is None:
        return None
    only(alias, "this")
    return str(alias.name)


def _join_word(join: exp.Join, explicit: bool) -> str:
    only(join, "this", "side", "kind", "on")
    word = JOINS.get((join.side.upper(), join.kind.upper()))
    if word is None or (not explicit and word not in ("JOIN", "CROSS JOIN")) or (explicit and word == "CROSS JOIN"):
        raise NotProven("this join is not proven to agree")
    return word if explicit else "CROSS JOIN"
