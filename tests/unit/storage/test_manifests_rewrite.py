"""Merged manifests hold the same entries, in fewer files, sorted; followers of the table see nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestContent, ManifestFile

from headwater.storage.changes import between
from headwater.storage.commit import Change
from headwater.storage.maintenance import manifests as rewriting
from headwater.storage.maintenance.manifests import manifest_plan, plan_manifests, run_manifests
from headwater.storage.scan import plan_scan
from headwater.types import Partition

MB = 1024**2


def manifest(path: str, length: int, spec: int = 0) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=length,
        partition_spec_id=spec,
        content=ManifestContent.DATA,
        added_snapshot_id=1,
    )


def test_it_pays_from_a_number_on_and_only_for_small_ones() -> None:
    few = [manifest(f"{n}", 1000) for n in range(9)]
    assert plan_manifests(few, 8 * MB).empty
    assert plan_manifests(few, 8 * MB).reason == "9 manifests are few enough"
    many = [*few, manifest("9", 1000)]
    plan = plan_manifests(many, 8 * MB)
    assert (len(plan.merged), plan.before, plan.after) == (10, 10, 1)
    large = [manifest(f"large {n}", 5 * MB) for n in range(20)]
    assert plan_manifests(large, 8 * MB).empty
    assert plan_manifests([*many, *large], 8 * MB).after == 21
    middling = [manifest(f"middling {n}", 3 * MB) for n in range(12)]
    assert plan_manifests(middling, 8 * MB).after == 5
    assert plan_manifests([], 8 * MB).reason == "the table is empty"


def test_each_partition_spec_is_merged_by_itself() -> None:
    mixed = [manifest(f"{n}", 1000, n % 2) for n in range(18)]
    assert plan_manifests(mixed, 8 * MB).empty
    assert plan_manifests([*mixed, manifest("a", 1, 0), manifest("b", 1, 1)], 8 * MB).after == 2


def entries(kept: Any) -> dict[str, tuple[Any, ...]]:
    snapshot = kept.table.metadata.current_snapshot()
    return {
        entry.data_file.file_path: (
            entry.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
            entry.data_file.record_count,
            entry.data_file.upper_bounds,
        )
        for each in snapshot.manifests(kept.table.io)
        for entry in each.fetch_manifest_entry(kept.table.io)
    }


def test_the_same_entries_in_one_manifest(kept: Any) -> None:
    first = kept.append()
    for _ in range(11):
        kept.append()
    before, newest, totals = entries(kept), kept.topic.snapshot_id, kept.table.current_snapshot().summary
    done = run_manifests(kept.load, kept.cache, lambda _: {"headwater.note": "x"})
    assert done.describe()["manifests_before"] == 12
    snapshot = kept.table.current_snapshot()
    assert (snapshot.snapshot_id, snapshot.parent_snapshot_id) == (done.snapshot_id, newest)
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary["headwater.note"] == "x"
    for name in ("total-records", "total-data-files", "total-files-size"):
        assert snapshot.summary[name] == totals[name]
    assert len(snapshot.manifests(kept.table.io)) == 1
    assert entries(kept) == before
    assert kept.numbers() == list(range(24))
    assert between(kept.table, newest, snapshot.snapshot_id, kept.cache).rows == 0
    assert between(kept.table, first, snapshot.snapshot_id, kept.cache).rows == 22
    assert run_manifests(kept.load, kept.cache).snapshot_id is None, "once is enough"
    kept.append()
    kept.change(Change((), kept.live()[:1], "overwrite"))
    assert len(kept.numbers()) == 24


def test_manifests_are_clustered_by_partition(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = make(None, Partition("bucket", "n", 4))
    for _ in range(12):
        kept.append(8)
    lengths = [each.manifest_length for each in kept.table.current_snapshot().manifests(kept.table.io)]
    monkeypatch.setattr(rewriting, "target_bytes", lambda _: 2 * sum(lengths) // 6)
    files = len(kept.live())
    run_manifests(kept.load, kept.cache, least=2)
    now = kept.table.current_snapshot().manifests(kept.table.io)
    assert 1 < len(now) < 12
    assert sum(each.existing_files_count for each in now) == files
    found = plan_scan(kept.table, kept.topic.snapshot_id, EqualTo("n", 5), kept.cache)
    read = [each for each in now if any(f in found.files for f in kept.cache.files(each, kept.table.io))]
    assert len(read) < len(now), "a partition is in few of them"
    assert kept.numbers() == list(range(96))


def test_a_commit_that_comes_meanwhile_is_kept(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        kept.append()
    inner, raced = rewriting.manifest_plan, []

    def race(*arguments: Any) -> Any:
        plan = inner(*arguments)
        if not raced:
            raced.append(kept.append())
        return plan

    monkeypatch.setattr(rewriting, "manifest_plan", race)
    assert run_manifests(kept.load, kept.cache).snapshot_id == kept.topic.snapshot_id
    assert kept.numbers() == list(range(22))
    assert manifest_plan(kept.table, kept.cache).before == 1
