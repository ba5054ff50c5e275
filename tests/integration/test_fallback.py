"""When DuckDB raises, Spark answers, and the result, the plan and the metrics say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.engine import Lake
from headwater.errors import HeadwaterError, InvalidStatement, QueryFailed
from headwater.spark.session import SparkEngine

pytestmark = pytest.mark.spark

GUARDED = "SELECT upper(s) AS u FROM t"
"""DuckDB's own upper() differs beyond ASCII, so its SQL raises there."""


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Iterator[Lake]:
    with headwater.init(tmp_path / "lake") as opened:
        opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        opened.sql("CREATE TOPIC t (s STRING, n INT)")
        opened.topic("t").append([{"s": "straße", "n": 0}])
        yield opened


def counted(lake: Lake, engine: str, outcome: str) -> float | None:
    return lake.metrics.registry.get_sample_value("headwater_queries_total", {"engine": engine, "outcome": outcome})


def test_the_result_says_that_spark_answered_and_why(lake: Lake) -> None:
    result = lake.sql(GUARDED)
    plan = result.info["plan"]
    assert plan["engine"] == "spark"
    assert plan["reason"] == "duckdb raised: upper of letters outside ASCII"
    assert plan["sql"] == GUARDED
    assert result.rows() == [{"u": "STRASSE"}]
    assert counted(lake, "spark", "ok") == 1
    assert counted(lake, "duckdb", "ok") is None
    seconds = {"engine": "spark"}
    assert lake.metrics.registry.get_sample_value("headwater_query_seconds_count", seconds) == 1


def test_explain_foretells_duckdb_and_explain_analyze_tells_what_happened(lake: Lake) -> None:
    assert lake.sql(f"EXPLAIN {GUARDED}").info["plan"]["engine"] == "duckdb"
    analyzed = lake.sql(f"EXPLAIN ANALYZE {GUARDED}")
    assert analyzed.info["plan"]["engine"] == "spark"
    lines = [row["plan"] for row in analyzed]
    assert lines[0] == "engine: spark (duckdb raised: upper of letters outside ASCII)"
    assert lines[-1].startswith("ran: 1 result row in ")


def test_an_error_of_both_is_sparks(lake: Lake) -> None:
    with pytest.raises(QueryFailed, match=r"(?i)division by zero"):
        lake.sql("SELECT 1 / n AS q FROM t").rows()
    assert counted(lake, "spark", "failed") == 1


def test_asked_for_spark_a_mistake_is_told_in_sparks_words(lake: Lake) -> None:
    with pytest.raises(InvalidStatement) as ours:
        lake.sql("SELECT nn FROM t")
    with pytest.raises(InvalidStatement) as sparks:
        lake.sql("SELECT nn FROM t", engine="spark")
    assert ours.value.message == 'column "nn" does not exist'
    assert sparks.value.message == "statement is not valid"
    for error in (ours.value, sparks.value):
        assert isinstance(error, HeadwaterError)
        assert error.code == "invalid_statement"
