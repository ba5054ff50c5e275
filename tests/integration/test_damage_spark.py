"""Checksums and bloom filters between the engines: files that Spark wrote, and files that Spark reads."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headwater.engine import Lake
from headwater.errors import Corrupt
from headwater.storage.bloom_columns import ENABLED
from headwater.storage.checksums import verify_file
from headwater.storage.writer import local_path

pytestmark = pytest.mark.spark


def flip(path: Path, bit: int) -> None:
    body = bytearray(path.read_bytes())
    body[bit // 8] ^= 1 << bit % 8
    path.write_bytes(body)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"write.parquet.page-version": "v2", "write.parquet.compression-codec": "gzip"},
        {"write.parquet.compression-codec": "uncompressed", ENABLED + "n": "true"},
        {"write.parquet.dict-size-bytes": "1024", "write.parquet.page-size-bytes": "4096"},
    ],
    ids=["defaults", "version 2", "uncompressed, blooms", "dictionary given up"],
)
def test_files_that_spark_wrote_are_verified(spark: Any, properties: dict[str, str]) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.damage")
    spark.sql("DROP TABLE IF EXISTS lake.damage.t")
    rows = spark.range(20_000).selectExpr(
        "id AS n", "IF(id % 5 = 0, NULL, concat('k', id % 3000)) AS s", "CAST(id AS DECIMAL(12, 2)) / 4 AS d",
        "timestamp_micros(id * 1000) AS at", "array(CAST(id AS STRING), 'x') AS tags", "map('k', id) AS by",
    )  # fmt: skip
    writer = rows.coalesce(1).writeTo("lake.damage.t").using("iceberg")
    for name, value in properties.items():
        writer = writer.tableProperty(name, value)
    writer.create()
    ((location,),) = spark.sql("SELECT file_path FROM lake.damage.t.files").collect()
    path = local_path(location)
    assert verify_file(path, rows=20_000) is False
    chunk = pq.read_metadata(path).row_group(0).column(0)
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    for bit in random.Random(3).sample(range((end - 20) * 8, end * 8), 20):  # in the last page's body
        flip(path, bit)
        with pytest.raises(Corrupt):
            verify_file(path, ["n"])
        flip(path, bit)
    spark.sql("DROP TABLE lake.damage.t")


BLOOMS = {
    "i": ("INT", lambda n: n * 13 - 900),
    "n": ("BIGINT", lambda n: n * 7919),
    "small": ("DECIMAL(9, 2)", lambda n: Decimal(n) / 4),
    "price": ("DECIMAL(18, 4)", lambda n: Decimal(-n) / 16),
    "wide": ("DECIMAL(38, 5)", lambda n: Decimal(n * 10**20)),
    "day": ("DATE", lambda n: dt.date(1969, 12, 1) + dt.timedelta(days=n * 3)),
    "at": ("TIMESTAMP", lambda n: dt.datetime(1969, 12, 31, tzinfo=dt.UTC) + dt.timedelta(hours=n, microseconds=n)),
    "local": ("TIMESTAMP_NTZ", lambda n: dt.datetime(1969, 12, 31) + dt.timedelta(hours=n, microseconds=n)),
    "s": ("STRING", lambda n: f"k{n:03}ä"),
    "u": ("UUID", lambda n: str(uuid.UUID(int=n << 90 | n))),
    "g": ("DOUBLE", lambda n: -0.0 if n % 4 == 3 else n + 0.5),
}
LITERALS = {
    "day": "DATE '{}'", "at": "TIMESTAMP '{}'", "local": "TIMESTAMP_NTZ '{}'", "s": "'{}'", "u": "'{}'", "g": "{}D",
}  # fmt: skip


def test_engines_agree_on_columns_with_bloom_filters(lake: Lake) -> None:
    lake.sql("CREATE TOPIC blooms (" + ", ".join(f"{name} {of}" for name, (of, _) in BLOOMS.items()) + ")")
    with lake._tables.load_for_commit(lake.topics.load("blooms").table_name).transaction() as transaction:
        transaction.set_properties({ENABLED + name: "true" for name in BLOOMS})
    for start in (0, 3):  # two files whose ranges overlap
        rows = [{name: make(n) for name, (_, make) in BLOOMS.items()} for n in range(start, start + 300, 6)]
        lake.topic("blooms").append(rows)
        lake.flush("blooms")
    for name, (_, make) in BLOOMS.items():
        for n in (6, 9, 7):
            wanted = 0.0 if name == "g" else make(n)
            text = f"SELECT count(*) AS c FROM blooms WHERE {name} = {LITERALS.get(name, '{}').format(wanted)}"
            found = lake.sql(text, engine="spark").rows()
            assert found == [{"c": 25 if name == "g" else int(n != 7)}], text
            answered = lake.sql(text)
            assert answered.rows() == found, text
            scan = answered.info["plan"]["scans"][0]
            skipped = 0 if name == "g" else 2 if n == 7 else 1
            assert scan["skipped_by_bloom_filter"] == skipped, (text, scan)
    lake.sql("DROP TOPIC blooms")


def test_a_damaged_page_is_the_same_error_on_both_engines(lake: Lake) -> None:
    lake.sql("CREATE TOPIC damaged (n BIGINT, s STRING) WITH (compression = 'none')")
    lake.topic("damaged").append([{"n": n, "s": f"k{n % 7}"} for n in range(1000)])
    lake.flush("damaged")
    path = next(local_path(lake.topics.load("damaged").table.location()).rglob("*.parquet"))
    chunk = pq.read_metadata(path).row_group(0).column(0)
    flip(path, (chunk.data_page_offset + chunk.total_compressed_size - 5) * 8)
    for engine in ("spark", "duckdb"):
        with pytest.raises(Corrupt) as found:
            lake.sql("SELECT sum(n) AS n FROM damaged", engine=engine).rows()
        assert "headwater doctor --deep" in str(found.value.hint)
        assert lake.sql("SELECT count(s) AS c FROM damaged WHERE s <> ''", engine=engine).rows() == [{"c": 1000}]
    lake.sql("DROP TOPIC damaged")


def test_damage_is_not_written_anew(lake: Lake) -> None:
    lake.sql("CREATE TOPIC laundered (n BIGINT, s STRING)")
    lake.topic("laundered").append([{"n": n, "s": f"k{n % 7}"} for n in range(100)])
    lake.flush("laundered")
    path = next(local_path(lake.topics.load("laundered").table.location()).rglob("*.parquet"))
    flip(path, path.read_bytes().rindex(b"parquet-cpp") * 8)  # which no reader looks at
    assert lake.sql("SELECT count(s) AS c FROM laundered WHERE n < 50", engine="spark").rows() == [{"c": 50}]
    for statement in ("DELETE FROM laundered WHERE n = 1", "UPDATE laundered SET s = 'x' WHERE n = 1"):
        with pytest.raises(Corrupt):
            lake.sql(statement)
    assert lake.sql("DELETE FROM laundered WHERE TRUE").rows(), "what goes whole is not read again"
    lake.sql("DROP TOPIC laundered")
