"""Only old files of known kinds that nothing refers to go; everything else stays, whatever it looks like."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.storage.maintenance import orphans
from headwater.storage.maintenance.orphans import (
    Found,
    OrphanPlan,
    list_files,
    list_folders,
    orphan_plan,
    plan_folders,
    plan_orphans,
    run_folders,
    run_orphans,
)
from headwater.storage.maintenance.reachable import inside, plain
from headwater.storage.scan import ManifestCache

OLD = time.time() - 10 * 86_400
LIMIT = time.time() - 3 * 86_400


def folder(kept: Any) -> Path:
    return Path(kept.table.location().removeprefix("file://"))


def put(path: Path, modified: float = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"something")
    os.utime(path, (modified, modified))
    return path


def aged(kept: Any) -> None:
    for path in kept.stored():
        os.utime(path, (OLD, OLD))


def plan_of(kept: Any, *waiting: str) -> OrphanPlan:
    return orphan_plan(kept.load, kept.cache, LIMIT, lambda: waiting)


def removed(kept: Any) -> Any:
    return run_orphans(kept.load, kept.cache, plan_of(kept))


def test_old_files_in_no_snapshot_go_and_all_others_stay(kept: Any) -> None:
    for _ in range(3):
        kept.append()
    aged(kept)
    before = kept.stored()
    top = folder(kept)
    gone = [
        put(top / "data" / "a.parquet"),
        put(top / "data" / "n_bucket=1" / "b.parquet"),
        put(top / "metadata" / "snap-1-0-x.avro"),
        put(top / "metadata" / "00099-x.metadata.json"),
        put(top / "data" / ".a.parquet.crc"),
    ]
    stays = [
        put(top / "data" / "young.parquet", time.time()),
        put(top / "data" / "notes.txt"),
        put(top / "data" / "_SUCCESS"),
        put(top / "elsewhere" / "c.parquet"),
        put(top / "top.parquet"),
    ]
    plan = plan_of(kept)
    assert {file.path for file in plan.orphans} == {str(path) for path in gone}
    assert (plan.young, set(plan.unknown)) == (1, {str(path) for path in stays[1:]})
    done = run_orphans(kept.load, kept.cache, plan)
    assert done.describe() == {"files": 5, "bytes": 45, "files_young": 1, "files_unknown": 4}
    assert kept.stored() == before | set(stays)
    assert kept.numbers() == list(range(6))
    assert removed(kept).files == 0


def test_links_are_not_followed_and_not_removed(kept: Any, tmp_path: Path) -> None:
    kept.append()
    outside = put(tmp_path / "precious" / "d.parquet")
    top = folder(kept)
    (top / "data" / "linked").symlink_to(outside.parent, target_is_directory=True)
    (top / "data" / "e.parquet").symlink_to(outside)
    assert removed(kept).files == 0
    assert outside.exists()
    assert (top / "data" / "e.parquet").is_symlink()
    assert not inside(str(top / "data" / "linked" / "d.parquet"), str(top))


def test_a_file_under_a_path_that_is_spelt_otherwise_stays() -> None:
    found = [Found("/lake/data/a.parquet", 1, OLD), Found("/lake/data/b.parquet", 1, OLD)]
    assert plan_orphans(found, {"/other/spelling/data/a.parquet"}, LIMIT).orphans == (found[1],)
    assert plain("file:///lake//data/../data/a.parquet") == plain("file:/lake/data/a.parquet") == "/lake/data/a.parquet"


def test_nothing_goes_when_the_metadata_cannot_be_read(kept: Any) -> None:
    kept.append()
    kept.append()
    orphan = put(folder(kept) / "data" / "a.parquet")
    manifest = kept.table.current_snapshot().manifests(kept.table.io)[0].manifest_path.removeprefix("file://")
    Path(manifest).write_bytes(b"broken")
    with pytest.raises(Exception):  # noqa: B017  whatever the reader raises
        orphan_plan(kept.load, ManifestCache(), LIMIT, tuple)
    assert orphan.exists()


def test_what_is_committed_between_plan_and_run_stays(kept: Any) -> None:
    kept.append()
    files = kept.files(2)
    written = Path(files[0].file_path.removeprefix("file://"))
    os.utime(written, (OLD, OLD))
    plan = plan_of(kept)
    assert [file.path for file in plan.orphans] == [str(written)]
    from headwater.storage.commit import append
    from headwater.topics.ingest import POSITION
    from headwater.types import Offsets

    append(kept.load, files, Offsets(2, 4), POSITION, kept.topic.id)
    assert run_orphans(kept.load, kept.cache, plan).files == 0
    assert kept.numbers() == [0, 1, 2, 3]


def test_what_waits_to_be_deleted_is_no_orphan(kept: Any) -> None:
    kept.append()
    path = put(folder(kept) / "data" / "a.parquet")
    assert plan_of(kept, str(path)).empty
    assert not plan_of(kept).empty


def test_a_file_that_was_written_again_stays(kept: Any) -> None:
    kept.append()
    path = put(folder(kept) / "data" / "a.parquet")
    plan = plan_of(kept)
    put(path, time.time())
    assert run_orphans(kept.load, kept.cache, plan).files == 0


def test_files_of_all_snapshots_are_known(kept: Any) -> None:
    first = kept.append()
    from headwater.storage.commit import Change

    kept.change(Change(kept.files(2, start=0), kept.live(), "replace"))
    aged(kept)
    assert plan_of(kept).empty
    assert kept.numbers(first) == [0, 1]
    assert len(list_files(kept.table.location())) == len(kept.stored())


def test_what_goes_while_it_is_listed_is_not_there(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit deletes a metadata file, and a drop the whole folder."""
    kept.append()
    going = put(folder(kept) / "metadata" / "00000-a.metadata.json")
    dropped = put(kept.folder / "warehouse" / "topics" / "gone-01hz0000000000000000000000" / "data" / "a.parquet")
    walk, measured = orphans._walk, orphans._measured

    def walked(*places: str) -> Any:
        found = list(walk(*places))
        going.unlink(missing_ok=True)
        return found

    def measuring(place: Path) -> Any:
        if "gone-" in place.name:
            shutil.rmtree(place)
        return measured(place)

    monkeypatch.setattr(orphans, "_walk", walked)
    monkeypatch.setattr(orphans, "_measured", measuring)
    assert str(going) not in {each.path for each in list_files(kept.table.location())}
    assert [Path(each.path) for each in list_folders(kept.folder / "warehouse", ["topics"])] == [folder(kept)]
    assert not dropped.exists()


def test_folders_of_no_table_go_when_nothing_was_written_there_lately(kept: Any) -> None:
    kept.append()
    warehouse = kept.folder / "warehouse"
    ulid = "01hz0000000000000000000000"
    dropped, fresh = warehouse / "topics" / f"gone-{ulid}", warehouse / "topics" / f"new-{ulid}"
    strange, user = warehouse / "topics" / "users-files", warehouse / "other" / f"gone-{ulid}"
    for place in (dropped, fresh, strange, user):
        put(place / "data" / "a.parquet")
    for below in (dropped, dropped / "data", strange, user, user / "data", strange / "data"):
        os.utime(below, (OLD, OLD))
    linked = warehouse / "topics" / f"link-{ulid}"
    linked.symlink_to(user, target_is_directory=True)
    os.utime(fresh / "data" / "a.parquet")
    found = list_folders(warehouse, ["topics", "views"])
    assert {Path(each.path) for each in found} == {dropped, fresh, folder(kept)}
    plan = plan_folders(found, [kept.table.location()], LIMIT)
    assert [each.path for each in plan] == [str(dropped)]
    assert run_folders(plan, lambda: [f"file://{dropped}"], warehouse) == 0, "it belongs to a table after all"
    assert run_folders(plan, lambda: [kept.table.location()], warehouse) == 1
    assert not dropped.exists()
    assert all(each.exists() for each in (fresh, strange, user, folder(kept)))
