"""Any number of rows in a table's order with bounded memory: sorted runs on disk, merged block by block.

Runs are Arrow files, so every type comes back as it was, and both steps compare as `sorting.py` does. What a crash
leaves is in the folder that the caller gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from headwater.storage.layout import Layout
from headwater.storage.sorting import CURVE, CURVE_KEYS, sorted_by, sorted_indices, with_curve
from headwater.storage.zorder import Boundaries
from headwater.storage.zorder import boundaries as boundaries_of
from headwater.types import SortKey

FAN_IN = 64
"""Runs that are merged at once; of more, some are merged into longer runs first."""
_SHARE = 6
"""A run's part of the memory: its rows, copies of them while they are sorted, and the next batch."""
_BLOCKS = 4 * FAN_IN
"""Blocks of a full run. A merge holds up to two of each run, and copies of them: less than making a run does."""
_LEAST_BLOCK = 16 * 1024

Keys = Sequence[SortKey]


def sorted_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    layout: Layout,
    *,
    memory: int,
    folder: Path,
    boundaries: Boundaries | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in the layout's order, with about `memory` bytes and as much room in `folder` as they need.

    A Z-order goes by `boundaries`, or else by quantiles of the rows that fit into memory first.
    """
    runs = _runs(batches, schema, memory // _SHARE)
    keys: Keys = layout.ordering
    if layout.clustering:
        first = next(runs, pa.Table.from_batches([], schema))
        along = boundaries or boundaries_of(first, layout.clustering)
        runs, keys = map(partial(with_curve, along=along), chain([first], runs)), CURVE_KEYS
        del first
    with TemporaryDirectory(prefix="sort-", dir=folder) as spill:
        for table in _sorted(runs, keys, Path(spill), memory // _SHARE):
            yield from (table.drop_columns(CURVE) if layout.clustering else table).to_batches()


# No name below may hold on to a run that has been passed on: `map` does not, a loop's variable would.


def _runs(batches: Iterable[pa.RecordBatch], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """The rows in tables of about `size` bytes."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= size:
            held_bytes = 0
            yield _taken(held, schema)
    if held:
        yield _taken(held, schema)


def _taken(held: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(held, schema).combine_chunks()
    held.clear()
    return table


def _sorted(runs: Iterator[pa.Table], keys: Keys, folder: Path, size: int) -> Iterator[pa.Table]:
    ordered = map(partial(sorted_by, keys=keys), runs)
    names = (folder / f"{number}.arrow" for number in count())
    first = next(ordered, None)
    second = next(ordered, None)
    if first is None or second is None:
        yield from filter(None, [first])
        return

    def spill(run: pa.Table) -> Path:
        return _spilled([run], next(names), size)

    files = [spill(first)]
    del first
    files.append(spill(second))
    del second
    files.extend(map(spill, ordered))
    while len(files) > FAN_IN:
        # Neighbours are merged, so that equal rows stay in the order in which they came.
        groups = [files[at : at + FAN_IN] for at in range(0, len(files), FAN_IN)]
        files = [_spilled(_merged(group, keys), next(names), size) for group in groups]
    yield from _merged(files, keys)


def _spilled(tables: Iterable[pa.Table], path: Path, size: int) -> Path:
    """A file of the tables' rows, in blocks of which a run of `size` bytes has `_BLOCKS` at the most."""
    with ExitStack() as until:
        writer = None
        for table in tables:
            if writer is None:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = until.enter_context(pa.ipc.new_stream(str(path), table.schema, options=options))
            rows = table.num_rows * max(_LEAST_BLOCK, size // _BLOCKS) // max(1, table.nbytes)
            writer.write_table(table, max_chunksize=max(1, rows))
    return path


class _Cursor:
    """A run that is being merged: its next rows, and whether more follow on disk."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_stream(pa.OSFile(str(path)))
        path.unlink()  # the open file stays until the cursor goes
        self.held = pa.Table.from_batches([], self._reader.schema)
        self.more = True
        self._enough = 1

    def fill(self) -> bool:
        """Hold at least a block, if there is so much; whether there are any rows.

        With less, the ends of what all runs hold would soon lie so close together that a step yields next to nothing.
        """
        while self.more and self.held.num_rows < self._enough:
            try:
                block = pa.Table.from_batches([self._reader.read_next_batch()])
            except StopIteration:
                self.more = False
                break
            self._enough = max(self._enough, block.num_rows)
            self.held = pa.concat_tables([self.held, block]) if self.held.num_rows else block
        return bool(self.held.num_rows)


def _merged(files: Sequence[Path], keys: Keys) -> Iterator[pa.Table]:
    cursors = [_Cursor(path) for path in files]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        yield _next_rows(*_due(cursors, keys), keys)


def _due(cursors: Sequence[_Cursor], keys: Keys) -> tuple[list[_Cursor], _Cursor | None]:
    """Which runs have the next rows, and the one whose last row in memory is the last that is surely among them."""
    columns = [key.column for key in keys]
    edges = [c.held.select(columns).slice(at, 1) for c in cursors for at in (0, c.held.num_rows - 1)]
    due: set[int] = set()
    for place in sorted_indices(pa.concat_tables(edges), keys).to_pylist():
        if place % 2 == 0:
            due.add(place // 2)
        elif cursors[place // 2].more:
            return [cursors[at] for at in sorted(due)], cursors[place // 2]
    return list(cursors), None


def _next_rows(due: Sequence[_Cursor], end: _Cursor | None, keys: Keys) -> pa.Table:
    """The rows up to the last one that `end` holds; all of them without one. They leave the cursors."""
    ends = np.cumsum([cursor.held.num_rows for cursor in due])
    together = pa.concat_tables([cursor.held for cursor in due]).combine_chunks()
    order = sorted_indices(together, keys)
    if end is not None:
        last = ends[due.index(end)] - 1
        order = order.slice(0, int(np.flatnonzero(order.to_numpy() == last)[0]) + 1)
    taken = np.bincount(np.searchsorted(ends, order.to_numpy(), side="right"), minlength=len(due))
    for cursor, rows in zip(due, taken.tolist(), strict=True):
        cursor.held = cursor.held.slice(rows)
    return together.take(order)
