"""The log's tail, joined to exactly one snapshot: the rows from the first offset that the snapshot lacks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from headwater.catalog.topics import Topic, Topics
from headwater.errors import Unavailable
from headwater.storage.schemas import arrow_schema
from headwater.topics.ingest import log_topic, with_system_columns
from headwater.topics.log import Log
from headwater.types import Offsets

ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class TopicAtOnce:
    """A topic at one moment: a snapshot and the tail that follows it without gap or repeat, if the tail is read."""

    topic: Topic = field(repr=False)
    snapshot_id: int | None
    offsets: Offsets | None
    rows: pa.Table = field(repr=False)


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
    batches = [with_system_columns(part.batch, part.entry.offsets, part.entry.appended_at) for part in tail]
    rows = pa.Table.from_batches(batches).cast(schema) if batches else pa.Table.from_batches([], schema)
    return TopicAtOnce(topic, topic.snapshot_id, Offsets(topic.committed, topic.committed + rows.num_rows), rows)


def read_committed(topics: Topics, name: str) -> TopicAtOnce:
    """The topic's newest snapshot without a tail; the log is not looked at."""
    topic = topics.load(name)
    return read_snapshot(topic, topic.snapshot_id)


def read_snapshot(topic: Topic, snapshot_id: int | None) -> TopicAtOnce:
    """One of the topic's snapshots without a tail."""
    return TopicAtOnce(topic, snapshot_id, None, pa.Table.from_batches([], arrow_schema(topic.schema)))
