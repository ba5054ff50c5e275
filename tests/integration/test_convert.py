"""Columnar files into a topic through Spark, and what is recommended then, down to the files that follow it."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from headwater.engine import Lake
from headwater.errors import InvalidInput, RecordsRejected

pytestmark = pytest.mark.spark

_names = (f"convert{number}" for number in itertools.count())

COLUMNS = """
    id BIGINT NOT NULL, who STRING, score FLOAT, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(10, 2),
    body BINARY, tags ARRAY<BIGINT>, place STRUCT<city: STRING, zip: INT>
"""
ROWS = 12_000


def rows(count: int = ROWS) -> pa.Table:
    base = dt.datetime(2024, 1, 1)
    moments = [base + dt.timedelta(seconds=n) for n in range(count)]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "who": [None if n % 9 == 0 else f"user {n % 100}" for n in range(count)],
            "score": pa.array([n / 4 for n in range(count)], pa.float32()),
            "day": pa.array([moment.date() for moment in moments], pa.date32()),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "local": pa.array(moments, pa.timestamp("us")),
            "price": pa.array([Decimal(n) / 4 for n in range(count)], pa.decimal128(10, 2)),
            "body": [f"b{n % 7}".encode() for n in range(count)],
            "tags": pa.array([list(range(n % 3)) for n in range(count)], pa.list_(pa.int64())),
            "place": [None if n % 5 == 0 else {"city": f"c{n % 3}", "zip": n} for n in range(count)],
        }
    ).cast(pa.schema({**{f.name: f.type for f in _types()}}))


def _types() -> list[pa.Field]:
    place = pa.struct({"city": pa.string(), "zip": pa.int32()})
    return [
        *(pa.field("id", pa.int64()), pa.field("who", pa.string()), pa.field("score", pa.float32())),
        *(
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("local", pa.timestamp("us")),
        ),
        *(pa.field("price", pa.decimal128(10, 2)), pa.field("body", pa.binary())),
        *(pa.field("tags", pa.list_(pa.int64())), pa.field("place", place)),
    ]


def made(lake: Lake, columns: str = COLUMNS, more: str = "") -> str:
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} ({columns}) {more}")
    return name


def stored(lake: Lake, name: str) -> list[dict[str, Any]]:
    return (
        lake.sql(f"SELECT * FROM {name} ORDER BY _offset").arrow().drop_columns(["_offset", "_timestamp"]).to_pylist()
    )


def test_parquet_orc_and_avro_give_the_same_rows(lake: Lake, spark: Any, tmp_path: Path) -> None:
    table = rows()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    orc.write_table(table, tmp_path / "a.orc", stripe_size=32 * 1024)
    assert orc.ORCFile(tmp_path / "a.orc").nstripes > 3
    spark.read.parquet(str(tmp_path / "a.parquet")).coalesce(1).write.format("avro").save(str(tmp_path / "avro"))
    (found,) = (tmp_path / "avro").glob("*.avro")
    avro = found.rename(tmp_path / "_ä [1] {b,c} 100%20.avro")  # Spark would take some of this for a pattern
    expected = table.to_pylist()
    for file in (tmp_path / "a.parquet", tmp_path / "a.orc", avro):
        name = made(lake)
        (done,) = lake.convert(name, file)
        assert (done["status"], done["rows"], done["start"], done["end"]) == ("converted", ROWS, 0, ROWS), file
        assert stored(lake, name) == expected, file
        assert lake.convert(name, file)[0]["status"] == "already converted"
        lake.sql(f"DROP TOPIC {name}")
    assert not list(lake.paths.scratch.rglob("part-*.arrow"))


def test_types_that_spark_does_not_read_come_in(lake: Lake, tmp_path: Path) -> None:
    ids = [uuid.UUID(int=n) for n in range(5)]
    table = pa.table(
        {
            "u": pa.array([each.bytes for each in ids], pa.binary(16)).cast(pa.uuid()),
            "t": pa.array([dt.time(1, 2, n) for n in range(5)], pa.time64("us")),
            "ns": pa.array([dt.datetime(2024, 1, 1, n) for n in range(5)], pa.timestamp("ns")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    name = made(lake, "u UUID, t TIME, ns TIMESTAMP_NTZ")
    assert lake.convert(name, tmp_path / "a.parquet")[0]["rows"] == 5
    assert lake.sql(f"SELECT CAST(u AS STRING) AS u FROM {name} ORDER BY u", engine="duckdb").rows() == [
        {"u": str(each)} for each in ids
    ]


def test_files_that_do_not_fit_leave_nothing(lake: Lake, tmp_path: Path) -> None:
    name = made(lake, "id BIGINT NOT NULL, who STRING")
    pq.write_table(pa.table({"id": [1, 2, None, 4], "who": ["a"] * 4}), tmp_path / "nulls.parquet", row_group_size=1)
    with pytest.raises(RecordsRejected, match=r"nulls\.parquet: topic") as refused:
        lake.convert(name, tmp_path / "nulls.parquet")
    assert 'row 3, field "id"' in (refused.value.detail or "")
    pq.write_table(pa.table({"id": ["x"], "who": ["a"]}), tmp_path / "type.parquet")
    with pytest.raises(RecordsRejected, match=r"type\.parquet: arrow columns do not match") as refused:
        lake.convert(name, tmp_path / "type.parquet")
    assert '"id"' in (refused.value.detail or "")
    for kind in ("parquet", "orc", "avro"):
        (tmp_path / f"bad.{kind}").write_bytes(b"this is no such file")
        with pytest.raises(InvalidInput, match=rf"bad\.{kind}\" is not (Parquet|ORC|Avro)"):
            lake.convert(name, tmp_path / f"bad.{kind}")
    (tmp_path / "bad.avro").write_bytes(b"Obj\x01 and then nothing of it")
    with pytest.raises(InvalidInput, match="is not Avro"):
        lake.convert(name, tmp_path / "bad.avro")
    pq.write_table(rows(5000), tmp_path / "torn.parquet")
    whole = (tmp_path / "torn.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(whole[:200] + b"\xff" * 2000 + whole[2200:])
    with pytest.raises(InvalidInput, match="is not Parquet"):
        lake.convert(made(lake), tmp_path / "torn.parquet")
    assert stored(lake, name) == []


def test_what_is_recommended_is_in_the_next_files(lake: Lake, tmp_path: Path) -> None:
    name = made(lake, "id BIGINT, note STRING, at TIMESTAMP", "WITH (row_group_rows = 1000)")
    chance = random.Random(7)
    ids = chance.sample(range(10_007), 10_007)
    at = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=chance.randrange(600_000)) for _ in ids]
    notes = [
        f'{{"path": "/items/{n}", "took": {chance.randrange(900)}, "trace": "{chance.getrandbits(160):x}"}}'
        for n in ids
    ]
    pq.write_table(pa.table({"id": ids, "note": notes, "at": at}), tmp_path / "a.parquet")
    assert lake.convert(name, tmp_path / "a.parquet")[0]["rows"] == 10_007
    lake.flush(name)
    for n in range(5):
        lake.sql(f"SELECT note FROM {name} WHERE id = {n * 1000}").rows()
        hours = (f"at {bound} TIMESTAMP '2024-01-0{n + 1} {hour}:00:00'" for bound, hour in ((">=", "06"), ("<", "12")))
        lake.sql(f"SELECT count(*) FROM {name} WHERE {' AND '.join(hours)}").rows()
    before = lake.topic(name).parquet_stats()
    about = lake.topic(name).recommend(apply=True)
    assert about["applied"] and about["queries"] == 10
    kinds = {(each["kind"], tuple(each["columns"])) for each in about["recommendations"]}
    assert {("ordering", ("at",)), ("bloom_filter", ("id",))} <= kinds
    lake.sql(f"OPTIMIZE {name} FULL").rows()
    after = lake.topic(name).parquet_stats()
    old, new = ({each["column"]: each for each in stats["columns"]} for stats in (before, after))
    assert after["rows"] == before["rows"] == after["ordered_rows"] and before["ordered_rows"] == 0
    assert old["id"]["bloom_files"] == 0 < new["id"]["bloom_files"] == after["files"]
    assert new["at"]["compressed"] < 0.8 * old["at"]["compressed"]
    plan = lake.sql(f"EXPLAIN SELECT note FROM {name} WHERE id = 7", tail=False).info["plan"]
    assert plan["scans"][0]["files"] <= 1
