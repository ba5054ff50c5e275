"""Arrow, pandas and Python rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
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
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.errors import RecordsRejected
from headwater.storage.decode import Decoded, RecordDecoder

KEY = UUID("550e8400-e29b-41d4-a716-446655440000")
POINT = StructType(NestedField(10, "x", IntegerType(), required=True), NestedField(11, "y", DateType()))


def decoder(kind: IcebergType, required: bool = False) -> RecordDecoder:
    return RecordDecoder(Schema(NestedField(1, "v", kind, required=required)))


def faults(decoded: Decoded) -> list[tuple[int, str | None, str]]:
    return [(reject.row, reject.field, reject.reason) for reject in decoded.rejects]


def column(values: list[object], kind: pa.DataType) -> pa.Table:
    return pa.table({"v": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("kind", "source", "values"),
    [
        (LongType(), pa.int8(), [1, None]),
        (IntegerType(), pa.int64(), [2**31 - 1, None]),
        (IntegerType(), pa.float64(), [1.0, None]),
        (LongType(), pa.uint64(), [2**63 - 1]),
        (DoubleType(), pa.float32(), [1.5, None]),
        (DoubleType(), pa.int64(), [2**53]),
        (FloatType(), pa.float64(), [0.5, float("inf")]),
        (DecimalType(5, 2), pa.decimal128(10, 4), [Decimal("1.5000"), None]),
        (DecimalType(5, 2), pa.int32(), [999]),
        (StringType(), pa.large_string(), ["a", None]),
        (StringType(), pa.string_view(), ["a", None]),
        (StringType(), pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
        (StringType(), pa.null(), [None]),
        (POINT, pa.null(), [None]),
        (BinaryType(), pa.large_binary(), [b"a", None]),
        (BinaryType(), pa.binary(2), [b"ab", None]),
        (FixedType(2), pa.binary(), [b"ab", None]),
        (DateType(), pa.date64(), [date(2024, 5, 1), None]),
        (TimeType(), pa.time32("s"), [time(10, 30), None]),
        (TimestampType(), pa.timestamp("ms"), [datetime(2024, 5, 1), None]),
        (TimestamptzType(), pa.timestamp("s", "Europe/Zurich"), [datetime(2024, 5, 1, tzinfo=UTC), None]),
        (ListType(9, LongType(), element_required=True), pa.large_list(pa.int32()), [[1, 2], None, []]),
        (ListType(9, LongType(), element_required=True), pa.list_(pa.int32(), 2), [[1, 2], None]),
        (POINT, pa.struct([("x", pa.int64())]), [{"x": 1}, None]),
        (
            MapType(8, StringType(), 9, POINT),
            pa.map_(pa.string(), pa.struct([("x", pa.int8())])),
            [[("a", {"x": 1})], None, []],
        ),
    ],
    ids=str,
)
def test_lossless_casts(kind: IcebergType, source: pa.DataType, values: list[object]) -> None:
    given = column([*values, *values], source)
    decoded = decoder(kind).arrow(given)
    expected = (
        decoder(kind).rows([{"v": value} for value in [*values, *values]]) if not pa.types.is_floating(source) else None
    )
    assert decoded.rejects == ()
    decoded.table.validate(full=True)
    if expected is not None:
        assert decoded.table.equals(expected.table)
    assert decoder(kind).arrow(given.slice(1, 1)).table.equals(decoded.table.slice(1, 1))


def test_nanoseconds_must_be_whole_microseconds() -> None:
    table = column([1_000, 1_001, None], pa.int64()).cast(pa.schema([("v", pa.timestamp("ns"))]))
    decoded = decoder(TimestampType()).arrow(table)
    assert [(reject.row, reject.field) for reject in decoded.rejects] == [(1, "v")]
    assert decoded.table.column("v").to_pylist() == [datetime(1970, 1, 1, 0, 0, 0, 1), None]


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        (LongType(), pa.string(), "expected long, got Arrow type string"),
        (LongType(), pa.bool_(), "expected long, got Arrow type bool"),
        (BooleanType(), pa.int8(), "expected boolean, got Arrow type int8"),
        (DecimalType(5, 2), pa.float64(), "expected decimal(5,2), got Arrow type double"),
        (StringType(), pa.binary(), "expected string, got Arrow type binary"),
        (BinaryType(), pa.string(), "expected binary, got Arrow type string"),
        (DateType(), pa.timestamp("us"), "expected date, got Arrow type timestamp[us]"),
        (TimestampType(), pa.timestamp("us", "UTC"), "expected timestamp, got Arrow type timestamp[us, tz=UTC]"),
        (TimestamptzType(), pa.timestamp("us"), "expected timestamptz, got Arrow type timestamp[us]"),
        (TimestamptzType(), pa.string(), "expected timestamptz, got Arrow type string"),
        (ListType(9, LongType()), pa.int64(), "expected list, got Arrow type int64"),
        (POINT, pa.int64(), "expected struct, got Arrow type int64"),
        (MapType(8, StringType(), 9, LongType()), pa.int64(), "expected map, got Arrow type int64"),
    ],
    ids=str,
)
def test_types_that_never_fit(kind: IcebergType, source: pa.DataType, reason: str) -> None:
    with pytest.raises(RecordsRejected) as raised:
        decoder(kind).arrow(column([], source))
    assert raised.value.message == "arrow columns do not match the schema"
    assert raised.value.detail == f'Column "v": {reason}.'


def test_nested_types_that_never_fit_name_their_path() -> None:
    source = pa.list_(pa.struct([("x", pa.int64()), ("z", pa.int64())]))
    with pytest.raises(RecordsRejected) as raised:
        decoder(ListType(9, POINT)).arrow(column([], source))
    assert raised.value.detail == 'Column "v[].z": unknown field.'


@pytest.mark.parametrize(
    ("table", "detail", "hint"),
    [
        (pa.table({"w": [1]}), 'Column "w": unknown field.', None),
        (
            pa.table({"v": [1], "_offset": [1]}),
            'Column "_offset": unknown field.',
            "Headwater assigns this column; leave it out.",
        ),
        (pa.table([[1], [2]], names=["v", "v"]), 'Column "v": field appears more than once.', None),
        (pa.table({}), 'Column "v": required field is missing.', None),
    ],
)
def test_columns_must_match(table: pa.Table, detail: str, hint: str | None) -> None:
    with pytest.raises(RecordsRejected) as raised:
        decoder(LongType(), required=True).arrow(table)
    assert (raised.value.detail, raised.value.hint) == (detail, hint)


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad", "reason"),
    [
        (IntegerType(), pa.int64(), 1, 2**31, "number 2147483648 does not fit int"),
        (IntegerType(), pa.float64(), 1.0, 1.5, "expected int, got number 1.5"),
        (FloatType(), pa.float64(), 0.5, 0.1, "a double value cannot be held exactly by float"),
        (
            DoubleType(),
            pa.int64(),
            1,
            2**53 + 1,
            "Integer value 9007199254740993 not in range: -9007199254740992 to 9007199254740992",
        ),
        (
            DecimalType(5, 2),
            pa.decimal128(38, 0),
            Decimal(1),
            Decimal("9" * 38),
            f"Decimal {'9' * 38} does not fit decimal(5,2)",
        ),
        (
            DecimalType(5, 2),
            pa.decimal128(10, 3),
            Decimal("1.250"),
            Decimal("1.234"),
            "Decimal 1.234 does not fit decimal(5,2)",
        ),
        (FixedType(2), pa.binary(), b"ab", b"abc", "expected fixed(2), got 3 bytes"),
        (UUIDType(), pa.string(), str(KEY), "x", 'expected uuid as text with hyphens, got string "x"'),
        (
            ListType(9, IntegerType(), element_required=True),
            pa.list_(pa.int64()),
            [1],
            [1, None],
            "required field is null",
        ),
        (POINT, pa.struct([("x", pa.int64())]), {"x": 1}, {"x": None}, "required field is null"),
        (
            MapType(8, StringType(), 9, LongType()),
            pa.map_(pa.string(), pa.int64()),
            [("a", 1)],
            [("a", 1), ("a", 2)],
            "key appears more than once",
        ),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_single_rejects(
    kind: IcebergType, source: pa.DataType, good: object, bad: object, reason: str
) -> None:
    decoded = decoder(kind).arrow(column([good, None, bad, good], source))
    assert [(reject.row, reject.reason) for reject in decoded.rejects] == [(2, reason)]
    assert decoded.rejects[0].field is not None
    assert decoded.rejects[0].field.startswith("v")
    assert decoded.table.equals(decoder(kind).arrow(column([good, None, good], source)).table)


def test_nulls_in_required_columns() -> None:
    decoded = decoder(LongType(), required=True).arrow(column([1, None, 3], pa.int64()))
    assert faults(decoded) == [(1, "v", "required field is null")]
    assert decoded.rejects[0].raw == b'{"v":null}'
    assert decoded.table.column("v").to_pylist() == [1, 3]


def test_moments_that_python_cannot_show_are_rejected() -> None:
    table = column([0, 2**62], pa.int64()).cast(pa.schema([("v", pa.timestamp("us", "UTC"))]))
    decoded = decoder(TimestamptzType()).arrow(table)
    assert [reject.row for reject in decoded.rejects] == [1]
    assert decoded.table.num_rows == 1


def test_what_lies_below_a_null_is_not_judged() -> None:
    child = pa.array([1, 2**40], pa.int64())
    points = pa.StructArray.from_arrays([child], names=["x"], mask=pa.array([False, True]))
    decoded = decoder(POINT).arrow(pa.table({"v": points}))
    assert decoded.rejects == ()
    assert decoded.table.column("v").to_pylist() == [{"x": 1, "y": None}, None]


def test_invalid_arrow_is_refused_before_it_is_touched() -> None:
    offsets = pa.array([0, 1_000_000, 3], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(RecordsRejected, match="arrow data is not valid"):
        decoder(StringType()).arrow(pa.table({"v": broken}))
    latin = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    with pytest.raises(RecordsRejected, match="arrow data is not valid"):
        decoder(StringType()).arrow(pa.table({"v": latin}))


def test_batches_and_chunks_are_numbered_through() -> None:
    table = pa.concat_tables([column([1, None], pa.int64()), column([None, 4], pa.int64())])
    decoded = decoder(LongType(), required=True).arrow(table, first_row=10)
    assert [reject.row for reject in decoded.rejects] == [11, 12]
    assert decoder(LongType()).arrow(table.to_batches()[0]).table.num_rows == 2


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (BooleanType(), np.bool_(True), True),
        (LongType(), np.int32(7), 7),
        (DoubleType(), np.float32(0.5), 0.5),
        (DoubleType(), 3, 3.0),
        (DecimalType(5, 2), Decimal("1.5"), Decimal("1.50")),
        (DecimalType(5, 2), 7, Decimal("7.00")),
        (DecimalType(5, 2), "1.5", Decimal("1.50")),
        (DateType(), date(2024, 5, 1), date(2024, 5, 1)),
        (DateType(), "2024-05-01", date(2024, 5, 1)),
        (TimeType(), time(10, 30), time(10, 30)),
        (TimestampType(), datetime(2024, 5, 1), datetime(2024, 5, 1)),
        (
            TimestamptzType(),
            datetime(2024, 5, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2024, 5, 1, tzinfo=UTC),
        ),
        (UUIDType(), KEY, KEY),
        (BinaryType(), b"\0\1", b"\0\1"),
        (BinaryType(), bytearray(b"\0"), b"\0"),
        pytest.param(FixedType(2), memoryview(b"ab"), b"ab", id="memoryview"),
        (ListType(9, UUIDType(), element_required=False), (KEY, None), [KEY, None]),
        (ListType(9, LongType()), np.array([1, 2]), [1, 2]),
        (MapType(8, UUIDType(), 9, POINT), {KEY: {"x": 1}}, [(KEY, {"x": 1, "y": None})]),
        (MapType(8, LongType(), 9, LongType()), {1: 2, "3": 4}, [(1, 2), (3, 4)]),
    ],
    ids=str,
)
def test_python_values(kind: IcebergType, value: object, stored: object) -> None:
    decoded = decoder(kind).rows([{"v": value}, {}])
    assert decoded.rejects == ()
    assert decoded.table.column("v").to_pylist() == [stored, None]
    decoded.table.validate(full=True)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (LongType(), True, "expected long, got boolean true"),
        (LongType(), 1.0, "expected long, got number 1.0"),
        (LongType(), 1 << 20_000, "a number of 20001 bits does not fit long"),
        (DoubleType(), 10**400, "a number of 1329 bits does not fit double"),
        (DoubleType(), Decimal(1), "expected double, got Decimal 1"),
        (DecimalType(5, 2), 1.5, "expected decimal(5,2), got number 1.5"),
        (DecimalType(5, 2), Decimal("NaN"), "expected decimal(5,2), got Decimal NaN"),
        (DecimalType(5, 2), 1 << 20_000, "a number of 20001 bits does not fit decimal(5,2)"),
        (DateType(), datetime(2024, 5, 1), "expected date, got datetime 2024-05-01 00:00:00"),
        (
            TimestampType(),
            datetime(2024, 5, 1, tzinfo=UTC),
            "expected timestamp, got datetime 2024-05-01 00:00:00+00:00",
        ),
        (TimestamptzType(), datetime(2024, 5, 1), "expected timestamptz, got datetime 2024-05-01 00:00:00"),
        (
            TimestampType(),
            pd.Timestamp("2024-05-01 00:00:00.000000001"),
            "expected timestamp, got Timestamp 2024-05-01 00:00:00.000000001",
        ),
        (TimestampType(), pd.NaT, "expected timestamp, got NaTType NaT"),
        (StringType(), b"x", "expected string, got bytes b'x'"),
        (ListType(9, LongType()), "abc", 'expected list, got string "abc"'),
    ],
    ids=lambda part: type(part).__name__,
)
def test_python_values_that_do_not_fit(kind: IcebergType, value: object, reason: str) -> None:
    assert faults(decoder(kind).rows([{"v": value}])) == [(0, "v", reason)]


def test_rows_that_are_not_dicts_and_limits() -> None:
    decoded = decoder(LongType()).rows([{"v": 1}, [1], {"v": "x", "w": 1}, {1: 2}, {"v": 2}], max_rejects=3)  # type: ignore[list-item]
    assert faults(decoded) == [
        (1, None, "expected an object, got array"),
        (2, "w", "unknown field"),
        (3, "1", "unknown field"),
    ]
    assert (decoded.truncated, decoded.rows) == (True, 4)


def test_raw_rows_are_json_text() -> None:
    row = {"v": "x", "at": datetime(2024, 5, 1), "b": b"\0", "k": KEY, "a": np.array([1])}
    raw = decoder(LongType()).rows([row]).rejects[0].raw
    assert raw == b'{"v":"x","at":"2024-05-01 00:00:00","b":"AA==","k":"550e8400-e29b-41d4-a716-446655440000","a":[1]}'


FRAMES = RecordDecoder(
    Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "name", StringType()),
        NestedField(3, "qty", IntegerType()),
        NestedField(4, "at", TimestamptzType()),
        NestedField(5, "total", DecimalType(5, 2)),
        NestedField(6, "tags", ListType(7, StringType(), element_required=False)),
    )
)


def test_typed_frames() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "name": ["a", None],
            "qty": [1, None],
            "at": pd.to_datetime(["2024-05-01T10:00:00Z", None]),
        },
        index=[7, 8],
    )
    decoded = FRAMES.pandas(frame)
    assert decoded.rejects == ()
    assert decoded.table.select(["id", "name", "qty", "at"]).to_pylist() == [
        {"id": 1, "name": "a", "qty": 1, "at": datetime(2024, 5, 1, 10, tzinfo=UTC)},
        {"id": 2, "name": None, "qty": None, "at": None},
    ]


def test_frames_of_objects() -> None:
    frame = pd.DataFrame(
        {"id": [1, 2, 3], "qty": [1, None, 2.5], "total": [Decimal("1.5"), None, None], "tags": [["a"], None, None]}
    )
    decoded = FRAMES.pandas(frame)
    assert faults(decoded) == [(2, "qty", "expected int, got number 2.5")]
    assert decoded.table.select(["id", "qty", "total", "tags"]).to_pylist() == [
        {"id": 1, "qty": 1, "total": Decimal("1.50"), "tags": ["a"]},
        {"id": 2, "qty": None, "total": None, "tags": None},
    ]
