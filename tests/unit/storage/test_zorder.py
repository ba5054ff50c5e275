"""The curve keeps rows that are close in any of its columns close together, whatever the columns hold."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headwater.storage.layout import Layout
from headwater.storage.sorting import sort_rows
from headwater.storage.zorder import MAX_BITS, SAMPLE, boundaries, z_values

ROWS, GROUP = 40_000, 1_000


def test_the_curve_takes_bits_in_turns() -> None:
    grid = pa.table({"x": [n // 4 for n in range(16)], "y": [n % 4 for n in range(16)]})
    along = boundaries(grid, ("x", "y"))
    assert [cut.to_pylist() for cut in along.cuts] == [[1, 2, 3], [1, 2, 3]]
    expected = {(x, y): (x >> 1) << 3 | (y >> 1) << 2 | (x & 1) << 1 | (y & 1) for x in range(4) for y in range(4)}
    rows = zip(*grid.to_pydict().values(), strict=True)
    assert z_values(grid, along).to_pylist() == [expected[row] for row in rows]


def test_a_column_with_few_values_has_few_bits() -> None:
    nothing = pa.array([None] * 4096, pa.float64())
    table = pa.table({"x": list(range(4096)), "y": [n % 2 for n in range(4096)], "same": ["a"] * 4096, "none": nothing})
    assert boundaries(table, ("x", "y", "same", "none")).widths == (MAX_BITS, 1, 0, 0)
    halves = sort_rows(table, Layout("zstd", None, 1, clustering=("y", "same", "none", "x"))).column("y").to_pylist()
    assert halves == [0] * 2048 + [1] * 2048  # the first bit is that of y, and the rest is in the order of x
    eight = pa.table({str(n): list(range(4096)) for n in range(8)})
    assert sum(boundaries(eight, tuple(eight.column_names)).widths) == 64


def test_nulls_are_apart_from_values_and_nan_is_the_largest() -> None:
    table = pa.table({"x": [math.nan, None, 1.0, -math.inf, None, math.inf, -0.0, 0.0], "y": ["a"] * 8})
    places = dict(enumerate(z_values(table, boundaries(table, ("x", "y"))).to_pylist()))
    order = [sorted(places, key=lambda row: (places[row], row))]
    assert order == [[1, 4, 3, 6, 7, 2, 5, 0]]
    assert max(places[1], places[4]) < places[3]


def test_values_beyond_the_sample_are_at_the_ends() -> None:
    along = boundaries(pa.table({"x": list(range(100)), "y": [str(n) for n in range(100, 200)]}), ("x", "y"))
    outside = pa.table({"x": [-(2**63), 2**63 - 1, None], "y": ["", "zzz", None]})
    low, high, null = z_values(outside, along).to_pylist()
    assert (low, null, high) == (0, 0, max(z_values(pa.table({"x": [99], "y": ["199"]}), along).to_pylist()))


def test_a_large_sample_is_looked_at_in_part_and_boundaries_can_be_sent() -> None:
    table = pa.table({"x": np.arange(4 * SAMPLE), "y": np.arange(4 * SAMPLE) % 1000})
    along = boundaries(table, ("x", "y"))
    assert along.widths == (MAX_BITS, MAX_BITS)
    again = pickle.loads(pickle.dumps(along))
    assert z_values(table, again).equals(z_values(table, along))


RANDOM = np.random.default_rng(7)
HEAVY = np.where(RANDOM.random(ROWS) < 0.5, 0, (RANDOM.pareto(0.5, ROWS) * 100).clip(0, 1e15)).astype(np.int64)
COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "even": lambda: pa.array(RANDOM.integers(0, 1 << 40, ROWS)),
    "skewed": lambda: pa.array(HEAVY),
    "text": lambda: pa.array([f"common prefix of all {n:08}" for n in RANDOM.integers(0, 10**8, ROWS)]),
    "float32": lambda: pa.array(RANDOM.normal(size=ROWS).astype(np.float32)),
    "decimal": lambda: pa.array([Decimal(int(n)).scaleb(-2) for n in RANDOM.integers(0, 10**9, ROWS)]),
    "date": lambda: pa.array([dt.date(2000, 1, 1) + dt.timedelta(int(n)) for n in RANDOM.integers(0, 9000, ROWS)]),
    "stamp": lambda: pa.array(RANDOM.integers(0, 10**15, ROWS)).cast(pa.timestamp("us", "UTC")),
    "uuid": lambda: pa.array([RANDOM.bytes(16) for _ in range(ROWS)], pa.binary(16)),
    "holes": lambda: pa.array([None if n % 3 else n for n in RANDOM.integers(0, 10**6, ROWS).tolist()]),
}


def groups_needed(table: pa.Table, name: str, low: Any, high: Any) -> int:
    """How many of the groups have rows between the bounds, as their smallest and largest values tell."""
    column, needed = table.column(name), 0
    for start in range(0, ROWS, GROUP):
        values = pc.drop_null(column.slice(start, GROUP)).combine_chunks()
        values = values.take(pc.sort_indices(values))
        if len(values):
            needed += values[-1].as_py() >= low and values[0].as_py() <= high
    return needed


@pytest.mark.parametrize("other", [name for name in COLUMNS if name != "even"])
def test_a_range_of_either_column_needs_few_groups(other: str) -> None:
    table = pa.table({"a": COLUMNS["even"](), "b": COLUMNS[other]()})
    clustered = sort_rows(table, Layout("zstd", None, 1, clustering=("a", "b")))
    assert sorted(clustered.column("a").to_pylist()) == sorted(table.column("a").to_pylist())
    for name in ("a", "b"):
        values = pc.drop_null(table.column(name)).combine_chunks()
        ordered = values.take(pc.sort_indices(values))
        low, high = (ordered[int(len(ordered) * share)].as_py() for share in (0.70, 0.72))
        assert groups_needed(table, name, low, high) == ROWS // GROUP
        assert groups_needed(clustered, name, low, high) <= ROWS // GROUP * 0.45
