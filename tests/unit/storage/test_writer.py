from __future__ import annotations

import datetime as dt
import itertools
import math
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from headwater.catalog.definitions import partition_spec
from headwater.storage.layout import Layout
from headwater.storage.partitions import partition_key, split_by_partition
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import PartitionedWriter, Target, local_path
from headwater.types import Partition, SortKey, TopicDefinition

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


def sorting_writer(folder: Path, by: PartitionSpec, *, presorted: bool = False, **layout: object) -> PartitionedWriter:
    ids = (f"{number:04}" for number in itertools.count())
    how = Layout("zstd", None, **{"target_bytes": 1 << 30, "row_group_rows": 1000, **layout})  # type: ignore[arg-type]
    return PartitionedWriter(Target("t", folder.as_uri(), SCHEMA, by, how, {}), lambda: next(ids), presorted=presorted)


BY_WHO = {"ordering": (SortKey("who", True, False), SortKey("n", True)), "sort_order_id": 1}


def read(file: DataFile) -> pa.Table:
    return pq.read_table(local_path(file.file_path), schema=arrow_schema(SCHEMA))


def in_order(table: pa.Table) -> bool:
    found = [(row["who"] is None, row["who"], -row["n"]) for row in table.select(["who", "n"]).to_pylist()]
    runs = [list(each) for _, each in itertools.groupby(found, key=lambda row: row[1])]
    names = [run[0][1] for run in runs]
    values = [name for name in names if name is not None]
    nulls_last = None not in names[:-1] if names else True
    return nulls_last and values == sorted(values, reverse=True) and all(run == sorted(run) for run in runs)


@pytest.mark.parametrize("parts", [(), (Partition("bucket", "n", 3),)], ids=["none", "bucket"])
def test_every_file_is_in_order_and_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[Partition, ...]
) -> None:
    table = rows(3000)
    monkeypatch.setattr("headwater.storage.writer.SORT_BYTES", table.nbytes // 3)
    writer = sorting_writer(tmp_path, spec(*parts), **BY_WHO)
    for start in range(0, 3000, 100):
        writer.write(table.slice(start, 100))
        assert sum(each.nbytes for each in writer._unsorted) < table.nbytes // 3
    files = writer.close()
    assert len(files) == 3 * max(1, len(parts) * 3)
    assert pa.concat_tables(map(read, files)).sort_by("n").equals(table)
    assert all(in_order(read(file)) and file.sort_order_id == 1 for file in files)


def test_a_sorted_run_is_cut_at_the_target_size(tmp_path: Path) -> None:
    writer = sorting_writer(tmp_path, UNPARTITIONED_PARTITION_SPEC, target_bytes=1, row_group_rows=400, **BY_WHO)
    writer.write(rows(1000))
    files = writer.close()
    assert [file.record_count for file in files] == [400, 400, 200]
    assert in_order(pa.concat_tables(map(read, files)))


def test_rows_that_come_in_order_are_not_held(tmp_path: Path) -> None:
    ordered = rows(1000).sort_by([("who", "descending"), ("n", "descending")])
    writer = sorting_writer(tmp_path, UNPARTITIONED_PARTITION_SPEC, presorted=True, row_group_rows=300, **BY_WHO)
    for start in range(0, 1000, 100):
        writer.write(ordered.slice(start, 100))
        assert writer._unsorted == []
    (file,) = writer.close()
    assert read(file).equals(ordered)
    assert file.sort_order_id == 1
    assert pq.read_metadata(local_path(file.file_path)).num_row_groups == 4


def test_a_clustered_file_has_no_sort_order(tmp_path: Path) -> None:
    writer = sorting_writer(tmp_path, UNPARTITIONED_PARTITION_SPEC, clustering=("n", "who"))
    writer.write(rows(1000))
    (file,) = writer.close()
    assert file.sort_order_id is None
    assert not read(file).equals(rows(1000))
    assert read(file).sort_by("n").equals(rows(1000))


def test_abort_forgets_rows_that_wait_to_be_sorted(tmp_path: Path) -> None:
    writer = sorting_writer(tmp_path, UNPARTITIONED_PARTITION_SPEC, **BY_WHO)
    writer.write(rows(100))
    writer.abort()
    assert list(tmp_path.rglob("*.parquet")) == []


FLOATS = Schema(
    NestedField(1, "f", DoubleType()),
    NestedField(2, "g", FloatType()),
    NestedField(3, "in", StructType(NestedField(4, "x", DoubleType()), NestedField(5, "s", StringType()))),
    NestedField(6, "many", ListType(7, DoubleType(), False)),
)


def floats(*values: float | None) -> pa.Table:
    made = [{"f": value, "g": 1.5, "in": {"x": 2.5, "s": "a"}, "many": [math.nan]} for value in values]
    return pa.Table.from_pylist(made, schema=arrow_schema(FLOATS))


def written_floats(folder: Path, *tables: pa.Table, **layout: object) -> list[DataFile]:
    ids = (f"{number:04}" for number in itertools.count())
    how = Layout("zstd", None, **{"target_bytes": 1 << 30, "row_group_rows": 2, **layout})  # type: ignore[arg-type]
    writer = PartitionedWriter(
        Target("t", folder.as_uri(), FLOATS, UNPARTITIONED_PARTITION_SPEC, how, {}), lambda: next(ids)
    )
    for table in tables:
        writer.write(table)
    return writer.close()


def bounded(file: DataFile) -> set[str]:
    groups = pq.read_metadata(local_path(file.file_path))
    chunks = [groups.row_group(n).column(at) for n in range(groups.num_row_groups) for at in range(groups.num_columns)]
    return {chunk.path_in_schema for chunk in chunks if chunk.is_stats_set and chunk.statistics.has_min_max}


def test_a_file_has_no_bounds_for_a_column_with_nan(tmp_path: Path) -> None:
    first, second = written_floats(tmp_path, floats(1, 2, 3), floats(4), floats(5, math.nan), floats(None, 6, 7))
    assert [file.record_count for file in (first, second)] == [4, 5]  # the file with bounds ends where NaN begins
    assert bounded(first) == {"f", "g", "in.x", "in.s"}
    assert bounded(second) == {"g", "in.x", "in.s"}
    assert first.nan_value_counts == {1: 0, 2: 0, 4: 0}
    assert second.nan_value_counts == {1: 1, 2: 0, 4: 0}
    assert first.lower_bounds.keys() == {1, 2, 4, 5}  # fields of structs have bounds, elements of lists do not
    assert second.lower_bounds.keys() == second.upper_bounds.keys() == {2, 4, 5}


def test_a_sorted_file_with_nan_is_one_file(tmp_path: Path) -> None:
    ordering = (SortKey("f"),)
    (file,) = written_floats(tmp_path, floats(3, math.nan, 1), floats(2, 5, 4), ordering=ordering, sort_order_id=1)
    found = pq.read_table(local_path(file.file_path)).column("f").to_pylist()
    assert found[:5] == [1, 2, 3, 4, 5]
    assert math.isnan(found[5])
    assert "f" not in bounded(file)


def test_zeros_of_both_signs_are_two_partitions_and_nan_is_one() -> None:
    schema = Schema(NestedField(1, "d", DoubleType()), NestedField(2, "f", FloatType()))
    fields = [PartitionField(id, 1000 + id, IdentityTransform(), name) for id, name in ((1, "d"), (2, "f"))]
    nan = math.nan
    pairs = [(0.0, 1.0), (nan, 1.0), (-0.0, 1.0), (0.0, 1.0), (nan, 1.0), (None, nan), (None, -nan), (None, -0.0)]
    table = pa.table({"d": [d for d, _ in pairs], "f": pa.array([f for _, f in pairs], pa.float32())})
    found = list(split_by_partition(table, schema, PartitionSpec(*fields)))
    assert sorted((repr(record), part.num_rows) for record, part in found) == [
        ("Record[-0.0, 1.0]", 1),
        ("Record[0.0, 1.0]", 2),
        ("Record[None, -0.0]", 1),
        ("Record[None, nan]", 2),
        ("Record[nan, 1.0]", 2),
    ]
    assert len({partition_key(record) for record, _ in found}) == 5
