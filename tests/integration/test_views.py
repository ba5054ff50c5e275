"""Views of every kind on Spark, through inserts, updates, deletes and compactions: each equals its query every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import InvalidStatement, StaleCommit, ViewBroken, ViewNotIncremental
from headwater.spark.gate_spark import isolated
from headwater.spark.session import SparkEngine
from headwater.views.text import plain_query

pytestmark = pytest.mark.spark

VIEWS = {
    "v_sums": "SELECT g, COUNT(*) AS c, SUM(v) AS sv, AVG(d) AS ad, SUM(d) AS sd, AVG(id) AS ai FROM vt GROUP BY g",
    "v_bounds": "SELECT g, MIN(s) AS ms, MAX(ts) AS mt, STDDEV(v) AS sdv, BOOL_AND(v > 0) AS ba FROM vt GROUP BY g",
    "v_distinct": "SELECT g, COUNT(DISTINCT k) AS dk, SORT_ARRAY(COLLECT_SET(s)) AS cs FROM vt GROUP BY g",
    "v_filter": "SELECT id, s, d, tags FROM vt WHERE k = 3",
    "v_join": "SELECT vu.name, SUM(vt.d) AS total, COUNT(*) AS c FROM vt JOIN vu ON vt.k = vu.k GROUP BY vu.name",
    "v_left": "SELECT vt.id, vu.name FROM vt LEFT JOIN vu ON vt.k = vu.k",
    "v_full": "SELECT vt.id, vt.k AS tk, vu.k AS uk FROM vt FULL JOIN vu ON vt.k = vu.k",
    "v_anti": "SELECT vt.id FROM vt WHERE NOT EXISTS (SELECT 1 FROM vu WHERE vu.k = vt.k)",
    "v_first": "SELECT * FROM (SELECT id, k, ROW_NUMBER() OVER (PARTITION BY k ORDER BY id) AS r FROM vt) WHERE r < 4",
    "v_top": "SELECT s, SUM(d) AS x FROM vt GROUP BY s ORDER BY x DESC, s LIMIT 2",
    "v_rollup": "SELECT g, s, COUNT(*) AS c, GROUPING_ID() AS gi FROM vt GROUP BY ROLLUP(g, s)",
    "v_hours": "SELECT TUMBLE_START(ts, INTERVAL '1 day') AS day, COUNT(*) AS c FROM vt "
    "GROUP BY TUMBLE(ts, INTERVAL '1 day')",
    "v_explode": "SELECT tag, COUNT(*) AS c FROM vt LATERAL VIEW EXPLODE(tags) e AS tag GROUP BY tag",
    "v_over_view": "SELECT c > 20 AS big, COUNT(*) AS n, SUM(sd) AS total FROM mv('v_sums') GROUP BY c > 20",
    "v_over_rows": "SELECT name, COUNT(*) AS n FROM views.v_left GROUP BY name",
    "v_opaque": "SELECT id, PERCENT_RANK() OVER (ORDER BY v) AS p FROM vt",
}
RECOMPUTED = {"v_opaque"}


@pytest.fixture(scope="module")
def lake(spark: Any, spark_lake: Path) -> Iterator[Lake]:
    made = (spark_lake / "headwater.toml").exists()
    opened = Lake.open(spark_lake) if made else Lake.init(spark_lake)
    opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
    opened.sql(
        "CREATE TOPIC vt (id BIGINT NOT NULL, g INT, k BIGINT, v DOUBLE, d DECIMAL(12,2), s STRING, ts TIMESTAMP, "
        "tags ARRAY<STRING>)"
    )
    opened.sql("CREATE TOPIC vu (k BIGINT NOT NULL, name STRING)")
    produce(opened, 0, 200)
    opened.topic("vu").append([{"k": k, "name": f"n{k}"} for k in range(5)])
    for name, query in VIEWS.items():
        opened.sql(f"CREATE MATERIALIZED VIEW {name} AS {query} WITH (refresh = 'manual')")
    yield opened
    for name in reversed(VIEWS):
        opened.sql(f"DROP MATERIALIZED VIEW {name}")
    opened.close()


def produce(lake: Lake, start: int, rows: int) -> None:
    lake.topic("vt").append(
        [
            {
                "id": i,
                "g": None if i % 11 == 0 else i % 5,
                "k": i % 7,
                "v": i * 0.5,
                "d": f"{i % 100}.25",
                "s": f"s{i % 3}",
                "ts": f"2026-01-{1 + i % 20:02d}T00:00:00Z",
                "tags": [f"t{i % 2}", f"t{i % 4}"],
            }
            for i in range(start, start + rows)
        ]
    )


def rows_of(frame: Any) -> Counter[str]:
    return Counter(repr([round(x, 6) if isinstance(x, float) else x for x in row]) for row in frame.collect())


def direct(lake: Lake, query: str) -> Counter[str]:
    """The query itself over the newest snapshots, by Spark alone."""
    own = isolated(lake.spark)
    for topic in ("vt", "vu"):
        own.read.table(f"lake.topics.{topic}").createOrReplaceTempView(topic)
    for name in ("v_sums", "v_left"):
        own.sql(plain_query(VIEWS[name])).createOrReplaceTempView(name)
    return rows_of(own.sql(plain_query(query)))


def stored(lake: Lake, name: str) -> Counter[str]:
    """What the view's table says, folded."""
    own, view = isolated(lake.spark), lake.views.load(name)
    own.read.table(f"lake.views.{name}").createOrReplaceTempView("__states")
    return rows_of(own.sql(view.read))


def follow(lake: Lake) -> dict[str, str]:
    """Refresh all views, compare each with its query, and tell by which method it followed."""
    methods = {}
    for name, query in VIEWS.items():
        done = {row["view"]: row["method"] for row in lake.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()}
        methods[name] = done[name]
        assert stored(lake, name) == direct(lake, query), name
    return methods


def test_life_of_views(lake: Lake) -> None:
    assert set(follow(lake).values()) == {"skip"}
    produce(lake, 200, 30)
    methods = follow(lake)
    assert {name for name, method in methods.items() if method == "full"} == RECOMPUTED
    lake.topic("vu").append([{"k": 6, "name": "n6"}, {"k": 2, "name": None}])
    assert "full" not in set(follow(lake).values())
    lake.sql("DELETE FROM vt WHERE id % 50 = 7")
    lake.sql("UPDATE vt SET d = d + 1, s = 'moved' WHERE id BETWEEN 60 AND 65")
    methods = follow(lake)
    assert {name for name, method in methods.items() if method == "full"} == RECOMPUTED
    for name in VIEWS:
        lake.sql(f"COMPACT MATERIALIZED VIEW {name}")
        assert not lake.views.load(name).signed
    assert set(follow(lake).values()) == {"skip"}
    lake.sql("DELETE FROM vu WHERE k = 2")
    produce(lake, 230, 20)
    follow(lake)
    for name in VIEWS:
        found = lake.sql(f"VERIFY MATERIALIZED VIEW {name}").info
        assert found["verified"]["equal"] if "verified" in found else True, (name, found)


def test_a_full_refresh_and_a_sample_agree(lake: Lake) -> None:
    produce(lake, 300, 5)
    lake.sql("REFRESH MATERIALIZED VIEW v_sums FULL VERIFY")
    assert stored(lake, "v_sums") == direct(lake, VIEWS["v_sums"])
    lake.sql("VERIFY MATERIALIZED VIEW v_sums SAMPLE 3")


def test_verification_finds_damage(lake: Lake) -> None:
    lake.sql("CREATE MATERIALIZED VIEW v_damaged AS SELECT id, s FROM vt WHERE id < 10 WITH (refresh = 'manual')")
    view = lake.views.load("v_damaged")
    lake.spark.sql("DELETE FROM lake.views.v_damaged WHERE id = 4")
    outcome = lake.view_room.upkeep.verify("v_damaged")
    assert not outcome.equal
    assert outcome.missing == 1
    assert outcome.examples[0] == 'only in the query: {"id":4,"s":"s1"}'
    assert view.name == outcome.view
    lake.sql("DROP MATERIALIZED VIEW v_damaged")


def test_replaced_views_are_swapped_at_once(lake: Lake) -> None:
    lake.sql("CREATE MATERIALIZED VIEW v_swap AS SELECT g, COUNT(*) AS c FROM vt GROUP BY g WITH (refresh = 'manual')")
    lake.sql("CREATE MATERIALIZED VIEW v_child AS SELECT SUM(c) AS n FROM v_swap WITH (refresh = 'manual')")
    first = lake.views.load("v_swap").snapshot_id
    lake.sql(
        "CREATE OR REPLACE MATERIALIZED VIEW v_swap AS SELECT s, COUNT(*) AS c FROM vt GROUP BY s "
        "WITH (refresh = 'manual')"
    )
    assert stored(lake, "v_swap") == direct(lake, "SELECT s, COUNT(*) AS c FROM vt GROUP BY s")
    assert lake.views.load("v_swap").snapshot_id != first
    done = lake.sql("REFRESH MATERIALIZED VIEW v_child").rows()[-1]
    assert done["method"] == "full"
    assert "replaced" in done["reason"]
    lake.sql("CREATE OR REPLACE MATERIALIZED VIEW v_swap AS SELECT s FROM vt WITH (refresh = 'manual')")
    with pytest.raises(ViewBroken, match="v_child"):
        lake.sql("REFRESH MATERIALIZED VIEW v_child")
    lake.sql("DROP MATERIALIZED VIEW v_child")
    lake.sql("DROP MATERIALIZED VIEW v_swap")


def test_a_stale_committer_is_fenced(lake: Lake) -> None:
    from headwater.views.refresh import run_refresh

    upkeep = lake.view_room.upkeep
    produce(lake, 400, 5)
    lake.flush("vt")
    late = upkeep.plan("v_sums")
    upkeep.refresh("v_sums")
    with pytest.raises(StaleCommit):
        run_refresh(late, upkeep.views.tables, lake.spark, upkeep.cache)
    assert stored(lake, "v_sums") == direct(lake, VIEWS["v_sums"])


def test_other_engines_read_plain_rows(lake: Lake) -> None:
    upkeep = lake.view_room.upkeep
    upkeep.refresh("v_left")
    frame = lake.spark.sql("SELECT id, name FROM lake.mv.v_left")
    assert rows_of(frame) == stored(lake, "v_left")


@pytest.mark.parametrize(
    ("query", "error", "text"),
    [
        ("SELECT id, RAND() AS r FROM vt", InvalidStatement, "rand"),
        ("SELECT 1 AS one", InvalidStatement, "reads no topic"),
    ],
)
def test_refused_queries(lake: Lake, query: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        lake.sql(f"CREATE MATERIALIZED VIEW v_refused AS {query}")
    assert "v_refused" not in lake.views.names()


def test_incremental_only(lake: Lake) -> None:
    with pytest.raises(ViewNotIncremental, match="v_opaque"):
        lake.sql("ALTER MATERIALIZED VIEW v_opaque SET (refresh = 'incremental')")
    query = "SELECT id, RANK() OVER (ORDER BY v) AS r FROM vt"
    with pytest.raises(ViewNotIncremental, match="v_never") as refused:
        lake.sql(f"CREATE MATERIALIZED VIEW v_never AS {query} WITH (refresh = 'incremental')")
    assert "PARTITION BY" in str(refused.value.detail)
    lake.sql("CREATE MATERIALIZED VIEW v_total AS SELECT MAX(v) AS m FROM vt WITH (refresh = 'incremental')")
    produce(lake, 500, 2)
    assert lake.sql("REFRESH MATERIALIZED VIEW v_total").rows()[-1]["method"] == "append"
    lake.sql("DELETE FROM vt WHERE id = 501")
    with pytest.raises(ViewNotIncremental, match="v_total"):
        lake.sql("REFRESH MATERIALIZED VIEW v_total")
    lake.sql("DROP MATERIALIZED VIEW v_total")


def test_now_moves_the_bound(lake: Lake) -> None:
    from datetime import UTC, datetime

    upkeep = lake.view_room.upkeep
    clock = upkeep._now
    query = "SELECT s, COUNT(*) AS c FROM vt WHERE ts > NOW() - INTERVAL '5' DAY AND ts <= NOW() GROUP BY s"
    try:
        for day in (8, 10, 11, 18):
            upkeep._now = lambda day=day: datetime(2026, 1, day, 12, tzinfo=UTC)
            if day == 8:
                lake.sql(f"CREATE MATERIALIZED VIEW v_now AS {query} WITH (refresh = 'manual')")
            else:
                done = upkeep.refresh("v_now")[-1]
                assert done.method == "append"
            fixed = query.replace("NOW()", f"TIMESTAMP '2026-01-{day:02d} 12:00:00'")
            assert stored(lake, "v_now") == direct(lake, fixed)
    finally:
        upkeep._now = clock
        lake.sql("DROP MATERIALIZED VIEW IF EXISTS v_now")


FRESH_ON_DUCKDB = ("v_sums", "v_filter", "v_join", "v_hours")
FRESH_ON_SPARK = ("v_bounds", "v_left", "v_first", "v_over_view", "v_distinct")
"""Sketches and collections, what keys have to be found for, and views on views."""


def test_fresh_reads_equal_a_refresh(lake: Lake) -> None:
    def bag(text: str, **options: Any) -> Counter[str]:
        rows = lake.sql(text, **options).rows()
        return Counter(
            repr(sorted((k, round(v, 6) if isinstance(v, float) else v) for k, v in r.items())) for r in rows
        )

    for name in (*FRESH_ON_DUCKDB, *FRESH_ON_SPARK):
        lake.sql(f"REFRESH MATERIALIZED VIEW {name}")
    produce(lake, 600, 3)
    lake.topic("vu").append([{"k": 5, "name": "n5"}])
    lake.flush()
    produce(lake, 603, 4)  # stays in the log
    lake.topic("vu").append([{"k": 0, "name": "again"}])
    text, fresh = "SELECT * FROM mv('{}', fresh => true)", {}
    for name in (*FRESH_ON_DUCKDB, *FRESH_ON_SPARK):
        fresh[name] = bag(text.format(name))
        assert fresh[name] == bag(text.format(name), engine="spark"), name
        plan = lake.sql(f"EXPLAIN ANALYZE {text.format(name)}").info["plan"]
        assert plan["engine"] == ("duckdb" if name in FRESH_ON_DUCKDB else "spark"), (name, plan["reason"])
    for name, found in fresh.items():
        before = bag(f"SELECT * FROM {name}")
        lake.sql(f"REFRESH MATERIALIZED VIEW {name}")
        assert found == bag(f"SELECT * FROM {name}"), name
        assert found != before or name in ("v_first", "v_distinct"), name  # what they show was there before
        assert found == bag(text.format(name)), name  # nothing is unseen
