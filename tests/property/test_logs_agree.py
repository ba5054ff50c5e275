"""The log in Kafka answers as the one in SQLite does, request for request, whoever is asked.

Two machines with indexes of their own take turns with one SQLite log. Snapshots are made and the journal is cut all the
time, and now and then a machine loses its index: what it then reads from Kafka must be the same.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import HeadwaterError
from headwater.topics.log import Append, Dedup, Log, LogAck, LogTopic, Moved, Part
from headwater.topics.log_kafka import KafkaLog
from headwater.topics.log_kafka_journal import Journal
from headwater.topics.log_kafka_place import KafkaPlace
from headwater.topics.log_sqlite import SqliteLog

pytestmark = pytest.mark.slow

TOPICS = tuple(LogTopic(f"id-{name}", name, 0) for name in "abc")
STEPS = 130


class Clock:
    now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


def batch(chance: random.Random, rows: int, column: str) -> pa.RecordBatch:
    texts = [f"{chance.random()}" * chance.choice((1, 1, 40)) for _ in range(rows)]
    return pa.record_batch({"n": pa.array(range(rows), pa.int64()), column: pa.array(texts)})


def request(chance: random.Random, positions: dict[str, str | None]) -> Append:
    column = chance.choice("abcdefghijklmnopqrstuvwxyz")  # of all parts: the second may know what the first one made

    def part() -> Part:
        sizes = [chance.choice((0, 1, 5, 900)) for _ in range(chance.choice((1, 1, 3)))]
        batches = tuple(batch(chance, size, column) for size in sizes)
        rows = sum(each.num_rows for each in batches)
        keys = tuple(chance.choice((None, *(b"%d" % n for n in range(500)))) for _ in range(rows))
        return Part(chance.choice(TOPICS), batches, Dedup(keys, 20.0) if chance.random() < 0.4 else None)

    source = chance.choice("st")
    moved = Moved(source, chance.choice((positions.get(source), "0")), str(chance.random()))
    return Append(
        tuple(part() for _ in range(chance.choice((1, 1, 2)))),
        chance.choice((None, "p", "q")),
        chance.randrange(60),
        moved=moved if chance.random() < 0.3 else None,
    )


def outcome(log: Log, wanted: Append) -> Any:
    try:
        return log.append(wanted)
    except HeadwaterError as refused:
        return refused.code, refused.message, refused.detail


def known(log: Log, topic: LogTopic, start: int) -> Any:
    tail = log.tail(topic, start)
    rows = None if tail is None else [(t.entry.offsets, t.entry.appended_at, t.batch.to_pydict()) for t in tail]
    return rows, log.stats(topic), sorted(each.id for each in log.waiting()), log.position("s"), log.position("t")


@pytest.mark.parametrize("seed", range(2))
def test_logs_agree(kafka: Any, tmp_path: Path, seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    place = KafkaPlace(kafka.bootstrap, f"agree-{seed}", timeout=180.0)
    model = SqliteLog(tmp_path / "model.db", max_tail_bytes=2**20, producer_horizon=30, now=clock)
    made = 0

    def machine() -> KafkaLog:
        nonlocal made
        made += 1
        settings: dict[str, Any] = {"max_tail_bytes": 2**20, "producer_horizon": 30, "garbage": 100_000, "now": clock}
        return KafkaLog(place, tmp_path / f"index-{made}.db", **settings)

    machines = [machine(), machine()]
    refused = repeated = 0
    sent: list[Append] = []
    for _ in range(STEPS):
        clock.now += chance.choice((0, 1_000_000, 3_000_000))
        which = chance.randrange(2)
        log, topic = machines[which], chance.choice(TOPICS)
        match chance.randrange(12):
            case 0:
                before = chance.randint(0, model.stats(topic).end + 1)
                model.trim(topic, before)
                log.trim(topic, before)
            case 1:
                model.forget_keys(topic, 10.0)
                log.forget_keys(topic, 10.0)
            case 2 if chance.random() < 0.1:
                model.drop(TOPICS[2])
                log.drop(TOPICS[2])
            case 3:
                machines[which].close()
                machines[which] = machine()
            case _:
                again = bool(sent) and chance.random() < 0.25
                wanted = chance.choice(sent[-4:]) if again else request(chance, {s: model.position(s) for s in "st"})
                sent.append(wanted)
                expected = outcome(model, wanted)
                refused += isinstance(expected, tuple)
                repeated += isinstance(expected, LogAck) and expected.repeated
                assert outcome(log, wanted) == expected
        stats = model.stats(topic)
        start = chance.randint(stats.start, stats.end)
        assert known(machines[1 - which], topic, start) == known(model, topic, start)
    journal = Journal(place)
    assert journal.bounds()[0] > 0, "the journal was never cut"
    assert 0 < refused < STEPS / 2 and repeated
    for each in (*machines, model, journal):
        each.close()
