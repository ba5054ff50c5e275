"""kill -9 at every step of a compaction: no row is lost, changed or there twice, and what is left over is harmless."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headwater.cli.checks_lake import check_lake
from headwater.errors import Conflict
from headwater.observability.failpoints import NAMES
from headwater.spark.session import SparkEngine
from headwater.storage.writer import local_path

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STEPS = [name for name in NAMES if name.startswith("compaction.")]
OPTIMIZE = "OPTIMIZE t"
BATCHES = 4


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process that died does not keep others from the table for half a minute."""
    monkeypatch.setenv("HEADWATER_LEASE_TTL", "2")


def look(abused: Any) -> tuple[dict[int, tuple[int, str]], int, int]:
    """Number and text by offset, as any Iceberg reader sees them; how many files are live, and how many on disk."""
    with SqlCatalog("lake", uri=f"sqlite:///{abused.path / 'catalog.db'}") as catalog:
        table = catalog.load_table(("topics", "t"))
        rows = table.scan().to_arrow().to_pylist()
        found = {row["_offset"]: (row["n"], row["text"]) for row in rows}
        assert len(found) == len(rows), "an offset is there twice"
        live = len(list(table.scan().plan_files()))
        return found, live, len(list(local_path(table.location()).rglob("*.parquet")))


def all_rows(abused: Any, batches: int = BATCHES) -> dict[int, tuple[int, str]]:
    return {n: (n, f"record {n}") for n in range(batches * abused.rows)}


def healthy(abused: Any) -> bool:
    return all(check.status == "ok" for check in check_lake(abused.path, deep=True))


def optimize(abused: Any, spark: Any, batches: int = 0) -> None:
    """In this process, with the run's one Spark session, once the lease of a process that died is over."""
    with abused.open(lease_ttl=2) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        for sequence in range(BATCHES, BATCHES + batches):
            lake.topic("t").append(abused.worker.records(sequence))
            lake.flush("t")
        until = time.monotonic() + 90
        while True:
            try:
                lake.sql(OPTIMIZE)
                return
            except Conflict:
                assert time.monotonic() < until
                time.sleep(0.2)


@pytest.mark.parametrize("point", STEPS)
def test_killed_while_compacting(abused: Any, spark: Any, point: str) -> None:
    arguments = ("--batches", str(BATCHES), "--clean", "99", "--flush-every", "1", "--no-spark")
    assert abused.run(*arguments, "--statement", OPTIMIZE, points=f"{point}=kill") == -signal.SIGKILL, abused.said()
    done = point == "compaction.committed"
    found, live, on_disk = look(abused)
    assert found == all_rows(abused)
    assert live == (2 if done else on_disk - 2) and on_disk > 6  # the two new files are there either way
    optimize(abused, spark, batches=1)
    found, live, _ = look(abused)
    assert (found, live) == (all_rows(abused, BATCHES + 1), 2)
    assert healthy(abused)


def test_killed_at_random_while_others_produce(abused: Any, spark: Any) -> None:
    """One process compacts and is killed, another produces and commits all the while; then the compaction ends."""
    chance = random.Random(5)
    producer = abused.start("--batches", "100000", "--flush-every", "2", "--no-spark")
    abused.wait_for("flushed", 3)
    compactor = abused.start("--batches", "0", "--statement", OPTIMIZE)
    abused.wait_for("stating")
    time.sleep(chance.uniform(5, 12))
    compactor.send_signal(signal.SIGKILL)
    compactor.wait()
    assert producer.poll() is None, abused.said()
    look(abused)
    producer.send_signal(signal.SIGKILL)
    producer.wait()
    optimize(abused, spark)
    found, live, _ = look(abused)
    assert live == 2  # one file for each partition
    numbers = [n for n, _ in found.values()]
    assert len(set(numbers)) == len(numbers) and sorted(found) == list(range(len(found)))
    with abused.open() as lake:
        visible = {row["n"] for row in lake.sql("SELECT n FROM t").rows()}
    assert abused.numbers(abused.noted("ack")) <= visible <= abused.numbers(abused.noted("send"))
    assert healthy(abused)
