"""Cancelling and limiting queries that DuckDB runs, on a real lake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.engine import Lake
from headwater.errors import (
    InvalidOption,
    InvalidStatement,
    QueryCancelled,
    QueryTimeout,
    ResultTooLarge,
    TopicNotFound,
)
from headwater.serving.query import Cancel
from headwater.sql.statements import Explain, Query

SLOW = "SELECT count(*) AS n FROM t a CROSS JOIN t b CROSS JOIN t c WHERE a.n + b.n + c.n = -1"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with headwater.init(tmp_path / "lake") as opened:
        opened.sql("CREATE TOPIC t (n BIGINT NOT NULL)")
        opened.topic("t").append([{"n": n} for n in range(5_000)])
        yield opened


def test_a_cancelled_query_stops(lake: Lake) -> None:
    cancel = Cancel()
    threading.Timer(0.3, cancel).start()
    with pytest.raises(QueryCancelled):
        lake.execute(Query(SLOW), cancel).rows()


def test_a_query_cancelled_before_it_starts_never_runs(lake: Lake) -> None:
    cancel = Cancel()
    cancel()
    with pytest.raises(QueryCancelled):
        lake.execute(Query(SLOW), cancel).rows()


def test_a_query_has_a_time_limit(lake: Lake) -> None:
    with pytest.raises(QueryTimeout, match=r"longer than 0\.3 s"):
        lake.sql(SLOW, timeout=0.3).rows()


def test_a_limit_of_rows_holds_however_the_result_is_read(lake: Lake) -> None:
    with pytest.raises(ResultTooLarge, match="more than 100 rows"):
        lake.sql("SELECT n FROM t", max_rows=100).rows()
    with pytest.raises(ResultTooLarge, match="more than 100 rows"):
        list(lake.sql("SELECT n FROM t", max_rows=100).batches())


@pytest.mark.parametrize("rows", [0, -1, True, 1.5])
def test_a_limit_of_rows_is_a_whole_number_of_at_least_one(lake: Lake, rows: object) -> None:
    with pytest.raises(InvalidOption, match='query option "max_rows" cannot be') as refused:
        lake.sql("SELECT n FROM t", max_rows=rows)
    assert refused.value.detail == "Expected a whole number of at least 1."


def test_the_setting_limits_a_held_result_and_not_a_streamed_one(lake: Lake) -> None:
    with Lake.open(lake.paths.root, query_max_rows=100) as small:
        with pytest.raises(ResultTooLarge, match="more than 100 rows"):
            small.sql("SELECT n FROM t").rows()
        assert sum(batch.num_rows for batch in small.sql("SELECT n FROM t").batches()) == 5_000


def test_an_unknown_topic_is_named_without_starting_spark(lake: Lake) -> None:
    lake.sql("CREATE TOPIC orders (n BIGINT)")
    with pytest.raises(TopicNotFound) as missing:
        lake.sql("SELECT * FROM ordrs")
    assert missing.value.hint == 'Did you mean "orders"?'
    assert lake.spark_state == "not started"


def test_reading_one_topic_leaves_the_others_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.sql("CREATE TOPIC other (n BIGINT)")
    read: list[str] = []
    tail = lake.log.tail
    monkeypatch.setattr(lake.log, "tail", lambda topic, start: read.append(topic.name) or tail(topic, start))
    assert lake.sql("SELECT count(n) AS n FROM t WHERE n >= 0").rows() == [{"n": 5_000}]
    assert read == ["t"]


def test_explain_analyze_runs_the_query(lake: Lake) -> None:
    lines = [row["plan"] for row in lake.sql("EXPLAIN ANALYZE SELECT n FROM t WHERE n < 3")]
    assert lines[-1].startswith("ran: 3 result rows in ")
    assert not any(line.startswith("ran:") for line in (row["plan"] for row in lake.sql("EXPLAIN SELECT n FROM t")))


def test_the_tail_and_only_the_tail_is_fresh(lake: Lake) -> None:
    lake.topic("t").append([{"n": -5}])
    assert lake.sql("SELECT min(n) AS n FROM t").rows() == [{"n": -5}]
    assert lake.sql("SELECT count(*) AS n FROM t WITH TAIL OFF").rows() == [{"n": 0}]


@pytest.mark.parametrize("prefix", ["", "EXPLAIN ", "EXPLAIN ANALYZE "])
@pytest.mark.parametrize("engine", ["auto", "duckdb"])
def test_an_unknown_column_is_told_without_starting_spark(lake: Lake, prefix: str, engine: str) -> None:
    query = Query("SELECT 1,\n  nn FROM topic('t') WHERE regexp_count(n, 'a') > 1", engine=engine)  # type: ignore[arg-type]
    statement = Explain(query, prefix.endswith("ANALYZE ")) if prefix else query
    with pytest.raises(InvalidStatement, match='column "nn" does not exist') as unknown:
        lake.execute(statement)
    assert (unknown.value.data["line"], unknown.value.data["column"]) == (2, 3)
    assert unknown.value.detail == (
        "Columns here are n, _offset, _timestamp.\n"
        "Line 2, column 3:\n"
        "    nn FROM topic('t') WHERE regexp_count(n, 'a') > 1\n"
        "    ^^"
    )
    assert lake.spark_state == "not started"
