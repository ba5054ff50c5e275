"""Manifest rewrite: many small manifests become few, sorted by partition, so that planning reads fewer and skips more.

The entries stay what they were: the same files, with the snapshot and the sequence numbers that they came with. The
snapshot that it makes changes no file (`replace`), so whoever follows the table sees nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.typedef import Record

from headwater.observability.failpoints import failpoint
from headwater.storage.commit import attempts
from headwater.storage.scan import ManifestCache
from headwater.storage.snapshot import ExactFiles

LEAST = 10
"""So many small manifests that a rewrite pays; a commit of PyIceberg merges only from 100 on."""


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """The manifests to merge, by partition spec; none if it would not pay."""

    merged: tuple[ManifestFile, ...] = field(default=(), repr=False)
    before: int = 0
    after: int = 0
    reason: str = "the table is empty"

    @property
    def empty(self) -> bool:
        return not self.merged

    def describe(self) -> dict[str, Any]:
        return {
            "manifests_before": self.before,
            "manifests_after": self.after,
            "files": len(self.merged),
            "bytes": sum(manifest.manifest_length for manifest in self.merged),
        }


def plan_manifests(manifests: Sequence[ManifestFile], target: int, least: int = LEAST) -> ManifestPlan:
    """Which of a snapshot's manifests to merge into such of `target` bytes."""
    if not manifests:
        return ManifestPlan()
    merged: list[ManifestFile] = []
    after = len(manifests)
    for group in _by_spec(manifests).values():
        small = [manifest for manifest in group if manifest.manifest_length < target / 2]
        fewer = max(1, math.ceil(sum(manifest.manifest_length for manifest in small) / target))
        if len(small) >= least and fewer <= len(small) / 2:
            merged += small
            after += fewer - len(small)
    reason = (
        f"{len(merged)} small manifests"
        if merged
        else f"{len(manifests)} manifest{'s are' if len(manifests) > 1 else ' is'} few enough"
    )
    return ManifestPlan(tuple(merged), len(manifests), after, reason)


def manifest_plan(table: Table, cache: ManifestCache, least: int = LEAST) -> ManifestPlan:
    """The plan for the table's current snapshot."""
    snapshot = table.metadata.current_snapshot()
    return plan_manifests(cache.manifests(snapshot, table.io) if snapshot else (), target_bytes(table), least)


def target_bytes(table: Table) -> int:
    asked = table.metadata.properties.get(TableProperties.MANIFEST_TARGET_SIZE_BYTES)
    return int(asked) if asked is not None else TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT


def _by_spec(manifests: Sequence[ManifestFile]) -> Mapping[int, list[ManifestFile]]:
    groups: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA:
            groups[manifest.partition_spec_id].append(manifest)
    return groups


@dataclass(frozen=True, slots=True)
class ManifestsRewritten:
    plan: ManifestPlan
    snapshot_id: int | None = None

    def describe(self) -> dict[str, Any]:
        return self.plan.describe()


def run_manifests(
    load: Callable[[], Table],
    cache: ManifestCache,
    summary: Callable[[Table], Mapping[str, str]] = lambda _: {},
    least: int = LEAST,
) -> ManifestsRewritten:
    """Rewrite what the plan for the newest snapshot says; `summary` adds to what the new snapshot says of itself."""
    for _ in attempts("a rewrite of manifests"):
        table = load()
        plan = manifest_plan(table, cache, least)
        if plan.empty:
            return ManifestsRewritten(plan)
        snapshot_id = table.metadata.new_snapshot_id()
        failpoint("manifests.planned")
        try:
            with table.transaction() as transaction:
                MergedManifests(transaction, plan.merged, target_bytes(table), summary(table), snapshot_id).commit()
        except CommitFailedException:
            continue
        failpoint("manifests.committed")
        return ManifestsRewritten(plan, snapshot_id)
    raise AssertionError


class MergedManifests(ExactFiles):
    """The files of the parent snapshot, with the entries of some of its manifests in new ones."""

    def __init__(
        self,
        transaction: Transaction,
        merged: Sequence[ManifestFile],
        target: int,
        summary: Mapping[str, str],
        snapshot_id: int,
    ) -> None:
        super().__init__(transaction, (), (), "replace", summary, snapshot_id)
        self._merged = list(merged)
        self._target = target

    def _existing_manifests(self) -> list[ManifestFile]:
        kept = [manifest for manifest in super()._existing_manifests() if manifest not in set(self._merged)]
        return [*self._written(), *kept]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return manifests

    def _written(self) -> Iterator[ManifestFile]:
        for group in _by_spec(self._merged).values():
            entries = [entry for manifest in group for entry in self.fetch_manifest_entry(manifest)]
            entries.sort(key=_place)
            each = sum(manifest.manifest_length for manifest in group) / max(1, len(entries))
            count = max(1, int(self._target / each))
            for start in range(0, len(entries), count):
                yield self._rewritten(group[0], entries[start : start + count])


def _place(entry: ManifestEntry) -> tuple[Any, ...]:
    """By partition, then by age."""
    partition: Record = entry.data_file.partition
    values = [partition[place] for place in range(len(partition))]
    ordered = tuple((value is None, 0 if value is None else value) for value in values)
    return (ordered, entry.sequence_number or 0, entry.data_file.file_path)
