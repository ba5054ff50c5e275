"""What the SQL room says about Spark's SQL is what Spark says: windows, and where an alias follows a relation."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headwater.sql.aliases import alias_place
from headwater.sql.names import normalise
from headwater.sql.tokens import tokenise
from headwater.sql.windows import rewrite_windows

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EDGES = (
    *(0, 1, -1, 999_999, 1_000_000, -1_000_000, 3_599_999_999, 3_600_000_000, -3_600_000_000, -3_600_000_001),
    *(86_400_000_000, -86_400_000_001, 253_402_300_799_999_999, -60_000_000_000_000_000, 951_782_400_000_000),
)
TUMBLING = ("1 hour", "1 second", "7 days", "90 seconds", "1 millisecond", "100 minutes", "3 microseconds")
ALIASED = re.compile(r"SubqueryAlias [^\n]+\n([^\n]*ColumnAliases[^\n]+\n)?[ :+'|-]*UnresolvedRelation \[v\]")
HOPPING = (
    *(("5 minutes", "1 hour"), ("1 second", "2500 milliseconds"), ("3 minutes", "10 minutes"), ("1 day", "1 week")),
    *(("1 hour", "1 hour"), ("7 microseconds", "100 microseconds")),
)


@pytest.fixture(scope="module")
def moments(spark: Any) -> str:
    """A view of moments around every edge, before and after 1970, as each type that has them; some are missing."""
    chosen = random.Random(7)
    micros = [*EDGES, *(chosen.randrange(-(10**16), 10**16) for _ in range(200)), None, None]
    rows = [(n, None if each is None else EPOCH + timedelta(microseconds=each)) for n, each in enumerate(micros)]
    spark.createDataFrame(rows, "id INT, ts TIMESTAMP").createOrReplaceTempView("moments_ts")
    spark.sql(
        "SELECT *, CAST(ts AS TIMESTAMP_NTZ) AS ntz, CAST(ts AS DATE) AS day FROM moments_ts"
    ).createOrReplaceTempView("moments")
    return "moments"


def assert_same(ours: Any, theirs: Any) -> None:
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
    assert texts(ours) == texts(theirs)


def texts(frame: Any) -> Counter[tuple[str, ...]]:
    """The rows as texts: Python has no year 10000."""
    named = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
    return Counter(map(tuple, named.selectExpr(*(f"CAST({name} AS STRING)" for name in named.columns)).collect()))


@pytest.mark.parametrize("column", ["ts", "ntz", "day"])
def test_tumbling_windows_are_those_of_spark(spark: Any, moments: str, column: str) -> None:
    for size in TUMBLING:
        text = (
            f"SELECT TUMBLE_START({column}, INTERVAL '{size}'), TUMBLE_END({column}, '{size}'), count(*) AS n, sum(id)"
            f" FROM {moments} GROUP BY TUMBLE({column}, '{size}')"
        )
        ours = spark.sql(rewrite_windows(text))
        assert ours.columns[:2] == ["window_start", "window_end"]
        own = f"SELECT w.start, w.end, count(*), sum(id) FROM (SELECT window({column}, '{size}') w, id FROM {moments})"
        assert_same(ours, spark.sql(f"{own} GROUP BY w"))


@pytest.mark.parametrize("column", ["ts", "ntz", "day"])
def test_hopping_windows_are_those_of_spark(spark: Any, moments: str, column: str) -> None:
    for slide, size in HOPPING:
        arguments = f"{column}, INTERVAL '{slide}', INTERVAL '{size}'"
        text = (
            f"SELECT HOP_START({arguments}), HOP_END({arguments}), id % 3 AS k, count(*), sum(id) FROM {moments}"
            f" WHERE id < 150 OR id > 200 GROUP BY HOP({arguments}), id % 3"
        )
        own = (
            f"SELECT w.start, w.end, k, count(*), sum(id) FROM (SELECT window({column}, '{size}', '{slide}') w,"
            f" id % 3 AS k, id FROM {moments} WHERE id < 150 OR id > 200) GROUP BY w, k"
        )
        assert_same(spark.sql(rewrite_windows(text)), spark.sql(own))


def test_windows_of_joins_and_nested_queries_run(spark: Any, moments: str) -> None:
    text = f"""
        WITH hourly AS (
            SELECT TUMBLE_START(a.ts, '1 hour') AS at, count(*) AS n FROM {moments} a JOIN {moments} b USING (id)
            WHERE a.id > 0 OR b.id > 0 -- both
            GROUP BY TUMBLE(a.ts, '1 hour') HAVING count(*) > 0)
        SELECT HOP_START(at, '1 day', '2 days') AS d, sum(n) AS n FROM hourly GROUP BY HOP(at, '1 day', '2 days')
        UNION ALL SELECT TUMBLE_START(ts, '1 day'), count(*) FROM {moments} GROUP BY TUMBLE(ts, '1 day')
        ORDER BY d, n
    """
    rows = spark.sql(rewrite_windows(text)).collect()
    present = spark.sql(f"SELECT count(*) FROM {moments} WHERE ts IS NOT NULL").first()[0]
    assert sum(row.n for row in rows) == 2 * (present - 1) + present


def parsed(spark: Any, text: str) -> str | None:
    """Spark's plan of a text before it is resolved, or None if it is no SQL."""
    from pyspark.errors import ParseException

    try:
        return str(spark._jsparkSession.sessionState().sqlParser().parsePlan(text).toString())
    except ParseException:
        return None


def test_an_alias_follows_where_spark_says_so(spark: Any) -> None:
    words = [row.keyword for row in spark.sql("SELECT keyword FROM sql_keywords()").collect()]
    behind = ("", " WHERE a = 1", " BY a", " 3", " (a = 1)", ", w", " x", " JOIN w ON true", " AS q")
    compared, wrong = 0, []
    for place, word in enumerate((*words, "x", "`WHERE`", "AS y")):
        every = behind[1:] if place % 7 == 0 else (behind[1 + place % 8], behind[1 + (place + 3) % 8])
        for more in ("", *every):  # a text that Spark refuses takes a hundredth of a second
            text = f"SELECT * FROM v {word}{more}"
            plan = parsed(spark, text)
            if plan is None:
                continue
            compared += 1
            aliased = ALIASED.search(plan) is not None
            if (alias_place(tokenise(text), 4) is None) != aliased:
                wrong.append(f"{text}\n{plan}")
    assert compared > 200
    assert not wrong, f"{len(wrong)} of {compared}:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT v.a FROM v VERSION AS OF 3 WHERE v.a > 1",
        "SELECT v.a FROM v VERSION AS OF 3 JOIN w TIMESTAMP AS OF '2026-01-01' x ON v.k = x.k LIMIT 3",
        "SELECT s.a FROM mv('v', fresh => true) TABLESAMPLE (10 PERCENT) s, mv('v') VERSION AS OF 1",
        "SELECT * FROM v VERSION AS OF 1 TABLESAMPLE (10 PERCENT) REPEATABLE (3) ORDER BY v.a",
        "SELECT * FROM (v FOR SYSTEM_VERSION AS OF 1 LEFT ANTI JOIN topics.w USING (k)) z UNION TABLE views.u",
        "FROM mv('v', fresh => true) |> WHERE v.a > 1 |> SELECT v.a",
    ],
)
def test_normalised_queries_are_sql(spark: Any, text: str) -> None:
    found = normalise(text)
    plan = parsed(spark, found.text)
    assert plan is not None, found.text
    assert "RelationTimeTravel" not in plan
    for relation in found.relations:
        assert f"[{relation.alias_in_text}]" in plan
