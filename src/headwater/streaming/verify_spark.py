"""Compares a view that a stream keeps with its query over the records that it has read.

Of windows, those count that the watermark has closed, if the view emits windows when they close. What came too late is
not in the view unless it was corrected, so it shows as a difference: that is what it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog.progress import progress_of
from headwater.catalog.topics import Topics
from headwater.catalog.views import STATES, View
from headwater.errors import InvalidStatement, SnapshotGone
from headwater.spark.gate_spark import isolated
from headwater.spark.jobs import query_errors
from headwater.storage.compare_spark import Compared, compare
from headwater.storage.read_spark import read_files, read_now
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.streaming.correct import window_column
from headwater.streaming.plan import Continuous, Input


def run_verification(
    plan: Continuous, view: View, topics: Topics, session: SparkSession, cache: ManifestCache
) -> Compared:
    """The view's current rows against its query at the view's position."""
    if any(each.stream is None for each in plan.outline.inputs):
        raise InvalidStatement(
            f'materialized view "{view.name}" cannot be compared with its query',
            detail="It reads tables as they were at every batch, and those states are gone.",
        )
    own = isolated(session)
    with ExitStack() as stack, query_errors():
        for each in plan.outline.inputs:
            stack.enter_context(_records(own, each, view, topics, cache)).createOrReplaceTempView(each.name)
        files = plan_scan(view.table, view.snapshot_id, AlwaysTrue(), cache).files
        stack.enter_context(read_files(own, view.table_name, files)).createOrReplaceTempView(STATES)
        ours, theirs = own.sql(view.read), _closed(own.sql(plan.outline.batch), plan, view)
        ours = ours.selectExpr(*(f"CAST(`{name}` AS {of}) AS `{name}`" for name, of in theirs.dtypes))
        return compare(ours, theirs)


def _records(
    own: SparkSession, source: Input, view: View, topics: Topics, cache: ManifestCache
) -> AbstractContextManager[DataFrame]:
    topic, at = topics.load(source.table.name), view.position.snapshots[source.table]
    if at is None:
        return read_files(own, topic.table_name, ())
    if topic.table.metadata.snapshot_by_id(at) is None:
        raise SnapshotGone(f'snapshot {at} of "{topic.name}" has expired', hint="Let the view read on, then try again.")
    return read_now(own, topic.table_name, topic.table, at, cache)


def _closed(rows: DataFrame, plan: Continuous, view: View) -> DataFrame:
    """Of the query's rows, those that the view should have emitted."""
    if plan.outline.definition.options.emit != "close" or not plan.outline.windows:
        return rows
    column, progress = window_column(plan), progress_of(view.table.metadata.properties)
    if column is None or progress is None or plan.outline.windows[-1].function == "SESSION":
        raise InvalidStatement(
            f'materialized view "{view.name}" cannot be compared with its query',
            detail="Its rows do not tell which windows are closed.",
            hint="Select the end of the window.",
        )
    size = 0 if column.is_end else plan.outline.windows[-1].size_micros
    return rows.where(f"unix_micros(CAST(`{column.name}` AS TIMESTAMP)) + {size} <= {progress.watermark_ms * 1000}")
