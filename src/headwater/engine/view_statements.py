"""The statements about materialized views, each answered by a small result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, assert_never

from headwater.catalog.view_layout import Layout
from headwater.engine.stream_views import is_streamed
from headwater.errors import Corrupt, InvalidStatement, LakeMoved, ViewExists, ViewNotFound
from headwater.serving import view_answers
from headwater.serving.result import Result
from headwater.sql.statements import (
    AlterView,
    CompactView,
    CreateView,
    DescribeView,
    DropView,
    ExplainCreateView,
    ExplainRefresh,
    RefreshView,
    ShowRefreshes,
    ShowViews,
    Verify,
    VerifyView,
    ViewStatement,
)
from headwater.sql.view_options import view_notices
from headwater.types import TOPICS, ViewDefinition
from headwater.views.define import define
from headwater.views.describe import ViewReader, compacted, refreshed, verified
from headwater.views.explain import describe, describe_defined, kept, render, render_defined
from headwater.views.history import History
from headwater.views.plan import RefreshPlan
from headwater.views.text import plain
from headwater.views.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.engine.streams import StreamRoom

Progress = Callable[[Mapping[str, Any]], None]


class ViewStatements:
    """Answers statements about the views of one lake."""

    def __init__(
        self,
        upkeep: Upkeep,
        reader: ViewReader,
        history: History,
        spark: Callable[[], SparkSession],
        streams: Callable[[], StreamRoom],
        check: Callable[[str], None],
    ) -> None:
        self._streams = streams
        self._check_names = check
        self._upkeep = upkeep
        self._spark = spark
        self._views = upkeep.views
        self._reader = reader
        self._history = history

    def run(self, statement: ViewStatement) -> Result:
        match statement:
            case CreateView():
                return self._create(statement)
            case ExplainCreateView(definition):
                return self._explain_create(definition)
            case DropView(name, if_exists):
                return self._drop(name, if_exists)
            case AlterView(name, values):
                self._check_alterable(name, values)
                view = self._upkeep.alter(name, values)
                return Result.done(f'materialized view "{name}" altered', view_notices(view.definition.options))
            case ShowViews():
                return view_answers.listed(self._reader.summaries())
            case DescribeView(name):
                return view_answers.described(self._reader.description(name))
            case RefreshView():
                return self.refresh(statement)
            case VerifyView(name, sample):
                return view_answers.verified(self.verify(name, sample))
            case ExplainRefresh(name, full):
                return self._explain(name, full)
            case ShowRefreshes(only, limit):
                return view_answers.recorded(self._reader.history(only, limit))
            case CompactView(name):
                return view_answers.compacted(compacted(self._upkeep.compact(name)))
            case _:
                assert_never(statement)

    def refresh(self, statement: RefreshView, progress: Progress = lambda _: None) -> Result:
        """Refresh, and verify if asked; `progress` hears of each plan before it is run."""

        def planned(plan: RefreshPlan) -> None:
            said = describe(plan)
            progress({key: said[key] for key in ("view", "method", "reason", "rows", "full_rows")})

        if is_streamed(self._views.load(statement.name)):
            return view_answers.refreshed([self._streams().catch_up(statement.name)])
        done = self._upkeep.refresh(statement.name, full=statement.full, progress=planned)
        outcome = self._verified(statement.name, statement.verify)
        return view_answers.refreshed([refreshed(each) for each in done], outcome)

    def _verified(self, name: str, asked: Verify | None) -> dict[str, Any] | None:
        return None if asked is None else self.verify(name, asked.sample)

    def verify(self, name: str, sample: int | None) -> dict[str, Any]:
        """Compare the view with its query, and note the outcome beside the refresh that it is about."""
        if is_streamed(self._views.load(name)):
            return self._streams().views.verify(name)
        outcome = self._upkeep.verify(name, sample)
        self._history.verified(name, outcome.snapshot_id, "equal" if outcome.equal else "different")
        return verified(outcome)

    def _create(self, statement: CreateView) -> Result:
        definition = statement.definition
        name, existed = definition.name, self._views.exists(definition.name)
        if statement.or_replace or not existed:
            self._check(definition)
        try:
            if definition.options.mode == "continuous":
                said = self._streams().views.create(definition, replace=statement.or_replace)
                status = f'materialized view "{name}" {"replaced" if existed else "created"}'
                return Result.done(status, (*said, *view_notices(definition.options)))
            self._make(definition, replace=statement.or_replace)
        except ViewExists:
            if not statement.if_not_exists:
                raise
            return Result.done(f'materialized view "{name}" exists already')
        layout = Layout.from_json(self._views.load(name).layout)
        notices = (kept(layout, definition.options), *view_notices(definition.options))
        status = f'materialized view "{name}" {"replaced" if existed else "created"}'
        return Result.done(status, notices)

    def _check(self, definition: ViewDefinition) -> None:
        """Tell of wrong names in the query at once: for most of them Spark need not be started."""
        plain(definition.query)
        self._check_names(definition.query)

    def _make(self, definition: ViewDefinition, *, replace: bool) -> None:
        old = self._views.load(definition.name) if replace and self._views.exists(definition.name) else None
        (self._upkeep.replace if replace else self._upkeep.create)(definition)
        if old is not None and is_streamed(old):
            self._streams().forget(old.name, old)

    def _check_alterable(self, name: str, values: Mapping[str, object]) -> None:
        """InvalidStatement for options that decide how a stream keeps a view: they need a new query."""
        view = self._views.load(name)
        decided = ("emit", "into_topic", "into_kafka", "late")
        fixed = ("refresh", "interval", *decided) if is_streamed(view) else decided
        named = next((each for each in fixed if each in values), None)
        if named is not None and view.definition.options.mode == "continuous":
            raise InvalidStatement(
                f'option "{named}" of a continuous view cannot be altered',
                hint="Use CREATE OR REPLACE MATERIALIZED VIEW, which reads its topics anew.",
            )

    def _explain_create(self, definition: ViewDefinition) -> Result:
        self._check(definition)
        if definition.options.mode == "continuous":
            return self._streams().views.explain(definition)
        defined = define(definition, self._upkeep.sources, self._spark())
        return view_answers.explained(
            render_defined(defined), describe_defined(defined), view_notices(definition.options)
        )

    def _drop(self, name: str, if_exists: bool) -> Result:
        try:
            self._drop_one(name)
        except ViewNotFound:
            if not if_exists:
                raise
            return Result.done(f'materialized view "{name}" does not exist')
        self._history.forget(name)
        return Result.done(f'materialized view "{name}" dropped')

    def _drop_one(self, name: str) -> None:
        try:
            view = self._views.load(name)
        except (Corrupt, LakeMoved):
            self._streams().check_unread(name)
            with self._streams().dropping(name):
                self._upkeep.drop_damaged(name)
            return
        self._upkeep.check_unread(name)
        if not is_streamed(view):
            self._upkeep.drop(name)
            return
        self._streams().check_unread(name)
        with self._streams().dropping(name, view):
            self._upkeep.drop(name)

    def _explain(self, name: str, full: bool) -> Result:
        if is_streamed(view := self._views.load(name)):
            return self._streams().views.explain(view.definition)
        plan = self._upkeep.plan(name, full=full)
        *below, _ = order = self._upkeep.lineage(name)
        topics = {source.table for view in order for source in view.sources if source.table.namespace == TOPICS}
        first = [
            f'The log has {rows:,} more record{"" if rows == 1 else "s"} of "{topic}", which a refresh commits first.'
            for topic, rows in self._reader.waiting(sorted(topics)).items()
        ]
        first += [
            f'"{view.name}" is refreshed first: {said.chosen}.'
            for view in below
            if (said := self._upkeep.plan(view.name)).method != "skip"
        ]
        return view_answers.explained(render(plan), describe(plan), first)
