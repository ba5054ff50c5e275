"""What a fresh read puts beside a view's stored rows, planned without running anything.

The plan is the one that a refresh would make, with the log's tail behind the snapshots, so every acknowledged record
counts. Where it only appends what follows from the changes, any engine that knows the SQL can compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

from headwater.catalog.views import P_READ, P_READ_SIGNED, Position, View
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.types import VIEWS
from headwater.views.change import AppendDelta, Skip
from headwater.views.deltas import WEIGHT, Leaf
from headwater.views.plan import RefreshPlan, SourceRange, plan_refresh
from headwater.views.sources import Head

Tail = Callable[[str], tuple[Head, pa.Table]]
"""A topic's name to its newest snapshot and the rows of the log behind it, read at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table that the SQL names: some files of a topic, and rows of its log."""

    name: str
    topic: str
    files: tuple[DataFile, ...] = field(repr=False)
    rows: pa.Table = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unseen:
    """Rows that a refresh would append now, as Spark SQL over the parts; no SQL where nothing changed.

    `read` makes the view's rows of the stored and the unseen ones.
    """

    view: View = field(repr=False)
    sql: str | None
    parts: tuple[Part, ...]
    read: str = field(repr=False)
    position: Position


def plan_fresh(view: View, tail: Tail, now: str, cache: ManifestCache) -> RefreshPlan:
    """The refresh that would bring a view over topics to this very moment."""
    found = {source.table: tail(source.table.name) for source in view.sources}
    heads = {name: head for name, (head, _) in found.items()}
    return plan_refresh(view, heads, now, cache, tails={name: rows for name, (_, rows) in found.items()})


def unseen(view: View, tail: Tail, now: str, cache: ManifestCache) -> Unseen | None:
    """What the view has not consumed; None where it takes more than reading some rows and appending what follows."""
    if any(source.table.namespace == VIEWS for source in view.sources):
        return None
    plan = plan_fresh(view, tail, now, cache)
    change = plan.change
    if isinstance(change, Skip):
        return Unseen(view, None, (), view.read, plan.position)
    if not isinstance(change, AppendDelta) or not all(keys.hint for keys in change.reads.keys):
        return None
    ranges = {each.head.name: each for each in plan.ranges}
    if any(each.changes is not None and each.changes.removed for each in plan.ranges):
        return None
    parts = tuple(_part(leaf, ranges[leaf.table], cache) for leaf in change.reads.leaves)
    read = view.table.metadata.properties[P_READ_SIGNED if view.signed or change.signed else P_READ]
    return Unseen(view, _over_parts(change), parts, read, plan.position)


def _part(leaf: Leaf, source: SourceRange, cache: ManifestCache) -> Part:
    table = source.head.table
    if leaf.version == "delta":
        files = source.changes.added if source.changes is not None else ()
    else:
        snapshot_id = source.end if leaf.version == "new" else source.start
        files = plan_scan(table, snapshot_id, AlwaysTrue(), cache).files
    assert source.tail is not None
    rows = source.tail.slice(0, 0) if leaf.version == "old" else source.tail
    return Part(_stored(leaf), source.head.name, tuple(files), rows)


def _stored(leaf: Leaf) -> str:
    return f"{leaf.name}.rows"  # no name in a query's text has a dot


def _over_parts(change: AppendDelta) -> str:
    """The SQL with the names that it reads defined over the parts: every row of a change came."""
    tables: Mapping[str, str] = {
        leaf.name: f"SELECT {_columns(leaf)} FROM `{_stored(leaf)}`" for leaf in change.reads.leaves
    }
    listed = ", ".join(f"`{name}` AS ({sql})" for name, sql in tables.items())
    return f"WITH {listed} SELECT * FROM ({change.sql})"


def _columns(leaf: Leaf) -> str:
    names = [f"`{name}`" for name in dict.fromkeys(leaf.columns)]
    return ", ".join([*names, f"1 AS {WEIGHT}"] if leaf.version == "delta" else names or ["1 AS `__none`"])
