"""Arrow tables into Spark, and Spark's answers out as Arrow, without rows in between.

Going in, values take the form in which Iceberg's Spark reader shows them, so that a topic's unflushed tail can be
unioned with its table: a UUID is a string, a fixed is binary. Coming out, a result is collected within a limit of rows,
or streamed through files in the order of the query.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.core.rdd import RDD
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headwater.errors import QueryFailed, ResultTooLarge
from headwater.spark.jobs import query_errors
from headwater.spark.spool import PartWriter

IN_MEMORY = 4 * 1024**2
"""Bytes up to which a table travels inside Spark's tasks; beyond that a Parquet file is several times quicker."""

TASKS = 2
"""Partitions of a table that travels inside tasks: each costs a task, and there is little to do in any of them."""

MAX_NESTING = 50
"""Levels of arrays, maps and structs in a result: Arrow's streams have room for 64."""

_HEX = "0123456789abcdef"
_DASHES = (8, 13, 18, 23)


@contextmanager
def query_folder(session: SparkSession) -> Iterator[Path]:
    """A temporary folder in the session's scratch folder, for the files of one query."""
    scratch = session.sparkContext.getConf().get("spark.local.dir")
    with tempfile.TemporaryDirectory(prefix="query-", dir=scratch) as folder:
        yield Path(folder)


def to_spark(session: SparkSession, table: pa.Table, folder: Path) -> DataFrame:
    """`table` as a frame, typed as Iceberg's reader would show it; `folder` must outlive every use of the frame."""
    shown = as_shown(table)
    schema = from_arrow_schema(shown.schema, prefer_timestamp_ntz=True)
    if shown.nbytes > IN_MEMORY:
        file = folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(shown, file, compression="none", use_dictionary=False, write_statistics=False)
        return session.read.schema(schema).parquet(str(file))
    file = folder / f"{uuid.uuid4().hex}.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, shown.schema) as writer:
        writer.write_table(shown.combine_chunks(), max_chunksize=max(-(-shown.num_rows // TASKS), 1))
    utilities = session._jvm.PythonSQLUtils
    batches = utilities.readArrowStreamFromFile(str(file))  # read whole, so the file has done its work
    file.unlink()
    return DataFrame(utilities.toDataFrame(batches, schema.json(), session._jsparkSession), session)


def as_shown(table: pa.Table) -> pa.Table:
    """`table` with UUIDs as strings and fixed values as binary, at any depth; nothing else changes."""
    columns = [_shown_column(column) for column in table.columns]
    fields = [
        pa.field(field.name, column.type, field.nullable) for field, column in zip(table.schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _shown_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    shown = shown_type(column.type)
    if shown == column.type:
        return column
    return pa.chunked_array([_shown(chunk) for chunk in column.chunks], type=shown)


def shown_type(of: pa.DataType) -> pa.DataType:
    """The Arrow type in which Spark shows values of a type."""
    if of == pa.uuid():
        return pa.string()
    if pa.types.is_fixed_size_binary(of):
        return pa.binary()
    if pa.types.is_list(of):
        return pa.list_(_shown_field(of.value_field))
    if pa.types.is_map(of):
        return pa.map_(_shown_field(of.key_field), _shown_field(of.item_field))
    if pa.types.is_struct(of):
        return pa.struct([_shown_field(field) for field in of.fields])
    return of


def _shown_field(field: pa.Field) -> pa.Field:
    return field.with_type(shown_type(field.type))


def _shown(array: pa.Array) -> pa.Array:
    of, shown = array.type, shown_type(array.type)
    if shown == of:
        return array
    if of == pa.uuid():
        return _uuid_text(array)
    if pa.types.is_fixed_size_binary(of):
        return array.cast(pa.binary())
    # Building from offsets or from children cannot start inside a slice: copy it out first.
    whole = array.take(pa.array(range(len(array)), pa.int64())) if array.offset or _has_sliced_parts(array) else array
    if pa.types.is_struct(of):
        children = [_shown(whole.field(index)) for index in range(of.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(shown.fields), mask=whole.is_null())
    if pa.types.is_map(of):
        keys, items = _shown(whole.keys), _shown(whole.items)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=shown, mask=whole.is_null())
    return pa.ListArray.from_arrays(whole.offsets, _shown(whole.values), type=shown, mask=whole.is_null())


def _has_sliced_parts(array: pa.Array) -> bool:
    return pa.types.is_struct(array.type) and any(array.field(index).offset for index in range(array.type.num_fields))


def _uuid_text(array: pa.Array) -> pa.Array:
    """UUIDs as their canonical text, built as bytes: a table of hex digits, columns for the dashes, even offsets."""
    import numpy as np

    raw = pc.fill_null(array.storage, b"\0" * 16)
    octets = np.frombuffer(raw.buffers()[1], np.uint8, len(raw) * 16, raw.offset * 16).reshape(-1, 16)
    digits = np.frombuffer(_HEX.encode(), np.uint8)
    text = np.full((len(raw), 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in _DASHES]
    text[:, places[0::2]] = digits[octets >> 4]
    text[:, places[1::2]] = digits[octets & 15]
    offsets = np.arange(len(raw) + 1, dtype=np.int32) * 36
    whole = pa.StringArray.from_buffers(len(raw), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, pa.string())) if array.null_count else whole


def result_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema of the frame's results; QueryFailed if a column has a type that Arrow has no values of."""
    for column in frame.schema.fields:
        if column.dataType.simpleString().count("<") > MAX_NESTING and _depth(column.dataType) > MAX_NESTING:
            raise QueryFailed(
                f'column "{column.name}" cannot be part of a result',
                detail=f"Its type is nested more than {MAX_NESTING} levels deep.",
                hint="Select parts of it, or CAST it to STRING.",
            )
        try:
            to_arrow_schema(StructType([column]))
        except PySparkException:
            raise QueryFailed(
                f'column "{column.name}" cannot be part of a result',
                detail=f"It has the type {column.dataType.simpleString().upper()}.",
                hint="CAST it to STRING.",
            ) from None
    return to_arrow_schema(frame.schema)


def _depth(of: DataType) -> int:
    match of:
        case ArrayType():
            return 1 + _depth(of.elementType)
        case MapType():
            return 1 + max(_depth(of.keyType), _depth(of.valueType))
        case StructType():
            return 1 + max((_depth(field.dataType) for field in of.fields), default=0)
        case _:
            return 0


def collect(frame: DataFrame, max_rows: int | None = None) -> pa.Table:
    """The whole result in memory; ResultTooLarge when it has more than `max_rows` rows."""
    with query_errors():
        table: pa.Table = (frame if max_rows is None else frame.limit(max_rows + 1)).toArrow()
    if max_rows is not None and table.num_rows > max_rows:
        raise ResultTooLarge(
            f"result has more than {max_rows:,} rows",
            hint="Add a LIMIT, raise the limit of rows, or stream the result.",
            max_rows=max_rows,
        )
    return table


def stream(frame: DataFrame, max_rows: int | None = None, max_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
    """The result batch by batch in the query's order, never more than a few batches of it in memory.

    The first batch comes when the query is done: its parts wait on disk, and are removed as they are read. Closing the
    iterator early removes the rest. The limits hold while the parts are written: ResultTooLarge beyond them.
    """
    with query_folder(frame.sparkSession) as folder, query_errors():
        for part in _spool(frame, folder, max_rows, max_bytes):
            with pa.OSFile(str(part)) as source, pa.ipc.open_stream(source) as batches:
                yield from batches
            part.unlink()


def _spool(frame: DataFrame, folder: Path, max_rows: int | None, max_bytes: int | None) -> list[Path]:
    writer = PartWriter(str(folder), result_schema(frame).serialize().to_pybytes(), max_rows, max_bytes)
    batches = RDD(frame._jdf.toArrowBatchRdd().toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer())
    return [folder / name for name in batches.mapPartitionsWithIndex(writer).collect()]
