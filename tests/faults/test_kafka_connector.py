"""kill -9 of a connector at every step and at random moments: each message is stored once, good and bad ones alike."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headwater.engine import Lake
from headwater.observability import failpoints
from headwater.topics.ingest import log_topic

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("connector_worker.py")
POINTS = [name for name in failpoints.NAMES if name.startswith(("kafka.", "log.", "produce."))]
PARTITIONS = 2
_NUMBERS = count()


def _load_worker() -> Any:
    spec = importlib.util.spec_from_file_location("connector_worker", WORKER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Mistreated:
    """A lake, a Kafka topic of which every tenth message is bad, and workers that read one into the other."""

    def __init__(self, kafka: Any, folder: Path) -> None:
        self.kafka = kafka
        self.path = folder / "lake"
        self.name = f"mistreated-{next(_NUMBERS)}"
        self._output = folder / "worker.log"
        self._sent = 0
        self._started: list[subprocess.Popen[bytes]] = []
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 2, "log_level": 0})
        kafka.create_topic(self.name, PARTITIONS)
        with Lake.init(self.path) as lake:
            lake.sql("CREATE TOPIC t (n BIGINT NOT NULL, p INT, o BIGINT) WITH (on_invalid = 'dead_letter')")

    def send(self, messages: int) -> None:
        for n in range(self._sent, self._sent + messages):
            value = b"bad %d" % n if n % 10 == 3 else b'{"n": %d}' % n
            self._producer.produce(self.name, value, partition=n % PARTITIONS)
        assert self._producer.flush(120) == 0
        self._sent += messages

    def start(self, *arguments: str, points: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, str(WORKER), str(self.path), self.kafka.bootstrap, self.name, *arguments]
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, failpoints.VARIABLE: points},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self._started.append(process)
        return process

    def said(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]

    def stored(self) -> tuple[list[int], list[int]]:
        """What the log has: numbers of good messages and of bad ones, each partition in its order."""
        with Lake.open(self.path) as lake:
            good = _rows(lake, "t")
            assert all((row["p"], row["o"]) == divmod_partition(row["n"]) for row in good)
            letters = _rows(lake, "t__dead")  # once: a connector may run meanwhile
            dead = [int(row["raw"].split()[1]) for row in letters]
            assert [row["origin"] for row in letters] == [
                "kafka:{}/{}@{}".format(self.name, *divmod_partition(n)) for n in dead
            ]
            return [row["n"] for row in good], dead

    def check(self, *, all_of_it: bool) -> None:
        """Nothing twice, nothing missing in between, and in the end everything."""
        good, dead = self.stored()
        seen = sorted(good + dead)
        assert len(set(seen)) == len(seen), "a message is there twice"
        for partition in range(PARTITIONS):
            mine = [n for n in seen if n % PARTITIONS == partition]
            assert mine == list(range(partition, partition + PARTITIONS * len(mine), PARTITIONS)), "one is missing"
            assert [n for n in good if n % PARTITIONS == partition] == [n for n in mine if n % 10 != 3]
        assert not all_of_it or seen == list(range(self._sent))

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()


def divmod_partition(n: int) -> tuple[int, int]:
    """The partition and the offset of message `n`."""
    return n % PARTITIONS, n // PARTITIONS


def _rows(lake: Lake, topic: str) -> list[dict[str, Any]]:
    tail = lake.log.tail(log_topic(lake.topics.load(topic)), 0)
    return [row for each in tail or [] for row in each.batch.to_pylist()]


@pytest.fixture
def mistreated(kafka: Any, tmp_path: Path) -> Iterator[Mistreated]:
    made = Mistreated(kafka, tmp_path)
    yield made
    made.close()


def test_killed_at_every_step(mistreated: Mistreated) -> None:
    """On one lake, so that each worker finds what the one before left; the first dies while it begins."""
    for clean, point in enumerate([*POINTS, "kafka.stored"]):
        mistreated.send(30)
        worker = mistreated.start("--clean", str(clean % 4), points=f"{point}=kill")
        assert worker.wait(timeout=240) == -signal.SIGKILL, mistreated.said()
        mistreated.check(all_of_it=False)
    assert mistreated.start().wait(timeout=240) == 0, mistreated.said()
    mistreated.check(all_of_it=True)


def test_killed_at_random(mistreated: Mistreated) -> None:
    chance = random.Random(7)
    killed = rounds = 0
    while rounds < 6 or (killed < 3 and rounds < 30):  # some workers are done before they are killed
        rounds += 1
        mistreated.send(400)
        before = len(mistreated.stored()[0])
        worker = mistreated.start()
        deadline = time.monotonic() + 120
        while worker.poll() is None and len(mistreated.stored()[0]) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        worker.kill()
        killed += worker.wait() == -signal.SIGKILL
        mistreated.check(all_of_it=False)
    assert killed > 2
    assert mistreated.start().wait(timeout=240) == 0, mistreated.said()
    mistreated.check(all_of_it=True)


def test_every_step_can_fail_and_be_tried_again(mistreated: Mistreated, arm: Any) -> None:
    """Without dying: an error at each step in turn, one connector that goes on after each."""
    with Lake.open(mistreated.path) as lake:
        connector = _load_worker().connector(lake, mistreated.kafka.bootstrap, mistreated.name)
        for point in POINTS:
            mistreated.send(20)
            arm(f"{point}=error")
            with pytest.raises(Exception, match=f"failpoint {point}|failed"):
                deadline = time.monotonic() + 120
                while time.monotonic() < deadline:
                    connector.poll_once()
            assert connector.status().state == "failed"
            arm("")
            while connector.status().lag != 0 or connector.status().state != "running":
                connector.poll_once()
        connector.close()
    mistreated.check(all_of_it=True)
