"""SQL between a query's rows and a view's table: states from weighted rows, the view's rows from states, compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from headwater.catalog.view_layout import EPOCH, PART, ROWS, Layout, StateColumns
from headwater.catalog.views import BASE, SIGN
from headwater.views.analyse.common import parse as _parse
from headwater.views.analyse.scope import Opaque
from headwater.views.deltas import WEIGHT, Differ, net_rows
from headwater.views.layout import Grouped
from headwater.views.relation import (
    Aggregate,
    Distinct,
    Filter,
    Item,
    Join,
    Project,
    Relation,
    Scan,
    Union,
    column,
    columns,
    substitute,
)
from headwater.views.states import MOMENTS, merged

Columns = tuple[tuple[str, str], ...]
"""Columns as (name shown, name in the tree)."""


# -- into the table -------------------------------------------------------------------------------------------------


def state_rows(layout: Layout, grouped: Grouped, child: str, *, base: bool) -> str:
    """SQL for the table's rows of a `states` view, from weighted rows of the groups' input."""
    keys = {
        name: item.expr.sql(dialect="spark") for item, name in zip(grouped.aggregate.keys, layout.keys, strict=True)
    }
    selects = [_part(layout, 0, keys, child, base)]
    for state in layout.states:
        if state.part is not None:
            selects.append(_part(layout, state.part, keys | _partials(state), child, base))
    names = ", ".join(_q(name) for name in layout.columns)
    return " UNION ALL ".join(f"(SELECT {names} FROM ({select}))" for select in selects)


def _part(layout: Layout, part: int, by: Mapping[str, str], child: str, base: bool) -> str:
    """One part of the table's rows: the groups' own states (part 0), or the counts of values of one aggregate."""
    made = {name: sql for s in layout.states if part == 0 and s.part is None for name, sql in _partials(s).items()}
    if base and part == 0:
        made |= {s.finished: f"({s.final.format(**_by_suffix(s))})" for s in layout.states if s.finished is not None}
    lacking = {name: "NULL" for state in layout.states for name in state.stored if name not in {*by, *made}}
    number = {PART: str(part)} if layout.parts else {}
    rows = {ROWS: f"COALESCE(SUM(CAST({WEIGHT} AS BIGINT)), 0)", SIGN: "1", BASE: str(base).upper()}
    items = ", ".join(f"{sql} AS {_q(name)}" for name, sql in {**by, **made, **lacking, **number, **rows}.items())
    group = " GROUP BY " + ", ".join(str(n + 1) for n in range(len(by))) if by else ""
    return f"SELECT {items} FROM ({child}){group}"


def _partials(state: StateColumns) -> dict[str, str]:
    return dict(zip(state.columns, state.partials, strict=True))


def _by_suffix(state: StateColumns) -> dict[str, str]:
    return dict(zip(state.suffixes, state.partials, strict=True))


def compacted(layout: Layout, table: str, *, signed: bool, base: bool) -> str:
    """SQL that folds rows of the table into as few as there can be. `base`: these are all rows of the table."""
    if layout.kind == "rows":
        return _compacted_rows(layout, table, base)
    if layout.kind == "latest":
        names = ", ".join(_q(name) for name in layout.columns if name != BASE)
        return f"SELECT {names}, {str(base).upper()} AS {BASE} FROM ({_latest(layout, table)})"
    scan = _scan(layout, table, "v", SIGN if signed else None)
    by = [*([PART] if layout.parts else []), *layout.keys, *(name for part in layout.parts for name in part)]
    node: Relation = Aggregate(scan, _same(by, "v"), tuple(_merges(layout, "v")))
    if base and layout.grouped:
        node = Filter(node, _parse(f"{_q(f'v.{ROWS}')} <> 0"))
    made = {name: _q(f"v.{name}") for name in (*by, ROWS)}
    for number, state in enumerate(layout.states):
        if state.merges[:1] == ("moments",):
            value = _q(f"v.value{number}")
            made |= {name: f"{value}.{suffix}" for name, suffix in zip(state.columns, MOMENTS, strict=True)}
        elif state.part is None:
            made |= {name: _q(f"v.{name}") for name in state.columns}
        if state.finished is not None:
            made[state.finished] = _final(state, "v", number).sql(dialect="spark")
    made |= {SIGN: "1", BASE: str(base).upper()}
    items = ", ".join(f"{made[name]} AS {_q(name)}" for name in layout.columns)
    return f"SELECT {items} FROM ({_rendered(node)})"


def _latest(layout: Layout, table: str) -> str:
    """SQL for the newest row of every group."""
    keys = f"PARTITION BY {', '.join(_q(key) for key in layout.keys)} " if layout.keys else ""
    names = ", ".join(_q(name) for name in layout.columns)
    ranked = f"SELECT {names}, ROW_NUMBER() OVER ({keys}ORDER BY {EPOCH} DESC) AS __place FROM {_q(table)}"
    return f"SELECT {names} FROM ({ranked}) WHERE __place = 1"


def _compacted_rows(layout: Layout, table: str, base: bool) -> str:
    kept = [name for name in layout.columns if name not in (SIGN, BASE)]
    names = ", ".join(_q(name) for name in kept)
    net = net_rows(table, [(name, name) for name in kept], SIGN, layout.identities)
    return (
        f"SELECT {names}, CAST(SIGN({WEIGHT}) AS INT) AS {SIGN}, {str(base).upper()} AS {BASE} "
        f"FROM (SELECT * FROM ({net}) WHERE {WEIGHT} <> 0) "
        f"LATERAL VIEW EXPLODE(SEQUENCE(CAST(1 AS BIGINT), ABS({WEIGHT}))) __n AS __n"
    )


# -- out of the table -----------------------------------------------------------------------------------------------


def fold(layout: Layout, table: str, alias: str, *, signed: bool) -> tuple[Relation, Columns]:
    """The view's rows as a relation over its own table, without ORDER BY and LIMIT; and its columns."""
    if layout.kind == "latest":
        raise Opaque("a view that it reads keeps the newest row of a group, and does not say which one it replaced")
    scan = _scan(layout, table, alias, SIGN if signed else None)
    if layout.kind == "rows":
        shown = tuple((name, f"{alias}.{sql}") for name, _, sql in layout.outputs)
        extra = [f"{alias}.{name}" for name in layout.hidden]
        return Project(scan, tuple(Item(tree, column(tree)) for tree in (*(t for _, t in shown), *extra))), shown
    return _finished(layout, _merged(layout, scan, alias), alias)


def read_sql(layout: Layout, table: str, *, signed: bool, base: bool = False) -> str:
    """Spark SQL for the view's rows, ORDER BY and LIMIT included, over the view's own table.

    `base`: nothing was appended to it since everything was folded.
    """
    if layout.kind == "latest":
        rows = _q(table) if base else f"({_latest(layout, table)})"
        return f"SELECT {', '.join(f'{_q(sql)} AS {_q(name)}' for name, _, sql in layout.outputs)} FROM {rows}"
    if layout.kind == "states" and layout.grouped and not layout.parts and not signed:
        if base:
            relation, shown = _finished(layout, _scan(layout, table, "v", None), "v", base=True)
        else:
            relation, shown = _finished(layout, _split(layout, table), "v")
    else:
        relation, shown = fold(layout, table, "v", signed=signed)
    child = _rendered(relation)
    outputs = ", ".join(f"{_q(tree)} AS {_q(name)}" for name, tree in shown)
    order = _order(layout)
    limit = f" LIMIT {layout.limit}" if layout.limit is not None else ""
    limit += f" OFFSET {layout.offset}" if layout.offset is not None else ""
    inner = f"SELECT * FROM ({child}){order}{limit}" if limit else child
    return f"SELECT {outputs} FROM ({inner}){order}"


def _order(layout: Layout) -> str:
    prefix = "v.out." if layout.kind == "states" else "v."
    keys = [
        f"{_q(prefix + s.column)} {'DESC' if s.descending else 'ASC'} NULLS {'FIRST' if s.nulls_first else 'LAST'}"
        for s in layout.order
    ]
    return f" ORDER BY {', '.join(keys)}" if keys else ""


def _split(layout: Layout, table: str) -> Relation:
    """One row per group. Groups that no refresh touched since the table was folded are taken as they are."""

    def scan(alias: str, base: bool) -> Relation:
        pairs = tuple((f"{alias}.{name}", name) for name in layout.columns if name != SIGN)
        flag = _q(f"{alias}.{BASE}")
        return Filter(Scan(table, alias, pairs), _parse(flag if base else f"NOT {flag}"))

    def touched(alias: str) -> tuple[Relation, tuple[exp.Expression, ...]]:
        keys = Distinct(Project(scan(alias, base=False), _same(layout.keys, alias)))
        return keys, tuple(_parse(f"{_q(f'v.{key}')} <=> {_q(f'{alias}.{key}')}") for key in layout.keys)

    keys, same = touched("t")
    untouched = _as_merged(layout, Join(scan("v", base=True), keys, "anti", same))
    keys, same = touched("u")
    old = Join(scan("v", base=True), keys, "semi", same)
    both = Union((old, scan("n", base=False)), columns(old))
    return Union((untouched, _merged(layout, both, "v")), columns(untouched))


def _as_merged(layout: Layout, node: Relation) -> Project:
    """Rows of whole groups in the form that merging gives."""
    items = [Item(f"v.{ROWS}", column(f"v.{ROWS}"))]
    for number, state in enumerate(layout.states):
        names = [_q(f"v.{name}") for name in state.columns]
        if state.merges[:1] == ("moments",):
            pairs = ", ".join(f"'{suffix}', {name}" for suffix, name in zip(MOMENTS, names, strict=True))
            items.append(Item(f"v.value{number}", _parse(f"NAMED_STRUCT({pairs})")))
        else:
            items += _same(state.columns, "v")
    return Project(node, (*_same(layout.keys, "v"), *items))


def _finished(layout: Layout, groups: Relation, alias: str, *, base: bool = False) -> tuple[Relation, Columns]:
    """Groups that are there, as the view shows them. `base`: they are whole, so what is finished of them counts."""
    node = groups
    if layout.grouped:
        node = Filter(node, _parse(f"{_q(f'{alias}.{ROWS}')} > 0"))
    names: dict[str, exp.Expression] = {name: column(f"{alias}.{name}") for name in layout.keys}
    names |= {
        f"value{number}": column(f"{alias}.{state.finished}")
        if base and state.finished is not None
        else _final(state, alias, number)
        for number, state in enumerate(layout.states)
    }
    for each in layout.having:
        node = Filter(node, substitute(_parse(each), names))
    items = [Item(f"{alias}.out.{name}", _typed(_parse(sql), of, names)) for name, of, sql in layout.outputs]
    items += [
        Item(f"{alias}.out.__o{number}", substitute(_parse(sql), names)) for number, sql in enumerate(layout.hidden)
    ]
    return Project(node, tuple(items)), tuple((name, f"{alias}.out.{name}") for name, _, _ in layout.outputs)


def _merged(layout: Layout, child: Relation, alias: str) -> Aggregate:
    """The table's rows merged to one row per group; values that are counted one by one are summed first."""
    if not layout.parts:
        return Aggregate(child, _same(layout.keys, alias), tuple(_merges(layout, alias)))
    by = [PART, *layout.keys, *(name for part in layout.parts for name in part)]
    summed = Aggregate(child, _same(by, alias), tuple(_merges(layout, alias)))
    return Aggregate(summed, _same(layout.keys, alias), tuple(_over_parts(layout, alias)))


def _merges(layout: Layout, alias: str) -> list[Item]:
    """Merges of the count and of all states that are not counted value by value."""
    items = [Item(f"{alias}.{ROWS}", _parse(f"SUM({_q(f'{alias}.{ROWS}')})"))]
    for number, state in enumerate(layout.states):
        names = [_q(f"{alias}.{name}") for name in state.columns]
        if state.merges[:1] == ("moments",):
            items.append(Item(f"{alias}.value{number}", _parse(merged("moments", names))))
        else:
            items += [
                Item(f"{alias}.{name}", _parse(merged(kind, [quoted])))
                for name, kind, quoted in zip(state.columns, state.merges, names, strict=False)
            ]
    return items


def _over_parts(layout: Layout, alias: str) -> list[Item]:
    """Over summed parts: the group's own state, which is in part 0, and aggregates of the values that are there."""
    part, rows = _q(f"{alias}.{PART}"), _q(f"{alias}.{ROWS}")
    items = [Item(f"{alias}.{ROWS}", _parse(f"SUM(CASE WHEN {part} = 0 THEN {rows} END)"))]
    for number, state in enumerate(layout.states):
        value = f"{alias}.value{number}"
        if state.part is not None:
            there = f"{part} = {state.part} AND {rows} > 0"
            values = [f"CASE WHEN {there} THEN {_q(f'{alias}.{name}')} END" for name in state.columns]
            items.append(Item(value, _parse(state.final.format(*values))))
        elif state.merges[:1] == ("moments",):
            items.append(Item(value, _parse(f"ANY_VALUE({_q(value)}) FILTER (WHERE {part} = 0)")))
        else:
            items += [
                Item(f"{alias}.{name}", _parse(merged(kind, [_q(f"{alias}.{name}")])))
                for name, kind in zip(state.columns, state.merges, strict=True)
            ]
    return items


def _final(state: StateColumns, alias: str, number: int) -> exp.Expression:
    value = _q(f"{alias}.value{number}")
    if state.part is not None:
        return _parse(value)
    if state.merges[:1] == ("moments",):
        named = {suffix: f"({value}).{suffix}" for suffix in MOMENTS}  # a field, not a column of a table
    else:
        named = dict(zip(state.suffixes, (_q(f"{alias}.{name}") for name in state.columns), strict=True))
    return _parse("(" + state.final.format(**named) + ")")


def _scan(layout: Layout, table: str, alias: str, weight: str | None) -> Scan:
    pairs = tuple((f"{alias}.{n}", n) for n in layout.columns if n not in (SIGN, BASE))
    return Scan(table, alias, pairs, weight, layout.identities)


def _same(names: Sequence[str], alias: str) -> tuple[Item, ...]:
    return tuple(Item(f"{alias}.{name}", column(f"{alias}.{name}")) for name in names)


def _rendered(node: Relation) -> str:
    return Differ({}, names=lambda scan, _: scan.table).content(node, "new")


def _typed(expr: exp.Expression, of: str, names: dict[str, exp.Expression]) -> exp.Expression:
    return _parse(f"CAST({substitute(expr, names).sql(dialect='spark')} AS {of})")


def _q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
