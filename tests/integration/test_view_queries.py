"""Queries over materialized views: both engines give one answer, which is that of the query that defines the view."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue

from headwater.catalog.topics import Topic
from headwater.catalog.views import View
from headwater.engine import Lake
from headwater.errors import (
    Corrupt,
    HeadwaterError,
    InvalidStatement,
    QueryFailed,
    SnapshotGone,
    StatementNotAllowed,
    TopicNotFound,
    ViewNotFound,
)
from headwater.serving.query import Queries
from headwater.spark.session import SparkEngine
from headwater.sql.statements import Explain, Query
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.seal import KEY
from headwater.storage.writer import local_path


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare = _beside("engines_compare")

pytestmark = pytest.mark.spark

DUCK = {
    "vq_merges": "SELECT g, count(*) AS c, count(d) AS cd, sum(k) AS sk, sum(g) AS sg, sum(d) AS sd, sum(v) AS sv, "
    "sum(f) AS sf, min(s) AS ms, max(ts) AS mt, min(day) AS md, count_if(b) AS ci FROM vq_t GROUP BY g",
    "vq_means": "SELECT g, s, avg(d) AS ad, avg(k) AS ak, avg(v) AS av, avg(f) AS af, bool_and(b) AS ba, "
    "bool_or(b) AS bo FROM vq_t GROUP BY g, s",
    "vq_distinct": "SELECT g, count(DISTINCT k) AS dk, count(DISTINCT s, b) AS ds, sum(DISTINCT k) AS sk, sum(d) AS sd "
    "FROM vq_t GROUP BY g",
    "vq_whole": "SELECT count(*) AS c, sum(d) AS sd, max(day) AS md FROM vq_t",
    "vq_having": "SELECT g, s, sum(d) / count(*) AS r, sum(k) + 1 AS sk FROM vq_t GROUP BY g, s HAVING sum(d) > 900",
    "vq_keys": "SELECT DISTINCT g, s FROM vq_t",
    "vq_cut": "SELECT s, g, count(*) AS c FROM vq_t GROUP BY s, g ORDER BY c DESC, s, g LIMIT 4",
    "vq_joined": "SELECT u.name, sum(t.d) AS total FROM vq_t t JOIN vq_u u ON t.k = u.k GROUP BY u.name",
    "vq_rollup": "SELECT g, s, count(*) AS c, grouping_id() AS gi FROM vq_t GROUP BY ROLLUP (g, s)",
    "vq_rows": "SELECT id, s, d, ts, day, b, v FROM vq_t WHERE k = 3",
    "vq_latest": "SELECT id, g FROM (SELECT id, g, row_number() OVER (PARTITION BY k ORDER BY id DESC) AS rn "
    "FROM vq_t) WHERE rn = 1",
    "vq_perhaps": "SELECT t.id, t.v, u.name FROM vq_t t LEFT JOIN vq_u u ON t.k = u.k WHERE t.id < 200",
    "vq_matched": "SELECT t.id, t.g, u.name FROM vq_t t JOIN vq_u u ON t.k = u.k",
}
SPARK = {
    "vq_spread": "SELECT g, count(*) AS c, stddev(v) AS sv FROM vq_t GROUP BY g",
    "vq_sketch": "SELECT s, approx_count_distinct(k) AS n FROM vq_t GROUP BY s",
}
VARIANTS = {
    "vq_merges": [
        "SELECT * FROM {v} WHERE g = 3",
        "SELECT c, ms FROM {v} WHERE g IN (1, 4) OR g IS NULL",
        "SELECT sum(c) AS n, min(mt) AS mt, max(sd) AS sd FROM {v}",
        "SELECT x.g, x.sk + y.sk AS s FROM {v} x JOIN {v} y ON x.g = y.g AND y.ci > 10",
        "SELECT g, sv FROM {v} WHERE g IN (SELECT g FROM {v} WHERE c > 190) ORDER BY sv DESC LIMIT 2",
        "WITH w AS (SELECT g % 2 AS odd, c FROM {v}) SELECT odd, sum(c) AS c FROM w GROUP BY odd",
        "SELECT g FROM {v} WHERE md < DATE '2026-01-02' UNION ALL SELECT g FROM {v} WHERE g = 0",
    ],
    "vq_means": [
        "SELECT * FROM {v} WHERE g = 2 AND s = 's1'",
        "SELECT s, count(*) AS n, max(ad) AS m FROM {v} GROUP BY s",
    ],
    "vq_distinct": ["SELECT g, dk FROM {v} WHERE g >= 3", "SELECT sum(ds) AS d FROM {v}"],
    "vq_whole": ["SELECT c FROM {v}", "SELECT count(*) AS n FROM {v}"],
    "vq_rows": [
        "SELECT id FROM {v} WHERE id < 100 AND b",
        "SELECT count(*) AS n FROM {v}",
        "SELECT max(ts) AS m FROM {v}",
    ],
    "vq_latest": ["SELECT id FROM {v} WHERE g = 2", "SELECT g, count(*) AS n FROM {v} GROUP BY g"],
    "vq_spread": ["SELECT sv FROM {v} WHERE g = 1"],
}
TYPES = (
    "id BIGINT NOT NULL, g INT, k BIGINT, v DOUBLE, f FLOAT, d DECIMAL(12,2), s STRING, ts TIMESTAMP, b BOOLEAN, "
    "day DATE"
)


def rows(start: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "g": i % 5 if i % 11 else None,
            "k": i % 7 if i % 13 else None,
            "v": i * 0.5 if i % 17 else None,
            "f": i * 0.25,
            "d": f"{i % 100}.25" if i % 9 else None,
            "s": f"s{i % 3}",
            "ts": f"2026-01-{1 + i % 20:02d}T0{i % 10}:30:00Z",
            "b": i % 2 == 0 if i % 19 else None,
            "day": f"2026-01-{1 + i % 20:02d}",
        }
        for i in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def lake(spark: Any, spark_lake: Path) -> Iterator[Lake]:
    """Views that were built and then refreshed, some of them twice and the last time after rows were deleted."""
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as opened:
        opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        opened.sql(f"CREATE TOPIC vq_t ({TYPES})")
        opened.sql("CREATE TOPIC vq_u (k BIGINT NOT NULL, name STRING)")
        opened.topic("vq_u").append([{"k": k, "name": f"n{k % 3}"} for k in range(5)])
        opened.topic("vq_t").append(rows(0, 1000))
        for name, query in (DUCK | SPARK).items():
            opened.sql(f"CREATE MATERIALIZED VIEW {name} WITH (refresh = 'manual') AS {query}").rows()
        for start, stale in ((1000, ["vq_whole", "vq_matched", "vq_merges"]), (1040, [*DUCK, *SPARK])):
            opened.topic("vq_t").append(rows(start, 40))
            opened.flush("vq_t")
            if start == 1040:
                opened.sql("DELETE FROM vq_t WHERE id < 100 AND id % 10 = 3")
            for name in stale:
                opened.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()
        yield opened
        for name in DUCK | SPARK:
            opened.sql(f"DROP MATERIALIZED VIEW {name}")
        for name in ("vq_t", "vq_u"):
            opened.sql(f"DROP TOPIC {name}")


def answer(lake: Lake, text: str, engine: str) -> pa.Table:
    return lake.sql(text, engine=engine).arrow()


def assert_alike(left: pa.Table, right: pa.Table) -> None:
    assert compare.difference(left, right, ordered=False) is None


CASES = [(name, text) for name in DUCK | SPARK for text in ("SELECT * FROM {v}", *VARIANTS.get(name, ()))]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_view_is_its_query_on_every_engine(lake: Lake, name: str, text: str) -> None:
    defined = answer(lake, text.format(v=f"({(DUCK | SPARK)[name]})"), "spark")
    by_spark = answer(lake, text.format(v=name), "spark")
    assert defined.num_rows > 0
    assert_alike(defined, by_spark)
    assert by_spark.column_names == defined.column_names
    if name in DUCK or settled(lake, name):
        assert_alike(by_spark, answer(lake, text.format(v=name), "duckdb"))
    else:
        assert lake.sql("EXPLAIN " + text.format(v=name)).info["plan"]["engine"] == "spark"


def settled(lake: Lake, name: str) -> bool:
    """Whether nothing was appended to the view, so that the values of its aggregates are there to be read."""
    view = lake.views.load(name)
    files = plan_scan(view.table, view.snapshot_id, AlwaysTrue(), ManifestCache()).files
    return view.kind == "states" and all(map(view.is_base, files))


def test_spreads_are_merged_by_spark_and_read_by_anyone(lake: Lake) -> None:
    lake.sql("CREATE TOPIC vq_floats (g INT, v DOUBLE)")
    lake.topic("vq_floats").append([{"g": n % 3, "v": n / 7} for n in range(60)])
    query = "SELECT g, stddev(v) AS s, avg(v) AS a FROM vq_floats GROUP BY g"
    lake.sql(f"CREATE MATERIALIZED VIEW vq_floating AS {query} WITH (refresh = 'manual', compact = 'off')")
    engines = []
    for step in ("created", "appended", "compacted"):
        if step == "appended":
            lake.topic("vq_floats").append([{"g": 1, "v": 100.5}])
            lake.sql("REFRESH MATERIALIZED VIEW vq_floating")
        elif step == "compacted":
            lake.sql("COMPACT MATERIALIZED VIEW vq_floating")
        engines.append(lake.sql("EXPLAIN SELECT * FROM vq_floating").info["plan"]["engine"])
        found = answer(lake, "SELECT g, round(s, 9) AS s, round(a, 9) AS a FROM vq_floating", "auto")
        assert_alike(found, answer(lake, f"SELECT g, round(s, 9) AS s, round(a, 9) AS a FROM ({query})", "spark"))
    assert engines == ["duckdb", "spark", "duckdb"]
    lake.sql("DROP MATERIALIZED VIEW vq_floating")
    lake.sql("DROP TOPIC vq_floats")


def test_a_view_goes_by_three_names(lake: Lake) -> None:
    expected = lake.sql("SELECT * FROM vq_whole").rows()
    for name in ("mv('vq_whole')", "views.vq_whole", "VQ_Whole", "`vq_whole` AS x"):
        for engine in ("duckdb", "spark"):
            assert answer(lake, f"SELECT * FROM {name}", engine).to_pylist() == expected


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_views_and_topics_meet_in_one_query(lake: Lake, engine: str) -> None:
    text = "SELECT v.g, v.c, count(*) AS n FROM vq_merges v JOIN vq_t t ON v.g = t.g WHERE v.g = 1 GROUP BY v.g, v.c"
    (row,) = answer(lake, text, engine).to_pylist()
    assert row["c"] == row["n"] > 100


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("SELECT * FROM vq_merge", TopicNotFound, 'topic or view "vq_merge" does not exist'),
        ("SELECT * FROM mv('vq_merge')", ViewNotFound, 'materialized view "vq_merge" does not exist'),
        ("SELECT * FROM mv('vq_t')", ViewNotFound, 'materialized view "vq_t" does not exist'),
        ("SELECT * FROM topic('vq_keys')", TopicNotFound, 'topic "vq_keys" does not exist'),
        ("SELECT __rows FROM vq_merges", InvalidStatement, 'column "__rows" does not exist'),
    ],
)
def test_what_is_not_there_is_told_without_spark(
    lake: Lake, text: str, error: type[HeadwaterError], message: str
) -> None:
    with pytest.raises(error) as told:
        lake.sql(text)
    assert told.value.message == message
    assert type(told.value) is error


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM __states",
        "SELECT * FROM lake.views.vq_merges",
        "SELECT __rows FROM vq_merges",
        "SELECT * FROM `views.vq_merges`",
    ],
)
def test_states_are_out_of_reach_on_spark(lake: Lake, text: str) -> None:
    with pytest.raises((StatementNotAllowed, InvalidStatement, TopicNotFound, HeadwaterError)) as refused:
        lake.sql(text, engine="spark").rows()
    assert refused.value.status in (400, 403, 404)


def snapshots(of: View | Topic) -> list[Any]:
    return sorted(of.table.metadata.snapshots, key=lambda each: each.timestamp_ms)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_view_is_read_at_any_snapshot(lake: Lake, engine: str) -> None:
    first, second, *_ = snapshots(lake.views.load("vq_whole"))
    at = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC)
    for clause, count in (
        (f"VERSION AS OF {first.snapshot_id}", 1000),
        (f"FOR SYSTEM_VERSION AS OF {second.snapshot_id} AS x", 1040),
        (f"TIMESTAMP AS OF '{at.isoformat()}'", 1040),
        ("", 1070),
    ):
        assert answer(lake, f"SELECT c FROM vq_whole {clause}", engine).to_pylist() == [{"c": count}]
    both = f"SELECT n.c - o.c AS c FROM vq_whole n CROSS JOIN vq_whole VERSION AS OF {first.snapshot_id} AS o"
    assert answer(lake, both, engine).to_pylist() == [{"c": 70}]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_topic_is_read_at_any_snapshot(lake: Lake, engine: str) -> None:
    ids = [each.snapshot_id for each in snapshots(lake.topics.load("vq_t"))]
    found = [answer(lake, f"SELECT count(*) AS n FROM vq_t VERSION AS OF {each}", engine).to_pylist() for each in ids]
    assert found == [[{"n": 1000}], [{"n": 1040}], [{"n": 1080}], [{"n": 1070}]]


def test_a_snapshot_that_is_not_there_is_told(lake: Lake) -> None:
    oldest, *_, newest = (each.snapshot_id for each in snapshots(lake.views.load("vq_whole")))
    with pytest.raises(SnapshotGone, match='snapshot 5 of materialized view "vq_whole" does not exist') as gone:
        lake.sql("SELECT * FROM vq_whole VERSION AS OF 5")
    assert (gone.value.detail or "").startswith(f"It has expired, or never was. The newest are {newest} of 2")
    with pytest.raises(SnapshotGone, match="has no snapshot as old as 2020-01-01 00:00:00 UTC") as old:
        lake.sql("SELECT * FROM mv('vq_whole') TIMESTAMP AS OF '2020-01-01'")
    assert (old.value.detail or "").startswith(f"The oldest is {oldest} of 2")
    with pytest.raises(SnapshotGone, match='topic "vq_t"'):
        lake.sql("SELECT * FROM vq_t TIMESTAMP AS OF '2020-01-01'")


def test_explain_tells_what_is_read_of_a_view(lake: Lake) -> None:
    view = lake.views.load("vq_matched")
    at = {source.name: str(snapshot) for source, snapshot in view.position.snapshots.items()}
    told = lake.sql("EXPLAIN SELECT id FROM vq_matched WHERE id >= 1060")
    lines = [row["plan"] for row in told]
    assert lines[1] == f"scan vq_matched: view, snapshot {view.snapshot_id} of vq_t@{at['vq_t']}, vq_u@{at['vq_u']}"
    assert lines[2].startswith("  files: 1 of 3 files, 2 skipped by min/max statistics; ")
    assert lines[3:6] == ["  columns: id, g, name, __weight", "  filter: id >= 1060", "  fold: rows"]
    (scan,) = told.info["plan"]["scans"]
    assert (scan["view"], scan["fold"], scan["sources"], scan["tail"]) == ("vq_matched", "rows", at, None)
    assert (scan["files"], scan["files_total"], scan["skipped_by_statistics"]) == (1, 3, 2)


def test_a_condition_on_a_key_skips_files_of_states(lake: Lake) -> None:
    lake.sql("CREATE TOPIC vq_h (id BIGINT, n INT)")
    lake.sql(
        "CREATE MATERIALIZED VIEW vq_hundreds WITH (refresh = 'manual', compact = 'off') AS "
        "SELECT id div 100 AS h, count(*) AS c, sum(n) AS n FROM vq_h GROUP BY 1"
    ).rows()
    for start in range(0, 500, 100):
        lake.topic("vq_h").append([{"id": start + each, "n": each} for each in range(100)])
        lake.sql("REFRESH MATERIALIZED VIEW vq_hundreds").rows()
    seen = {}
    for engine in ("auto", "spark"):
        query = Query("SELECT * FROM vq_hundreds WHERE h = 3 AND c > 1", engine=engine)
        (scan,) = lake.execute(Explain(query)).info["plan"]["scans"]
        seen[engine] = (scan["files"], scan["skipped_by_statistics"], scan["rows"], scan["held"])
        assert lake.execute(query).rows() == [{"h": 3, "c": 100, "n": 4950}]
    assert seen == {"auto": (0, 0, 0, 5), "spark": (1, 4, 1, 0)}  # what was appended is small, and held in memory
    lake.sql("DROP MATERIALIZED VIEW vq_hundreds")
    lake.sql("DROP TOPIC vq_h")


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_windows_are_rewritten_in_queries(lake: Lake, engine: str) -> None:
    text = (
        "SELECT TUMBLE_START(ts, INTERVAL '1 day'), count(*) AS n FROM vq_t "
        "WHERE id < 40 GROUP BY TUMBLE(ts, INTERVAL '1 day') ORDER BY 1 LIMIT 2"
    )
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)]
    assert answer(lake, text, engine).to_pylist() == [{"window_start": day, "n": 2} for day in days]


def queries(lake: Lake, **hooks: Any) -> Queries:
    return Queries(
        lake.topics,
        lake.views,
        lake.log,
        lake._duck,
        lambda: lake.spark,
        lake.metrics,
        ManifestCache(),
        duckdb_max_bytes=2**30,
        max_rows=1000,
        timeout=60,
        **hooks,
    )


def test_views_are_announced_once_before_they_are_read(lake: Lake) -> None:
    told: list[list[str]] = []

    def before_read(views: Sequence[View]) -> None:
        told.append([view.name for view in views])

    asked = queries(lake, before_read=before_read)
    old = snapshots(lake.views.load("vq_cut"))[0].snapshot_id
    text = (
        "SELECT count(*) AS n FROM vq_keys JOIN mv('vq_whole') JOIN vq_keys AS k JOIN vq_t AS t ON t.id = 1 "
        f"JOIN vq_cut VERSION AS OF {old} AS c"
    )
    assert asked.run(Query(text)).rows()[0]["n"] > 0
    assert told == [["vq_keys", "vq_whole"]]
    asked.explain(Query(text))
    assert len(told) == 1
    asked.explain(Query("SELECT * FROM vq_keys"), analyze=True)
    assert told[1:] == [["vq_keys"]]


def test_a_view_is_read_fresh_by_whoever_can(lake: Lake) -> None:
    text = "SELECT c FROM mv('vq_whole', fresh => true) WHERE c > 0"
    with pytest.raises(QueryFailed, match='materialized view "vq_whole" cannot be read fresh here'):
        queries(lake).run(Query(text))
    fresh = queries(
        lake, fresh_frame=lambda session, name: nullcontext(session.sql(f"SELECT 7L AS c, '{name}' AS name"))
    )
    assert fresh.run(Query(text)).rows() == [{"c": 7}]
    reason = fresh.explain(Query(text)).info["plan"]["reason"]
    assert reason.startswith('what view "vq_whole" has not consumed is computed by Spark: it takes more than appending')
    with pytest.raises(ViewNotFound):
        fresh.run(Query("SELECT * FROM mv('vq_nothing', fresh => true)"))
    with pytest.raises(QueryFailed, match="cannot run on DuckDB"):
        fresh.run(Query(text, engine="duckdb"))


def test_damage_in_what_was_appended_is_never_answered_from(lake: Lake) -> None:
    lake.sql("CREATE TOPIC vq_d (g INT, n BIGINT)")
    lake.sql(
        "CREATE MATERIALIZED VIEW vq_damaged WITH (refresh = 'manual', compact = 'off') AS "
        "SELECT g, sum(n) AS n, max(n) AS most FROM vq_d GROUP BY g"
    )
    lake.topic("vq_d").append([{"g": n % 50, "n": n} for n in range(200)])
    lake.sql("REFRESH MATERIALIZED VIEW vq_damaged")
    query, view = Query("SELECT * FROM vq_damaged ORDER BY g"), lake.views.load("vq_damaged")
    expected = queries(lake).run(query).rows()
    assert len(expected) == 50
    files = plan_scan(view.table, view.snapshot_id, AlwaysTrue(), ManifestCache()).files
    (appended,) = [local_path(file.file_path) for file in files if not view.is_base(file)]
    whole = appended.read_bytes()
    key = whole.rindex(KEY.encode())
    for bit in random.Random(8).sample(range(len(whole) * 8), 60):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        appended.write_bytes(broken)
        # Without the key of its checksums, a file is read as another program's, by the checksums of its pages.
        unsealed = key <= bit // 8 < key + len(KEY)
        with nullcontext() if unsealed else pytest.raises(Corrupt):
            assert queries(lake).run(query).rows() == expected
    appended.write_bytes(whole)
    assert queries(lake).run(query).rows() == expected
    lake.sql("DROP MATERIALIZED VIEW vq_damaged")
    lake.sql("DROP TOPIC vq_d")
