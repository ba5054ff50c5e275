"""kill -9 at every step of a backup, a restore and a move: a backup is the previous or the new one, and each can be
repeated until it is done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from headwater.backup.store import Store
from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.errors import LakeMoved, LakeNotFound
from headwater.observability.failpoints import NAMES, VARIABLE
from headwater.topics import ingest

pytestmark = pytest.mark.slow


def points(command: str) -> list[str]:
    return [name for name in NAMES if name.startswith(f"{command}.")]


def run(*arguments: str | Path, point: str) -> int:
    """A command in a process of its own, which dies at the point."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *map(str, arguments)],
        env={**os.environ, VARIABLE: f"{point}=kill"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return done.returncode


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with commits and a tail; each test works on a copy of its own."""
    folder = tmp_path_factory.mktemp("lake")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ingest, "write_files", lambda _, log, into, files: ingest.write_entries(log, into, files))
        patched.setattr(Lake, "spark", None)
        with Lake.init(folder / "lake") as lake:
            lake.sql("CREATE TOPIC t (n BIGINT)")
            for n in range(3):
                lake.topic("t").append([{"n": n}])
                lake.flush()
            lake.topic("t").append([{"n": 3}])
    return folder / "lake"


@pytest.fixture
def lake(first: Path, tmp_path: Path) -> Path:
    shutil.copytree(first, tmp_path / "lake")
    headwater.relocate(tmp_path / "lake", copy=True)
    return tmp_path / "lake"


def numbers(folder: Path) -> list[int]:
    with Lake.open(folder) as lake:
        return [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n").rows()]


def restored(backup: Path, place: Path) -> list[int]:
    headwater.restore(backup, place).close()
    assert [check for check in check_lake(place, deep=True) if check.status != "ok"] == []
    return numbers(place)


@pytest.mark.parametrize("point", points("backup"))
def test_a_backup_is_the_previous_or_the_new_one(point: str, lake: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with Lake.open(lake) as opened:
        opened.backup(backup)
        opened.topic("t").append([{"n": 4}])
    run("-C", lake, "backup", backup, point=point)
    switched = point in ("backup.after_switch", "backup.pruned")
    assert restored(backup, tmp_path / "a") == [0, 1, 2, 3, *([4] if switched else [])]
    with Lake.open(lake) as opened:
        opened.backup(backup)
    assert restored(backup, tmp_path / "b") == [0, 1, 2, 3, 4]
    store = Store(backup)
    current = store.load()
    needed = {current.inventory, *(each.sha256 for each in store.files(current))}
    assert {path.name for path in (backup / "objects").glob("*/*")} == needed


@pytest.mark.parametrize("point", [*points("restore"), "relocate.rewritten"])
def test_a_restore_is_repeated_until_it_is_done(point: str, lake: Path, tmp_path: Path) -> None:
    backup, place = tmp_path / "backup", tmp_path / "new"
    with Lake.open(lake) as opened:
        opened.backup(backup)
    run("restore", backup, place, point=point)
    if point == "restore.finished":
        assert numbers(place) == [0, 1, 2, 3]
        return
    with pytest.raises(LakeNotFound):
        Lake.open(place)
    assert restored(backup, place) == [0, 1, 2, 3]
    assert numbers(lake) == [0, 1, 2, 3]


@pytest.mark.parametrize("point", points("relocate"))
def test_a_move_is_repeated_until_it_is_done(point: str, lake: Path, tmp_path: Path) -> None:
    place = tmp_path / "moved"
    lake.rename(place)
    run("-C", place, "relocate", point=point)
    if point != "relocate.committed":
        with pytest.raises(LakeMoved, match="interrupted"):
            Lake.open(place)
        place.rename(tmp_path / "again")  # moved once more before it was finished
        place = tmp_path / "again"
        headwater.relocate(place)
    assert numbers(place) == [0, 1, 2, 3]
    assert [check for check in check_lake(place, deep=True) if check.status != "ok"] == []
