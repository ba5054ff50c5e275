"""Other readers of the lake: PyIceberg and plain Spark see what Headwater has committed, at every moment."""

from __future__ import annotations

import datetime as dt
import itertools
import re
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from headwater.engine import Lake
from headwater.storage.schemas import FIELD_ID, arrow_schema
from headwater.storage.writer import local_path

pytestmark = pytest.mark.spark

COLUMNS = """
    b BOOLEAN, i INT, n BIGINT NOT NULL, f FLOAT, g DOUBLE, d DECIMAL(9, 2), wide DECIMAL(38, 10), day DATE,
    at TIMESTAMP, local TIMESTAMP_NTZ, s STRING, u UUID, x FIXED(3), raw BINARY, tags ARRAY<STRING>,
    by MAP<STRING, INT>, place STRUCT<city: STRING, at: STRUCT<x: DOUBLE, y: DOUBLE>>,
    deep ARRAY<STRUCT<k: INT, v: ARRAY<DATE>>>
"""
FLAT = ("b", "i", "n", "f", "g", "d", "wide", "day", "at", "local", "s", "_offset", "_timestamp")
PARTITIONINGS = [
    "",
    "PARTITIONED BY (days(at), bucket(3, s))",
    "PARTITIONED BY (months(day), truncate(2, s))",
    "PARTITIONED BY (b, truncate(10, n))",
    "PARTITIONED BY (hours(local), u)",
    "PARTITIONED BY (years(at), d)",
]


@pytest.fixture
def catalog(lake: Lake) -> Iterator[SqlCatalog]:
    """The lake as PyIceberg alone opens it."""
    opened = SqlCatalog("lake", uri=f"sqlite:///{lake.paths.catalog}")
    yield opened
    opened.close()


_numbers = itertools.count()


def create(lake: Lake, columns: str, rest: str = "") -> str:
    name = f"interop{next(_numbers)}"
    lake.sql(f"CREATE TOPIC {name} ({columns}) {rest}")
    return name


def record(n: int) -> dict[str, Any]:
    """A record with a value in every column, or, now and then, none in those that may lack one."""
    if n % 7 == 3:
        return {"n": n, "deep": []}  # PyIceberg 0.12 reads a list of structs that is null as an empty one
    moment = dt.datetime(1969, 12, 30) + dt.timedelta(hours=7 * n, microseconds=n)
    return {
        "b": n % 2 == 0,
        "i": (-1) ** n * (2**31 - 1 - n),
        "n": n,
        "f": n / 4,
        "g": [1e300, float("inf"), -0.0][n % 3],
        "d": Decimal(n * 100 - 1) / 100,
        "wide": Decimal("-12345678901234567890.0123456789"),
        "day": moment.date(),
        "at": moment.replace(tzinfo=dt.UTC),
        "local": moment,
        "s": ["", "päö", "日本語", "x" * 50][n % 4],
        "u": uuid.UUID(int=n % 3),
        "x": bytes([n % 256, 0, 255]),
        "raw": b"" if n % 2 else b"\x00\xff",
        "tags": [] if n % 2 else ["a", None],
        "by": {"k": n, "null": None},
        "place": {"city": "oslo", "at": {"x": 1.5, "y": None}},
        "deep": [{"k": n, "v": [moment.date()]}, None],
    }


def plain(value: Any) -> Any:
    """A value as every reader can be asked for it: UUIDs and bytes in one spelling, maps as sorted pairs."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return [plain(row) for row in table.sort_by("_offset").to_pylist()]


@pytest.mark.parametrize("partitioning", PARTITIONINGS, ids=lambda text: text.removeprefix("PARTITIONED BY ") or "none")
def test_every_reader_sees_the_same_after_every_commit(
    lake: Lake, catalog: SqlCatalog, spark: Any, partitioning: str
) -> None:
    name = create(lake, COLUMNS, partitioning)
    for commit in range(3):
        records = [record(n) for n in range(commit * 20, commit * 20 + 20)]
        lake.topic(name).append(records)
        lake.topic(name).append(records[:1])
        before = committed(lake, name, catalog, spark)
        assert len(before) == commit * 21  # the tail is nobody else's business
        lake.flush(name)
        after = committed(lake, name, catalog, spark)
        assert after[: len(before)] == before
        assert [row["n"] for row in after[len(before) :]] == [each["n"] for each in [*records, records[0]]]
    check_values(after)


def committed(lake: Lake, name: str, catalog: SqlCatalog, spark: Any) -> list[dict[str, Any]]:
    """The committed rows, about which all readers agree."""
    by_iceberg = rows_of(catalog.load_table(("topics", name)).scan().to_arrow())
    by_spark = rows_of(spark.table(f"lake.topics.{name}").toArrow())
    assert by_spark == by_iceberg
    flat = ", ".join(FLAT)
    ours = lake.sql(f"SELECT {flat} FROM {name} ORDER BY _offset", tail=False, engine="duckdb").rows()
    assert ours == [{column: row[column] for column in FLAT} for row in by_iceberg]
    assert rows_of(lake.sql(f"SELECT * FROM {name}", tail=False).arrow()) == by_iceberg
    return by_iceberg


def check_values(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        sent = record(row["n"])
        assert row["_offset"] >= 0
        for column, value in sent.items():
            expected = sorted(value.items()) if isinstance(value, dict) and column == "by" else value
            found = sorted(row[column]) if column == "by" and row[column] is not None else row[column]
            assert found == plain(expected), column


def test_types_that_spark_lacks_are_read_by_the_others(lake: Lake, catalog: SqlCatalog) -> None:
    name = create(lake, "n BIGINT, t TIME")
    lake.topic(name).append([{"n": 1, "t": dt.time(23, 59, 59, 999_999)}, {"n": 2, "t": None}])
    lake.flush(name)
    expected = [{"n": 1, "t": dt.time(23, 59, 59, 999_999)}, {"n": 2, "t": None}]
    assert catalog.load_table(("topics", name)).scan().to_arrow().select(["n", "t"]).to_pylist() == expected
    assert [row["n"] for row in lake.sql(f"SELECT n FROM {name} ORDER BY n", tail=False)] == [1, 2]


def test_files_carry_ids_checksums_and_names(lake: Lake, catalog: SqlCatalog) -> None:
    name = create(lake, COLUMNS, "PARTITIONED BY (bucket(2, n))")
    lake.topic(name).append([record(n) for n in range(50)])
    lake.flush(name)
    table = catalog.load_table(("topics", name))
    files = [local_path(task.file.file_path) for task in table.scan().plan_files()]
    assert len(files) == 2
    today = dt.datetime.now(dt.UTC)
    for file in files:
        match = re.fullmatch(rf"{name}_data_(\d{{8}})_[0-9a-hjkmnp-tv-z]{{26}}\.parquet", file.name)
        assert match and match[1] in {f"{today - dt.timedelta(days=days):%Y%m%d}" for days in (0, 1)}
        assert _ids(pq.read_schema(file)) == _ids(arrow_schema(table.schema()))
        assert pq.read_table(file, page_checksum_verification=True).num_rows
    assert_checksums_are_there(files[0])


def _ids(fields: Any) -> list[tuple[str, bytes]]:
    """Names and field ids, depth first. What Parquet calls the parts of lists and maps does not matter."""
    found = []
    for field in fields:
        found.append((field.name, field.metadata[FIELD_ID]))
        of = field.type
        if pa.types.is_struct(of):
            found += _ids(of)
        elif pa.types.is_map(of):
            found += [("part", ids) for _, ids in _ids([of.key_field, of.item_field])]
        elif pa.types.is_list(of):
            found += [("part", ids) for _, ids in _ids([of.value_field])]
    return found


def assert_checksums_are_there(file: Path) -> None:
    """A flipped bit in a page is noticed by whoever verifies checksums."""
    column = pq.read_metadata(file).row_group(0).column(2)
    copy = file.with_suffix(".damaged")
    data = bytearray(file.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    copy.write_bytes(data)
    with pytest.raises(OSError, match=r"CRC|checksum"):
        pq.read_table(copy, page_checksum_verification=True)
    copy.unlink()


def test_snapshots_say_which_offsets_they_added(lake: Lake, catalog: SqlCatalog, spark: Any) -> None:
    name = create(lake, "n BIGINT")
    for size in (3, 5, 1):
        lake.topic(name).append([{"n": n} for n in range(size)])
        lake.flush(name)
    table = catalog.load_table(("topics", name))
    assert _ranges(table) == [(0, 3), (3, 8), (8, 9)]
    assert table.properties["headwater.offset"] == "9"
    summaries = spark.sql(f"SELECT summary FROM lake.topics.{name}.snapshots ORDER BY committed_at").collect()
    assert [int(row.summary["headwater.offset-to"]) for row in summaries] == [3, 8, 9]
    first = table.metadata.snapshots[0].snapshot_id
    assert table.scan(snapshot_id=first).to_arrow().num_rows == 3
    assert spark.read.option("versionAsOf", first).table(f"lake.topics.{name}").count() == 3


def _ranges(table: Table) -> list[tuple[int, int]]:
    summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
    return [
        (int(each["headwater.offset-from"] or 0), int(each["headwater.offset-to"] or 0))
        for each in summaries
        if each is not None
    ]


def test_readers_are_right_while_an_ingest_runs(lake: Lake, catalog: SqlCatalog, spark: Any) -> None:
    name = create(lake, "n BIGINT NOT NULL", "PARTITIONED BY (bucket(2, n))")
    done = threading.Event()

    def produce() -> None:
        try:
            for commit in range(25):
                for part in range(4):
                    lake.topic(name).append([{"n": commit * 40 + part * 10 + k} for k in range(10)])
                lake.flush(name)
        finally:
            done.set()

    producer = threading.Thread(target=produce)
    producer.start()
    seen: dict[str, int] = {"iceberg": 0, "spark": 0}
    while not done.is_set():
        table = catalog.load_table(("topics", name))
        offsets = table.scan(selected_fields=("n", "_offset")).to_arrow().sort_by("_offset")
        by_spark = spark.sql(f"SELECT n, _offset FROM lake.topics.{name} ORDER BY _offset").toArrow()
        assert int(table.properties["headwater.offset"]) == offsets.num_rows
        for reader, found in (("iceberg", offsets), ("spark", by_spark)):
            assert found.column("_offset").to_pylist() == list(range(found.num_rows)) == found.column("n").to_pylist()
            assert found.num_rows >= seen[reader]
            seen[reader] = found.num_rows
    producer.join()
    assert catalog.load_table(("topics", name)).scan().to_arrow().num_rows == 1000
    assert spark.table(f"lake.topics.{name}").count() == 1000
