"""kill -9 of a process that keeps continuous views, at every step and at random: no window is missing, none is twice.

What goes on to a topic is there once too, and what came too late as well.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog.progress import Progress, progress_of
from headwater.engine import Lake
from headwater.errors import Conflict
from headwater.observability import failpoints
from headwater.spark.session import SparkEngine
from headwater.storage.maintenance.expire import Keep

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
BOUND, STEP, SIZE = 10, 6, 60
_numbers = itertools.count()
TUMBLE = "TUMBLE(ts, INTERVAL '1 minute')"
QUERY = f"SELECT TUMBLE_START(ts, INTERVAL '1 minute') AS m, count(*) AS n, min(id) AS first FROM t GROUP BY {TUMBLE}"
EMITS = {"closed": "EMIT ON WINDOW CLOSE", "changing": "EMIT CHANGES"}
Row = tuple[int, int, int]
"""A window's start in seconds, its records and the first of them."""


class Mistreated:
    """A lake in the folder of the shared session with a stream `t`, a record every six seconds, and views of it."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self.folder = folder
        self._prefix = f"streamed{next(_numbers)}_"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._views: list[str] = []
        self.times: dict[int, int] = {}
        lake.sql(
            f"CREATE STREAM {self.named('t')} (id BIGINT, ts TIMESTAMP) "
            f"WITH (timestamp_field = 'ts', max_out_of_orderness = '{BOUND} seconds')"
        )
        self.add(20)

    def named(self, name: str) -> str:
        return self._prefix + name

    def add(self, count: int, *late: tuple[int, int]) -> None:
        """So many records more, and some of a given id and time; one commit."""
        first = len(self.times)
        new = {id: id * STEP for id in range(first, first + count)}
        self.times |= new
        records = [(id, at) for id, at in (*new.items(), *late)]
        moments = [(id, (ZERO + timedelta(seconds=at)).isoformat()) for id, at in records]
        self.lake.topic(self.named("t")).append([{"id": id, "ts": at} for id, at in moments])
        self.lake.flush(self.named("t"))

    def creation(self, name: str, word: str = "CREATE") -> str:
        emit = f"{EMITS[name]} INTO TOPIC '{self.named(name)}_out'"
        query = QUERY.replace("FROM t ", f"FROM {self.named('t')} ")
        if name not in self._views:
            self._views.append(name)
        return (
            f"{word} MATERIALIZED VIEW {self.named(name)} AS {query} {emit} "
            "WITH (refresh = 'continuous', late = 'keep', compact = 'off')"
        )

    def refresh(self, name: str) -> str:
        return f"REFRESH MATERIALIZED VIEW {self.named(name)}"

    def start(self, points: str = "", *statement: str) -> subprocess.Popen[bytes]:
        """A process that keeps views, or runs a statement, and has got so far that it works, or has died of it."""
        ready = self.folder / f"ready{len(self._processes)}"
        worker = str(Path(__file__).with_name("refresher.py"))
        with (self.folder / "worker.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, worker, str(self.lake.paths.root), str(ready), *statement],
                env={**os.environ, failpoints.VARIABLE: points},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self._processes.append(process)
        until = time.monotonic() + 120
        while not ready.exists() and process.poll() is None:
            assert time.monotonic() < until, self.said()
            time.sleep(0.02)
        return process

    def killed_at(self, point: str, statement: str) -> None:
        assert self.start(f"{point}=kill", statement).wait(150) == -signal.SIGKILL, self.said()

    def said(self) -> str:
        return (self.folder / "worker.log").read_text(errors="replace")[-4000:]

    def catch_up(self, name: str) -> None:
        """Once the lease of the dead has run out."""
        until = time.monotonic() + 60
        while True:
            try:
                self.lake.sql(self.refresh(name))
                return
            except Conflict:
                assert time.monotonic() < until, "the lease does not run out"
                time.sleep(0.2)

    def progress(self, name: str) -> Progress:
        found = progress_of(self.lake.views.load(self.named(name)).table.metadata.properties)
        assert found is not None
        return found

    def rows(self, name: str) -> list[Row]:
        found = self.lake.sql(f"SELECT m, n, first FROM {self.named(name)}").rows()
        return sorted((int((row["m"] - ZERO).total_seconds()), row["n"], row["first"]) for row in found)

    def windows(self, *, closed: bool) -> list[Row]:
        """What the records make; those that are closed once the watermark is a bound behind the last."""
        counts = Counter(at // SIZE * SIZE for at in self.times.values())
        watermark = max(self.times.values()) - BOUND
        kept = [start for start in sorted(counts) if not closed or start + SIZE <= watermark]
        return [(start, counts[start], start // STEP) for start in kept]

    def check(self, name: str) -> None:
        """The view has every window once, its topic every row that it ever had, and its folder is there."""
        assert self.rows(name) == self.windows(closed=name == "closed")
        sent = self.rows(f"{name}_out")
        if name == "closed":
            assert sent == self.rows(name)
        else:  # what a window was before it changed, too, but no row twice
            assert set(self.rows(name)) <= set(sent)
            assert len(sent) == len(set(sent))
        assert (self.lake.paths.streams / self.progress(name).folder / "checkpoint").is_dir()

    def late(self, name: str) -> list[int]:
        found = self.lake.sql(f"SELECT record_offset FROM {self.named(name)}__late ORDER BY 1").rows()
        return [row["record_offset"] for row in found]

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for name in self._views:
            self.lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {self.named(name)}")
            self.lake.sql(f"DROP TOPIC IF EXISTS {self.named(name)}_out")
        self.lake.sql(f"DROP TOPIC {self.named('t')}")


@pytest.fixture
def mistreated(spark: Any, spark_lake: Path, tmp_path: Path) -> Iterator[Mistreated]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        found = Mistreated(lake, tmp_path)
        yield found
        found.close()


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ("stream.written", "closed"),
        ("stream.committed", "changing"),
        ("stream.sent", "changing"),
    ],
)
def test_killed_in_a_batch(mistreated: Mistreated, point: str, name: str) -> None:
    mistreated.lake.sql(mistreated.creation(name))
    mistreated.check(name)
    before, sent = mistreated.progress(name), mistreated.rows(f"{name}_out")
    mistreated.add(20, (1000, 5))
    mistreated.killed_at(point, mistreated.refresh(name))
    assert (mistreated.progress(name).epoch > before.epoch) == (point != "stream.written")
    assert (mistreated.rows(f"{name}_out") != sent) == (point == "stream.sent")
    mistreated.catch_up(name)
    mistreated.check(name)
    assert mistreated.late(name) == [40], "kept once, however often its batch was run"
    after = mistreated.progress(name)
    assert (after.generation, after.rows_in, after.late) == (1, 41, 1)
    mistreated.add(15)
    mistreated.catch_up(name)
    mistreated.check(name)


@pytest.mark.parametrize("point", ["stream.backfilled", "stream.created"])
def test_killed_while_it_is_made(mistreated: Mistreated, point: str) -> None:
    streams, name = mistreated.lake.paths.streams, "closed"
    mistreated.killed_at(point, mistreated.creation(name))
    (left,) = [each for each in streams.iterdir() if each.name.startswith(mistreated.named(name))]
    made = point == "stream.created"
    assert mistreated.lake.views.exists(mistreated.named(name)) == made
    if not made:
        mistreated.lake.sql(mistreated.creation(name))
    mistreated.catch_up(name)  # sends what was not, though nothing has come since
    mistreated.check(name)
    assert (mistreated.progress(name).folder == left.name) == made
    os.utime(left, (1, 1))
    mistreated.lake.streams._keeper.sweep()
    assert left.exists() == made, "what nobody uses goes"
    mistreated.add(20)
    mistreated.catch_up(name)
    mistreated.check(name)


def test_killed_while_another_query_takes_its_place(mistreated: Mistreated) -> None:
    name = "closed"
    mistreated.lake.sql(mistreated.creation(name))
    rows, before = mistreated.rows(name), mistreated.progress(name)
    mistreated.add(20)
    mistreated.killed_at("stream.backfilled", mistreated.creation(name, "CREATE OR REPLACE"))
    assert (mistreated.rows(name), mistreated.progress(name)) == (rows, before), "the old one is as it was"
    mistreated.catch_up(name)
    mistreated.check(name)


def test_killed_at_random_while_records_come(mistreated: Mistreated) -> None:
    chance = random.Random(7)
    for name in EMITS:
        mistreated.lake.sql(mistreated.creation(name))
    for _ in range(2):
        before = [mistreated.progress(name).epoch for name in EMITS]
        process = mistreated.start()
        mistreated.add(10)
        until = time.monotonic() + 120
        while any(mistreated.progress(name).epoch <= was for name, was in zip(EMITS, before, strict=True)):
            assert time.monotonic() < until, mistreated.said()
            time.sleep(0.05)
        until = time.monotonic() + chance.uniform(0, 4)
        while time.monotonic() < until:
            mistreated.add(10)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for name in EMITS:
        mistreated.catch_up(name)
        mistreated.check(name)
        assert mistreated.progress(name).late == 0


def test_an_epoch_is_repeated_after_every_old_snapshot_expired(
    mistreated: Mistreated, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = mistreated.lake
    monkeypatch.setattr(lake.care.steps, "keep", lambda _: Keep(0, 1))
    for name in EMITS:
        lake.sql(mistreated.creation(name))
    mistreated.add(20, (1000, 5))
    for name in EMITS:
        mistreated.catch_up(name)
        commits = lake.paths.streams / mistreated.progress(name).folder / "checkpoint" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        lake.care.now = lambda: time.time() + 3 * 86_400
        assert lake.maintain(mistreated.named(name), only=["expire"])[0]["outcome"] == "done"
        before, epoch = mistreated.rows(name), mistreated.progress(name).epoch
        assert len(lake.views.load(mistreated.named(name)).table.metadata.snapshots) == 1
        mistreated.catch_up(name)
        assert mistreated.rows(name) == before
        assert (commits / str(last)).exists(), "it was run again"
        assert mistreated.progress(name).epoch >= epoch
        mistreated.check(name)
        assert mistreated.late(name) == [40]
    lake.care.now = time.time
    mistreated.add(10)
    for name in EMITS:
        mistreated.catch_up(name)
        mistreated.check(name)


def test_every_step_of_a_stream_is_killed_at() -> None:
    killed = {"stream.written", "stream.committed", "stream.sent", "stream.backfilled", "stream.created"}
    assert {name for name in failpoints.NAMES if name.startswith("stream.")} == killed
