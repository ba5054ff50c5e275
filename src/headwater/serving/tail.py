"""The log's tail, joined to exactly one snapshot: the rows from the first offset that the snapshot lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from headwater.catalog.topics import Topic, Topics
from headwater.errors import Unavailable
from headwater.storage.projection import Projection, first_schema
from headwater.storage.schemas import arrow_schema
from headwater.storage.time_travel import columns_at
from headwater.topics.ingest import log_topic, with_system_columns
from headwater.topics.log import Log, TailBatch
from headwater.types import Offsets

ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class TopicAtOnce:
    """A topic at one moment: a snapshot and the tail that follows it without gap or repeat, if the tail is read.

    `schema` are its columns at that moment, which are older than the topic's own where the past is read.
    """

    topic: Topic = field(repr=False)
    snapshot_id: int | None
    offsets: Offsets | None
    rows: pa.Table = field(repr=False)
    schema: Schema = field(repr=False)


def read_at_once(topics: Topics, log: Log, name: str) -> TopicAtOnce:
    """The topic's newest snapshot with its tail.

    The snapshot is loaded first. If an ingest commits and trims before the tail is read, the log says that the offsets
    are gone, and a newer snapshot has them: load again.
    """
    for _ in range(ATTEMPTS):
        topic = topics.load(name)
        tail = log.tail(log_topic(topic), topic.committed)
        if tail is not None:
            break
    else:
        raise Unavailable(f'topic "{name}" was committed {ATTEMPTS} times while it was read', hint="Try again.")
    schema = arrow_schema(topic.schema)
    rows = log_rows(topic, tail).cast(schema) if tail else pa.Table.from_batches([], schema)
    offsets = Offsets(topic.committed, topic.committed + rows.num_rows)
    return TopicAtOnce(topic, topic.snapshot_id, offsets, rows, topic.schema)


def log_rows(topic: Topic, tail: Sequence[TailBatch]) -> pa.Table:
    """The log's rows in the columns that the topic has now, with the system's."""
    projection = Projection.to(topic.schema, first_schema(topic.table.metadata))
    return pa.Table.from_batches(
        with_system_columns(projection(part.batch), part.entry.offsets, part.entry.appended_at) for part in tail
    )


def read_committed(topics: Topics, name: str) -> TopicAtOnce:
    """The topic's newest snapshot without a tail; the log is not looked at."""
    topic = topics.load(name)
    return _without_tail(topic, topic.snapshot_id, topic.schema)


def read_snapshot(topic: Topic, snapshot: Snapshot) -> TopicAtOnce:
    """One of the topic's snapshots without a tail, with the columns that the topic had then."""
    return _without_tail(topic, snapshot.snapshot_id, columns_at(topic.table, snapshot))


def _without_tail(topic: Topic, snapshot_id: int | None, schema: Schema) -> TopicAtOnce:
    return TopicAtOnce(topic, snapshot_id, None, pa.Table.from_batches([], arrow_schema(schema)), schema)
