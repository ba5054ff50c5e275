"""Snapshot expiry: which past states of a table can no longer be read, and which files go with them.

What stays: the newest states of every branch, by age and number; what any tag or branch points to; and all snapshots
on the way from one that a view stands for to the newest one, because views follow a topic step by step.

Crash behaviour: files that only expired snapshots refer to are noted first, then the snapshots leave the metadata. A
note is no permission: before a file is deleted, all snapshots are asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
    _apply_table_update,
    _TableMetadataUpdateContext,
)

from headwater.observability.failpoints import failpoint
from headwater.sql.units import counted
from headwater.storage.commit import attempts
from headwater.storage.maintenance.reachable import plain, reachable
from headwater.storage.scan import ManifestCache
from headwater.types import VIEW_TAG


@dataclass(frozen=True, slots=True)
class Keep:
    """How many past states a table keeps: all younger than `seconds`, at least `least`, at most `most` of a branch.

    The newest `floor_most` of those younger than `floor` stay: work that began with one may not have pinned it yet.
    Their number is bounded, because every commit writes all snapshots of a table into its metadata.
    """

    seconds: float
    least: int = 1
    most: int = 1_000_000
    floor: float = 0.0
    floor_most: int = 1000


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Snapshots and tags to remove from the metadata."""

    snapshots: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    kept: int = 0
    held_by_views: int = 0

    @property
    def empty(self) -> bool:
        return not self.snapshots and not self.tags

    @property
    def reason(self) -> str:
        if self.empty:
            return f"none of {counted(self.kept, 'snapshot')} is old enough"
        tags = f" and tags {', '.join(self.tags)}" if self.tags else ""
        return f"{counted(len(self.snapshots), 'snapshot')}{tags} too old, {self.kept} stay"


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """A file to which, after the expiry, no snapshot refers."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry did: the plan that was applied, and the files that it left without a snapshot."""

    plan: ExpiryPlan
    files: tuple[Unreferenced, ...] = field(default=(), repr=False)

    def describe(self) -> dict[str, Any]:
        return {
            "snapshots": len(self.plan.snapshots),
            "tags": len(self.plan.tags),
            "snapshots_kept": self.plan.kept,
            "files": len(self.files),
            "bytes": sum(file.bytes for file in self.files),
        }


def plan_expiry(
    metadata: TableMetadata, keep: Keep, now: float, stale_tags: Iterable[str] = (), needed: Iterable[int] = ()
) -> ExpiryPlan:
    """What can go at `now`; `stale_tags` are those of views that do not exist any more, `needed` stays in any case."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    over = {name for name, ref in metadata.refs.items() if name != MAIN_BRANCH and _over(ref, snapshots, now)}
    gone = over | (set(stale_tags) & metadata.refs.keys())
    refs = {name: ref for name, ref in metadata.refs.items() if name not in gone}
    kept = {ref.snapshot_id for ref in refs.values()} | (snapshots.keys() & set(needed))
    young = [each for each in snapshots.values() if _younger(each, keep.floor, now)]
    young.sort(key=lambda each: (each.timestamp_ms, each.sequence_number or 0), reverse=True)
    kept |= {each.snapshot_id for each in young[: keep.floor_most]}
    branched: set[int] = set()
    for ref in refs.values():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            line = _line(snapshots, ref.snapshot_id)
            branched |= {each.snapshot_id for each in line}
            kept |= _recent(line, _own(ref, keep), now)
    held = _followed(refs, snapshots) - kept
    kept |= held
    # What no branch leads to, as a rollback leaves it, can be returned to for as long as other states can be read.
    loose = [each for each in snapshots.values() if each.snapshot_id not in branched]
    kept |= {each.snapshot_id for each in loose if _younger(each, keep.seconds, now)}
    expired = tuple(sorted(snapshots.keys() - kept))
    return ExpiryPlan(expired, tuple(sorted(gone)), len(snapshots) - len(expired), len(held))


def _over(ref: SnapshotRef, snapshots: dict[int, Snapshot], now: float) -> bool:
    """Whether the time is over for which the tag or branch was to be kept."""
    of = snapshots.get(ref.snapshot_id)
    return of is not None and ref.max_ref_age_ms is not None and now * 1000 - of.timestamp_ms > ref.max_ref_age_ms


def _own(ref: SnapshotRef, keep: Keep) -> Keep:
    """What a branch keeps, by its own wish where it has one."""
    seconds = keep.seconds if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms / 1000
    least = keep.least if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
    return replace(keep, seconds=seconds, least=least, most=max(keep.most, least))


def _line(snapshots: dict[int, Snapshot], newest: int) -> list[Snapshot]:
    """A snapshot and its ancestors, as far as they are known, newest first."""
    line: list[Snapshot] = []
    at: int | None = newest
    while at is not None and at in snapshots:
        line.append(snapshots[at])
        at = snapshots[at].parent_snapshot_id
    return line


def _recent(line: Sequence[Snapshot], keep: Keep, now: float) -> set[int]:
    return {
        each.snapshot_id
        for place, each in enumerate(line)
        if place < keep.least or (place < keep.most and _younger(each, keep.seconds, now))
    }


def _younger(snapshot: Snapshot, seconds: float, now: float) -> bool:
    return snapshot.timestamp_ms > (now - seconds) * 1000


def _followed(refs: dict[str, SnapshotRef], snapshots: dict[int, Snapshot]) -> set[int]:
    """The ways from what each view stands for to the newest snapshot: back to where their lines meet, and on."""
    main = refs.get(MAIN_BRANCH)
    newest = [each.snapshot_id for each in _line(snapshots, main.snapshot_id)] if main is not None else []
    places = {snapshot: place for place, snapshot in enumerate(newest)}
    kept: set[int] = set()
    for pinned in {ref.snapshot_id for name, ref in refs.items() if name.startswith(VIEW_TAG)}:
        line = [each.snapshot_id for each in _line(snapshots, pinned)]
        meeting = next((snapshot for snapshot in line if snapshot in places), None)
        if meeting is not None:
            kept |= {*line[: line.index(meeting)], *newest[: places[meeting] + 1]}
    return kept


def unreferenced(table: Table, expired: Iterable[int], cache: ManifestCache) -> tuple[Unreferenced, ...]:
    """The files that only the expired snapshots refer to; raises if a manifest of one that stays cannot be read.

    What an expired one names in a manifest that cannot be read is left out: it becomes an orphan, found by its age.
    """
    gone = set(expired)
    if not gone:
        return ()
    going = [each for each in table.metadata.snapshots if each.snapshot_id in gone]
    staying = [each for each in table.metadata.snapshots if each.snapshot_id not in gone]
    stay = reachable(staying, table.io, cache).paths()
    found = reachable(going, table.io, cache, lenient=True).paths()
    statistics = {plain(each.statistics_path): 0 for each in table.metadata.statistics if each.snapshot_id in gone}
    return tuple(Unreferenced(path, size) for path, size in sorted({**found, **statistics}.items()) if path not in stay)


def run_expiry(
    load: Callable[[], Table],
    replan: Callable[[Table], ExpiryPlan],
    note: Callable[[Sequence[Unreferenced]], None],
    cache: ManifestCache,
) -> Expired:
    """Remove what `replan` finds on the newest metadata; `note` is told of the files first, and must not lose them."""
    for _ in attempts("expiry"):
        table = load()
        plan = replan(table)
        if plan.empty:
            return Expired(plan)
        files = unreferenced(table, plan.snapshots, cache)
        failpoint("expire.planned")
        note(files)
        failpoint("expire.noted")
        try:
            _remove(table, plan)
        except CommitFailedException:
            continue  # a tag came, a commit came: what may go is thought of anew
        failpoint("expire.committed")
        return Expired(plan, files)
    raise AssertionError


class _Unpinned(ValidatableTableRequirement):
    """Nothing points to the snapshots that go, except the tags that go with them: with a snapshot go its tags."""

    type: str = "headwater-unpinned"
    snapshots: set[int]
    tags: dict[str, int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        refs = {name: ref.snapshot_id for name, ref in base_metadata.refs.items()} if base_metadata is not None else {}
        moved = any(refs.get(name) != snapshot for name, snapshot in self.tags.items())
        if moved or any(snapshot in self.snapshots for name, snapshot in refs.items() if name not in self.tags):
            raise CommitFailedException("tags or branches have changed")


class _Forget(RemoveSnapshotsUpdate):
    """Removes snapshots; those that stay go on naming their parents.

    PyIceberg's own removal takes the parents' ids away, and then nothing tells the first snapshot of a table from one
    whose ancestors have expired. Iceberg's Java library keeps them.
    """


@_apply_table_update.register(_Forget)
def _(update: _Forget, base_metadata: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    removed = _apply_table_update.dispatch(RemoveSnapshotsUpdate)(update, base_metadata, context)
    gone = set(update.snapshot_ids)
    kept = [each for each in base_metadata.snapshots if each.snapshot_id not in gone]
    return removed.model_copy(update={"snapshots": kept})


def _remove(table: Table, plan: ExpiryPlan) -> None:
    tags = {name: table.metadata.refs[name].snapshot_id for name in plan.tags}
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in plan.tags]
    if plan.snapshots:
        updates.append(_Forget.model_validate({"snapshot-ids": plan.snapshots}))
    unpinned = cast(TableRequirement, _Unpinned(snapshots=set(plan.snapshots), tags=tags))
    with table.transaction() as transaction:
        transaction._stage(tuple(updates), (unpinned,))
