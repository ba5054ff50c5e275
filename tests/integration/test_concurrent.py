"""Producers, readers and the background ingest at work together for a while: no answer is ever wrong on the way."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headwater.engine import Lake
from headwater.spark.session import SparkEngine
from headwater.topics.ingest import log_topic

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PRODUCERS = 4
SECONDS = 10.0
ROWS = 3
TOPIC = """
    CREATE TOPIC t (producer INT NOT NULL, n BIGINT NOT NULL) PARTITIONED BY (producer)
    WITH (batch_size = 50, commit_interval = '200 ms')
"""


class Progress:
    """How far each producer has sent, and how far it was acknowledged: numbers of records, which only grow."""

    def __init__(self) -> None:
        self.sent = [0] * PRODUCERS
        self.acknowledged = [0] * PRODUCERS
        self.offsets: list[set[int]] = [set() for _ in range(PRODUCERS)]
        self.retried = 0


def produce(lake: Lake, producer: int, progress: Progress, stop: threading.Event) -> None:
    """Batches in sequence; now and then one is sent again, later or at once, and must come back as it was."""
    chance = random.Random(producer)
    topic, acks = lake.topic("t"), []
    while not stop.is_set():
        sequence = len(acks)
        rows = batch(producer, sequence)
        progress.sent[producer] += ROWS
        ack = topic.append(rows, producer=f"p{producer}", sequence=sequence)
        assert (ack.rows, ack.repeated) == (ROWS, False)
        acks.append(ack)
        progress.acknowledged[producer] += ROWS
        progress.offsets[producer] |= set(range(ack.offsets.start, ack.offsets.end))
        if chance.random() < 0.2:
            again = chance.randrange(len(acks))
            repeated = topic.append(batch(producer, again), producer=f"p{producer}", sequence=again)
            assert repeated.repeated
            assert repeated.offsets == acks[again].offsets
            progress.retried += 1


def batch(producer: int, sequence: int) -> list[dict[str, int]]:
    return [{"producer": producer, "n": sequence * ROWS + k} for k in range(ROWS)]


def read(lake: Lake, progress: Progress, stop: threading.Event, answers: list[int]) -> None:
    """Every answer holds a prefix of what each producer sent: all that was acknowledged before, whole batches."""
    before, committed = Counter[int](), 0
    while not stop.is_set():
        acknowledged = list(progress.acknowledged)
        rows = lake.sql("SELECT producer, n, _offset FROM t ORDER BY _offset").arrow()
        offsets = rows.column("_offset").to_pylist()
        assert offsets == list(range(len(offsets)))
        seen = Counter[int]()
        for producer, n in zip(rows.column("producer").to_pylist(), rows.column("n").to_pylist(), strict=True):
            assert n == seen[producer]
            seen[producer] += 1
        for producer in range(PRODUCERS):
            assert acknowledged[producer] <= seen[producer] <= progress.sent[producer]
            assert before[producer] <= seen[producer]
            assert seen[producer] % ROWS == 0
        count = lake.sql("SELECT count(*) AS c FROM t").rows()[0]["c"]
        assert count >= len(offsets)
        now_committed = lake.sql("SELECT count(*) AS c FROM t", tail=False).rows()[0]["c"]
        assert committed <= now_committed
        before, committed = seen, now_committed
        answers.append(len(offsets))


def run_all(jobs: list[Callable[[], None]], stop: threading.Event) -> None:
    """Run the jobs for a while; the first failure ends all of them and is raised."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as failed:
            failures.append(failed)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    stop.wait(SECONDS)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.fixture
def opened(spark: Any, tmp_path: Path) -> Any:
    """Opens the lake with the shared Spark for its ingest, as often as one likes."""
    Lake.init(tmp_path / "lake").close()
    lakes = []

    def another() -> Lake:
        lake = Lake.open(tmp_path / "lake", ingest_poll=0.05)
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        lakes.append(lake)
        return lake

    yield another
    for lake in lakes:
        lake.close()


@pytest.mark.parametrize("lakes", [1, 2], ids=["one lake", "two lakes on one folder"])
def test_producers_readers_and_ingest_together(opened: Callable[[], Lake], lakes: int) -> None:
    all_lakes = [opened() for _ in range(lakes)]
    all_lakes[0].sql(TOPIC)
    progress, stop = Progress(), threading.Event()
    answers: list[list[int]] = [[], []]
    for lake in all_lakes:
        lake.start_ingest()

    def at(number: int) -> Lake:
        return all_lakes[number % lakes]

    producers = [lambda n=n: produce(at(n), n, progress, stop) for n in range(PRODUCERS)]
    readers = [lambda n=n: read(at(n), progress, stop, answers[n]) for n in range(2)]
    run_all([*producers, *readers], stop)
    total = sum(progress.acknowledged)
    assert progress.sent == progress.acknowledged
    assert set.union(*progress.offsets) == set(range(total))
    check_at_rest(all_lakes[0], total)
    assert min(map(len, answers)) >= 5
    assert progress.retried >= 5


def check_at_rest(lake: Lake, total: int) -> None:
    """The ingest had its share while it all ran, and the rest goes through."""
    table = lake.topics.load("t").table
    assert len(table.metadata.snapshots) >= 3
    deadline = time.monotonic() + 60
    while lake.topics.load("t").committed < total:
        lake.flush()
        assert time.monotonic() < deadline
    with SqlCatalog("lake", uri=f"sqlite:///{lake.paths.catalog}") as catalog:
        rows = catalog.load_table(("topics", "t")).scan().to_arrow().sort_by("_offset")
    assert rows.column("_offset").to_pylist() == list(range(total))
    pairs = Counter(zip(rows.column("producer").to_pylist(), rows.column("n").to_pylist(), strict=True))
    assert set(pairs.values()) == {1}
    lake.flush()
    stats = lake.log.stats(log_topic(lake.topics.load("t")))
    assert (stats.start, stats.end, stats.entries) == (total, total, 0)
