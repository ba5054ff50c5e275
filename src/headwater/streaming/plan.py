"""How a stream keeps a view: a pure plan from the view's query.

Three ways. A query that only adds rows (filters, joins, windows that are emitted when they close) is appended. A query
that groups is emitted group by group as groups change, and the newest row of a group counts. What a streaming engine
cannot keep, or could not take back (totals of totals, HAVING, ranks), is refreshed incrementally after every commit
instead, which `NotStreamed` says with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from headwater.catalog.view_layout import Layout
from headwater.errors import InvalidStatement
from headwater.sql.window_sources import StreamWindow
from headwater.types import StreamDefinition, TableName, ViewDefinition

OutputMode = Literal["append", "update"]
_WINDOWS = {"window_of": "window", "session_window": "session_window"}
_WINDOW = re.compile(r"(?<![`\w])window\b(?!`)(\s*\()?", re.IGNORECASE)


_MADE = re.compile(r"window|session_window|_window\d+_*")
"""Columns that show the window of a source, as `sql.windows_streaming` names them."""


@dataclass(frozen=True, slots=True)
class Input:
    """A source of a continuous query: its name there, its table, the columns that are read.

    `stream` is set for what is read record by record; anything else is a table, read as it is when a batch begins.
    """

    name: str
    table: TableName
    columns: tuple[str, ...]
    stream: StreamDefinition | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """A continuous view as its query says: `text` for a streaming engine, `batch` for one that looks at everything.

    `windows` are those by which it groups; `outputs` its columns with Spark's types.
    """

    definition: ViewDefinition
    text: str
    batch: str
    outputs: tuple[tuple[str, str], ...]
    inputs: tuple[Input, ...]
    windows: tuple[StreamWindow, ...] = ()

    @property
    def streams(self) -> tuple[Input, ...]:
        return tuple(each for each in self.inputs if each.stream is not None)


@dataclass(frozen=True, slots=True)
class Continuous:
    """Run `text` as a streaming query and keep what it emits; `grouped` rows come of several records each."""

    outline: Outline
    mode: OutputMode
    layout: Layout
    grouped: bool

    @property
    def name(self) -> str:
        return self.outline.definition.name


@dataclass(frozen=True, slots=True)
class NotStreamed:
    """The query is not one for a streaming engine; `hint` says what to set where that would make it one."""

    reason: str
    hint: str | None = None


def not_streamed_any_more(view: str, why: NotStreamed) -> InvalidStatement:
    return InvalidStatement(
        f'materialized view "{view}" cannot be kept by a stream any more',
        detail=f"{why.reason[:1].upper()}{why.reason[1:]}.",
        hint=why.hint,
    )


def missing_event_time(outline: Outline) -> str | None:
    """What to set where a window cuts time by a column that is not the event time of a stream; None otherwise."""
    for window in outline.windows:
        moment = window.moment.rpartition(".")[2].strip("`")
        for each in outline.streams:
            stream = each.stream
            if stream is None or moment.lower() == stream.event_time.lower() or moment not in each.columns:
                continue
            create = f"CREATE STREAM {stream.name} WITH (topic = '{stream.topic}', timestamp_field = '{moment}')"
            return (
                f'{window.function} cuts "{moment}", and the event time of stream "{stream.name}" is '
                f'"{stream.event_time}". Run DROP STREAM {stream.name}, which keeps the topic, and {create}.'
            )
    return None


def plan_continuous(outline: Outline) -> Continuous | NotStreamed:
    """How the view is kept."""
    outputs = tuple((name, of, name) for name, of in outline.outputs)
    tree = parsed(outline.text)
    if tree is None:
        return NotStreamed("the query could not be taken apart")
    if any(tree.args.get(each) for each in ("order", "limit", "offset")):
        return NotStreamed("its rows are ordered, or only some of them are wanted")
    groups = [each for each in tree.find_all(exp.Select) if _groups(each)]
    if not groups or outline.definition.options.emit == "close":
        return Continuous(outline, "append", Layout("rows", outputs), grouped=bool(groups))
    if groups != [tree] or not isinstance(tree, exp.Select):
        return NotStreamed("groups are not made at the top of the query alone")
    if tree.args.get("having") or tree.args.get("qualify") or tree.args.get("distinct"):
        return NotStreamed("a group that was emitted may have to be taken back")
    keys = tuple(_keys(tree, [name for name, _ in outline.outputs], _source_names(outline, tree)))
    if None in keys:
        return NotStreamed("a group is not told by the selected columns")
    return Continuous(outline, "update", Layout("latest", outputs, tuple(key for key in keys if key)), grouped=True)


def parsed(text: str) -> exp.Expr | None:
    """The query as a tree; None where the parser does not follow Spark's."""
    try:
        # The parser takes Spark's `window` in GROUP BY, a call or a column, for a WINDOW clause.
        named = _WINDOW.sub(lambda found: "window_of(" if found[1] else "`window`", text)
        return sqlglot.parse_one(named, dialect="spark")
    except ParseError:
        return None


def _groups(select: exp.Select) -> bool:
    """Whether rows of several records are made one."""
    if select.args.get("group") or select.args.get("distinct"):
        return True
    own = (node for item in select.expressions for node in item.walk(prune=lambda n: isinstance(n, exp.Query)))
    return any(isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window) for node in own)


def _source_names(outline: Outline, tree: exp.Select) -> frozenset[str]:
    """Names that columns of the query's sources may have: GROUP BY means them by such a name, and no item of SELECT."""
    read = (column for each in outline.inputs for column in each.columns)
    made = (each.alias for each in tree.find_all(exp.Alias) if each.parent is not tree)
    named = (column.name for each in tree.find_all(exp.TableAlias) for column in each.columns)
    return frozenset(name.lower() for name in (*read, *made, *named))


def _keys(select: exp.Select, names: Sequence[str], of_sources: frozenset[str]) -> Iterator[str | None]:
    """The output column of each group key; None for one that has none."""
    group = select.args.get("group")
    items = [(item.alias_or_name, item.unalias()) for item in select.expressions]
    if group is not None and any(group.args.get(each) for each in ("all", "cube", "rollup", "grouping_sets", "totals")):
        yield None
        return
    for key in group.expressions if group is not None else ():
        if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(items):
            yield names[int(key.name) - 1]
            continue
        places = (place for place, (name, item) in enumerate(items) if _is_key(key, name, item, of_sources))
        place = next(places, None)
        yield None if place is None or len(items) != len(names) else names[place]


def _is_key(key: exp.Expression, name: str, item: exp.Expression, of_sources: frozenset[str]) -> bool:
    """Whether an item of SELECT tells the value of a group key."""
    if key == item:
        return True
    if isinstance(key, exp.Column):
        wanted = key.name.lower()
        if _MADE.fullmatch(wanted) and _written(item) in (f"{_written(key)}.start", f"{_written(key)}.end"):
            return True
        if key.table or isinstance(item, exp.AggFunc):
            return False
        same = isinstance(item, exp.Column) and item.name.lower() == wanted
        return same or (name.lower() == wanted and wanted not in of_sources)
    if (window := _WINDOWS.get(_function(key))) is not None:
        return _written(item) in {f"{window}{part}" for part in ("", ".start", ".end")}
    return False


def _written(node: exp.Expression) -> str:
    return node.sql(dialect="spark").lower().replace("`", "")


def _function(node: exp.Expression) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""
