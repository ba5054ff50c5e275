"""The encoding of a column is chosen from its values, and every choice is one that Parquet readers undo exactly."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.storage.encodings import PARQUET_ENCODINGS, REPEATS, SAMPLE, Encodings, choose_encodings
from headwater.storage.layout import Layout, leaves
from headwater.storage.writer import parquet_options

ROWS = 64
PLAIN_LAYOUT = Layout("zstd", None, 1 << 20)


def column(values: list[object], of: pa.DataType) -> pa.Table:
    return pa.table({"c": pa.array(values, of)})


def chosen(table: pa.Table, **settings: Any) -> Encodings:
    return choose_encodings(table, Layout("zstd", None, 1 << 20, **settings))


def encodings_of(table: pa.Table, layout: Layout = PLAIN_LAYOUT) -> dict[str, set[str]]:
    """The encodings that a file of `table` has, by Parquet path."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(layout, table)) as writer:
        writer.write_table(table)
    sink.seek(0)
    group = pq.ParquetFile(sink).metadata.row_group(0)
    columns = (group.column(i) for i in range(group.num_columns))
    return {each.path_in_schema: set(each.encodings) for each in columns}


@pytest.mark.parametrize(
    ("of", "distinct", "encoding"),
    [
        (pa.int32(), range(ROWS), "DELTA_BINARY_PACKED"),
        (pa.int64(), range(ROWS), "DELTA_BINARY_PACKED"),
        (pa.date32(), range(ROWS), "DELTA_BINARY_PACKED"),
        (pa.time64("us"), range(ROWS), "DELTA_BINARY_PACKED"),
        (pa.timestamp("us"), range(ROWS), "DELTA_BINARY_PACKED"),
        (pa.timestamp("us", "UTC"), range(ROWS), "DELTA_BINARY_PACKED"),
        (pa.decimal128(9, 2), [Decimal(n) for n in range(ROWS)], "DELTA_BINARY_PACKED"),
        (pa.decimal128(18, 2), [Decimal(n) for n in range(ROWS)], "DELTA_BINARY_PACKED"),
        (pa.decimal128(19, 2), [Decimal(n) for n in range(ROWS)], "PLAIN"),
        (pa.float32(), [n / 3 for n in range(ROWS)], "PLAIN"),
        (pa.float64(), [n / 3 for n in range(ROWS)], "PLAIN"),
        (pa.string(), [str(n) for n in range(ROWS)], "PLAIN"),
        (pa.binary(4), [n.to_bytes(4, "big") for n in range(ROWS)], "PLAIN"),
        (pa.uuid(), [uuid.UUID(int=n).bytes for n in range(ROWS)], "PLAIN"),
    ],
    ids=str,
)
def test_values_that_differ_get_no_dictionary_and_values_that_repeat_get_one(
    of: pa.DataType, distinct: list[object], encoding: str
) -> None:
    values = list(distinct)
    (found,) = encodings_of(column(values, of)).values()
    assert encoding in found
    assert "RLE_DICTIONARY" not in found
    few = values[: ROWS // REPEATS]
    (found,) = encodings_of(column(few * REPEATS, of)).values()
    assert "RLE_DICTIONARY" in found


def test_the_turning_point_is_the_number_of_repeats() -> None:
    at = column([n % 8 for n in range(8 * REPEATS)], pa.int64())
    assert chosen(at).dictionary == ("c",)
    assert chosen(at.slice(1)).dictionary == ()  # one row fewer, still eight values


def test_booleans_are_left_alone() -> None:
    assert chosen(column([True, False] * 50, pa.bool_())) == Encodings((), {})


def test_only_the_first_rows_are_looked_at() -> None:
    late = column([0] * SAMPLE + list(range(SAMPLE * 4)), pa.int64())
    assert chosen(late).dictionary == ("c",)


def test_nothing_is_known_of_no_rows() -> None:
    empty = column([], pa.int64())
    assert chosen(empty).dictionary == ("c",)
    assert encodings_of(column([None] * 3, pa.int64()))


def test_nested_leaves_get_dictionaries_under_their_parquet_paths() -> None:
    nested = pa.struct(
        {
            "tags": pa.list_(pa.field("element", pa.string())),
            "by": pa.map_(pa.string(), pa.struct({"n": pa.int32(), "deep": pa.list_(pa.field("element", pa.int64()))})),
        }
    )
    table = column([{"tags": ["a", "b"], "by": [("k", {"n": 1, "deep": [1, 2]})]}] * 20, nested)
    dictionary = chosen(table).dictionary
    assert dictionary == tuple(leaf.path for leaf in leaves(table.schema))
    written = encodings_of(table)
    assert set(dictionary) == set(written)  # paths that Parquet does not know would be ignored in silence
    assert all("RLE_DICTIONARY" in found for found in written.values())


def test_the_switch_of_a_column_beats_the_tables() -> None:
    few, many = [n % 2 for n in range(ROWS)], list(range(ROWS))
    table = pa.table({"few": few, "many": many, "flag": [True] * ROWS, "in": [{"n": n} for n in many]})
    assert chosen(table) == Encodings(("few", "in.n"), {"many": "DELTA_BINARY_PACKED"})
    assert chosen(table, dictionary="on") == Encodings(("few", "many", "in.n"), {})
    deltas = dict.fromkeys(("few", "many", "in.n"), "DELTA_BINARY_PACKED")
    assert chosen(table, dictionary="off") == Encodings((), deltas)
    switched = chosen(table, dictionary="off", dictionary_columns=(("many", "on"), ("in", "on")))
    assert switched == Encodings(("many", "in.n"), {"few": "DELTA_BINARY_PACKED"})
    layout = Layout("zstd", None, 1 << 20, dictionary_columns=(("few", "off"), ("many", "on")))
    written = encodings_of(table, layout)
    assert "RLE_DICTIONARY" not in written["few"]
    assert "RLE_DICTIONARY" in written["many"]


ENCODED = {
    "plain": (pa.array(range(ROWS), pa.int64()), pa.array([str(n) for n in range(ROWS)]), pa.array([1.5] * ROWS)),
    "delta": (pa.array(range(ROWS), pa.int32()), pa.array(range(ROWS), pa.timestamp("us", "UTC"))),
    "byte_stream_split": (pa.array([1.5] * ROWS), pa.array(range(ROWS), pa.int64()), pa.array([b"ab"], pa.binary(2))),
    "delta_length": (pa.array(["a"] * ROWS), pa.array([b"a"] * ROWS)),
    "delta_strings": (pa.array(["a"] * ROWS), pa.array([b"a"] * ROWS)),
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_an_encoding_that_is_set_is_the_one_in_the_file(encoding: str) -> None:
    for values in ENCODED[encoding]:
        table = pa.table({"c": values, "s": pa.StructArray.from_arrays([values], ["x"])})
        # The dictionary of the whole table, and one that would pay, both step aside.
        layout = Layout("zstd", None, 1 << 20, dictionary="on", encoding_columns=(("c", encoding), ("s.x", encoding)))
        for found in encodings_of(table, layout).values():
            assert PARQUET_ENCODINGS[encoding] in found
            assert "RLE_DICTIONARY" not in found


VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8),
    pa.timestamp("us", "UTC"): st.datetimes(
        dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)
    ),
    pa.decimal128(18, 3): st.decimals(-(10**14), 10**14, places=3),
    pa.decimal128(38, 3): st.decimals(-(10**30), 10**30, places=3),
}


@pytest.mark.parametrize("of", VALUES, ids=str)
@given(data=st.data(), repeats=st.sampled_from([1, REPEATS]))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_back(of: pa.DataType, data: st.DataObject, repeats: int) -> None:
    values = data.draw(st.lists(st.none() | VALUES[of], max_size=20)) * repeats
    table = column(values, of)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(PLAIN_LAYOUT, table)) as writer:
        writer.write_table(table)
    sink.seek(0)
    read = pq.read_table(sink, page_checksum_verification=True)
    if pa.types.is_floating(of):  # NaN is not equal to itself; its bits are
        read, table = (
            each.set_column(0, "c", pa.array([repr(value) for value in each.column("c").to_pylist()]))
            for each in (read, table)
        )
    assert read.column("c").to_pylist() == table.column("c").to_pylist()
