"""Keys against files' statistics: what is skipped has none of the keys, whatever the types of both."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headwater.storage.filter_json import filter_json
from headwater.views.prune import KeySet

ARROW: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "double": pa.float64(),
    "decimal": pa.decimal128(22, 2),
}
ICEBERG: dict[str, IcebergType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
    "string": StringType(),
    "double": DoubleType(),
    "decimal": DecimalType(22, 2),
}
RAW = st.integers(-(2**31), 2**31 - 1)


def column(of: str) -> NestedField:
    return NestedField(1, "k", ICEBERG[of], required=False)


def file_of(of: str, low: Any, high: Any) -> DataFile:
    """A file of which column `k` lies between two raw values."""
    kind = ICEBERG[of]
    assert isinstance(kind, PrimitiveType)
    bounds = [{1: to_bytes(kind, value)} for value in (low, high)]
    return DataFile.from_args(
        file_path="f", record_count=2, lower_bounds=bounds[0], upper_bounds=bounds[1], null_value_counts={1: 0}
    )


def keys(of: str, raw: list[int]) -> pa.ChunkedArray:
    plain = pa.array([str(each) for each in raw]) if of == "string" else pa.array(raw, pa.int64())
    if of in ("date", "int"):
        plain = plain.cast(pa.int32())
    return pa.chunked_array([plain.cast(ARROW[of])])


@pytest.mark.parametrize("theirs", ICEBERG)
@pytest.mark.parametrize("mine", ARROW)
def test_keys_of_another_type_skip_nothing(mine: str, theirs: str) -> None:
    found = KeySet(keys(mine, [1, 2]), column(theirs))
    same = mine == theirs and mine not in ("double", "decimal")
    assert found.usable == (same or {mine, theirs} == {"int", "bigint"})
    if not found.usable:
        assert found.row_filter == AlwaysTrue()
        assert found.files([file_of("int", 7, 8)]) == [file_of("int", 7, 8)]


@given(st.sampled_from(["int", "bigint", "date", "timestamp", "timestamp_ntz"]), st.lists(RAW), RAW, RAW)
def test_a_file_is_skipped_only_if_no_key_is_between_its_bounds(of: str, raw: list[int], one: int, two: int) -> None:
    low, high = sorted((one, two))
    found = KeySet(keys(of, raw), column(of))
    assert bool(found.files([file_of(of, low, high)])) == any(low <= each <= high for each in raw)
    assert filter_json(found.row_filter)


def test_days_beyond_pythons_calendar() -> None:
    days = keys("date", [-1_000_000, 2_932_897, 10_000_000])  # before the year 1, the first day of 10000, and later
    found = KeySet(days, column("date"))
    assert found.files([file_of("date", 2_932_897, 2_932_897)])
    assert "2932897" in filter_json(found.row_filter)


def test_keys_that_an_integer_cannot_hold() -> None:
    found = KeySet(keys("bigint", [2**40]), column("int"))
    assert found.row_filter == AlwaysFalse()
    assert not found.files([file_of("int", -(2**31), 2**31 - 1)])
