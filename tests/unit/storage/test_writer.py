from __future__ import annotations

import datetime as dt
import itertools
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from headwater.catalog.definitions import partition_spec
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import Layout, PartitionedWriter, Target, local_path, split_by_partition
from headwater.types import Partition, TopicDefinition

SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=True),
    NestedField(2, "who", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "u", UUIDType()),
    NestedField(6, "price", DecimalType(10, 2)),
    NestedField(7, "place", StructType(NestedField(8, "city", StringType()))),
)


def spec(*parts: Partition) -> PartitionSpec:
    return partition_spec(TopicDefinition("t", SCHEMA, parts), SCHEMA)


def rows(count: int) -> pa.Table:
    base = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return pa.Table.from_pylist(
        [
            {
                "n": n,
                "who": None if n % 5 == 0 else f"user{n % 7}",
                "at": None if n % 11 == 0 else base + dt.timedelta(hours=n),
                "day": dt.date(1969, 12, 30) + dt.timedelta(days=n % 4),
                "u": uuid.UUID(int=n % 3).bytes,
                "price": Decimal(n) / 4,
                "place": None if n % 6 == 0 else {"city": f"c{n % 2}"},
            }
            for n in range(count)
        ],
        schema=pa.schema(
            [field.with_type(pa.binary(16)) if field.name == "u" else field for field in arrow_schema(SCHEMA)]
        ),
    ).cast(arrow_schema(SCHEMA))


def target(folder: Path, by: PartitionSpec, *, bytes: int = 1 << 30, rows: int = 1000) -> Target:
    return Target("t", folder.as_uri(), SCHEMA, by, Layout("zstd", None, bytes, rows), {})


def written(folder: Path, by: PartitionSpec, table: pa.Table, **more: int) -> list:
    ids = (f"ID{i:04}" for i in itertools.count())
    writer = PartitionedWriter(target(folder, by, **more), lambda: next(ids), lambda: dt.datetime(2026, 2, 3))
    for start in range(0, table.num_rows, 97):
        writer.write(table.slice(start, 97))
    return writer.close()


PARTITIONINGS = [
    (),
    (Partition("identity", "who"),),
    (Partition("day", "at"),),
    (Partition("hour", "at"), Partition("bucket", "who", 4)),
    (Partition("identity", "day"), Partition("truncate", "who", 4)),
    (Partition("bucket", "u", 2),),
    (Partition("identity", "u"),),
    (Partition("identity", "price"),),
    (Partition("truncate", "price", 100),),
    (Partition("identity", "place.city"),),
    (Partition("day", "at"), Partition("bucket", "at", 3)),
]


@pytest.mark.parametrize("parts", PARTITIONINGS, ids=lambda parts: "+".join(map(str, parts)) or "none")
def test_every_row_is_in_its_partition_once_and_in_order(parts: tuple[Partition, ...]) -> None:
    table = rows(200)
    by = spec(*parts)
    seen: set[tuple[object, ...]] = set()
    found: list[int] = []
    for partition, part in split_by_partition(table, SCHEMA, by):
        key = tuple(partition[i] for i in range(len(partition)))
        assert key not in seen
        seen.add(key)
        numbers = part.column("n").to_pylist()
        assert numbers == sorted(numbers)
        found += numbers
    assert sorted(found) == list(range(200))


@pytest.mark.parametrize("parts", PARTITIONINGS, ids=lambda parts: "+".join(map(str, parts)) or "none")
def test_files_hold_exactly_the_rows(tmp_path: Path, parts: tuple[Partition, ...]) -> None:
    table = rows(500)
    files = written(tmp_path, spec(*parts), table)
    read = pa.concat_tables(pq.read_table(local_path(file.file_path), schema=arrow_schema(SCHEMA)) for file in files)
    assert read.sort_by("n").equals(table)
    assert sum(file.record_count for file in files) == 500


def test_names_checksums_and_field_ids(tmp_path: Path) -> None:
    (file,) = written(tmp_path, UNPARTITIONED_PARTITION_SPEC, rows(10))
    path = local_path(file.file_path)
    assert path.name == "t_data_20260203_id0000.parquet"
    assert path.parent == tmp_path / "data"
    schema = pq.read_schema(path)
    assert schema.field("n").metadata[b"PARQUET:field_id"] == b"1"
    metadata = pq.read_metadata(path)
    assert metadata.row_group(0).column(0).has_offset_index
    pq.read_table(path, page_checksum_verification=True)


def test_a_flipped_bit_is_found_by_the_page_checksum(tmp_path: Path) -> None:
    (file,) = written(tmp_path, UNPARTITIONED_PARTITION_SPEC, rows(1000))
    path = local_path(file.file_path)
    column = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError):
        pq.read_table(path, page_checksum_verification=True)


def test_files_rotate_at_their_target_size(tmp_path: Path) -> None:
    files = written(tmp_path, UNPARTITIONED_PARTITION_SPEC, rows(5000), bytes=1, rows=1000)
    assert len(files) == 5
    assert [file.record_count for file in files] == [1067, 1067, 1067, 1067, 732]


def test_many_partitions_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.storage.writer.MAX_OPEN_FILES", 2)
    files = written(tmp_path, spec(Partition("identity", "who")), rows(500))
    assert sum(file.record_count for file in files) == 500
    assert len(files) > 8  # files were closed early and begun again


def test_statistics_bound_the_rows(tmp_path: Path) -> None:
    (file,) = written(tmp_path, UNPARTITIONED_PARTITION_SPEC, rows(100))
    assert int.from_bytes(file.lower_bounds[1], "little") == 0
    assert int.from_bytes(file.upper_bounds[1], "little") == 99
    assert file.null_value_counts[2] == 20


def test_abort_leaves_no_file(tmp_path: Path) -> None:
    ids = (str(i) for i in itertools.count())
    writer = PartitionedWriter(target(tmp_path, spec(Partition("identity", "who")), rows=10), lambda: next(ids))
    writer.write(rows(100))
    writer.abort()
    assert list(tmp_path.rglob("*.parquet")) == []
