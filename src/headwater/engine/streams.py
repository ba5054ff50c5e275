"""The streams of a lake: definitions, the jobs that keep continuous views and feed topics, and what tells of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, assert_never

from headwater.catalog.progress import progress_of
from headwater.catalog.streams import Stream, Streams
from headwater.catalog.topics import Topics
from headwater.catalog.views import View, Views
from headwater.config import LakePaths, Settings
from headwater.engine.stream_definitions import StreamDefinitions
from headwater.engine.stream_status import StatusReader
from headwater.engine.stream_views import StreamViews, is_streamed
from headwater.errors import (
    Conflict,
    InvalidStatement,
    QueryTimeout,
    StreamNotFound,
    ViewInUse,
)
from headwater.serving import stream_answers
from headwater.serving.result import Result
from headwater.spark.session import SparkState
from headwater.sql.statements import (
    AlterStream,
    CreateStream,
    DescribeStream,
    DropStream,
    DropTopic,
    RestartStream,
    ShowStreams,
    ShowStreamStatus,
    StartStream,
    StopStream,
    StreamStatement,
    TopicStatement,
)
from headwater.state.holders import holder_name
from headwater.state.leases import Leases, open_state
from headwater.state.streams import StreamStore
from headwater.streaming.status import StreamStatus
from headwater.streaming.supervise import Job, Supervisor
from headwater.streaming.view_job import ViewJob
from headwater.topics.log import Log
from headwater.types import CORRECTIONS_SUFFIX, LATE_SUFFIX, StreamDefinition, TableName, id_text

if TYPE_CHECKING:
    from headwater.streaming.keep import Keeper


WAIT = 300.0
"""Seconds that a REFRESH waits for the stream that keeps the view."""


class StreamRoom:
    """Everything about the streams of one lake."""

    def __init__(
        self,
        paths: LakePaths,
        settings: Settings,
        topics: Topics,
        views: Views,
        streams: Streams,
        of_views: StreamViews,
        keeper: Keeper,
        topic_statement: Callable[[TopicStatement], Result],
        connector: Callable[[Stream], Job],
        wal: Log,
        spark_state: Callable[[], SparkState],
    ) -> None:
        self._views = views
        self._streams = streams
        self.views = of_views
        self._keeper = keeper
        self._topic_statement = topic_statement
        self._connector = connector
        self._store = StreamStore(paths.state, settings.busy_timeout)
        self._state = open_state(paths.state, settings.busy_timeout)
        holder = holder_name(f"{id(self)}:streams")
        self._leases = Leases(self._state, holder, settings.lease_ttl)
        # Of a holder of its own: two queries must not share a checkpoint, also if both are of this process.
        self._catching_up = Leases(self._state, f"{holder}:catch-up", settings.lease_ttl)
        self._supervisor: Supervisor | None = None
        self._followed: frozenset[str] = frozenset()
        self.definitions = StreamDefinitions(
            topics, views, streams, topic_statement, self._renewed, self._dropped, settings.connections
        )
        self._reader = StatusReader(topics, wal, self._store, self._leases, lambda: self._supervisor, spark_state)

    # -- statements -----------------------------------------------------------------------------------------------

    def run(self, statement: StreamStatement) -> Result:
        match statement:
            case CreateStream():
                return self.definitions.create(statement)
            case DropStream(name, if_exists):
                return self.definitions.drop(name, if_exists)
            case AlterStream(name, values):
                return self.definitions.alter(name, values)
            case ShowStreams():
                return stream_answers.listed(self.definitions.summaries())
            case DescribeStream(name):
                return stream_answers.described(self.describe(name))
            case StartStream(name):
                return _answer([self.start(name)])
            case StopStream(name):
                return _answer([self.stop(name)])
            case RestartStream(name):
                return _answer([self.restart(name)])
            case ShowStreamStatus(only):
                return _answer(self.status(only))
            case _:
                assert_never(statement)

    def list(self) -> Sequence[StreamDefinition]:
        """The streams that were created, by name."""
        return self.definitions.list()

    def describe(self, name: str) -> dict[str, Any]:
        """A stream with its columns and options, as plain data."""
        return self.definitions.describe(name)

    # -- jobs -----------------------------------------------------------------------------------------------------

    def start_background(self) -> None:
        """Run the streams until `stop_background`."""
        self._keeper.sweep()
        self._supervisor = Supervisor(self._wanted, self._job, self._store, self._leases)
        self._supervisor.start()

    def stop_background(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor, self._followed = None, frozenset()

    def wake(self) -> None:
        """A topic has moved."""
        if self._supervisor is not None:
            self._supervisor.wake()

    def close(self) -> None:
        self._state.dispose()

    def _names(self) -> dict[str, View | Stream]:
        """What can run: views that streams keep, and streams that connectors feed."""
        views: dict[str, View | Stream] = {view.name: view for view in self._views.all() if is_streamed(view)}
        connected = [each for each in self._streams.all() if each.definition.options.connector != "none"]
        return views | {each.name: each for each in connected}

    def _wanted(self) -> Iterable[str]:
        wanted = [name for name in self._names() if self._store.get(name).wanted]
        running = [view for view in self._continuous() if view.name in wanted or not is_streamed(view)]
        self._followed = frozenset(source.table.name for view in running for source in view.sources)
        return wanted

    def follows(self, topic: str) -> bool:
        """Whether a continuous view that runs here reads the topic."""
        return topic in self._followed

    def _job(self, name: str) -> Job:
        found = self._names()[name]
        if isinstance(found, View):
            return ViewJob(found, self._views, self._keeper, self.views.plan_of)
        return self._connector(found)

    def _end(self, name: str) -> None:
        if self._supervisor is not None:
            self._supervisor.end(name)

    def _renewed(self, stream: Stream) -> None:
        """What runs by the old definition of a stream starts again by itself: its connector, and views that read it."""
        readers = [view.name for view in self._views.readers_of(stream.topic.table_name)]
        for name in (stream.name, *readers):
            self._end(name)
        self.wake()

    def _dropped(self, name: str) -> None:
        self._end(name)
        self._store.forget(name)

    def replaced(self, old: View) -> None:
        """A view has another query: the old one ends, and its checkpoint goes."""
        self._end(old.name)
        self._keeper.drop(old)
        self.wake()

    def start(self, name: str) -> StreamStatus:
        """Run it from now on, in the service."""
        self._found(name)
        self._store.want(name, True)
        self.wake()
        return self.status(name)[0]

    def stop(self, name: str) -> StreamStatus:
        """Finish what is under way, and do not run it again until it is started."""
        self._found(name)
        self._store.want(name, False)
        self._end(name)
        return self.status(name)[0]

    def restart(self, name: str) -> StreamStatus:
        """Stop and start; a failure that it waits out is forgotten."""
        self._found(name)
        self._store.want(name, True)
        self._end(name)
        self.wake()
        return self.status(name)[0]

    def catch_up(self, name: str) -> dict[str, Any]:
        """Let a view read all that was acknowledged until now, and tell what that took."""
        began, before = time.perf_counter(), self._views.load(name)
        job = self._supervisor.job(name) if self._supervisor is not None else None
        if isinstance(job, ViewJob):
            self._wait(job, before)
        else:
            with self._catching_up.held(f"stream:{name}") as ours:
                if not ours:
                    raise Conflict(f'a service keeps materialized view "{name}"', hint="It follows by itself.")
                self.views.catch_up(name)
        return _caught_up(before, self._views.load(name), time.perf_counter() - began)

    def _wait(self, job: ViewJob, view: View) -> None:
        """Until the job has read what its topics hold now."""
        wanted = {topic.name: topic.committed for topic in self.views.flushed(view)}
        self.wake()
        until = time.monotonic() + WAIT
        while any(job.read.get(topic, 0) < offset for topic, offset in wanted.items()):
            if self._supervisor is None or self._supervisor.job(job.name) is not job:
                raise Conflict(f'stream of materialized view "{job.name}" was stopped meanwhile', hint="Try again.")
            if time.monotonic() > until:
                raise QueryTimeout(f'materialized view "{job.name}" did not catch up within {WAIT:.0f} seconds')
            time.sleep(0.05)

    @contextmanager
    def dropping(self, name: str, view: View | None = None) -> Iterator[None]:
        """Around the drop of a view, None if it cannot be read: what runs for it ends before, and what is beside it
        goes with it."""
        wanted = self._store.get(name).wanted
        self._store.want(name, False)
        self._end(name)
        try:
            yield
        except BaseException:
            self._store.want(name, wanted)
            self.wake()
            raise
        self.forget(name, view)

    def forget(self, name: str, view: View | None = None) -> None:
        """A view is gone, or is kept in another way: what runs for it ends, and what is beside it goes.

        The checkpoint of a view that could not be read is not known; it is swept later."""
        self._end(name)
        self._store.forget(name)
        if view is not None:
            self._keeper.drop(view)
        for suffix in (LATE_SUFFIX, CORRECTIONS_SUFFIX):
            self._topic_statement(DropTopic(name + suffix, if_exists=True))

    def check_unread(self, name: str) -> None:
        """ViewInUse while views read what is beside the view, and goes with it."""
        for topic in (name + LATE_SUFFIX, name + CORRECTIONS_SUFFIX):
            if readers := [view.name for view in self._views.readers_of(TableName.topic(topic))]:
                raise ViewInUse(
                    f'topic "{topic}" is read by materialized views',
                    detail=f"They are: {', '.join(readers)}.",
                    hint="Drop those first.",
                )

    def _found(self, name: str) -> View | Stream:
        names = self._names()
        if (found := names.get(name)) is not None:
            return found
        if self._views.exists(name) or self._streams.find(name) is not None:
            raise InvalidStatement(f'"{name}" does not run', detail="Continuous views and streams with a connector do.")
        near = get_close_matches(name, names, n=1)
        hint = f'Did you mean "{near[0]}"?' if near else "`SHOW STREAM STATUS` lists them."
        raise StreamNotFound(f'there is no continuous view or stream "{name}"', hint=hint)

    # -- status ---------------------------------------------------------------------------------------------------

    def status(self, name: str | None = None) -> Sequence[StreamStatus]:
        """How all of them run, or one; continuous views that are refreshed are among them."""
        refreshed = {view.name: view for view in self._continuous() if not is_streamed(view)}
        if name is not None:
            return [self._reader.of(refreshed.get(name) or self._found(name))]
        found = {**self._names(), **refreshed}
        return [self._reader.of(found[each]) for each in sorted(found)]

    def _continuous(self) -> Sequence[View]:
        return [view for view in self._views.all() if view.definition.options.mode == "continuous"]


def _caught_up(before: View, after: View, seconds: float) -> dict[str, Any]:
    was, now = (progress_of(each.table.metadata.properties) for each in (before, after))
    assert was is not None
    assert now is not None
    return {
        "view": after.name,
        "method": "stream",
        "reason": "its stream read what there was",
        "sources": [],
        "rows_read": now.rows_in - was.rows_in,
        "rows_written": now.rows_out - was.rows_out,
        "files": None,
        "bytes": None,
        "seconds": round(seconds, 3),
        "snapshot": id_text(after.snapshot_id),
    }


def _answer(found: Sequence[StreamStatus]) -> Result:
    return stream_answers.statuses([each.describe() for each in found])
