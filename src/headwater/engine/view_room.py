"""The parts of a lake that keep its views, put together: upkeep, the account of refreshes, and what tells of both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import Views
from headwater.config import LakePaths, Settings
from headwater.engine.intake import Intake
from headwater.engine.refreshing import Refreshing
from headwater.engine.view_statements import ViewStatements
from headwater.errors import HeadwaterError, TopicNotFound
from headwater.observability.metrics import Metrics
from headwater.serving.fresh import UnseenRows, UnseenTable
from headwater.serving.tail import TopicAtOnce, read_at_once
from headwater.storage.scan import ManifestCache
from headwater.topics.log import Log
from headwater.views.describe import ViewReader
from headwater.views.history import Attempt, History
from headwater.views.sources import Head
from headwater.views.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.engine.streams import StreamRoom

log = logging.getLogger(__name__)


class ViewRoom:
    """Everything about the views of one lake."""

    def __init__(
        self,
        paths: LakePaths,
        settings: Settings,
        topics: Topics,
        views: Views,
        wal: Log,
        intake: Intake,
        spark: Callable[[], SparkSession],
        metrics: Metrics,
        streams: Callable[[], StreamRoom],
        check: Callable[[str], None],
        manifests: ManifestCache,
    ) -> None:
        self._intake = intake
        self.topics = topics
        self._log = wal
        self._metrics = metrics
        self.history = History(paths.state, settings.busy_timeout, settings.view_history)
        self.upkeep = Upkeep(topics, views, spark, self.flush, manifests, record=self.record)
        self.reader = ViewReader(views, self.upkeep.sources, wal, self.history, self.upkeep.cache)
        self.statements = ViewStatements(self.upkeep, self.reader, self.history, spark, streams, check)
        self.refreshing = Refreshing(paths, settings, self.upkeep, self.history, wal, spark)

    def fresh(self, session: SparkSession, name: str) -> AbstractContextManager[DataFrame]:
        """The view's rows as they would be after a refresh, without one."""
        return self.upkeep.fresh(session, name, self._tail)

    def unseen(self, name: str) -> UnseenRows | None:
        """What a fresh read puts beside the view's stored rows; None where that is for Spark to find out."""
        read: dict[str, Topic] = {}

        def tail(topic: str) -> tuple[Head, pa.Table]:
            at = read_at_once(self.topics, self._log, topic)
            read[topic] = at.topic
            return _head(at), at.rows

        found = self.upkeep.unseen(name, tail)
        if found is None:
            return None
        tables = tuple(UnseenTable(part.name, read[part.topic], part.files, part.rows) for part in found.parts)
        return UnseenRows(found.view, found.sql, tables, found.read, found.position)

    def _tail(self, topic: str) -> tuple[Head, pa.Table]:
        at = read_at_once(self.topics, self._log, topic)
        return _head(at), at.rows

    def close(self) -> None:
        self.refreshing.close()
        self.history.close()

    def flush(self, topics: Sequence[str]) -> None:
        """Commit what waits in the log of these topics."""
        for topic in topics:
            with suppress(TopicNotFound):  # the plan tells of a source that is gone
                self._intake.flush(topic)

    def record(self, attempt: Attempt) -> None:
        """Count a refresh, and write it down unless nobody asked for it and there was nothing to do."""
        self._metrics.view_refreshes.labels(attempt.view, attempt.method or "none", attempt.outcome).inc()
        if attempt.outcome == "ok" and attempt.seconds is not None:
            self._metrics.view_refresh_seconds.labels(attempt.method).observe(attempt.seconds)
        if attempt.outcome == "failed":
            self._metrics.view_failures.labels(attempt.view, attempt.code).inc()
        if attempt.outcome == "skipped" and attempt.trigger != "manual":
            return
        try:
            if attempt.outcome != "failed" or self.upkeep.views.exists(attempt.view):  # not of one dropped meanwhile
                self.history.record(attempt)
        except HeadwaterError as failed:  # the refresh itself stands, and its snapshot tells of it
            log.warning("refresh was not written down", extra={"view": attempt.view, "error": str(failed)})

    def measure(self) -> None:
        """Set the gauges of how far every view is behind."""
        found = self.reader.lags()
        gauges = (self._metrics.view_lag_rows, self._metrics.view_lag_bytes, self._metrics.view_lag_seconds)
        for gauge in gauges:
            gauge.clear()
        for view, lag, seconds in found:
            for gauge, value in zip(gauges, (lag.rows, lag.bytes, seconds), strict=True):
                gauge.labels(view, lag.source.name).set(value)


def _head(at: TopicAtOnce) -> Head:
    return Head(at.topic.table_name, at.topic.table, at.snapshot_id)
