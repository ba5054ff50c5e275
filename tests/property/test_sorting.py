"""Rows in order are the same rows, in the order that Python finds; with little memory as with much; of every type."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cmp_to_key
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from headwater.sql.schema_text import parse_columns
from headwater.storage.external_sort import sorted_batches
from headwater.storage.layout import Layout
from headwater.storage.schemas import arrow_schema
from headwater.storage.sorting import sort_rows
from headwater.storage.zorder import boundaries, z_values
from headwater.types import SortKey

COLUMNS = """
    b BOOLEAN, i INT, n BIGINT, f FLOAT, d DOUBLE, m DECIMAL(9, 2), w DECIMAL(38, 3), day DATE, t TIME,
    local TIMESTAMP_NTZ, at TIMESTAMP, s STRING, u UUID, x FIXED(3), raw BINARY,
    tags ARRAY<DOUBLE>, by MAP<STRING, STRUCT<n: BIGINT, at: TIMESTAMP>>, place STRUCT<city: STRING, u: UUID>
"""
SCHEMA: Schema = parse_columns(COLUMNS)
ARROW = arrow_schema(SCHEMA)
EPOCH = dt.datetime(1970, 1, 1)
TIMES = st.integers(-5, 5).map(lambda n: EPOCH + dt.timedelta(days=n, microseconds=n))
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan])
TEXTS = st.text("aä\U0001f600\x00", max_size=3)
UUIDS = st.integers(0, 3).map(lambda n: uuid.UUID(int=n << 126 | n).bytes)
# Few values of each, so that rows are equal in the first keys.
SORTED: Mapping[str, st.SearchStrategy[Any]] = {
    "b": st.booleans(),
    "i": st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]),
    "n": st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
    "f": FLOATS,
    "d": FLOATS,
    "m": st.integers(-3, 3).map(lambda n: Decimal(n).scaleb(-2)),
    "w": st.sampled_from([Decimal(10**34), -Decimal(10**34), Decimal(0)]),
    "day": TIMES.map(dt.datetime.date),
    "t": st.integers(0, 3).map(lambda n: dt.time(n, 0, n)),
    "local": TIMES,
    "at": TIMES.map(lambda when: when.replace(tzinfo=dt.UTC)),
    "s": TEXTS,
    "u": UUIDS,
    "x": st.sampled_from([b"\x00\x00\x00", b"\x7f\x80\x00", b"\xff\xff\xff"]),
    "raw": st.sampled_from([b"", b"\x00", b"\x7f", b"\xff"]),
}
CARRIED: Mapping[str, st.SearchStrategy[Any]] = {
    "tags": st.lists(st.none() | FLOATS, max_size=2),
    "by": st.lists(st.tuples(TEXTS, st.fixed_dictionaries({"n": st.none() | st.integers(0, 3), "at": SORTED["at"]}))),
    "place": st.fixed_dictionaries({"city": st.none() | TEXTS, "u": st.none() | UUIDS}),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | of for name, of in {**SORTED, **CARRIED}.items()}), max_size=20
)
KEYS = st.lists(
    st.builds(SortKey, st.sampled_from(list(SORTED)), st.booleans(), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda key: key.column,
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    bare = [field.with_type(_without_extension(field.type)) for field in ARROW]
    return pa.Table.from_pylist(rows, schema=pa.schema(bare)).cast(ARROW)


def _without_extension(of: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(of):
        return pa.struct([field.with_type(_without_extension(field.type)) for field in of])
    return of.storage_type if isinstance(of, pa.BaseExtensionType) else of


def shown(table: pa.Table) -> list[str]:
    """Rows that compare equal only if they are: NaN with itself, and 0.0 not with -0.0."""
    return [repr(row) for row in table.to_pylist()]


def comparing(keys: list[SortKey]) -> Callable[[dict[str, Any], dict[str, Any]], int]:
    """Iceberg's order, written down once more."""

    def compare(left: dict[str, Any], right: dict[str, Any]) -> int:
        for key in keys:
            one, other = left[key.column], right[key.column]
            if one is None or other is None:
                found = (one is None) - (other is None)
                found = -found if key.nulls_first else found
            else:
                found = (_ranked(one) > _ranked(other)) - (_ranked(one) < _ranked(other))
                found = -found if key.descending else found
            if found:
                return found
        return 0

    return compare


def _ranked(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value) if value == 0 else 0)
    return value.encode() if isinstance(value, str) else value


@given(ROWS, KEYS)
@settings(max_examples=150)
def test_rows_are_in_the_order_of_their_keys(rows: list[dict[str, Any]], keys: list[SortKey]) -> None:
    table = table_of(rows)
    found = sort_rows(table, Layout("zstd", None, 1, ordering=tuple(keys)))
    expected = sorted(range(len(rows)), key=cmp_to_key(lambda a, b: comparing(keys)(rows[a], rows[b])))
    assert shown(found) == shown(table.take(pa.array(expected, pa.int64())))
    assert found.schema.equals(table.schema, check_metadata=True)


@given(ROWS, KEYS, st.sampled_from([1, 4000, 1 << 20]), st.integers(1, 5))
@settings(max_examples=60)
def test_little_memory_gives_the_same_rows(
    rows: list[dict[str, Any]], keys: list[SortKey], memory: int, size: int
) -> None:
    table, layout = table_of(rows), Layout("zstd", None, 1, ordering=tuple(keys))
    with tempfile.TemporaryDirectory() as folder:
        batches = sorted_batches(
            table.to_batches(max_chunksize=size), ARROW, layout, memory=memory, folder=Path(folder)
        )
        found = pa.Table.from_batches(batches, ARROW)
    assert shown(found) == shown(sort_rows(table, layout))


CLUSTERED = st.lists(st.sampled_from([name for name in SORTED if name != "b"]), min_size=2, max_size=8, unique=True)


@given(ROWS, ROWS, CLUSTERED)
@settings(max_examples=60)
def test_a_curve_goes_through_every_row_once(
    rows: list[dict[str, Any]], sample: list[dict[str, Any]], columns: list[str]
) -> None:
    table, layout = table_of(rows), Layout("zstd", None, 1, clustering=tuple(columns))
    along = boundaries(table_of(sample), columns)
    assert sum(along.widths) <= 64
    found = sort_rows(table, layout, along)
    assert sorted(shown(found)) == sorted(shown(table))
    places = z_values(found, along).to_pylist()
    assert places == sorted(places)
    for name in columns:
        one = boundaries(table_of(sample), [name])
        in_order = sort_rows(table, Layout("zstd", None, 1, ordering=(SortKey(name),)))
        digits = z_values(in_order, one).to_pylist()
        assert digits == sorted(digits)
    with tempfile.TemporaryDirectory() as folder:
        batches = sorted_batches(
            table.to_batches(max_chunksize=3), ARROW, layout, memory=1, folder=Path(folder), boundaries=along
        )
        assert shown(pa.Table.from_batches(batches, ARROW)) == shown(found)
