"""Rows of files that were written for other columns: renamed, moved, widened, added, dropped, at any depth."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.errors import Corrupt
from headwater.storage.field_ids import plan_reading
from headwater.storage.schemas import arrow_schema


def field(number: int, name: str, of: IcebergType, required: bool = False, **more: Any) -> NestedField:
    return NestedField(number, name, of, required=required, **more)


def read(path: Path, wanted: Schema, batch_rows: int = 2) -> list[dict[str, Any]]:
    """The file's rows as rows of `wanted`, read in batches, and validated."""
    file = pq.ParquetFile(path)
    reading = plan_reading(file.schema_arrow, wanted, str(path))
    rows: list[dict[str, Any]] = []
    for read in file.iter_batches(batch_rows, columns=list(reading.columns)):
        batch = reading.batch(read)
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(wanted), check_metadata=True)
        rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def stored(tmp_path: Path, schema: Schema | pa.Schema, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "file.parquet"
    arrow = schema if isinstance(schema, pa.Schema) else arrow_schema(schema)
    pq.write_table(pa.Table.from_pylist(rows, arrow), path, store_schema=False)
    return path


FLAT = Schema(field(1, "a", IntegerType()), field(2, "b", StringType()), field(3, "c", FloatType()))
FLAT_ROWS = [{"a": 1, "b": "x", "c": 0.5}, {"a": None, "b": None, "c": None}, {"a": -7, "b": "", "c": float("inf")}]


def test_the_same_columns_pass_as_they_are(tmp_path: Path) -> None:
    path = stored(tmp_path, FLAT, FLAT_ROWS)
    assert read(path, FLAT) == FLAT_ROWS
    reading = plan_reading(pq.read_schema(path), FLAT, "f")
    batch = next(pq.ParquetFile(path).iter_batches())
    assert [one.equals(other) for one, other in zip(reading.batch(batch).columns, batch.columns, strict=True)] == [
        True
    ] * 3


def test_renamed_moved_widened_added_and_dropped(tmp_path: Path) -> None:
    wanted = Schema(
        field(9, "new", DateType()), field(3, "b", DoubleType()), field(1, "z", LongType()), field(8, "c", StringType())
    )
    path = stored(tmp_path, FLAT, FLAT_ROWS)
    assert read(path, wanted) == [
        {"new": None, "b": row["c"], "z": row["a"], "c": None} for row in FLAT_ROWS
    ]  # `b` and `c` are other columns now, for all that they are called
    assert plan_reading(pq.read_schema(path), wanted, "f").columns == ("c", "a")  # what was dropped is not read


def test_a_file_that_has_none_of_the_columns(tmp_path: Path) -> None:
    path = stored(tmp_path, FLAT, FLAT_ROWS)
    assert read(path, Schema(field(9, "new", DateType()))) == [{"new": None}] * 3


def test_defaults_of_added_columns_and_missing_required_ones(tmp_path: Path) -> None:
    path = stored(tmp_path, FLAT, FLAT_ROWS)
    wanted = Schema(field(9, "new", LongType(), required=True, initial_default=5))
    assert read(path, wanted) == [{"new": 5}] * 3
    with pytest.raises(Corrupt, match='lacks column "new"'):
        read(path, Schema(field(9, "new", LongType(), required=True)))


def test_every_type_that_does_not_change(tmp_path: Path) -> None:
    schema = Schema(
        field(1, "u", UUIDType()),
        field(2, "x", FixedType(2)),
        field(3, "d", DecimalType(9, 2)),
        field(4, "at", TimestamptzType()),
        field(5, "t", TimeType()),
        field(6, "y", BooleanType()),
        field(7, "big", DecimalType(9, 2)),
    )
    row = {
        "u": uuid.uuid4(),
        "x": b"ab",
        "d": Decimal("1.25"),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "t": dt.time(1, 2, 3),
        "y": True,
        "big": Decimal("-9999999.99"),
    }
    wanted = Schema(*(each for each in schema.fields[:-1]), field(7, "big", DecimalType(20, 2)))
    rows = [row, dict.fromkeys(row)]
    path = stored(tmp_path, schema, [{**each, "u": each["u"] and each["u"].bytes} for each in rows])
    assert read(path, wanted) == rows


def test_a_uuid_that_another_writer_stored_as_plain_bytes(tmp_path: Path) -> None:
    plain = pa.schema([pa.field("u", pa.binary(16), metadata={"PARQUET:field_id": "1"})])
    value = uuid.uuid4()
    path = stored(tmp_path, plain, [{"u": value.bytes}, {"u": None}])
    assert read(path, Schema(field(1, "u", UUIDType()))) == [{"u": value}, {"u": None}]


NESTED = Schema(
    field(1, "s", StructType(field(2, "a", IntegerType()), field(3, "b", StringType(), required=True))),
    field(4, "l", ListType(5, StructType(field(6, "a", IntegerType()), field(7, "gone", StringType())), False)),
    field(8, "m", MapType(9, StringType(), 10, ListType(11, IntegerType(), True), False)),
    field(12, "deep", StructType(field(13, "in", StructType(field(14, "x", FloatType()))))),
)
NESTED_ROWS = [
    {
        "s": {"a": 1, "b": "x"},
        "l": [{"a": 1, "gone": "g"}, None, {"a": None, "gone": None}],
        "m": {"k": [1, 2], "n": None},
        "deep": {"in": {"x": 0.5}},
    },
    {"s": None, "l": None, "m": None, "deep": None},
    {"s": {"a": None, "b": ""}, "l": [], "m": {}, "deep": {"in": None}},
    {"s": {"a": 3, "b": "y"}, "l": [{"a": 4, "gone": "h"}], "m": {"k": []}, "deep": {"in": {"x": None}}},
]


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 10])
def test_nested_fields(tmp_path: Path, batch_rows: int) -> None:
    wanted = Schema(
        field(8, "m", MapType(9, StringType(), 10, ListType(11, LongType(), True), False)),
        field(
            1,
            "place",
            StructType(
                field(3, "bb", StringType(), required=True), field(20, "n", DateType()), field(2, "a", LongType())
            ),
        ),
        field(4, "l", ListType(5, StructType(field(21, "gone", LongType()), field(6, "a", LongType())), False)),
        field(12, "deep", StructType(field(13, "inner", StructType(field(14, "x", DoubleType()))))),
    )
    path = stored(tmp_path, NESTED, NESTED_ROWS)
    assert read(path, NESTED, batch_rows) == NESTED_ROWS
    assert read(path, wanted, batch_rows) == [
        {
            "m": row["m"],
            "place": row["s"] and {"bb": row["s"]["b"], "n": None, "a": row["s"]["a"]},
            "l": row["l"] and [each and {"gone": None, "a": each["a"]} for each in row["l"]],
            "deep": row["deep"] and {"inner": row["deep"]["in"]},
        }
        for row in NESTED_ROWS
    ]


def test_parts_of_arrays(tmp_path: Path) -> None:
    """Batches that are slices of larger ones come out whole."""
    wanted = Schema(NESTED.fields[3], field(4, "l", ListType(5, StructType(field(6, "z", LongType())), False)))
    path = stored(tmp_path, NESTED, NESTED_ROWS)
    table = pq.read_table(path).combine_chunks()
    reading = plan_reading(table.schema, wanted, "f")
    whole = reading.batch(table.to_batches()[0].select(list(reading.columns)))
    for start in range(4):
        part = reading.batch(table.to_batches()[0].select(list(reading.columns)).slice(start, 2))
        part.validate(full=True)
        assert part.to_pylist() == whole.slice(start, 2).to_pylist()


def test_fields_inside_that_became_required(tmp_path: Path) -> None:
    """Rows without the struct have no value for them, and are written again all the same."""
    kinds: dict[str, tuple[IcebergType, Any]] = {
        "i": (IntegerType(), 1),
        "s": (StringType(), "x"),
        "b": (BooleanType(), True),
        "f": (FixedType(2), b"xy"),
        "d": (DecimalType(9, 2), Decimal("1.25")),
        "t": (StructType(field(20, "p", IntegerType()), field(21, "q", IntegerType())), {"p": 1, "q": None}),
        "l": (ListType(22, IntegerType(), False), [1, None]),
        "m": (MapType(23, StringType(), 24, IntegerType(), False), {"k": 1}),
    }
    optional = [field(number, name, of) for number, (name, (of, _)) in enumerate(kinds.items(), 2)]
    required = [field(each.field_id, each.name, each.field_type, required=True) for each in optional]
    required[5] = field(7, "t", StructType(field(20, "p", IntegerType(), True), field(21, "q", IntegerType())), True)
    full = {name: value for name, (_, value) in kinds.items()}
    rows: list[dict[str, Any]] = [{"o": None}, {"o": full}, {"o": None}, {"o": full}, {"o": None}]
    path = stored(tmp_path, Schema(field(1, "o", StructType(*optional))), rows)
    wanted = Schema(field(1, "o", StructType(*required)))
    assert read(path, wanted, 5) == rows
    batch = pq.read_table(path).combine_chunks().to_batches()[0]
    for start in range(3):
        found = plan_reading(batch.schema, wanted, "f").batch(batch.slice(start, 3))
        pq.write_table(pa.Table.from_batches([found]).cast(arrow_schema(wanted)), tmp_path / "again.parquet")
        assert read(tmp_path / "again.parquet", wanted, 5) == rows[start : start + 3]


def test_a_file_without_field_ids_goes_by_name(tmp_path: Path) -> None:
    inner = pa.struct([("b", pa.string()), ("a", pa.int32())])
    plain = pa.schema([("other", pa.int32()), ("s", inner), ("l", pa.list_(inner))])
    path = stored(tmp_path, plain, [{"other": 1, "s": {"a": 1, "b": "x"}, "l": [{"a": 2, "b": None}]}])
    of = StructType(field(3, "a", LongType()), field(4, "b", StringType()), field(5, "c", StringType()))
    wanted = Schema(field(1, "l", ListType(6, of, False)), field(2, "s", of), field(9, "o", LongType()))
    assert read(path, wanted) == [
        {"l": [{"a": 2, "b": None, "c": None}], "s": {"a": 1, "b": "x", "c": None}, "o": None}
    ]
