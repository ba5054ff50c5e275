"""A lake knows its folder: a copy or a moved folder is refused before anything of another folder is touched."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headwater.catalog.durable_files import DurableFileIO, is_inside
from headwater.catalog.identity import (
    P_FORMAT,
    P_LAKE,
    P_LOCATION,
    P_RELOCATING,
    P_WRITTEN_BY,
    connect_catalog,
    is_lake,
    load_properties,
    moved_error,
    put_properties,
)
from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.errors import LakeMoved, NewerVersion
from headwater.types import TableName

pytestmark = pytest.mark.leaves_damage

PROPERTIES = (P_FORMAT, P_LAKE, P_LOCATION, P_WRITTEN_BY)


def make(folder: Path) -> Path:
    with Lake.init(folder) as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": 1}])
    return folder


def forget_identity(folder: Path) -> None:
    """Make the lake one of format 1, which recorded nothing."""
    with closing(connect_catalog(folder / "catalog.db", 5)) as db:
        put_properties(db, dict.fromkeys(PROPERTIES))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "warehouse").rglob("*")}


@pytest.fixture(params=[False, True], ids=["format 2", "format 1"])
def age(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """What makes a lake as old as the parameter says."""
    return forget_identity if request.param else lambda _: None


def test_a_new_lake_records_who_and_where_it_is(tmp_path: Path) -> None:
    make(tmp_path / "a")
    known = load_properties(tmp_path / "a" / "catalog.db", 5)
    assert known[P_LOCATION] == str(tmp_path / "a")
    assert len(known[P_LAKE]) == 26


def test_a_copy_is_refused_and_the_original_stays_whole(tmp_path: Path, age: Callable[[Path], None]) -> None:
    original, copy = make(tmp_path / "a"), tmp_path / "b"
    age(original)
    shutil.copytree(original, copy)
    before = files(original)
    with pytest.raises(LakeMoved, match="is a copy of a lake") as refused:
        Lake.open(copy)
    assert str(original) in str(refused.value)
    assert f"headwater -C {copy} relocate --copy" in str(refused.value.hint)
    assert files(original) == before
    with Lake.open(original) as lake:
        assert lake.sql("SELECT n FROM t").rows() == [{"n": 1}]


def test_a_moved_lake_says_how_to_move_it(tmp_path: Path, age: Callable[[Path], None]) -> None:
    place = make(tmp_path / "a")
    age(place)
    place.rename(tmp_path / "b")
    with pytest.raises(LakeMoved, match="was moved") as refused:
        Lake.open(tmp_path / "b")
    assert f"headwater -C {tmp_path / 'b'} relocate" in str(refused.value.hint)
    make(tmp_path / "a")  # another lake there does not make the moved one a copy, if that one knows its id
    age(tmp_path / "a")
    with pytest.raises(LakeMoved):
        Lake.open(tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(place)
    Lake.open(place).close()


@contextmanager
def another_user(closed: Path) -> Iterator[None]:
    """Run as a user who may not enter the folder `closed`; root may enter every folder, and becomes another user."""
    mode, is_root = closed.stat().st_mode, os.geteuid() == 0
    closed.chmod(0)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        closed.chmod(mode)


def test_an_original_in_a_folder_of_another_user_is_not_taken_for_gone(
    tmp_path: Path, age: Callable[[Path], None]
) -> None:
    home = tmp_path / "home"
    original = make(home / "a")
    age(original)
    lake = load_properties(original / "catalog.db", 5).get(P_LAKE)
    with another_user(home):
        assert is_lake(original, lake, 5)
        refused = moved_error(Path("/srv/copy"), original, lake, 5)
    assert "is a copy of a lake" in str(refused)
    assert not is_lake(home / "b", lake, 5)
    assert not is_lake(original / "headwater.toml" / "x", lake, 5)


def test_links_and_relative_paths_lead_to_the_same_lake(
    tmp_path: Path, age: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make(tmp_path / "a")
    age(place)
    (tmp_path / "link").symlink_to(place)
    monkeypatch.chdir(tmp_path)
    for name in ("link", "a", "./a/../a", place):
        with Lake.open(name) as lake:
            assert lake.paths.root == place


def test_a_folder_that_was_moved_behind_a_link_keeps_its_spelling(tmp_path: Path, age: Callable[[Path], None]) -> None:
    place = make(tmp_path / "a")
    age(place)
    place.rename(tmp_path / "b")
    place.symlink_to(tmp_path / "b")
    with Lake.open(tmp_path / "b") as lake:  # new tables go to the path that the old ones have
        assert lake.paths.root == place
        lake.sql("CREATE TOPIC u (n BIGINT)")
        assert is_inside(lake.topics.load("u").table.location(), place)


def test_an_old_lake_gets_its_identity_once(tmp_path: Path) -> None:
    place = make(tmp_path / "a")
    forget_identity(place)
    Lake.open(place).close()
    known = load_properties(place / "catalog.db", 5)
    Lake.open(place).close()
    assert load_properties(place / "catalog.db", 5) == known
    assert known.keys() >= set(PROPERTIES)


def test_a_lake_from_before_is_not_adopted_elsewhere(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parents[2] / "data" / "lake-format-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with pytest.raises(LakeMoved, match="was moved"):
        Lake.open(tmp_path / "shop")
    assert P_LOCATION not in load_properties(tmp_path / "shop" / "catalog.db", 5)


def test_a_newer_format_is_refused_with_the_version_that_reads_it(tmp_path: Path) -> None:
    place = make(tmp_path / "a")
    with closing(connect_catalog(place / "catalog.db", 5)) as db:
        put_properties(db, {P_FORMAT: "3", P_WRITTEN_BY: "7.1.0"})
    with pytest.raises(NewerVersion, match="newer Headwater") as refused:
        Lake.open(place)
    assert refused.value.hint == "Use Headwater 7.1.0 or later."
    assert any(check.name == "location" and check.status == "fail" for check in check_lake(place))


def test_an_interrupted_move_is_refused(tmp_path: Path) -> None:
    place = make(tmp_path / "a")
    with closing(connect_catalog(place / "catalog.db", 5)) as db:
        put_properties(db, {P_RELOCATING: "/elsewhere"})
    with pytest.raises(LakeMoved, match="interrupted"):
        Lake.open(place)


def test_a_table_outside_the_folder_is_neither_read_nor_dropped(tmp_path: Path) -> None:
    other, place = make(tmp_path / "other"), make(tmp_path / "a")
    with closing(sqlite3.connect(other / "catalog.db")) as db:
        (foreign,) = db.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    with closing(sqlite3.connect(place / "catalog.db")) as db, db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ?", (foreign,))
    before = files(other)
    with Lake.open(place) as lake:
        assert [row["topic"] for row in lake.sql("SHOW TOPICS").rows()] == ["t"]
        for text in ("SELECT n FROM t", "DELETE FROM t WHERE n = 1", "DROP TOPIC t"):
            with pytest.raises(LakeMoved, match="another folder"):
                lake.sql(text)
        with pytest.raises(LakeMoved, match="is not deleted"):
            lake.topics.tables.delete_folder(f"file://{other}/warehouse/topics")
        with pytest.raises(LakeMoved):
            lake.topics.tables.load_for_commit(TableName.topic("t"))
    assert files(other) == before


def test_the_doctor_names_a_table_outside_the_folder_and_goes_on(tmp_path: Path) -> None:
    other, place = make(tmp_path / "other"), make(tmp_path / "a")
    with Lake.open(place) as lake:
        lake.sql("CREATE TOPIC u (n BIGINT)")
    with closing(sqlite3.connect(other / "catalog.db")) as db:
        (foreign,) = db.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    with closing(sqlite3.connect(place / "catalog.db")) as db, db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 't'", (foreign,))
        db.execute("INSERT INTO iceberg_tables VALUES ('lake', 'theirs', 'x', ?, NULL, 'TABLE')", (foreign,))
    before = files(other)
    found = {check.name: check for check in check_lake(place, deep=True)}
    wrong = {name: check for name, check in found.items() if check.status != "ok"}
    assert wrong.keys() == {"topics.t"}
    assert foreign in wrong["topics.t"].message
    assert found["topics.u"].status == found["theirs.x"].status == "ok"
    assert wrong["topics.t"].repair is not None
    assert wrong["topics.t"].repair.option == "--drop topics.t"
    wrong["topics.t"].repair.run()
    assert files(other) == before
    with Lake.open(place) as lake:
        assert [row["topic"] for row in lake.sql("SHOW TOPICS").rows()] == ["u"]


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("file:///a/lake/warehouse/x", True),
        ("/a/lake/warehouse/x", True),
        ("file:/a/lake/warehouse/x", True),
        ("/a/lake/warehouse", False),
        ("/a/lake/warehouse2/x", False),
        ("/a/lake/warehouse/../../x", False),
        ("/a/lake/warehouse/x/../../../y", False),
        ("a/lake/warehouse/x", False),
        ("s3://a/lake/warehouse/x", False),
        ("", False),
    ],
)
def test_what_is_inside_a_folder(location: str, found: bool) -> None:
    assert is_inside(location, Path("/a/lake/warehouse")) is found


def test_iceberg_deletes_nothing_outside_the_warehouse(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    inside, outside = tmp_path / "w" / "x", tmp_path / "y"
    inside.touch(), outside.touch()
    io = DurableFileIO({"warehouse": f"file://{tmp_path / 'w'}"})
    io.delete(f"file://{inside}")
    with pytest.raises(PermissionError, match="outside"):
        io.delete(f"file://{outside}")
    assert not inside.exists()
    assert outside.exists()


def test_a_copy_is_not_served(tmp_path: Path) -> None:
    shutil.copytree(make(tmp_path / "a"), tmp_path / "b")
    command = [sys.executable, "-m", "headwater", "-C", str(tmp_path / "b"), "--json", "serve", "--port", "0"]
    run = subprocess.run(command, capture_output=True, timeout=60, env=os.environ | {"HEADWATER_LAKE": ""})
    assert run.returncode != 0
    assert b"lake_moved" in run.stderr
