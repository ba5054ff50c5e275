"""The gate against the real Spark: all kinds of SELECT pass and run, attacks do nothing at all."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidStatement, StatementNotAllowed
from headwater.spark.gate_rules import DENIED_FUNCTIONS, FUNCTIONS
from headwater.spark.gate_spark import analyze, inspect, isolated, sources

pytestmark = pytest.mark.spark

CORPUS = runpy.run_path(str(Path(__file__).with_name("gate_corpus.py")))
ORDERS = """
    id BIGINT, customer STRING, total DECIMAL(12,2), qty INT, ratio DOUBLE, at TIMESTAMP, day DATE, paid BOOLEAN,
    tags ARRAY<STRING>, items ARRAY<STRUCT<sku: STRING, qty: INT>>, attrs MAP<STRING, STRING>,
    place STRUCT<city: STRING>, raw BINARY, doc STRING
"""


LONG_AGO = 1_000_000_000


class Gate:
    """An isolated session with two topics registered in it, as the engine would."""

    def __init__(self, spark: Any) -> None:
        self.session = isolated(spark)
        frames = {name: self.session.table(f"lake.topics.gate_{name}") for name in ("orders", "customers")}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        self.allowed = sources(*frames.values())

    def run(self, text: str) -> list[Any]:
        return analyze(self.session, inspect(self.session, text), self.allowed).collect()


@pytest.fixture(scope="module")
def gate(spark: Any) -> Iterator[Gate]:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.topics")
    spark.sql(f"CREATE OR REPLACE TABLE lake.topics.gate_orders ({ORDERS}) USING iceberg")
    spark.sql("CREATE OR REPLACE TABLE lake.topics.gate_customers (name STRING, region STRING) USING iceberg")
    spark.sql("CREATE OR REPLACE TABLE lake.topics.gate_secrets (word STRING) USING iceberg")
    spark.sql("INSERT INTO lake.topics.gate_customers VALUES ('ann', 'eu'), ('bob', 'us')")
    spark.sql(
        "INSERT INTO lake.topics.gate_orders VALUES (1, 'ann', 10.5, 2, 0.5, TIMESTAMP '2026-01-01 10:00:00', "
        "DATE '2026-01-01', true, array('a'), array(named_struct('sku', 's', 'qty', 2)), map('k', 'v'), "
        "named_struct('city', 'x'), X'01', '{\"a\": 1}')"
    )
    yield Gate(spark)
    for name in ("orders", "customers", "secrets"):
        spark.sql(f"DROP TABLE lake.topics.gate_{name}")


@pytest.mark.parametrize("text", CORPUS["LEGITIMATE"])
def test_a_select_passes(gate: Gate, text: str) -> None:
    query = inspect(gate.session, text)
    assert query.relations - query.ctes <= {"orders", "customers"}
    analyze(gate.session, query, gate.allowed)


@pytest.mark.parametrize("text", CORPUS["LEGITIMATE"][::6])
def test_a_select_that_passed_runs(gate: Gate, text: str) -> None:
    gate.run(text)


@pytest.mark.parametrize("text", CORPUS["ATTACKS"])
def test_an_attack_is_refused_and_leaves_no_trace(gate: Gate, spark: Any, tmp_path: Path, text: str) -> None:
    probe, secret = tmp_path / "probe", tmp_path / "secret.csv"
    secret.write_text("secret")
    os.utime(secret, (LONG_AGO, LONG_AGO))
    with pytest.raises((StatementNotAllowed, InvalidStatement)) as raised:
        gate.run(text.format(probe=probe, secret=secret))
    assert "\tat " not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == [secret]
    assert secret.stat().st_atime == LONG_AGO
    assert spark.sparkContext._jvm.System.getProperty("headwater.probe") is None


@pytest.mark.parametrize("text", CORPUS["ATTACKS_FOUND_BY_ANALYSIS"])
def test_an_attack_that_looks_like_a_column_is_refused(gate: Gate, text: str) -> None:
    with pytest.raises(StatementNotAllowed):
        gate.run(text)


def test_attacks_changed_nothing(gate: Gate, spark: Any) -> None:
    tables = {row.tableName for row in spark.sql("SHOW TABLES IN lake.topics").collect()}
    assert "evil" not in tables
    assert spark.table("lake.topics.gate_orders").count() == 1
    assert gate.run("SELECT id FROM orders")[0].id == 1


def test_a_probe_would_show_an_attack_that_got_through(spark: Any, tmp_path: Path) -> None:
    spark.sql("SELECT reflect('java.lang.System', 'setProperty', 'headwater.probe', 'x')").collect()
    assert spark.sparkContext._jvm.System.getProperty("headwater.probe") == "x"
    spark.sparkContext._jvm.System.clearProperty("headwater.probe")
    spark.sql(f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'probe'}' USING csv SELECT 1")
    assert (tmp_path / "probe").exists()
    secret = tmp_path / "secret.csv"
    secret.write_text("secret")
    os.utime(secret, (LONG_AGO, LONG_AGO))
    assert spark.read.csv(str(secret)).collect()
    if secret.stat().st_atime == LONG_AGO:
        pytest.skip("this file system does not note reads")


def test_relations_and_ctes(gate: Gate) -> None:
    query = inspect(gate.session, "WITH a AS (SELECT * FROM Orders) SELECT * FROM a JOIN `customers`")
    assert (query.relations, query.ctes) == ({"a", "orders", "customers"}, {"a"})


def test_what_was_not_registered_is_refused_after_analysis(gate: Gate, spark: Any) -> None:
    gate.session.table("lake.topics.gate_secrets").createOrReplaceTempView("secrets")
    try:
        with pytest.raises(StatementNotAllowed, match="not a topic of this lake"):
            gate.run("SELECT * FROM orders WHERE customer IN (SELECT word FROM secrets)")
    finally:
        gate.session.catalog.dropTempView("secrets")


def test_an_isolated_session_sees_no_views_of_the_lakes_own(gate: Gate, spark: Any) -> None:
    spark.range(3).createOrReplaceTempView("mine")
    try:
        with pytest.raises(InvalidStatement, match="cannot be found"):
            gate.run("SELECT * FROM mine")
    finally:
        spark.catalog.dropTempView("mine")


def test_a_snapshot_and_a_tail_are_known_sources(gate: Gate, spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa

    from headwater.spark.arrow_spark import to_spark

    session = isolated(spark)
    snapshot = spark.sql("SELECT snapshot_id FROM lake.topics.gate_customers.snapshots").first()[0]
    table = session.read.option("versionAsOf", snapshot).table("lake.topics.gate_customers")
    tail = to_spark(session, pa.table({"name": ["cyd"], "region": ["eu"]}), tmp_path)
    topic = table.unionByName(tail)
    topic.createOrReplaceTempView("customers")
    query = inspect(session, "SELECT a.name FROM customers a JOIN customers b USING (name) ORDER BY 1")
    assert [row.name for row in analyze(session, query, sources(topic)).collect()] == ["ann", "bob", "cyd"]
    with pytest.raises(StatementNotAllowed):
        analyze(session, query, sources(tail))


@pytest.mark.parametrize(
    ("text", "detail", "line", "position"),
    [
        (
            "SELECT * FORM orders",
            "Syntax error at or near 'orders': extra input 'orders' (line 1, position 15).",
            1,
            15,
        ),
        ("SELECT id,\n  nope FROM orders", None, 2, 3),
        ("", None, 1, 1),
    ],
)
def test_mistakes_are_explained(gate: Gate, text: str, detail: str | None, line: int, position: int) -> None:
    with pytest.raises(InvalidStatement) as raised:
        gate.run(text)
    assert raised.value.message == "statement is not valid"
    assert detail is None or raised.value.detail == detail
    assert (raised.value.data["line"], raised.value.data["position"]) == (line, position)
    assert "'Project" not in str(raised.value)
    assert "SQLSTATE" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
        "SELECT " + "1 + " * 20_000 + "1",
        "SELECT " + "1 + " * 4_000 + "1",
        "SELECT " + "NOT " * 20_000 + "true",
        "SELECT '" + "x" * 1_000_001 + "'",
    ],
    ids=["deepest", "longest sum", "long sum", "long not", "long text"],
)
def test_monsters_are_refused(gate: Gate, text: str) -> None:
    with pytest.raises(InvalidStatement):
        gate.run(text)
    assert gate.run("SELECT 1 AS a")[0].a == 1


def test_deep_nesting_is_answered_or_refused_and_never_more(gate: Gate) -> None:
    """Whether the JVM's stack holds it depends on what has been compiled by then."""
    with suppress(InvalidStatement):
        assert gate.run("SELECT " + "(" * 100 + "1" + ")" * 100 + " AS a")[0].a == 1
    with suppress(InvalidStatement):
        assert gate.run("SELECT " + "CASE WHEN true THEN " * 100 + "1" + " END" * 100 + " AS a")[0].a == 1
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        gate.run("SELECT " + "CASE WHEN true THEN " * 101 + "1" + " END" * 101 + " AS a")
    assert gate.run("SELECT 1 AS a")[0].a == 1


def test_parentheses_in_quotes_are_not_nesting(gate: Gate) -> None:
    text = "(" * 600
    assert gate.run(f"SELECT '{text}' AS a")[0].a == text


def test_hints_are_listed_and_capped(gate: Gate) -> None:
    for hint in ("BROADCAST(a)", "REPARTITION(200)", "repartition(2, n)", "COALESCE(3)", "MERGE(a)", "REBALANCE"):
        assert gate.run(f"SELECT /*+ {hint} */ count(*) AS n FROM range(3) a")[0].n == 3
    for hint in ("REPARTITION(100000)", "repartition(201, id)", "REPARTITION_BY_RANGE(100000, id)", "COALESCE(5000)"):
        with pytest.raises(StatementNotAllowed, match="too many partitions"):
            gate.run(f"SELECT /*+ {hint} */ * FROM range(3)")
    with pytest.raises(StatementNotAllowed, match="too many partitions"):
        gate.run("SELECT * FROM (WITH c AS (SELECT /*+ REPARTITION(100000) */ * FROM range(3)) SELECT * FROM c)")
    for relation in ("range(0, 10, 1, 5000000)", "RANGE(0, 10, 1, 2)", "(SELECT * FROM range(0, 10, 1, 5000000))"):
        with pytest.raises(StatementNotAllowed, match="a number of partitions is not allowed"):
            gate.run(f"SELECT * FROM {relation}")
    with pytest.raises(StatementNotAllowed, match="not allowed"):
        gate.run("SELECT /*+ SKEW(a) */ * FROM range(3) a")


def test_variables_are_text_and_never_substituted(gate: Gate, spark: Any) -> None:
    text = "SELECT '${env:PATH}' AS a, '${spark.app.name}' AS b"
    assert tuple(gate.run(text)[0]) == ("${env:PATH}", "${spark.app.name}")
    own = isolated(spark)
    own.conf.set("spark.sql.variable.substitute", "true")
    with pytest.raises(StatementNotAllowed, match="variable substitution"):
        inspect(own, text)


def test_every_function_of_this_spark_was_looked_at(spark: Any) -> None:
    registry = spark._jsparkSession.sessionState().functionRegistry()
    assert set(registry.listFunction().mkString("\n").split("\n")) == FUNCTIONS | DENIED_FUNCTIONS.keys()
