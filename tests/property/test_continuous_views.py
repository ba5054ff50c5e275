"""Random records in random batches: what a stream kept is what the query says of all of them.

Within the bound nothing is late, and the closed windows are those of the whole topic. Beyond it, every record is in a
window or among the late ones, by a model that knows nothing of either; and what is corrected is complete again.
HEADWATER_STREAM_WORLDS says how many worlds of each kind are run, HEADWATER_STREAM_SEED which is the first.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WORLDS = int(os.environ.get("HEADWATER_STREAM_WORLDS", "2"))
FIRST = int(os.environ.get("HEADWATER_STREAM_SEED", "0"))
ZERO = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES = 3
Record = tuple[int, str, float]
"""An id, a key and the seconds since ZERO."""


def _windows(call: str, *, by_key: bool) -> str:
    function, _, arguments = call.partition("(")
    keys = ", k" if by_key else ""
    bounds = f"{function}_START({arguments} AS s, {function}_END({arguments} AS e"
    return f"SELECT {bounds}{keys}, count(*) AS n, sum(id) AS i, max(id) AS l FROM t GROUP BY {call}{keys}"


SHAPES = {
    "tumbles": (_windows("TUMBLE(ts, INTERVAL '30 seconds')", by_key=True), "e"),
    "hops": (_windows("HOP(ts, INTERVAL '7 seconds', INTERVAL '24 seconds')", by_key=False), "e"),
    "sessions": (_windows("SESSION(ts, INTERVAL '4 seconds')", by_key=True), "e"),
    "distinct": ("SELECT DISTINCT k, ts FROM t", "ts"),
    "groups": ("SELECT k, count(*) AS n, sum(id) AS i, min(ts) AS s FROM t GROUP BY k", None),
    "changes": (_windows("HOP(ts, INTERVAL '10 seconds', INTERVAL '25 seconds')", by_key=True), None),
    "rows": ("SELECT id + 1 AS id, k || 'x' AS k, ts FROM t WHERE id % 3 <> 0", None),
}
"""A query and the column by which its rows are closed; None for one that is complete at any time."""


class World:
    """A stream of one seed, its records so far, and views of it."""

    def __init__(self, lake: Lake, seed: int, spread: int) -> None:
        self.lake = lake
        self.choose = random.Random(seed)
        self.bound = self.choose.choice([0, 5, 20])
        self._spread = spread
        self._now = 0.0
        self.topic = f"sw{spread}_{seed}_t"
        self.views: dict[str, tuple[str, str | None]] = {}
        self.batches: list[list[Record]] = []
        lake.sql(
            f"CREATE STREAM {self.topic} (id BIGINT, k STRING, ts TIMESTAMP) "
            f"WITH (timestamp_field = 'ts', max_out_of_orderness = '{self.bound} seconds')"
        )

    def view(self, shape: str, query: str, closed: str | None, options: str = "") -> str:
        name = f"{self.topic}_{shape}"
        emit = "EMIT ON WINDOW CLOSE" if closed else "EMIT CHANGES"
        query = query.replace("FROM t", f"FROM {self.topic}")
        self.lake.sql(f"CREATE MATERIALIZED VIEW {name} AS {query} {emit} WITH (refresh = 'continuous'{options})")
        self.views[name] = query, closed
        return name

    def step(self) -> None:
        """A commit of some records, each at most `spread` bounds behind the newest before it."""
        batch: list[Record] = []
        self._now += 0.5  # a record at the very watermark is late where its own time is what closes it
        for _ in range(self.choose.randint(1, 25)):
            self._now += self.choose.choice([0, 0.001, 1, 3.5, 17])
            back = self.choose.uniform(0, self.bound * self._spread) if self.choose.random() < 0.5 else 0.0
            number = sum(map(len, self.batches)) + len(batch)
            batch.append((number, self.choose.choice("abc"), round(max(0.0, self._now - back), 3)))
        self._now = max(self._now, *(at for _, _, at in batch))
        self.batches.append(batch)
        records = [{"id": id, "k": k, "ts": (ZERO + timedelta(seconds=at)).isoformat()} for id, k, at in batch]
        self.lake.topic(self.topic).append(records)
        self.lake.flush(self.topic)

    def watermark(self, batches: int | None = None) -> float:
        """After so many batches, or all."""
        return max(at for batch in self.batches[:batches] for _, _, at in batch) - self.bound

    def catch_up(self) -> None:
        for name in self.views:
            done = self.lake.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()[0]
            assert done["rows_read"] == len(self.batches[-1])

    def read(self, query: str) -> list[str]:
        return sorted(str(tuple(row.values())) for row in self.lake.sql(query).rows())

    def check(self, name: str) -> None:
        query, closed = self.views[name]
        mark = (ZERO + timedelta(seconds=self.watermark())).strftime("%Y-%m-%d %H:%M:%S.%f")
        where = f" WHERE {closed} <= TIMESTAMP '{mark}'" if closed else ""
        assert self.read(f"SELECT * FROM {name}") == self.read(f"SELECT * FROM ({query}){where}"), (name, self.batches)

    def drop(self) -> None:
        for name in self.views:
            self.lake.sql(f"DROP MATERIALIZED VIEW {name}")
        self.lake.sql(f"DROP TOPIC {self.topic}")


@pytest.fixture
def lake(spark: Any, spark_lake: Path) -> Iterator[Lake]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as opened:
        opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        yield opened


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
def test_within_the_bound_nothing_is_late_and_every_closed_window_is_whole(lake: Lake, seed: int) -> None:
    world = World(lake, seed, spread=1)
    world.step()
    for shape in world.choose.sample(sorted(SHAPES), 3):
        world.check(world.view(shape, *SHAPES[shape]))
    for _ in range(BATCHES - 1):
        world.step()
        world.catch_up()
        for name in world.views:
            world.check(name)
    for name in world.views:
        assert lake.streams.status(name)[0].late_rows == 0
    world.drop()


def late_ids(world: World, size: float, slide: float) -> list[int]:
    """Of records that belong to a window which ended before their batch began; nothing of the backfill."""
    found = []
    for number, batch in enumerate(world.batches):
        for id, _, at in batch if number else ():
            first = (at - size) // slide * slide + slide
            if first + size <= world.watermark(number):
                found.append(id)
    return found


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
def test_beyond_the_bound_every_record_is_in_its_window_or_late(lake: Lake, seed: int) -> None:
    world = World(lake, seed + 100, spread=6)
    world.bound = world.bound or 5
    lake.sql(f"ALTER STREAM {world.topic} SET (max_out_of_orderness = '{world.bound} seconds')")
    world.step()
    query, closed = SHAPES["tumbles"]
    kept = world.view("kept", query, closed, ", late = 'keep'")
    corrected = world.view("corrected", SHAPES["hops"][0], "e", ", late = 'correct'")
    changed = world.view("changed", SHAPES["changes"][0], None, ", late = 'correct'")
    for _ in range(BATCHES - 1):
        world.step()
        world.catch_up()
        world.check(corrected)
        world.check(changed)
    late = late_ids(world, 30.0, 30.0)
    said = lake.sql(f"SELECT record FROM {kept}__late ORDER BY record_offset").rows()
    assert [json.loads(row["record"])["id"] for row in said] == late
    ends = {id: at // 30 * 30 + 30 for batch in world.batches for id, _, at in batch}
    settled = [id for id, end in ends.items() if end <= world.watermark() and id not in late]
    told = lake.sql(f"SELECT sum(n) AS n, sum(i) AS i FROM {kept}").rows()[0]
    assert (told["n"] or 0, told["i"] or 0) == (len(settled), sum(settled))
    sizes = {kept: (30.0, 30.0), corrected: (24.0, 7.0), changed: (25.0, 10.0)}
    for name, size in sizes.items():
        assert lake.streams.status(name)[0].late_rows == len(late_ids(world, *size)), name
    world.drop()


def test_worlds_beyond_the_bound_have_late_records() -> None:
    """Or the property above would hold of nothing."""

    class Quiet(World):
        def __init__(self, seed: int) -> None:
            self.choose, self.bound, self._spread, self._now = random.Random(seed), 5, 6, 0.0
            self.batches, self.topic = [], "t"
            self.lake = Nothing()  # type: ignore[assignment]

    class Nothing:
        def topic(self, _: str) -> Nothing:
            return self

        def append(self, _: object) -> None: ...

        def flush(self, _: str) -> None: ...

    found = 0
    for seed in range(10):
        world = Quiet(seed)
        for _ in range(BATCHES):
            world.step()
        found += bool(late_ids(world, 30.0, 30.0))
    assert found > 5
