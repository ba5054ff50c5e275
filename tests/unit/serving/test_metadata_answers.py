"""What metadata answers is what DuckDB answers over the rows themselves, and only exact things are answered so."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.topics import ingest
from headwater.topics.log import Entry

CREATE = """
    CREATE TOPIC t (
        i INT, n BIGINT, d DECIMAL(12, 2), wide DECIMAL(38, 5), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
        f DOUBLE, s STRING, b BOOLEAN, nothing BIGINT, place STRUCT<n: INT, s: STRING>, tags ARRAY<STRING>
    ) PARTITIONED BY (bucket(2, n))
"""
EXACT = ("i", "n", "d", "wide", "day", "at", "local", "nothing", "_offset", "_timestamp")
COUNTED = (*EXACT, "f", "s", "b")


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[Entry]) -> list[DataFile]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    monkeypatch.setattr(Lake, "spark", None)
    with Lake.init(tmp_path / "lake") as opened:
        opened.sql(CREATE)
        yield opened


def rows(count: int, seed: int, nulls: float = 0.3) -> list[dict[str, Any]]:
    chance = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if chance.random() < nulls else value

    def micros(zone: dt.tzinfo | None) -> dt.datetime:
        return dt.datetime(1969, 12, 31, tzinfo=zone) + dt.timedelta(microseconds=chance.randrange(2 * 10**12))

    return [
        {
            "i": maybe(chance.randrange(-(2**31), 2**31)),
            "n": maybe(chance.randrange(-(2**63), 2**63)),
            "d": maybe(Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2)),
            "wide": maybe(Decimal(chance.randrange(-(10**25), 10**25)).scaleb(-5)),
            "day": maybe(dt.date(1969, 12, 1) + dt.timedelta(days=chance.randrange(60))),
            "at": maybe(micros(dt.UTC)),
            "local": maybe(micros(None)),
            "f": maybe(chance.choice([1.5, -0.0, float("nan"), float("inf")])),
            "s": maybe("x" * chance.randrange(40)),
            "b": maybe(chance.random() < 0.5),
            "nothing": None,
            "place": maybe({"n": maybe(7), "s": maybe("y")}),
            "tags": maybe(["a"]),
        }
        for _ in range(count)
    ]


QUERIES = [
    "SELECT count(*) FROM t",
    "select COUNT(1) AS c from topic('t')",
    *(f"SELECT count({name}) FROM t" for name in COUNTED),
    *(f"SELECT min({name}) AS lo, max({name}) AS hi FROM t" for name in EXACT),
    "SELECT count(*), count(n), min(n), max(d), max(_offset) FROM t",
    "SELECT count(x.n), max(x.N) FROM t AS x",
]
SHAPES = {"empty": "", "tail only": "T", "one file": "F", "files and tail": "FFT", "many": "FFFFT"}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("tail", [True, False], ids=["with tail", "tail off"])
def test_metadata_answers_as_duckdb_does(lake: Lake, shape: str, tail: bool) -> None:
    for position, kind in enumerate(shape):
        nulls = 1.0 if position == 1 else 0.3  # one append without a single value
        lake.topic("t").append(rows(50, position, nulls))
        if kind == "F":
            lake.flush()
    for query in QUERIES:
        known, read = lake.sql(query, tail=tail), lake.sql(query, engine="duckdb", tail=tail)
        assert known.info["plan"]["engine"] == "metadata", query
        assert read.info["plan"]["engine"] == "duckdb"
        assert known.schema == read.schema, query
        assert known.rows() == read.rows(), query


NOT_EXACT = [
    *(f"SELECT max({name}) FROM t" for name in ("f", "s", "b")),  # NaN, cut bounds, no use
    "SELECT count(DISTINCT n) FROM t",
    "SELECT count(*) FROM t WHERE n > 0",
    "SELECT count(*) FROM t GROUP BY n",
    "SELECT count(*) FROM t HAVING count(*) > 1000",
    "SELECT count(*) FROM t LIMIT 0",
    "SELECT count(place.n) FROM t",  # not the column n
    "SELECT max(place.n) FROM t",
    "SELECT count(*) FILTER (WHERE n > 0) FROM t",
    "SELECT max(n) + 1 FROM t",
    "SELECT count(*) FROM t AS a, t AS b",
    "SELECT count(*) FROM (SELECT n FROM t LIMIT 3)",
]


@pytest.mark.parametrize("query", NOT_EXACT)
def test_what_is_not_exact_is_read(lake: Lake, query: str) -> None:
    lake.topic("t").append(rows(30, 1))
    lake.flush()
    plan = lake.sql(f"EXPLAIN {query}").info["plan"]
    assert plan["engine"] != "metadata"
    if plan["engine"] == "duckdb" and "place" in query:
        values = [row["place"]["n"] for row in rows(30, 1) if row["place"] and row["place"]["n"] is not None]
        (found,) = lake.sql(query).rows()[0].values()
        assert found == (len(values) if "count" in query else max(values))


def test_bounds_that_are_missing_are_not_invented(lake: Lake) -> None:
    """Another writer may leave statistics out; then the rows are read."""
    lake.topic("t").append(rows(10, 3))
    lake.flush()
    topic = lake.topics.load("t")
    with lake._tables.load_for_commit(topic.table_name).transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    lake.topic("t").append(rows(10, 4))
    lake.flush()
    found = lake.sql("SELECT max(n) FROM t")
    assert found.info["plan"]["engine"] == "duckdb"
    assert found.rows() == [{"max(n)": max(row["n"] for row in rows(10, 3) + rows(10, 4) if row["n"] is not None)}]
    assert lake.sql("SELECT count(*) AS c FROM t").rows() == [{"c": 20}]
