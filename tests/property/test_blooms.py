"""A file that its bloom filters exclude holds no matching row: every type that has filters, against the rows."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import tempfile
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, Not, Or
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.storage.bloom_columns import ENABLED, FALSE_POSITIVES, bloom_columns, bloom_options
from headwater.storage.blooms import MAX_PROBED, MAX_VALUES, BloomCache, plan_probe
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import Layout, PartitionedWriter, Target, local_path
from headwater.storage.xxhash64 import xxh64

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "n", LongType()),
    NestedField(3, "small", DecimalType(9, 2)),
    NestedField(4, "price", DecimalType(18, 4)),
    NestedField(5, "wide", DecimalType(38, 5)),
    NestedField(6, "day", DateType()),
    NestedField(7, "clock", TimeType()),
    NestedField(8, "at", TimestamptzType()),
    NestedField(9, "local", TimestampType()),
    NestedField(10, "s", StringType()),
    NestedField(11, "raw", BinaryType()),
    NestedField(12, "x", FixedType(3)),
    NestedField(13, "u", UUIDType()),
    NestedField(14, "f", FloatType()),
    NestedField(15, "g", DoubleType()),
    NestedField(16, "b", BooleanType()),
    NestedField(17, "place", StructType(NestedField(18, "city", StringType()))),
    NestedField(19, "tags", ListType(20, StringType())),
)
MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    whole = st.integers(-3, 3) | st.integers(-most, most)
    return whole.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))  # exact in any context


# A few values that come back, so that filters hit, and any others, so that encodings meet every bit.
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1),
    "n": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "small": decimals(9, 2),
    "price": decimals(18, 4),
    "wide": decimals(38, 5),
    "day": st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3)) | st.dates(),
    "clock": st.times(),
    "at": MOMENTS.map(lambda when: when.replace(tzinfo=dt.UTC)),
    "local": MOMENTS,
    "s": st.sampled_from(["", "a", "ä", "日本語", "x" * 31, "x" * 32, "x" * 33]) | st.text(max_size=80),
    "raw": st.binary(max_size=40),
    "x": st.binary(min_size=3, max_size=3),
    "u": st.integers(0, 3).map(lambda n: uuid.UUID(int=n)) | st.uuids(),
    "f": st.sampled_from([0.0, -0.0, 1.5]),
    "g": st.sampled_from([0.0, -0.0, 1.5, float("nan")]),
    "b": st.booleans(),
    "place.city": st.sampled_from(["", "oslo", "rome"]),
}
FILTERED = [name for name in VALUES if name not in ("f", "g", "b")]
ALL = {ENABLED + name: "true" for name in [*VALUES, "tags.element", "tags", "nothing"]}
NANOS = itertools.count(1)

Row = dict[str, Any]


def written(folder: Path, rows: list[Row], properties: dict[str, str], *, group: int = 3) -> list[DataFile]:
    schema = arrow_schema(SCHEMA)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in schema.names}
    columns["place"] = [{"city": row.get("place.city")} for row in rows]
    columns["u"] = [None if row.get("u") is None else row["u"].bytes for row in rows]
    where = Target(
        "t", folder.as_uri(), SCHEMA, UNPARTITIONED_PARTITION_SPEC, Layout("none", None, 1, group), properties
    )
    ids = itertools.count()
    writer = PartitionedWriter(where, lambda: f"{next(ids):026}")
    writer.write(pa.Table.from_arrays([pa.array(columns[each.name], each.type) for each in schema], schema=schema))
    return writer.close()


@st.composite
def questions(draw: st.DrawFn, rows: list[Row], depth: int = 2) -> tuple[BooleanExpression, Any]:
    """A condition, and whether a row meets it; null never does, and neither does its negation."""
    name = draw(st.sampled_from(list(VALUES)))
    held = [row[name] for row in rows if row.get(name) is not None and row[name] == row[name]]
    values = VALUES[name].filter(lambda value: value == value)
    one = st.sampled_from(held) | values if held else values
    match draw(st.sampled_from(["=", "in", *(["and", "or", "not"] if depth else [])])):
        case "=":
            wanted = draw(one)
            return EqualTo(name, wanted), lambda row: None if row[name] is None else row[name] == wanted
        case "in":
            several = set(draw(st.lists(one, min_size=1, max_size=4)))
            return In(name, several), lambda row: None if row[name] is None else row[name] in several
        case "not":
            inner, meets = draw(questions(rows, depth - 1))
            return Not(inner), lambda row: None if meets(row) is None else not meets(row)
        case both:
            (left, first), (right, second) = (draw(questions(rows, depth - 1)) for _ in range(2))
            decides = both == "or"  # one True decides an OR, one False an AND; otherwise null is contagious
            return (Or if decides else And)(left, right), lambda row: _joined(decides, first(row), second(row))


def _joined(decides: bool, *parts: bool | None) -> bool | None:
    return decides if decides in parts else None if None in parts else not decides


ROWS = st.lists(st.fixed_dictionaries({name: st.none() | of for name, of in VALUES.items()}), min_size=1, max_size=8)


@given(ROWS, st.data())
@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_a_file_that_is_excluded_holds_no_matching_row(rows: list[Row], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (file,) = written(Path(folder), rows, ALL)
        cache = BloomCache()
        for _ in range(12):
            wanted, meets = data.draw(questions(rows))
            probe = plan_probe(SCHEMA, ALL, wanted, cache)
            assert probe is None or probe(file) or not any(meets(row) is True for row in rows), wanted


@pytest.mark.parametrize("name", FILTERED)
def test_every_type_excludes_and_agrees_with_duckdb(tmp_path: Path, name: str) -> None:
    """The property above would hold if nothing were ever excluded; DuckDB reads the same filters by its own code."""
    chosen = st.lists(VALUES[name], min_size=20, max_size=20, unique=True)
    values = _example(chosen, name)
    inside, outside = values[:10], values[10:]
    (file,) = written(tmp_path, [{name: value} for value in inside], ALL)
    found = [plan_probe(SCHEMA, ALL, EqualTo(name, value), BloomCache()) for value in [*inside, *outside]]
    answers = [probe(file) for probe in found if probe is not None]
    assert answers[: len(inside)] == [True] * len(inside)
    assert not any(answers[len(inside) :])
    path = str(local_path(file.file_path))
    for value in [*inside, *outside] if "." not in name else []:
        excluded = duckdb.execute("SELECT * FROM parquet_bloom_probe(?, ?, ?)", [path, name, value]).fetchall()
        # DuckDB leaves out what it cannot hash; what it excludes, it must exclude as we do.
        assert not all(row[-1] for row in excluded) or value in outside, value


def _example(strategy: st.SearchStrategy[list[Any]], name: str) -> list[Any]:
    cities = ["oslo", "rome", "ulm", *(f"city {n}" for n in range(17))]
    if name == "place.city":
        return cities
    found: list[Any] = []

    @given(strategy)
    @settings(max_examples=1, database=None, derandomize=True)
    def take(values: list[Any]) -> None:
        found[:] = values

    take()
    return found


def test_floats_and_booleans_have_no_filters(tmp_path: Path) -> None:
    """Spark finds no -0.0 where it asks a filter for 0.0."""
    assert set(bloom_columns(SCHEMA, ALL)) == {*FILTERED, "tags.element"}
    (file,) = written(tmp_path, [{"g": -0.0, "f": -0.0, "b": True, "n": 1}], ALL)
    group = pq.read_metadata(local_path(file.file_path)).row_group(0)
    chunks = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    found = {name for name, chunk in chunks.items() if chunk.bloom_filter_offset is not None}
    assert found == {*FILTERED, "tags.list.element"}
    for name in ("f", "g", "b"):
        assert plan_probe(SCHEMA, ALL, EqualTo(name, 0.0 if name != "b" else False), BloomCache()) is None


def test_a_table_that_asks_for_no_filters_has_none(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [{"n": 1}], {ENABLED + "n": "false"})
    assert pq.read_metadata(local_path(file.file_path)).row_group(0).column(1).bloom_filter_offset is None
    assert plan_probe(SCHEMA, {ENABLED + "n": "false"}, EqualTo("n", 2), BloomCache()) is None
    probe = plan_probe(SCHEMA, ALL, EqualTo("n", 2), BloomCache())  # asked for later: this file has none
    assert probe is not None
    assert probe(file)


def test_the_property_for_false_positives_is_heeded() -> None:
    asked = {ENABLED + "n": "TRUE", FALSE_POSITIVES + "n": "0.2", ENABLED + "s": "true", FALSE_POSITIVES + "s": "many"}
    assert bloom_options(SCHEMA, asked, 1000) == {"n": {"ndv": 1000, "fpp": 0.2}, "s": {"ndv": 1000, "fpp": 0.01}}


def test_a_damaged_filter_excludes_nothing(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [{"n": n} for n in range(3)], {ENABLED + "n": "true"})
    path = local_path(file.file_path)
    probe = plan_probe(SCHEMA, ALL, EqualTo("n", 1), BloomCache())
    assert probe is not None
    good = path.read_bytes()
    chunk = pq.read_metadata(path).row_group(0).column(1)
    start, end = chunk.bloom_filter_offset, chunk.bloom_filter_offset + chunk.bloom_filter_length
    for bit in range(start * 8, end * 8):
        body = bytearray(good)
        body[bit // 8] ^= 1 << bit % 8
        _rewrite(path, bytes(body))
        assert probe(file)
    _rewrite(path, good)
    assert probe(file)
    path.unlink()
    assert probe(file)  # whoever reads it gets the error


def _rewrite(path: Path, body: bytes) -> None:
    path.write_bytes(body)
    os.utime(path, ns=(next(NANOS), next(NANOS)))  # the clock of file systems is too coarse to tell two writes apart


def test_what_is_asked_is_bounded(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [{"n": 0}], ALL)
    probe = plan_probe(SCHEMA, ALL, EqualTo("n", 1), BloomCache())
    assert probe is not None
    assert [probe(file) for _ in range(MAX_PROBED + 2)] == [False] * MAX_PROBED + [True] * 2
    assert plan_probe(SCHEMA, ALL, In("n", set(range(MAX_VALUES))), BloomCache()) is not None
    assert plan_probe(SCHEMA, ALL, In("n", set(range(MAX_VALUES + 1))), BloomCache()) is None


def test_a_widened_column_is_not_asked(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [{"i": 7, "small": Decimal("1.00")}], ALL)
    widened = Schema(NestedField(1, "i", LongType()), NestedField(3, "small", DecimalType(12, 2)))
    for wanted in (EqualTo("i", 7), EqualTo("i", 8), EqualTo("small", Decimal("2.00"))):
        probe = plan_probe(widened, ALL, wanted, BloomCache())
        assert probe is not None
        assert probe(file)


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64(data: bytes, hashed: int) -> None:
    assert xxh64(data) == hashed
