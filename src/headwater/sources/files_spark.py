"""Columnar files read by Spark: every task reads some row groups or stripes and writes them down as Arrow.

Parquet and ORC are read by Arrow inside Python workers: Spark's own readers refuse UUIDs, times of day, nanoseconds and
local timestamps. Avro, which Arrow does not read, is read by Spark itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.sources.files import SourceFile
from headwater.spark.jobs import query_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 64 * 1024
TASKS_PER_CORE = 2
AVRO_MAGIC = b"Obj\x01"


def spool(session: SparkSession, file: SourceFile, folder: Path) -> list[Path]:
    """The file's rows, in their order, as Arrow streams in `folder`; InvalidInput if it is not of its format."""
    if file.format == "avro":
        return _spool_avro(session, file, folder)
    units = _units(file)
    context = session.sparkContext
    tasks = max(1, min(units, TASKS_PER_CORE * int(context.defaultParallelism)))
    path, format = str(file.path.resolve()), file.format

    def task(index: int, places: Iterable[int]) -> Iterator[tuple[str | None, str | None]]:
        try:
            yield write_units(path, format, list(places), Path(folder) / f"part-{index:08d}.arrow"), None
        except (pa.ArrowException, OSError) as failed:
            # As a value: Spark would turn it into a page of Java.
            yield None, str(failed).splitlines()[0]

    with query_errors():
        written = context.parallelize(range(units), tasks).mapPartitionsWithIndex(task).collect() if units else []
    for _, failed in written:
        if failed is not None:
            raise _unreadable(file, failed)
    return [Path(part) for part, _ in written if part is not None]


def _units(file: SourceFile) -> int:
    """How many row groups or stripes the file has."""
    try:
        return int(_opened(str(file.path), file.format)[1])
    except (pa.ArrowException, OSError) as failed:
        raise _unreadable(file, str(failed).splitlines()[0]) from None


def _opened(path: str, format: str) -> tuple[Any, int]:
    if format == "orc":
        from pyarrow import orc

        stripes = orc.ORCFile(path)
        return stripes, stripes.nstripes
    import pyarrow.parquet as pq

    groups = pq.ParquetFile(path, page_checksum_verification=True)
    return groups, groups.metadata.num_row_groups


def write_units(path: str, format: str, places: Sequence[int], into: Path) -> str | None:
    """Runs in a worker: write the rows of some row groups or stripes, one batch in memory at a time."""
    if not places:
        return None
    file, _ = _opened(path, format)
    batches = file.iter_batches(BATCH_ROWS, row_groups=list(places)) if format == "parquet" else _stripes(file, places)
    schema = file.schema_arrow if format == "parquet" else file.schema
    with pa.OSFile(str(into), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return str(into)


def _stripes(file: Any, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    for place in places:
        yield file.read_stripe(place)


def _spool_avro(session: SparkSession, file: SourceFile, folder: Path) -> list[Path]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from headwater.errors import QueryFailed
    from headwater.spark.arrow_spark import result_schema, stream
    from headwater.spark.jobs import reason_of

    with file.path.open("rb") as opened:
        if opened.read(len(AVRO_MAGIC)) != AVRO_MAGIC:
            raise _unreadable(file, "it does not begin as an Avro file does")
    # By another name: Spark has its own idea of names with special characters, and of those that begin with _ or a dot.
    named, part = folder / "file.avro", folder / "part.arrow"
    named.symlink_to(file.path.resolve())
    try:
        frame = session.read.format("avro").option("__globPaths__", "false").load(f"file:{named}")
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_stream(sink, result_schema(frame)) as writer:
            for batch in stream(frame):
                writer.write_batch(batch)
    except (PySparkException, Py4JJavaError) as failed:
        raise _unreadable(file, reason_of(str(failed))[0]) from None
    except QueryFailed as failed:
        raise _unreadable(file, (failed.detail or failed.message).rstrip(".")) from None
    return [part]


def _unreadable(file: SourceFile, reason: str) -> InvalidInput:
    names = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro"}
    return InvalidInput(
        f'file "{file.path}" is not {names[file.format]}',
        detail=f"{reason.rstrip('.')}. Nothing of it was written.",
        file=str(file.path),
    )
