"""The columnar writer: Arrow tables into Parquet files of a partitioned Iceberg table.

Runs inside Spark's Python workers. It holds at most one chunk per open file, closes a file at its target size and the
least used file when too many partitions are open, and makes every file durable before it reports it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from headwater.catalog.durable_files import sync_file
from headwater.storage.bloom_columns import bloom_options
from headwater.storage.encodings import choose_encodings, leaf_paths
from headwater.storage.schemas import arrow_schema
from headwater.storage.seal import blank, seal
from headwater.types import Codec

ROW_GROUP_ROWS = 256 * 1024
DICTIONARY_PAGE = 8 * 1024**2
MAX_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """How files of a table are written."""

    codec: Codec
    level: int | None
    target_bytes: int
    row_group_rows: int = ROW_GROUP_ROWS


@dataclass(frozen=True, slots=True)
class Target:
    """Where files go: a table's location, columns, partitioning and layout. Pickled to the workers."""

    table: str
    location: str
    schema: Schema
    spec: PartitionSpec
    layout: Layout
    properties: dict[str, str]


@dataclass(slots=True)
class _OpenFile:
    path: str
    partition: Record
    writer: pq.ParquetWriter
    pending: list[pa.Table] = field(default_factory=list)
    pending_rows: int = 0
    written: int = 0


class PartitionedWriter:
    """Writes tables of `target.schema` to as many files as partitions and the target size ask for."""

    def __init__(
        self, target: Target, new_id: Callable[[], str], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ):
        self._target = target
        self._new_id = new_id
        self._now = now
        self._schema = arrow_schema(target.schema)
        self._leaves = sum(len(list(leaf_paths(field.name, field.type))) for field in self._schema)
        self._open: OrderedDict[tuple[Any, ...], _OpenFile] = OrderedDict()
        self._done: list[DataFile] = []

    def write(self, table: pa.Table) -> None:
        """Add rows; they are on disk after `close`."""
        table = table.cast(self._schema)
        for partition, part in split_by_partition(table, self._target.schema, self._target.spec):
            self._add(partition, part)

    def close(self) -> list[DataFile]:
        """Finish all files and return them, each durable."""
        for key in list(self._open):
            self._finish(key)
        return self._done

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
        key = tuple(partition[i] for i in range(len(partition)))
        open_file = self._open.get(key) or self._start(key, partition, table)
        self._open.move_to_end(key)
        open_file.pending.append(table)
        open_file.pending_rows += table.num_rows
        if open_file.pending_rows >= self._target.layout.row_group_rows:
            self._drain(open_file)
            if open_file.written >= self._target.layout.target_bytes:
                self._finish(key)

    def _start(self, key: tuple[Any, ...], partition: Record, first: pa.Table) -> _OpenFile:
        if len(self._open) >= MAX_OPEN_FILES:
            self._finish(next(iter(self._open)))
        path = self._new_path(partition)
        local_path(path).parent.mkdir(parents=True, exist_ok=True)
        target = self._target
        blooms = bloom_options(target.schema, target.properties, target.layout.row_group_rows)
        options = parquet_options(target.layout, first) | {"bloom_filter_options": blooms}
        writer = pq.ParquetWriter(local_path(path), self._schema, **options)
        self._open[key] = _OpenFile(path, partition, writer)
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
        open_file.pending_rows = 0
        open_file.writer.write_table(table, row_group_size=self._target.layout.row_group_rows)
        open_file.written = local_path(open_file.path).stat().st_size

    def _finish(self, key: tuple[Any, ...]) -> None:
        open_file = self._open[key]  # stays there until it is done, so that `abort` finds it
        self._drain(open_file)
        open_file.writer.add_key_value_metadata(blank(self._leaves))
        open_file.writer.close()
        seal(local_path(open_file.path))
        sync_file(local_path(open_file.path))
        self._done.append(data_file(open_file.path, open_file.partition, self._target))
        del self._open[key]


def parquet_options(layout: Layout, first: pa.Table) -> dict[str, Any]:
    """What every file gets: statistics, page index, page checksums, and encodings that fit its first rows."""
    encodings = choose_encodings(first)
    return {
        "compression": layout.codec,
        "compression_level": layout.level,
        "use_dictionary": list(encodings.dictionary),
        "column_encoding": encodings.others,
        "dictionary_pagesize_limit": DICTIONARY_PAGE,
        "store_decimal_as_integer": True,
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": False,
    }


def split_by_partition(table: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[tuple[Record, pa.Table]]:
    """The rows of each partition value, keeping their order."""
    if not spec.fields or table.num_rows == 0:
        yield Record(), table
        return
    keys = pa.table({str(i): _partition_values(table, schema, field) for i, field in enumerate(spec.fields)})
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    keys, table = keys.take(order), table.take(order)
    for start, stop in _runs(keys):
        raw = [column[start].as_py() for column in keys.columns]
        values = [_record_value(field, schema, value) for field, value in zip(spec.fields, raw, strict=True)]
        yield Record(*values), table.slice(start, stop - start)


def _partition_values(table: pa.Table, schema: Schema, field: Any) -> pa.ChunkedArray:
    source = schema.find_field(field.source_id)
    path = (schema.find_column_name(field.source_id) or source.name).split(".")
    column = table.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return field.transform.pyarrow_transform(source.field_type)(column)


def _record_value(field: Any, schema: Schema, value: Any) -> Any:
    if isinstance(field.transform, IdentityTransform):
        return partition_record_value(field, value, schema)
    return value


def _runs(keys: pa.Table) -> Iterator[tuple[int, int]]:
    """The ranges of equal rows in sorted `keys`; null equals null."""
    changed = None
    for column in keys.columns:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        same = pc.or_(pc.fill_null(pc.equal(before, after), False), pc.and_(pc.is_null(before), pc.is_null(after)))
        differs = pc.invert(same)
        changed = differs if changed is None else pc.or_(changed, differs)
    bounds = [0, *(i + 1 for i in pc.indices_nonzero(changed).to_pylist()), keys.num_rows]
    yield from pairwise(bounds)


def data_file(path: str, partition: Record, target: Target) -> DataFile:
    """The Iceberg entry of a finished file, with its statistics."""
    local = local_path(path)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(local),
        stats_columns=compute_statistics_plan(target.schema, target.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(target.schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=local.stat().st_size,
        sort_order_id=None,
        spec_id=target.spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def local_path(location: str) -> Path:
    """The path behind a `file:` location, taken literally as Iceberg's readers do: `%` stands for itself."""
    return Path(local_name(location))


def local_name(location: str) -> str:
    """The same as text."""
    return location.removeprefix("file://") if location.startswith("file://") else location.removeprefix("file:")
