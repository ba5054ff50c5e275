"""A view as it would be if it were refreshed now: its states, and what follows from changes that it has not consumed.

Nothing is written. The log's tail counts, so every acknowledged record does. The plan is the one that a refresh would
make, so it costs what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog.views import P_READ, P_READ_SIGNED, STATES, View
from headwater.storage.scan import ManifestCache
from headwater.types import VIEWS, TableName
from headwater.views.change import AppendDelta, Recompute, RecomputeKeys, Skip
from headwater.views.plan import plan_refresh
from headwater.views.refresh import Workspace
from headwater.views.sources import Head, Sources
from headwater.views.text import plain_query

Tail = Callable[[str], tuple[Head, pa.Table]]
"""A topic's name to its newest snapshot and the rows of the log behind it, read at once."""


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
    below = [source.table for source in view.sources if source.table.namespace == VIEWS]
    tails = {source.table: tail(source.table.name) for source in view.sources if source.table not in below}
    heads: dict[TableName, Head] = {name: head for name, (head, _) in tails.items()}
    if below:
        return _over_views(view, heads, tails, sources, tail, now, session, cache, stack)
    plan = plan_refresh(view, heads, now, cache, tails={name: rows for name, (_, rows) in tails.items()})
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
    heads: Mapping[TableName, Head],
    tails: Mapping[TableName, tuple[Head, pa.Table]],
    sources: Sources,
    tail: Tail,
    now: str,
    session: SparkSession,
    cache: ManifestCache,
    stack: ExitStack,
) -> DataFrame:
    """A view on views: its query over them as they are when fresh, which are small beside what they stand on."""
    from headwater.views.plan import SourceRange

    ranges = {
        head.name: SourceRange(head, head.snapshot_id, head.snapshot_id, None, tails[name][1])
        for name, head in heads.items()
    }
    space = stack.enter_context(Workspace(session, ranges, cache))
    space.provide_sources(source for source in view.sources if source.table in heads)
    for name in (source.table for source in view.sources if source.table not in heads):
        head = sources.find(name.name)
        assert head is not None and head.view is not None
        below = _frame(head.view, sources, tail, now, session, cache, stack)
        _adopted(below, space.session).createOrReplaceTempView(f"`{name.name}`")
    return space.run(plain_query(view.definition.query))


def _adopted(frame: DataFrame, session: SparkSession) -> DataFrame:
    """A frame of another session as one of `session`: names in it are resolved already."""
    made = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(
        session._jsparkSession, frame._jdf.queryExecution().analyzed()
    )
    return DataFrame(made, session)
