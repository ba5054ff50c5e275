"""Views from CREATE to DROP: everything that changes a view goes through here, each step of it fenced by a commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from headwater.catalog.progress import progress_of
from headwater.catalog.topics import Topics
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import View, Views, option_properties
from headwater.errors import (
    Conflict,
    Corrupt,
    InvalidStatement,
    LakeMoved,
    SnapshotGone,
    StaleCommit,
    TopicExists,
    ViewExists,
    ViewInUse,
    ViewNotIncremental,
)
from headwater.sql.view_options import change_view_options
from headwater.storage.commit import tag
from headwater.storage.damage import name_damage
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.types import VIEW_TAG, VIEWS, TableName, ViewDefinition
from headwater.views.compact_policy import Due, due
from headwater.views.define import define
from headwater.views.fresh_plan import Tail, Unseen, unseen
from headwater.views.history import Attempt, Trigger, failed, finished
from headwater.views.plan import RefreshPlan, plan_refresh
from headwater.views.publish import publish, withdraw
from headwater.views.round import Round
from headwater.views.sources import Head, Sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.views.compact import Compacted
    from headwater.views.refresh import Refreshed
    from headwater.views.verify import Verified

log = logging.getLogger(__name__)

ATTEMPTS = 5
Flush = Callable[[Sequence[str]], None]


class Upkeep:
    """Makes, refreshes and drops the views of one lake. `flush` commits what waits in the log of topics; `record` hears
    of every refresh of every view, however it ended."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        spark: Callable[[], SparkSession],
        flush: Flush,
        manifests: ManifestCache,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        record: Callable[[Attempt], None] = lambda _: None,
    ) -> None:
        self.views = views
        self.sources = Sources(topics, views)
        self._topics = topics
        self._spark = spark
        self._flush = flush
        self._now = now
        self._record = record
        self.cache = manifests

    # -- definitions ----------------------------------------------------------------------------------------------

    def create(self, definition: ViewDefinition) -> Refreshed:
        """Make the view and compute it; nothing stays of a view that could not be computed."""
        if self._topics.exists(definition.name):
            raise TopicExists(f'"{definition.name}" is a topic', hint="A topic and a view never have the same name.")
        if self.views.exists(definition.name):
            raise ViewExists(
                f'materialized view "{definition.name}" already exists', hint="Use OR REPLACE or IF NOT EXISTS."
            )
        return self._build(definition, None)

    def replace(self, definition: ViewDefinition) -> Refreshed:
        """Make the view, or let it take the place of the one of its name: readers see the old one until then."""
        if not self.views.exists(definition.name):
            return self.create(definition)
        old = self.views.load(definition.name)
        done = self._build(definition, old)
        for source in old.sources:
            if source.table not in {each.head.table_name for each in done.sources}:
                self._unpin(old.name, source.table)
        return done

    def _build(self, definition: ViewDefinition, old: View | None) -> Refreshed:
        from headwater.views.build import build

        began = self._now()
        defined = define(definition, self.sources, self._spark())
        check_method(definition, defined.layout)
        below = [source.table.name for source in defined.sources if not _is_topic(source.table)]
        if definition.name in {view.name for name in below for view in self.lineage(name)}:
            raise InvalidStatement(f'materialized view "{definition.name}" would read itself')
        topics = [source.table.name for source in defined.sources if _is_topic(source.table)]
        self._flush(topics)
        for name in below:
            self.refresh(name, trigger="create")
        heads = self.sources.load([source.table for source in defined.sources])
        now = f"{began:%Y-%m-%d %H:%M:%S.%f}"
        done = build(defined, old, heads, now, self.views.tables, self._topics.new_location, self._spark(), self.cache)
        view = self.views.load(definition.name)
        for each in done.sources:
            self._pin(view, each.head.table_name, each.end)
        publish(view, self._spark())
        self._record(finished(done, "create", began))
        return done

    def drop(self, name: str) -> None:
        """Remove the view and its files; ViewInUse while other views read it."""
        self.check_unread(name)
        self._remove(name)

    def check_unread(self, name: str) -> None:
        """ViewInUse while other views read the view."""
        readers = [view.name for view in self.views.readers_of(TableName.view(name))]
        if readers:
            raise ViewInUse(
                f'materialized view "{name}" is read by others',
                detail=f"They are: {', '.join(readers)}.",
                hint="Drop those first.",
            )

    def _remove(self, name: str) -> None:
        view = self.views.drop(name)
        withdraw(name, self.views.tables.catalog)
        for source in view.sources:
            self._unpin(name, source.table)
        self.views.tables.delete_folder(view.table.location())

    def drop_damaged(self, name: str) -> None:
        """Remove a view that cannot be read; ViewInUse while other views read it."""
        self.check_unread(name)
        folder = self.views.drop_damaged(name)
        withdraw(name, self.views.tables.catalog)
        # What it read is not known any more, but every source has a tag that is named after it.
        tables = {each.table_name: each.table for each in self._topics.all()}
        for source, table in (tables | {each.table_name: each.table for each in self.views.all()}).items():
            if VIEW_TAG + name in table.metadata.refs:
                self._unpin(name, source)
        if folder is not None:
            self.views.tables.delete_folder(str(folder))

    def alter(self, name: str, values: Mapping[str, object]) -> View:
        """Change options."""
        view = self.views.load(name)
        changed = replace(view.definition, options=change_view_options(view.definition.options, values))
        check_method(changed, Layout.from_json(view.layout))
        table = self.views.tables.load_for_commit(view.table_name)
        with table.transaction() as transaction:
            transaction.set_properties(option_properties(changed))
        return self.views.load(name)

    # -- refreshes ------------------------------------------------------------------------------------------------

    def refresh(
        self,
        name: str,
        *,
        full: bool = False,
        flush: bool = True,
        trigger: Trigger = "manual",
        manual: bool = True,
        progress: Callable[[RefreshPlan], None] = lambda _: None,
    ) -> list[Refreshed]:
        """Bring the view, and the views below it first, to one set of source snapshots; what was done, in order.

        With `manual` false, views below that are refreshed by hand stay as they are.
        """
        # What a stream keeps moves by itself: rows of a refresh beside its own would be there twice.
        order = [
            view for view in self.lineage(name, manual=manual) if progress_of(view.table.metadata.properties) is None
        ]
        topics = sorted({source.table.name for view in order for source in view.sources if _is_topic(source.table)})
        if flush:
            self._flush(topics)
        for attempt in range(ATTEMPTS):
            round = Round(self.sources.load([TableName.topic(topic) for topic in topics]))
            try:
                return [
                    self.refresh_in(
                        round, view.name, full=full and view.name == name, trigger=trigger, progress=progress
                    )
                    for view in order
                ]
            except StaleCommit as late:
                if attempt == ATTEMPTS - 1:
                    self._record(failed(name, None, trigger, self._now(), 0.0, late))
                    raise
                log.info("refresh lost a race, trying again", extra={"view": name})
        raise Conflict(
            f'refresh of materialized view "{name}" lost the commit race {ATTEMPTS} times', hint="Try again."
        )

    def refresh_in(
        self,
        round: Round,
        name: str,
        *,
        full: bool = False,
        trigger: Trigger,
        progress: Callable[[RefreshPlan], None] = lambda _: None,
    ) -> Refreshed:
        """Bring one view to the heads of the round; StaleCommit if others have taken it, or one below it, further."""
        from headwater.views.refresh import run_refresh

        began, plan = self._now(), None
        try:
            plan = self.plan(name, round.heads, full=full)
            round.check(plan, lambda source: self.sources.load([source]).get(source))
            progress(plan)
            rebuilt = self._rebuild(plan, began) if plan.rebuilds else None
            if rebuilt is not None:
                plan, done = rebuilt
            else:
                done = run_refresh(plan, self.views.tables, self._spark(), self.cache)
        except StaleCommit:  # not the end of it: it is planned again
            raise
        except Exception as error:
            named = name_damage(error, _tables_read(plan)) if plan is not None else error
            self._record(failed(name, plan, trigger, began, (self._now() - began).total_seconds(), named))
            if named is error:
                raise
            raise named from error
        if full:  # also if somebody removed it, as the doctor does with a damaged one
            publish(self.views.load(name), self._spark())
        round.reached(plan)
        self._record(finished(done, trigger, began, plan))
        for each in plan.ranges:
            if each.moved:
                self._pin(plan.view, each.head.table_name, each.end)
        return done

    def _rebuild(self, plan: RefreshPlan, began: datetime) -> tuple[RefreshPlan, Refreshed] | None:
        """Build a view of an earlier version again, at the snapshots of the plan; the plan with the position that it
        has then, and what was done. None if that would change the view's columns.

        A query with `*` means the columns that its sources have now: what the view answers stays as it was created.
        """
        from headwater.views.build import build

        view, session = plan.view, self._spark()
        defined = define(view.definition, self.sources, session)
        columns = [output[:2] for output in defined.layout.outputs]
        if columns != [output[:2] for output in Layout.from_json(view.layout).outputs]:
            return None
        heads = {each.head.table_name: each.head for each in plan.ranges}
        now = f"{began:%Y-%m-%d %H:%M:%S.%f}"
        tables, location = self.views.tables, self._topics.new_location
        done = build(defined, view, heads, now, tables, location, session, self.cache)
        publish(self.views.load(view.name), session)
        return replace(plan, position=replace(plan.position, now=now)), replace(done, reason=plan.chosen)

    def plan(self, name: str, heads: Mapping[TableName, Head] | None = None, *, full: bool = False) -> RefreshPlan:
        """How the view would be refreshed now, or to these heads of topics."""
        view = self.views.load(name)
        known = dict(heads or {})
        wanted = [source.table for source in view.sources if source.table not in known]
        known |= self.sources.load(wanted)
        return plan_refresh(view, known, self._moment(), self.cache, full=full)

    # -- care -----------------------------------------------------------------------------------------------------

    def compaction_due(self, name: str) -> Due | None:
        """Whether folding the view's states would pay now."""
        view = self.views.load(name)
        return due(view, plan_scan(view.table, view.snapshot_id, AlwaysTrue(), self.cache).files)

    def compact(self, name: str, *, whole: bool = True) -> Compacted:
        """Fold the view's states; `whole` false folds only what refreshes appended, among itself."""
        view = self.views.load(name)
        from headwater.views.compact import run_compaction

        for _ in range(ATTEMPTS):
            try:
                return run_compaction(view, self.views, self._spark(), self.cache, whole=whole)
            except StaleCommit:
                log.info("compaction lost a race, trying again", extra={"view": name})
                view = self.views.load(name)
        raise Conflict(
            f'compaction of materialized view "{name}" lost the commit race {ATTEMPTS} times', hint="Try again."
        )

    def fresh(self, session: SparkSession, name: str, tail: Tail) -> AbstractContextManager[DataFrame]:
        """The view's rows as they would be after a refresh, as a frame of `session`."""
        from headwater.views.fresh import fresh_frame

        return fresh_frame(self._refreshed(name), self.sources, tail, self._moment(), session, self.cache)

    def unseen(self, name: str, tail: Tail) -> Unseen | None:
        """What a fresh read puts beside the view's stored rows; None where only Spark can tell."""
        return unseen(self._refreshed(name), tail, self._moment(), self.cache)

    def _refreshed(self, name: str) -> View:
        """The view, if refreshes keep it and all that it stands on: what a stream makes of records depends on time."""
        *_, view = order = self.lineage(name)
        if kept := next((each.name for each in order if progress_of(each.table.metadata.properties) is not None), None):
            raise InvalidStatement(
                f'materialized view "{name}" cannot be read fresh',
                detail=f'A stream keeps "{kept}".',
                hint=f"Let it read what there is, and read it as it is: REFRESH MATERIALIZED VIEW {kept}.",
            )
        return view

    def _moment(self) -> str:
        return f"{self._now():%Y-%m-%d %H:%M:%S.%f}"

    def verify(self, name: str, sample: int | None = None) -> Verified:
        """Compare the view with its query over the very snapshots that it stands for."""
        from headwater.views.verify import run_verification

        view = self.views.load(name)
        heads = self.sources.load([source.table for source in view.sources])
        return run_verification(view, heads, sample, self._spark(), self.cache)

    def lineage(self, name: str, *, manual: bool = True) -> list[View]:
        """The view and the views that it stands on, each after those that it reads; `manual` ones below, if asked."""
        order: dict[str, View] = {}

        def visit(view: View) -> None:
            for source in view.sources:
                if not _is_topic(source.table) and source.table.name not in order:
                    below = self.views.load(source.table.name)
                    if manual or below.definition.options.mode != "manual":
                        visit(below)
            order[view.name] = view

        visit(self.views.load(name))
        return list(order.values())

    def _unpin(self, name: str, source: TableName) -> None:
        """Let the snapshots of a source expire that a view held. A source that is gone or damaged does not stop this:
        maintenance removes the tags of views that do not exist."""
        try:
            tag(lambda: self.views.tables.load_for_commit(source), VIEW_TAG + name, None)
        except (NoSuchTableError, Corrupt, LakeMoved) as failed:
            log.info("tag was not removed", extra={"view": name, "source": str(source), "reason": str(failed)})

    def _pin(self, view: View, source: TableName, snapshot_id: int | None) -> None:
        """Keep the snapshot that the view stands for from expiring; a source that is gone needs no pin.

        The view is committed by now. A source that had very many commits meanwhile may have expired the snapshot: then
        the next refresh recomputes the view."""
        try:
            tag(lambda: self.views.tables.load_for_commit(source), VIEW_TAG + view.name, snapshot_id)
        except SnapshotGone:
            log.warning("source moved on", extra={"view": view.name, "source": str(source)})
        except NoSuchTableError:
            log.info("source is gone, nothing to pin", extra={"view": view.name, "source": str(source)})


def _tables_read(plan: RefreshPlan) -> list[tuple[Table, int | None]]:
    """The snapshots that a refresh reads: of its sources at both ends of what it consumes, and of the view itself."""
    ends = [(each.head.table, id) for each in plan.ranges for id in (each.start, each.end)]
    return [*ends, (plan.view.table, plan.view.snapshot_id)]


def check_method(definition: ViewDefinition, layout: Layout) -> None:
    """ViewNotIncremental if the view must never be recomputed, and no refresh could do otherwise."""
    if definition.options.method == "incremental" and (reason := layout.recomputes) is not None:
        raise ViewNotIncremental(
            f'materialized view "{definition.name}" cannot refresh incrementally',
            detail=f"{reason[:1].upper()}{reason[1:]}.",
            hint="Use refresh = 'auto'.",
        )


def _is_topic(table: TableName) -> bool:
    return table.namespace != VIEWS
