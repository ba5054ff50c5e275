"""Continuous views: which of the lake's rooms keeps one, and how it gets there.

A view's query is looked at as any view's is: through the gate, with its columns and types. If a streaming engine can
keep it, the streaming room does; otherwise it is refreshed incrementally after every commit, as an immediate view is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.catalog.progress import progress_of
from headwater.catalog.streams import streams_of
from headwater.catalog.topics import Topic, Topics
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import STATES, View, Views
from headwater.errors import InvalidStatement, TopicExists, ViewExists
from headwater.serving import view_answers
from headwater.serving.result import Result
from headwater.sql.names import normalise
from headwater.sql.statements import CreateTopic, TopicStatement
from headwater.sql.view_options import view_notices
from headwater.sql.windows_streaming import streaming_windows
from headwater.streaming.correct import check_correctable
from headwater.streaming.explain import describe_plan, render_plan
from headwater.streaming.keep import Keeper, Texts
from headwater.streaming.late_topics import corrections_definition, late_definition
from headwater.streaming.plan import (
    Continuous,
    Input,
    NotStreamed,
    Outline,
    missing_event_time,
    not_streamed_any_more,
    plan_continuous,
)
from headwater.streaming.sent_topic import check_sent, sent_definition
from headwater.types import TOPICS, StreamDefinition, TableName, ViewDefinition, id_text
from headwater.views.define import Defined, define
from headwater.views.fold import compacted, read_sql
from headwater.views.publish import publish
from headwater.views.text import plain_query
from headwater.views.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamViews:
    """Makes and drops continuous views."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        upkeep: Upkeep,
        keeper: Keeper,
        spark: Callable[[], SparkSession],
        flush: Callable[[Sequence[str]], None],
        topic_statement: Callable[[TopicStatement], Result],
        replaced: Callable[[View], None],
    ) -> None:
        self._topic_statement = topic_statement
        self._replaced = replaced
        self._topics = topics
        self._views = views
        self._upkeep = upkeep
        self._keeper = keeper
        self._spark = spark
        self._flush = flush

    def create(self, definition: ViewDefinition, *, replace: bool = False) -> tuple[str, ...]:
        """Make the view and compute it, or let it take the place of the one of its name; what its creator must know."""
        self._check_name(definition.name, replace)
        defined = define(definition, self._upkeep.sources, self._spark())
        plan = self.plan(definition, defined)
        if isinstance(plan, Continuous):
            if definition.options.into_kafka:
                from headwater.streaming.into_kafka import check_target

                check_target(definition, self._keeper.connections)
            self._flush([each.table.name for each in plan.outline.inputs if each.table.namespace == TOPICS])
            plan = self._keeper.too_early(plan) or plan
        if isinstance(plan, NotStreamed):
            _check_needs_no_stream(definition, plan)
            (self._upkeep.replace if replace else self._upkeep.create)(definition)
            how = f"It is refreshed incrementally after every commit: {plan.reason}."
            return (how, *filter(None, [plan.hint]), *_without_stream(definition))
        self._make_topics(plan)
        old = self._views.load(definition.name) if self._views.exists(definition.name) else None
        progress = self._keeper.build(plan, texts_of(plan.layout), old)
        view = self._views.load(definition.name)
        publish(view, self._spark())
        if old is not None:
            self._replaced(old)
        if (send := self._keeper.sender(view)) is not None:
            send(view, progress)
        how = "every row once" if plan.mode == "append" else "the rows of groups as they change"
        return (f"A stream keeps it, and emits {how}.", *self._notices(plan))

    def _make_topics(self, plan: Continuous) -> None:
        """The topics beside the view that its options ask for; one that rows are sent to may exist, and must fit."""
        options = plan.outline.definition.options
        if options.late == "keep":
            self._topic_statement(CreateTopic(late_definition(plan.name), if_not_exists=True))
        if options.late == "correct":
            check_correctable(plan)
            made = corrections_definition(plan.name, plan.outline.outputs)
            self._topic_statement(CreateTopic(made, if_not_exists=True))
        if options.into_topic:
            self._topic_statement(CreateTopic(sent_definition(plan), if_not_exists=True))
            check_sent(plan, self._topics.load(options.into_topic).columns)

    def _check_name(self, name: str, replace: bool) -> None:
        if self._topics.exists(name):
            raise TopicExists(f'"{name}" is a topic', hint="A topic and a view never have the same name.")
        if not replace and self._views.exists(name):
            raise ViewExists(f'materialized view "{name}" already exists', hint="Use OR REPLACE or IF NOT EXISTS.")

    def _notices(self, plan: Continuous) -> list[str]:
        found = []
        if tables := [each.name for each in plan.outline.inputs if each.stream is None]:
            named = ", ".join(tables)
            found.append(f"Read as tables, as they are when a batch begins: {named}. CREATE STREAM makes streams.")
        if (hint := missing_event_time(plan.outline)) is not None:
            found.append(f"Its windows never close. {hint}")
        return found

    def plan(self, definition: ViewDefinition, defined: Defined) -> Continuous | NotStreamed:
        """How the view is kept, if Spark runs it as a stream."""
        plan = self._plan(definition, defined)
        return plan if isinstance(plan, NotStreamed) else self._keeper.check(plan) or plan

    def _plan(self, definition: ViewDefinition, defined: Defined) -> Continuous | NotStreamed:
        inputs = self._inputs(defined)
        if not any(each.stream for each in inputs):
            return NotStreamed("it reads no topic")
        streaming = streaming_windows(definition.query)
        text = normalise(streaming.text).text
        outputs = tuple((name, of) for name, of, _ in defined.layout.outputs)
        batch = plain_query(definition.query)
        return plan_continuous(Outline(definition, text, batch, outputs, inputs, streaming.windows))

    def plan_of(self, view: View) -> Continuous:
        """The plan of a view that a stream keeps. Spark has run it, and checks it again when it starts."""
        plan = self._plan(view.definition, define(view.definition, self._upkeep.sources, self._spark()))
        if isinstance(plan, NotStreamed):
            raise not_streamed_any_more(view.name, plan)
        return plan

    def _inputs(self, defined: Defined) -> tuple[Input, ...]:
        found = [
            Input(
                source.table.name, source.table, tuple(name for name, _ in source.columns), self._stream(source.table)
            )
            for source in defined.sources
        ]
        if any(each.stream for each in found):
            return tuple(found)
        # Nobody said which are streams: topics are, by the time at which records arrived.
        return tuple(
            Input(each.name, each.table, each.columns, StreamDefinition(each.name))
            if each.table.namespace == TOPICS
            else each
            for each in found
        )

    def _stream(self, table: TableName) -> StreamDefinition | None:
        if table.namespace != TOPICS:
            return None
        found = list(streams_of(self._topics.load(table.name)))
        same = [each for each in found if each.name == table.name] or found
        if len(same) > 1:
            raise InvalidStatement(
                f'topic "{table.name}" has several streams',
                detail=f"They are: {', '.join(each.name for each in same)}; a continuous view follows one event time.",
                hint="Drop the others.",
            )
        return same[0].definition if same else None

    def explain(self, definition: ViewDefinition) -> Result:
        """How the view would be kept."""
        plan = self.plan(definition, define(definition, self._upkeep.sources, self._spark()))
        lines = render_plan(plan, definition.options, definition.name)
        return view_answers.explained(lines, describe_plan(plan), view_notices(definition.options))

    def verify(self, name: str) -> dict[str, Any]:
        """Compare the view with its query over the records that it has read."""
        from headwater.streaming.verify_spark import run_verification

        started, view = time.perf_counter(), self._views.load(name)
        found = run_verification(self.plan_of(view), view, self._topics, self._spark(), self._upkeep.cache)
        return {
            "view": name,
            "equal": not found.extra and not found.missing,
            "rows": found.rows,
            "extra": found.extra,
            "missing": found.missing,
            "examples": list(found.examples),
            "skipped": [],
            "late": _late(view),
            "sample": None,
            "seconds": round(time.perf_counter() - started, 3),
            "snapshot": id_text(view.snapshot_id),
        }

    def flushed(self, view: View) -> list[Topic]:
        """The topics that the view follows, with all that was acknowledged committed."""
        names = [source.table.name for source in view.sources if source.table.namespace == TOPICS]
        self._flush(names)
        topics = [self._topics.load(name) for name in names]
        return [topic for topic in topics if any(streams_of(topic))] or topics

    def catch_up(self, name: str) -> None:
        """Read once all that there is; for a view that no service keeps at the moment."""
        view = self._views.load(name)
        plan = self.plan_of(view)
        self._flush([each.table.name for each in plan.outline.streams])
        run = self._keeper.resume(plan, view)
        try:
            run.start(once=True)
            run.wait()
        finally:
            run.stop()


def _late(view: View) -> int:
    """Records that came too late for the view, and were not folded in."""
    progress = progress_of(view.table.metadata.properties)
    return 0 if progress is None or view.definition.options.late == "correct" else progress.late


def is_streamed(view: View) -> bool:
    """Whether a stream keeps the view."""
    return progress_of(view.table.metadata.properties) is not None


def texts_of(layout: Layout) -> Texts:
    """Spark SQL over a table of this layout."""
    return Texts(
        read_sql(layout, STATES, signed=False),
        read_sql(layout, STATES, signed=False, base=True),
        read_sql(layout, STATES, signed=True),
        compacted(layout, STATES, signed=True, base=False),
    )


def _check_needs_no_stream(definition: ViewDefinition, plan: NotStreamed) -> None:
    """InvalidStatement for what only a stream can do with a view's rows."""
    options, detail = definition.options, f"{plan.reason[:1].upper()}{plan.reason[1:]}."
    if options.emit == "close":
        raise InvalidStatement(
            f'materialized view "{definition.name}" cannot be emitted on window close',
            detail=detail,
            hint=plan.hint or "Group by TUMBLE, HOP or SESSION of the event time of a stream, or use EMIT CHANGES.",
        )
    if options.into_topic or options.into_kafka:
        raise InvalidStatement(
            f'rows of materialized view "{definition.name}" cannot be sent on',
            detail=detail,
            hint="A stream must keep the view for that. Leave INTO out; `headwater tail` shows its changes.",
        )


def _without_stream(definition: ViewDefinition) -> tuple[str, ...]:
    if definition.options.late == "drop":
        return ()
    return (f"late = '{definition.options.late}' has no effect: no record is too late for it.",)
