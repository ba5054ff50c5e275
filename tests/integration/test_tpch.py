"""TPC-H's queries as materialized views: each equals its query after every batch, and follows by the expected method.

The batches are the benchmark's own, new orders and old orders that go, and the same for the suppliers' side, which some
queries read alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.integration.tpch_queries import QUERIES, TABLES

from headwater.catalog.view_layout import Layout
from headwater.engine import Lake
from headwater.spark.gate_spark import isolated
from headwater.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE = "0.005"
SUPPLY = ("q02", "q11", "q16")
"""Queries that read neither orders nor lineitem."""

METHODS = dict.fromkeys(QUERIES, ("append", "append")) | {
    "q11": ("full", "full"),  # HAVING compares with a total over all rows
    "q15": ("full", "full"),  # so does WHERE
    "q21": ("full", "full"),  # three readings of lineitem: at this size a recompute reads less
}
"""By which method a view follows when rows come, and when rows go."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    folder = tmp_path_factory.mktemp("tpch")
    made = [Path(sys.executable).with_name("tpchgen-cli"), "parquet", "-s", SCALE, "--output-dir", folder]
    subprocess.run(made, check=True, capture_output=True)
    return {name: plain(pq.read_table(folder / f"{name}.parquet")) for name in TABLES}


def plain(table: pa.Table) -> pa.Table:
    """The table with ordinary strings."""
    fields = [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in table.schema]
    return table.cast(pa.schema([pa.field(f.name, f.type, f.nullable) for f in fields]))


class Store:
    """A lake with TPC-H's tables and views. By the last two digits of their keys, some orders and some parts come later
    (07), and others (03) are in files of their own, as rows of one time are; of those some will go."""

    KEYS: ClassVar = {"orders": "o_orderkey", "lineitem": "l_orderkey", "partsupp": "ps_partkey"}

    def __init__(self, lake: Lake, data: dict[str, pa.Table]) -> None:
        self.lake = lake
        self._data = data
        for name, columns in TABLES.items():
            lake.sql(f"CREATE TOPIC {name} ({columns})")
            digits = self._digits(name)
            self._append(name, pc.invert(pc.is_in(digits, pa.array([3, 7]))))
        lake.flush()
        for name in self.KEYS:
            self._append(name, pc.equal(self._digits(name), 3))
        lake.flush()
        for name, query in QUERIES.items():
            lake.sql(f"CREATE MATERIALIZED VIEW {name} AS {query} WITH (refresh = 'manual')")

    def _digits(self, name: str) -> Any:
        table = self._data[name]
        if name not in self.KEYS:
            return pa.nulls(len(table), pa.int64())
        key = table[self.KEYS[name]]
        return pc.subtract(key, pc.multiply(pc.divide(key, 100), 100))

    def _append(self, name: str, chosen: Any) -> None:
        assert self.lake.topic(name).append(self._data[name].filter(chosen)).rows > 0

    def add(self, *names: str) -> None:
        """The rows that come later."""
        for name in names:
            self._append(name, pc.equal(self._digits(name), 7))

    def remove(self, *names: str) -> None:
        """Half of the rows that are in files of their own."""
        for name in names:
            done = self.lake.sql(f"DELETE FROM {name} WHERE {self.KEYS[name]} % 200 = 3")
            assert done.rows()[0]["rows"] > 0

    def follow(self, names: Iterable[str]) -> dict[str, str]:
        """Refresh views, compare each with its query, and tell by which method it followed."""
        own = isolated(self.lake.spark)
        self.lake.flush()
        for name in TABLES:
            own.read.table(f"lake.topics.{name}").createOrReplaceTempView(name)
        methods = {}
        for name in names:
            (done,) = self.lake.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()
            wanted = rows_of(own.sql(QUERIES[name]))
            assert wanted, f"{name} has no rows to compare"
            assert self.stored(name) == wanted, name
            methods[name] = done["method"]
        return methods

    def stored(self, name: str) -> Counter[str]:
        own, view = isolated(self.lake.spark), self.lake.views.load(name)
        own.read.table(f"lake.views.{name}").createOrReplaceTempView("__states")
        return rows_of(own.sql(view.read))

    def drop(self) -> None:
        for name in QUERIES:
            self.lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
        for name in TABLES:
            self.lake.sql(f"DROP TOPIC IF EXISTS {name}")


def rows_of(frame: Any) -> Counter[str]:
    return Counter(repr([round(x, 6) if isinstance(x, float) else x for x in row]) for row in frame.collect())


@pytest.fixture(scope="module")
def store(spark: Any, spark_lake: Path, data: dict[str, pa.Table]) -> Iterator[Store]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        yield (made_store := Store(lake, data))
        made_store.drop()


@pytest.mark.timeout(900)
def test_views_follow_the_refresh_functions(store: Store) -> None:
    opaque = {name for name in QUERIES if Layout.from_json(store.lake.views.load(name).layout).opaque is not None}
    assert opaque == {"q11"}
    trade = [name for name in QUERIES if name not in SUPPLY]
    store.add("orders", "lineitem")
    came = store.follow(trade)
    store.remove("lineitem", "orders")
    went = store.follow(trade)
    store.add("partsupp")
    came |= store.follow(SUPPLY)
    store.remove("partsupp")
    went |= store.follow(SUPPLY)
    assert {name: (came[name], went[name]) for name in QUERIES} == METHODS
