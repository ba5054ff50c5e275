"""Layouts by way of Spark: what ingest and rewrites leave in files, that all engines read it, and what Spark skips."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.errors import HeadwaterError, InvalidOption
from headwater.sql.definition import encodes
from headwater.sql.option_pairs import CODECS, ENCODINGS
from headwater.sql.schema_text import parse_type
from headwater.storage.checksums import verify_file
from headwater.storage.encodings import PARQUET_ENCODINGS
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.schemas import arrow_schema, arrow_type
from headwater.storage.writer import local_path

pytestmark = pytest.mark.spark

TYPES: dict[str, Callable[[int], Any]] = {
    "BOOLEAN": lambda n: n % 3 == 0,
    "INT": lambda n: n * 7 - 100,
    "BIGINT": lambda n: n * 10**12 - 5,
    "FLOAT": lambda n: n / 4,
    "DOUBLE": lambda n: n / 3,
    "DECIMAL(9, 2)": lambda n: Decimal(n).scaleb(-2),
    "DECIMAL(18, 2)": lambda n: Decimal(n * 10**10).scaleb(-2),
    "DECIMAL(38, 2)": lambda n: Decimal(n * 10**20).scaleb(-2),
    "DATE": lambda n: dt.date(1960, 1, 1) + dt.timedelta(days=n),
    "TIMESTAMP": lambda n: dt.datetime(1960, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n, microseconds=n),
    "TIMESTAMP_NTZ": lambda n: dt.datetime(1960, 1, 1) + dt.timedelta(seconds=n, microseconds=n),
    "STRING": lambda n: f"päö {n * n}",
    "UUID": lambda n: str(uuid.UUID(int=n * 37 % 256 << 120 | n)),
    "FIXED(5)": lambda n: n.to_bytes(5, "big"),
    "BINARY": lambda n: bytes([n % 256]) * (n % 7),
}
GRID = [(of, "dictionary") for of in TYPES if of != "BOOLEAN"] + [
    (of, encoding) for of in TYPES for encoding in ENCODINGS if encodes(encoding, parse_type(of))
]
NAMES = [f"c{number}" for number in range(len(GRID))]
ROWS = 300


def files_of(lake: Lake, name: str) -> list[DataFile]:
    topic = lake.topics.load(name)
    return list(plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), ManifestCache()).files)


def grid_row(n: int) -> dict[str, Any]:
    flat = {
        name: None if n % 11 == 3 else TYPES[of](n % 10 if encoding == "dictionary" else n)
        for name, (of, encoding) in zip(NAMES, GRID, strict=True)
    }
    return {
        "n": n,
        **flat,
        "nested": None if n % 13 == 5 else dict(flat),
        "many": [flat[name] for name in MANY][: n % 5],
    }


MANY = [name for name, (of, _) in zip(NAMES, GRID, strict=True) if of == "BIGINT"]


def grid_topic(lake: Lake, codec: str) -> DataFile:
    columns = ", ".join(f"{name} {of}" for name, (of, _) in zip(NAMES, GRID, strict=True))
    inner = ", ".join(f"{name}: {of}" for name, (of, _) in zip(NAMES, GRID, strict=True))
    set_to = [
        f"{path}={encoding}"
        for name, (_, encoding) in zip(NAMES, GRID, strict=True)
        for path in (name, f"nested.{name}")
        if encoding != "dictionary"
    ]
    switched = [
        f"{path}=on"
        for name, (_, encoding) in zip(NAMES, GRID, strict=True)
        for path in (name, f"nested.{name}")
        if encoding == "dictionary"
    ]
    lake.sql(
        f"CREATE TOPIC grid_{codec} (n INT, {columns}, nested STRUCT<{inner}>, many ARRAY<BIGINT>) WITH ("
        f"compression = '{codec}', encoding_columns = '{', '.join(set_to)}', "
        f"dictionary_columns = '{', '.join(switched)}', page_size = '4kb')"
    )
    lake.topic(f"grid_{codec}").append(pa.Table.from_pylist([grid_row(n) for n in range(ROWS)], schema=grid_schema()))
    lake.flush(f"grid_{codec}")
    (file,) = files_of(lake, f"grid_{codec}")
    return file


def grid_schema() -> pa.Schema:
    types = {name: arrow_type(parse_type(of)) for name, (of, _) in zip(NAMES, GRID, strict=True)}
    plain = {name: pa.string() if of == pa.uuid() else of for name, of in types.items()}
    return pa.schema({"n": pa.int32(), **plain, "nested": pa.struct(plain), "many": pa.list_(pa.int64())})


def shown(value: Any) -> Any:
    """A value however an engine shows it: UUIDs as text or bytes, moments with any zone."""
    match value:
        case dict():
            return {name: shown(each) for name, each in value.items()}
        case list():
            return [shown(each) for each in value]
        case uuid.UUID():
            return str(value)
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        case _:
            return value


@pytest.mark.parametrize("codec", CODECS)
def test_every_engine_reads_every_encoding(lake: Lake, spark: Any, codec: str) -> None:
    file = grid_topic(lake, codec)
    path = local_path(file.file_path)
    assert verify_file(path, rows=ROWS)
    group = pq.read_metadata(path).row_group(0)
    chunks = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    for name, (of, encoding) in zip(NAMES, GRID, strict=True):
        wanted = "RLE_DICTIONARY" if encoding == "dictionary" else PARQUET_ENCODINGS[encoding]
        for chunk in (chunks[name], chunks[f"nested.{name}"]):
            assert wanted in chunk.encodings, (of, encoding)
            assert chunk.compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    columns = ["n", *NAMES, "nested", "many"]
    expected = [shown({name: row[name] for name in columns}) for row in map(grid_row, range(ROWS))]
    with duckdb.connect() as duck:
        found = duck.sql(f"SELECT {', '.join(columns)} FROM read_parquet('{path}') ORDER BY n").to_arrow_table()
    assert [shown(row) for row in found.to_pylist()] == expected
    read = pq.read_table(path, columns=columns, schema=arrow_schema(lake.topics.load(f"grid_{codec}").schema))
    assert [shown(row) for row in read.to_pylist()] == expected
    table = spark.table(f"lake.topics.grid_{codec}").orderBy("n")
    # Without nested columns, Iceberg's vectorised reader reads; with them, the one that goes row by row.
    flat = table.select("n", *NAMES).toArrow().to_pylist()
    assert [shown(row) for row in flat] == [{name: row[name] for name in ("n", *NAMES)} for row in expected]
    assert [shown(row) for row in table.select(*columns).toArrow().to_pylist()] == expected


@pytest.mark.parametrize("of", ["DECIMAL(38, 2)", "UUID", "FIXED(5)"])
def test_what_duckdb_does_not_read_is_refused(lake: Lake, of: str) -> None:
    with pytest.raises(InvalidOption, match="byte_stream_split is for") as refused:
        lake.sql(f"CREATE TOPIC refused (c {of}) WITH (encoding_columns = 'c=byte_stream_split')")
    assert "does not take column" in refused.value.message


ORDERS = """
    CREATE TOPIC {name} (id BIGINT NOT NULL, customer STRING, price DOUBLE, day DATE)
    PARTITIONED BY (day) {order} WITH (compression_columns = 'customer=gzip:9', bloom_columns = 'customer',
    encoding_columns = 'id=delta', row_group_rows = 1000)
"""


def order(n: int) -> dict[str, Any]:
    who = None if n % 17 == 0 else f"customer {n * 7919 % 1000:03}"
    return {"id": n, "customer": who, "price": n * 31 % 500 / 4, "day": f"2026-01-0{n % 2 + 1}"}


def check_ordered(file: DataFile) -> None:
    path = local_path(file.file_path)
    assert verify_file(path, rows=file.record_count)
    rows = pq.read_table(path, columns=["customer", "id"]).to_pylist()
    keys = [(row["customer"] is None, row["customer"] or "", row["id"]) for row in rows]
    expected = sorted(keys, key=lambda key: key[2])
    expected = sorted(expected, key=lambda key: key[1], reverse=True)
    assert keys == sorted(expected, key=lambda key: key[0])
    assert file.sort_order_id == 1
    group = pq.read_metadata(path).row_group(0)
    assert [column.column_index for column in group.sorting_columns] == [1, 0]
    assert (group.column(0).compression, group.column(1).compression) == ("ZSTD", "GZIP")
    assert "DELTA_BINARY_PACKED" in group.column(0).encodings
    assert group.column(1).bloom_filter_offset is not None


def test_ingest_and_rewrites_keep_order_and_settings(lake: Lake) -> None:
    lake.sql(ORDERS.format(name="ordered", order="ORDERED BY (customer DESC NULLS LAST, id)"))
    lake.topic("ordered").append([order(n) for n in range(5000)])
    lake.flush("ordered")
    before = files_of(lake, "ordered")
    assert len(before) >= 2
    lake.sql("UPDATE ordered SET customer = 'customer 0', price = -1.5 WHERE id % 1000 = 7")
    lake.sql("DELETE FROM ordered WHERE id % 5 = 0")
    after = files_of(lake, "ordered")
    assert {file.file_path for file in before}.isdisjoint(file.file_path for file in after)
    for file in (*before, *after):
        check_ordered(file)
    rows = lake.sql("SELECT count(*) AS n, sum(price) AS p, count(customer) AS c FROM ordered", engine="spark").rows()
    left = [{**order(n), **({"customer": "x", "price": -1.5} if n % 1000 == 7 else {})} for n in range(5000) if n % 5]
    named = sum(row["customer"] is not None for row in left)
    assert rows == [{"n": 4000, "p": sum(row["price"] for row in left), "c": named}]


def test_a_clustered_topic_skips_by_either_column(lake: Lake) -> None:
    lake.sql(ORDERS.format(name="clustered", order="CLUSTERED BY ZORDER (customer, price)"))
    lake.topic("clustered").append([order(n) for n in range(16_000)])
    lake.flush("clustered")
    (first, *_) = files_of(lake, "clustered")
    assert first.sort_order_id is None
    metadata = pq.read_metadata(local_path(first.file_path))
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    assert len(groups) >= 3
    for column, value in ((1, "customer 500"), (2, 31.0)):
        bounds = [group.column(column).statistics for group in groups]
        assert sum(each.min <= value <= each.max for each in bounds) <= len(groups) * 0.75


FILTERS = [
    "day = DATE '2026-01-01'",
    "day <> DATE '2026-01-01'",
    "id < 100",
    "id <= 99 AND NOT (customer IS NULL)",
    "id > 300",
    "id >= 301 OR id = 5",
    "NOT (id < 250 OR id > 260)",
    "id BETWEEN 90 AND 110",
    "id IN (5, 350, NULL)",
    "customer IS NULL",
    "customer IS NOT NULL",
    "customer LIKE 'b%'",
    "startswith(customer, 'b1')",
    "customer <=> 'b7'",
    "place.city = 'c7'",
    "price > 1000",
    "NOT (price < 1000)",
    "price <> 0.5",
    "flag",
    "NOT flag",
]


def test_spark_skips_what_the_plan_says_and_loses_no_row(lake: Lake, spark: Any) -> None:
    lake.sql(
        "CREATE TOPIC skipped (id BIGINT, customer STRING, price DOUBLE, day DATE, flag BOOLEAN, "
        "place STRUCT<city: STRING>) PARTITIONED BY (day)"
    )
    rows = [
        {
            "id": n,
            "customer": None if n // 100 == 2 else f"{'abbc'[n // 100]}{n % 10}",
            "price": math.nan if n == 150 else 0.5 if n >= 300 else n / 4,
            "day": f"2026-01-0{n % 2 + 1}",
            "flag": n < 200,
            "place": {"city": f"c{n // 100}"},
        }
        for n in range(400)
    ]
    for start in range(0, 400, 100):
        table = pa.Table.from_pylist(rows[start : start + 100])
        lake.topic("skipped").append(table.set_column(3, "day", table.column("day").cast(pa.date32())))
        lake.flush("skipped")
    useful = 0
    for text in FILTERS:
        query = f"SELECT id FROM skipped WHERE {text}"
        (scan,) = lake.sql(f"EXPLAIN {query}", engine="spark").info["plan"]["scans"]
        frame = spark.sql(query.replace("skipped", "lake.topics.skipped"))
        found, read = sorted(row.id for row in frame.collect()), scanned_files(frame)
        assert read <= scan["files"] < 9, text
        if (plan := lake.sql(f"EXPLAIN {query}").info["plan"])["engine"] == "duckdb":
            assert found == sorted(row["id"] for row in lake.sql(query, engine="duckdb")), (text, plan)
        useful += scan["files"] < scan["files_total"]
    assert useful >= 15
    nans = lake.sql("SELECT id FROM skipped WHERE price > 1000", engine="spark").rows()
    assert nans == [{"id": 150}] == lake.sql("SELECT id FROM skipped WHERE price > 1000", engine="duckdb").rows()


def test_spark_opens_no_file_that_the_plan_skips(lake: Lake) -> None:
    lake.sql("CREATE TOPIC unopened (id BIGINT, s STRING) WITH (bloom_columns = 's')")
    for start in (0, 1):
        lake.topic("unopened").append([{"id": n, "s": f"k{n:04}"} for n in range(start, 400, 2)])
        lake.flush("unopened")
    query = "SELECT id, reverse(s) AS r FROM unopened WHERE s = 'k0007'"
    plan = lake.sql(f"EXPLAIN {query}").info["plan"]
    assert (plan["engine"], plan["scans"][0]["files"], plan["scans"][0]["skipped_by_bloom_filter"]) == ("spark", 1, 1)
    paths = [local_path(file.file_path) for file in files_of(lake, "unopened")]
    (skipped,) = (path for path in paths if 7 not in pq.read_table(path).column("id").to_pylist())
    stored = skipped.read_bytes()
    skipped.write_bytes(stored[:4] + bytes(64) + stored[68:])  # the first page of it cannot be read any more
    assert lake.sql(query).rows() == [{"id": 7, "r": "7000k"}]
    with pytest.raises(HeadwaterError):
        lake.sql(query.replace("0007", "0008")).rows()
    skipped.write_bytes(stored)


def test_conditions_that_iceberg_fails_on_are_answered(lake: Lake) -> None:
    lake.sql("CREATE TOPIC prefixes (id BIGINT, s STRING, raw BINARY) PARTITIONED BY (s)")
    lake.topic("prefixes").append([{"id": 1, "s": "ab", "raw": "AA=="}, {"id": 2, "s": None, "raw": "AQ=="}])
    lake.flush("prefixes")
    for condition in ("s LIKE 'a%' OR id = 1", "raw IN (X'00', NULL)", "startswith(s, 'a') OR id < 2"):
        for engine in ("spark", "auto"):
            assert lake.sql(f"SELECT id FROM prefixes WHERE {condition}", engine=engine).rows() == [{"id": 1}], (
                condition
            )


def scanned_files(frame: Any) -> int:
    """How many data files Spark's own scan read, after it has run."""
    nodes = [frame._jdf.queryExecution().executedPlan()]
    while nodes:
        node = nodes.pop()
        if "Scan" in node.nodeName():
            if node.metrics().contains("resultDataFiles"):
                return int(node.metrics().apply("resultDataFiles").value())
            return 0
        children = [node.executedPlan()] if node.nodeName() == "AdaptiveSparkPlan" else []
        nodes += children or [node.children().apply(at) for at in range(node.children().size())]
    return 0  # the optimiser saw that there is nothing to read
