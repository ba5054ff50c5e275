"""Cherry-pick: what a snapshot did that is not part of a table any more is done again, with the very same files.

Nothing is written but metadata. Records come back under their old offsets, which the table must name as a gap: so they
cannot come back twice. Crash behaviour: all of it, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from headwater.catalog.definitions import P_GAPS
from headwater.errors import Conflict, StaleCommit
from headwater.sql.units import counted
from headwater.storage.changes import Changes, made_by
from headwater.storage.commit import Change, Committed, commit
from headwater.storage.past_columns import why_unfit
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.time_travel import (
    S_PICKED_FROM,
    S_PICKED_TO,
    S_SOURCE,
    Named,
    line_of,
    maker_of,
    offsets_of,
    said,
)
from headwater.storage.time_travel_gaps import Gap, read_gaps, without, write_gaps
from headwater.types import Offsets

_KEPT = ("headwater.deleted-rows", "headwater.updated-rows", "headwater.retired-rows")
"""Entries of a summary that say what was done to rows that had their offsets already."""


@dataclass(frozen=True, slots=True)
class PickPlan:
    """What applies snapshot `source` to a topic whose snapshot is `base`: its files, and the offsets they bring."""

    topic: str
    table_id: str
    base: int | None
    source: Snapshot = field(repr=False)
    operation: Literal["append", "overwrite"]
    changes: Changes
    offsets: Offsets | None
    old_gaps: tuple[Gap, ...]
    gaps: tuple[Gap, ...]


def plan_pick(topic: str, table: Table, source: Snapshot, cache: ManifestCache) -> PickPlan:
    """How a snapshot is applied to a topic; Conflict with the reason if it cannot be."""
    named = Named("topic", topic)
    base = table.metadata.current_snapshot_id
    _check_new(table, base, source, named)
    changes = made_by(table, source, cache)
    offsets, gaps = offsets_of(source), read_gaps(table)
    live = {file.file_path for file in plan_scan(table, base, AlwaysTrue(), cache).files}
    _check_files(table, source, changes, live, named)
    _check_offsets(source, changes, offsets, gaps, named)
    if (why := why_unfit(table, source, cache)) is not None:
        raise _refused(source, named, why)
    return PickPlan(
        topic,
        str(table.metadata.table_uuid),
        base,
        source,
        "overwrite" if changes.removed else "append",
        changes,
        offsets,
        gaps,
        tuple(part for gap in gaps for part in _left(gap, offsets)),
    )


def _left(gap: Gap, picked: Offsets | None) -> list[Gap]:
    parts = without([gap.offsets], [picked] if picked is not None else [])
    return [replace(gap, start=part.start, end=part.end) for part in parts]


def _check_new(table: Table, base: int | None, source: Snapshot, named: Named) -> None:
    """Conflict if the snapshot's changes are in the table already."""
    for each in line_of(table, base):
        if each.snapshot_id == source.snapshot_id:
            raise Conflict(f"snapshot {source.snapshot_id} is part of {named} already")
        if said(each, S_SOURCE) == str(source.snapshot_id):
            raise Conflict(
                f"snapshot {source.snapshot_id} was picked into {named} already",
                detail=f"Snapshot {each.snapshot_id} did it.",
            )
    if source.summary is not None and source.summary.operation is Operation.REPLACE:
        raise _refused(source, named, "It rewrote files, and changed no row.")


def _check_files(table: Table, source: Snapshot, changes: Changes, live: set[str], named: Named) -> None:
    if not changes.added and not changes.removed:
        raise _refused(source, named, "It neither added nor removed a file.")
    if any(file.file_path in live for file in changes.added):
        raise _refused(source, named, "Files that it added are part of the topic already.")
    if missing := [file for file in changes.removed if file.file_path not in live]:
        hint = f"It was made on snapshot {source.parent_snapshot_id}; perhaps that one has to be picked first."
        lost = counted(len(missing), "file")
        raise _refused(source, named, f"{lost} of those that it replaced cannot be found in it.", hint)
    if any(file.spec_id != table.spec().spec_id for file in changes.added):
        raise _refused(source, named, "Its files are partitioned as the topic was then, and not as it is now.")


def _check_offsets(
    source: Snapshot, changes: Changes, offsets: Offsets | None, gaps: Sequence[Gap], named: Named
) -> None:
    """Conflict unless the records that would come are ones that the table lost, or copies of ones that go."""
    if offsets is not None:
        there = without([offsets], [gap.offsets for gap in gaps])
        if there and len(offsets):
            raise _refused(source, named, f"The topic has records of its offsets {there[0]}.")
    elif changes.added and not any(said(source, key) is not None for key in _KEPT):
        raise _refused(
            source, named, f"It was made by {maker_of(source)}, and its records have no offsets of their own."
        )


def _refused(source: Snapshot, named: Named, why: str, hint: str | None = None) -> Conflict:
    return Conflict(f"snapshot {source.snapshot_id} cannot be picked into {named}", detail=why, hint=hint)


def run_pick(load: Callable[[], Table], plan: PickPlan) -> Committed:
    """Apply the plan; StaleCommit if the topic changed so that it does not fit any more."""

    def check(table: Table) -> None:
        same = str(table.metadata.table_uuid) == plan.table_id and read_gaps(table) == plan.old_gaps
        if not same:
            raise StaleCommit(
                f"{Named('topic', plan.topic)} was rolled back, or picked into, since this was planned",
                hint="Nothing was changed; plan it again.",
            )

    return commit(load, Change(plan.changes.added, plan.changes.removed, plan.operation, *_told(plan)), check)


def _told(plan: PickPlan) -> tuple[dict[str, str], dict[str, str]]:
    """The summary of the new snapshot, and the property that changes with it."""
    summary = {S_SOURCE: str(plan.source.snapshot_id)}
    summary |= {key: text for key in _KEPT if (text := said(plan.source, key)) is not None}
    if plan.offsets is None:
        return summary, {}
    return summary | {S_PICKED_FROM: str(plan.offsets.start), S_PICKED_TO: str(plan.offsets.end)}, {
        P_GAPS: write_gaps(plan.gaps)
    }
