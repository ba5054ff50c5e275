"""Nexmark: each query as a continuous view equals the same query asked once over the finished input.

Events arrive out of order, in three commits. Views are made when the first one is there, by a backfill, and go on with
the others as micro-batches. The last commit ends with an event of each stream from an hour later, which closes every
window before it. Some of the answers are computed in plain Python too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.nexmark import COLUMNS, Events, Workload, ending, pieces
from bench.nexmark_queries import QUERIES, SIDE_INPUT, SIDE_ROWS

from headwater.catalog.progress import progress_of
from headwater.engine import Lake
from headwater.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COUNT, COMMITS = 3_000, 3
WORKLOAD = Workload(rate=100, disorder=3.0)
CLOSED = "2026-01-01 00:30:00"
Row = dict[str, Any]
Bag = Counter[tuple[Any, ...]]


class House:
    """An auction house in a lake: streams, a table, and a continuous view for each query."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.failed: dict[str, Exception] = {}
        self.seen: dict[str, list[Row]] = {name: [] for name in COLUMNS}
        for name, columns in COLUMNS.items():
            lake.sql(
                f"CREATE STREAM {name} ({columns}) WITH (timestamp_field = 'date_time', "
                f"max_out_of_orderness = '{WORKLOAD.disorder:g} seconds')"
            )
        lake.sql(f"CREATE TOPIC side_input ({SIDE_INPUT})")
        keys = list(range(SIDE_ROWS))
        lake.topic("side_input").append(pa.table({"key": keys, "value": [f"value {key}" for key in keys]}))

    def run(self) -> None:
        """All that happens: events arrive, views are made after the first commit, and follow the others."""
        first, *others = pieces(COUNT, COMMITS, WORKLOAD)
        self._arrive(first)
        for name, query in QUERIES.items():
            self._try(name, query.view(name))
        for piece in others[:-1]:
            self._arrive(piece)
        self._arrive(others[-1], ending(COUNT, WORKLOAD, after=3600))
        for name in QUERIES:
            self._try(name, f"REFRESH MATERIALIZED VIEW {name}")

    def _arrive(self, *parts: Events) -> None:
        for part in parts:
            for name, table in part.tables():
                self.lake.topic(name).append(table)
                self.seen[name] += table.to_pylist()
        self.lake.flush()

    def _try(self, name: str, statement: str) -> None:
        """One view that fails does not keep the others from being looked at."""
        try:
            if name not in self.failed:
                self.lake.sql(statement)
        except Exception as error:
            self.failed[name] = error

    def engine(self, name: str) -> str:
        streamed = progress_of(self.lake.views.load(name).table.metadata.properties)
        return "incremental" if streamed is None else "streaming"

    def batch(self, name: str) -> list[Row]:
        return self.lake.sql(QUERIES[name].batch(CLOSED)).rows()

    def drop(self) -> None:
        for name in QUERIES:
            self.lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
        for name in COLUMNS:
            self.lake.sql(f"DROP STREAM IF EXISTS {name}")
        for name in (*COLUMNS, "side_input"):
            self.lake.sql(f"DROP TOPIC IF EXISTS {name}")


def bag(rows: Iterable[Row]) -> Bag:
    """The rows as a bag, in which order does not matter and duplicates count."""
    return Counter(tuple(_plain(value) for value in row.values()) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.values())
    return round(value, 6) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def house(spark: Any, spark_lake: Path) -> Iterator[House]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        house = House(lake)
        house.run()
        yield house
        house.drop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUERIES)
def test_the_continuous_answer_is_the_batch_answer(house: House, name: str) -> None:
    if name in house.failed:
        raise house.failed[name]
    wanted, found = bag(house.batch(name)), bag(house.lake.sql(f"SELECT * FROM {name}").rows())
    assert wanted, "no rows to compare"
    assert found == wanted
    assert house.engine(name) == QUERIES[name].engine


# -- answers in plain Python ----------------------------------------------------------------------------------------


def starts(moment: datetime, slide: int, size: int) -> Iterator[datetime]:
    """The windows that a moment falls into."""
    last = moment.replace(second=moment.second // slide * slide, microsecond=0)
    yield from (
        start
        for n in range(size // slide)
        if (start := last - timedelta(seconds=n * slide)) + timedelta(seconds=size) > moment
    )


def hot_items(seen: dict[str, list[Row]]) -> Bag:
    counts: dict[datetime, Counter[int]] = defaultdict(Counter)
    for bid in seen["bid"]:
        for start in starts(bid["date_time"], 2, 10):
            counts[start][bid["auction"]] += 1
    return Counter(
        (start, start + timedelta(seconds=10), auction, num)
        for start, found in counts.items()
        for auction, num in found.items()
        if num == max(found.values())
    )


def highest_bids(seen: dict[str, list[Row]]) -> Bag:
    windows: dict[datetime, list[Row]] = defaultdict(list)
    for bid in seen["bid"]:
        windows[next(starts(bid["date_time"], 10, 10))].append(bid)
    best = {start: max(bids, key=lambda bid: (bid["price"], bid["date_time"])) for start, bids in windows.items()}
    columns = ("auction", "bidder", "date_time", "extra")
    return Counter((start, bid["price"], tuple(bid[column] for column in columns)) for start, bid in best.items())


def new_users(seen: dict[str, list[Row]]) -> Bag:
    sold = {(each["seller"], next(starts(each["date_time"], 10, 10))) for each in seen["auction"]}
    people = ((each["id"], each["name"], next(starts(each["date_time"], 10, 10))) for each in seen["person"])
    return Counter(each for each in people if (each[0], each[2]) in sold)


def user_sessions(seen: dict[str, list[Row]]) -> Bag:
    times: dict[int, list[datetime]] = defaultdict(list)
    for bid in sorted(seen["bid"], key=lambda bid: bid["date_time"]):
        times[bid["bidder"]].append(bid["date_time"])
    gap, found = timedelta(seconds=10), []
    for bidder, moments in times.items():
        cuts = [0, *(n for n in range(1, len(moments)) if moments[n] - moments[n - 1] > gap), len(moments)]
        sessions = (moments[start:end] for start, end in pairwise(cuts))
        found += [(bidder, len(each), each[0], each[-1] + gap) for each in sessions]
    return Counter(found)


def average_prices(seen: dict[str, list[Row]]) -> Bag:
    bids, finals = defaultdict(list), defaultdict(list)
    for bid in seen["bid"]:
        bids[bid["auction"]].append(bid)
    for each in seen["auction"]:
        within = [b["price"] for b in bids[each["id"]] if each["date_time"] <= b["date_time"] <= each["expires"]]
        if within:
            finals[each["category"]].append(max(within))
    return Counter((category, round(sum(prices) / len(prices), 6)) for category, prices in finals.items())


PLAIN: dict[str, Callable[[dict[str, list[Row]]], Bag]] = {
    "q4": average_prices,
    "q5": hot_items,
    "q7": highest_bids,
    "q8": new_users,
    "q11": user_sessions,
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_batch_answer_is_that_of_plain_python(house: House, name: str) -> None:
    before = {stream: [row for row in rows if row["date_time"].hour == 0] for stream, rows in house.seen.items()}
    wanted = PLAIN[name](before if QUERIES[name].closes else house.seen)
    assert len(wanted) > 2
    assert bag(house.batch(name)) == wanted
