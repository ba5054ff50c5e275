"""How far a view is behind its sources: what came or went since the snapshots that it stands for, and since when.

From metadata alone. What waits in the log of a topic counts too, since a query over the topic itself would see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table.snapshots import Operation

from headwater.catalog.definitions import P_OFFSET, P_OPTION
from headwater.catalog.views import View
from headwater.errors import SnapshotGone
from headwater.storage.changes import Changes, between
from headwater.storage.scan import ManifestCache
from headwater.storage.time_travel import line_of
from headwater.topics.log import Log, LogTopic
from headwater.types import LogKind, TableName
from headwater.views.sources import Head


@dataclass(frozen=True, slots=True)
class Lag:
    """What a view lacks of one source. `since`: when the oldest of it came; None if it lacks nothing."""

    source: TableName
    consumed: int | None
    head: int | None
    rows: int = 0
    bytes: int = 0
    since: datetime | None = None
    gone: bool = False

    def seconds(self, now: datetime) -> float:
        return 0.0 if self.since is None else max(0.0, (now - self.since).total_seconds())


def lags(view: View, heads: Mapping[TableName, Head], log: Log, cache: ManifestCache) -> tuple[Lag, ...]:
    """The view's lag behind each of its sources; a source that `heads` lacks is gone."""
    return tuple(_lag(view, source.table, heads.get(source.table), log, cache) for source in view.sources)


def _lag(view: View, source: TableName, head: Head | None, log: Log, cache: ManifestCache) -> Lag:
    position = view.position
    consumed = position.snapshots.get(source)
    if head is None:
        return Lag(source, consumed, None, gone=True)
    start = consumed if position.ids.get(source) == head.id else None
    changes = _changes(head, start, cache)
    rows, size = changes.rows, changes.bytes
    moments = [oldest_after(head, start)] if rows else []
    if waiting := tail_rows(head, log):
        tail = log.stats(log_topic(head))
        rows, size = rows + waiting, size + tail.bytes
        moments.append(tail.oldest / 1e6 if tail.oldest is not None else None)
    known = [moment for moment in moments if moment is not None]
    since = datetime.fromtimestamp(min(known), UTC) if known else None
    return Lag(source, consumed, head.snapshot_id, rows, size, since)


def tail_rows(head: Head, log: Log) -> int:
    """Records of a topic that wait in the log; 0 for a view."""
    if head.view is not None:
        return 0
    topic = log_topic(head)
    return max(0, log.stats(topic).end - topic.committed)


def _changes(head: Head, start: int | None, cache: ManifestCache) -> Changes:
    """What came since `start`; everything, if that snapshot is gone."""
    try:
        return between(head.table, start, head.snapshot_id, cache)
    except SnapshotGone:
        return between(head.table, None, head.snapshot_id, cache)


def oldest_after(head: Head, start: int | None) -> float | None:
    """When the first snapshot after `start` that changed rows was made, or when a rollback left `start`, in seconds."""
    consumed = head.table.metadata.snapshot_by_id(start) if start is not None else None
    after = consumed.sequence_number if consumed is not None else None
    moments = [
        snapshot.timestamp_ms / 1000
        for snapshot in head.table.metadata.snapshots
        if (after is None or (snapshot.sequence_number or 0) > after)
        and (snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE)
    ]
    if not moments and start != head.snapshot_id and head.table.metadata.snapshot_log:
        moments = _moved_back(head, start)
    return min(moments, default=None)


def _moved_back(head: Head, start: int | None) -> list[float]:
    """When the head moved to a snapshot that was not made after `start`: a rollback makes none."""
    line = {snapshot.snapshot_id for snapshot in line_of(head.table, head.snapshot_id)}
    return [] if start is None or start in line else [head.table.metadata.snapshot_log[-1].timestamp_ms / 1000]


def log_topic(head: Head) -> LogTopic:
    properties = head.table.metadata.properties
    kind: LogKind = "kafka" if properties.get(P_OPTION + "log") == "kafka" else "sqlite"
    return LogTopic(head.id, head.name, int(properties[P_OFFSET]), kind)
