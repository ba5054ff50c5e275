"""Views over values and types at which a refresh could go wrong: each equals its query after every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import QueryFailed
from headwater.spark.session import SparkEngine

pytestmark = pytest.mark.spark

NUMBERS: Mapping[str, Sequence[Any]] = {
    "INT": (1, 2, 3),
    "BIGINT": (1, 2, 9007199254740993),
    "STRING": ("1", "02", " 2"),
    "DECIMAL(20,2)": ("1.00", "2.00", "2.50"),
    "DOUBLE": (1.0, 2.0, 9007199254740992.0),
}
DAYS: Mapping[str, Sequence[Any]] = {
    "DATE": ("2026-01-01", "1969-12-31", "9999-12-31"),
    "TIMESTAMP": ("2026-01-01T00:00:00Z", "1969-12-31T00:00:00Z", "9999-12-31T00:00:00Z"),
    "TIMESTAMP_NTZ": ("2026-01-01T00:00:00", "1969-12-31T00:00:00", "9999-12-31T12:00:00"),
    "STRING": ("2026-01-01", "1969-12-31", "9999-12-31"),
}
PAIRS = (
    ("DATE", "TIMESTAMP", DAYS),
    ("DATE", "TIMESTAMP_NTZ", DAYS),
    ("DATE", "STRING", DAYS),
    ("STRING", "TIMESTAMP", DAYS),
    ("INT", "STRING", NUMBERS),
    ("BIGINT", "DECIMAL(20,2)", NUMBERS),
    ("BIGINT", "DOUBLE", NUMBERS),
    ("INT", "BIGINT", NUMBERS),
)
JOINS = {
    "inner": "SELECT a.id AS ai, b.id AS bi FROM {a} a JOIN {b} b ON a.k = b.k",
    "left": "SELECT a.id AS ai, b.id AS bi FROM {a} a LEFT JOIN {b} b ON a.k = b.k",
    "not exists": "SELECT a.id AS ai FROM {a} a WHERE NOT EXISTS (SELECT 1 FROM {b} b WHERE b.k = a.k)",
    "in": "SELECT b.id AS bi FROM {b} b WHERE b.k IN (SELECT k FROM {a})",
}


@pytest.fixture(scope="module")
def lake(spark: Any, spark_lake: Path) -> Iterator[Lake]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as opened:
        opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        yield opened


class Views:
    """Topics and views of one test, which are dropped at its end."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.queries: dict[str, str] = {}
        self.topics: list[str] = []

    def topic(self, name: str, columns: str) -> None:
        self.lake.sql(f"CREATE TOPIC {name} ({columns})")
        self.topics.append(name)

    def append(self, name: str, *rows: Mapping[str, Any]) -> None:
        """The rows, in a file of their own."""
        self.lake.topic(name).append(list(rows))
        self.lake.flush(name)

    def view(self, name: str, query: str, refresh: str = "incremental") -> None:
        self.lake.sql(f"CREATE MATERIALIZED VIEW {name} AS {query} WITH (refresh = 'manual {refresh}')")
        self.queries[name] = query

    def follow(self) -> None:
        """Refresh every view and compare it with its query, signs of zeros included."""
        for name, query in self.queries.items():
            done = {row["view"]: row["method"] for row in self.lake.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()}
            assert done[name] in ("append", "keys", "skip"), (name, done)
            assert self.rows(f"SELECT * FROM {name}") == self.rows(query), name

    def rows(self, query: str) -> Counter[str]:
        return Counter(repr(list(row.values())) for row in self.lake.sql(query).rows())

    def drop(self) -> None:
        for name in reversed(self.queries):
            self.lake.sql(f"DROP MATERIALIZED VIEW {name}")
        for name in self.topics:
            self.lake.sql(f"DROP TOPIC {name}")


@pytest.fixture
def views(lake: Lake) -> Iterator[Views]:
    made = Views(lake)
    yield made
    made.drop()


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[f"{left}={right}" for left, right, _ in PAIRS])
def test_joins_of_different_types(views: Views, number: int) -> None:
    left, right, values = PAIRS[number]
    tables = {"a": f"ty_a{number}", "b": f"ty_b{number}"}
    for table, of in ((tables["a"], left), (tables["b"], right)):
        views.topic(table, f"id INT, k {of}")
        views.append(table, {"id": 0, "k": values[of][0]}, {"id": 1, "k": None})
        views.append(table, {"id": 2, "k": values[of][1]})
    for kind in JOINS if number == 0 else ["left"]:
        views.view(f"ty_v{number}_{kind.replace(' ', '_')}", JOINS[kind].format(**tables))
    views.append(tables["a"], {"id": 10, "k": values[left][0]}, {"id": 11, "k": values[left][2]})
    views.follow()
    views.append(tables["b"], {"id": 20, "k": values[right][1]}, {"id": 21, "k": values[right][2]})
    views.lake.sql(f"DELETE FROM {tables['b']} WHERE id = 0")
    views.follow()


def test_the_plan_says_what_is_compared_in_another_type(views: Views) -> None:
    views.topic("ty_p", "id INT, k DATE")
    views.topic("ty_q", "id INT, k TIMESTAMP")
    views.append("ty_p", {"id": 1, "k": "2026-01-01"})
    views.append("ty_q", {"id": 1, "k": "2026-01-01T00:00:00Z"})
    views.view("ty_pq", "SELECT p.id AS a, q.id AS b FROM ty_p p JOIN ty_q q ON p.k = q.k")
    views.append("ty_q", {"id": 2, "k": "2026-01-01T00:00:00Z"})
    plan = "\n".join(row["plan"] for row in views.lake.sql("EXPLAIN REFRESH ty_pq").rows())
    assert "read ty_p, as it is now: id, k; k is compared as TIMESTAMP, so no file is skipped by it" in plan
    views.append("ty_p", {"id": 2, "k": "2026-01-02"})
    views.follow()


def test_unions_of_different_types(views: Views) -> None:
    views.topic("ty_d", "id INT, k DATE")
    views.topic("ty_t", "id INT, k TIMESTAMP")
    for number, day in enumerate(("0001-01-01", "2026-01-02", "9999-12-31")):
        views.append("ty_d", {"id": number, "k": day})
        views.append("ty_t", {"id": number, "k": f"{day}T12:00:00Z"})
    both = "(SELECT id, k FROM ty_d UNION ALL SELECT id, k FROM ty_t)"
    views.view("ty_max", f"SELECT id, max(k) AS m, min(k) AS n FROM {both} GROUP BY id")
    views.view("ty_by", f"SELECT k, count(*) AS n FROM {both} GROUP BY k")
    views.lake.sql("DELETE FROM ty_t WHERE id > 0")
    views.follow()
    views.lake.sql("DELETE FROM ty_d WHERE id = 2")
    views.append("ty_d", {"id": 7, "k": "2026-01-02"})
    views.follow()


def test_sums_at_the_limits(views: Views) -> None:
    views.topic("ty_s", "id INT, g INT, w DECIMAL(38,18), l BIGINT")
    rows: list[dict[str, Any]] = [
        {"id": 1, "g": 1, "w": "12345678901234567890.123456789012345678", "l": -(2**63)},
        {"id": 2, "g": 1, "w": "0.000000000000000001", "l": 2**63 - 1},
        {"id": 3, "g": 1, "w": "-9999999999999999999.999999999999999999", "l": -5},
        {"id": 4, "g": 2, "w": None, "l": 2**63 - 1},
    ]
    views.append("ty_s", *rows)
    views.view("ty_sum", "SELECT g, sum(l) AS s, count(*) AS n FROM ty_s GROUP BY g")
    views.view("ty_wide", "SELECT g, sum(w) AS s FROM ty_s GROUP BY g")
    views.lake.sql("DELETE FROM ty_s WHERE id = 3")
    views.follow()
    views.lake.sql("DELETE FROM ty_s WHERE id = 1")
    views.follow()
    views.append("ty_s", {"id": 5, "g": 2, "w": "1.5", "l": -(2**63)})
    views.lake.sql("DELETE FROM ty_s WHERE id = 4")
    views.follow()
    # Too large for its type, for the view as for the query; and well again when the row is gone.
    views.append("ty_s", {"id": 6, "g": 2, "w": "1.5", "l": -1})
    views.lake.sql("REFRESH MATERIALIZED VIEW ty_sum")
    for text in ("SELECT * FROM ty_sum", views.queries["ty_sum"]):
        with pytest.raises(QueryFailed, match="overflow"):
            views.rows(text)
    views.lake.sql("DELETE FROM ty_s WHERE id = 6")
    views.follow()


def test_averages_at_the_limits_of_bigint_are_exact_and_pass_verification(views: Views) -> None:
    views.topic("ty_av", "id INT, b BIGINT")
    views.append("ty_av", {"id": 1, "b": 2**63 - 1}, {"id": 2, "b": 7})
    views.lake.sql("CREATE MATERIALIZED VIEW ty_avg AS SELECT id % 2 AS k, avg(b) AS a FROM ty_av GROUP BY id % 2")
    try:
        for batch in ([(3, -(2**63)), (4, -7)], [(5, 5), (6, None)]):
            views.append("ty_av", *({"id": id, "b": b} for id, b in batch))
            views.lake.sql("REFRESH MATERIALIZED VIEW ty_avg")
            verified = views.lake.sql("VERIFY MATERIALIZED VIEW ty_avg").rows()[0]
            assert verified["equal"], verified
        rows = views.lake.sql("SELECT * FROM ty_avg ORDER BY k").rows()
        assert rows == [{"k": 0, "a": 0.0}, {"k": 1, "a": 4 / 3}]
    finally:
        views.lake.sql("DROP MATERIALIZED VIEW ty_avg")


def test_sums_of_wide_decimals_whose_change_is_larger_than_their_type(views: Views) -> None:
    most = "9" * 38
    views.topic("ty_w", "id INT, g INT, x DECIMAL(38,0), y DECIMAL(37,2), z DECIMAL(28,4)")
    rows = [{"id": n, "g": n % 2, "x": most, "y": f"{most[:35]}.99", "z": f"{most[:24]}.9999"} for n in (1, 2)]
    views.append("ty_w", *rows)
    views.view("ty_ws", "SELECT g, sum(x) AS x, sum(y) AS y, sum(z) AS z FROM ty_w GROUP BY g")
    views.lake.sql(f"UPDATE ty_w SET x = -{most}, y = 0 - y, z = 0 - z WHERE g = 1")
    views.follow()
    views.lake.sql("DELETE FROM ty_w WHERE g = 0")
    views.follow()


def test_zeros_of_both_signs_in_a_partition(views: Views) -> None:
    nan = float("nan")
    views.lake.sql("CREATE TOPIC ty_pz (id INT, d DOUBLE, f FLOAT) PARTITIONED BY (d, f)")
    views.topics.append("ty_pz")
    views.append("ty_pz", {"id": 1, "d": 0.0, "f": -0.0}, {"id": 2, "d": -0.0, "f": 0.0}, {"id": 3, "d": nan, "f": nan})
    views.view("ty_zero", "SELECT id, d, f FROM ty_pz")
    views.append(
        "ty_pz", {"id": 4, "d": -0.0, "f": -0.0}, {"id": 5, "d": nan, "f": None}, {"id": 6, "d": nan, "f": nan}
    )
    views.follow()
    views.lake.sql("DELETE FROM ty_pz WHERE id = 2")
    views.follow()
    rows = views.lake.sql("SELECT id FROM ty_pz WHERE CAST(d AS STRING) = '-0.0'", engine="spark").rows()
    assert rows == [{"id": 4}]


def test_a_map_with_a_null_cannot_be_grouped_by_and_the_error_says_so(views: Views) -> None:
    views.topic("ty_mn", "m MAP<STRING, INT>")
    views.append("ty_mn", {"m": {"k": None, "a": 1}})
    with pytest.raises(QueryFailed, match="cannot sort maps that hold null values"):
        views.lake.sql("CREATE MATERIALIZED VIEW ty_mv AS SELECT m, count(*) AS n FROM ty_mn GROUP BY m")


def test_values_that_grouping_does_not_tell_apart(views: Views) -> None:
    views.topic("ty_z", "id INT, d DOUBLE, m MAP<STRING, INT>, r STRUCT<f: FLOAT, a: ARRAY<MAP<INT, DOUBLE>>>")
    zero = {"f": 0.0, "a": [{1: 0.0}, None]}
    views.append("ty_z", {"id": 1, "d": 0.0, "m": {"a": None, "b": 1}, "r": zero}, {"id": 2, "d": float("nan")})
    views.append("ty_z", {"id": 3, "d": -0.0, "m": {}, "r": None})
    views.view("ty_rows", "SELECT id, d, m, r FROM ty_z")
    views.view("ty_left", "SELECT x.id, x.d, y.m FROM ty_z x LEFT JOIN ty_z y ON x.id = y.id")
    views.view("ty_on", "SELECT id, -d AS d, m FROM ty_rows WHERE id < 9")
    views.follow()
    minus = "named_struct('f', CAST(-0.0D AS FLOAT), 'a', array(map(1, -0.0D), NULL))"
    views.lake.sql(f"UPDATE ty_z SET d = -0.0D, r = {minus} WHERE id = 1")
    views.follow()
    for name in views.queries:
        views.lake.sql(f"COMPACT MATERIALIZED VIEW {name}")
    views.follow()
    views.lake.sql("UPDATE ty_z SET d = 0.0D, m = map('a', NULL) WHERE id IN (1, 3)")
    views.follow()
    (verified,) = views.lake.sql("VERIFY MATERIALIZED VIEW ty_rows").rows()
    assert verified["equal"]


def test_groups_of_maps_recompute(views: Views) -> None:
    views.topic("ty_m", "id INT, m MAP<STRING, INT>")
    views.append("ty_m", {"id": 1, "m": {"a": 1}}, {"id": 2, "m": {"a": 1}})
    query = "SELECT m, count(*) AS n FROM ty_m GROUP BY m"
    views.view("ty_maps", query, refresh="auto")
    views.append("ty_m", {"id": 3, "m": {"a": 2}})
    (done,) = views.lake.sql("REFRESH MATERIALIZED VIEW ty_maps").rows()
    assert (done["method"], done["reason"]) == ("full", "it groups by a map, and two maps cannot be compared")
    assert views.rows("SELECT * FROM ty_maps") == views.rows(query)


def test_fresh_reads_of_correlated_subqueries_before_the_first_commit(views: Views) -> None:
    for name in ("ty_e", "ty_f"):
        views.topic(name, "id INT, k INT, v INT")
    largest = "(SELECT max(v) FROM ty_f f WHERE f.k = e.k)"
    queries = {
        "ty_e1": f"SELECT id, {largest} AS m FROM ty_e e",
        "ty_e2": f"SELECT id FROM ty_e e WHERE v >= {largest}",
    }
    for name, query in queries.items():
        views.view(name, query, refresh="auto")
    for topic in ("ty_e", "ty_f", "ty_f"):
        views.lake.topic(topic).append([{"id": 1, "k": 1, "v": 5}])
        for name, query in queries.items():
            assert views.rows(f"SELECT * FROM mv('{name}', fresh => true)") == views.rows(query), (topic, name)


def test_the_most_common_view_there_is(views: Views) -> None:
    views.topic("ty_sales", "timestamp TIMESTAMP, product_id INT, amount DECIMAL(10,2)")
    query = (
        "SELECT date_trunc('hour', timestamp) AS hour, product_id, SUM(amount), COUNT(*) "
        "FROM topic('ty_sales') GROUP BY 1, 2"
    )
    views.lake.sql(
        f"CREATE MATERIALIZED VIEW ty_hourly AS {query} WITH (refresh = 'incremental', interval = '5 minutes')"
    )
    views.queries["ty_hourly"] = query
    views.view("ty_months", "SELECT trunc(timestamp, 'month') AS month, max(amount) AS m FROM ty_sales GROUP BY ALL")
    for hour in (9, 10, 10):
        views.append("ty_sales", {"timestamp": f"2026-01-01T{hour:02}:20:00Z", "product_id": 1, "amount": "1.50"})
    views.follow()
    views.lake.sql("DELETE FROM ty_sales WHERE hour(timestamp) = 9")
    views.follow()
    assert views.lake.sql("SELECT `sum(amount)`, `count(1)` FROM ty_hourly").rows() == [
        {"sum(amount)": pytest.approx(3), "count(1)": 2}
    ]


def test_an_alias_that_shadows_a_column(views: Views) -> None:
    views.topic("ty_h", "id INT, b INT")
    views.append("ty_h", *({"id": number, "b": number * 7 % 5} for number in range(8)))
    views.view("ty_top", "SELECT id, -b AS b FROM ty_h ORDER BY b + 0, id LIMIT 3")
    views.view("ty_last", "SELECT -id AS id, b FROM ty_h h ORDER BY h.id + 0 LIMIT 2")
    views.view("ty_groups", "SELECT -b AS b, count(*) AS id FROM ty_h GROUP BY b ORDER BY b + id, b LIMIT 2")
    views.append("ty_h", {"id": 9, "b": 9})
    views.follow()
