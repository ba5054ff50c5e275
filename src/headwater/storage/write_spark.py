"""A Spark frame into files of a table: its tasks' rows go as Arrow to the columnar writer in Spark's Python workers.

Nothing is committed here. A write that fails leaves no files; one whose process dies leaves files that no snapshot
names.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType
from ulid import ULID

from headwater.errors import HeadwaterError, InvalidSchema, QueryFailed, RecordsRejected
from headwater.spark.arrow_spark import shown_type
from headwater.spark.jobs import query_errors
from headwater.storage.decode.columns import plan_rows
from headwater.storage.decode.leaves import arrow_leaf
from headwater.storage.decode.outcome import Unfit
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import PartitionedWriter, Target, local_path

CHUNK_ROWS = 256 * 1024
CHUNK_BYTES = 32 * 1024**2


def write_frame(frame: DataFrame, into: Target) -> list[DataFile]:
    """Write the frame's rows, at least one file per task that has any; the files are durable, and in no table yet.

    Columns are matched by name, and values converted as an INSERT would.
    """
    write = str(ULID()).lower()
    try:
        with query_errors():
            rows = _fitting(frame, into).mapInArrow(partial(_write_task, into, write), "outcome binary").collect()
        outcomes = [pickle.loads(row.outcome) for row in rows]
        for outcome in outcomes:
            if isinstance(outcome, HeadwaterError):
                raise outcome
    except BaseException:
        _sweep(into, write)
        raise
    files = [file for outcome in outcomes for file in outcome]
    for file in files:
        file.spec_id = into.spec.spec_id  # pickling loses it
    return files


def shown_schema(into: Target) -> StructType:
    """The columns of the table as Spark shows them, all of them nullable."""
    fields = [pa.field(field.name, shown_type(field.type)) for field in arrow_schema(into.schema)]
    shown = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in shown.fields])


def _fitting(frame: DataFrame, into: Target) -> DataFrame:
    wanted = shown_schema(into)
    if sorted(frame.columns) != sorted(wanted.names):
        different = sorted(set(frame.columns) ^ set(wanted.names))
        raise InvalidSchema(
            f'columns of the rows are not those of table "{into.table}"', detail=f"They differ in {different}."
        )
    return frame.to(wanted)


def _write_task(into: Target, write: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a worker: one row that says what became of the task's rows."""
    try:
        outcome: list[DataFile] | HeadwaterError = _write(into, _names(write), batches)
    except HeadwaterError as failed:
        outcome = failed  # as a value: Spark would turn it into text
    except (OSError, pa.ArrowException) as failed:
        outcome = QueryFailed(f'writing files of table "{into.table}" failed', detail=f"{failed}.")
    if outcome:
        yield pa.record_batch({"outcome": pa.array([pickle.dumps(outcome)], pa.binary())})


def _names(write: str) -> Callable[[], str]:
    """Names that no other attempt at the task has, and that tell of which write they are."""
    attempt, numbers = TaskContext.get().taskAttemptId(), iter(range(2**31))
    return lambda: f"{write}_{attempt}_{next(numbers)}"


def _write(into: Target, names: Callable[[], str], batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
    writer = PartitionedWriter(into, names)
    try:
        for chunk in _chunks(_stored(batch, into) for batch in batches if batch.num_rows):
            writer.write(chunk)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _stored(batch: pa.RecordBatch, into: Target) -> pa.Table:
    """The batch as files store it: what Spark shows as text or binary may be a UUID or of a fixed length."""
    try:
        return plan_rows(list(batch.schema), into.schema, arrow_leaf).table(batch)
    except Unfit as unfit:
        raise RecordsRejected(
            f'rows do not fit table "{into.table}"', detail=f'Column "{unfit.field}": {unfit.reason}.'
        ) from None


def _chunks(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of a bounded size; Spark's batches are small, and a file's encodings follow its first rows."""
    pending: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        pending.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.concat_tables(pending)
            pending, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(pending)


def _sweep(into: Target, write: str) -> None:
    """Delete what tasks of the write have left."""
    for path in (local_path(into.location) / "data").rglob(f"*_{write}_*.parquet"):
        path.unlink(missing_ok=True)
