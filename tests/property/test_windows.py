"""Windows have one answer: as arithmetic on DuckDB and on Spark, and as Spark's own windows, over whatever times."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestampType, TimestamptzType

from headwater.serving.agreement import Agreed, agree, shaped
from headwater.sql.windows import rewrite_windows
from headwater.sql.windows_streaming import streaming_windows

pytestmark = pytest.mark.spark

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "k", StringType()),
    NestedField(3, "x", LongType()),
    NestedField(4, "ts", TimestamptzType()),
    NestedField(5, "tn", TimestampType()),
)
SECOND = 1_000_000
STEPS = (0, 1, SECOND - 1, SECOND, SECOND + 1, 3 * SECOND, 10 * SECOND - 1, 10 * SECOND, 10 * SECOND + 1, 75 * SECOND)
"""Distances between rows that are just within, at and beyond the gaps and sizes below."""

SMALL = ("'1 second'", "INTERVAL '10' SECOND")
KEYS = ((), ("k",), ("x % 3",), ("k", "x % 3"))


def compare(one: pa.Table, other: pa.Table) -> str | None:
    path = Path(__file__).parents[1] / "integration" / "engines_compare.py"
    spec = importlib.util.spec_from_file_location("engines_compare", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: str | None = module.difference(one, other, False)
    return found


def rows(seed: int) -> pa.Table:
    """Rows out of order, several at a time, before and after 1970, some without a time or a key."""
    chosen = random.Random(seed)
    made, micros = [], -200 * SECOND
    for number in range(240):
        micros += chosen.choice(STEPS)
        at = None if number % 17 == 5 else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        key = chosen.choice(["a", "b", "c", None])
        plain = None if at is None else at.replace(tzinfo=None)
        made.append({"id": number, "k": key, "x": chosen.randrange(9), "ts": at, "tn": plain})
    chosen.shuffle(made)
    types = [pa.int64(), pa.string(), pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")]
    names = [field.name for field in SCHEMA.fields]
    return pa.Table.from_pylist(made, schema=pa.schema(list(zip(names, types, strict=True))))


@st.composite
def queries(draw: st.DrawFn, function: str, in_from: bool) -> str:
    """A SELECT that groups by a window of a function, which stands in GROUP BY or in FROM."""
    column, keys = draw(st.sampled_from(["ts", "tn"])), draw(st.sampled_from(KEYS))
    size = draw(st.sampled_from(["INTERVAL '10' SECOND", "'75s'", "INTERVAL '2 min'"]))
    sizes = f"{draw(st.sampled_from(SMALL))}, {size}" if function == "HOP" else draw(st.sampled_from((*SMALL, size)))
    where = draw(st.sampled_from(["", " WHERE x > 2 OR k = 'a'"]))
    having = draw(st.sampled_from(["", " HAVING count(*) > 1"]))
    values = "count(*) AS n, sum(x) AS s, min(id) AS low, count(DISTINCT x) AS kinds"
    named = [f"{key} AS g{place}" for place, key in enumerate(keys)]
    if not in_from:
        bounds = [f"{function}_START({column}, {sizes}) AS b", f"{function}_END({column}, {sizes})"]
        group = draw(st.permutations([*keys, f"{function}({column}, {sizes})"]))
        return f"SELECT {', '.join([*named, *bounds, values])} FROM w t{where} GROUP BY {', '.join(group)}{having}"
    bounds = ["window_start AS b", "t.window_end"]
    group = draw(st.permutations([*keys, "t.window_start", "window_end"]))
    # A stream cuts sessions by the keys of GROUP BY alone, which are columns here.
    partition = f" PARTITION BY {', '.join(keys)}" if function == "SESSION" and keys else ""
    if partition and "%" in partition:
        partition, group, named = " PARTITION BY k", ["k", "window_start", "window_end"], ["k AS g0"]
    table = f"{function}(TABLE w{partition}, DESCRIPTOR({column}), {sizes})"
    table = draw(st.sampled_from([table, f"TABLE({table})"]))
    return f"SELECT {', '.join([*named, *bounds, values])} FROM {table} AS t GROUP BY {', '.join(group)}{having}"


@pytest.fixture(scope="module")
def engines(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, duckdb.DuckDBPyConnection]]:
    changed = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    before = {key: spark.conf.get(key) for key in changed}
    for key, value in changed.items():
        spark.conf.set(key, value)
    file = tmp_path_factory.mktemp("windows") / "w.parquet"
    pq.write_table(rows(11), file)
    spark.read.parquet(str(file)).createOrReplaceTempView("w")
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        duck.read_parquet(str(file)).create_view("w")
        yield spark, duck
    spark.catalog.dropTempView("w")
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.parametrize("in_from", [False, True], ids=["in GROUP BY", "in FROM"])
@pytest.mark.parametrize("function", ["TUMBLE", "HOP", "SESSION"])
def test_windows_have_one_answer(engines: tuple[Any, duckdb.DuckDBPyConnection], function: str, in_from: bool) -> None:
    spark, duck = engines
    most = 0

    @settings(max_examples=5 if function == "SESSION" else 2, suppress_health_check=list(HealthCheck))
    @given(queries(function, in_from))
    def check(text: str) -> None:
        nonlocal most
        verdict = agree(rewrite_windows(text), {"w": SCHEMA})
        assert isinstance(verdict, Agreed), f"{text}\n{verdict}"
        by_duck = shaped(duck.sql(verdict.sql).to_arrow_table(), verdict.output)
        by_spark = spark.sql(rewrite_windows(text)).toArrow()
        streaming = streaming_windows(text)
        assert [window.function for window in streaming.windows] == [function]
        by_stream = spark.sql(streaming.text).toArrow()
        assert compare(by_spark, by_duck) is None, f"{compare(by_spark, by_duck)}\n{text}"
        assert compare(by_stream, by_spark) is None, f"{compare(by_stream, by_spark)}\n{text}\n{streaming.text}"
        most = max(most, by_spark.num_rows)

    check()
    assert most > 20, "few windows show little"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT s, e, max(n) AS most FROM (SELECT k, HOP_START(ts, '1 s', '10 s') AS s, "
        "HOP_END(ts, '1 s', '10 s') AS e, count(*) AS n FROM w GROUP BY k, HOP(ts, '1 s', '10 s')) AS c "
        "GROUP BY s, c.e",
        "SELECT a.k, a.s, b.n FROM (SELECT k, TUMBLE_START(ts, '10 s') AS s FROM w GROUP BY k, TUMBLE(ts, '10 s')) "
        "AS a JOIN (SELECT window_start, count(*) AS n FROM TUMBLE(TABLE w, DESCRIPTOR(ts), '10 s') "
        "GROUP BY window_start) AS b ON a.s = b.window_start",
    ],
    ids=["groups of groups", "joined groups"],
)
def test_windows_of_inner_queries_are_passed_on(engines: tuple[Any, duckdb.DuckDBPyConnection], text: str) -> None:
    spark, _ = engines
    streaming = streaming_windows(text).text
    assert "AS _window" in streaming
    assert compare(spark.sql(streaming).toArrow(), spark.sql(rewrite_windows(text)).toArrow()) is None, streaming
