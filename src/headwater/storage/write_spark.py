"""A Spark frame into files of a table: its tasks' rows go as Arrow to the columnar writer in Spark's Python workers.

Nothing is committed here. A write that fails leaves no files; one whose process dies leaves files that no snapshot
names.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType
from ulid import ULID

from headwater.catalog.metadata import summary_count
from headwater.errors import HeadwaterError, InvalidSchema, QueryFailed, RecordsRejected
from headwater.spark.arrow_spark import shown_type
from headwater.spark.jobs import query_errors
from headwater.storage.decode.columns import RowPlan, plan_rows
from headwater.storage.decode.leaves import arrow_leaf
from headwater.storage.decode.outcome import Unfit
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import PartitionedWriter, Target, local_path

CHUNK_ROWS = 256 * 1024
CHUNK_BYTES = 32 * 1024**2
SHORT = 1024
"""Stored bytes of a row, in the mean, up to which it is a short one."""
# Spark looks after every row how large a batch for Python has become, which takes as long as all the rest of passing
# rows on. A thousand rows of a table whose rows are short in the mean are some megabytes, so nothing is looked at.
_BY_NUMBER = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def short_rows(tables: Iterable[Table]) -> bool:
    """Whether a row that is put together from values of one row of each table is short."""
    stored = 0.0
    for table in tables:
        snapshot = table.current_snapshot()
        rows = summary_count(snapshot, "total-records")
        stored += summary_count(snapshot, "total-files-size") / max(rows, 1)
    return stored <= SHORT


def write_frame(frame: DataFrame, into: Target, *, short: bool = False) -> list[DataFile]:
    """Write the frame's rows, at least one file per task that has any; the files are durable, and in no table yet.

    Columns are matched by name, and values converted as an INSERT would. Rows that are known to be `short` are quicker.
    """
    write = str(ULID()).lower()
    try:
        with query_errors(), _passed_on(frame, short=short):
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


@contextmanager
def _passed_on(frame: DataFrame, *, short: bool) -> Iterator[None]:
    """How rows go to the workers of jobs that this thread starts."""
    context = frame.sparkSession.sparkContext
    for key, value in _BY_NUMBER.items() if short else ():
        context.setLocalProperty(key, value)
    try:
        yield
    finally:
        for key in _BY_NUMBER if short else ():
            context.setLocalProperty(key, None)


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
        for chunk in _chunks(_stored(batches, into)):
            writer.write(chunk)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _stored(batches: Iterator[pa.RecordBatch], into: Target) -> Iterator[pa.Table]:
    """Batches as files store them: what Spark shows as text or binary may be a UUID or of a fixed length."""
    plan: RowPlan | None = None
    try:
        for batch in batches:
            if plan is None:  # all batches of a task have the same columns
                plan = plan_rows(list(batch.schema), into.schema, arrow_leaf)
            if batch.num_rows:
                yield plan.table(batch)
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
