"""Which snapshots and files go, on real tables; and a property over every shape of history."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from headwater.storage.changes import between
from headwater.storage.commit import Change, tag
from headwater.storage.maintenance import expire
from headwater.storage.maintenance.deletions import run_deletions
from headwater.storage.maintenance.expire import ExpiryPlan, Keep, Unreferenced, plan_expiry, run_expiry, unreferenced
from headwater.storage.maintenance.reachable import plain

NOW = 1_000_000.0


def metadata(
    ages: list[float], *, refs: dict[str, SnapshotRef] | None = None, parents: dict[int, int | None] | None = None
) -> TableMetadata:
    """A line of snapshots 1, 2, ... of these ages in seconds, the last one the newest and current."""
    snapshots = [
        Snapshot.model_validate(
            {
                "snapshot-id": number,
                "parent-snapshot-id": (parents or {}).get(number, number - 1 or None),
                "timestamp-ms": int((NOW - age) * 1000),
                "manifest-list": f"file:///{number}.avro",
                "sequence-number": number,
                "summary": {"operation": "append"},
            }
        )
        for number, age in enumerate(ages, 1)
    ]
    main = SnapshotRef(snapshot_id=len(ages), snapshot_ref_type=SnapshotRefType.BRANCH)
    return TableMetadataV2.model_construct(snapshots=snapshots, refs={"main": main, **(refs or {})})


def tagged(snapshot: int, **more: Any) -> SnapshotRef:
    return SnapshotRef(snapshot_id=snapshot, snapshot_ref_type=SnapshotRefType.TAG, **more)


def gone(plan: ExpiryPlan) -> list[int]:
    return list(plan.snapshots)


def test_by_age_but_never_fewer_than_asked() -> None:
    found = metadata([500, 400, 300, 50, 10])
    assert gone(plan_expiry(found, Keep(100), NOW)) == [1, 2, 3]
    assert gone(plan_expiry(found, Keep(100, least=4), NOW)) == [1]
    assert gone(plan_expiry(found, Keep(0), NOW)) == [1, 2, 3, 4], "the current one never goes"
    assert gone(plan_expiry(found, Keep(0), NOW, needed=[2, 99])) == [1, 3, 4], "nor one that is needed"
    assert plan_expiry(found, Keep(1000), NOW).empty


def test_at_most_so_many_however_young_but_not_those_that_are_just_in_use() -> None:
    found = metadata([50, 40, 30, 20, 10])
    assert gone(plan_expiry(found, Keep(100, least=1, most=2), NOW)) == [1, 2, 3]
    assert gone(plan_expiry(found, Keep(100, least=1, most=2, floor=35), NOW)) == [1, 2]
    assert gone(plan_expiry(found, Keep(100, least=1, most=2, floor=45, floor_most=3), NOW)) == [1, 2], "nor too many"


def test_a_view_keeps_the_whole_line_up_to_the_newest() -> None:
    found = metadata([500, 400, 300, 200, 100], refs={"headwater-view-v": tagged(2), "headwater-view-w": tagged(4)})
    plan = plan_expiry(found, Keep(0), NOW)
    assert gone(plan) == [1]
    assert plan.held_by_views == 1, "3; the others are tagged or current"


def test_a_view_finds_its_way_back_over_a_rollback() -> None:
    """1 ← 2 ← 3 ← 4 ← 5 was left for 2, from which 6 and 7 were made; the view stands for 5."""
    found = metadata([700, 600, 500, 400, 300, 200, 100], parents={6: 2}, refs={"headwater-view-v": tagged(5)})
    assert gone(plan_expiry(found, Keep(0), NOW)) == [1]


def test_a_tag_keeps_its_snapshot_alone_until_its_time_is_over() -> None:
    refs = {"month": tagged(2), "brief": tagged(3, **{"max-ref-age-ms": 250_000})}
    found = metadata([500, 400, 300, 200, 100], refs=refs)
    plan = plan_expiry(found, Keep(0), NOW)
    assert (gone(plan), plan.tags) == ([1, 3, 4], ("brief",))
    earlier = plan_expiry(found, Keep(0), NOW - 100)
    assert (gone(earlier), earlier.tags) == ([1, 4], ())


def test_the_tag_of_a_view_that_is_gone_keeps_nothing() -> None:
    found = metadata([500, 400, 300], refs={"headwater-view-v": tagged(1)})
    plan = plan_expiry(found, Keep(0), NOW, stale_tags=["headwater-view-v", "headwater-view-other"])
    assert (gone(plan), plan.tags) == ([1, 2], ("headwater-view-v",))


def test_a_branch_keeps_what_it_asks_for() -> None:
    branch = SnapshotRef.model_validate(
        {"snapshot-id": 3, "type": "branch", "max-snapshot-age-ms": 1, "min-snapshots-to-keep": 2}
    )
    assert gone(plan_expiry(metadata([500, 400, 300, 200], refs={"b": branch}), Keep(0), NOW)) == [1]


def test_a_branch_goes_when_its_time_is_over() -> None:
    branch = SnapshotRef.model_validate({"snapshot-id": 2, "type": "branch", "max-ref-age-ms": 250_000})
    plan = plan_expiry(metadata([500, 400, 300], refs={"b": branch}), Keep(0), NOW)
    assert (gone(plan), plan.tags) == ([1, 2], ("b",))


def test_what_a_rollback_left_stays_for_as_long_as_other_states() -> None:
    found = metadata([500, 400, 60, 50], parents={4: 2})
    assert gone(plan_expiry(found, Keep(100), NOW)) == [1, 2]
    assert gone(plan_expiry(found, Keep(55), NOW)) == [1, 2, 3]
    left = metadata([500, 70, 60, 50, 40], parents={5: 1}, refs={"mine": tagged(4)})
    assert gone(plan_expiry(left, Keep(100), NOW)) == [1], "a tag on one of them takes none of the others away"


@given(st.data())
def test_what_must_stay_always_stays(data: st.DataObject) -> None:
    ages = sorted(data.draw(st.lists(st.integers(0, 1000), min_size=1, max_size=12)), reverse=True)
    numbers = range(1, len(ages) + 1)
    names = st.sampled_from(["a", "b", "headwater-view-v", "headwater-view-w"])
    refs = data.draw(st.dictionaries(names, st.sampled_from(numbers).map(tagged)))
    parents = {n: data.draw(st.sampled_from([None, *range(1, n)])) for n in numbers if data.draw(st.booleans())}
    least = data.draw(st.integers(1, 5))
    keep = Keep(data.draw(st.integers(0, 1000)), least, data.draw(st.integers(least, 8)), data.draw(st.integers(0, 50)))
    found = metadata(ages, refs=refs, parents=parents)
    left = set(numbers) - set(plan_expiry(found, keep, NOW).snapshots)
    assert len(ages) in left
    assert {ref.snapshot_id for ref in refs.values()} <= left
    assert {n for n in numbers if NOW * 1000 - found.snapshots[n - 1].timestamp_ms < keep.floor * 1000} <= left
    line, at = [], len(ages)
    while at:
        line.append(at)
        at = parents.get(at, at - 1) or 0
    assert set(line[:least]) <= left
    for name, ref in refs.items():
        at = ref.snapshot_id if name.startswith("headwater-view-") else 0
        way = []
        while at and at not in line:
            way.append(at)
            at = parents.get(at, at - 1) or 0
        if at:
            assert {*way, *line[: line.index(at) + 1]} <= left, "a view would lose its way"


# -- on a real table --------------------------------------------------------------------------------------------------


def rewrite(kept: Any, operation: Any = "replace") -> int:
    """All rows into one new file."""
    files = kept.files(kept.topic.committed, start=0)
    return int(kept.change(Change(files, kept.live(), operation)).snapshot_id)


def expired(kept: Any, keep: Keep, cache: Any = None) -> tuple[expire.Expired, list[Unreferenced]]:
    noted: list[Unreferenced] = []
    later = time.time() + 1000
    done = run_expiry(
        kept.load, lambda table: plan_expiry(table.metadata, keep, later), noted.extend, cache or kept.cache
    )
    return done, noted


def test_files_that_only_expired_snapshots_know_are_noted_and_nothing_else(kept: Any) -> None:
    kept.append()
    second = kept.append()
    small = {plain(file.file_path) for file in kept.live()}
    rewrite(kept)
    before = kept.stored()
    done, noted = expired(kept, Keep(0))
    assert done.describe()["snapshots"] == 2
    paths = {file.path for file in noted}
    assert small <= paths
    assert {plain(file.file_path) for file in kept.live()}.isdisjoint(paths)
    assert len(paths) == 2 + 2 + 2, "files, manifests and manifest lists of both"
    assert kept.stored() >= before, "nothing is deleted yet"
    assert kept.numbers() == [0, 1, 2, 3]
    assert [each.snapshot_id for each in kept.table.metadata.snapshots] == [kept.table.metadata.current_snapshot_id]
    assert kept.table.metadata.current_snapshot().parent_snapshot_id == second, "it had a parent, and says so"
    assert second not in {entry.snapshot_id for entry in kept.table.metadata.snapshot_log}

    settled: list[str] = []
    deleted = run_deletions(kept.load, sorted(paths), kept.cache, settled.extend)
    assert (deleted.files, deleted.kept, set(settled)) == (6, 0, paths)
    assert kept.numbers() == [0, 1, 2, 3]
    assert run_deletions(kept.load, sorted(paths), kept.cache, settled.extend).files == 0, "again does nothing"


def test_a_file_that_a_snapshot_refers_to_is_never_deleted(kept: Any, tmp_path: Any) -> None:
    kept.append()
    outside = tmp_path / "other.parquet"
    outside.write_bytes(b"x")
    named = [plain(file.file_path) for file in kept.live()]
    named += [str(path) for path in kept.stored() if path.suffix in (".avro", ".json")]
    done = run_deletions(kept.load, [*named, str(outside)], kept.cache, lambda _: None)
    assert (done.files, done.kept) == (0, len(named) + 1)
    assert outside.exists()
    assert kept.numbers() == [0, 1]


def test_a_view_still_sees_no_compaction_after_expiry(kept: Any) -> None:
    kept.append()
    pinned = kept.append()
    tag(kept.load, "headwater-view-v", pinned)
    kept.append()
    rewrite(kept)
    newest = kept.append()
    expired(kept, Keep(0))
    assert len(kept.table.metadata.snapshots) == 4
    changes = between(kept.table, pinned, newest, kept.cache)
    assert changes.append_only
    assert changes.rows == 4


def test_a_tag_that_comes_meanwhile_keeps_its_snapshot(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.append()
    kept.append()
    inner, raced = expire._remove, []

    def race(table: Any, plan: ExpiryPlan) -> None:
        if not raced:
            raced.append(plan)
            tag(kept.load, "users", first)
        inner(table, plan)

    monkeypatch.setattr(expire, "_remove", race)
    done, _ = expired(kept, Keep(0))
    assert raced[0].snapshots == (first,)
    assert done.plan.empty
    assert kept.table.metadata.refs["users"].snapshot_id == first
    assert kept.numbers(first) == [0, 1]


def test_a_commit_that_comes_meanwhile_is_no_hindrance(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.append()
    kept.append()
    inner, raced = expire._remove, []

    def race(table: Any, plan: ExpiryPlan) -> None:
        if not raced:
            raced.append(kept.append())
        inner(table, plan)

    monkeypatch.setattr(expire, "_remove", race)
    done, _ = expired(kept, Keep(0))
    assert done.plan.snapshots == (first,)
    assert kept.numbers() == [0, 1, 2, 3, 4, 5]


def test_nothing_goes_when_a_manifest_cannot_be_read(kept: Any) -> None:
    from headwater.storage.scan import ManifestCache

    kept.append()
    kept.append()
    Path(plain(kept.table.metadata.snapshots[1].manifest_list)).write_bytes(b"broken")
    with pytest.raises(Exception):  # noqa: B017  whatever the reader raises
        expired(kept, Keep(0), ManifestCache())
    assert len(kept.table.metadata.snapshots) == 2


@pytest.mark.parametrize("damaged", ["list", "manifest"])
def test_a_damaged_state_expires_like_any_other(kept: Any, damaged: str) -> None:
    """Otherwise nothing of the table could be taken care of any more: neither expiry nor deletions nor orphans."""
    from headwater.storage.scan import ManifestCache

    kept.append()
    first = kept.table.metadata.snapshots[0]
    file, manifest = kept.live()[0], first.manifests(kept.table.io)[0]
    kept.append()
    rewrite(kept)
    path = Path(plain(first.manifest_list if damaged == "list" else manifest.manifest_path))
    path.unlink()
    done, noted = expired(kept, Keep(0), cache := ManifestCache())
    assert len(kept.table.metadata.snapshots) == 1 and done.describe()["snapshots"] == 2
    assert plain(file.file_path) in {each.path for each in noted} or damaged == "manifest"
    assert {plain(each.file_path) for each in kept.live()}.isdisjoint(each.path for each in noted)
    run_deletions(kept.load, [each.path for each in noted], cache, lambda _: None)
    assert kept.numbers() == [0, 1, 2, 3]


def test_a_lost_race_is_tried_again(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.append()
    kept.append()
    inner, lost = expire._remove, []

    def lose(table: Any, plan: ExpiryPlan) -> None:
        if not lost:
            lost.append(True)
            raise CommitFailedException("lost")
        inner(table, plan)

    monkeypatch.setattr(expire, "_remove", lose)
    assert expired(kept, Keep(0))[0].plan.snapshots == (first,)


def test_what_is_unreferenced_is_told_without_doing_anything(kept: Any) -> None:
    first = kept.append()
    rewrite(kept)
    files = unreferenced(kept.table, [first], kept.cache)
    assert len(files) == 3
    assert unreferenced(kept.table, [], kept.cache) == ()
