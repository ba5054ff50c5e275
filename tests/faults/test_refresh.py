"""kill -9 of a process that refreshes views, at every step and at random: another takes over, and nothing is twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog.views import STATES
from headwater.engine import Lake
from headwater.observability import failpoints
from headwater.spark.gate_spark import isolated
from headwater.spark.session import SparkEngine
from headwater.state.leases import Leases, open_state
from headwater.views.loop import Pace, ViewLoop

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_numbers = itertools.count()
STEPS = [name for name in failpoints.NAMES if name.startswith("refresh.")]
QUERIES = {
    "sums": "SELECT g, count(*) AS c, sum(n) AS s FROM t GROUP BY g",
    "newest": "SELECT n, row_number() OVER (PARTITION BY g ORDER BY n DESC) AS r FROM t",
    "over": "SELECT count(*) AS groups, sum(c) AS rows FROM sums",
}


class Refreshed:
    """A lake in the folder of the shared session with a topic and views, and processes that refresh them."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self.folder = folder
        self._prefix = f"fault{next(_numbers)}_"
        self._rows = itertools.count()
        self._state = open_state(lake.paths.state, 10)
        self._processes: list[subprocess.Popen[bytes]] = []
        lake.sql(f"CREATE TOPIC {self.named('t')} (n BIGINT NOT NULL, g INT)")
        self.add(20)
        for name, query in QUERIES.items():
            text = query.replace("FROM t", f"FROM {self.named('t')}").replace("FROM sums", f"FROM {self.named('sums')}")
            lake.sql(
                f"CREATE MATERIALIZED VIEW {self.named(name)} WITH (refresh = 'immediate', compact = 'off') AS {text}"
            )

    def named(self, name: str) -> str:
        return self._prefix + name

    def add(self, count: int) -> None:
        numbers = list(itertools.islice(self._rows, count))
        self.lake.topic(self.named("t")).append([{"n": n, "g": n % 3} for n in numbers])
        self.lake.flush(self.named("t"))

    def start(self, points: str = "", *statement: str) -> subprocess.Popen[bytes]:
        """A process that refreshes, or runs a statement, and has got so far that it works, or has died of it."""
        ready = self.folder / f"ready{len(self._processes)}"
        with (self.folder / "refresher.log").open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("refresher.py")),
                    str(self.lake.paths.root),
                    str(ready),
                    *statement,
                ],
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

    def said(self) -> str:
        return (self.folder / "refresher.log").read_text(errors="replace")[-4000:]

    def take_over(self) -> None:
        """Refresh in this process until nothing is due; leases of the dead expire meanwhile."""
        leases = Leases(self._state, "next", 30)
        loop = ViewLoop(self.lake.view_room.upkeep, lambda: self.lake.spark, leases, Pace(retry=0.2, retry_max=1))
        until = time.monotonic() + 60
        while loop.tick():
            assert loop.wait_idle(60)
            assert time.monotonic() < until, loop._standings
            time.sleep(0.1)
        loop.stop()

    def snapshots(self) -> list[int]:
        return [len(self.lake.views.load(self.named(name)).table.metadata.snapshots) for name in QUERIES]

    def check(self) -> None:
        """Every view equals its query over the table as it is."""
        session = isolated(self.lake.spark)
        session.read.table(f"lake.topics.{self.named('t')}").createOrReplaceTempView("t")
        for name, query in QUERIES.items():
            expected = session.sql(query)
            expected.createOrReplaceTempView(name)
            reading = isolated(self.lake.spark)
            reading.read.table(f"lake.views.{self.named(name)}").createOrReplaceTempView(STATES)
            found = reading.sql(self.lake.views.load(self.named(name)).read)
            assert sorted(map(tuple, found.collect())) == sorted(map(tuple, expected.collect())), name

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for name in reversed(QUERIES):
            self.lake.sql(f"DROP MATERIALIZED VIEW {self.named(name)}")
        self.lake.sql(f"DROP TOPIC {self.named('t')}")
        self._state.dispose()


@pytest.fixture
def refreshed(spark: Any, spark_lake: Path, tmp_path: Path) -> Iterator[Refreshed]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        found = Refreshed(lake, tmp_path)
        yield found
        found.close()


@pytest.mark.parametrize("point", STEPS)
def test_killed_while_refreshing(refreshed: Refreshed, point: str) -> None:
    refreshed.add(20)
    assert refreshed.start(f"{point}=kill").wait(120) == -signal.SIGKILL, refreshed.said()
    moved = sum(refreshed.snapshots()) - len(QUERIES)
    # Two views are refreshed at once, so a second one may have got as far as to commit.
    assert moved in ((1, 2) if point == "refresh.committed" else (0,))
    refreshed.take_over()
    refreshed.check()
    assert refreshed.snapshots() == [2, 2, 2]  # each view followed the one change once


@pytest.mark.parametrize("point", [name for name in failpoints.NAMES if name.startswith("compact.")])
def test_killed_while_compacting(refreshed: Refreshed, point: str) -> None:
    refreshed.add(20)
    refreshed.take_over()
    before, text = refreshed.snapshots(), f"COMPACT MATERIALIZED VIEW {refreshed.named('sums')}"
    assert refreshed.start(f"{point}=kill", text).wait(120) == -signal.SIGKILL, refreshed.said()
    assert refreshed.snapshots()[0] - before[0] == (point == "compact.committed")
    refreshed.check()
    refreshed.lake.sql(text)
    refreshed.check()
    refreshed.add(5)
    refreshed.take_over()
    refreshed.check()


def test_killed_at_random_while_records_come(refreshed: Refreshed) -> None:
    chance = random.Random(3)
    for _ in range(2):
        before = sum(refreshed.snapshots())
        refreshed.add(10)
        process = refreshed.start()
        until = time.monotonic() + 120
        while sum(refreshed.snapshots()) == before:  # a cold JVM takes its time
            assert time.monotonic() < until, refreshed.said()
            time.sleep(0.05)
        until = time.monotonic() + chance.uniform(0, 4)
        while time.monotonic() < until:
            refreshed.add(10)
        process.send_signal(signal.SIGKILL)
        process.wait()
    refreshed.take_over()
    refreshed.check()
