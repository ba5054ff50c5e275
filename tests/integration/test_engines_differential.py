"""DuckDB answers as Spark does: every proven query runs on both engines; names, types and values must be the same."""

from __future__ import annotations

import importlib.util
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from headwater.serving.agreement import Agreed, Unproven, agree, scan_needs, shaped


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _beside("engines_tables")
corpus = _beside("engines_corpus")
compare = _beside("engines_compare")

pytestmark = pytest.mark.spark


class Engines:
    """Both engines over the same rows."""

    def __init__(self, spark: Any, duck: duckdb.DuckDBPyConnection) -> None:
        self.spark = spark
        self.duck = duck

    def by_spark(self, text: str) -> pa.Table | None:
        """Spark's answer, None when it raises."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        plain = text.replace("topic('events')", "events").replace("topics.events", "events")
        try:
            return self.spark.sql(plain).toArrow()
        except (PySparkException, Py4JJavaError):
            return None

    def by_duck(self, verdict: Agreed) -> pa.Table | None:
        """DuckDB's answer in Spark's shape, None when it raises."""
        try:
            found = self.duck.sql(verdict.sql).to_arrow_table()
        except (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException):
            return None
        return shaped(found, verdict.output)

    def narrowed(self, text: str, folder: Path) -> pa.Table | None:
        """Spark's answer from the rows alone that are said to matter, None when it raises."""
        needs = scan_needs(text, tables.SCHEMAS)
        before = {name: self.spark.table(name) for name in needs}
        try:
            for name, need in needs.items():
                bound = bind(tables.SCHEMAS[name], need.filter, case_sensitive=True)
                file = folder / f"{name}.parquet"
                pq.write_table(tables.as_spark_shows(tables.tables()[name].filter(expression_to_pyarrow(bound))), file)
                self.spark.read.parquet(str(file)).createOrReplaceTempView(name)
            return self.by_spark(text)
        finally:
            for name, frame in before.items():
                frame.createOrReplaceTempView(name)

    def view(self, name: str, ours: Path, theirs: Path) -> None:
        """One table under one name in both engines."""
        self.spark.read.parquet(str(theirs)).createOrReplaceTempView(name)
        self.duck.read_parquet(str(ours)).create_view(name)


@pytest.fixture(scope="module")
def engines(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """The nasty tables in both engines.

    Spark's Parquet filters miss -0.0 when asked for 0.0, depending on how rows lie in files; here we ask its SQL alone.
    """
    settings = {
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        both = Engines(spark, duck)
        for name, (ours, theirs) in tables.write(tmp_path_factory.mktemp("engines")).items():
            both.view(name, ours, theirs)
        yield both
    for key, value in before.items():
        spark.conf.set(key, value)
    for name in tables.SCHEMAS:
        spark.catalog.dropTempView(name)


@pytest.mark.parametrize("text", corpus.PROVEN)
def test_a_proven_query_has_one_answer(engines: Engines, text: str) -> None:
    verdict = agree(text, tables.SCHEMAS)
    assert isinstance(verdict, Agreed), verdict
    by_spark, by_duck = engines.by_spark(text), engines.by_duck(verdict)
    assert by_spark is not None
    assert by_duck is not None
    assert compare.difference(by_spark, by_duck, verdict.ordered) is None


@pytest.mark.parametrize("text", corpus.RAISES)
def test_both_engines_raise(engines: Engines, text: str) -> None:
    verdict = agree(text, tables.SCHEMAS)
    assert isinstance(verdict, Agreed), verdict
    assert engines.by_duck(verdict) is None
    assert engines.by_spark(text) is None


@pytest.mark.parametrize("text", corpus.LEFT_TO_SPARK)
def test_what_is_not_proven_is_left_to_spark(text: str) -> None:
    assert isinstance(agree(text, tables.SCHEMAS), Unproven)


@pytest.mark.parametrize("text", corpus.NARROWED)
def test_conditions_of_what_is_left_to_spark_drop_no_row_that_matters(
    engines: Engines, text: str, tmp_path: Path
) -> None:
    everything, kept = engines.by_spark(text), engines.narrowed(text, tmp_path)
    assert everything is not None
    assert kept is not None
    assert compare.difference(everything, kept, False) is None


def test_conditions_of_what_is_left_to_spark_reach_its_tables() -> None:
    needs = [scan_needs(text, tables.SCHEMAS).values() for text in corpus.NARROWED]
    assert sum(any(need.filter != AlwaysTrue() for need in each) for each in needs) > len(needs) / 3


GUARDED = [
    "select upper(s) from events",
    "select lower(s) from events",
    "select cast(cast(l as decimal(30,0)) as double) as x from events",
    "select cast(date_add(dt, 3000000) as string) as x from events",
    "select concat('at ', date_sub(dt, 800000)) as x from events where dt < date'2000-01-01'",
    "select avg(l) from events",
    "select avg(distinct l) from events",
    "select c, avg(l) over (partition by c) as x from events",
    "select -lim as x from events where id % 6 = 4",
    "select abs(lim) as x from events where id % 6 = 4",
    "select least(d, zero), greatest(d, zero) from events",
    "select least(zero, 0.0D), greatest(-0.0D, zero, d) from events",
]


@pytest.mark.parametrize("text", GUARDED)
def test_values_on_which_the_engines_differ_raise_in_duckdb(engines: Engines, text: str) -> None:
    verdict = agree(text, tables.SCHEMAS)
    assert isinstance(verdict, Agreed), verdict
    assert engines.by_duck(verdict) is None
    assert engines.by_spark(text) is not None


def _doubles(count: int) -> list[float]:
    """Doubles of every kind near the halves where rounding decides: prices, thirds, random bits of moderate size."""
    source = random.Random(20260101)
    found = [source.randrange(10**7) / 1000 for _ in range(count)]
    found += [source.randrange(10**6) / 1000 + 0.0005 for _ in range(count)]
    found += [source.randrange(10**6) / source.randrange(1, 1000) for _ in range(count)]
    found += [struct.unpack("d", source.randbytes(8))[0] for _ in range(count)]
    return [value for value in found if 1e-300 < abs(value) < 1e300]


NUMBERS = Schema(
    NestedField(1, "id", IntegerType()), NestedField(2, "v", DoubleType()), NestedField(3, "n", LongType())
)


def test_rounding_doubles_agrees_on_many_values(engines: Engines, tmp_path: Path) -> None:
    values = _doubles(5000)
    values += [-value for value in values]
    ids = pa.array(range(len(values)), pa.int32())
    whole = pa.array([int(value * 1000) % 2**40 for value in values], pa.int64())
    pq.write_table(pa.table({"id": ids, "v": values, "n": whole}), tmp_path / "numbers.parquet")
    engines.view("numbers", tmp_path / "numbers.parquet", tmp_path / "numbers.parquet")
    text = (
        "select id, round(v), round(v, 1), round(v, 2), round(v, 3), round(v, 6), sqrt(abs(v)), floor(v), ceil(v), "
        "v / 3, n / 7, n % 7 from numbers order by id"
    )
    _exactly_alike(engines, text, {"numbers": NUMBERS})


def test_decimal_division_agrees_on_many_values(engines: Engines, tmp_path: Path) -> None:
    source = random.Random(7)
    rows = [(n, source.randrange(-(10**9), 10**9), source.randrange(1, 10**6)) for n in range(5000)]
    arrays = [
        pa.array(column, of)
        for column, of in zip(zip(*rows, strict=True), (pa.int32(), pa.int64(), pa.int32()), strict=True)
    ]
    pq.write_table(pa.table(arrays, names=["id", "a", "b"]), tmp_path / "fractions.parquet")
    engines.view("fractions", tmp_path / "fractions.parquet", tmp_path / "fractions.parquet")
    schema = Schema(
        NestedField(1, "id", IntegerType()), NestedField(2, "a", LongType()), NestedField(3, "b", IntegerType())
    )
    text = (
        "select id, cast(a as decimal(12,2)) / cast(b as decimal(10,3)) as q1, cast(a as decimal(12,2)) / b as q2, "
        "cast(a as decimal(20,0)) / 7.5 as q3, cast(b as decimal(10,2)) * cast(a as decimal(14,4)) as m "
        "from fractions order by id"
    )
    _exactly_alike(engines, text, {"fractions": schema})
    text = (
        "select b % 50 as g, avg(cast(a as decimal(12,2))) as mean, sum(cast(a as decimal(12,2))) / count(*) as r "
        "from fractions group by b % 50 order by g"
    )
    _exactly_alike(engines, text, {"fractions": schema})


def _exactly_alike(engines: Engines, text: str, schemas: dict[str, Schema]) -> None:
    verdict = agree(text, schemas)
    assert isinstance(verdict, Agreed), verdict
    by_spark, by_duck = engines.by_spark(text), engines.by_duck(verdict)
    assert by_spark is not None
    assert by_duck is not None
    for number, name in enumerate(by_spark.column_names):
        assert by_spark.column(number).equals(by_duck.column(number)), name


def test_case_agrees_on_every_ascii_letter(engines: Engines, tmp_path: Path) -> None:
    letters = [chr(code) + "x" for code in range(1, 128)]
    pq.write_table(pa.table({"s": letters}), tmp_path / "letters.parquet")
    engines.view("letters", tmp_path / "letters.parquet", tmp_path / "letters.parquet")
    schemas = {"letters": Schema(NestedField(1, "s", StringType()))}
    text = "select s, upper(s), lower(s), length(s), trim(s) from letters order by s"
    _exactly_alike(engines, text, schemas)
