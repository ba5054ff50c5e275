"""The order of rows, by example; `tests/property/test_sorting.py` compares it with Python's."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from headwater.storage.layout import Layout
from headwater.storage.sorting import sort_rows
from headwater.types import SortKey


def ordered(table: pa.Table, *keys: SortKey) -> list[object]:
    found = sort_rows(table, Layout("zstd", None, 1, ordering=keys))
    assert found.schema == table.schema
    return found.column(0).to_pylist()


def test_nulls_go_where_the_key_says() -> None:
    table = pa.table({"a": [2, None, 1, None, 3]})
    assert ordered(table, SortKey("a")) == [None, None, 1, 2, 3]
    assert ordered(table, SortKey("a", nulls_first=False)) == [1, 2, 3, None, None]
    assert ordered(table, SortKey("a", True, True)) == [None, None, 3, 2, 1]
    assert ordered(table, SortKey("a", True, False)) == [3, 2, 1, None, None]


@pytest.mark.parametrize("of", [pa.float32(), pa.float64()], ids=str)
def test_floats_have_one_order(of: pa.DataType) -> None:
    expected = [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]
    table = pa.table({"a": pa.array([math.nan, 0.0, 1.5, -0.0, math.inf, -1.5, -math.inf], of)})
    assert list(map(repr, ordered(table, SortKey("a")))) == list(map(repr, expected))
    assert list(map(repr, ordered(table, SortKey("a", True)))) == list(map(repr, reversed(expected)))
    nulls = pa.table({"a": pa.array([math.nan, None, 1.0], of)})
    assert list(map(repr, ordered(nulls, SortKey("a", True, False)))) == ["nan", "1.0", "None"]


def test_a_nan_is_a_nan_whatever_its_sign() -> None:
    negative = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer((0xFFF8000000000001).to_bytes(8, "little"))])
    table = pa.table({"a": pa.concat_arrays([negative, pa.array([1.0, math.nan])]), "n": [0, 1, 2]})
    found = sort_rows(table, Layout("zstd", None, 1, ordering=(SortKey("a"),)))
    assert found.column("n").to_pylist() == [1, 0, 2]  # equal to the other one, so it stays before it
    # Its bits stay as well.
    assert found.column("a").chunk(0).buffers()[1].to_pybytes()[8:16] == (0xFFF8000000000001).to_bytes(8, "little")


def test_the_first_key_decides_and_equal_rows_stay() -> None:
    table = pa.table({"n": [0, 1, 2, 3, 4, 5], "a": [1, 0, 1, 0, 1, 0], "b": ["x", "y", "y", "x", "x", "y"]})
    assert ordered(table, SortKey("a")) == [1, 3, 5, 0, 2, 4]
    assert ordered(table, SortKey("a", True), SortKey("b")) == [0, 4, 2, 3, 1, 5]


def test_text_is_compared_by_its_bytes() -> None:
    table = pa.table({"a": ["b", "Z", "ä", "", "a", "\U0001f600", "\uffff"]})
    assert ordered(table, SortKey("a")) == ["", "Z", "a", "b", "ä", "\uffff", "\U0001f600"]


def test_rows_in_order_and_rows_without_one_are_not_copied() -> None:
    table = pa.table({"a": pa.array(range(1000))})
    same = sort_rows(table, Layout("zstd", None, 1, ordering=(SortKey("a"),)))
    assert same.column("a").chunk(0).buffers()[1].address == table.column("a").chunk(0).buffers()[1].address
    assert sort_rows(table, Layout("zstd", None, 1)) is table


def test_no_rows_are_in_order() -> None:
    empty = pa.table({"a": pa.array([], pa.float64()), "b": pa.array([], pa.string())})
    assert ordered(empty, SortKey("a"), SortKey("b")) == []
    assert sort_rows(empty, Layout("zstd", None, 1, clustering=("a", "b"))).num_rows == 0
