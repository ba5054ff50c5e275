"""A query on Spark: through the gate, in a session of its own, over the very snapshots and tails of its moment.

Of a topic on which the query has conditions, the files of the plan are read, and those alone: what EXPLAIN says is what
is done. Iceberg's own planning is for the rest: handed a prefix and partitions of nulls, or IN with a null among binary
values, it fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog.views import STATES
from headwater.errors import InvalidName, QueryCancelled, TopicNotFound
from headwater.serving.change_rows import TopicChanges
from headwater.serving.change_rows_spark import change_frame
from headwater.serving.moment import Moment, ViewAtOnce
from headwater.serving.plan import QueryPlan, Scan
from headwater.serving.running import timed_out
from headwater.serving.tail import TopicAtOnce
from headwater.spark.arrow_spark import query_folder, result_schema, stream, to_spark
from headwater.spark.gate_spark import ParsedQuery, analyze, inspect, isolated, sources
from headwater.spark.jobs import RunningQuery
from headwater.storage.read_spark import read_files, read_now, read_snapshot, refusing_time_columns

FreshFrame = Callable[[SparkSession, str], AbstractContextManager[DataFrame]]
"""A view's rows as they would be if it were refreshed now."""


class SparkRun:
    """A query that Spark runs: batches to read once, and a way to stop it."""

    def __init__(
        self,
        session: SparkSession,
        plan: QueryPlan,
        moment: Moment,
        timeout: float,
        query_id: str,
        fresh: FreshFrame | None,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._running = RunningQuery(session, query_id)
        self._timeout = timeout
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._timed_out = False
        self._resources = ExitStack()
        try:
            own = isolated(session)
            query = inspect(own, plan.text)
            folder = self._resources.enter_context(query_folder(session))
            relations = _Relations(own, moment, folder, self._resources, _narrowed(plan), fresh)
            self._frame = analyze(own, query, _register(query, relations))
            self.schema = result_schema(self._frame)
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The result, which waits on disk once the first batch is there."""
        found = stream(self._frame, self._max_rows, self._max_bytes)
        try:
            yield from self._first(found)
            yield from found
        finally:
            del found  # removes what was not read
            self.close()

    def _first(self, found: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The first batch, if there is one: by then the query has run, all of it in this thread."""
        timer = threading.Timer(self._timeout, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            with self._running:
                return list(islice(found, 1))
        except QueryCancelled:
            if self._timed_out:
                raise timed_out(self._timeout) from None
            raise
        finally:
            timer.cancel()

    def cancel(self) -> None:
        """Stop the query's jobs; its reader gets QueryCancelled."""
        self._running.cancel()

    def _time_out(self) -> None:
        self._timed_out = True
        self._running.cancel()

    def close(self) -> None:
        self._resources.close()


def _narrowed(plan: QueryPlan) -> Mapping[str, Scan]:
    """Scans by name of which some condition is known, so that the plan says which files are read."""
    return {scan.name: scan for scan in plan.scans if scan.needs.filter != AlwaysTrue()}


def _register(query: ParsedQuery, relations: _Relations) -> frozenset[tuple[str, str]]:
    """Make each topic and view that the query names a temporary view of its own session; what those views read."""
    frames = []
    for name in sorted(query.relations):
        try:
            frame = relations.frame(name)
        except (TopicNotFound, InvalidName):
            if name in query.ctes:
                continue
            raise
        frame.createOrReplaceTempView(name)
        frames.append(frame)
    return sources(*frames)


@dataclass(frozen=True, slots=True)
class _Relations:
    """What a query reads, by the names that it has for it, as frames that can be run until the query ends."""

    own: SparkSession
    moment: Moment
    folder: Path
    resources: ExitStack
    narrowed: Mapping[str, Scan]
    fresh: FreshFrame | None

    def frame(self, name: str) -> DataFrame:
        if (asked := self.moment.fresh.get(name)) is not None:
            assert self.fresh is not None, "planning refuses fresh reads where there are none"
            return self.resources.enter_context(self.fresh(self.own, asked))
        at = self.moment.at(name)
        if isinstance(at, TopicChanges):
            return self.resources.enter_context(change_frame(self.own, at))
        return _folded(self.own, at) if isinstance(at, ViewAtOnce) else self._topic(name, at)

    def _topic(self, name: str, at: TopicAtOnce) -> DataFrame:
        hint = "Write the query so that DuckDB can answer it; EXPLAIN says what sends it to Spark."
        with refusing_time_columns(at.topic.name, hint):
            if at.snapshot_id is None:
                return to_spark(self.own, at.rows, self.folder)
            stored = self._stored(name, at, at.snapshot_id)
            return stored.unionAll(to_spark(self.own, at.rows, self.folder)) if at.rows.num_rows else stored

    def _stored(self, name: str, at: TopicAtOnce, snapshot_id: int) -> DataFrame:
        """The rows of a topic's snapshot, in the columns that the topic has at this moment."""
        own, of, table = self.own, at.topic.table_name, at.topic.table
        if at.schema.schema_id != table.metadata.current_schema_id:  # the past, in the columns that it had
            return read_snapshot(own, of, snapshot_id)
        if (scan := self.narrowed.get(name)) is not None:
            return self.resources.enter_context(read_files(own, of, scan.files.files, scan.needs.filter))
        return self.resources.enter_context(read_now(own, of, table, snapshot_id, self.moment.manifests))


def _folded(own: SparkSession, at: ViewAtOnce) -> DataFrame:
    """A view's rows; its states have a name for no longer than the SQL that folds them is analysed."""
    table = f"lake.{at.view.table_name}"
    states = own.read.table(table) if at.snapshot_id is None else read_snapshot(own, at.view.table_name, at.snapshot_id)
    states.createOrReplaceTempView(STATES)
    try:
        return own.sql(at.sql)
    finally:
        own.catalog.dropTempView(STATES)
