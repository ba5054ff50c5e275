"""A sort that is larger than memory, or shared by threads: rows are dealt out by ranges of the key, then sorted apart.

Ranges are cut at quantiles of a sample. They follow the order: every row of a range comes before every row of the
next. Each is meant to fit into memory; one that does not, because a single key fills it, is sorted on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.storage.checksums import decoding
from headwater.storage.comparable import comparable
from headwater.storage.field_ids import plan_reading
from headwater.storage.layout import Layout
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import Target
from headwater.storage.zorder import Boundaries, boundaries, z_values

SAMPLED_FILES = 32
SAMPLED_ROWS = 4096
"""Rows of each sampled file."""
MEASURED_FILES, MEASURED_ROWS = 4, 4096
IN_MEMORY = 8
"""The part of the memory that a range's rows may fill; sorting them takes a multiple."""
MAX_RANGES = 200
"""Each is an open file while rows are dealt out."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where the order is cut: at `cuts` of its first key, or of places on the curve `along`."""

    layout: Layout
    cuts: pa.Array
    along: Boundaries | None = None

    @property
    def count(self) -> int:
        return len(self.cuts) + 1

    def shares(self, threads: int) -> list[range]:
        """The ranges in as many parts of neighbours."""
        edges = np.linspace(0, self.count, min(threads, self.count) + 1).astype(int).tolist()
        return [range(start, end) for start, end in pairwise(edges)]

    def of(self, table: pa.Table) -> np.ndarray:
        """The range of each row."""
        if self.along is not None:
            places: np.ndarray = z_values(table, self.along).to_numpy()
            return np.searchsorted(self.cuts.to_numpy(), places, side="right")
        key = self.layout.ordering[0]
        # The curve through a single column is the number of cuts that are not above its value, and 0 for null.
        found = z_values(table, Boundaries((key.column,), (self.cuts,))).to_numpy().astype(np.int64)
        if key.descending:
            found = len(self.cuts) - found
        nulls = table.column(key.column).is_null().to_numpy()
        return np.where(nulls, 0 if key.nulls_first else len(self.cuts), found)


def row_bytes(paths: Sequence[Path], into: Target) -> float:
    """About how much memory a row takes."""
    rows = size = 0
    for path in _spread(paths, MEASURED_FILES):
        with decoding(path), pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            reading = plan_reading(file.schema_arrow, into.schema, str(path))
            for batch in islice(file.iter_batches(MEASURED_ROWS, columns=list(reading.columns), use_threads=False), 1):
                rows, size = rows + batch.num_rows, size + reading.batch(batch).nbytes
    return size / max(1, rows)


def plan_ranges(paths: Sequence[Path], rows: int, into: Target, memory: int, threads: int) -> Ranges:
    """As many ranges as memory and threads ask for, of about the same number of rows."""
    size = row_bytes(paths, into) * rows
    needed = -(-int(size * IN_MEMORY) // memory)
    wanted = min(MAX_RANGES, max(1, needed, threads))
    columns = into.layout.clustering or tuple(key.column for key in into.layout.ordering[:1])
    if wanted == 1 and not into.layout.clustering:
        return Ranges(into.layout, pa.array([], pa.int64()))
    sample = sample_rows(paths, replace(into, schema=into.schema.select(*columns)))
    if into.layout.clustering:
        along = boundaries(sample, columns)
        places = pa.array(np.sort(z_values(sample, along).to_numpy()))
        return Ranges(into.layout, _quantiles(places, wanted), along)
    key = comparable(sample.column(columns[0])).combine_chunks().drop_null()
    return Ranges(into.layout, _quantiles(key.take(pc.sort_indices(key)), wanted))


def sample_rows(paths: Sequence[Path], into: Target) -> pa.Table:
    """Rows from all over the files, in the columns of `into.schema`."""
    tables = [table for path in _spread(paths, SAMPLED_FILES) for table in _sampled(path, into)]
    return pa.concat_tables([arrow_schema(into.schema).empty_table(), *tables])


def _spread(paths: Sequence[Path], most: int) -> list[Path]:
    return [paths[place] for place in np.unique(np.linspace(0, len(paths) - 1, most).astype(int))]


def _sampled(path: Path, into: Target) -> Iterator[pa.Table]:
    """Rows of all row groups at even distances: a file that is in order itself has its keys all over them."""
    with decoding(path), pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
        reading = plan_reading(file.schema_arrow, into.schema, str(path))
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(reading.columns), use_threads=False)
            rows = max(1, SAMPLED_ROWS // file.num_row_groups)
            places = np.unique(np.linspace(0, table.num_rows - 1, rows).astype(np.int64))
            for batch in table.take(pa.array(places)).to_batches():
                yield pa.Table.from_batches([reading.batch(batch)])


def _quantiles(ascending: pa.Array, pieces: int) -> pa.Array:
    """At most one less than `pieces` different values."""
    places = np.arange(1, pieces) * len(ascending) // pieces
    return pc.unique(ascending.take(pa.array(places)) if len(ascending) else ascending)


def deal_out(batches: Iterable[pa.RecordBatch], ranges: Ranges, folder: Path) -> dict[int, Path]:
    """Write the rows of each range to a file of its own, keeping their order; the files by range."""
    folder.mkdir()
    paths: dict[int, Path] = {}
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with ExitStack() as until:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        for batch in batches:
            for number, part in _parts(pa.Table.from_batches([batch]), ranges):
                if number not in writers:
                    paths[number] = folder / f"{number}.arrow"
                    sink = until.enter_context(pa.OSFile(str(paths[number]), "wb"))
                    writers[number] = until.enter_context(pa.ipc.new_stream(sink, part.schema, options=options))
                writers[number].write_table(part)
    return paths


def _parts(table: pa.Table, ranges: Ranges) -> Iterator[tuple[int, pa.Table]]:
    numbers = ranges.of(table)
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.take(pa.array(order)), numbers[order]
    found, starts = np.unique(numbers, return_index=True)
    ends = [*starts[1:].tolist(), table.num_rows]
    for number, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
        yield number, table.slice(start, end - start)


def held_rows(dealt: Sequence[Sequence[Path]], number: int) -> Iterator[pa.RecordBatch]:
    """The rows of a range; what was read leaves the disk."""
    for path in dealt[number]:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            yield from reader
        path.unlink()
