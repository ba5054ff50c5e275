"""A lake that is being mistreated, and the invariants that must hold afterwards, however it was."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headwater.engine import Lake
from headwater.observability import failpoints
from headwater.spark.scratch import sweep
from headwater.topics import ingest

WORKER = Path(__file__).with_name("worker.py")


def _load_worker() -> Any:
    spec = importlib.util.spec_from_file_location("worker", WORKER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Abused:
    """A lake on disk with one topic `t`, the notes of its producers, and the checks."""

    def __init__(self, folder: Path, worker: Any, session: Callable[[], Any]) -> None:
        self.folder = folder
        self.path = folder / "lake"
        self.notes = folder / "notes"
        self.worker = worker
        self.rows = int(worker.ROWS)
        self._session = session
        self._started: list[subprocess.Popen[bytes]] = []
        with Lake.init(self.path) as lake:
            lake.sql("CREATE TOPIC t (n BIGINT NOT NULL, text STRING) PARTITIONED BY (bucket(2, n))")

    def open(self, **settings: Any) -> Lake:
        """The lake, with the run's one Spark session for its ingest."""
        lake = Lake.open(self.path, **settings)
        lake._ingester._spark = self._session
        return lake

    def start(self, *arguments: str, points: str = "", env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(WORKER), str(self.path), str(self.notes), *arguments]
        with (self.folder / "worker.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, failpoints.VARIABLE: points, **(env or {})},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self._started.append(process)
        return process

    def run(self, *arguments: str, points: str = "") -> int:
        """Run a worker to its end, however that comes."""
        return self.start(*arguments, points=points).wait(timeout=180)

    def said(self) -> str:
        return (self.folder / "worker.log").read_text(errors="replace")[-4000:]

    def wait_for(self, word: str, count: int = 1, timeout: float = 120) -> None:
        """Until the notes have `count` lines that begin with `word`."""
        until = time.monotonic() + timeout
        while sum(line.startswith(word) for line in self._lines()) < count:
            assert time.monotonic() < until, self.said()
            assert self._started[-1].poll() is None, self.said()
            time.sleep(0.01)

    def _lines(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def noted(self, word: str) -> set[tuple[str, int]]:
        """The batches that were sent, or acknowledged."""
        found = (line.split() for line in self._lines())
        return {(parts[1], int(parts[2])) for parts in found if parts[0] == word and len(parts) == 3}

    def numbers(self, batches: set[tuple[str, int]]) -> set[int]:
        return {n for _, sequence in batches for n in range(sequence * self.rows, (sequence + 1) * self.rows)}

    def check_visible(self, lake: Lake) -> list[int]:
        """Acknowledged ⊆ visible ⊆ sent, nothing twice, offsets dense, batches whole; by table and tail together."""
        visible = _by_offset(lake.sql("SELECT n, _offset FROM t ORDER BY _offset").rows())
        assert len(set(visible)) == len(visible), "a record is there twice"
        assert self.numbers(self.noted("ack")) <= set(visible) <= self.numbers(self.noted("send"))
        batches = [visible[start : start + self.rows] for start in range(0, len(visible), self.rows)]
        assert all(batch == list(range(batch[0], batch[0] + self.rows)) for batch in batches), "a batch is torn"
        assert lake.sql("SELECT count(*) AS c FROM t").rows() == [{"c": len(visible)}]
        return visible

    def check_table(self) -> list[int]:
        """What any Iceberg reader sees: dense offsets from 0, and a position that says how many there are."""
        with SqlCatalog("lake", uri=f"sqlite:///{self.path / 'catalog.db'}") as catalog:
            table = catalog.load_table(("topics", "t"))
            rows = table.scan().to_arrow().sort_by("_offset").to_pylist()
            committed = _by_offset(rows)
            assert int(table.properties["headwater.offset"]) == len(committed)
            assert all(row["text"] == f"record {row['n']}" for row in rows)
            _check_summaries(table.metadata.snapshots)
        return committed

    def retry_and_check(self, lake: Lake) -> None:
        """Send again what was not acknowledged, flush, and find everything that was sent, once."""
        self.check_table()
        self.check_visible(lake)
        for producer, sequence in sorted(self.noted("send") - self.noted("ack")):
            lake.topic("t").append(self.worker.records(sequence), producer=producer, sequence=sequence)
        lake.flush()
        visible = self.check_visible(lake)
        assert set(visible) == self.numbers(self.noted("send"))
        assert self.check_table() == visible
        stats = lake.log.stats(ingest.log_topic(lake.topics.load("t")))
        assert (stats.start, stats.end, stats.bytes, stats.entries) == (len(visible), len(visible), 0, 0)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        if (self.path / "scratch").exists():
            sweep(self.path / "scratch")  # what killed JVMs left, sockets outside of the lake included


def _by_offset(rows: Sequence[dict[str, Any]]) -> list[int]:
    assert [row["_offset"] for row in rows] == list(range(len(rows))), "offsets are not dense"
    return [row["n"] for row in rows]


def _check_summaries(snapshots: Sequence[Any]) -> None:
    """Each snapshot says which offsets it added; together they leave no gap and no overlap."""
    at = 0
    for snapshot in sorted(snapshots, key=lambda each: each.sequence_number):
        start, end = int(snapshot.summary["headwater.offset-from"]), int(snapshot.summary["headwater.offset-to"])
        assert start == at < end
        assert int(snapshot.summary["added-records"]) == end - start
        at = end


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Abused]:
    """Without Spark: files are written in this process, everything else is real."""
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    abused = Abused(tmp_path, _load_worker(), lambda: None)
    yield abused
    abused.close()


@pytest.fixture
def abused(tmp_path: Path, spark: Any) -> Iterator[Abused]:
    """With the shared Spark session."""
    abused = Abused(tmp_path, _load_worker(), lambda: spark)
    yield abused
    abused.close()


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Arms failpoints in this process; an empty text disarms them."""

    def armed(points: str) -> None:
        monkeypatch.setenv(failpoints.VARIABLE, points)
        failpoints._actions.cache_clear()

    yield armed
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    failpoints._actions.cache_clear()
