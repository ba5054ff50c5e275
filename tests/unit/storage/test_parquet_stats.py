from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.committed import commit_rows

import headwater
from headwater.engine import Lake
from headwater.errors import Corrupt
from headwater.storage.distincts import Distincts, spread
from headwater.storage.parquet_footers import Footers, field_id, read_facts
from headwater.storage.parquet_stats import ColumnStats, files_schema, live_files, table_stats
from headwater.storage.scan import ManifestCache
from headwater.storage.sketch import REGISTERS, Hashes, estimate, merged, sketch
from headwater.storage.writer import local_path

COLUMNS = """id BIGINT NOT NULL, who STRING, price DOUBLE, at TIMESTAMP, ok BOOLEAN, amount DECIMAL(12, 2), u UUID,
place STRUCT<city: STRING, tags: ARRAY<STRING>>"""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with headwater.init(tmp_path / "lake") as lake:
        yield lake


def rows(count: int, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "who": [None if n % 10 == 0 else f"user{n % 50}" for n in ids],
            "price": np.sqrt(ids),
            "at": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=int(n)) for n in ids],
            "ok": ids % 2 == 0,
            "amount": pa.array([Decimal(int(n) % 1000) for n in ids], pa.decimal128(12, 2)),
            "u": pa.array([int(n).to_bytes(16, "big") for n in ids], pa.binary(16)).cast(pa.uuid()),
            "place": [{"city": f"c{n % 3}", "tags": ["a", "b"][: n % 3]} for n in ids],
        }
    )


def by_name(columns: tuple[ColumnStats, ...]) -> dict[str, ColumnStats]:
    return {each.column: each for each in columns}


def test_statistics_are_those_of_the_files(lake: Lake) -> None:
    lake.sql(
        f"CREATE TOPIC t ({COLUMNS}) PARTITIONED BY (days(at)) "
        "WITH (bloom_columns = 'id', compression_columns = 'who=lz4, price=none', row_group_rows = 1000)"
    )
    topic = commit_rows(lake, "t", rows(3000), rows(500, 3000))
    stats = table_stats(topic, ManifestCache(), Footers(), Distincts())
    paths = [local_path(file.file_path) for file in live_files(topic, ManifestCache())]
    read = [pq.read_metadata(path) for path in paths]
    assert (stats.files, stats.rows) == (len(paths), 3500)
    assert stats.bytes == sum(path.stat().st_size for path in paths)
    assert stats.row_groups == sum(each.num_row_groups for each in read) > len(paths)
    assert (stats.small_files, stats.partitions) == (len(paths), 3)
    assert stats.sealed_files == stats.checksum_files == stats.page_index_files == len(paths)
    columns = by_name(stats.columns)
    assert list(columns) == [
        *("id", "who", "price", "at", "ok", "amount", "u", "place.city", "place.tags.element"),
        *("_offset", "_timestamp"),
    ]
    for place, each in enumerate(stats.columns):
        chunks = [meta.row_group(group).column(place) for meta in read for group in range(meta.num_row_groups)]
        assert each.compressed == sum(chunk.total_compressed_size for chunk in chunks)
        assert each.uncompressed == sum(chunk.total_uncompressed_size for chunk in chunks)
        assert each.values == sum(chunk.num_values for chunk in chunks)
        assert each.data_pages >= len(chunks)
    assert sum(each.share for each in stats.columns) == pytest.approx(1)
    assert columns["who"].codecs == ("lz4",) and columns["price"].codecs == ("none",)
    assert columns["who"].encodings == ("dictionary", "plain")  # the last day has too few rows for a dictionary
    assert 0 < columns["who"].dictionary_pages < stats.row_groups
    assert columns["id"].encodings == ("delta",) and columns["price"].encodings == ("plain",)
    assert columns["id"].bloom_files == len(paths) and columns["id"].bloom_bytes > 0 == columns["who"].bloom_bytes
    assert (columns["id"].min, columns["id"].max) == ("0", "3499")
    assert columns["at"].min == "2024-01-01T00:00:00+00:00" and columns["amount"].max == "999.00"
    assert columns["who"].nulls == 350 and columns["id"].nulls == 0
    assert columns["who"].distinct == pytest.approx(45, rel=0.1)
    assert columns["u"].distinct == pytest.approx(3500, rel=0.1)
    assert columns["ok"].distinct == 2 and columns["id"].distinct_rows == 3500
    assert columns["place.city"].distinct is None
    assert table_stats(topic, ManifestCache(), Footers()).columns[0].distinct is None


def test_an_empty_topic_has_none(lake: Lake) -> None:
    lake.sql(f"CREATE TOPIC t ({COLUMNS})")
    stats = table_stats(lake.topics.load("t"), ManifestCache(), Footers(), Distincts())
    assert (stats.files, stats.rows, stats.bytes, stats.columns) == (0, 0, 0, ())
    assert files_schema(lake.topics.load("t"), ManifestCache(), Footers()).columns == ()


def test_rows_in_order_are_counted(lake: Lake) -> None:
    lake.sql("CREATE TOPIC t (id BIGINT, who STRING) ORDERED BY (who)")
    topic = commit_rows(lake, "t", rows(100))
    assert table_stats(topic, ManifestCache(), Footers()).ordered_rows == 100
    lake.sql("CREATE TOPIC plain (id BIGINT, who STRING)")
    assert table_stats(commit_rows(lake, "plain", rows(100)), ManifestCache(), Footers()).ordered_rows == 0


@pytest.mark.leaves_damage
def test_footers_are_read_once_and_a_damaged_one_is_named(lake: Lake) -> None:
    lake.sql(f"CREATE TOPIC t ({COLUMNS})")
    topic = commit_rows(lake, "t", rows(10), rows(10))
    first, second = (local_path(file.file_path) for file in live_files(topic, ManifestCache()))
    footers = Footers(max_files=1)
    before = table_stats(topic, ManifestCache(), footers)
    whole = second.read_bytes()
    second.write_bytes(whole[:-100] + b"\xff" * 20 + whole[-80:])
    with pytest.raises(Corrupt, match=str(second)):
        Footers().read([str(first), str(second)])
    second.unlink()
    with pytest.raises(Corrupt, match="is missing"):
        read_facts(str(second))
    second.write_bytes(whole)
    roomy = Footers()
    assert table_stats(topic, ManifestCache(), roomy) == before
    second.unlink()
    assert table_stats(topic, ManifestCache(), roomy) == before  # nothing is opened again


def test_the_schema_tells_types_and_how_files_differ(lake: Lake, tmp_path: Path) -> None:
    lake.sql(f"CREATE TOPIC t ({COLUMNS})")
    topic = commit_rows(lake, "t", rows(10))
    shown = {each.column: each for each in files_schema(topic, ManifestCache(), Footers()).columns}
    types = {name: (each.type.physical, each.type.logical, each.type.repetition) for name, each in shown.items()}
    assert types["id"] == ("INT64", "", "required")
    assert types["at"] == ("INT64", "TIMESTAMP(MICROS, UTC)", "optional")
    assert types["who"] == ("BYTE_ARRAY", "STRING", "optional")
    assert types["amount"] == ("INT64", "DECIMAL(12, 2)", "optional")
    assert types["u"] == ("FIXED_LEN_BYTE_ARRAY(16)", "UUID", "optional")
    assert types["place.tags.element"][2] == "repeated" and shown["place.tags.element"].type.path.count(".") == 3
    with lake.topics.tables.load_for_commit(topic.table_name).update_schema() as change:
        change.rename_column("who", "person")
        change.add_column("more", topic.schema.find_field("price").field_type)
        change.move_before("more", "_offset")
    topic = commit_rows(lake, "t", rows(10).rename_columns(_renamed).append_column("more", [[0.5] * 10]))
    found = files_schema(topic, ManifestCache(), Footers())
    shown = {each.column: each for each in found.columns}
    assert (found.files, shown["person"].files) == (2, 1)
    assert shown["person"].others == ("who optional BYTE_ARRAY STRING in 1",)
    assert shown["more"].others == ("missing in 1",) and shown["id"].others == ()
    columns = by_name(table_stats(topic, ManifestCache(), Footers(), Distincts()).columns)
    assert columns["person"].files == 2 and columns["person"].distinct == 9 and columns["more"].files == 1


_renamed = ["id", "person", "price", "at", "ok", "amount", "u", "place"]


def test_a_file_of_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(
        pa.table({"a": [1, 2, 2], "t": pa.array([1, 2, 3], pa.time64("us"))}), path, write_page_checksum=True
    )
    facts = read_facts(str(path))
    assert (facts.sealed, facts.checksums, facts.rows, facts.sorting) == (False, True, 3, False)
    assert [leaf.type.logical for leaf in facts.leaves] == ["", "TIME(MICROS)"]
    assert facts.leaves[0].codecs == {"snappy"} and facts.leaves[0].encodings == {"dictionary"}
    pq.write_table(pa.table({"a": [1]}), path)
    assert not read_facts(str(path)).checksums


def test_columns_of_files_without_ids_go_by_name(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC t (id BIGINT, who STRING)")
    topic = commit_rows(lake, "t", rows(10))
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"who": ["a"], "what": [1]}), path)
    who, what = (leaf.type for leaf in read_facts(str(path)).leaves)
    assert field_id(who, topic.schema) == topic.schema.find_field("who").field_id
    assert who.field_id is None and field_id(what, topic.schema) is None


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 400))
def test_files_are_spread_within_a_number_of_rows(sizes: list[int], most: int) -> None:
    chosen = spread(list(enumerate(sizes)), most, lambda file: file[1])
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(enumerate(sizes))
    assert bool(chosen) == bool(sizes)
    if sum(sizes) <= most:
        assert len(chosen) == len(sizes)
    else:
        assert len(chosen) <= max(1, len(sizes) * most // sum(sizes))


def test_sketches_estimate_and_merge() -> None:
    hashes = Hashes()
    for count in (0, 1, 100, 3000, 10_000, 200_000):
        values = [pa.array(np.arange(start, count, 3)) for start in range(3)]
        parts = [sketch([hashes.of(each)]) for each in values]
        assert estimate(merged(parts)) == pytest.approx(count, rel=0.1)
        assert (merged(parts) == sketch([hashes.of(pa.chunked_array(values))])).all()
    repeated = sketch([hashes.of(pa.array(["a", "b", None, "a"] * 1000))])
    assert estimate(repeated) == 2 and len(repeated) == REGISTERS


def test_distinct_values_of_a_large_table_come_from_some_files(lake: Lake) -> None:
    lake.sql("CREATE TOPIC t (id BIGINT, who STRING)")
    topic = commit_rows(lake, "t", *(rows(100, first) for first in range(0, 1000, 100)))
    counted = Distincts(max_values=4 * 300).count(
        topic, files := live_files(topic, ManifestCache()), Footers().read([file.file_path for file in files])
    )
    assert counted[1] == (pytest.approx(300, rel=0.1), 300)
