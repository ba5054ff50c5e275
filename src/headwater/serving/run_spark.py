"""A query on Spark: through the gate, in a session of its own, over the very snapshots and tails of its moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headwater.errors import QueryCancelled, QueryFailed, QueryTimeout, TopicNotFound
from headwater.serving.gate_spark import ParsedQuery, analyze, inspect, isolated, sources
from headwater.serving.moment import Moment
from headwater.serving.tail import TopicAtOnce
from headwater.spark.arrow_spark import query_folder, result_schema, stream, to_spark
from headwater.spark.jobs import RunningQuery


class SparkRun:
    """A query that Spark runs: batches to read once, and a way to stop it."""

    def __init__(self, session: SparkSession, text: str, moment: Moment, timeout: float, query_id: str) -> None:
        self._running = RunningQuery(session, query_id)
        self._timeout = timeout
        self._timed_out = False
        self._resources = ExitStack()
        try:
            own = isolated(session)
            query = inspect(own, text)
            folder = self._resources.enter_context(query_folder(session))
            self._frame = analyze(own, query, _register(own, query, moment, folder))
            self.schema = result_schema(self._frame)
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The result, which waits on disk once the first batch is there."""
        found = stream(self._frame)
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
                raise QueryTimeout(f"query ran longer than {self._timeout:g} s", hint="Raise query_timeout.") from None
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


def _register(own: SparkSession, query: ParsedQuery, moment: Moment, folder: Path) -> frozenset[tuple[str, str]]:
    """Make each topic that the query names a temporary view of its own session; what those views read."""
    frames = []
    for name in sorted(query.relations):
        try:
            at = moment.topic(name)
        except TopicNotFound:
            if name in query.ctes:
                continue
            raise
        frame = _frame(own, at, moment.tail, folder)
        frame.createOrReplaceTempView(name)
        frames.append(frame)
    return sources(*frames)


def _frame(own: SparkSession, at: TopicAtOnce, with_tail: bool, folder: Path) -> DataFrame:
    topic, rows = at.topic, at.rows if with_tail else at.rows.slice(0, 0)
    try:
        if topic.snapshot_id is None:
            return to_spark(own, rows, folder)
        table = own.read.option("versionAsOf", topic.snapshot_id).table(f"lake.{topic.table_name}")
        return table.unionAll(to_spark(own, rows, folder)) if rows.num_rows else table
    except Exception as failed:
        if "time fields" not in str(failed) and "time64" not in str(failed):
            raise
        raise QueryFailed(
            f'topic "{topic.name}" cannot be read by Spark',
            detail="It has a column of type time, which Spark does not have.",
            hint="Write the query so that DuckDB can answer it; EXPLAIN says what sends it to Spark.",
        ) from None
