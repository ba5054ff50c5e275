"""kill -9 at every step of the care of a table: no row is lost, nor a file that a snapshot needs, and none stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.observability.failpoints import NAMES, VARIABLE
from headwater.sql.statements import MaintenanceStep
from headwater.storage.commit import Change, commit, tag
from headwater.storage.maintenance.reachable import plain, referred
from headwater.storage.scan import ManifestCache
from headwater.topics import ingest

pytestmark = pytest.mark.slow

MAINTAINER = Path(__file__).with_name("maintainer.py")
ROWS, COMMITS = 3, 12
LEASE = 0.5
STEPS: tuple[MaintenanceStep, ...] = ("retention", "expire", "manifests", "deletions", "orphans")
POINTS = [name for name in NAMES if name.split(".")[0] in STEPS]


class Rotting:
    """A lake on disk whose topic `t` needs every step of care."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lake"
        with self.open(Lake.init) as lake:
            lake.sql("CREATE TOPIC t (n BIGINT, at TIMESTAMP) WITH (min_snapshots = 1, retention_column = 'at')")
            for commit_number in range(COMMITS):
                first = commit_number * ROWS
                lake.topic("t").append([{"n": n, "at": _moment(n)} for n in range(first, first + ROWS)])
                lake.flush()
            self._rewrite_some(lake)
            topic = lake.topics.load("t")
            self.tagged = topic.table.metadata.snapshots[3].snapshot_id
            tag(lambda: lake.topics.tables.load_for_commit(topic.table_name), "users", self.tagged)
            self._leave_orphan(topic.table.location())

    def open(self, way: Any = Lake.open) -> Lake:
        lake: Lake = way(self.path)
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        return lake

    def _rewrite_some(self, lake: Lake) -> None:
        """One row group of files for two of the small ones: what a compaction does."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from headwater.storage.writer import PartitionedWriter, local_path

        topic = lake.topics.load("t")
        old = [task.file for task in topic.table.scan().plan_files()][-2:]
        writer = PartitionedWriter(ingest.target(topic), lambda: "packed")
        writer.write(pa.concat_tables([pq.read_table(local_path(file.file_path)) for file in old]))
        change = Change(writer.close(), old, "replace")
        commit(lambda: lake.topics.tables.load_for_commit(topic.table_name), change, lambda _: None)

    def _leave_orphan(self, location: str) -> None:
        self.orphan = Path(plain(location)) / "data" / "orphan.parquet"
        self.orphan.write_bytes(b"nobody knows me")
        os.utime(self.orphan, (0, 0))

    def killed(self, days: float, point: str) -> subprocess.CompletedProcess[str]:
        """Care in a process of its own, which dies at the point."""
        return subprocess.run(
            [sys.executable, str(MAINTAINER), str(self.path), str(days), *STEPS],
            env={**os.environ, VARIABLE: f"{point}=kill"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def maintain(self, days: float, *steps: MaintenanceStep) -> dict[str, str]:
        with self.open() as lake:
            lake.care.now = lambda: time.time() + days * 86_400
            return {step["step"]: step["outcome"] for step in lake.maintain("t", only=steps or STEPS)}

    def check(self, rows: range) -> None:
        """Every row is there by any engine, now and at the tag; every file that metadata names exists."""
        with self.open() as lake:
            table = lake.topics.load("t").table
            assert sorted(table.scan().to_arrow()["n"].to_pylist()) == list(rows)
            assert [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n")] == list(rows)
            assert sorted(table.scan(snapshot_id=self.tagged).to_arrow()["n"].to_pylist()) == list(
                range(4 * ROWS)
            ) or self.gone(table)
            for path in referred(table, table.metadata_location, ManifestCache()):
                assert Path(path).exists(), path
            assert lake.topics.load("t").committed == ROWS * COMMITS

    def gone(self, table: Any) -> bool:
        return "users" not in table.metadata.refs

    def files(self) -> set[str]:
        folder = Path(plain(self.location()))
        return {str(path) for path in folder.rglob("*") if path.is_file()}

    def location(self) -> str:
        with self.open() as lake:
            return lake.topics.load("t").table.location()


def _moment(n: int) -> str:
    return f"2026-01-{n // ROWS + 1:02d}T00:00:00"


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def rotting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rotting:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    return Rotting(tmp_path)


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_nothing_is_lost_and_the_next_run_finishes(rotting: Rotting, point: str) -> None:
    every, left = range(ROWS * COMMITS), range(ROWS * COMMITS)
    if point.startswith("retention"):
        with rotting.open() as lake:
            table = lake.topics.tables.load_for_commit(lake.topics.load("t").table_name)
            with table.transaction() as transaction:
                transaction.set_properties({"headwater.option.retention_size": "1 B"})
        left = range(0)
    if point.startswith("deletions"):
        assert rotting.maintain(2, "expire") == {"expire": "done"}
    died = rotting.killed(2.5, point)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    rotting.check(left if point == "retention.committed" else every)

    time.sleep(LEASE)  # of the one that died
    for days in (2.5, 7):
        assert set(rotting.maintain(days).values()) <= {"done", "nothing"}
        rotting.check(left)
    assert not rotting.orphan.exists()
    with rotting.open() as lake:
        table = lake.topics.load("t").table
        known = referred(table, table.metadata_location, ManifestCache())
        waiting = {each.path for each in lake.care.store.pending()}
    assert rotting.files() - known - waiting == set(), "nothing is left behind"


@pytest.mark.leaves_damage  # the folder has an orphan
def test_ingest_reads_and_care_at_the_same_time(rotting: Rotting) -> None:
    """While a topic is written and read, its snapshots expire and its manifests are merged without pause."""
    stop, wrong = threading.Event(), []
    with rotting.open() as lake:
        lake.care.steps.grace = 0.0  # also those that were just made
        lake.care.now = lambda: time.time() + 2 * 86_400

        def care() -> None:
            while not stop.is_set():
                for step in lake.maintain("t", only=("expire", "manifests")):
                    if step["outcome"] == "failed":
                        wrong.append(step["error"])

        def read() -> None:
            while not stop.is_set():
                found = [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n")]
                if found != list(range(len(found))) or len(found) < ROWS * COMMITS:
                    wrong.append(f"read {len(found)} rows")

        threads = [threading.Thread(target=work) for work in (care, read)]
        for thread in threads:
            thread.start()
        for n in range(ROWS * COMMITS, ROWS * COMMITS + 15):
            lake.topic("t").append([{"n": n, "at": "2026-02-01T00:00:00"}])
            lake.flush()
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        lake.maintain("t", only=["expire"])
        assert len(lake.topics.load("t").table.metadata.snapshots) == 2, "the newest, and what the tag names"
        assert sorted(lake.topics.load("t").table.scan().to_arrow()["n"].to_pylist()) == list(
            range(ROWS * COMMITS + 15)
        )
