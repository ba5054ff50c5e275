"""Rows written to memory as the columnar writer would write them, and what that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.storage.advice.values import Effect
from headwater.storage.layout import Layout, leaves
from headwater.storage.writer import parquet_options
from headwater.types import Pairs

TRIES = 5
"""Times that something is timed; the shortest counts, because the machine does other things as well."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file in memory: its size, and that of every Parquet column."""

    bytes: int
    columns: Mapping[str, int]
    data: pa.Buffer = field(repr=False)


def written(rows: pa.Table, layout: Layout, blooms: Mapping[str, Mapping[str, float]] | None = None) -> Written:
    """The rows, which may be some columns only, as they lie, in one file of the layout."""
    sink = pa.BufferOutputStream()
    layout = replace(layout, ordering=(), clustering=())
    options = parquet_options(layout, rows) | {"bloom_filter_options": dict(blooms or {})}
    with pq.ParquetWriter(sink, rows.schema, **options) as writer:
        writer.write_table(rows, row_group_size=layout.row_group_rows)
    data = sink.getvalue()
    return Written(data.size, column_bytes(pq.read_metadata(pa.BufferReader(data))), data)


def column_bytes(metadata: pq.FileMetaData) -> dict[str, int]:
    """Compressed bytes by Parquet path."""
    found: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            found[chunk.path_in_schema] = found.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    return found


def timed(rows: pa.Table, layout: Layout) -> tuple[float, float]:
    """Seconds of a processor to write the rows, and to read them back."""
    data = written(rows, layout).data
    reading = _shortest(lambda: pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False))
    return _shortest(lambda: written(rows, layout)), reading


class Columns:
    """Columns of a sample, each written and read by itself, once for every way in which it can be."""

    def __init__(self, sample: pa.Table) -> None:
        self._sample = sample
        self._known: dict[tuple[str, Layout], tuple[int, float, float]] = {}

    def effect(self, column: str, before: Layout, after: Layout) -> Effect:
        """What the settings of another layout do to a column."""
        (size, write, read), (new_size, new_write, new_read) = self._of(column, before), self._of(column, after)
        return Effect(size, new_size, write, new_write, read, new_read)

    def _of(self, column: str, layout: Layout) -> tuple[int, float, float]:
        top = column.split(".")[0]
        alone = self._sample.select([top])
        key = (column, _only(top, layout))
        if key not in self._known:
            paths = [leaf.path for leaf in leaves(alone.schema) if leaf.column == column]
            size = sum(written(alone, layout).columns[path] for path in paths)
            self._known[key] = (size, *timed(alone, layout))
        return self._known[key]


def _only(top: str, layout: Layout) -> Layout:
    """The layout without the settings of other columns, which make no difference."""

    def of(pairs: Pairs) -> Pairs:
        return tuple(sorted(pair for pair in pairs if pair[0].split(".")[0] == top))

    return replace(
        layout,
        compression_columns=of(layout.compression_columns),
        encoding_columns=of(layout.encoding_columns),
        dictionary_columns=of(layout.dictionary_columns),
    )


def _shortest(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(TRIES):
        begun = time.thread_time()  # not the clock: others use the processor as well
        work()
        taken.append(time.thread_time() - begun)
    return min(taken)
