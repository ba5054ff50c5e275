"""More rows than memory come out in order, and the memory stays what was given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headwater.storage import external_sort
from headwater.storage.external_sort import sorted_batches
from headwater.storage.layout import Layout
from headwater.storage.sorting import sort_rows
from headwater.storage.zorder import boundaries
from headwater.types import SortKey

ORDERED = Layout("zstd", None, 1, ordering=(SortKey("key"),))


def rows(count: int, distinct: int = 50) -> pa.Table:
    random = np.random.default_rng(3)
    text = pa.array(["some text"] * count, pa.string())
    return pa.table({"key": random.integers(0, distinct, count), "n": np.arange(count), "text": text})


def in_order(table: pa.Table, layout: Layout, memory: int, folder: Path, size: int = 100) -> pa.Table:
    batches = table.to_batches(max_chunksize=size)
    return pa.Table.from_batches(
        sorted_batches(batches, table.schema, layout, memory=memory, folder=folder), table.schema
    )


@pytest.mark.parametrize(
    "memory", [1 << 30, 200_000, 20_000, 1], ids=["at once", "few runs", "many runs", "a batch each"]
)
def test_equal_rows_stay_in_the_order_in_which_they_came(tmp_path: Path, memory: int) -> None:
    table = rows(20_000)
    assert in_order(table, ORDERED, memory, tmp_path).equals(sort_rows(table, ORDERED))
    assert list(tmp_path.iterdir()) == []


def test_more_runs_than_are_merged_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "FAN_IN", 3)
    table = rows(5000)
    assert in_order(table, ORDERED, 1, tmp_path).equals(sort_rows(table, ORDERED))  # 50 runs, 17, 6, 2


@pytest.mark.parametrize("descending", [False, True])
def test_rows_that_come_in_order_or_in_the_opposite_one(tmp_path: Path, descending: bool) -> None:
    table = pa.table({"key": np.arange(10_000), "n": np.arange(10_000)})
    layout = Layout("zstd", None, 1, ordering=(SortKey("key", descending),))
    assert in_order(table, layout, 50_000, tmp_path).equals(sort_rows(table, layout))


def test_along_a_curve_the_place_is_not_told(tmp_path: Path) -> None:
    layout = Layout("zstd", None, 1, clustering=("key", "n"))
    table = rows(5000, 5000)
    along = boundaries(table, layout.clustering)
    batches = sorted_batches(
        table.to_batches(max_chunksize=100), table.schema, layout, memory=100_000, folder=tmp_path, boundaries=along
    )
    found = pa.Table.from_batches(batches, table.schema)
    assert found.equals(sort_rows(table, layout, along))
    assert found.schema == table.schema
    assert found.sort_by("n").equals(table)
    first = found.slice(0, 1250)  # a quarter of the rows lies in about a quarter of the square
    assert np.mean(first.column("key").to_numpy() < 2500) > 0.9
    assert np.mean(first.column("n").to_numpy() < 2500) > 0.9


def test_no_rows(tmp_path: Path) -> None:
    for layout in (ORDERED, Layout("zstd", None, 1, clustering=("key", "n"))):
        assert in_order(rows(0), layout, 1000, tmp_path).num_rows == 0


def test_who_stops_early_leaves_nothing(tmp_path: Path) -> None:
    table = rows(5000)
    found = sorted_batches(
        iter(table.to_batches(max_chunksize=100)), table.schema, ORDERED, memory=1000, folder=tmp_path
    )
    next(found)
    assert list(tmp_path.iterdir()) != []
    found.close()
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_rows_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(5000).to_batches(max_chunksize=100)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(sorted_batches(failing(), rows(0).schema, ORDERED, memory=1000, folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


SORT_MUCH = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from headwater.storage.external_sort import sorted_batches
from headwater.storage.layout import Layout
from headwater.types import SortKey

random, memory, total = np.random.default_rng(1), int(sys.argv[2]), int(sys.argv[3])
schema = pa.schema({"key": pa.int64(), "text": pa.string()})

def batches():
    made = 0
    while made < total:
        keys = random.integers(0, 1 << 60, 20_000)
        batch = pa.record_batch([pa.array(keys), pc.utf8_lpad(pc.cast(pa.array(keys), pa.string()), 40)], schema)
        made += batch.nbytes
        yield batch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

layout = Layout("zstd", None, 1, ordering=(SortKey("key"),))
next(batches())
before = peak()
last, rows = -1, 0
for batch in sorted_batches(batches(), schema, layout, memory=memory, folder=Path(sys.argv[1])):
    keys = batch.column(0).to_numpy()
    assert keys[0] >= last and (keys[1:] >= keys[:-1]).all()
    last, rows = keys[-1], rows + len(keys)
print(rows, peak() - before)
"""


def test_the_memory_is_bounded_by_what_was_given(tmp_path: Path) -> None:
    memory, total = 64 * 1024**2, 256 * 1024**2
    done = subprocess.run(
        [sys.executable, "-c", SORT_MUCH, str(tmp_path), str(memory), str(total)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, grown = map(int, done.stdout.split())
    assert count > 4_000_000
    assert grown < 1.25 * memory
