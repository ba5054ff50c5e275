"""Result batches as JSON: every type, valid JSON always, and both forms saying the same."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.storage import encode
from headwater.storage.encode import json_rows, to_json_lines, unique_names

UTC = dt.UTC
DAY = dt.datetime(2024, 2, 29, 12, 30, 5)
U = uuid.UUID("12345678-1234-5678-1234-567812345678")

CASES: list[tuple[str, pa.DataType, Any, Any]] = [
    ("boolean", pa.bool_(), True, True),
    ("int", pa.int32(), -7, -7),
    ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
    ("float", pa.float32(), 0.1, 0.1),
    ("double", pa.float64(), 1.5e300, 1.5e300),
    ("whole double", pa.float64(), 1.0, 1.0),
    ("nan", pa.float64(), float("nan"), "NaN"),
    ("infinity", pa.float32(), float("inf"), "Infinity"),
    ("minus infinity", pa.float64(), float("-inf"), "-Infinity"),
    ("decimal", pa.decimal128(12, 2), Decimal("10.50"), "10.50"),
    ("small decimal", pa.decimal128(38, 18), Decimal("0.000000000000000001"), "0.000000000000000001"),
    ("zero decimal", pa.decimal128(10, 8), Decimal("0"), "0.00000000"),
    ("date", pa.date32(), dt.date(1969, 12, 31), "1969-12-31"),
    ("time", pa.time64("us"), dt.time(1, 2, 3), "01:02:03"),
    ("time with fraction", pa.time64("us"), dt.time(1, 2, 3, 4500), "01:02:03.004500"),
    ("timestamp", pa.timestamp("us"), DAY, "2024-02-29T12:30:05"),
    ("timestamp with fraction", pa.timestamp("us"), DAY.replace(microsecond=120), "2024-02-29T12:30:05.000120"),
    ("timestamptz", pa.timestamp("us", "UTC"), DAY.replace(tzinfo=UTC), "2024-02-29T12:30:05Z"),
    ("other zone", pa.timestamp("us", "Europe/Berlin"), DAY.replace(tzinfo=UTC), "2024-02-29T12:30:05Z"),
    ("timestamptz with fraction", pa.timestamp("us", "UTC"), DAY.replace(microsecond=1), "2024-02-29T12:30:05.000001Z"),
    ("string", pa.string(), 'a "b" \\ \n \x00 ü', 'a "b" \\ \n \x00 ü'),
    ("large string", pa.large_string(), "x", "x"),
    ("dictionary", pa.dictionary(pa.int8(), pa.string()), "x", "x"),
    ("uuid", pa.uuid(), U.bytes, str(U)),
    ("fixed", pa.binary(2), b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
    ("binary", pa.binary(), b"\xff", "/w=="),
    ("null", pa.null(), None, None),
    ("list", pa.list_(pa.decimal128(3, 1)), [Decimal("1.5"), None], ["1.5", None]),
    ("empty list", pa.list_(pa.int32()), [], []),
    (
        "struct",
        pa.struct([("a", pa.float64()), ("b", pa.string())]),
        {"a": float("nan"), "b": None},
        {"a": "NaN", "b": None},
    ),
    ("map by text", pa.map_(pa.string(), pa.date32()), [("k", dt.date(2024, 1, 1))], {"k": "2024-01-01"}),
    ("map by number", pa.map_(pa.int32(), pa.string()), [(1, "x"), (2, None)], [[1, "x"], [2, None]]),
    (
        "deep",
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.binary())))])),
        [{"m": [("k", [b"\xff"])]}, None],
        [{"m": {"k": ["/w=="]}}, None],
    ),
    ("duration", pa.duration("us"), dt.timedelta(seconds=90, milliseconds=500), "PT90.5S"),
]


def strict(text: bytes | str) -> Any:
    """Read JSON, refusing the NaN that Python's reader would let through."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(("of", "value", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_type_has_one_encoding_in_both_forms(of: pa.DataType, value: Any, expected: Any) -> None:
    array = (
        pa.array([None, value, None, value], of) if not pa.types.is_dictionary(of) else pa.array([None, value]).cast(of)
    )
    batch = pa.RecordBatch.from_arrays([array], names=["x"])
    wanted = [None, expected, None, expected][: len(array)]
    assert [row[0] for row in json_rows(batch)] == wanted
    assert strict(json.dumps(json_rows(batch), allow_nan=False)) == [[each] for each in wanted]
    assert [strict(line) for line in to_json_lines(batch).splitlines()] == [{"x": each} for each in wanted]
    part = batch.slice(1, 1)
    assert json_rows(part) == [[expected]]
    assert strict(to_json_lines(part)) == {"x": expected}


def test_rows_keep_column_order_and_repeated_names() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"]), pa.array([2.5])], names=["a", "a", "a_2"])
    assert json_rows(batch) == [[1, "x", 2.5]]
    assert strict(to_json_lines(batch)) == {"a": 1, "a_3": "x", "a_2": 2.5}


def test_names_are_made_unique_without_taking_another_columns_name() -> None:
    assert unique_names(["a", "a", "a_2", "b", "a"]) == ["a", "a_3", "a_2", "b", "a_4"]


def test_names_are_escaped() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])], names=['count("x")\n'])
    assert strict(to_json_lines(batch)) == {'count("x")\n': 1}


def test_empty_batches() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([], pa.int64())], names=["a"])
    assert json_rows(batch) == []
    assert to_json_lines(batch) == b""


def test_strings_that_are_not_utf8_are_replaced_not_passed_on() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    batch = pa.RecordBatch.from_arrays([broken], names=["x"])
    assert json_rows(batch) == [["a�"]]
    assert strict(to_json_lines(batch)) == {"x": "a�"}


def test_large_batches_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.storage.encode.SLICE_BYTES", 100)
    batch = pa.RecordBatch.from_arrays([pa.array(range(1000))], names=["x"])
    assert [strict(line)["x"] for line in to_json_lines(batch).splitlines()] == list(range(1000))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "s": st.none() | st.text(),
                "n": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "l": st.none() | st.lists(st.none() | st.text()),
                "m": st.none() | st.dictionaries(st.text(), st.integers(-(2**31), 2**31 - 1)),
            }
        ),
        min_size=1,
    )
)
def test_any_text_and_number_survives(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        [("s", pa.string()), ("n", pa.float64()), ("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int32()))]
    )
    ready = [{**row, "m": None if row["m"] is None else list(row["m"].items())} for row in rows]
    batch = pa.RecordBatch.from_pylist(ready, schema=schema)
    assert [strict(line) for line in to_json_lines(batch).split(b"\n")[:-1]] == rows
    assert strict(json.dumps(json_rows(batch))) == [[row[name] for name in schema.names] for row in rows]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_years_that_arrow_does_not_write_continue_those_that_it_does(unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    year = 31_556_952 * per_second  # the average one
    written = [n * 7 * year // 3 + n for n in (*range(-13_000, -6_000, 7), *range(4_000, 13_000, 7))]
    arrow = pa.array(written, pa.int64()).view(pa.timestamp(unit)).cast(pa.string()).to_pylist()
    for number, text in zip(written, arrow, strict=True):
        assert encode._far_text(number, 86_400 * per_second) == text.replace(" ", "T")


def test_moments_and_days_at_the_limits_of_their_types() -> None:
    moments = pa.array([2**63 - 1, None, -(2**63), 0], pa.int64()).view(pa.timestamp("us", "UTC"))
    assert encode.json_values(moments) == [
        "294247-01-10T04:00:54.775807Z",
        None,
        "-290308-12-21T19:59:05.224192Z",
        "1970-01-01T00:00:00Z",
    ]
    days = pa.array([2**31 - 1, -(2**31), None], pa.int32()).view(pa.date32())
    assert encode.json_values(days) == ["5881580-07-11", "-5877641-06-23", None]
