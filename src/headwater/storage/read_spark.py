"""Data files and snapshots as Spark frames, through Iceberg's vectorised reader.

Spark's own Parquet reader does not know all encodings that our files use, nor field ids. Iceberg's does, and can be
told to read exactly some files: what views need of a change, and a rewrite of the files it rewrites.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog.iceberg import NAME
from headwater.errors import Corrupt, QueryFailed
from headwater.spark.compiled import compiled
from headwater.storage.filter_json import filter_json
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.time_travel import columns_at
from headwater.storage.writer import local_path
from headwater.types import TableName


@contextmanager
def read_files(
    session: SparkSession, table: TableName, files: Sequence[DataFile], row_filter: BooleanExpression | None = None
) -> Iterator[DataFrame]:
    """The rows of exactly these files, in the table's current schema; the frame can be run inside the block only.

    Row groups in which `row_filter` cannot hold are skipped. Rows are not filtered: the caller does that. The files may
    be of the past: columns that ever could be null may be null.
    """
    if not files:
        yield session.read.table(f"{NAME}.{table}").where("false")
        return
    with staged_files(session, table, files, row_filter, past=True) as staged:
        yield staged.frame


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that a frame reads, and frames made of it; which ones can be changed between two runs."""

    frame: DataFrame
    table: TableName
    id: str

    def narrow(self, files: Sequence[DataFile]) -> None:
        """From now on read these files whole; there must be some."""
        _check_present(self.table, files)
        compiled(self.frame.sparkSession, "TaskSets").restage(self.id, _listed(files))


@contextmanager
def staged_files(
    session: SparkSession,
    table: TableName,
    files: Sequence[DataFile],
    row_filter: BooleanExpression | None = None,
    *,
    past: bool = False,
) -> Iterator[StagedFiles]:
    """What `read_files` reads, with a hold on it; there must be some files, the table's own unless of the `past`."""
    _check_present(table, files)
    sets, staged = compiled(session, "TaskSets"), uuid.uuid4().hex
    condition = filter_json(AlwaysTrue() if row_filter is None else row_filter)
    rows = sets.read(session._jsparkSession, f"{NAME}.{table}", staged, _listed(files), condition, past)
    try:
        yield StagedFiles(DataFrame(rows, session), table, staged)
    finally:
        sets.release(staged)


def _listed(files: Sequence[DataFile]) -> str:
    return json.dumps([[file.file_path, file.file_size_in_bytes, file.record_count] for file in files])


def read_snapshot(session: SparkSession, table: TableName, snapshot_id: int) -> DataFrame:
    """The table's rows at a snapshot, in the schema it had then.

    Iceberg plans the reading, by the conditions that Spark hands it; by none on floats, which it takes differently.
    """
    rows = session.read.option("versionAsOf", snapshot_id).table(f"{NAME}.{table}")
    guarded = compiled(session, "TaskSets").guarded(session._jsparkSession, rows._jdf)
    return DataFrame(guarded, session)


@contextmanager
def read_now(
    session: SparkSession, name: TableName, table: Table, snapshot_id: int, cache: ManifestCache
) -> Iterator[DataFrame]:
    """The table's rows at a snapshot, in the columns that `table` has now; the frame can be run inside the block only.

    Spark reads a snapshot in the columns of its time. An ALTER that no commit followed, and a rollback, make them old.
    Iceberg gives the rows of a partition the partition's value: that of -0.0 may be 0.0 in files of earlier versions.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    is_current = snapshot is None or columns_at(table, snapshot).schema_id == table.metadata.current_schema_id
    if is_current and not _is_partitioned_by_float(table):
        yield read_snapshot(session, name, snapshot_id)
        return
    with read_files(session, name, plan_scan(table, snapshot_id, AlwaysTrue(), cache).files) as rows:
        yield rows


@contextmanager
def refusing_time_columns(topic: str, hint: str | None = None) -> Iterator[None]:
    """Turn what Spark raises inside for a topic with a column of type TIME into an error that says so."""
    try:
        yield
    except Exception as failed:
        if "time fields" not in str(failed) and "time64" not in str(failed):
            raise
        raise QueryFailed(
            f'topic "{topic}" cannot be read by Spark',
            detail="It has a column of type TIME, which Spark does not have.",
            hint=hint,
        ) from None


def _is_partitioned_by_float(table: Table) -> bool:
    sources = [field.source_id for spec in table.specs().values() for field in spec.fields]
    return any(
        isinstance(schema.find_field(id).field_type, FloatType | DoubleType)
        for schema in table.schemas().values()
        for id in sources
        if schema.find_column_name(id) is not None
    )


def _check_present(table: TableName, files: Sequence[DataFile]) -> None:
    for file in files:
        if not local_path(file.file_path).exists():
            raise Corrupt(
                f'file "{file.file_path}" of table "{table.name}" does not exist',
                detail="It was removed although a snapshot refers to it, or that snapshot has expired meanwhile.",
                hint="Try again; `headwater doctor --deep` checks all files.",
            )
