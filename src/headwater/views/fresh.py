"""A view as it would be if it were refreshed now, by Spark: its states, and what follows from unseen changes.

Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyspark.sql import DataFrame, SparkSession

from headwater.catalog.views import P_READ, P_READ_SIGNED, STATES, View
from headwater.storage.scan import ManifestCache
from headwater.types import VIEWS
from headwater.views.change import AppendDelta, Recompute, RecomputeKeys, Skip
from headwater.views.fresh_plan import Tail, plan_fresh
from headwater.views.plan import SourceRange
from headwater.views.refresh import Workspace
from headwater.views.sources import Sources
from headwater.views.text import plain_query


@contextmanager
def fresh_frame(
    view: View, sources: Sources, tail: Tail, now: str, session: SparkSession, cache: ManifestCache
) -> Iterator[DataFrame]:
    """The view's rows as a frame of `session`, which can be run inside the block only."""
    with ExitStack() as stack:
        yield _adopted(_frame(view, sources, tail, now, session, cache, stack), session)


def _frame(
    view: View,
    sources: Sources,
    tail: Tail,
    now: str,
    session: SparkSession,
    cache: ManifestCache,
    stack: ExitStack,
) -> DataFrame:
    if any(source.table.namespace == VIEWS for source in view.sources):
        return _over_views(view, sources, tail, now, session, cache, stack)
    plan = plan_fresh(view, tail, now, cache)
    space = stack.enter_context(Workspace(session, {each.head.name: each for each in plan.ranges}, cache))
    change = plan.change
    if not isinstance(change, Skip):
        space.provide(change.reads)
    space.provide_table(view.table_name, view.table, view.snapshot_id, "__stored")
    stored = "SELECT * FROM __stored"
    match change:
        case Skip():
            sql, signed = stored, view.signed
        case AppendDelta():
            sql, signed = _by_name(space, stored, change.sql), view.signed or change.signed
        case RecomputeKeys():
            space.provide_view(view, change.retract)
            sql, signed = _by_name(space, stored, change.retract, change.insert), True
        case Recompute():
            sql, signed = change.sql, False
    space.run(sql).createOrReplaceTempView(STATES)
    return space.run(view.table.metadata.properties[P_READ_SIGNED if signed else P_READ])


def _by_name(space: Workspace, *parts: str) -> str:
    """All rows of the parts, whose columns are matched by name."""
    frames = [space.run(part) for part in parts]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    rows.createOrReplaceTempView("__together")
    return "SELECT * FROM __together"


def _over_views(
    view: View,
    sources: Sources,
    tail: Tail,
    now: str,
    session: SparkSession,
    cache: ManifestCache,
    stack: ExitStack,
) -> DataFrame:
    """A view on views: its query over them as they are when fresh, which are small beside what they stand on."""
    below = [source.table for source in view.sources if source.table.namespace == VIEWS]
    topics = [source for source in view.sources if source.table not in below]
    ranges = {}
    for source in topics:
        head, rows = tail(source.table.name)
        ranges[head.name] = SourceRange(head, head.snapshot_id, head.snapshot_id, None, rows)
    space = stack.enter_context(Workspace(session, ranges, cache))
    space.provide_sources(topics)
    for name in below:
        found = sources.find(name.name)
        assert found is not None and found.view is not None
        rows_of = _frame(found.view, sources, tail, now, session, cache, stack)
        _adopted(rows_of, space.session).createOrReplaceTempView(f"`{name.name}`")
    return space.run(plain_query(view.definition.query))


def _adopted(frame: DataFrame, session: SparkSession) -> DataFrame:
    """A frame of another session as one of `session`: names in it are resolved already."""
    made = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(
        session._jsparkSession, frame._jdf.queryExecution().analyzed()
    )
    return DataFrame(made, session)
