"""Skipping files changes no answer: random tables and conditions, compared with looking at every row.

A table has files of several partition specs, sort orders and bloom filters. The conditions are SQL: what is tested is
the whole way from a text to the files that are read, and the engines' answers from those.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

import headwater
from headwater.engine import Lake
from headwater.errors import HeadwaterError
from headwater.spark.session import SparkEngine
from headwater.sql.statements import Query
from headwater.storage.scan import FileScan
from headwater.storage.writer import local_path
from headwater.topics import ingest
from headwater.topics.log import Entry

SPARK_SEEDS, SPARK_QUERIES = (100, 102, 105), 12
Row = dict[str, Any]
Test = Callable[[Row], bool | None]
Condition = tuple[str, Test]

COLUMNS = """
    i INT, n BIGINT, f DOUBLE, d DECIMAL(9, 2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, s STRING, b BOOLEAN,
    u UUID, raw BINARY, place STRUCT<city: STRING, zip: INT>, g FLOAT, big BIGINT, w DECIMAL(38, 10)
"""
EPOCH = dt.datetime(1970, 1, 1)
EDGES: dict[str, tuple[Any, Any]] = {
    "day": (dt.date.min, dt.date.max),
    "at": (dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)),
    "local": (dt.datetime.min, dt.datetime.max),
    "i": (-(2**31), 2**31 - 1),
    "big": (-(2**63), 2**63 - 1),
}


def float_of(n: int) -> float:
    return [n / 4 - 3, -0.0, 0.0, math.nan, math.inf][n % 5 if n % 3 == 0 else 0]


# Values that grow with a number, so that the rows of a commit, whose numbers are close, are close in every column.
VALUES: dict[str, Callable[[int], Any]] = {
    "i": lambda n: n - 20,
    "n": lambda n: n * 10**12 - 7,
    "f": float_of,
    "d": lambda n: Decimal(n * 25 - 300).scaleb(-2),
    "day": lambda n: (EPOCH + dt.timedelta(days=n - 10)).date(),
    "at": lambda n: (EPOCH + dt.timedelta(hours=7 * n - 50, microseconds=n)).replace(tzinfo=dt.UTC),
    "local": lambda n: EPOCH + dt.timedelta(minutes=50 * n - 500),
    "s": lambda n: f"{chr(97 + n // 5)}{'x' * (n % 3 * 9)}{n:02}",
    "b": lambda n: n % 10 < 5,
    "u": lambda n: uuid.UUID(int=n * 6 % 256 << 120 | n),  # both halves: Iceberg orders them as signed numbers
    "raw": lambda n: bytes([n * 5 % 256, n]),
    "place.city": lambda n: f"city {n:03}",
    "place.zip": lambda n: 1000 + n,
    "g": float_of,
    # Neighbours that are one number as doubles.
    "big": lambda n: 2**62 + 60 * n,
    "w": lambda n: Context(prec=38).scaleb(Decimal(10**26 + 10**9 * n), -10),
}
TEXTS = ("s", "place.city")
FLOATS = ("f", "g")
WITH_SURPRISES = (*FLOATS, "big", "big", "w", "w")
PARTITIONINGS = [
    "",
    "PARTITIONED BY (days(at))",
    "PARTITIONED BY (bucket(3, n), s)",
    "PARTITIONED BY (truncate(10, i))",
    "PARTITIONED BY (truncate(1, s), months(day))",
    "PARTITIONED BY (u)",
    "PARTITIONED BY (b, hours(local))",
    "PARTITIONED BY (d)",
    "PARTITIONED BY (f)",
    "PARTITIONED BY (g, b)",
]
ORDERS = ["", "ORDERED BY (s DESC NULLS LAST, n)", "ORDERED BY (f, at DESC)", "CLUSTERED BY ZORDER (i, s)"]
BLOOMS = ["", "n, s", "i=0.001, day, at, u", "d, raw, place.city, local"]
EVOLUTIONS: list[Callable[[Any], object]] = [
    lambda spec: None,
    lambda spec: spec.add_field("i", "bucket[4]", "i_more"),
    lambda spec: spec.add_identity("day"),
]


def rows_of(chance: random.Random, commits: int) -> Iterator[list[Row]]:
    for _ in range(commits):
        start, nulls = chance.randint(2, 60), chance.choice([0.0, 0.1, 0.5])
        empty = set(chance.sample(list(VALUES), chance.randrange(3)))
        rows = [row_of(chance, start, nulls, empty) for _ in range(chance.randint(1, 8))]
        for name in FLOATS:
            if chance.random() < 0.3:  # a file with nothing but NaN, or but one of the two zeros
                only = chance.choice([math.nan, -0.0, 0.0])
                rows = [{**row, name: None if row[name] is None else only} for row in rows]
        yield rows


def row_of(chance: random.Random, start: int, nulls: float, empty: set[str]) -> Row:
    def value(name: str) -> Any:
        return None if name in empty or chance.random() < nulls else VALUES[name](start + chance.randrange(4))

    flat = {name: value(name) for name in VALUES if "." not in name}
    place = None if chance.random() < nulls else {"city": value("place.city"), "zip": value("place.zip")}
    return {**flat, "place": place}


def look(row: Row, name: str) -> Any:
    outer, _, inner = name.partition(".")
    return row[outer] if not inner else (row[outer] or {}).get(inner)


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            return f"TIMESTAMP{'_NTZ' if value.tzinfo is None else ''} '{value.replace(tzinfo=None)}'"
        case dt.date():
            return f"DATE '{value}'"
        case str() | uuid.UUID():
            return f"'{value}'"
        case _:
            return str(value)


def spelled(chance: random.Random, value: Any) -> tuple[str, Any]:
    """A literal for a value, and what it is to Spark: any number may be written as a DOUBLE."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or chance.random() < 0.6:
        return literal(value), value
    return f"{value}{chance.choice(['e0', 'D'])}", float(value)


def compared(compare: Callable[[Any, Any], bool], each: Any, wanted: Any) -> bool:
    """A comparison as Spark makes it: beside a DOUBLE every number is one."""
    if isinstance(wanted, float) and isinstance(each, int | Decimal):
        each = float(each)
    return compare(ranked(each), ranked(wanted))


def ranked(value: Any) -> Any:
    """NaN is equal to itself and larger than every number; a UUID is compared as text."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return str(value) if isinstance(value, uuid.UUID) else value


def known(name: str, test: Callable[[Any], bool | None]) -> Test:
    return lambda row: None if look(row, name) is None else test(look(row, name))


COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def leaf(chance: random.Random) -> Condition:
    name = chance.choice([*VALUES, *WITH_SURPRISES])

    def value() -> Any:
        if name in EDGES and chance.random() < 0.1:
            return chance.choice(EDGES[name])
        found = VALUES[name](chance.randrange(66))
        return value() if isinstance(found, float) and not math.isfinite(found) else found

    kinds = ["compare", "compare", "in", "null", "between", "safe"]
    match chance.choice(kinds + ["prefix", "prefix"] * (name in TEXTS) + ["flag"] * (name == "b")):
        case "compare":
            sign, (text, wanted) = chance.choice(list(COMPARISONS)), spelled(chance, value())
            compare = COMPARISONS[sign]
            return f"{name} {sign} {text}", known(name, lambda each: compared(compare, each, wanted))
        case "in":
            return membership(chance, name, [value() for _ in range(chance.randint(1, 3))])
        case "null":
            if chance.random() < 0.5:
                return f"{name} IS NULL", lambda row: look(row, name) is None
            return f"{name} IS NOT NULL", lambda row: look(row, name) is not None
        case "between":
            (low, least), (high, most) = spelled(chance, value()), spelled(chance, value())
            return (
                f"{name} BETWEEN {low} AND {high}",
                known(name, lambda each: compared(operator.ge, each, least) and compared(operator.le, each, most)),
            )
        case "safe":
            if chance.random() < 0.5:
                return f"{name} <=> NULL", lambda row: look(row, name) is None
            text, wanted = spelled(chance, value())
            return (
                f"{name} <=> {text}",
                lambda row: known(name, lambda each: compared(operator.eq, each, wanted))(row) or False,
            )
        case "flag":
            return name, known(name, lambda each: bool(each))
        case _:
            prefix = value()[: chance.randint(1, 12)]
            text = chance.choice([f"{name} LIKE '{prefix}%'", f"startswith({name}, '{prefix}')"])
            return text, known(name, lambda each: each.startswith(prefix))


def membership(chance: random.Random, name: str, values: list[Any]) -> Condition:
    with_null = chance.random() < 0.2
    texts, wanted = zip(*(spelled(chance, value) for value in values), strict=True)
    if any(isinstance(each, float) for each in wanted):  # a list has one type
        wanted = tuple(float(each) for each in wanted)
    text = ", ".join([*texts, *(["NULL"] if with_null else [])])

    def test(each: Any) -> bool | None:
        found = any(compared(operator.eq, each, one) for one in wanted)
        return True if found else None if with_null else False

    return f"{name} IN ({text})", known(name, test)


def condition(chance: random.Random, depth: int = 2) -> Condition:
    kind = chance.choice(["leaf", "and", "or", "not"]) if depth else "leaf"
    if kind == "leaf":
        return leaf(chance)
    text, test = condition(chance, depth - 1)
    if kind == "not":
        return f"NOT ({text})", lambda row: None if (found := test(row)) is None else not found
    other, second = condition(chance, depth - 1)
    decisive = kind == "or"

    def both(row: Row) -> bool | None:
        found = (test(row), second(row))
        return decisive if decisive in found else None if None in found else not decisive

    return f"({text}) {kind.upper()} ({other})", both


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[Entry]) -> list[DataFile]:
    return ingest.write_entries(log_path, into, entries)


class LeftToSpark(HeadwaterError):
    """DuckDB did not answer."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake whose ingest runs in this process, so that Spark is not needed."""
    with pytest.MonkeyPatch.context() as patch, headwater.init(tmp_path_factory.mktemp("skipping") / "lake") as opened:
        patch.setattr(ingest, "write_files", write_in_process)
        patch.setattr(opened._ingester, "_spark", lambda: None)
        opened._spark = SparkEngine(refuse)
        yield opened


def refuse() -> Any:
    """DuckDB checks some values while it runs, and leaves the query to Spark when one is at the edge of its type."""
    raise LeftToSpark("this lake has no Spark")


def table_of(lake: Lake, name: str, chance: random.Random) -> list[Row]:
    """A topic with some commits, in the midst of which its partitioning changes; its rows by offset."""
    clauses = f"{chance.choice(PARTITIONINGS)} {chance.choice(ORDERS)} WITH (bloom_columns = '{chance.choice(BLOOMS)}')"
    lake.sql(f"CREATE TOPIC {name} ({COLUMNS}) {clauses}")
    everything: list[Row] = []
    commits = list(rows_of(chance, 8))
    for number, rows in enumerate(commits):
        lake.topic(name).append([{**row, "u": None if row["u"] is None else str(row["u"])} for row in rows])
        lake.flush(name)
        everything += rows
        if number == 4:
            with lake.topics.tables.load_for_commit(lake.topics.load(name).table_name).update_spec() as spec:
                chance.choice(EVOLUTIONS)(spec)
    return everything


def files_of(scan: FileScan, rows: list[Row]) -> dict[str, list[Row]]:
    return {
        file.file_path: [rows[at] for at in pq.read_table(local_path(file.file_path)).column("_offset").to_pylist()]
        for file in scan.files
    }


@pytest.mark.parametrize("seed", range(10))
def test_no_answer_changes_and_files_are_skipped(lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    name = f"t{seed}"
    rows = table_of(lake, name, chance)
    everything, _ = lake._queries._plan(Query(f"SELECT _offset FROM {name} WHERE TRUE"), None)
    files = files_of(everything.scans[0].files, rows)
    assert sum(map(len, files.values())) == len(rows)
    skippable = skipped = answered = left = 0
    for _ in range(80):
        text, test = condition(chance)
        query = f"SELECT _offset FROM {name} WHERE {text}"
        plan, _ = lake._queries._plan(Query(query), None)
        kept = {file.file_path for file in plan.scans[0].files.files}
        needed = {path for path, inside in files.items() if any(test(row) is True for row in inside)}
        assert needed <= kept, text
        skippable, skipped = skippable + len(files) - len(needed), skipped + len(files) - len(kept)
        if plan.engine == "duckdb":
            try:
                found = sorted(row["_offset"] for row in lake.sql(query, engine="duckdb"))
            except LeftToSpark:
                left += 1
                continue
            assert found == [at for at, row in enumerate(rows) if test(row) is True], text
            answered += 1
    assert answered > 40, left  # otherwise DuckDB's answers would not have been looked at
    assert skipped > 0.5 * skippable  # a planner that keeps every file would pass everything else


@pytest.mark.spark
@pytest.mark.parametrize("seed", SPARK_SEEDS)
def test_spark_reads_the_files_of_the_plan(spark: Any, spark_lake: Path, seed: int) -> None:
    chance = random.Random(seed)
    name, planned = f"skipping{seed}", 0
    made = (spark_lake / "headwater.toml").exists()
    with pytest.MonkeyPatch.context() as patch, Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        patch.setattr(ingest, "write_files", write_in_process)
        rows = table_of(lake, name, chance)
        for _ in range(SPARK_QUERIES):
            text, test = condition(chance)
            query = f"SELECT _offset FROM {name} WHERE {text}"
            plan, _ = lake._queries._plan(Query(query, engine="spark"), None)
            planned += plan.agreed is not None and 0 < len(plan.scans[0].files.files) < plan.scans[0].files.total
            found = sorted(row["_offset"] for row in lake.sql(query, engine="spark"))
            assert found == [at for at, row in enumerate(rows) if test(row) is True], text
        lake.sql(f"DROP TOPIC {name}")
    assert planned > SPARK_QUERIES / 4


@pytest.mark.spark
def test_nothing_on_spark_skips_nan_or_a_zero_of_the_other_sign(spark: Any, spark_lake: Path) -> None:
    """Queries whose conditions the planner knows and those that Spark hands to Iceberg, changes of rows, and views."""
    zeros = 1500  # enough for a dictionary, which tells the two zeros apart
    commits = [[math.nan], [math.nan, 0.25], [math.nan, None], [-0.0, *[2.0] * 9] * zeros, [0.0] * zeros]
    made = (spark_lake / "headwater.toml").exists()
    with pytest.MonkeyPatch.context() as patch, Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        patch.setattr(ingest, "write_files", write_in_process)
        lake.sql("CREATE TOPIC odd_floats (d DOUBLE, f FLOAT)")
        for values in commits:
            lake.topic("odd_floats").append([{"d": value, "f": value} for value in values])
            lake.flush("odd_floats")
        expected = {
            "{} >= 0.5D": 3 + 9 * zeros,
            "{} > CAST('0.5' AS DOUBLE)": 3 + 9 * zeros,
            "NOT ({} < 0.5)": 3 + 9 * zeros,
            "{} = 0": 2 * zeros,
            "{} IN (CAST('0' AS DOUBLE), 7D)": 2 * zeros,
            "{} <= CAST('-0.0' AS DOUBLE)": 2 * zeros,
            "{} <= -0.0D": 2 * zeros,
        }
        for number, (text, rows) in enumerate(expected.items()):
            condition = text.format("df"[number % 2])
            (found,) = lake.sql(f"SELECT count(*) AS n FROM odd_floats WHERE {condition}", engine="spark")
            assert found["n"] == rows, condition
        lake.sql("CREATE MATERIALIZED VIEW odd_view AS SELECT d FROM odd_floats WHERE d > 1 WITH (refresh = 'manual')")
        assert [row["n"] for row in lake.sql("SELECT count(*) AS n FROM mv('odd_view')")] == [3 + 9 * zeros]
        lake.sql("DROP MATERIALIZED VIEW odd_view")
        assert lake.sql("UPDATE odd_floats SET f = 1 WHERE d = CAST('0' AS DOUBLE)").rows()[0]["rows"] == 2 * zeros
        assert lake.sql("DELETE FROM odd_floats WHERE d > CAST('1' AS DOUBLE)").rows()[0]["rows"] == 3 + 9 * zeros
        lake.sql("DROP TOPIC odd_floats")


def test_every_reason_is_told(lake: Lake) -> None:
    lake.sql(
        "CREATE TOPIC reasons (n BIGINT, s STRING, day DATE, place STRUCT<city: STRING>) PARTITIONED BY (day) "
        "WITH (bloom_columns = 's, place.city')"
    )
    for number in range(4):
        rows = [
            {"n": n, "s": None if number == 3 else f"k{n % 7}", "day": "2026-01-01", "place": {"city": f"c{n}"}}
            for n in range(number * 10, number * 10 + 10)
        ]
        lake.topic("reasons").append([*rows, {"n": number, "day": "2026-01-02"}])
        lake.flush("reasons")
    shown = {
        "day = DATE '2026-01-03'": (0, 8, 0, 0, 0),
        "n >= 30 AND day = DATE '2026-01-01'": (1, 4, 3, 0, 0),
        "n <> 2 AND day = DATE '2026-01-02'": (3, 4, 1, 0, 0),
        "s IS NOT NULL": (3, 0, 0, 5, 0),
        "s IS NULL AND day = DATE '2026-01-01'": (1, 4, 0, 3, 0),
        "s = 'k9'": (0, 0, 3, 5, 0),
        "s = 'k33'": (0, 0, 0, 5, 3),
        "startswith(s, 'k') AND n BETWEEN 12 AND 15": (1, 0, 2, 5, 0),
        "s NOT IN ('k1', NULL)": (0, 0, 0, 8, 0),
        "NOT (s LIKE 'k%')": (0, 0, 3, 5, 0),
        "place.city = 'c25'": (1, 0, 2, 4, 1),
    }
    for text, expected in shown.items():
        for engine in ("auto", "spark"):
            plan = lake.sql(f"EXPLAIN SELECT n FROM reasons WHERE {text}", engine=engine).info["plan"]
            (scan,) = plan["scans"]
            names = ("partition", "statistics", "null_counts", "bloom_filter")
            assert (scan["files"], *(scan[f"skipped_by_{each}"] for each in names)) == expected, (text, engine)
    lines = [row["plan"] for row in lake.sql("EXPLAIN SELECT n FROM reasons WHERE s = 'k33'")]
    assert lines[2].startswith("  files: 0 of 8 files, 5 skipped by null counts, 3 skipped by bloom filter; 0 rows")


def test_required_fields_are_null_where_their_struct_is(lake: Lake) -> None:
    lake.sql(
        "CREATE TOPIC inside (n BIGINT, s STRUCT<p: INT NOT NULL, f: DOUBLE NOT NULL, t: STRUCT<z: STRING NOT NULL>>)"
    )
    full = {"p": 0, "f": 0.0, "t": {"z": ""}}
    for rows in ([{"n": 1}], [{"n": 2, "s": {"p": 1, "f": 1.5}}, {"n": 3}], [{"n": 4, "s": full}]):
        lake.topic("inside").append(rows)
        lake.flush("inside")
    expected = {
        "s.p IS NULL": ([1, 3], 2),
        "s.f IS NULL": ([1, 3], 2),
        "s.t.z IS NULL": ([1, 2, 3], 2),
        "NOT (s.p IS NOT NULL)": ([1, 3], 2),
        "s.p <=> NULL": ([1, 3], 2),
        "s.p IS NOT NULL": ([2, 4], 2),
        "s.p <> 1": ([4], 1),
    }
    for text, (found, files) in expected.items():
        answer = lake.sql(f"SELECT n FROM inside WHERE {text} ORDER BY n", engine="duckdb")
        assert ([row["n"] for row in answer.rows()], answer.info["plan"]["scans"][0]["files"]) == (found, files), text
