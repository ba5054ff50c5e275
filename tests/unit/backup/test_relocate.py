"""A lake that was moved or copied becomes a lake of its own, whole or not at all, and never at the cost of another."""

from __future__ import annotations

import random
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import headwater
from headwater.backup import relocate
from headwater.backup.rewrite import FolderChange
from headwater.catalog.definitions import P_OPTION
from headwater.catalog.durable_files import local_path
from headwater.catalog.identity import P_COPIED_FROM, P_LAKE, load_properties, outlet_prefix
from headwater.cli.checks_lake import check_lake
from headwater.cli.main import main
from headwater.engine import Lake
from headwater.errors import Conflict, Corrupt, LakeMoved, Unavailable
from headwater.state.streams import StreamStore
from headwater.topics import ingest
from headwater.types import TableName

T, U = TableName.topic("t"), TableName.topic("u")


@pytest.fixture(scope="module", autouse=True)
def without_spark() -> Iterator[None]:
    """Files are written in this process; everything else is real."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ingest, "write_files", lambda _, log, into, files: ingest.write_entries(log, into, files))
        patched.setattr(Lake, "spark", None)
        yield


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, without_spark: None) -> Path:
    """A lake: topic t with three commits, and topic u with metadata that are larger than a small catalog."""
    folder = tmp_path_factory.mktemp("first") / "lake"
    columns = ", ".join(f"{'column' * 20}_{n} BIGINT" for n in range(300))
    with Lake.init(folder) as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.sql(f"CREATE TOPIC u (n BIGINT, {columns})")
        for n in range(3):
            lake.topic("t").append([{"n": n}])
            lake.topic("u").append([{"n": n}])
            lake.flush()
    return folder


@pytest.fixture
def place(first: Path, tmp_path: Path) -> Path:
    """The folder of a closed lake of the test's own."""
    shutil.copytree(first, tmp_path / "lake")
    headwater.relocate(tmp_path / "lake", copy=True)
    return tmp_path / "lake"


def numbers(lake: Lake, topic: str) -> list[int]:
    return [row["n"] for row in lake.sql(f"SELECT n FROM {topic} ORDER BY n").rows()]


def not_ok(place: Path) -> list[Any]:
    return [check for check in check_lake(place, deep=True) if check.status != "ok"]


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses writes beyond `size` bytes of a file, as a full disk refuses them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_the_system_refuses_is_not_damage_and_the_move_can_be_repeated(place: Path, tmp_path: Path) -> None:
    moved = place.rename(tmp_path / "moved")
    largest = max(path.stat().st_size for path in moved.rglob("*.metadata.json"))
    with no_file_larger_than(largest - 1_000), pytest.raises(Unavailable, match="cannot be written"):
        headwater.relocate(moved)
    with pytest.raises(LakeMoved, match="interrupted"):
        Lake.open(moved)
    done = headwater.relocate(moved)
    assert (done.tables, done.damaged) == (2, ())
    assert not_ok(moved) == []
    with Lake.open(moved) as lake:
        assert numbers(lake, "t") == numbers(lake, "u") == [0, 1, 2]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "another file": lambda _: b"damaged",
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "compressed block": lambda data: data[:-36] + b"\xff" * 20 + data[-16:],
    "missing": lambda _: None,
}


def damage(path: Path, how: str) -> None:
    data = DAMAGE[how](path.read_bytes())
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def manifest_lists(place: Path, topic: str) -> list[Path]:
    with Lake.open(place) as lake:
        return [local_path(each.manifest_list) for each in lake.topics.load(topic).table.metadata.snapshots]


@pytest.mark.leaves_damage
@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_damaged_stays_so_and_the_rest_is_moved(place: Path, tmp_path: Path, how: str) -> None:
    oldest = manifest_lists(place, "t")[0]
    for path in {*(place / "warehouse" / "topics").glob("u*/metadata/*.avro")} - set(manifest_lists(place, "u")):
        damage(path, how)
    damage(oldest, how)
    moved = place.rename(tmp_path / "moved")
    done = headwater.relocate(moved)
    assert [each.table for each in done.damaged] == [T, U]
    assert oldest.name in str(done.damaged[0].error)
    with Lake.open(moved) as lake:
        assert numbers(lake, "t") == [0, 1, 2], "only a past snapshot is damaged"
        with pytest.raises(Corrupt):
            numbers(lake, "u")
        lake.sql("DROP TOPIC u")
    assert {check.name for check in not_ok(moved)} == {"metadata of t", "orphans of t"}


@pytest.mark.leaves_damage
def test_random_damage_never_stops_a_move(place: Path, tmp_path: Path) -> None:
    """One byte of one metadata file of t: the lake is moved all the same, and u is whole."""
    chance, reported = random.Random(20), 0
    for number in range(12):
        folder = tmp_path / str(number)
        shutil.copytree(place, folder)
        files = [each for each in folder.glob("warehouse/topics/t*/metadata/*") if each.suffix in (".avro", ".json")]
        victim = chance.choice(sorted(files))
        data = bytearray(victim.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        victim.write_bytes(data)
        done = headwater.relocate(folder, copy=True)
        reported += bool(done.damaged)
        assert U not in [each.table for each in done.damaged]
        if number % 5 == 0:
            with Lake.open(folder) as lake:
                assert numbers(lake, "u") == [0, 1, 2]
                lake.sql("DROP TOPIC t")
        shutil.rmtree(folder)
    assert reported > 3


@pytest.mark.leaves_damage
def test_a_table_outside_of_the_lake_stays_as_it_is(place: Path, tmp_path: Path) -> None:
    with Lake.init(tmp_path / "other") as other:
        other.sql("CREATE TOPIC t (n BIGINT)")
    before = {path: path.read_bytes() for path in (tmp_path / "other").rglob("*.json")}
    with closing(sqlite3.connect(tmp_path / "other" / "catalog.db")) as db:
        (foreign,) = db.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    with closing(sqlite3.connect(place / "catalog.db")) as db, db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 't'", (foreign,))
        db.execute("INSERT INTO iceberg_tables VALUES ('lake', 'theirs', 'x', ?, NULL, 'TABLE')", (foreign,))
    moved = place.rename(tmp_path / "moved")
    done = headwater.relocate(moved)
    assert [each.table for each in done.damaged] == [T], "that of another program is none of ours"
    with Lake.open(moved) as lake:
        assert numbers(lake, "u") == [0, 1, 2]
    with closing(sqlite3.connect(moved / "catalog.db")) as db:
        assert db.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = 't'").fetchone() == (
            foreign,
        )
    assert {path: path.read_bytes() for path in (tmp_path / "other").rglob("*.json")} == before


@pytest.mark.parametrize(
    ("location", "moved"),
    [
        ("file:///old/warehouse/t/x", "file:///old/new/warehouse/t/x"),
        ("/older/warehouse/t/x", "/old/new/warehouse/t/x"),
        ("file:/old/new/warehouse/t/x", "file:/old/new/warehouse/t/x"),
        ("/old/warehouse/../x", "/old/warehouse/../x"),
        ("/old/warehouse2/x", "/old/warehouse2/x"),
        ("s3://old/warehouse/x", "s3://old/warehouse/x"),
        ("/old/warehouse", "/old/warehouse"),
        ("", ""),
    ],
)
def test_only_what_is_in_the_lake_is_moved(location: str, moved: str) -> None:
    change = FolderChange((Path("/old"), Path("/older")), Path("/old/new"))
    assert change.location(location) == moved
    assert change.location(moved) == moved


@pytest.mark.leaves_damage
@pytest.mark.parametrize("found", ["../../other/warehouse/x.avro", "\\u0000", "", "\\ud800"])
def test_a_path_that_leads_out_of_the_lake_is_not_followed(place: Path, tmp_path: Path, found: str) -> None:
    with Lake.open(place) as lake:
        current = local_path(lake.topics.load("t").table.metadata_location)
    text = current.read_text()
    listed = manifest_lists(place, "t")[0]
    current.write_text(
        text.replace(f"{place}/warehouse/{listed.relative_to(place / 'warehouse')}", f"{place}/warehouse/{found}")
    )
    moved = place.rename(tmp_path / "moved")
    before = sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(moved))
    done = headwater.relocate(moved)
    assert [each.table for each in done.damaged] == [T]
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(moved)) == before
    with Lake.open(moved) as lake:
        assert numbers(lake, "u") == [0, 1, 2]
        lake.sql("DROP TOPIC t")


@pytest.mark.leaves_damage
def test_damage_is_an_exit_code_of_its_own(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(manifest_lists(place, "t")[0], "empty")
    moved = place.rename(tmp_path / "moved")
    assert main(["-C", str(moved), "relocate"]) == 1
    shown = capsys.readouterr()
    assert "lake moved from" in shown.out
    assert "damaged: topics.t: manifest list" in shown.err
    assert main(["-C", str(moved), "relocate"]) == 0
    assert "lake is already in" in capsys.readouterr().out


def test_the_original_is_not_taken_for_a_copy(place: Path, tmp_path: Path) -> None:
    before = load_properties(place / "catalog.db", 5)
    (tmp_path / "link").symlink_to(place)
    for name in (place, tmp_path / "link"):
        with pytest.raises(Conflict, match="is not a copy"):
            headwater.relocate(name, copy=True)
    moved = place.rename(tmp_path / "moved")
    (place).symlink_to(moved)  # the recorded path leads here
    with pytest.raises(Conflict, match="is not a copy"):
        headwater.relocate(moved, copy=True)
    assert load_properties(moved / "catalog.db", 5) == before
    place.unlink()
    assert headwater.relocate(moved, copy=True).lake != before[P_LAKE], "nothing tells it from a copy now"


def test_a_lake_that_is_open_is_not_relocated_however_idle(place: Path, tmp_path: Path) -> None:
    with Lake.open(place):
        moved = place.rename(tmp_path / "moved")
        with pytest.raises(Conflict, match="in use"):
            headwater.relocate(moved)
    assert headwater.relocate(moved).tables == 2


def test_leases_are_judged_by_the_lakes_own_setting(place: Path, tmp_path: Path) -> None:
    moved = place.rename(tmp_path / "moved")
    with (moved / "headwater.toml").open("a") as file:
        file.write("\nlease_ttl = 120\n")
    with closing(sqlite3.connect(moved / "state.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT, expires_at REAL)")
        db.execute("INSERT INTO leases VALUES ('ingest:t', 'another container', unixepoch() + 100)")
    with pytest.raises(Conflict, match="in use"):
        headwater.relocate(moved)
    with closing(sqlite3.connect(moved / "state.db")) as db, db:
        db.execute("UPDATE leases SET expires_at = unixepoch() + 9999")
    headwater.relocate(moved)  # no clock that was right gave this one


@pytest.fixture
def sending(place: Path) -> Path:
    """The same lake with two views, as far as a move sees them: one sends to Kafka, the other to a topic."""
    with Lake.open(place) as lake:
        catalog = lake.topics.tables.catalog
        catalog.create_namespace_if_not_exists("views")
        schema = Schema(NestedField(1, "n", LongType()))
        catalog.create_table("views.outward", schema, properties={f"{P_OPTION}into_kafka": "local/out"})
        catalog.create_table("views.inward", schema, properties={f"{P_OPTION}into_topic": "t"})
    StreamStore(place / "state.db", 5).want("outward", True)
    return place


@pytest.mark.leaves_damage
def test_a_copy_does_not_send_to_kafka_by_itself_and_never_as_its_original(sending: Path, tmp_path: Path) -> None:
    before = load_properties(sending / "catalog.db", 5)
    shutil.copytree(sending, tmp_path / "copy")
    done = headwater.relocate(tmp_path / "copy", copy=True)
    assert done.stopped == ("outward",)
    assert done.as_dict()["stopped"] == ["outward"]
    streams = StreamStore(tmp_path / "copy" / "state.db", 5)
    assert [streams.get(name).wanted for name in ("outward", "inward")] == [False, True]
    known = load_properties(tmp_path / "copy" / "catalog.db", 5)
    assert known[P_COPIED_FROM] == before[P_LAKE]
    assert outlet_prefix(known) == f"headwater-{done.lake}"
    streams.want("outward", True)
    moved = (tmp_path / "copy").rename(tmp_path / "copy, moved")
    assert headwater.relocate(moved).stopped == (), "a move is not a copy"
    assert StreamStore(moved / "state.db", 5).get("outward").wanted
    assert outlet_prefix(load_properties(moved / "catalog.db", 5)) == f"headwater-{done.lake}"


def test_a_lake_that_was_only_moved_sends_under_the_name_that_it_had(tmp_path: Path) -> None:
    Lake.init(tmp_path / "lake").close()
    moved = (tmp_path / "lake").rename(tmp_path / "moved")
    headwater.relocate(moved)
    assert outlet_prefix(load_properties(moved / "catalog.db", 5)) == "headwater"


@pytest.mark.leaves_damage
def test_a_copy_that_was_interrupted_is_finished_as_a_copy(
    sending: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without --copy, as the error of the interrupted one says, and where the original cannot be seen."""

    def fail(point: str) -> None:
        if point == "relocate.rewritten":
            raise KeyboardInterrupt

    original = load_properties(sending / "catalog.db", 5)[P_LAKE]
    copy = sending.rename(tmp_path / "copy")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(relocate, "failpoint", fail)
        headwater.relocate(copy, copy=True)
    done = headwater.relocate(copy)
    assert done.lake != original
    assert done.stopped == ("outward",)


def link_all(source: Path, target: Path, how: Callable[[Path, Path], None]) -> Path:
    """A copy in which every file is a link to the original's."""
    for path in (each for each in source.rglob("*") if each.is_file()):
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        how(link, path)
    return target


def answer(folder: Path) -> list[int]:
    with Lake.open(folder) as lake:
        return [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n").rows()]


def test_a_copy_of_hard_links_leaves_the_original_as_it_is(place: Path, tmp_path: Path) -> None:
    copy = link_all(place, tmp_path / "copy", lambda link, path: link.hardlink_to(path))
    headwater.relocate(copy, copy=True)
    with Lake.open(copy) as lake:
        lake.topic("t").append([{"n": 9}])
        lake.sql("DROP TOPIC u")
    assert answer(place) == [0, 1, 2]
    assert answer(copy) == [0, 1, 2, 9]
    with Lake.open(place) as lake:
        assert lake.sql("SELECT count(*) AS n FROM u").rows() == [{"n": 3}]
        lake.sql("DROP TOPIC t")
    assert answer(copy) == [0, 1, 2, 9]


@pytest.mark.leaves_damage
def test_a_copy_whose_files_are_links_to_the_original_is_refused(place: Path, tmp_path: Path) -> None:
    copy = link_all(place, tmp_path / "copy", lambda link, path: link.symlink_to(path))
    with pytest.raises(Conflict, match="shares files with another one"):
        headwater.relocate(copy, copy=True)
    assert answer(place) == [0, 1, 2]


def test_a_warehouse_on_another_disk_moves_with_its_lake_but_is_not_part_of_a_copy(place: Path, tmp_path: Path) -> None:
    (place / "warehouse").rename(tmp_path / "disk")
    (place / "warehouse").symlink_to(tmp_path / "disk")
    assert answer(place) == [0, 1, 2]
    copy = shutil.copytree(place, tmp_path / "copy", symlinks=True)
    with pytest.raises(Conflict, match="is a link to"):
        headwater.relocate(copy, copy=True)
    shutil.rmtree(copy)
    whole = shutil.copytree(place, tmp_path / "whole")
    headwater.relocate(whole, copy=True)
    moved = place.rename(tmp_path / "moved")
    headwater.relocate(moved)
    assert answer(moved) == answer(whole) == [0, 1, 2]
    with Lake.open(whole) as lake:
        lake.sql("DROP TOPIC t")
    assert answer(moved) == [0, 1, 2]
