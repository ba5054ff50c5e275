"""What stands in FROM: topics, subqueries, common table expressions and joins, in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, Or
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, UUIDType
from sqlglot import exp

from headwater.serving.agreement.parsing import only
from headwater.serving.agreement.pruning import applying, kept
from headwater.serving.agreement.scope import Column, Relation, Scope, quoted
from headwater.serving.agreement.types import spark_type
from headwater.serving.agreement.values import NotProven, ScanNeeds
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
    """Collects, while a query is translated, what it reads of each topic."""

    columns: dict[str, set[str]] = field(default_factory=dict)
    filters: dict[str, BooleanExpression] = field(default_factory=dict)
    aliases: int = 0

    def alias(self) -> str:
        self.aliases += 1
        return f"t{self.aliases}"

    def column(self, column: Column) -> None:
        if column.topic is not None and column.origin is not None:
            self.columns.setdefault(column.topic, set()).add(column.origin)

    def scan(self, topic: str, matching: BooleanExpression) -> None:
        """One more reference to a topic: its files are kept when any reference keeps them."""
        before = self.filters.get(topic)
        self.filters[topic] = matching if before is None else Or(before, matching)

    def needs(self) -> dict[str, ScanNeeds]:
        """What was collected, by topic."""
        topics = sorted(self.filters)
        return {topic: ScanNeeds(frozenset(self.columns.get(topic, ())), self.filters[topic]) for topic in topics}


@dataclass(frozen=True, slots=True)
class Known:
    """What a table name can mean: a topic, or a common table expression that is in sight."""

    topics: Mapping[str, Schema]
    expressions: Mapping[str, Callable[[], Query]]


def topic_name(node: exp.Table, topics: Mapping[str, Schema]) -> str:
    """The topic that `orders`, `topics.orders` or `topic('orders')` names."""
    only(node, "this", "alias", "db")
    call = node.this
    if isinstance(call, exp.Anonymous) and str(call.this).lower() == "topic" and len(call.expressions) == 1:
        only(call, "this", "expressions")
        name = call.expressions[0].this if isinstance(call.expressions[0], exp.Literal) else ""
    else:
        name = node.name if isinstance(call, exp.Identifier) else ""
    topic = str(name).lower()
    # One look-up, not a search: `topics` may read a topic when it is asked for it.
    if not topic or node.db.lower() not in ("", TOPICS) or topic not in topics:
        raise NotProven(f'table "{name or node.sql("spark")}" does not exist')
    return topic


def topic_relation(topic: str, schema: Schema, qualifier: str, alias: str) -> Relation:
    """A topic's columns, under the alias that DuckDB's SQL gives it."""
    names = [column.name.lower() for column in schema.fields]
    if len(set(names)) != len(names):
        raise NotProven(f'columns of topic "{topic}" that differ in case only are not proven to agree')
    return Relation(qualifier, tuple(_stored(topic, column, alias) for column in schema.fields))


def _stored(topic: str, column: NestedField, alias: str) -> Column:
    sql = f"{alias}.{quoted(column.name)}"
    if isinstance(column.field_type, UUIDType):
        sql = f"CAST({sql} AS VARCHAR)"
    try:
        of = spark_type(column.field_type)
    except NotProven:
        of = None
    return Column(column.name, sql, of, topic, column.name)


def items(select: exp.Select) -> list[exp.Expression]:
    """The items of FROM, in the order in which they are written."""
    origin = select.args.get("from_")
    return [] if origin is None else [origin.this, *(join.this for join in select.args.get("joins") or [])]


class From:
    """Translates one FROM clause."""

    def __init__(self, known: Known, reads: Reads, query: Callable[[exp.Expression], Query]) -> None:
        self.known = known
        self.reads = reads
        self.query = query

    def translate(self, select: exp.Select, on: Callable[[Scope, exp.Expression], str]) -> tuple[str, Scope]:
        """The SQL after FROM, and the scope it opens; records which files the query can skip."""
        found = [self._item(item) for item in items(select)]
        relations = [relation for _, relation in found]
        self._record(select, relations)
        if not found:
            return "", Scope(())
        sql, visible = found[0][0], [relations[0]]
        for number, join in enumerate(select.args.get("joins") or [], 1):
            word = _join_word(join, explicit=bool(join.args.get("on")))
            here = Scope((*visible, relations[number]))
            sql += f" {word} {found[number][0]}" + (f" ON {on(here, join.args['on'])}" if join.args.get("on") else "")
            if word not in ("SEMI JOIN", "ANTI JOIN"):
                visible.append(relations[number])
        self._check_commas(select)
        return sql, Scope(tuple(visible))

    def _check_commas(self, select: exp.Select) -> None:
        # A comma binds less tightly than JOIN in Spark; sqlglot lists both in one row.
        joins = select.args.get("joins") or []
        written = [join.kind.upper() == "" and not join.side and not join.args.get("on") for join in joins]
        if any(written) and not all(written):
            raise NotProven("commas beside joins are not proven to agree")

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
        topic = topic_name(node, self.known.topics)
        relation = topic_relation(topic, self.known.topics[topic], _qualifier(node) or topic, alias)
        return f"{quoted(topic)} AS {alias}", relation

    def _derived(self, query: Query, qualifier: str | None, alias: str) -> tuple[str, Relation]:
        if any(name is None for name, _ in query.columns):
            raise NotProven("an expression without an alias is not proven to be named alike")
        columns = tuple(Column(name or "", f"{alias}.c{n}", of) for n, (name, of) in enumerate(query.columns))
        return f"({query.sql}) AS {alias}", Relation(qualifier, columns)

    def _record(self, select: exp.Select, relations: Sequence[Relation]) -> None:
        for number, (conditions, relation) in enumerate(zip(applying(select), relations, strict=False)):
            topic = next((column.topic for column in relation.columns), None)
            if topic is not None:
                self.reads.scan(topic, matching(conditions, relations, number, self.known.topics[topic]))


def matching(
    conditions: Sequence[exp.Expression], relations: Sequence[Relation], number: int, schema: Schema
) -> BooleanExpression:
    """What the rows of one item of FROM must meet, as far as files can be checked against it."""
    scope = Scope(tuple(relations))

    def resolve(node: exp.Expression) -> NestedField | None:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None
        column, fields = scope.resolve([part.name for part in node.parts])
        mine = not fields and any(column is own for own in relations[number].columns)
        return schema.find_field(column.name) if mine else None

    every: BooleanExpression = AlwaysTrue()
    for condition in conditions:
        every = And(every, kept(condition, resolve))
    return every


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
