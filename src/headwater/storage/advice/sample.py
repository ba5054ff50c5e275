"""A sample of a topic's rows: runs of neighbours from files that are spread over the table.

Neighbours, because how well values compress depends on what lies beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headwater.catalog.topics import Topic
from headwater.storage.checksums import decoding
from headwater.storage.distincts import spread
from headwater.storage.field_ids import plan_reading
from headwater.storage.parquet_stats import live_files
from headwater.storage.scan import ManifestCache
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import local_path

RUNS = 16
"""Files of which a sample has rows, at the most, as long as these have enough of them."""
BATCH_ROWS = 64 * 1024


def read_sample(topic: Topic, manifests: ManifestCache, rows: int) -> pa.Table:
    """About `rows` committed rows, or all that there are, in the topic's columns."""
    files = live_files(topic, manifests)
    chosen = _chosen(files, rows)
    left, tables = rows, [arrow_schema(topic.schema).empty_table()]
    for place, file in enumerate(chosen):
        share = -(-left // (len(chosen) - place))
        tables.append(_run(file, topic.schema, min(share, left)))
        left -= tables[-1].num_rows
    return pa.concat_tables(tables)


def _chosen(files: tuple[DataFile, ...], rows: int) -> list[DataFile]:
    """Files from everywhere in the table, at least as many as hold `rows` rows."""
    total = sum(file.record_count for file in files)
    if total <= rows or len(files) <= RUNS:
        return list(files)
    most = max(rows * 2, total * RUNS // len(files))
    found: list[DataFile] = spread(files, most, lambda file: file.record_count)
    return found


def _run(file: DataFile, schema: Schema, rows: int) -> pa.Table:
    """Neighbouring rows from the middle of a file."""
    skip = max(0, (file.record_count - rows) // 2)
    batches = list(_slice(_batches(file, schema), skip, rows))
    return pa.Table.from_batches(batches) if batches else arrow_schema(schema).empty_table()


def _batches(file: DataFile, schema: Schema) -> Iterator[pa.RecordBatch]:
    path = local_path(file.file_path)
    with decoding(path), pq.ParquetFile(path, page_checksum_verification=True) as stored:
        reading = plan_reading(stored.schema_arrow, schema, file.file_path)
        for batch in stored.iter_batches(BATCH_ROWS, columns=list(reading.columns)):
            yield reading.batch(batch)


def _slice(batches: Iterator[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        part = batch.slice(min(skip, batch.num_rows), rows)
        skip -= min(skip, batch.num_rows)
        rows -= part.num_rows
        if part.num_rows:
            yield part
        if rows <= 0:
            return
