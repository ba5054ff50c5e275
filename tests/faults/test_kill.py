"""kill -9 at every named step and at random moments; then the lake is opened again and the invariants hold."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from headwater.observability.failpoints import NAMES

PRODUCE = [name for name in NAMES if name.startswith(("produce.", "log."))]
INGEST = [name for name in NAMES if name.startswith("ingest.")]


@pytest.mark.parametrize("point", PRODUCE)
def test_killed_while_producing(quick: Any, point: str) -> None:
    assert quick.run("--clean", "3", points=f"{point}=kill") == -signal.SIGKILL, quick.said()
    assert len(quick.noted("ack")) == 3
    assert len(quick.noted("send")) == 4
    with quick.open() as lake:
        stored = len(quick.check_visible(lake)) // quick.rows
        assert stored == (4 if point in ("log.after_commit", "produce.before_ack") else 3)
        quick.retry_and_check(lake)


COMMITTED = {
    "ingest.planned": 10,
    "ingest.file_written": 10,
    "ingest.before_commit": 10,
    "ingest.after_commit": 20,
    "ingest.before_trim": 20,
    "ingest.after_trim": 20,
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", INGEST)
def test_killed_while_ingesting(abused: Any, point: str) -> None:
    """The worker's own Spark dies with it, after one commit that went well."""
    arguments = ("--batches", "4", "--flush-every", "2", "--clean", "2")
    assert abused.run(*arguments, points=f"{point}=kill") == -signal.SIGKILL, abused.said()
    assert len(abused.noted("ack")) == 4
    assert len(abused.check_table()) == COMMITTED[point]
    with abused.open() as lake:
        assert len(abused.check_visible(lake)) == 20
        abused.retry_and_check(lake)


ELSEWHERE = {
    *("alter", "convert", "rewrite", "refresh", "stream", "compact", "compaction", "kafka", "kafka_log"),
    *("expire", "manifests", "retention", "deletions", "orphans"),
    *("backup", "restore", "relocate", "new_log"),
}


def test_every_step_is_killed_at() -> None:
    # Those of other statements are killed at in files of their own.
    others = {name for name in NAMES if name.split(".")[0] in ELSEWHERE}
    assert set(PRODUCE) | set(COMMITTED) | others == set(NAMES)


def test_killed_at_random_while_producing_and_committing(quick: Any) -> None:
    """Round after round on one lake, by a seed; the worker commits without Spark so that rounds are short."""
    chance = random.Random(11)
    start = 0
    for _ in range(8):
        before = len(quick.noted("ack"))
        worker = quick.start("--start", str(start), "--batches", "100000", "--flush-every", "4", "--no-spark")
        quick.wait_for("ack", before + 1)
        time.sleep(chance.uniform(0, 0.4))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        with quick.open() as lake:
            quick.check_table()
            quick.check_visible(lake)
            if chance.random() < 0.5:  # now and then the next worker finds what this one left
                quick.retry_and_check(lake)
        start = max(sequence for _, sequence in quick.noted("send")) + 1
    with quick.open() as lake:
        quick.retry_and_check(lake)
    assert len(quick.noted("ack")) > 20


@pytest.mark.spark
@pytest.mark.slow
def test_killed_at_random_with_spark_running(abused: Any) -> None:
    chance = random.Random(5)
    start = 0
    for _ in range(2):
        flushed = sum(line == "flushed" for line in abused._lines())
        worker = abused.start("--start", str(start), "--batches", "100000", "--flush-every", "3")
        abused.wait_for("flushed", flushed + 1)
        time.sleep(chance.uniform(0.1, 1.5))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        with abused.open() as lake:
            abused.retry_and_check(lake)
        start = max(sequence for _, sequence in abused.noted("send")) + 1


@pytest.mark.spark
@pytest.mark.parametrize("action", ["error", "full"])
def test_every_step_can_fail_and_be_tried_again(abused: Any, arm: Callable[[str], None], action: str) -> None:
    """Without dying: an error at each step in turn, on one lake, the same request sent again after each."""
    with abused.notes.open("a") as notes, abused.open() as lake:
        for sequence, point in enumerate([*PRODUCE, *INGEST]):
            abused.worker.note(notes, f"send p {sequence}")
            arm(f"{point}={action}")
            with pytest.raises(Exception, match=f"failpoint {point}|full|No space|failed"):
                lake.topic("t").append(abused.worker.records(sequence), producer="p", sequence=sequence)
                lake.flush()
            arm("")
            abused.check_table()
            abused.check_visible(lake)
            abused.worker.produce(lake, notes, "p", sequence)
            if sequence % 2:
                lake.flush()
        abused.retry_and_check(lake)
