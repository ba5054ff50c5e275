"""Windows over a Kafka topic whose partitions have clocks of their own, and of which one is silent."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from headwater.engine import Lake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
ROUND, BOUND, BEHIND, MINUTE = 30, 45, 8, 60
"""Seconds: of event time in a round, by which records may be late, by which a clock is behind, and of a window."""
VIEW = (
    "CREATE MATERIALIZED VIEW clocks_closed AS SELECT TUMBLE_START(at, INTERVAL '1 minute') AS m, count(*) AS n "
    "FROM clocks GROUP BY TUMBLE(at, INTERVAL '1 minute') EMIT ON WINDOW CLOSE "
    "WITH (refresh = 'continuous', late = 'keep')"
)


class Clocks:
    """Producers of a partition each, and what was sent."""

    def __init__(self, kafka: Any, name: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap})
        self._name = name
        self.sent: list[int] = []

    def send(self, partition: int, *seconds: int) -> None:
        for at in seconds:
            value = {"id": len(self.sent), "at": (ZERO + timedelta(seconds=at)).isoformat()}
            self._producer.produce(self._name, json.dumps(value), partition=partition)
            self.sent.append(at)
        assert self._producer.flush(120) == 0

    def windows(self, until: int) -> dict[int, int]:
        """How many records each window has that is closed at this moment."""
        found = Counter(at // MINUTE * MINUTE for at in self.sent)
        return {start: n for start, n in found.items() if start + MINUTE <= until}


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def test_clocks_that_differ_and_a_partition_that_is_silent(kafka_service: Lake, kafka: Any) -> None:
    lake, name = kafka_service, kafka.create_topic(f"clocks-{time.time_ns()}", 3)
    lake.sql(
        "CREATE STREAM clocks (id BIGINT, at TIMESTAMP) WITH (connector = 'kafka', kafka_topic = "
        f"'{name}', connection = 'local', timestamp_field = 'at', "
        f"max_out_of_orderness = '{BOUND} seconds')"
    )
    lake.sql(VIEW)
    clocks, shuffled = Clocks(kafka, name), random.Random(6)

    def has_read() -> None:
        wait_for(lambda: lake.streams.status("clocks_closed")[0].rows_in == len(clocks.sent))

    def rows() -> dict[int, int]:
        found = lake.sql("SELECT m, n FROM clocks_closed").rows()
        assert len({row["m"] for row in found}) == len(found), "a window was emitted twice"
        return {int((row["m"] - ZERO).total_seconds()): row["n"] for row in found}

    try:
        for number in range(8):
            moments = list(range(number * ROUND, (number + 1) * ROUND, 3))
            shuffled.shuffle(moments)  # out of order, within the bound
            clocks.send(0, *moments)
            clocks.send(1, *(max(0, at - BEHIND) for at in moments))
            has_read()
            if number == 4:
                lake.sql("RESTART STREAM clocks")  # the connector goes on where it was
        newest = max(clocks.sent)
        wait_for(lambda: rows() == clocks.windows(newest - BOUND))
        assert len(rows()) == 3, "the silent partition holds nothing back"
        status = lake.streams.status("clocks_closed")[0]
        assert (status.late_rows, status.last_error) == (0, None)

        known = clocks.windows(newest - BOUND)
        clocks.send(1, 20, 40)  # a clock that is far behind
        clocks.send(2, newest, newest + 2 * MINUTE)  # the silent one speaks
        has_read()
        wait_for(lambda: len(rows()) == 4)
        assert lake.streams.status("clocks_closed")[0].late_rows == 2
        assert {start: n for start, n in rows().items() if start in known} == known
        assert rows()[3 * MINUTE] == clocks.windows(newest + MINUTE)[3 * MINUTE]
        kept = lake.sql("SELECT record_offset, record FROM clocks_closed__late ORDER BY record_offset").rows()
        assert [json.loads(row["record"])["id"] for row in kept] == [len(clocks.sent) - 4, len(clocks.sent) - 3]
        (stored,) = lake.sql("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM clocks").rows()
        assert stored == {"n": len(clocks.sent), "ids": len(clocks.sent)}
    finally:
        lake.sql("DROP MATERIALIZED VIEW clocks_closed")
        lake.sql("DROP STREAM clocks")
        lake.sql("DROP TOPIC clocks")
