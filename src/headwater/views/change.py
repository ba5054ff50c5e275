"""From what changed in the sources to SQL that brings the view's table up to date. Pure: a plan is a value.

The rules, in order: nothing to do; append the delta; compute the touched keys anew; compute everything anew, with the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import BASE, SIGN
from headwater.views.analyse.scope import Opaque
from headwater.views.deltas import KEY, WEIGHT, Clock, Differ, Keys, Leaf, Only, net_rows
from headwater.views.fold import state_rows
from headwater.views.layout import Grouped, cut_keys, repeatable, top_aggregate, with_cut
from headwater.views.relation import Aggregate, Analysed, Distinct, Filter, Project, Relation, Window, column

VIEW = "__view"
"""The name under which a plan's SQL reads the view's own table."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What the SQL of a plan reads: versions of tables, and keys that are computed first."""

    leaves: tuple[Leaf, ...] = ()
    keys: tuple[Keys, ...] = ()


@dataclass(frozen=True, slots=True)
class Skip:
    """No source moved."""


@dataclass(frozen=True, slots=True)
class AppendDelta:
    """Append the rows of `sql`. `signed`: some of them take earlier rows back."""

    rule: str
    sql: str
    reads: Reads
    signed: bool


@dataclass(frozen=True, slots=True)
class RecomputeKeys:
    """Take back the view's rows of the touched keys (`retract`), and append them computed anew (`insert`)."""

    rule: str
    reason: str
    touched: str
    retract: str
    insert: str
    reads: Reads


@dataclass(frozen=True, slots=True)
class Recompute:
    """Compute everything anew and replace the table's contents."""

    reason: str
    sql: str
    reads: Reads


ChangePlan = Skip | AppendDelta | RecomputeKeys | Recompute


@dataclass(frozen=True, slots=True)
class Incremental:
    """A view's query and the layout of its table: all that planning a change needs."""

    analysed: Analysed
    layout: Layout
    typed: Mapping[str, str] = field(hash=False)

    @property
    def grouped(self) -> Grouped | None:
        return top_aggregate(self.analysed.root) if self.layout.kind == "states" else None


def plan_change(view: Incremental, changed: Mapping[str, bool], clock: Clock | None = None) -> ChangePlan:
    """How the view follows its sources; `changed` are the tables that moved, with whether rows left them."""
    moved = clock is not None and clock.old != clock.new
    if not changed and not moved:
        return Skip()
    effective = clock if moved else None if clock is None else Clock(clock.new, clock.new)
    try:
        plan = _append(view, changed, effective)
        if plan is not None:
            return plan
        reason = _why_not_append(view)
    except Opaque as opaque:
        reason = opaque.reason
    try:
        return _by_keys(view, changed, effective, reason)
    except Opaque as opaque:
        return plan_recompute(view, opaque.reason, clock)


def untracked(view: Incremental, clock: Clock | None) -> str | None:
    """Why the view cannot follow even new rows of any one source; None if it can."""
    plans = [plan_change(view, {table: False}, clock) for table in view.analysed.tables]
    reasons = [plan.reason for plan in plans if isinstance(plan, Recompute)]
    return reasons[0] if plans and len(reasons) == len(plans) else None


def _why_not_append(view: Incremental) -> str:
    if view.layout.kind == "states":
        return "rows left the sources, and MIN, MAX, sketches and sums of floats or wide decimals cannot give them back"
    if _cheaper_by_keys(view.analysed.root):
        return "groups, partitions and distinct rows are computed as a whole"
    return "its values are not surely the same when they are computed again"


def _cheaper_by_keys(root: Relation) -> bool:
    """Whether the topmost node is cut by keys: the view then knows the old rows, and the sources' are not needed."""
    return isinstance(_below(root), Aggregate | Distinct | Window) and cut_keys(root) is not None


def _below(node: Relation) -> Relation:
    while isinstance(node, Filter | Project):
        node = node.child
    return node


def _append(view: Incremental, changed: Mapping[str, bool], clock: Clock | None) -> AppendDelta | None:
    differ = Differ(changed, clock)
    if (grouped := view.grouped) is not None:
        delta = differ.delta(grouped.aggregate.child)
        if delta is None or (delta.signed and not view.layout.invertible):
            return None
        sql = state_rows(view.layout, grouped, delta.sql, base=False)
        return AppendDelta("states", sql, _reads(differ), False)
    root, names = _physical(view)
    if _cheaper_by_keys(root) or not repeatable(root, view.typed):
        return None
    delta = differ.delta(root)
    if delta is None:
        return None
    sql = _row_sql(names, delta.sql, f"CAST({WEIGHT} AS INT)", base=False)
    return AppendDelta("rows", sql, _reads(differ), delta.signed)


def _by_keys(view: Incremental, changed: Mapping[str, bool], clock: Clock | None, reason: str) -> RecomputeKeys:
    differ = Differ(changed, clock)
    if (grouped := view.grouped) is not None:
        if not view.layout.grouped:
            raise Opaque(f"{reason}; and there are no groups to compute alone")
        node: Relation = grouped.aggregate.child
        by = tuple(item.expr for item in grouped.aggregate.keys)
    else:
        node = _below(view.analysed.root)
        cut = cut_keys(node)
        if cut is None:
            if isinstance(node, Window):
                raise Opaque(
                    "window functions without PARTITION BY, or without a common column in it, look at all rows"
                )
            raise Opaque(f"{reason}; and there is no key to compute rows by")
        by = cut
    touched = differ.touched(node, by)
    if touched is None:
        raise Opaque(reason)
    keys = differ.new_keys(touched, len(by))
    only = Only(tuple(enumerate(by)), keys)
    if grouped is not None:
        child = f"SELECT *, 1 AS {WEIGHT} FROM ({differ.content(grouped.aggregate.child, 'new', only)})"
        insert = state_rows(view.layout, grouped, child, base=False)
    else:
        root, names = _physical(view)
        _, carried = with_cut(view.analysed.root, by)
        outside = Only(tuple((n, column(name)) for n, name in enumerate(carried)), keys)
        insert = _row_sql(names, differ.content(root, "new", outside), "1", base=False)
    return RecomputeKeys("keys", reason, touched, _retract(view.layout, keys), insert, _reads(differ))


def _retract(layout: Layout, keys: str) -> str:
    """Rows that take back what is there of the keys: the net of it, so that an often touched key stays small."""
    names = [(name, name) for name in layout.columns if name not in (SIGN, BASE)]
    condition = " AND ".join(f"{_q(key)} <=> __k.{KEY}{place}" for place, key in enumerate(layout.keys))
    there = f"SELECT * FROM {_q(VIEW)} LEFT SEMI JOIN {_q(keys)} AS __k ON {condition}"
    net = f"WITH __there AS ({there}) {net_rows('__there', names, SIGN, layout.identities)}"
    made = {SIGN: f"CAST(-SIGN({WEIGHT}) AS INT) AS {SIGN}", BASE: f"FALSE AS {BASE}"}
    listed = ", ".join(made.get(name, _q(name)) for name in layout.columns)
    return (
        f"SELECT {listed} FROM (SELECT * FROM ({net}) WHERE {WEIGHT} <> 0) "
        f"LATERAL VIEW EXPLODE(SEQUENCE(CAST(1 AS BIGINT), ABS({WEIGHT}))) __n AS __n"
    )


def plan_recompute(view: Incremental, reason: str, clock: Clock | None = None) -> Recompute:
    """The whole view computed at the new version of its sources."""
    differ = Differ({}, Clock(clock.new, clock.new) if clock else None)
    if (grouped := view.grouped) is not None:
        child = f"SELECT *, 1 AS {WEIGHT} FROM ({differ.content(grouped.aggregate.child, 'new')})"
        sql = state_rows(view.layout, grouped, child, base=True)
    else:
        root, names = _physical(view)
        sql = _row_sql(names, differ.content(root, "new"), "1", base=True)
    return Recompute(reason, sql, _reads(differ))


def _physical(view: Incremental) -> tuple[Relation, dict[str, str]]:
    """The query with everything that a `rows` table holds, and the table's column for each name in the tree."""
    analysed, layout = view.analysed, view.layout
    root, carried = analysed.root, tuple[str, ...]()
    if (cut := cut_keys(root)) is not None:
        root, carried = with_cut(root, cut)
    names = {sql: tree for (_, _, sql), tree in zip(layout.outputs, analysed.outputs, strict=True)}
    names |= {key: tree for key, tree in zip(layout.keys, carried, strict=True) if key not in names}
    extra = list(dict.fromkeys(o.column for o in analysed.on_read.order if o.column not in analysed.outputs))
    names |= dict(zip(layout.hidden, extra, strict=True))
    return root, names


def _row_sql(names: Mapping[str, str], child: str, weight: str, *, base: bool) -> str:
    shown = [f"{_q(tree)} AS {_q(name)}" for name, tree in names.items()]
    return f"SELECT {', '.join([*shown, f'{weight} AS {SIGN}', f'{str(base).upper()} AS {BASE}'])} FROM ({child})"


def _reads(differ: Differ) -> Reads:
    return Reads(tuple(differ.leaves.values()), tuple(differ.keys.values()))


def _q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
