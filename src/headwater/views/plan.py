"""How a view follows its sources now: the ranges of snapshots, the change to make, and what it is estimated to cost.

Pure over metadata that was loaded before. `EXPLAIN REFRESH` prints this very value, and the executor runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from headwater.catalog.view_layout import LAYOUT_VERSION, Layout, layout_version
from headwater.catalog.views import BASE, SIGN, Position, SourceColumns, View
from headwater.errors import SnapshotGone, ViewBroken, ViewNotIncremental
from headwater.storage.changes import Changes, between
from headwater.storage.scan import ManifestCache
from headwater.types import RefreshMethod, TableName, ViewDefinition
from headwater.views.analyse import Opaque, Open, analyse, open_tables
from headwater.views.casts import with_casts
from headwater.views.change import (
    AppendDelta,
    ChangePlan,
    Incremental,
    Reads,
    Recompute,
    RecomputeKeys,
    Skip,
    plan_change,
    plan_recompute,
)
from headwater.views.deltas import Clock, Leaf, has_clock
from headwater.views.fold import fold
from headwater.views.relation import walk
from headwater.views.sources import Head
from headwater.views.text import plain_query

CHEAPER = 1.0
"""A refresh that would read more than this share of what a recompute reads is not worth being incremental."""

_WIDE_SUMS = tuple(f"AS decimal(38,{scale}))" for scale in range(39))
"""How the sums of decimals end that have more digits than Spark negates exactly."""

NO_TAILS: Mapping[TableName, pa.Table] = {}

PRUNED = 0.2
"""The share of a table that is expected to be read when keys restrict it, for want of knowing the keys."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What the refresh consumes of one source: the change from `start` to `end`; None if it is not known."""

    head: Head
    start: int | None
    end: int | None
    changes: Changes | None = field(repr=False)
    tail: pa.Table | None = field(default=None, repr=False)  # rows of the log behind `end`, for a fresh read

    @property
    def moved(self) -> bool:
        return self.start != self.end

    @property
    def changed(self) -> bool:
        """Whether rows came or went; a compaction moves a source without changing it."""
        if self.tail is not None and self.tail.num_rows:
            return True
        return self.changes is not None and bool(self.changes.added or self.changes.removed)


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """See the module. `base` is the view's snapshot that the plan was made for."""

    view: View
    base: int | None
    ranges: tuple[SourceRange, ...]
    position: Position
    change: ChangePlan
    rows: int
    full_rows: int
    chosen: str

    @property
    def delta_rows(self) -> int:
        return sum(each.changes.rows for each in self.ranges if each.changes is not None)

    @property
    def rebuilds(self) -> bool:
        """Whether an earlier version built the view: a recompute then chooses its layout again, as CREATE does."""
        return isinstance(self.change, Recompute) and is_outdated(self.view)

    @property
    def method(self) -> str:
        match self.change:
            case Skip():
                return "skip"
            case AppendDelta():
                return "append"
            case RecomputeKeys():
                return "keys"
            case Recompute():
                return "full"


def plan_refresh(
    view: View,
    heads: Mapping[TableName, Head],
    now: str,
    cache: ManifestCache,
    tails: Mapping[TableName, pa.Table] = NO_TAILS,
    *,
    full: bool = False,
) -> RefreshPlan:
    """How `view` would be brought to `heads`, and to `tails` behind them; ViewBroken if they lack what it reads.

    With `full` everything is computed anew, even if nothing changed.
    """
    wanted: RefreshMethod = "full" if full else view.definition.options.method
    check_sources(view, heads)
    old = view.position
    ranges, lost = _ranges(view, heads, old, cache)
    ranges = tuple(replace(each, tail=tails.get(each.head.table_name)) for each in ranges)
    position = Position({r.head.table_name: r.end for r in ranges}, {r.head.table_name: r.head.id for r in ranges}, now)
    query = taken_apart(view, ranges)
    anew = lost or ("REFRESH ... FULL asks for it" if full else _inexact_sums(view))
    change, chosen = _change(view, query, ranges, Clock(old.now or now, now), wanted, anew)
    full_rows = sum(each.head.rows(each.end) for each in ranges)
    rows = _rows(change, ranges)
    if wanted == "auto" and not isinstance(change, Skip | Recompute) and rows > CHEAPER * full_rows + 1000:
        chosen = f"reading {rows:,} rows to follow the changes is dearer than reading all {full_rows:,}"
        change = _recompute(view, query, chosen, Clock(now, now))
        rows = full_rows
    if isinstance(query, Incremental) and not _uses_clock(query):
        position = Position(position.snapshots, position.ids, None)
    return RefreshPlan(view, view.snapshot_id, ranges, position, change, rows, full_rows, chosen)


def check_sources(view: View, heads: Mapping[TableName, Head]) -> None:
    """ViewBroken if a source is gone or lacks a column that the view reads."""
    for source in view.sources:
        head = heads.get(source.table)
        if head is None:
            raise ViewBroken(
                f'materialized view "{view.name}" cannot be refreshed',
                detail=f'Its source "{source.table.name}" does not exist any more.',
                hint="Create it again, or drop the view.",
            )
        layout = head.layout
        have = {name for name, _, _ in layout.outputs} if layout else {f.name for f in head.table.schema().fields}
        missing = [name for name, _ in source.columns if name not in have]
        if missing:
            raise ViewBroken(
                f'materialized view "{view.name}" cannot be refreshed',
                detail=f'Its source "{source.table.name}" has no column "{missing[0]}" any more.',
                hint="Bring the column back, or CREATE OR REPLACE the view.",
            )


def _ranges(
    view: View, heads: Mapping[TableName, Head], old: Position, cache: ManifestCache
) -> tuple[tuple[SourceRange, ...], str | None]:
    """The ranges to consume; and why what was consumed cannot be told, if it cannot."""
    ranges, lost = [], None
    if view.snapshot_id is None:
        lost = "the view has not been computed yet"
    for source in view.sources:
        head = heads[source.table]
        start, end = old.snapshots.get(source.table), head.snapshot_id
        changes = None
        if old.ids.get(source.table) != head.id:
            lost = lost or f'"{head.name}" was replaced by another'
        else:
            try:
                changes = between(head.table, start, end, cache)
            except SnapshotGone:
                lost = lost or f'the snapshot of "{head.name}" that the view stands for has expired'
        ranges.append(SourceRange(head, start, end, changes))
    return tuple(ranges), lost


def _change(
    view: View,
    query: Incremental | Opaque,
    ranges: Sequence[SourceRange],
    clock: Clock,
    method: RefreshMethod,
    anew: str | None,
) -> tuple[ChangePlan, str]:
    """The change, and why it is this one; `anew` says why everything must be computed, if it must."""
    if anew is not None:
        return _recompute(view, query, anew, clock), anew
    changed = {each.head.name: bool(each.changes and each.changes.removed) for each in ranges if each.changed}
    if method == "full":
        if not changed and not (isinstance(query, Incremental) and _uses_clock(query)):
            return Skip(), "no source changed"
        return _recompute(view, query, "refresh = 'full'", clock), "refresh = 'full'"
    if isinstance(query, Opaque):
        if not changed:
            return Skip(), "no source changed"
        change: ChangePlan = _recompute(view, query, query.reason, clock)
    else:
        change = plan_change(query, changed, clock if _uses_clock(query) else None)
    if isinstance(change, Recompute) and method == "incremental" and not is_outdated(view):
        raise ViewNotIncremental(
            f'materialized view "{view.name}" cannot refresh incrementally',
            detail=f"{change.reason[:1].upper()}{change.reason[1:]}.",
            hint="Use refresh = 'auto', or REFRESH ... FULL.",
        )
    return change, _why(change)


def _why(change: ChangePlan) -> str:
    match change:
        case Skip():
            return "no source changed"
        case AppendDelta(rule="states"):
            return "groups are kept as states that add up"
        case AppendDelta():
            return "rows of the answer follow from rows of the change"
        case RecomputeKeys() | Recompute():
            return change.reason


def _recompute(view: View, query: Incremental | Opaque, reason: str, clock: Clock) -> Recompute:
    if isinstance(query, Incremental):
        return plan_recompute(query, reason, clock if _uses_clock(query) else None)
    return _recompute_text(view.definition.query, Layout.from_json(view.layout), view.sources, reason)


def _recompute_text(query: str, layout: Layout, sources: Sequence[SourceColumns], reason: str) -> Recompute:
    """A query that was not taken apart, run as it is."""
    names = [f"`{name}`" for name, _, _ in layout.outputs]
    sql = f"SELECT {', '.join(names)}, 1 AS {SIGN}, TRUE AS {BASE} FROM ({plain_query(query)})"
    leaves = tuple(Leaf(s.table.name, s.table.name, "new", tuple(c for c, _ in s.columns)) for s in sources)
    return Recompute(reason, sql, Reads(leaves))


def drafted(defined: Draft, ranges: Sequence[SourceRange], now: str) -> Recompute:
    """How a view that is not in the catalog yet is computed."""
    reason = "it is new"
    if defined.layout.opaque is not None:
        return _recompute_text(defined.definition.query, defined.layout, defined.sources, reason)
    analysed = analyse(plain_query(defined.definition.query), lambda required: opener(defined, ranges, required))
    query = Incremental(with_casts(analysed, defined.types), defined.layout, defined.types)
    return plan_recompute(query, reason, Clock(now, now) if _uses_clock(query) else None)


def is_outdated(view: View) -> bool:
    """Whether an earlier version of Headwater chose how the view is stored."""
    return layout_version(view.layout) < LAYOUT_VERSION


def _inexact_sums(view: View) -> str | None:
    """Why a view of layout 1 must not be followed: its sums may be wrong once rows leave, and may be so already."""
    if not is_outdated(view):
        return None
    sums = [state.final for state in Layout.from_json(view.layout).states if state.suffixes == ("s", "n")]
    if any("/" not in final and final.endswith(("AS bigint)", *_WIDE_SUMS)) for final in sums):
        return "an earlier version of Headwater built it, whose sums are not exact when rows are deleted"
    return None


def _uses_clock(query: Incremental) -> bool:
    return any(has_clock(node) for node in walk(query.analysed.root))


def taken_apart(view: View, ranges: Sequence[SourceRange]) -> Incremental | Opaque:
    """The view's query as operators over its sources; Opaque with the reason if it cannot be."""
    layout = Layout.from_json(view.layout)
    if layout.opaque is not None:
        return Opaque(layout.opaque)
    try:
        analysed = analyse(plain_query(view.definition.query), lambda required: opener(view, ranges, required))
        return Incremental(with_casts(analysed, view.types), layout, view.types)
    except Opaque as opaque:
        return opaque


class Reading(Protocol):
    """Something that reads sources: a view, or one that is being defined."""

    @property
    def sources(self) -> tuple[SourceColumns, ...]: ...


class Draft(Reading, Protocol):
    """A view that is being defined."""

    @property
    def definition(self) -> ViewDefinition: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def types(self) -> Mapping[str, str]: ...


def opener(view: Reading, ranges: Sequence[SourceRange], required: set[str]) -> Open:
    """Opens the view's sources: topics as tables with the columns of old, views as folds of their states."""
    tables = {source.table.name: source.columns for source in view.sources if source.table.namespace == "topics"}
    topics = open_tables(tables, required)
    views = {each.head.name: each for each in ranges if each.head.view is not None}
    allowed = {source.table.name: {name for name, _ in source.columns} for source in view.sources}

    def opened(table: str, alias: str) -> object:
        if table not in views:
            return topics(table, alias)
        found = views[table]
        layout = found.head.layout
        assert layout is not None
        if layout.limit is not None or layout.offset is not None:
            raise Opaque(f'"{table}" has a LIMIT, so a change anywhere may change any of its rows')
        relation, columns = fold(layout, table, alias, signed=found.head.signed(found.start, found.end))
        return relation, tuple((name, tree) for name, tree in columns if name in allowed[table])

    return opened  # type: ignore[return-value]


def _rows(change: ChangePlan, ranges: Sequence[SourceRange]) -> int:
    """An estimate of the rows that the change reads."""
    if isinstance(change, Skip):
        return 0
    by_name = {each.head.name: each for each in ranges}
    hints = {keys.name for keys in change.reads.keys if keys.hint}
    total = 0.0
    for leaf in change.reads.leaves:
        source = by_name[leaf.table]
        if leaf.version == "delta":
            total += source.changes.rows if source.changes is not None else 0
        else:
            share = PRUNED if any(prune.keys not in hints for prune in leaf.prunes) else 1.0
            share = min(share, PRUNED) if leaf.prunes else share
            total += share * source.head.rows(source.end if leaf.version == "new" else source.start)
    return int(total)
