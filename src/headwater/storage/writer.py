"""The columnar writer: Arrow tables into Parquet files of a partitioned Iceberg table.

Runs inside Spark's Python workers. It holds at most one chunk per open file, closes a file at its target size and the
least used file when too many partitions are open, and makes every file durable before it reports it. Rows of a table
with an order are held up to a number of bytes, sorted, and written to files that end with them: every file is in order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from headwater.catalog.durable_files import local_name as local_name
from headwater.catalog.durable_files import local_path as local_path
from headwater.catalog.durable_files import sync_file
from headwater.storage.bloom_columns import bloom_options
from headwater.storage.encodings import choose_encodings
from headwater.storage.file_statistics import file_statistics
from headwater.storage.layout import Layout, codecs, leaves
from headwater.storage.nans import nan_counts, null_counts
from headwater.storage.partitions import partition_key, split_by_partition
from headwater.storage.schemas import arrow_schema
from headwater.storage.seal import blank, seal
from headwater.storage.sorting import sort_rows

DICTIONARY_PAGE = 8 * 1024**2
MAX_OPEN_FILES = 64
HELD_BYTES = 256 * 1024**2
"""Rows that are held until they fill row groups, of all open files together; then the largest is ended early."""
SORT_BYTES = 64 * 1024**2
"""Rows that are held to be sorted; together they make one file per partition, or several of the target size."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where files go: a table's location, columns, partitioning and layout. Pickled to the workers."""

    table: str
    location: str
    schema: Schema
    spec: PartitionSpec
    layout: Layout
    properties: dict[str, str]
    first: Schema | None = None  # the table's first columns, if it has others now


@dataclass(slots=True)
class _OpenFile:
    path: str
    partition: Record
    writer: pq.ParquetWriter
    unbounded: frozenset[str]
    nans: Counter[str] = field(default_factory=Counter)
    nulls: Counter[str] = field(default_factory=Counter)
    pending: list[pa.Table] = field(default_factory=list)
    pending_rows: int = 0
    pending_bytes: int = 0
    written: int = 0


class PartitionedWriter:
    """Writes tables of `target.schema` to as many files as partitions and the target size ask for.

    With `presorted` the rows come in the layout's order already; `with_nans` are Parquet columns in which NaN may come.
    """

    def __init__(
        self,
        target: Target,
        new_id: Callable[[], str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        presorted: bool = False,
        with_nans: frozenset[str] = frozenset(),
    ):
        self._target = target
        self._new_id = new_id
        self._now = now
        self._schema = arrow_schema(target.schema)
        self._leaves = len(list(leaves(self._schema)))
        self._sorts = target.layout.ordered and not presorted
        self._unsorted: list[pa.Table] = []
        self._unsorted_bytes = 0
        self._with_nans = with_nans
        self._held_bytes = 0
        self._open: OrderedDict[tuple[Any, ...], _OpenFile] = OrderedDict()
        self._done: list[DataFile] = []

    def write(self, table: pa.Table) -> None:
        """Add rows; they are on disk after `close`."""
        table = table.cast(self._schema)
        if not self._sorts:
            self._write(table)
            return
        self._unsorted.append(table)
        self._unsorted_bytes += table.nbytes
        if self._unsorted_bytes >= SORT_BYTES:
            self._write_sorted()

    def _write(self, table: pa.Table) -> None:
        for partition, part in split_by_partition(table, self._target.schema, self._target.spec):
            self._add(partition, part)

    def _write_sorted(self) -> None:
        """Write what is held, to files that end with it."""
        table = pa.concat_tables(self._unsorted)
        self._unsorted, self._unsorted_bytes = [], 0
        rows = self._target.layout.row_group_rows
        for partition, part in split_by_partition(table, self._target.schema, self._target.spec):
            part = sort_rows(part, self._target.layout)
            self._with_nans |= {path for path, count in nan_counts(part).items() if count}
            for start in range(0, part.num_rows, rows):
                self._add(partition, part.slice(start, rows))
            self._finish_all()

    def close(self) -> list[DataFile]:
        """Finish all files and return them, each durable."""
        if self._unsorted:
            self._write_sorted()
        self._finish_all()
        return self._done

    def _finish_all(self) -> None:
        for key in list(self._open):
            self._finish(key)

    def abort(self) -> None:
        """Delete what was written; nothing refers to it."""
        for key in list(self._open):
            open_file = self._open.pop(key)
            with suppress(OSError, pa.ArrowException):  # what broke the write may break the footer too
                open_file.writer.close()
            local_path(open_file.path).unlink(missing_ok=True)
        for done in self._done:
            local_path(done.file_path).unlink(missing_ok=True)

    def _add(self, partition: Record, table: pa.Table) -> None:
        key = partition_key(partition)
        nans = nan_counts(table)
        self._with_nans |= {path for path, count in nans.items() if count}
        if key in self._open and any(nans[path] for path in nans.keys() - self._open[key].unbounded):
            self._finish(key)  # it has bounds for a column that has NaN from here on
        open_file = self._open.get(key) or self._start(key, partition, table)
        self._open.move_to_end(key)
        open_file.nans.update(nans)
        open_file.nulls.update(null_counts(table))
        open_file.pending.append(table)
        open_file.pending_rows += table.num_rows
        open_file.pending_bytes += table.nbytes
        self._held_bytes += table.nbytes
        if open_file.pending_rows >= self._target.layout.row_group_rows:
            self._end_row_group(key)
        while self._held_bytes >= HELD_BYTES:
            self._end_row_group(max(self._open, key=lambda each: self._open[each].pending_bytes))

    def _end_row_group(self, key: tuple[Any, ...]) -> None:
        self._drain(self._open[key])
        if self._open[key].written >= self._target.layout.target_bytes:
            self._finish(key)

    def _start(self, key: tuple[Any, ...], partition: Record, first: pa.Table) -> _OpenFile:
        if len(self._open) >= MAX_OPEN_FILES:
            self._finish(next(iter(self._open)))
        path = self._new_path(partition)
        local_path(path).parent.mkdir(parents=True, exist_ok=True)
        target = self._target
        blooms = bloom_options(target.schema, target.properties, target.layout.row_group_rows)
        options = parquet_options(target.layout, first, self._with_nans) | {"bloom_filter_options": blooms}
        writer = pq.ParquetWriter(local_path(path), self._schema, **options)
        self._open[key] = _OpenFile(path, partition, writer, self._with_nans)
        return self._open[key]

    def _new_path(self, partition: Record) -> str:
        target = self._target
        name = f"{target.table}_data_{self._now():%Y%m%d}_{self._new_id().lower()}.parquet"
        folder = target.spec.partition_to_path(partition, target.schema) if target.spec.fields else ""
        return "/".join(filter(None, (target.location, "data", folder, name)))

    def _drain(self, open_file: _OpenFile) -> None:
        if not open_file.pending:
            return
        table = pa.concat_tables(open_file.pending)
        open_file.pending.clear()
        self._held_bytes -= open_file.pending_bytes
        open_file.pending_rows = open_file.pending_bytes = 0
        open_file.writer.write_table(table, row_group_size=self._target.layout.row_group_rows)
        open_file.written = local_path(open_file.path).stat().st_size

    def _finish(self, key: tuple[Any, ...]) -> None:
        open_file = self._open[key]  # stays there until it is done, so that `abort` finds it
        self._drain(open_file)
        open_file.writer.add_key_value_metadata(blank(self._leaves))
        open_file.writer.close()
        seal(local_path(open_file.path))
        sync_file(local_path(open_file.path))
        self._done.append(self._entry(open_file))
        del self._open[key]

    def _entry(self, open_file: _OpenFile) -> DataFile:
        """The Iceberg entry of a finished file."""
        local, target = local_path(open_file.path), self._target
        statistics = file_statistics(local, target.schema, target.properties, open_file.nans, open_file.nulls)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=open_file.path,
            file_format=FileFormat.PARQUET,
            partition=open_file.partition,
            file_size_in_bytes=local.stat().st_size,
            sort_order_id=target.layout.sort_order_id,
            spec_id=target.spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics,
        )


def parquet_options(layout: Layout, first: pa.Table, unbounded: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What Arrow's writer is told: the layout's settings, and encodings that fit the file's first rows.

    Every file has page checksums, and statistics of all columns but those that are `unbounded`.
    """
    encodings, chosen = choose_encodings(first, layout), codecs(layout, first.schema)
    return {
        "compression": {path: codec for path, (codec, _) in chosen.items()},
        "compression_level": {path: level for path, (_, level) in chosen.items() if level is not None},
        "use_dictionary": list(encodings.dictionary),
        "column_encoding": encodings.others,
        "dictionary_pagesize_limit": DICTIONARY_PAGE,
        "data_page_size": layout.page_bytes,
        "write_batch_size": _values_at_once(layout, first),
        "store_decimal_as_integer": True,
        "write_page_index": layout.page_index,
        "write_page_checksum": True,
        "write_statistics": [path for path in chosen if path not in unbounded],
        "sorting_columns": sorting_columns(layout, first.schema),
        "store_schema": False,
    }


def _values_at_once(layout: Layout, first: pa.Table) -> int:
    """After how many values a page's size is looked at: so that pages of wide values do not become much too large."""
    widest = max((column.nbytes for column in first.columns), default=0) // max(1, first.num_rows)
    return max(1, min(1024, layout.page_bytes // max(1, 4 * int(widest))))


def sorting_columns(layout: Layout, schema: pa.Schema) -> list[pq.SortingColumn] | None:
    """The layout's order as Parquet tells it: by the numbers of Parquet columns."""
    places = {leaf.path: place for place, leaf in enumerate(leaves(schema))}
    keys = [pq.SortingColumn(places[key.column], key.descending, key.nulls_first) for key in layout.ordering]
    return keys or None
