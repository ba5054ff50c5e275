"""How continuous views and connectors are doing, put together from the catalog, the state file and what runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table.snapshots import ancestors_of

from headwater.catalog.definitions import S_TO
from headwater.catalog.progress import progress_of
from headwater.catalog.streams import Stream, streams_of
from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import View
from headwater.engine.connector_job import ConnectorJob
from headwater.errors import Unavailable
from headwater.spark.session import SparkState
from headwater.sql.units import counted
from headwater.state.holders import holder_state
from headwater.state.leases import Leases
from headwater.state.streams import StreamStore
from headwater.streaming.status import State, StreamStatus
from headwater.streaming.supervise import Supervisor
from headwater.streaming.view_job import ViewJob
from headwater.topics.ingest import log_topic
from headwater.topics.log import Log


class StatusReader:
    """Tells; `supervisor` gives what runs the streams of this process, None if nothing does."""

    def __init__(
        self,
        topics: Topics,
        wal: Log,
        store: StreamStore,
        leases: Leases,
        supervisor: Callable[[], Supervisor | None],
        spark_state: Callable[[], SparkState],
    ) -> None:
        self._topics = topics
        self._log = wal
        self._store = store
        self._leases = leases
        self._running_here = supervisor
        self._spark_state = spark_state

    @property
    def _supervisor(self) -> Supervisor | None:
        return self._running_here()

    def of(self, found: View | Stream) -> StreamStatus:
        if isinstance(found, Stream):
            return self._of_stream(found)
        refreshed = progress_of(found.table.metadata.properties) is None
        return self._of_refreshed(found) if refreshed else self._of_view(found)

    def _of_refreshed(self, view: View) -> StreamStatus:
        """A continuous view that is refreshed after every commit."""
        state: State = "running" if self._supervisor is not None else "idle"
        lag = self._lag(view, {})
        return StreamStatus(
            view.name,
            "view",
            state,
            query=view.definition.query,
            sources=tuple(source.table.name for source in view.sources),
            engine="incremental",
            lag_rows=lag,
            waits_for=self._waits_for(view.name, state, None, lag),
        )

    def _of_view(self, view: View) -> StreamStatus:
        standing, progress = self._store.get(view.name), progress_of(view.table.metadata.properties)
        state, next_start = self._running(view.name, standing.wanted)
        job = self._supervisor.job(view.name) if self._supervisor is not None else None
        observed, read = None, {}
        if isinstance(job, ViewJob):
            observed, progress, read = job.observed, job.progress or progress, dict(job.read)
            if state == "running" and observed is None:
                state = "starting"
        assert progress is not None
        lag = self._lag(view, read)
        options = view.definition.options
        return StreamStatus(
            view.name,
            "view",
            state,
            query=view.definition.query,
            sources=tuple(source.table.name for source in view.sources),
            into=options.into_topic or options.into_kafka or None,
            engine="streaming",
            generation=progress.generation,
            epoch=progress.epoch,
            started_at=observed.started_at if observed else None,
            last_batch_at=observed.last_batch_at if observed else None,
            input_rows_per_s=observed.input_rows_per_s if observed else None,
            processed_rows_per_s=observed.processed_rows_per_s if observed else None,
            batch_seconds=observed.batch_seconds if observed else None,
            watermark=_moment(progress.watermark_ms),
            lag_rows=lag,
            rows_in=progress.rows_in,
            rows_out=progress.rows_out,
            late_rows=progress.late,
            skipped_changes=progress.skipped,
            state_rows=observed.state_rows if observed else None,
            state_bytes=observed.state_bytes if observed else None,
            restarts=standing.restarts,
            last_error=standing.error,
            last_error_at=_at(standing.error_at),
            next_start=next_start,
            waits_for=self._waits_for(view.name, state, next_start, lag),
        )

    def _waits_for(self, name: str, state: State, next_start: datetime | None, lag: int | None) -> str | None:
        """What has to come first before the view is up to date, as the rest of "it waits for"."""
        if next_start is not None:
            return f"its next start at {next_start:%H:%M:%S} UTC, because it failed"
        held = self._leases.held_by_another(f"stream:{name}") if self._supervisor is not None else None
        if held is not None:
            if holder_state(held.holder) == "alive":
                return None
            until = datetime.fromtimestamp(held.expires_at, UTC)
            return f"the lease of a process on another machine, which ends at {until:%H:%M:%S} UTC unless it is renewed"
        spark = self._spark_state()
        if state == "starting" or (lag and state == "running" and spark != "ready"):
            return "the start of its query" if spark == "ready" else f"Spark, which is {spark}"
        return f"{counted(lag, 'record')} to catch up with" if state == "running" and lag else None

    def _of_stream(self, stream: Stream) -> StreamStatus:
        standing = self._store.get(stream.name)
        state, next_start = self._running(stream.name, standing.wanted)
        job = self._supervisor.job(stream.name) if self._supervisor is not None else None
        about: dict[str, Any] = job.describe() if isinstance(job, ConnectorJob) else {}
        options = stream.definition.options
        return StreamStatus(
            stream.name,
            "connector",
            state,
            sources=(f"kafka:{options.kafka_topic}",),
            into=stream.topic.name,
            engine="kafka",
            restarts=standing.restarts,
            last_error=about.pop("last_error", None) or standing.error,
            last_error_at=_at(standing.error_at),
            next_start=next_start,
            **about,
        )

    def _running(self, name: str, wanted: bool) -> tuple[State, datetime | None]:
        if self._supervisor is not None and (known := self._supervisor.state(name)) is not None:
            return known
        if not wanted:
            return "stopped", None
        elsewhere = self._leases.held_by_another(f"stream:{name}") is not None
        return ("running" if elsewhere else "starting" if self._supervisor is not None else "idle"), None

    def _lag(self, view: View, known: Mapping[str, int]) -> int | None:
        """Records that were acknowledged and that the view has not read; `known` is up to where a run here has."""
        position = {source.name: snapshot for source, snapshot in view.position.snapshots.items()}
        topics = [self._topics.load(name) for name in position if self._topics.exists(name)]
        # As in planning: beside streams, topics that have none are tables, which are never behind.
        followed = [topic for topic in topics if any(streams_of(topic))] or topics
        read = [known.get(topic.name, _read(topic, position[topic.name])) for topic in followed]
        if any(each is None for each in read):
            return None
        try:
            ends = [max(topic.committed, self._log.stats(log_topic(topic)).end) for topic in followed]
        except Unavailable:  # the log in Kafka does not answer: what else there is to say is all the more wanted
            return None
        return sum(end - (each or 0) for end, each in zip(ends, read, strict=True))


def _read(topic: Topic, snapshot_id: int | None) -> int | None:
    """The first offset that was not read at a snapshot; None if that cannot be told any more."""
    if snapshot_id is None:
        return 0
    if snapshot_id == topic.snapshot_id:
        return topic.committed
    metadata = topic.table.metadata
    # Compaction and changed records add none, and say nothing of offsets.
    for snapshot in ancestors_of(metadata.snapshot_by_id(snapshot_id), metadata):
        if snapshot.summary is not None and (said := snapshot.summary[S_TO]) is not None:
            return int(said)
    return None


def _moment(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
