"""Topics of a lake with committed files, without Spark: tables are written and committed as ingest would."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa

from headwater.catalog.topics import Topic
from headwater.engine import Lake
from headwater.storage.commit import append
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import PartitionedWriter
from headwater.topics.ingest import POSITION, target, with_system_columns
from headwater.types import Offsets


def commit_rows(lake: Lake, name: str, *tables: pa.Table, at: int = 0) -> Topic:
    """Commit each table to the topic in a commit of its own; the topic afterwards."""
    for table in tables:
        topic = lake.topics.load(name)
        users = pa.schema([arrow_schema(topic.schema).field(each.name) for each in topic.columns.fields])
        batch = table.select(users.names).cast(users).combine_chunks().to_batches()[0]
        offsets = Offsets(topic.committed, topic.committed + batch.num_rows)
        writer = PartitionedWriter(target(topic), lambda: uuid4().hex)
        writer.write(pa.Table.from_batches([with_system_columns(batch, offsets, at)]))
        load = lambda: lake.topics.tables.load_for_commit(topic.table_name)  # noqa: E731, B023
        append(load, writer.close(), offsets, POSITION, topic.id)
    return lake.topics.load(name)
