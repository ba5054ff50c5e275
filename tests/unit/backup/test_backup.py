"""A backup is one moment of the lake, costs what is new, and becomes a lake that answers as the first one did."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.backup import create
from headwater.backup.create import copy_checkpoint
from headwater.backup.restore import NOTE
from headwater.backup.store import Store
from headwater.catalog.identity import P_LAKE, load_properties
from headwater.catalog.progress import BATCHES_RETAINED, BATCHES_UNCOMMITTED
from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    LakeExists,
    LakeMoved,
    NewerVersion,
    NotFound,
    StorageBusy,
    Unavailable,
)
from headwater.topics import ingest
from headwater.types import TableName


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written in this process; everything else is real."""
    monkeypatch.setattr(ingest, "write_files", lambda _, log, into, entries: ingest.write_entries(log, into, entries))
    monkeypatch.setattr(Lake, "spark", None)


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": n, "text": f"record {n}"} for n in ids]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Committed records, some of them under a tag, and a tail that only the log has."""
    with Lake.init(tmp_path / "lake") as opened:
        opened.sql("CREATE TOPIC t (id BIGINT, text STRING) PARTITIONED BY (bucket(2, id)) WITH (dedup_key = 'id')")
        topic = opened.topic("t")
        topic.append(rows(0, 1, 2), producer="p", sequence=1)
        opened.flush()
        opened.sql("CREATE TAG early ON t")
        topic.append(rows(3, 4), producer="p", sequence=2)
        opened.flush()
        topic.append(rows(5), producer="p", sequence=3)
        yield opened


def ids(lake: Lake, suffix: str = "") -> list[int]:
    return [row["id"] for row in lake.sql(f"SELECT id FROM t {suffix} ORDER BY id").rows()]


def snapshots(lake: Lake) -> list[int]:
    return [each.snapshot_id for each in lake.topics.load("t").table.metadata.snapshots]


def test_a_restored_lake_answers_as_its_original_did(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    known = snapshots(lake)
    lake.topic("t").append(rows(6))
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as restored:
        assert restored.paths.root == tmp_path / "new"
        assert ids(restored) == [0, 1, 2, 3, 4, 5]
        assert ids(restored, "FOR VERSION AS OF 'early'") == [0, 1, 2]
        assert ids(restored, f"FOR VERSION AS OF {known[1]}") == [0, 1, 2, 3, 4]
        assert snapshots(restored) == known
        assert restored.topic("t").append(rows(5), producer="p", sequence=3).repeated
        assert restored.topic("t").append(rows(2, 7)).duplicates == 1
        restored.flush()
        assert ids(restored) == [0, 1, 2, 3, 4, 5, 7]
        restored.sql("DROP TOPIC t")
    assert ids(lake) == [0, 1, 2, 3, 4, 5, 6]


def test_a_restored_lake_is_healthy_and_another_one(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()
    assert [check for check in check_lake(tmp_path / "new", deep=True) if check.status != "ok"] == []
    first, second = (load_properties(folder / "catalog.db", 5) for folder in (lake.paths.root, tmp_path / "new"))
    assert first[P_LAKE] != second[P_LAKE]
    text = f"{tmp_path / 'lake'}/".encode()
    assert [p for p in (tmp_path / "new").rglob("*.json") if text in p.read_bytes()] == []
    assert [p.name for p in (tmp_path / "new").iterdir() if p.name.startswith("restoring")] == []


def test_a_second_run_copies_what_is_new_and_drops_what_is_gone(lake: Lake, tmp_path: Path) -> None:
    first = lake.backup(tmp_path / "backup")
    assert first.copied_files == first.backup.files
    again = lake.backup(tmp_path / "backup")
    assert again.copied_files == 2, "both databases have another time"
    lake.flush()
    lake.topic("t").append(rows(9))
    more = lake.backup(tmp_path / "backup")
    assert 2 < more.copied_files < 10
    lake.sql("DROP TOPIC t")
    less = lake.backup(tmp_path / "backup")
    assert less.backup.files == 3
    store = Store(tmp_path / "backup")
    assert len(list((tmp_path / "backup" / "objects").glob("*/*"))) == 4, "three files and their list"
    assert {each.path for each in store.files(store.load())} == {"catalog.db", "state.db", "headwater.toml"}


def test_a_backup_beside_writers_is_one_moment(lake: Lake, tmp_path: Path) -> None:
    """Whatever the moment was: nothing twice, nothing missing below the last record, and every retry is recognised."""
    done = threading.Event()
    acknowledged: list[int] = []

    def write() -> None:
        n = 100
        while not done.is_set():
            lake.topic("t").append(rows(n, n + 1), producer="w", sequence=n)
            acknowledged.append(n)
            n += 2
            if n % 10 == 0:
                lake.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        before = []
        for number in range(4):
            before.append(len(acknowledged))
            lake.backup(tmp_path / "backup")
            shutil.copytree(tmp_path / "backup", tmp_path / f"backup-{number}")
    finally:
        done.set()
        writer.join()
    for number, least in enumerate(before):
        with headwater.restore(tmp_path / f"backup-{number}", tmp_path / f"new-{number}") as restored:
            found = [n for n in ids(restored) if n >= 100]
            assert found == list(range(100, 100 + len(found)))
            assert len(found) >= 2 * least
            for n in acknowledged:
                ack = restored.topic("t").append(rows(n, n + 1), producer="w", sequence=n)
                assert ack.repeated == (n in found)
            restored.flush()
            assert ids(restored) == [*range(6), *(m for n in acknowledged for m in (n, n + 1))]


class Interruptions:
    """Does something to the lake after every file that a backup stores, and counts how often each is stored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[Path], object]) -> None:
        self.stored: Counter[str] = Counter()
        add = Store.add

        def add_then_interrupt(store: Store, source: Path) -> tuple[str, int]:
            done = add(store, source)
            self.stored[source.name] += 1
            interrupt(source)
            return done

        monkeypatch.setattr(Store, "add", add_then_interrupt)
        monkeypatch.setattr(create, "PAUSE", 0.0)


def test_a_lake_that_commits_while_each_file_is_copied_is_backed_up(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit deletes the table's oldest metadata, and the twentieth the one that the backup began with."""
    numbers = itertools.count()

    def commit(_: Path) -> None:
        lake.sql(f"CREATE TAG tag_{next(numbers)} ON t")

    for n in range(6, 12):
        lake.topic("t").append(rows(n))
        lake.flush()
    while len(lake.topics.load("t").table.metadata.metadata_log) < 20:
        commit(lake.paths.root)
    tags = len(lake.topics.load("t").table.metadata.refs)
    interruptions = Interruptions(monkeypatch, commit)
    report = lake.backup(tmp_path / "backup")
    assert report.copied_files == report.backup.files > 20
    assert set(interruptions.stored.values()) == {1}
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as restored:
        assert ids(restored) == list(range(12))
        assert len(restored.topics.load("t").table.metadata.refs) == tags
        restored.topic("t").append(rows(12))
        restored.flush()
        assert ids(restored) == list(range(13))


def test_a_topic_that_is_dropped_meanwhile_costs_no_second_copy_of_the_others(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.sql("CREATE TOPIC u (n BIGINT)")
    lake.topic("u").append([{"n": 1}])
    lake.flush()

    def drop(source: Path) -> None:
        if source.suffix == ".parquet":
            lake.sql("DROP TOPIC IF EXISTS u")

    interruptions = Interruptions(monkeypatch, drop)
    report = lake.backup(tmp_path / "backup")
    assert report.backup.files < len(interruptions.stored), "what was stored of the dropped topic is not in it"
    assert {name for name, times in interruptions.stored.items() if times > 1} <= {"catalog.db", "state.db"}
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as restored:
        assert ids(restored) == [0, 1, 2, 3, 4, 5]


def test_a_lake_that_changes_too_fast_is_not_called_damaged(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.backup(tmp_path / "backup")
    monkeypatch.setattr(create, "ATTEMPTS", 3)

    def replace(source: Path) -> None:
        if source.name.endswith(".metadata.json"):
            lake.sql("DROP TOPIC IF EXISTS u")
            lake.sql("CREATE TOPIC u (n BIGINT)")
            lake.topic("u").append([{"n": 1}])
            lake.flush()

    replace(Path("u.metadata.json"))
    Interruptions(monkeypatch, replace)
    with pytest.raises(Unavailable, match="changed faster than it could be copied"):
        lake.backup(tmp_path / "backup")
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as restored:
        assert ids(restored) == [0, 1, 2, 3, 4, 5]


def test_maintenance_keeps_files_while_a_backup_runs(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "READ_SECONDS", 0.0)  # so that every file extends it
    began, seen = time.time(), []
    Interruptions(monkeypatch, lambda _: seen.append(lake.care.store.long_reads(0)))
    lake.backup(tmp_path / "backup")
    assert {len(each) for each in seen} == {1}
    assert len({each for found in seen for each in found}) == 1, "it is one read, which began before the first file"
    assert began <= seen[0][0] <= time.time()
    assert lake.care.store.long_reads(0) == []


def test_a_destination_that_cannot_hold_a_backup_is_named(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "inner"):
        for attempt in (lake.backup, lambda place: headwater.restore(tmp_path / "backup", place)):
            with pytest.raises(InvalidInput, match=f'"{place}" is not a folder'):
                attempt(place)
    for attempt in (lake.backup, lambda place: headwater.restore(tmp_path / "backup", place)):
        with pytest.raises(InvalidInput, match='folder "/proc/x" cannot be created'):
            attempt(Path("/proc/x"))
    (tmp_path / "backup" / "backup.json").write_text("{")
    for attempt in (lake.backup, lambda place: headwater.restore(place, tmp_path / "new")):
        with pytest.raises(Corrupt, match="is not JSON") as damaged:
            attempt(tmp_path / "backup")
        assert damaged.value.hint


def test_a_lake_is_not_restored_into_a_backup_or_another_lake(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    for place in (tmp_path / "backup" / "inner", lake.paths.warehouse / "a" / "b"):
        with pytest.raises(Conflict, match="is inside a lake or a backup"):
            headwater.restore(tmp_path / "backup", place)
        assert not place.exists()


def test_a_log_that_was_large_once_is_copied_without_its_free_pages(lake: Lake, tmp_path: Path) -> None:
    for number in range(8):
        lake.topic("t").append([{"id": 10 + number, "text": os.urandom(512 * 1024).hex()}])
    lake.flush("t")
    topic = lake.topics.load("t")
    lake.log.trim(ingest.log_topic(topic), topic.committed)
    assert lake.paths.state.stat().st_size > 8 * 1024**2
    lake.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()
    assert (tmp_path / "new" / "state.db").stat().st_size < 1024**2


def test_a_full_disk_is_said(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lake.backup(tmp_path / "backup")
    with monkeypatch.context() as patched:
        patched.setattr("headwater.backup.store.sync_file", full)
        with pytest.raises(StorageBusy, match=r"disk of .* is full"):
            lake.backup(tmp_path / "backup")
        with pytest.raises(StorageBusy, match=r"disk of .* is full"):
            headwater.restore(tmp_path / "backup", tmp_path / "new")
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()


def test_damage_in_a_backup_is_found_and_mended(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    store = Store(tmp_path / "backup")
    victim = next(each for each in store.files(store.load()) if each.path.endswith(".parquet"))
    path = tmp_path / "backup" / "objects" / victim.sha256[:2] / victim.sha256
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="is damaged") as refused:
        headwater.restore(tmp_path / "backup", tmp_path / "new")
    assert victim.path in str(refused.value)
    assert not (tmp_path / "new" / "headwater.toml").exists()
    assert lake.backup(tmp_path / "backup", verify=True).copied_files == 3
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()  # what the first try left is started over
    path.unlink()
    with pytest.raises(Corrupt, match="is damaged"):
        headwater.restore(tmp_path / "backup", tmp_path / "newer")
    lake.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "newer").close()


@pytest.mark.leaves_damage
def test_a_damaged_lake_does_not_replace_a_good_backup(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    lake.flush()
    newest = max(lake.paths.warehouse.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with pytest.raises(Corrupt, match=newest.name):
        lake.backup(tmp_path / "backup")
    newest.unlink()
    with pytest.raises(Corrupt, match="does not exist"):
        lake.backup(tmp_path / "backup")
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as restored:
        assert ids(restored) == [0, 1, 2, 3, 4, 5]


def test_places_that_cannot_be_used_are_refused(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="cannot hold a backup"):
        lake.backup(lake.paths.root / "backup")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(Conflict, match="is not empty"):
        lake.backup(tmp_path / "full")
    with pytest.raises(NotFound, match="no complete backup"):
        headwater.restore(tmp_path / "full", tmp_path / "new")
    lake.backup(tmp_path / "backup")
    with pytest.raises(Conflict, match="is not empty"):
        headwater.restore(tmp_path / "backup", tmp_path / "full")
    with pytest.raises(LakeExists):
        headwater.restore(tmp_path / "backup", lake.paths.root)
    with Lake.init(tmp_path / "other") as other, pytest.raises(Conflict, match="another lake"):
        other.backup(tmp_path / "backup")
    with Store(tmp_path / "backup").writing(), pytest.raises(Conflict, match="is running"):
        lake.backup(tmp_path / "backup")
    described = json.loads((tmp_path / "backup" / "backup.json").read_text())
    (tmp_path / "backup" / "backup.json").write_text(json.dumps(described | {"format": 9, "written_by": "5.0"}))
    with pytest.raises(NewerVersion, match="newer Headwater") as refused:
        headwater.restore(tmp_path / "backup", tmp_path / "new")
    assert refused.value.hint == "Use Headwater 5.0 or later."


@pytest.mark.parametrize("lock", [None, b"", b"pid 17"])
def test_folders_of_the_same_names_are_not_taken_for_a_backup(lock: bytes | None, lake: Lake, tmp_path: Path) -> None:
    for name in ("incoming/upload.bin", "objects/ab/photo.jpg"):
        (tmp_path / "ftp" / name).parent.mkdir(parents=True)
        (tmp_path / "ftp" / name).write_bytes(b"data")
    if lock is not None:
        (tmp_path / "ftp" / "lock").write_bytes(lock)
    with pytest.raises(Conflict, match="is not empty"):
        lake.backup(tmp_path / "ftp")
    assert (tmp_path / "ftp/incoming/upload.bin").exists() and (tmp_path / "ftp/objects/ab/photo.jpg").exists()
    (tmp_path / "ftp" / "backup.json").write_text('{"format": 1, "host": "ftp"}')
    with pytest.raises(Corrupt, match="incomplete"):
        lake.backup(tmp_path / "ftp")
    assert (tmp_path / "ftp/incoming/upload.bin").exists() and (tmp_path / "ftp/objects/ab/photo.jpg").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lock").mkdir()
    with pytest.raises(Conflict, match="is not empty"):
        lake.backup(tmp_path / "other")


def test_what_an_interrupted_first_backup_left_is_used(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "lock").touch()
    lake.backup(tmp_path / "early")
    lake.backup(tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").unlink()
    (tmp_path / "backup" / "incoming").mkdir()
    lake.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()


def test_restores_and_backups_keep_out_of_each_others_way(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.backup(tmp_path / "backup")
    extract, refused = Store.extract, []

    def extract_beside_others(store: Store, file: Any, target: Path) -> None:
        for other in (lake.backup, lambda folder: headwater.restore(folder, tmp_path / "new")):
            with pytest.raises(Conflict, match="is running") as conflict:
                other(tmp_path / "backup")
            refused.append(conflict.value.message)
        extract(store, file, target)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "extract", extract_beside_others)
        headwater.restore(tmp_path / "backup", tmp_path / "new").close()
    assert {message.split('"')[0] for message in refused} == {"backup in ", "another restore into "}
    with Store(tmp_path / "backup").writing(), pytest.raises(Conflict, match="is running"):
        headwater.restore(tmp_path / "backup", tmp_path / "newer")
    with Store(tmp_path / "backup").reading():  # two restores into different folders
        headwater.restore(tmp_path / "backup", tmp_path / "newer").close()
    (tmp_path / "backup" / "lock").unlink()
    headwater.restore(tmp_path / "backup", tmp_path / "newest").close()  # a copy of a backup may have none


def test_a_restore_that_was_waited_for_is_not_started_over(lake: Lake, tmp_path: Path) -> None:
    """The other one finished between looking for its note and locking it."""
    lake.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()
    (tmp_path / "new" / NOTE).touch()
    with pytest.raises(LakeExists):
        headwater.restore(tmp_path / "backup", tmp_path / "new")
    (tmp_path / "half").mkdir()
    with (tmp_path / "half" / NOTE).open("w") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.write(json.dumps({"source": "elsewhere"}))
        note.flush()
        (tmp_path / "half" / "catalog.db").touch()
        with pytest.raises(Conflict, match="another restore"):
            headwater.restore(tmp_path / "backup", tmp_path / "half")
        assert (tmp_path / "half" / "catalog.db").exists()
    headwater.restore(tmp_path / "backup", tmp_path / "half").close()


@pytest.mark.parametrize("text", ["", "tables: 3"])
def test_a_file_named_as_the_note_does_not_give_a_folder_away(text: str, lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / NOTE).write_text(text)
    (tmp_path / "site" / "index.html").touch()
    with pytest.raises(Conflict, match="is not empty"):
        headwater.restore(tmp_path / "backup", tmp_path / "site")
    assert (tmp_path / "site" / "index.html").exists()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / NOTE).touch()
    headwater.restore(tmp_path / "backup", tmp_path / "killed").close()


@pytest.mark.parametrize(("access", "allowed"), [("owner", 0o700), ("group", 0o770)])
def test_restored_files_have_the_modes_of_the_setting(access: str, allowed: int, lake: Lake, tmp_path: Path) -> None:
    lake.paths.config.write_text(f'file_access = "{access}"\n')
    lake.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "new").close()
    new = tmp_path / "new"
    for path in [new, *new.rglob("*")]:
        protected = path in (new, new / "headwater.toml")  # the group may not write or replace the configuration
        expected = allowed & (0o777 if path.is_dir() else 0o666) & (0o757 if protected else 0o777)
        assert oct(path.stat().st_mode & 0o777) == oct(expected), path


def test_a_file_outside_the_lake_is_never_written(lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    store = Store(tmp_path / "backup")
    backup = store.load()
    files = [[each.path, each.sha256, each.bytes, each.modified] for each in store.files(backup)]
    files[0][0] = "../outside"
    with store.writing():
        listed = store.add_bytes(json.dumps(files).encode())
    described = json.loads((tmp_path / "backup" / "backup.json").read_text())
    (tmp_path / "backup" / "backup.json").write_text(json.dumps(described | {"inventory": listed}))
    with pytest.raises(Corrupt, match="damaged"):
        headwater.restore(tmp_path / "backup", tmp_path / "new")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["b", "lake/below"])
def test_a_moved_lake_is_relocated(lake: Lake, tmp_path: Path, name: str) -> None:
    lake.close()
    lake.paths.root.rename(tmp_path / "aside")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / "aside").rename(tmp_path / name)
    before = load_properties(tmp_path / name / "catalog.db", 5)
    done = headwater.relocate(tmp_path / name)
    assert (done.lake, done.tables, done.damaged) == (before[P_LAKE], 1, ())
    with Lake.open(tmp_path / name) as moved:
        assert ids(moved) == [0, 1, 2, 3, 4, 5]
    assert [check for check in check_lake(tmp_path / name, deep=True) if check.status != "ok"] == []
    assert headwater.relocate(tmp_path / name).tables == 0


def test_a_copy_becomes_a_lake_of_its_own_only_when_asked(lake: Lake, tmp_path: Path) -> None:
    lake.close()
    shutil.copytree(lake.paths.root, tmp_path / "copy")
    with pytest.raises(LakeMoved, match="copy of a lake"):
        headwater.relocate(tmp_path / "copy")
    done = headwater.relocate(tmp_path / "copy", copy=True)
    assert done.lake != load_properties(lake.paths.catalog, 5)[P_LAKE]
    with Lake.open(tmp_path / "copy") as copy:
        copy.sql("DROP TOPIC t")
    with Lake.open(lake.paths.root) as original:
        assert ids(original) == [0, 1, 2, 3, 4, 5]


def test_a_lake_in_use_is_not_relocated(lake: Lake, tmp_path: Path) -> None:
    lake.close()
    lake.paths.root.rename(tmp_path / "b")
    with closing(sqlite3.connect(tmp_path / "b" / "state.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT, expires_at REAL)")
        db.execute("INSERT INTO leases VALUES ('ingest:t', 'somebody', unixepoch() + 30)")
        db.execute("INSERT INTO leases VALUES ('ingest:u', 'somebody', unixepoch() + 9999)")
    with pytest.raises(Conflict, match="in use"):
        headwater.relocate(tmp_path / "b")
    with closing(sqlite3.connect(tmp_path / "b" / "state.db")) as db, db:
        db.execute("DELETE FROM leases WHERE name = 'ingest:t'")
    headwater.relocate(tmp_path / "b")  # a clock that was ahead gave the other one


@pytest.mark.leaves_damage
def test_one_damaged_table_does_not_hold_up_a_move(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC u (n BIGINT)")
    lake.close()
    for path in lake.paths.warehouse.rglob("*.avro"):
        path.write_bytes(b"damaged")
    lake.paths.root.rename(tmp_path / "b")
    done = headwater.relocate(tmp_path / "b")
    assert [each.table for each in done.damaged] == [TableName.topic("t")]
    with Lake.open(tmp_path / "b") as moved:
        moved.topic("u").append([{"n": 1}])
        assert moved.sql("SELECT n FROM u").rows() == [{"n": 1}]


@pytest.mark.parametrize("links", [True, False])
def test_a_checkpoint_is_cut_back_to_the_epoch_of_its_view(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if not links:
        monkeypatch.setattr(os, "link", link)
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("metadata", "state/0/_metadata/metadata", "state/0/0/_metadata/schema", "state/0/0/SSTs/000008-x.sst"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    for n in range(6):
        for name in (f"offsets/{n}", f"commits/{n}", f"state/0/0/{n + 1}.changelog", f"state/0/1/{n + 1}_a.zip"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).touch()
    assert copy_checkpoint(source, target, 3)
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert {each for each in found if each.startswith("offsets")} == {f"offsets/{n}" for n in range(4)}
    assert {each for each in found if each.startswith("commits")} == {f"commits/{n}" for n in range(4)}
    assert {each for each in found if each.endswith(".changelog")} == {f"state/0/0/{n}.changelog" for n in range(1, 5)}
    assert {each for each in found if each.endswith(".zip")} == {f"state/0/1/{n}_a.zip" for n in range(1, 5)}
    assert {"metadata", "state/0/_metadata/metadata", "state/0/0/_metadata/schema"} <= found
    assert "state/0/0/SSTs/000008-x.sst" in found
    (source / "offsets" / str(3 + BATCHES_UNCOMMITTED + 2)).touch()
    assert copy_checkpoint(source, tmp_path / "later", 3), "a stream that emits nothing is as far ahead as this"
    (source / "offsets" / str(3 + BATCHES_RETAINED)).touch()
    assert not copy_checkpoint(source, tmp_path / "too_late", 3), "Spark may have deleted what batch 3 needs"
    assert not copy_checkpoint(source, tmp_path / "future", 90)
