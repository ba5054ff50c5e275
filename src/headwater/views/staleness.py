"""Since when a view is behind: the time of the oldest change that its contents do not stand for.

Views below count by the topics that they stand for, not by when they were refreshed: a view over a view is as stale as
the oldest record that it lacks. Views that are refreshed by hand are sources of their own, like topics.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.catalog.views import Position, View
from headwater.topics.log import Log, LogTopic
from headwater.views.lag import log_topic, oldest_after
from headwater.views.sources import Head, Sources

LONG_AGO = 0.0


def behind_since(view: View, sources: Sources, log: Log) -> float | None:
    """When the oldest change came that the view lacks, records in the log included; None if it lacks nothing."""
    return min(_missing(view.position, sources, log), default=None)


def _missing(position: Position, sources: Sources, log: Log) -> Iterator[float]:
    for name, consumed in position.snapshots.items():
        head = sources.load([name]).get(name)
        if head is None:  # nothing more will come from it
            continue
        if position.ids.get(name) != head.id:
            yield LONG_AGO
        elif head.view is None or head.view.definition.options.mode == "manual":
            yield from _missing_of(head, consumed, log)
        else:
            yield from _missing_below(head, head.view, consumed, sources, log)


def _missing_of(head: Head, consumed: int | None, log: Log) -> Iterator[float]:
    committed = None if consumed == head.snapshot_id else oldest_after(head, consumed)
    if committed is not None:
        yield committed
    if head.view is None and (waiting := _waiting_since(log_topic(head), log)) is not None:
        yield waiting


def _missing_below(head: Head, view: View, consumed: int | None, sources: Sources, log: Log) -> Iterator[float]:
    snapshot = None if consumed is None else head.table.metadata.snapshot_by_id(consumed)
    if snapshot is None:
        yield LONG_AGO
    else:
        yield from _missing(view.position_at(snapshot), sources, log)


def _waiting_since(topic: LogTopic, log: Log) -> float | None:
    stats = log.stats(topic)
    return stats.oldest / 1e6 if stats.end > topic.committed and stats.oldest is not None else None
