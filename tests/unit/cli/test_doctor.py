"""Each thing that can be wrong with a lake is broken in a real one, and the doctor names it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from headwater.catalog.views import P_POSITION, Position
from headwater.cli.checks import Check
from headwater.cli.checks_lake import check_lake
from headwater.cli.main import main
from headwater.engine import Lake
from headwater.errors import Corrupt
from headwater.state.care import CareStore, Pending
from headwater.state.sqlite import connect
from headwater.storage.commit import Change, commit, tag
from headwater.storage.maintenance.compact import Source, read_sources
from headwater.storage.writer import PartitionedWriter, local_path
from headwater.topics import ingest
from headwater.types import Offsets, TableName

pytestmark = pytest.mark.leaves_damage

COMMITS, ROWS = 3, 4


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A topic `t` of three commits of four rows."""
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(tmp_path / "lake") as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.sql("CREATE TOPIC t (n BIGINT)")
        for number in range(COMMITS):
            lake.topic("t").append([{"n": n} for n in range(number * ROWS, (number + 1) * ROWS)])
            lake.flush()
        yield lake


def checks(lake: Lake, *, deep: bool = True) -> dict[str, Check]:
    return {check.name: check for check in check_lake(lake.paths.root, deep=deep)}


def wrong(lake: Lake, *, deep: bool = True) -> dict[str, str]:
    return {check.name: check.status for check in checks(lake, deep=deep).values() if check.status != "ok"}


def files(lake: Lake) -> list[Path]:
    """The data files, the oldest first."""
    table = lake.topics.load("t").table
    found = [task.file for task in table.scan().plan_files()]
    return [local_path(file.file_path) for file in sorted(found, key=lambda file: file.lower_bounds[2])]


def edit(lake: Lake, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the topic's metadata file in place."""
    path = local_path(lake.topics.load("t").table.metadata_location)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def test_a_sound_lake_is_sound(lake: Lake) -> None:
    found = checks(lake)
    assert wrong(lake) == wrong(lake, deep=False) == {}
    assert found["metadata of t"].message == "3 snapshots, 3 manifests: they agree"
    assert found["snapshots of t"].message == "3 ranges of offsets up to 12, without gap"
    assert found["rows of t"].message == "12 records, each offset once"
    assert found["deletions"].message == "0 files (0 B) wait to be deleted"


def test_care_leaves_a_sound_lake(lake: Lake) -> None:
    lake.sql("CREATE TOPIC many (n BIGINT) WITH (min_snapshots = 1)")
    for n in range(12):
        lake.topic("many").append([{"n": n}])
        lake.flush()
    lake.care.now = lambda: time.time() + 2 * 86_400
    lake.maintain(only=("expire", "manifests"))
    assert wrong(lake) == {}
    found = checks(lake)
    assert found["snapshots of many"].message == "1 range of offsets up to 12, without gap"
    assert "wait to be deleted" in found["deletions"].message


# -- files --------------------------------------------------------------------------------------------------------


def test_a_missing_file_and_the_state_that_does_without_it(lake: Lake) -> None:
    states = [snapshot.snapshot_id for snapshot in lake.topics.load("t").table.metadata.snapshots]
    files(lake)[2].unlink()
    found = checks(lake)["topics.t"]
    assert found.status == "fail"
    assert f"1 of 3 data files are not as recorded: {lake.paths.warehouse}" in found.message
    assert "which has 8 records and does not need them" in str(found.action)
    assert f"`ROLLBACK TOPIC t TO VERSION {states[1]}`" in str(found.action)
    files(lake)[0].unlink()
    assert checks(lake)["topics.t"].action == (
        "See first what can be repaired of each file. "
        "Restore the files from a backup: no state of the table that is still kept does without them."
    )
    assert wrong(lake, deep=False) == {"topics.t": "fail"}
    assert "no state of the table" not in str(checks(lake, deep=False)["topics.t"].action), "none was looked at"


def test_a_flipped_bit_is_found_by_reading(lake: Lake) -> None:
    file = files(lake)[1]
    body = bytearray(file.read_bytes())
    body[60] ^= 1
    file.write_bytes(body)
    assert wrong(lake, deep=False) == {}
    found = checks(lake)["topics.t"]
    assert found.status == "fail"
    assert f"{file} is damaged" in found.message
    body.append(0)
    file.write_bytes(body)
    assert "bytes instead of" in checks(lake, deep=False)["topics.t"].message


def replaced(lake: Lake, paths: Sequence[Path]) -> Path:
    """Write the rows of some files into one, as a compaction does."""
    topic = lake.topics.load("t")
    into = ingest.target(topic)
    found = [task.file for task in topic.table.scan().plan_files()]
    removed = [file for file in found if local_path(file.file_path) in paths]
    sources = [Source(file.file_path, file.file_size_in_bytes, file.record_count) for file in removed]
    writer = PartitionedWriter(into, lambda: f"p_{time.time_ns()}")
    for batch in read_sources(sources, into):
        writer.write(pa.Table.from_batches([batch]))
    added = writer.close()
    load = lambda: lake.topics.tables.load_for_commit(topic.table_name)  # noqa: E731
    commit(load, Change(added, removed, "replace"), lambda _: None)
    return local_path(added[0].file_path)


def remove_rows(lake: Lake, path: Path) -> None:
    """Take a file away, as a statement that deletes its rows does."""
    topic = lake.topics.load("t")
    removed = [task.file for task in topic.table.scan().plan_files() if local_path(task.file.file_path) == path]
    load = lambda: lake.topics.tables.load_for_commit(topic.table_name)  # noqa: E731
    commit(load, Change((), removed, "overwrite"), lambda _: None)


def numbers(lake: Lake) -> list[int]:
    return [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n", engine="duckdb")]


def flip(path: Path, at: int = 60) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)


def test_a_damaged_file_whose_records_nothing_else_has(lake: Lake) -> None:
    files(lake)[1].unlink()
    found = checks(lake)["file of t"]
    assert found.status == "fail" and found.repair is None
    assert found.message.endswith("is missing; it holds 4 records, offsets [4, 8)")
    assert found.action == "Restore the file from a backup. Nothing else in the lake has these records."
    quick = checks(lake, deep=False)
    assert "file of t" not in quick
    assert str(quick["topics.t"].action).endswith("run `headwater doctor --deep`, which says what can be repaired.")


def test_every_damaged_file_is_named(lake: Lake) -> None:
    for path in files(lake)[:2]:
        flip(path)
    found = [check.message for check in check_lake(lake.paths.root, deep=True) if check.name == "file of t"]
    assert not any(".;" in message for message in found)
    assert [str(path) in message for path, message in zip(files(lake)[:2], sorted(found), strict=True)] == [True, True]


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_records_that_a_past_state_has_are_written_anew(lake: Lake, damage: Callable[[Path], None]) -> None:
    old = files(lake)
    remove_rows(lake, old[1])
    packed = replaced(lake, [old[0], old[2]])
    lake.topic("t").append([{"n": 12}])
    lake.flush()
    before = numbers(lake)
    damage(packed)
    found = checks(lake)["file of t"]
    assert "it holds 8 records" in found.message
    assert str(found.action).startswith("Nothing is lost: version")
    assert found.repair is not None
    assert main(["-C", str(lake.paths.root), "doctor", "--deep", "--repair", "--yes"]) == 0
    assert numbers(lake) == before == [0, 1, 2, 3, 8, 9, 10, 11, 12]
    assert packed not in files(lake)
    assert wrong(lake) == {"topics.t": "warn"}, "past states have it still"
    assert lake.sql("SHOW SNAPSHOTS OF t").rows()[0]["made_by"] == "restore"


def test_records_that_were_changed_since_are_only_told_of(lake: Lake) -> None:
    old = files(lake)
    packed = replaced(lake, old[:2])
    state = lake.topics.load("t").table.metadata.snapshots[-2].snapshot_id
    remove_rows(lake, old[2])
    flip(packed)
    found = checks(lake)["file of t"]
    assert found.repair is None
    query = f"SELECT * FROM t VERSION AS OF {state} WHERE _offset BETWEEN 0 AND 7"
    assert f"A past state has 8 records of it, before rows of the topic were changed: `{query}`." in str(found.action)
    assert sorted(row["n"] for row in lake.sql(query, engine="duckdb")) == list(range(8))
    old[0].unlink()
    found = checks(lake)["file of t"]
    assert "A past state has 4 records of it" in str(found.action)
    assert str(found.action).endswith("No other state has the offsets [0, 4).")
    assert "ROLLBACK" not in str(checks(lake)["topics.t"].action), "every past state lacks a file, too"


def test_records_that_are_in_the_log_still(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(lake.log), "trim", lambda *_: None)
    lake.topic("t").append([{"n": n} for n in range(12, 14)])
    lake.flush()
    files(lake)[3].unlink()
    assert "The log still has the offsets [12, 14): keep a copy of state.db" in str(checks(lake)["file of t"].action)


def test_one_thing_that_cannot_be_read_does_not_hide_the_others(lake: Lake) -> None:
    files(lake)[1].unlink()
    edit(lake, lambda body: body["properties"].update({"headwater.offset-gaps": "no list"}))
    assert wrong(lake) == {"topics.t": "fail", "file of t": "fail", "snapshots of t": "fail"}
    for path in lake.paths.root.glob(f"{lake.paths.state.name}*"):
        path.write_bytes(b"no database")
    found = wrong(lake)
    assert found["log"] == found["file of t"] == "fail"


def test_files_of_past_states_only(lake: Lake) -> None:
    old = files(lake)[0]
    topic = lake.topics.load("t")
    removed = [task.file for task in topic.table.scan().plan_files() if local_path(task.file.file_path) == old]
    commit(
        lambda: lake.topics.tables.load_for_commit(topic.table_name), Change((), removed, "overwrite"), lambda _: None
    )
    assert wrong(lake) == {}
    old.unlink()
    found = checks(lake)["topics.t"]
    assert found.status == "warn"
    assert "1 files of past states are not as recorded" in found.message


# -- metadata -----------------------------------------------------------------------------------------------------


def manifest(lake: Lake, snapshot: int = -1) -> Path:
    table = lake.topics.load("t").table
    return local_path(table.metadata.snapshots[snapshot].manifests(table.io)[0].manifest_path)


def test_a_manifest_that_cannot_be_read(lake: Lake) -> None:
    manifest(lake).write_bytes(b"not avro")
    found = checks(lake)
    assert (found["metadata of t"].status, found["topics.t"].status) == ("fail", "fail")
    assert f"manifest {manifest(lake)} cannot be read" in found["metadata of t"].message
    assert "ROLLBACK TOPIC t TO VERSION" in str(found["metadata of t"].action)
    assert wrong(lake, deep=False) == {"topics.t": "fail"}


def test_the_manifest_list_of_a_past_state_is_lost(lake: Lake) -> None:
    listed = local_path(lake.topics.load("t").table.metadata.snapshots[0].manifest_list)
    listed.unlink()
    found = checks(lake)["metadata of t"]
    assert found.status == "warn"
    assert f"manifest list {listed} cannot be read" in found.message
    assert wrong(lake) == {"metadata of t": "warn", "orphans of t": "warn"}, "and orphans cannot be told"


def test_a_summary_that_does_not_agree(lake: Lake) -> None:
    edit(lake, lambda body: body["snapshots"][-1]["summary"].update({"total-records": "13"}))
    found = checks(lake)["metadata of t"]
    assert found.status == "fail"
    assert "says that it has 13 records, its manifests list 12" in found.message


# -- offsets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("6", "8", "no snapshot brought the offsets [4, 6)"),
        ("2", "8", "offsets [2, 4) were brought by two snapshots"),
        ("4", "8", ""),
    ],
)
def test_ranges_of_snapshots(lake: Lake, start: str, end: str, words: str) -> None:
    summary = {"headwater.offset-from": start, "headwater.offset-to": end}
    edit(lake, lambda body: body["snapshots"][1]["summary"].update(summary))
    found = checks(lake, deep=False)["snapshots of t"]
    assert (found.status, found.message) == (("fail", words) if words else ("ok", found.message))


def test_a_gap_that_is_explained_is_none(lake: Lake) -> None:
    edit(lake, lambda body: body["snapshots"][1]["summary"].update({"headwater.offset-from": "6"}))
    gap = [{"from": 4, "to": 6, "why": "rolled back", "at": "2026-01-01T00:00:00Z"}]
    edit(lake, lambda body: body["properties"].update({"headwater.offset-gaps": json.dumps(gap)}))
    assert checks(lake, deep=False)["snapshots of t"].message.endswith("2 offsets taken away by rollbacks")
    found = checks(lake)["rows of t"]
    assert (found.status, found.message) == (
        "fail",
        "records are there with offsets of [4, 6), which a rollback took away",
    )


def test_snapshots_beyond_the_position(lake: Lake) -> None:
    edit(lake, lambda body: body["properties"].update({"headwater.offset": "10"}))
    assert checks(lake)["snapshots of t"].message == "snapshots go up to offset 12, the position is 10"
    assert "holds offsets from 8 to 11, the position is 10" in checks(lake)["rows of t"].message


def test_a_record_that_is_there_twice(lake: Lake) -> None:
    import pyarrow as pa

    topic = lake.topics.load("t")
    writer = PartitionedWriter(ingest.target(topic), lambda: "again")
    rows = pa.record_batch({"n": pa.array([4, 5], pa.int64())})
    writer.write(pa.Table.from_batches([ingest.with_system_columns(rows, Offsets(4, 6), 0)]))
    change = Change(writer.close(), (), "overwrite")
    commit(lambda: lake.topics.tables.load_for_commit(topic.table_name), change, lambda _: None)
    assert wrong(lake, deep=False) == {}
    found = checks(lake)["rows of t"]
    assert found.status == "fail"
    assert "holds offset 4, which is there twice" in found.message


# -- files that nothing needs -------------------------------------------------------------------------------------


def test_orphans_are_counted_and_stay(lake: Lake) -> None:
    folder = files(lake)[0].parent
    young, old = folder / "young.parquet", folder / "old.parquet"
    young.write_bytes(b"abc")
    old.write_bytes(b"abcd")
    assert "2 younger files may be in use" in checks(lake)["orphans of t"].message
    os.utime(old, (0, 0))
    found = checks(lake)["orphans of t"]
    assert (found.status, found.repair) == ("warn", None)
    assert found.message == "1 file (4 B) that no snapshot refers to, 1 younger file may be in use"
    (folder / "notes.txt").write_text("mine")
    assert "1 file of unknown kinds" in checks(lake)["orphans of t"].message
    assert old.exists()


def test_folders_of_no_table(lake: Lake) -> None:
    gone = lake.paths.warehouse / "topics" / "gone-01hz0000000000000000000000"
    gone.mkdir()
    os.utime(gone, (0, 0))
    found = checks(lake, deep=False)["folders"]
    assert (found.status, found.message) == ("warn", f"1 folder (0 B) of no table: {gone.name}")
    assert gone.exists()


# -- tags and views, and what can be repaired ---------------------------------------------------------------------


def doctor(lake: Lake, *words: str) -> int:
    return main(["-C", str(lake.paths.root), "doctor", "--quiet", *words])


def test_a_tag_that_points_nowhere(lake: Lake) -> None:
    edit(lake, lambda body: body["refs"].update({"month": {"snapshot-id": 5, "type": "tag"}}))
    found = checks(lake, deep=False)["tags of t"]
    assert (found.status, found.message) == ("fail", "month point to snapshots that are not there")


@pytest.mark.parametrize("key", ["total-data-files", "total-records"])
def test_a_damaged_summary_of_a_snapshot(key: str, lake: Lake) -> None:
    def damage(body: dict[str, Any]) -> None:
        for snapshot in body["snapshots"]:
            snapshot["summary"][key] = "1s"  # one bit from 13

    edit(lake, damage)
    with Lake.open(lake.paths.root) as opened, pytest.raises(Corrupt, match="manifest list"):
        opened.sql("SELECT * FROM t").rows()
    assert "says that it has 1s" in checks(lake)["metadata of t"].message


def test_the_tag_of_a_view_that_is_gone_is_removed(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    topic = lake.topics.load("t")
    first = topic.table.metadata.snapshots[0].snapshot_id
    tag(lambda: lake.topics.tables.load_for_commit(topic.table_name), "headwater-view-gone", first)
    found = checks(lake, deep=False)["views"]
    assert found.status == "warn"
    assert doctor(lake, "--repair") == 2, "nobody can be asked here"
    assert "headwater-view-gone" in lake.topics.load("t").table.metadata.refs
    assert doctor(lake, "--repair", "--yes") in (0, 1)
    assert "headwater-view-gone" not in lake.topics.load("t").table.metadata.refs
    assert wrong(lake, deep=False) == {}
    assert "traceback" not in capsys.readouterr().err.lower()


def view_at(lake: Lake, snapshot: int | None, id: str | None = None) -> None:
    """A table that says that it is a view over `t`, as a crash between commit and tag leaves it."""
    position = Position({TableName.topic("t"): snapshot}, {TableName.topic("t"): id or lake.topics.load("t").id})
    catalog = lake.topics.tables.catalog
    catalog.create_namespace_if_not_exists("views")
    properties = {"headwater.kind": "view", P_POSITION: position.to_json()}
    catalog.create_table(("views", "v"), Schema(NestedField(1, "n", LongType())), properties=properties)


def test_a_view_whose_snapshot_is_not_kept(lake: Lake) -> None:
    second = lake.topics.load("t").table.metadata.snapshots[1].snapshot_id
    view_at(lake, second)
    found = checks(lake, deep=False)["sources of v"]
    assert found.status == "warn"
    assert "is not kept by its tag" in found.message
    doctor(lake, "--repair", "--yes")
    assert lake.topics.load("t").table.metadata.refs["headwater-view-v"].snapshot_id == second
    assert checks(lake)["sources of v"].status == "ok"


@pytest.mark.parametrize(
    ("snapshot", "id", "status", "words"),
    [(5, None, "warn", "is not there"), (5, "another", "fail", "topics.t, which it reads, is gone")],
)
def test_a_view_that_lost_its_source(lake: Lake, snapshot: int, id: str | None, status: str, words: str) -> None:
    view_at(lake, snapshot, id)
    found = checks(lake, deep=False)["sources of v"]
    assert found.status == status
    assert words in found.message


def test_notes_of_tables_that_are_gone_are_forgotten(lake: Lake) -> None:
    with_notes = CareStore(lake.paths.state, 5.0)
    with_notes.pend([Pending("/gone/c", "another table", time.time() + 60, 10)])
    assert checks(lake, deep=False)["deletions"].status == "ok", "a table was dropped since the last maintenance"
    with_notes.pend([Pending("/gone/a", "another table", 0.0, 10), Pending("/t/b", lake.topics.load("t").id, 0.0, 10)])
    assert checks(lake, deep=False)["deletions"].message == "1 file of tables that are gone are noted for deletion"
    doctor(lake, "--repair", "--yes")
    assert [each.path for each in with_notes.pending()] == ["/t/b"]
    assert checks(lake, deep=False)["deletions"].message == "1 file should have been deleted a day ago"
    with_notes.close()


def test_options_that_repair_nothing_are_refused(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(lake.paths.root)
    for words in (["--start-new-log"], ["--repair", "--start-new-log"], ["--repair", "--drop", "topics.no"]):
        assert main(["-C", root, "doctor", "--yes", *words]) == 2, words
        said = capsys.readouterr().err
        assert ("would repair" if "--repair" in words else "--start-new-log needs --repair") in said, said


def test_entries_that_are_gone_from_the_log_can_be_gone_on_without(lake: Lake) -> None:
    lake.topic("t").append([{"n": 1}])
    lake.close()
    with closing(connect(lake.paths.state, 5.0)) as db:
        db.execute("DELETE FROM log_entries")
    found = checks(lake, deep=False)["offsets of t"]
    assert "is not dense" in found.message
    assert "--start-new-log" in str(found.action)
    assert main(["-C", str(lake.paths.root), "doctor", "--repair", "--start-new-log", "--yes", "--quiet"]) == 0


def test_a_database_without_contents_is_no_lake_to_repair(tmp_path: Path) -> None:
    Lake.init(tmp_path / "lake").close()
    (tmp_path / "lake" / "catalog.db").write_bytes(b"")
    found = {check.name: check for check in check_lake(tmp_path / "lake")}
    assert (found["catalog"].status, found["catalog"].message) == ("fail", "catalog.db is empty")
    assert found["catalog"].repair is None


def test_wal_mode_is_put_back(tmp_path: Path) -> None:
    Lake.init(tmp_path / "lake").close()
    for name in ("catalog.db", "state.db"):
        with sqlite3.connect(tmp_path / "lake" / name) as db:
            db.execute("PRAGMA journal_mode=DELETE")
        db.close()
    found = {check.name: check for check in check_lake(tmp_path / "lake")}
    assert (found["catalog"].status, found["log"].status) == ("warn", "warn")
    main(["-C", str(tmp_path / "lake"), "doctor", "--quiet", "--repair", "--yes"])
    found = {check.name: check for check in check_lake(tmp_path / "lake")}
    assert (found["catalog"].status, found["log"].status) == ("ok", "ok")


def test_a_table_that_cannot_be_read_is_dropped_if_it_is_named_and_only_then(lake: Lake) -> None:
    lake.sql("CREATE TOPIC sound (n BIGINT)")
    root = str(lake.paths.root)
    local_path(lake.topics.load("t").table.metadata_location).write_text("{")
    found = checks(lake)["topics.t"]
    assert "`headwater doctor --repair --drop topics.t`; that deletes its records" in str(found.action)
    assert found.as_dict()["repair"] == "drop topics.t"
    repair = ["-C", root, "doctor", "--repair", "--yes", "--quiet"]
    assert main(repair) == 1
    assert main([*repair, "--drop", "topics.sound"]) == 2, "which can be read"
    assert main(["-C", root, "doctor", "--drop", "topics.t"]) == 2, "without --repair"
    assert lake.topics.names() == ["sound", "t"]
    main([*repair, "--drop", "topics.t"])
    assert lake.topics.names() == ["sound"]
    assert wrong(lake) == {}
