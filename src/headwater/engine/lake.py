"""A lake's life, and which part of it answers a statement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, assert_never

from headwater.catalog.iceberg import Tables, create_catalog_file, open_catalog
from headwater.catalog.identity import locate_lake, record_identity
from headwater.catalog.streams import Streams
from headwater.catalog.topics import Topics
from headwater.catalog.views import View, Views
from headwater.config import LakePaths, Settings, is_writable, load_settings
from headwater.engine.background import Background
from headwater.engine.file_access import close_files
from headwater.engine.handle import LocalTopic
from headwater.engine.intake import Intake
from headwater.engine.logs import open_logs
from headwater.engine.row_statements import RowStatements
from headwater.engine.snapshots import SnapshotStatements
from headwater.engine.spark_start import start_spark
from headwater.engine.tailing import Tail, Tailing
from headwater.engine.topic_statements import TopicStatements, keep_promises
from headwater.engine.view_handle import ViewHandle
from headwater.errors import LakeExists, TopicNotFound, Unavailable, named_system_errors
from headwater.observability.metrics import Metrics
from headwater.serving.duck import Duck
from headwater.serving.query import Cancel, Queries
from headwater.serving.result import Result
from headwater.serving.tail_request import tail_request
from headwater.serving.usage import UsageRecorder
from headwater.spark.preflight import check_cores
from headwater.spark.query_worker import QueryWorker, WorkerState
from headwater.spark.session import SparkEngine, SparkState
from headwater.sql.alter import alter_of
from headwater.sql.care_statements import checked_steps
from headwater.sql.parse import parse, parse_script
from headwater.sql.statements import (
    CareStatement,
    CreateTopic,
    CreateView,
    DeleteRows,
    Explain,
    Maintain,
    MaintenanceStep,
    Optimize,
    ParquetStatement,
    Query,
    RefreshView,
    SnapshotStatement,
    Statement,
    StreamStatement,
    TopicStatement,
    UpdateRows,
    ViewStatement,
)
from headwater.sql.stream_names import expanded
from headwater.sql.view_definition import checked_view
from headwater.state.usage import UsageStore
from headwater.storage.decode import Account
from headwater.storage.scan import ManifestCache
from headwater.topics.evolution import Evolver
from headwater.topics.ingest import Ingested, Ingester
from headwater.topics.ingest_loop import IngestLoop
from headwater.topics.log_integrity import create_log
from headwater.topics.produce import Ack, Format, Producer, Source
from headwater.topics.rewrite import Rewriter
from headwater.types import TOPICS, TopicDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.backup.create import BackupReport
    from headwater.engine.care import Care
    from headwater.engine.parquet import ParquetStatements
    from headwater.engine.streams import StreamRoom
    from headwater.engine.view_room import ViewRoom
    from headwater.sources.files import FileFormat

CONFIG_TEXT = """\
# Settings of this lake; docs/reference/settings.md lists them all.
# HEADWATER_* variables override them.
"""

USAGE_WAIT = 2.0
"""Seconds that closing a lake waits at the most to write what its queries used."""


class Lake:
    """An open lake. Threads may share it; several processes may open the same folder."""

    def __init__(self, paths: LakePaths, settings: Settings) -> None:
        self.paths = paths
        self.settings = settings
        self.metrics = Metrics()
        self._lock = threading.Lock()
        self._loop: IngestLoop | None = None
        self._background = Background(paths, settings)
        self._spark = SparkEngine(partial(start_spark, paths, settings))
        self._opened_duck: Duck | None = None
        self._opened_worker: QueryWorker | None = None
        self._queries_apart = False
        self._closed = False
        if settings.query_worker == "always":
            self._set_queries_apart()
        close_files(paths, settings)
        self.log = open_logs(paths, settings)  # first: it may be refused, and nothing must stay open then
        self._tables = Tables(paths.catalog, paths.warehouse, settings.busy_timeout)
        self.topics = Topics(self._tables)
        self.views = Views(self._tables)
        manifests = self._manifests = ManifestCache()
        evolver = Evolver(
            self.topics, self.views, self.log, manifests, self._matches_any, partial(keep_promises, self.topics)
        )
        producer = Producer(
            self.topics,
            self.log,
            max_rejects=settings.max_reported_rejects,
            max_body_bytes=settings.max_body_bytes,
            evolve=evolver.run,
        )
        self._ingester = Ingester(
            self.topics,
            self.log,
            lambda: self.spark,
            max_bytes=settings.ingest_max_bytes,
            on_commit=self._committed,
            awaited=self._awaited,
        )
        self._intake = Intake(
            self.topics, self.log, producer, self._ingester, self.metrics, auto_flush=settings.auto_flush
        )
        self._opened_views: ViewRoom | None = None
        self._opened_care: Care | None = None
        self._opened_streams: StreamRoom | None = None
        self._opened_parquet: ParquetStatements | None = None
        self._topic_statements = TopicStatements(self.topics, self.views, self.log, self._intake, evolver)
        rewriter = Rewriter(self.topics, manifests, self.flush, lambda: self.spark)
        self._row_statements = RowStatements(self.topics, self.log, manifests, rewriter)
        self.usage = UsageRecorder(UsageStore(paths.state, min(settings.busy_timeout, USAGE_WAIT)))
        self._queries = Queries(
            self.topics,
            self.views,
            self.log,
            self._duck,
            lambda: self.spark,
            self.metrics,
            manifests,
            duckdb_max_bytes=settings.duckdb_max_bytes,
            max_rows=settings.query_max_rows,
            max_result_bytes=settings.query_max_result_bytes,
            timeout=settings.query_timeout,
            stop_seconds=settings.query_stop_seconds,
            worker=self._query_worker,
            before_read=self._before_read,
            fresh_frame=lambda session, name: self.view_room.fresh(session, name),
            unseen=lambda name: self.view_room.unseen(name),
            used=self.usage.record if settings.record_usage and is_writable(paths.state) else lambda _: None,
        )
        self.tailing = Tailing(self.topics, self.views, self.log, self._queries, manifests, self._duck)
        self._snapshot_statements = SnapshotStatements(
            self.topics,
            self.views,
            self.log,
            manifests,
            query=self._queries.run,
            view_room=lambda: self.view_room,
            on_commit=self._committed,
        )

    # -- life ---------------------------------------------------------------------------------------------------

    @classmethod
    def init(cls, path: str | Path, **settings: Any) -> Self:
        """Create a lake in the folder `path` (made if missing) and open it; LakeExists if there is one."""
        paths = LakePaths(Path(path).resolve())
        if paths.config.exists():
            raise LakeExists(f'"{path}" is a lake already', hint=f"Open it: `headwater -C {path} ...`.")
        paths.warehouse.mkdir(mode=0o700, parents=True, exist_ok=True)
        loaded = load_settings(None, **settings)
        create_catalog_file(paths.catalog, loaded.busy_timeout)
        catalog = open_catalog(paths.catalog, paths.warehouse, loaded.busy_timeout)
        catalog.create_namespace_if_not_exists(TOPICS)
        catalog.close()
        create_log(paths.state, loaded.busy_timeout)
        record_identity(paths, loaded.busy_timeout)
        paths = locate_lake(paths, loaded.busy_timeout)
        paths.config.write_text(CONFIG_TEXT)  # last: a folder with this file is a complete lake
        return cls(paths, loaded)

    @classmethod
    def open(cls, path: str | Path = ".", **settings: Any) -> Self:
        """Open the lake in the folder `path`."""
        paths = LakePaths.existing(path)
        loaded = load_settings(paths.config, **settings)
        return cls(locate_lake(paths, loaded.busy_timeout), loaded)

    @classmethod
    def restore(cls, source: str | Path, place: str | Path, **settings: Any) -> Self:
        """Make a lake in the new or empty folder `place` from the backup in `source`, and open it."""
        from headwater.engine.copies import restore_lake

        restore_lake(source, place)
        return cls.open(place, **settings)

    def backup(
        self,
        destination: str | Path,
        *,
        verify: bool = False,
        progress: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> BackupReport:
        """Bring the backup in the folder `destination` up to date, while the lake is in use."""
        from headwater.engine.copies import backup_lake

        return backup_lake(self.paths, self.settings, destination, verify=verify, progress=progress)

    def close(self) -> None:
        """Stop background work, Spark and the log. What was acknowledged is on disk already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with ExitStack() as parts:  # the last one first; each of them, whatever another raises
            parts.callback(self._tables.close)
            parts.callback(self.log.close)
            if self._opened_care is not None:
                parts.callback(self._opened_care.close)
            if self._opened_views is not None:
                parts.callback(self._opened_views.close)
            if self._opened_streams is not None:
                parts.callback(self._opened_streams.close)
            if self._opened_duck is not None:
                parts.callback(self._opened_duck.close)
            parts.callback(self._spark.stop)
            if self._opened_worker is not None:
                parts.callback(self._opened_worker.close)
            parts.callback(self._background.close)
            parts.callback(self.usage.close)
            parts.callback(self.tailing.news.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_ingest(self) -> None:
        """Ingest in the background until the lake is closed."""
        self._intake.forget_dropped()
        self._loop = self._background.ingest(self.topics, self.log, self._ingester, self.metrics)

    def start_background(self) -> None:
        """Ingest, keep views fresh and tables tidy, until the lake is closed: what `headwater serve` does.

        From now on queries run on Spark in a process of their own, unless the setting query_worker says never.
        """
        if self.settings.query_worker != "never":
            self._set_queries_apart()
        self.start_ingest()
        self._background.refresh(self.view_room.refreshing)
        self._background.stream(self.streams)
        if self.settings.maintenance:
            self._background.take_care(self.care)

    def _before_read(self, views: Sequence[View]) -> None:
        """A query is about to read these views: those that are refreshed on query are, if they are too stale."""
        if any(view.definition.options.mode == "on_query" for view in views):
            self.view_room.refreshing.before_read(views)

    def _committed(self) -> None:
        """A topic has moved: views that follow at once do so."""
        if self._opened_views is not None:
            self._opened_views.refreshing.wake()
        if self._opened_streams is not None:
            self._opened_streams.wake()

    def _awaited(self, topic: str) -> float | None:
        """Seconds within which a record of the topic is to be committed, if a stream waits for it."""
        streams = self._opened_streams
        return self.settings.stream_commit_interval if streams is not None and streams.follows(topic) else None

    # -- engines ------------------------------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The lake's Spark session, started on first use; tables are in the catalog `lake`."""
        return self._spark.session

    @property
    def spark_state(self) -> SparkState:
        """How far Spark is; asking does not start it."""
        return self._spark.state

    @property
    def query_worker_state(self) -> WorkerState:
        """How far the query worker is, `off` if queries run in this process; asking does not start it."""
        if not self._queries_apart:
            return "off"
        return "not started" if self._opened_worker is None else self._opened_worker.state

    def _set_queries_apart(self) -> None:
        check_cores(self.settings.spark_master, self.settings.spark_conf)
        self._queries_apart = True

    def _query_worker(self) -> QueryWorker | None:
        if not self._queries_apart:
            return None
        from headwater.engine.query_worker import worker_config

        with self._lock:
            if self._opened_worker is None:
                self._opened_worker = QueryWorker(
                    partial(worker_config, self.paths, self.settings),
                    self.paths.scratch,
                    max_scratch_bytes=self.settings.query_max_scratch_bytes,
                    on_replace=lambda reason: self.metrics.query_worker_restarts.labels(reason).inc(),
                )
            return self._opened_worker

    def _duck(self) -> Duck:
        with self._lock:
            if self._opened_duck is None:
                self._opened_duck = Duck(
                    self.paths.warehouse,
                    self.settings.query_memory,
                    self.paths.scratch,
                    verify=self.settings.verify_checksums,
                    max_scratch=self.settings.query_max_scratch_bytes,
                )
            return self._opened_duck

    @property
    def view_room(self) -> ViewRoom:
        """What keeps the views, opened on first use: a lake without any does not pay for it."""
        from headwater.engine.view_room import ViewRoom

        with self._lock:
            if self._opened_views is None:
                self._opened_views = ViewRoom(
                    self.paths,
                    self.settings,
                    self.topics,
                    self.views,
                    self.log,
                    self._intake,
                    lambda: self.spark,
                    self.metrics,
                    lambda: self.streams,
                    self._queries.check,
                    self._manifests,
                )
            return self._opened_views

    @property
    def streams(self) -> StreamRoom:
        """Streams and what runs for them, opened on first use."""
        from headwater.engine.stream_room import open_streams

        room = self.view_room
        with self._lock:
            if self._opened_streams is None:
                self._opened_streams = open_streams(
                    self.paths,
                    self.settings,
                    room,
                    lambda: self.spark,
                    self._topic_statements.run,
                    self._intake,
                    self.log,
                    lambda: self.spark_state,
                )
            return self._opened_streams

    @property
    def parquet(self) -> ParquetStatements:
        """What answers statements about a topic's files, opened on first use."""
        from headwater.engine.parquet import ParquetStatements

        with self._lock:
            if self._opened_parquet is None:
                self._opened_parquet = ParquetStatements(
                    self.topics, self.usage, self._manifests, self._topic_statements.run
                )
            return self._opened_parquet

    @property
    def care(self) -> Care:
        """What takes care of tables, opened on first use."""
        from headwater.engine.care import Care

        with self._lock:
            if self._opened_care is None:
                self._opened_care = Care(
                    self.paths,
                    self.settings,
                    self.topics,
                    self.views,
                    lambda: self.spark,
                    self.metrics,
                    self._manifests,
                )
            return self._opened_care

    # -- statements ---------------------------------------------------------------------------------------------

    def sql(self, text: str, **options: Any) -> Result:
        """Run one statement of any kind; `options` (engine, tail, max_rows, timeout) are a query's."""
        return self.execute(parse(text, **options))

    def script(self, text: str) -> list[Result]:
        """Run statements separated by semicolons, each finished before the next begins."""
        results = []
        for statement in parse_script(text):
            result = self.execute(statement)
            result.arrow()
            results.append(result)
        return results

    def execute(self, statement: Statement, cancel: Cancel | None = None) -> Result:
        """Run a statement value: the one path that every surface takes."""
        with named_system_errors():
            try:
                return self._execute(statement, cancel)
            except TopicNotFound:  # it may be a stream of another name than its topic
                known = expanded(statement, Streams(self.topics).named)
                if known is None:
                    raise
                return self._execute(known, cancel)

    def _execute(self, statement: Statement, cancel: Cancel | None) -> Result:
        if isinstance(statement, ViewStatement):
            return self.view_room.statements.run(statement)
        if isinstance(statement, StreamStatement):
            return self.streams.run(statement)
        if isinstance(statement, SnapshotStatement):
            return self._snapshot_statements.run(statement)
        if isinstance(statement, TopicStatement):
            return self._topic_statements.run(statement)
        if isinstance(statement, CareStatement):
            return self.care.run(statement, cancel)
        if isinstance(statement, ParquetStatement):
            return self.parquet.run(statement)
        match statement:
            case Query():
                self._note_long_read(statement)
                return self._queries.run(statement, cancel)
            case Explain(query, analyze):
                self._note_long_read(query)
                return self._queries.explain(query, analyze=analyze, cancel=cancel)
            case DeleteRows() | UpdateRows():
                return self._row_statements.run(statement, cancel)
            case _:
                assert_never(statement)

    def _note_long_read(self, query: Query) -> None:
        """Files that maintenance has to delete wait for as long as queries usually may run, or as is said here."""
        if query.timeout is not None and query.timeout > self.settings.query_timeout:
            with suppress(Unavailable):  # a full disk, or a lake that cannot be written: reading goes on
                self.care.note_read(query.timeout)

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> LocalTopic:
        """The topic `name`, which must exist."""
        return LocalTopic(self, self.topics.load(name).name)

    def create_topic(self, definition: TopicDefinition, *, if_not_exists: bool = False) -> LocalTopic:
        """Create a topic from a definition value."""
        self.execute(CreateTopic(definition, if_not_exists))
        return self.topic(definition.name)

    def alter_topic(self, name: str, *changes: str, dry_run: bool = False) -> Result:
        """Make changes such as "ADD COLUMN discount DOUBLE", all of them or none: what ALTER TOPIC takes."""
        return self.execute(alter_of(name, changes, dry_run=dry_run))

    def _matches_any(self, name: str, condition: str) -> bool:
        """Whether a committed row of the topic matches."""
        text = f"SELECT 1 FROM topics.`{name}` WHERE {condition} LIMIT 1"  # noqa: S608
        return bool(self._queries.run(Query(text, tail=False)).arrow().num_rows)

    def append(
        self,
        name: str,
        blocks: Iterable[Any],
        format: Format,
        source: Source,
        *,
        wait: bool = True,
        account: Account | None = None,
    ) -> Ack:
        """Store one request. In process, a full log is committed to the table first (setting auto_flush).

        The account hears how many bytes the records have before they are decoded, and may raise.
        """
        with named_system_errors():
            ack = self._intake.append(name, blocks, format, source, wait=wait, account=account)
        self.tailing.news.tell(name)
        return ack

    def tail(
        self,
        name: str,
        start: str | int | datetime = "latest",
        *,
        after: str | None = None,
        where: str | None = None,
        columns: Sequence[str] = (),
        follow: bool = True,
        limit: int | None = None,
    ) -> Tail:
        """The rows of a topic, or the changes of a view, as they come.

        `start` is earliest, latest, an offset (of a view: a snapshot), a time, or a duration ago; `after` is the mark
        `at` of an earlier tail. Without `follow` it ends when everything was given.
        """
        asked = tail_request(name, start, after=after, where=where, columns=columns)
        return Tail(self.tailing.follow(asked), self.tailing.news, asked.name, follow=follow, limit=limit)

    def convert(
        self,
        name: str,
        paths: str | Path | Iterable[str | Path],
        *,
        format: FileFormat | None = None,
        dry_run: bool = False,
        progress: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> list[dict[str, Any]]:
        """Bring existing files, or those of folders, into a topic; what became of each. Each is stored whole or not at
        all, and only once; with `dry_run` they are only checked."""
        from headwater.engine.parquet import convert

        files = [paths] if isinstance(paths, str | Path) else paths
        return convert(self, name, files, format, dry_run=dry_run, progress=progress)

    def flush(self, name: str | None = None, progress: Callable[[Ingested], None] = lambda _: None) -> list[Ingested]:
        """Commit what waits in the log now."""
        with named_system_errors():
            return self._intake.flush(name, progress)

    # -- views --------------------------------------------------------------------------------------------------

    def view(self, name: str) -> ViewHandle:
        """The materialized view `name`, which must exist."""
        return ViewHandle(self, self.views.load(name).name)

    def create_view(
        self, name: str, query: str, *, or_replace: bool = False, if_not_exists: bool = False, **options: object
    ) -> ViewHandle:
        """Create a materialized view and compute it; `options` are those that WITH takes."""
        self.execute(CreateView(checked_view(name, query, options), or_replace, if_not_exists))
        return self.view(name)

    def refresh_view(
        self, statement: RefreshView, progress: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> Result:
        """Refresh a view, and those below it; `progress` hears of each plan before it is run."""
        return self.view_room.statements.refresh(statement, progress)

    # -- care ---------------------------------------------------------------------------------------------------

    def maintain(
        self, name: str | None = None, *, only: Sequence[MaintenanceStep] = (), dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Take care of a topic or a view, or of all tables; each step, with its outcome and what it did."""
        return list(self.execute(Maintain(name, checked_steps(only), dry_run)).info["steps"])

    def take_care(
        self,
        statement: Maintain | Optimize,
        progress: Callable[[dict[str, Any]], None] = lambda _: None,
        cancel: Cancel | None = None,
    ) -> Result:
        """Run the statement; `progress` hears of each step when it begins and while it goes on."""
        return self.care.run(statement, cancel, progress)

    def measure_tables(self) -> None:
        """Bring the metrics of what tables look like up to date, from metadata alone."""
        self.care.measure()

    def measure_streams(self) -> None:
        """Bring the metrics of how streams run up to date."""
        if self._opened_streams is not None or self.views.names():
            self.metrics.streams.measure(self.streams.status())

    def measure_views(self) -> None:
        """Bring the metrics of how far views are behind up to date, from metadata alone."""
        if self._opened_views is not None or self.views.names():
            self.view_room.measure()
