"""Exact files read and written through Spark: the same rows as any other way, and nothing left over."""

from __future__ import annotations

import datetime as dt
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, EqualTo, GreaterThan, In, IsNull, LessThan, Or
from pyiceberg.manifest import DataFile
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
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import functions as F  # noqa: N812

from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.topics import Topic, Topics
from headwater.errors import Corrupt, InvalidSchema, QueryFailed, RecordsRejected
from headwater.storage.commit import Change, append, commit
from headwater.storage.read_spark import read_files, read_snapshot
from headwater.storage.schemas import arrow_schema
from headwater.storage.write_spark import short_rows, write_frame
from headwater.storage.writer import Layout, PartitionedWriter, Target, local_path
from headwater.topics.ingest import POSITION, target, with_system_columns
from headwater.types import Offsets, Partition, TopicDefinition

pytestmark = pytest.mark.spark

COLUMNS = Schema(
    NestedField(1, "n", LongType(), required=True),
    NestedField(2, "b", BooleanType()),
    NestedField(3, "i", IntegerType()),
    NestedField(4, "f", FloatType()),
    NestedField(5, "g", DoubleType()),
    NestedField(6, "d", DecimalType(9, 2)),
    NestedField(7, "wide", DecimalType(38, 10)),
    NestedField(8, "day", DateType()),
    NestedField(9, "at", TimestamptzType()),
    NestedField(10, "local", TimestampType()),
    NestedField(11, "s", StringType()),
    NestedField(12, "u", UUIDType()),
    NestedField(13, "x", FixedType(3)),
    NestedField(14, "raw", BinaryType()),
    NestedField(15, "ids", ListType(16, UUIDType(), False)),
    NestedField(17, "by", MapType(18, StringType(), 19, FixedType(3), False)),
    NestedField(
        20,
        "place",
        StructType(NestedField(21, "city", StringType()), NestedField(22, "id", UUIDType(), required=True)),
    ),
)
SIMPLE = Schema(NestedField(1, "n", LongType()), NestedField(2, "s", StringType()), NestedField(3, "g", DoubleType()))
PARTITIONINGS = [
    (),
    (Partition("day", "at"), Partition("bucket", "s", 3)),
    (Partition("identity", "u"),),
    (Partition("identity", "d"), Partition("truncate", "s", 2)),
]
_names = (f"stored{number}" for number in itertools.count())


def record(n: int) -> dict[str, Any]:
    if n % 7 == 3:
        return {"n": n}
    moment = dt.datetime(1969, 12, 30) + dt.timedelta(hours=7 * n, microseconds=n)
    return {
        "n": n,
        "b": n % 2 == 0,
        "i": (-1) ** n * (2**31 - 1 - n),
        "f": n / 4,
        "g": [1e300, float("inf"), -0.0, float("nan")][n % 4],
        "d": Decimal(n * 100 - 1) / 100,
        "wide": Decimal("-12345678901234567890.0123456789"),
        "day": moment.date(),
        "at": moment.replace(tzinfo=dt.UTC),
        "local": moment,
        "s": ["", "päö", "日本語", "x" * 50][n % 4],
        "u": uuid.UUID(int=n % 3).bytes,
        "x": bytes([n % 256, 0, 255]),
        "raw": bytes(range(n % 5)),
        "ids": [None, uuid.UUID(int=n).bytes] * (n % 3),
        "by": [("k", bytes([1, 2, n % 256])), ("z", None)][: n % 3],
        "place": None if n % 5 == 0 else {"city": f"c{n}", "id": uuid.UUID(int=n + 5).bytes},
    }


def _storable(of: pa.DataType) -> pa.DataType:
    """`of` with plain binary for UUIDs, which PyArrow cannot build from Python values at depth."""
    if of == pa.uuid():
        return pa.binary(16)
    if pa.types.is_list(of):
        return pa.list_(of.value_field.with_type(_storable(of.value_type)))
    if pa.types.is_struct(of):
        return pa.struct([field.with_type(_storable(field.type)) for field in of.fields])
    return of


def rows(schema: Schema, numbers: Sequence[int]) -> pa.RecordBatch:
    wanted = arrow_schema(schema)
    plain = pa.schema([field.with_type(_storable(field.type)) for field in wanted])
    made = [{key: value for key, value in record(n).items() if key in wanted.names} for n in numbers]
    return pa.Table.from_pylist(made, schema=plain).cast(wanted).combine_chunks().to_batches()[0]


@pytest.fixture(scope="module")
def topics(spark: Any, spark_lake: Path) -> Iterator[Topics]:
    create_catalog_file(spark_lake / "catalog.db", 5.0)
    tables = Tables(spark_lake / "catalog.db", spark_lake / "warehouse", 5.0)
    tables.catalog.create_namespace_if_not_exists("topics")
    yield Topics(tables)
    tables.close()


def make(topics: Topics, schema: Schema, parts: tuple[Partition, ...] = ()) -> Topic:
    return topics.create(TopicDefinition(next(_names), schema, parts))


def fill(topics: Topics, topic: Topic, offsets: Offsets, row_group_rows: int = 1000) -> list[DataFile]:
    """Commit the records of `offsets`; the files, all of one commit."""
    topic = topics.load(topic.name)
    into = target(topic)
    into = Target(
        into.table,
        into.location,
        into.schema,
        into.spec,
        Layout("zstd", None, 1 << 30, row_group_rows),
        into.properties,
    )
    writer = PartitionedWriter(into, lambda: uuid.uuid4().hex)
    batch = rows(topic.definition.schema, range(offsets.start, offsets.end))
    for start in range(0, len(offsets), row_group_rows):
        part = batch.slice(start, row_group_rows)
        at = Offsets(offsets.start + start, offsets.start + start + part.num_rows)
        writer.write(pa.Table.from_batches([with_system_columns(part, at, 0)]))
    files = writer.close()
    append(lambda: topics.tables.load_for_commit(topic.table_name), files, offsets, POSITION, topic.id)
    return files


def plain(frame: Any) -> list[str]:
    """A frame's rows as text, in an order that depends on them alone; NaN equals NaN."""
    return sorted(str(row) for row in frame.collect())


def numbers(frame: Any) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def staged(spark: Any, topic: Topic) -> int:
    jvm = spark.sparkContext._gateway.jvm.org.apache.iceberg.spark
    table = jvm.Spark3Util.loadIcebergTable(spark._jsparkSession, f"lake.{topic.table_name}")
    return int(jvm.ScanTaskSetManager.get().fetchSetIds(table).size())


@pytest.mark.parametrize("parts", PARTITIONINGS, ids=lambda parts: "+".join(map(str, parts)) or "none")
def test_all_files_are_the_table(spark: Any, topics: Topics, parts: tuple[Partition, ...]) -> None:
    topic = make(topics, COLUMNS, parts)
    first, second = fill(topics, topic, Offsets(0, 20)), fill(topics, topic, Offsets(20, 30))
    whole = spark.table(f"lake.{topic.table_name}")
    with read_files(spark, topic.table_name, [*first, *second]) as frame:
        assert frame.schema == whole.schema
        assert plain(frame) == plain(whole)
    with read_files(spark, topic.table_name, second) as frame:
        assert numbers(frame) == list(range(20, 30))
    assert staged(spark, topic) == 0


def test_a_file_that_is_in_no_snapshot_any_more_is_read(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    files = fill(topics, topic, Offsets(0, 5))
    topics.tables.load_for_commit(topic.table_name).delete()
    assert spark.table(f"lake.{topic.table_name}").count() == 0
    with read_files(spark, topic.table_name, files) as frame:
        assert numbers(frame) == [0, 1, 2, 3, 4]


def test_no_files_are_no_rows_of_the_same_columns(spark: Any, topics: Topics) -> None:
    topic = make(topics, COLUMNS)
    with read_files(spark, topic.table_name, []) as frame:
        assert frame.schema == spark.table(f"lake.{topic.table_name}").schema
        assert frame.collect() == []


def test_files_written_before_the_schema_changed(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    old = fill(topics, topic, Offsets(0, 3))
    with topics.tables.load_for_commit(topic.table_name).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("g")
        change.rename_column("s", "text")
        change.add_column("more", LongType())
    whole = spark.table(f"lake.{topic.table_name}")
    with read_files(spark, topic.table_name, old) as frame:
        assert frame.columns == ["n", "text", "_offset", "_timestamp", "more"]
        assert plain(frame) == plain(whole)
        assert [row.text for row in frame.orderBy("n").collect()] == ["", "päö", "日本語"]


def test_only_the_columns_that_are_asked_for_are_read(spark: Any, topics: Topics) -> None:
    topic = make(topics, COLUMNS)
    files = fill(topics, topic, Offsets(0, 10))
    with read_files(spark, topic.table_name, files) as frame:
        scan = scans(frame.groupBy("s").agg(F.sum("n")))
        assert scan.keys() == {"n", "s"}


def scans(frame: Any) -> dict[str, int]:
    """The columns that the frame's one scan reads, with the number of rows it gave."""
    frame.collect()
    node = frame._jdf.queryExecution().executedPlan()
    while "BatchScan" not in node.nodeName():
        name = node.nodeName()
        if name == "AdaptiveSparkPlan":
            node = node.executedPlan()
        elif "QueryStage" in name:
            node = node.plan()
        else:
            node = node.children().apply(0)
    output = node.output()
    given = node.metrics().apply("numOutputRows").value()
    return {output.apply(index).name(): given for index in range(output.size())}


FILTERS: list[tuple[BooleanExpression, int]] = [
    (LessThan("n", 1500), 2000),
    (GreaterThan("n", 1500), 3000),
    (And(GreaterThan("n", 999), LessThan("n", 1001)), 1000),
    (In("n", {5, 3999}), 2000),
    (Or(EqualTo("n", -1), EqualTo("_offset", 0)), 1000),
    (IsNull("n"), 0),
    (LessThan("at", "1970-01-01T00:00:00+00:00"), 1000),
    (LessThan("at", dt.datetime(1970, 1, 1, tzinfo=dt.UTC)), 1000),
    (LessThan("day", "1970-01-01"), 1000),
    (GreaterThan("d", Decimal("3000.00")), 1000),
    (EqualTo("raw", b"nothing"), 4000),
    (EqualTo("place.city", "nowhere"), 4000),
    (AlwaysFalse(), 0),
]


@pytest.fixture(scope="module")
def grouped(topics: Topics) -> tuple[Topic, list[DataFile]]:
    """4000 rows in row groups of 1000."""
    topic = make(topics, COLUMNS)
    files = fill(topics, topic, Offsets(0, 4000))
    return topic, files


@pytest.mark.parametrize(("row_filter", "read"), FILTERS, ids=str)
def test_row_groups_that_cannot_match_are_not_read(
    spark: Any, grouped: tuple[Topic, list[DataFile]], row_filter: BooleanExpression, read: int
) -> None:
    topic, files = grouped
    with read_files(spark, topic.table_name, files, row_filter) as frame:
        assert set(scans(frame.select("n")).values()) == {read}
        assert set(scans(frame.select("s", "_file")).values()) == {read}  # although the filter's columns are not wanted


def test_a_missing_file_is_named(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    (file,) = fill(topics, topic, Offsets(0, 3))
    local_path(file.file_path).unlink()
    with pytest.raises(Corrupt, match=f'file "{file.file_path}" of table "{topic.name}" does not exist'):
        read_files(spark, topic.table_name, [file]).__enter__()
    topics.drop(topic.name)


def test_a_frame_that_failed_or_was_left_frees_its_files(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    files = fill(topics, topic, Offsets(0, 3))
    with pytest.raises(ZeroDivisionError), read_files(spark, topic.table_name, files):
        assert staged(spark, topic) == 1
        raise ZeroDivisionError
    assert staged(spark, topic) == 0


def test_a_snapshot_is_read_as_it_was(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    fill(topics, topic, Offsets(0, 3))
    before = topics.load(topic.name).snapshot_id
    fill(topics, topic, Offsets(3, 5))
    assert before is not None
    assert numbers(read_snapshot(spark, topic.table_name, before)) == [0, 1, 2]


# -- writing --------------------------------------------------------------------------------------------------------


def data_files(topic: Topic) -> set[Path]:
    return set(local_path(topic.table.location()).rglob("*.parquet"))


@pytest.mark.parametrize("parts", PARTITIONINGS, ids=lambda parts: "+".join(map(str, parts)) or "none")
def test_a_frame_written_is_the_frame_read(spark: Any, topics: Topics, parts: tuple[Partition, ...]) -> None:
    topic = make(topics, COLUMNS, parts)
    files = fill(topics, topic, Offsets(0, 40))
    with read_files(spark, topic.table_name, files) as frame:
        copies = write_frame(frame.repartition(3), target(topic))
        assert sum(file.record_count for file in copies) == 40
        assert not {file.file_path for file in files} & {file.file_path for file in copies}
        with read_files(spark, topic.table_name, copies) as copied:
            assert plain(copied) == plain(frame)
        if parts:
            assert {file.partition for file in copies} == {file.partition for file in files}
        assert {file.spec_id for file in copies} == {topic.table.spec().spec_id}
    bounds = {key: value for file in copies for key, value in file.lower_bounds.items()}
    assert bounds.keys() == {key for file in files for key in file.lower_bounds}


def test_a_replacement_is_known_to_spark(spark: Any, topics: Topics) -> None:
    """Iceberg's Java side reads the operation, the totals and the files that PyIceberg wrote for us."""
    topic = make(topics, COLUMNS, PARTITIONINGS[1])
    files = [*fill(topics, topic, Offsets(0, 10)), *fill(topics, topic, Offsets(10, 20))]
    name = f"lake.{topic.table_name}"
    before = plain(spark.table(name))
    with read_files(spark, topic.table_name, files) as frame:
        merged = write_frame(frame.coalesce(1), target(topic))
    commit(lambda: topics.tables.load_for_commit(topic.table_name), Change(merged, files, "replace"), lambda _: None)
    assert plain(spark.table(name)) == before
    told = spark.sql(f"SELECT operation, summary['total-records'] n FROM {name}.snapshots ORDER BY committed_at")
    assert [(row.operation, row.n) for row in told.collect()] == [("append", "10"), ("append", "20"), ("replace", "20")]
    assert spark.table(f"{name}.files").count() == len(merged) < len(files)


def test_empty_tasks_write_nothing(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    files = fill(topics, topic, Offsets(0, 3))
    with read_files(spark, topic.table_name, files) as frame:
        assert len(write_frame(frame.coalesce(1), target(topic))) == 1
        assert write_frame(frame.where("n < 0").repartition(3), target(topic)) == []
        assert len(write_frame(frame.repartition(8, "n"), target(topic))) <= 3


def test_short_rows_are_passed_on_by_number_alone(spark: Any, topics: Topics) -> None:
    topic = make(topics, COLUMNS)
    files = fill(topics, topic, Offsets(0, 2500))
    assert short_rows([topics.load(topic.name).table])
    with read_files(spark, topic.table_name, files) as frame:
        (copy,) = write_frame(frame.coalesce(1), target(topic), short=True)
        with read_files(spark, topic.table_name, [copy]) as copied:
            assert plain(copied) == plain(frame)
        context = spark.sparkContext
        assert context.getLocalProperty("spark.sql.execution.arrow.maxBytesPerBatch") is None


def test_rows_are_short_by_what_their_tables_store(spark: Any, topics: Topics) -> None:
    short, wide = make(topics, SIMPLE), make(topics, SIMPLE)
    assert short_rows([short.table])  # nothing is stored
    fill(topics, short, Offsets(0, 1000))
    fill(topics, wide, Offsets(0, 1))  # a whole file for one row
    tables = [topics.load(each.name).table for each in (short, wide)]
    assert short_rows(tables[:1])
    assert not short_rows(tables)


def test_columns_are_matched_by_name_and_converted(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    frame = spark.sql(
        "SELECT 'a' s, 1 n, 2.5BD g, current_timestamp() _timestamp, CAST(7 AS SMALLINT) _offset"
    ).coalesce(1)
    (file,) = write_frame(frame, target(topic))
    with read_files(spark, topic.table_name, [file]) as copied:
        assert copied.drop("_timestamp").collect()[0].asDict() == {"n": 1, "s": "a", "g": 2.5, "_offset": 7}


def test_rows_of_other_columns_are_refused(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    with pytest.raises(InvalidSchema, match="columns of the rows are not those of table"):
        write_frame(spark.sql("SELECT 1 n"), target(topic))


BAD = {
    "a null": ("IF(id = 150, NULL, id)", RecordsRejected, 'Column "n": required field is null'),
    "an error of Spark": ("1 / IF(id = 150, 0, 1)", QueryFailed, "query failed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_failure_leaves_no_file(spark: Any, topics: Topics, name: str) -> None:
    expression, error, message = BAD[name]
    topic = make(topics, Schema(NestedField(1, "n", DoubleType(), required=True)))
    frame = spark.range(0, 200, 1, 4).selectExpr(f"{expression} n", "id _offset", "timestamp_micros(id) _timestamp")
    with pytest.raises(error, match=message):
        write_frame(frame, target(topic))
    assert data_files(topic) == set()


def test_a_broken_disk_leaves_no_file(spark: Any, topics: Topics) -> None:
    topic = make(topics, SIMPLE)
    folder = local_path(topic.table.location()) / "data"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way of the folder for data files")
    frame = spark.range(0, 20, 1, 2).selectExpr("id n", "'' s", "1D g", "id _offset", "timestamp_micros(id) _timestamp")
    with pytest.raises(QueryFailed, match=f'writing files of table "{topic.name}" failed'):
        write_frame(frame, target(topic))
    assert data_files(topic) == set()
    folder.unlink()


def test_values_that_are_not_of_their_type_are_refused(spark: Any, topics: Topics) -> None:
    topic = make(topics, Schema(NestedField(1, "u", UUIDType()), NestedField(2, "x", FixedType(3))))
    rest = ", 0L _offset, timestamp_micros(0) _timestamp"
    with pytest.raises(RecordsRejected, match='Column "u": '):
        write_frame(spark.sql(f"SELECT 'no-uuid' u, X'000000' x{rest}"), target(topic))
    with pytest.raises(RecordsRejected, match='Column "x": '):
        write_frame(spark.sql(f"SELECT CAST(NULL AS STRING) u, X'00' x{rest}"), target(topic))
    assert data_files(topic) == set()


@pytest.mark.slow
def test_a_small_read_is_quick(spark: Any, topics: Topics) -> None:
    """10,000 rows, warm; the bound is loose, the printed number is the one to read."""
    topic = make(topics, SIMPLE)
    files = fill(topics, topic, Offsets(0, 10_000), 10_000)
    taken = []
    for _ in range(12):
        began = time.perf_counter()
        with read_files(spark, topic.table_name, files) as frame:
            frame.groupBy("s").agg(F.sum("n"), F.count("*")).collect()
        taken.append(time.perf_counter() - began)
    print(f"10k rows: best {min(taken):.3f} s, all {[round(each, 3) for each in taken]}")  # noqa: T201
    assert min(taken) < 3
