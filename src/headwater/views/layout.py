"""The layout of a view's table, chosen from its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headwater.catalog.view_layout import Layout, Sort, StateColumns
from headwater.views.analyse.functions import function_name, uses_clock
from headwater.views.analyse.scope import Opaque
from headwater.views.relation import (
    Aggregate,
    Analysed,
    Distinct,
    Filter,
    Item,
    Join,
    Project,
    Relation,
    Window,
    column,
    columns,
    substitute,
    walk,
)
from headwater.views.states import state_of


@dataclass(frozen=True, slots=True)
class Grouped:
    """The aggregate at the top of a query, and what is done with its groups."""

    aggregate: Aggregate
    having: tuple[exp.Expression, ...]
    items: tuple[Item, ...]


def top_aggregate(root: Relation) -> Grouped | None:
    """The query as a projection of filtered groups; None if it is something else."""
    match root:
        case Distinct():
            keys = tuple(Item(f"distinct.{name}", column(name)) for name in columns(root.child))
            items = tuple(Item(name, column(f"distinct.{name}")) for name in columns(root.child))
            return Grouped(Aggregate(root.child, keys, ()), (), items)
        case Project():
            having, below = [], root.child
            while isinstance(below, Filter):
                having.append(below.condition)
                below = below.child
            if isinstance(below, Aggregate):
                return Grouped(below, tuple(having), root.items)
    return None


def cut_keys(root: Relation) -> tuple[exp.Expression, ...] | None:
    """Expressions over the columns of the topmost node that is cut by keys; None if there is none to cut by.

    Above that node there are only filters and projections, so restricting the whole query by these keys is sound.
    """
    below: Relation = root
    while isinstance(below, Project | Filter):
        below = below.child
    match below:
        case Aggregate() if below.keys:
            return tuple(column(item.name) for item in below.keys)
        case Distinct():
            return tuple(column(name) for name in columns(below))
        case Window() if below.partition:
            return tuple(column(name) for name in below.partition)
        case Join(kind="left" | "semi" | "anti") if below.keys:
            return tuple(column(left) for left, _ in below.keys)
        case _:
            return None


def with_cut(root: Relation, cut: Sequence[exp.Expression]) -> tuple[Relation, tuple[str, ...]]:
    """The query with its cut keys carried to the top, and their names there."""
    match root:
        case Project():
            child, names = with_cut(root.child, cut)
            carried = {item.column: item.name for item in root.items if item.column is not None}
            extra = tuple(Item(f"cut.{name}", column(name)) for name in names if name not in carried)
            return Project(child, (*root.items, *extra)), tuple(carried.get(name, f"cut.{name}") for name in names)
        case Filter():
            child, names = with_cut(root.child, cut)
            return Filter(child, root.condition), names
        case _:
            return root, tuple(str(expr.name) for expr in cut)


def plan_layout(analysed: Analysed, names: Sequence[str], types: Sequence[str], typed: Mapping[str, str]) -> Layout:
    """The layout for a query with the output columns `names` of Spark's `types`.

    `typed` has the Spark types of aggregates and of their arguments, by their SQL.
    """
    grouped = top_aggregate(analysed.root)
    if grouped is not None and repeatable(grouped.aggregate.child, typed):
        found = _states(analysed, grouped, names, types, typed)
        if found is not None:
            return found
    return _rows(analysed, names, types)


def _states(
    analysed: Analysed, grouped: Grouped, names: Sequence[str], types: Sequence[str], typed: Mapping[str, str]
) -> Layout | None:
    keys = {item.name: f"__k{n}" for n, item in enumerate(grouped.aggregate.keys)}
    shown = {item.name: item for item in grouped.items}
    for name, tree in zip(names, analysed.outputs, strict=True):
        if (key := shown[tree].column) in keys and keys[key].startswith("__k"):
            keys[key] = name
    values: dict[str, exp.Expression] = {key: column(name) for key, name in keys.items()}
    states: list[StateColumns] = []
    parts: list[tuple[str, ...]] = []
    for number, item in enumerate(grouped.aggregate.values):
        state = state_of(item.expr, argument_type(item.expr, typed), typed[item.expr.sql(dialect="spark")])
        if state is None:
            return None
        part = None
        stored = tuple(f"__a{number}_{suffix}" for suffix, _ in state.partials)
        partials = tuple(sql for _, sql in state.partials)
        if state.distinct:
            stored, partials = tuple(f"__d{number}_{place}" for place in range(len(state.distinct))), state.distinct
            parts.append(stored)
            part = len(parts)
        suffixes = tuple(suffix for suffix, _ in state.partials)
        finished = f"__a{number}_f" if part is None and state.dear else None
        states.append(
            StateColumns(stored, state.merges, suffixes, partials, state.final, state.invertible, part, finished)
        )
        values[item.name] = column(f"value{number}")
    outputs = tuple(
        (name, of, substitute(shown[tree].expr, values).sql(dialect="spark"))
        for name, of, tree in zip(names, types, analysed.outputs, strict=True)
    )
    having = tuple(substitute(each, values).sql(dialect="spark") for each in grouped.having)
    extra = [order.column for order in analysed.on_read.order if order.column not in analysed.outputs]
    hidden = tuple(substitute(shown[tree].expr, values).sql(dialect="spark") for tree in dict.fromkeys(extra))
    if any(uses_clock(each) for each in (*grouped.having, *(item.expr for item in grouped.items))):
        raise Opaque("now() beside aggregates has no delta rule")
    return Layout(
        "states",
        outputs,
        tuple(keys.values()),
        bool(keys),
        tuple(states),
        tuple(parts),
        having,
        hidden,
        _order(analysed, names, list(dict.fromkeys(extra))),
        analysed.on_read.limit,
        analysed.on_read.offset,
    )


def _rows(analysed: Analysed, names: Sequence[str], types: Sequence[str]) -> Layout:
    outputs = tuple((name, of, name) for name, of in zip(names, types, strict=True))
    cut = cut_keys(analysed.root)
    keys: tuple[str, ...] = ()
    if cut is not None:
        _, carried = with_cut(analysed.root, cut)
        shown = dict(zip(analysed.outputs, names, strict=True))
        keys = tuple(shown.get(tree, f"__k{n}") for n, tree in enumerate(carried))
    extra = list(dict.fromkeys(o.column for o in analysed.on_read.order if o.column not in analysed.outputs))
    return Layout(
        "rows",
        outputs,
        keys,
        True,
        (),
        (),
        (),
        tuple(f"__o{n}" for n in range(len(extra))),
        _order(analysed, names, extra),
        analysed.on_read.limit,
        analysed.on_read.offset,
    )


def _order(analysed: Analysed, names: Sequence[str], extra: Sequence[str]) -> tuple[Sort, ...]:
    place = dict(zip(analysed.outputs, names, strict=True)) | {tree: f"__o{n}" for n, tree in enumerate(extra)}
    return tuple(Sort(place[o.column], o.descending, o.nulls_first) for o in analysed.on_read.order)


def argument_type(call: exp.Expression, typed: Mapping[str, str]) -> str | None:
    """The Spark type of an aggregate's first argument."""
    return typed.get("argument of " + call.sql(dialect="spark"))


def repeatable(node: Relation, typed: Mapping[str, str]) -> bool:
    """Whether computing the node's rows again gives the very same rows, so that a row can be taken back by its value.

    Sums of floats depend on the order of rows; ranks among equals and functions of a list's order do too.
    """
    for each in walk(node):
        items = each.values if isinstance(each, Aggregate) else each.items if isinstance(each, Window) else ()
        if any(not _repeatable_call(item.expr, typed) for item in items):
            return False
    return True


_EXACT = frozenset(
    [
        "count",
        "count_if",
        "min",
        "max",
        "bool_and",
        "bool_or",
        "every",
        "some",
        "any",
        "rank",
        "dense_rank",
        "approx_count_distinct",
        "bit_and",
        "bit_or",
        "bit_xor",
    ]
)


def _repeatable_call(call: exp.Expression, typed: Mapping[str, str]) -> bool:
    inside = call.this if isinstance(call, exp.Window | exp.Filter) else call
    inside = inside.this if isinstance(inside, exp.Filter) else inside
    name = function_name(inside)
    if name in _EXACT:
        return True
    kind = typed.get(
        "argument of " + inside.sql(dialect="spark"), typed.get("argument of " + call.sql(dialect="spark"))
    )
    return name in ("sum", "avg", "mean") and kind is not None and kind not in ("double", "float")
