"""A new view: its query through the gate, its columns as Spark sees them, and how it will be kept.

Spark analyses the query; nothing is run. Where our own analysis could have misread the text, Spark is asked whether
what we would run means the same: if it cannot say so, the view recomputes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import BASE, SIGN, STATES, Position, SourceColumns
from headwater.errors import InvalidSchema, InvalidStatement, TopicNotFound
from headwater.spark.gate_spark import analyze, inspect, isolated, sources
from headwater.types import ViewDefinition
from headwater.views.analyse import Opaque, Open, analyse, parsed
from headwater.views.analyse.functions import VOLATILE, contains_aggregate, function_name
from headwater.views.analyse.select import Opened
from headwater.views.casts import column_type, compared_pairs, comparison_type, with_casts
from headwater.views.change import Incremental, plan_recompute, untracked
from headwater.views.deltas import Clock, Differ
from headwater.views.fold import compacted, read_sql
from headwater.views.layout import plan_layout
from headwater.views.plan import SourceRange, opener
from headwater.views.relation import (
    Aggregate,
    Analysed,
    Distinct,
    Filter,
    Generate,
    Inner,
    Join,
    Project,
    Relation,
    Scan,
    Union,
    Window,
    children,
    column,
    columns_of,
    walk,
)
from headwater.views.relation import columns as columns_made
from headwater.views.sources import Head, Sources
from headwater.views.text import plain_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

EPOCH = "1970-01-01 00:00:00"


@dataclass(frozen=True, slots=True)
class Defined:
    """Everything that the table of a new view is made of."""

    definition: ViewDefinition
    layout: Layout
    types: Mapping[str, str]
    sources: tuple[SourceColumns, ...]
    heads: tuple[Head, ...]
    columns: tuple[tuple[str, str], ...]  # of the table, with Spark's types

    @property
    def read(self) -> str:
        return read_sql(self.layout, STATES, signed=False)

    @property
    def read_base(self) -> str:
        return read_sql(self.layout, STATES, signed=False, base=True)

    @property
    def read_signed(self) -> str:
        return read_sql(self.layout, STATES, signed=True)


def define(definition: ViewDefinition, found: Sources, session: SparkSession) -> Defined:
    """The view's layout and columns; InvalidStatement, TopicNotFound or InvalidSchema if it cannot be made."""
    from headwater.storage.identity_spark import identities

    text = plain_query(definition.query)
    own = isolated(session)
    query = inspect(own, text)
    heads = _heads(query.relations, query.ctes, found)
    if not heads:
        raise InvalidStatement(
            f'materialized view "{definition.name}" reads no topic', hint="A view follows changes of topics and views."
        )
    frames = [_register(own, head) for head in heads]
    frame = analyze(own, query, sources(*frames))
    _refuse_volatile(text)
    names = _names(definition.name, frame)
    types = [field.dataType.simpleString() for field in frame.schema.fields]
    every = tuple(SourceColumns(head.table_name, _columns(head)) for head in heads)
    draft = _Draft(definition, every, heads)
    try:
        columns = _used(draft.analysed(text), draft, _mentioned(text))
        # What * stands for, and so every name in the tree, depends on the columns: the layout is of those that stay.
        draft = _Draft(definition, columns, heads)
        analysed = draft.analysed(text)
        typed = _types(own, analysed) | _key_types(own, analysed)
        analysed = with_casts(analysed, typed)
        check_same(own, text, frame)
        layout = plan_layout(analysed, names, types, typed)
        layout = replace(layout, untracked=untracked(Incremental(analysed, layout, typed), Clock(EPOCH, EPOCH)))
    except Opaque as opaque:
        outputs = tuple((name, of, name) for name, of in zip(names, types, strict=True))
        layout, typed, columns = Layout("rows", outputs, opaque=opaque.reason), {}, every
    stored = _stored(own, layout, draft, text, typed, frame)
    layout = replace(layout, identities=identities(each for each in stored if each.name not in (SIGN, BASE)))
    physical = tuple((each.name, each.dataType.simpleString()) for each in stored)
    return Defined(definition, layout, typed, columns, heads, physical)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A view that is not in the catalog yet, as far as analysis asks about it."""

    definition: ViewDefinition
    sources: tuple[SourceColumns, ...]
    heads: tuple[Head, ...]
    opened: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # a source's column to its names in the tree

    def analysed(self, text: str) -> Analysed:
        ranges = [SourceRange(head, head.snapshot_id, head.snapshot_id, None) for head in self.heads]
        return analyse(text, lambda required: self._noting(opener(self, ranges, required)))

    def _noting(self, opened: Open) -> Open:
        def noted(table: str, alias: str) -> Opened | None:
            found = opened(table, alias)
            for name, tree in found[1] if found else ():
                self.opened.setdefault((table, name), set()).add(tree)
            return found

        return noted


def _heads(relations: frozenset[str], ctes: frozenset[str], found: Sources) -> tuple[Head, ...]:
    heads = []
    for name in sorted(relations):
        head = found.find(name)
        if head is None:
            if name in ctes:
                continue
            near = found.near(name)
            hint = f'Did you mean "{near}"?' if near else "`SHOW TOPICS` and `SHOW MATERIALIZED VIEWS` list them."
            raise TopicNotFound(f'topic or view "{name}" does not exist', hint=hint)
        heads.append(head)
    return tuple(heads)


def _register(own: SparkSession, head: Head) -> DataFrame:
    """The source under its plain name and, for what we write, under the name of its new version."""
    from headwater.storage.read_spark import refusing_time_columns

    with refusing_time_columns(head.name):
        table = own.read.table(f"lake.{head.table_name}")
    table.createOrReplaceTempView(f"{head.name}__new")
    if head.view is None:
        table.createOrReplaceTempView(head.name)
        return table
    table.createOrReplaceTempView(STATES)
    rows = own.sql(head.view.read)
    rows.createOrReplaceTempView(head.name)
    own.catalog.dropTempView(STATES)
    return rows


def _columns(head: Head) -> tuple[tuple[str, bool], ...]:
    layout = head.layout
    if layout is not None:
        return tuple((name, False) for name, _, _ in layout.outputs)
    return tuple((field.name, field.required) for field in head.table.schema().fields)


def _refuse_volatile(text: str) -> None:
    try:
        tree = parsed(text)
    except Opaque:
        return
    for node in tree.walk():
        if (name := function_name(node)) is not None and name in VOLATILE:
            raise InvalidStatement(
                f'function "{name}" is not allowed in a materialized view',
                detail="Its value changes although no source changed, so the view could not follow.",
                hint="Use it in a query over the view.",
            )


def _names(view: str, frame: DataFrame) -> list[str]:
    names = list(frame.columns)
    lowered = [name.lower() for name in names]
    for name in names:
        if lowered.count(name.lower()) > 1:
            raise InvalidSchema(
                f'materialized view "{view}" has two columns "{name}"', hint="Give one of them another name with AS."
            )
        if name.startswith("__"):
            raise InvalidSchema(
                f'column "{name}" of materialized view "{view}" begins with two underscores',
                detail="Such names are kept for hidden columns.",
                hint="Rename it with AS.",
            )
    return names


def _types(own: SparkSession, analysed: Analysed) -> dict[str, str]:
    """Spark's types of aggregates, window functions and their arguments, by their SQL."""
    differ = Differ({}, Clock(EPOCH, EPOCH))
    found: dict[str, str] = {}
    for node in walk(analysed.root):
        if isinstance(node, Aggregate) and node.keys:
            keys = [(item.name, item.expr) for item in node.keys]
            _refuse_maps(_schema_of(own, keys, differ.content(node.child, "new")))
        if not isinstance(node, Aggregate | Window):
            continue
        calls = [item.expr for item in (node.values if isinstance(node, Aggregate) else node.items)]
        if not calls:
            continue
        child = differ.content(node.child, "new")
        wanted: dict[str, exp.Expression] = {}
        for call in calls:
            text = call.sql(dialect="spark")
            wanted[text] = call
            if (argument := _argument(call)) is not None:
                wanted["argument of " + text] = argument
        group = [wanted[key] for key in wanted if not key.startswith("argument of ")]
        found |= _schema_of(own, [(e.sql(dialect="spark"), e) for e in group], child)
        arguments = [(key, e) for key, e in wanted.items() if key.startswith("argument of ")]
        found |= _schema_of(own, arguments, child)
    return found


def _refuse_maps(keys: Mapping[str, str]) -> None:
    """Opaque if a group's key holds a map: Spark groups by it, but compares it with no other, so no group is found."""
    if any("map<" in of for of in keys.values()):
        raise Opaque("it groups by a map, and two maps cannot be compared")


def _key_types(own: SparkSession, analysed: Analysed) -> dict[str, str]:
    """Spark's types of the columns that joins compare and unions unite, and the types in which it compares them."""
    differ = Differ({}, Clock(EPOCH, EPOCH))
    found: dict[str, str] = {}
    for node in walk(analysed.root):
        if isinstance(node, Union):
            found |= _column_types(own, node.names, differ.content(node, "new"))
            for child in node.children:
                found |= _column_types(own, columns_made(child), differ.content(child, "new"))
        elif pairs := compared_pairs(node):
            inputs = " CROSS JOIN ".join(f"({differ.content(each, 'new')})" for each in children(node))
            names = tuple(dict.fromkeys(name for pair in pairs for name in pair))
            found |= _column_types(own, names, f"SELECT * FROM {inputs}")
            for pair in pairs:
                if found[column_type(pair[0])] != found[column_type(pair[1])]:
                    found[comparison_type(pair)] = _compared_as(own, pair, inputs)
    return found


def _column_types(own: SparkSession, names: Sequence[str], rows: str) -> dict[str, str]:
    types = _schema_of(own, [(column_type(name), column(name)) for name in names], rows)
    return {entry: types[entry] for entry in map(column_type, names)}


def _compared_as(own: SparkSession, pair: tuple[str, str], inputs: str) -> str:
    """The type to which Spark casts two columns to compare them."""
    left, right = (column(name).sql(dialect="spark") for name in pair)
    try:
        plan = own.sql(f"SELECT {left} = {right} AS same FROM {inputs}")._jdf.queryExecution().analyzed()
    except Exception as failed:
        raise Opaque("Spark does not understand the query when it is taken apart") from failed
    return str(plan.expressions().head().child().left().dataType().simpleString())


def _argument(call: exp.Expression) -> exp.Expression | None:
    while isinstance(call, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    if any(contains_aggregate(each) for each in call.iter_expressions()):
        return None
    arguments = list(call.iter_expressions())
    if arguments and isinstance(arguments[0], exp.Distinct):
        arguments = list(arguments[0].expressions)
    return arguments[0] if arguments and not isinstance(arguments[0], exp.Star | exp.Order) else None


def _schema_of(own: SparkSession, exprs: Sequence[tuple[str, exp.Expression]], child: str) -> dict[str, str]:
    if not exprs:
        return {}
    items = ", ".join(f"{expr.sql(dialect='spark')} AS c{n}" for n, (_, expr) in enumerate(exprs))
    try:
        schema = own.sql(f"SELECT {items} FROM ({child})").schema
    except Exception as failed:
        raise Opaque("Spark does not understand the query when it is taken apart") from failed
    return {key: field.dataType.simpleString() for (key, _), field in zip(exprs, schema.fields, strict=True)}


def check_same(own: SparkSession, text: str, frame: DataFrame) -> None:
    """Opaque unless the text that we write for the parsed query means to Spark what the user's text means."""
    again = parsed(text).transform(_spelled_as_spark_does).sql(dialect="spark")
    try:
        same = _normalised(own.sql(again)).sameResult(_normalised(frame))
    except Exception as failed:
        raise Opaque("Spark does not understand the query as it was read") from failed
    if not same:
        raise Opaque("the query could not be taken apart without a doubt about its meaning")


def _normalised(frame: DataFrame) -> Any:
    """Spark's plan of the analysed query, in which common table expressions are numbered as they come."""
    return frame._jdf.queryExecution().normalized()


_TYPED_LITERALS = {
    "DATE": "DATE",
    "TIME": "TIME",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
}


def _spelled_as_spark_does(node: exp.Expr) -> exp.Expr:
    """The node in the words that Spark reads as the user's, where the parser that took the text apart has others.

    IS NOT NULL is an operator of its own to Spark, and a negation to the parser. `DATE '...'` is read as a strict cast,
    while CAST is a lenient one. A comma in FROM is an inner join without a condition, which has no place for pivots.
    """
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
        return exp.Anonymous(this="ISNOTNULL", expressions=[node.this.this])
    if type(node) is exp.Cast and node.this.is_string and (of := _TYPED_LITERALS.get(node.to.this.name)):
        return exp.Var(this=f"{of} {node.this.sql(dialect='spark')}")
    if isinstance(node, exp.Join) and node.args.get("kind") == "CROSS" and "pivots" not in node.args:
        return exp.Join(this=node.this, kind="INNER")
    return node


def _used(analysed: Analysed, draft: _Draft, mentioned: frozenset[tuple[str, str]]) -> tuple[SourceColumns, ...]:
    """The sources with only the columns that the query reads or names; of one that it merely counts, the first."""
    read = {name for node in walk(analysed.root) for name in _names_in(node)} | set(analysed.outputs)
    found = []
    for source in draft.sources:
        table = source.table.name
        named = {name for of, name in mentioned if of in ("", table)}
        kept = tuple(
            pair for pair in source.columns if pair[0] in named or read & draft.opened.get((table, pair[0]), set())
        )
        found.append(SourceColumns(source.table, kept or source.columns[:1]))
    return tuple(found)


def _mentioned(text: str) -> frozenset[tuple[str, str]]:
    """The columns that a query names, though nothing may come of it: (table, column), without a table if none is said.

    An inner SELECT may name what the one around it does not read.
    """
    tree = parsed(text)
    tables = {str(each.alias_or_name).lower(): str(each.name).lower() for each in tree.find_all(exp.Table)}
    columns = [each for each in tree.find_all(exp.Column) if not isinstance(each.this, exp.Star)]
    left_out = [each for star in tree.find_all(exp.Star) for each in star.find_all(exp.Identifier)]
    return frozenset(
        [
            (tables.get(str(each.parts[0].name).lower(), ""), str(part.name).lower())
            for each in columns
            for part in each.parts
        ]
        + [("", str(each.name).lower()) for each in left_out]
    )


def _names_in(node: Relation) -> set[str]:
    """The columns that expressions of the node refer to, and those that it passes on under their own name."""
    match node:
        case Filter():
            return set(columns_of(node.condition))
        case Project() | Window():
            return {name for item in node.items for name in columns_of(item.expr)}
        case Generate():
            return set(columns_of(node.generator))
        case Inner() | Join():
            return {name for condition in node.conditions for name in columns_of(condition)}
        case Union():
            return {name for child in node.children for name in columns_made(child)}
        case Aggregate():
            return {name for item in (*node.keys, *node.values) for name in columns_of(item.expr)}
        case Distinct():
            return set(columns_made(node.child))
        case Scan():
            return set()


def _stored(
    own: SparkSession, layout: Layout, draft: _Draft, text: str, typed: Mapping[str, str], frame: DataFrame
) -> list[StructField]:
    """The columns of the view's table with Spark's types: those of the rows that a recompute would write."""
    if layout.opaque is not None:
        return list(frame.selectExpr("*", f"1 AS {SIGN}", f"TRUE AS {BASE}").schema.fields)
    view = Incremental(with_casts(draft.analysed(text), typed), layout, typed)
    plan = plan_recompute(view, "", Clock(EPOCH, EPOCH))
    return list(own.sql(plan.sql).schema.fields)


def properties_of(defined: Defined, position: Position) -> dict[str, object]:
    """What `view_properties` takes beside the definition."""
    return {
        "layout": defined.layout.to_json(),
        "read": defined.read,
        "read_base": defined.read_base,
        "read_signed": defined.read_signed,
        "compact": compacted(defined.layout, STATES, signed=True, base=False),
        "types": defined.types,
        "sources": defined.sources,
        "position": position,
    }
