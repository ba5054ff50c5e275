"""The composition root: a statement goes in, a room answers, a result comes out."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, assert_never

import pyarrow as pa

from headwater.catalog.iceberg import Tables, create_catalog_file, file_location, open_catalog
from headwater.catalog.topics import Topic, Topics
from headwater.config import LakePaths, Settings, load_settings
from headwater.errors import Backpressure, LakeExists, RecordsRejected, TopicExists, TopicNotFound
from headwater.observability.metrics import Metrics
from headwater.serving.duck import Duck
from headwater.serving.query import Cancel, Queries
from headwater.serving.result import Result
from headwater.spark.session import PRELOAD, SparkEngine, SparkSettings, SparkState, start
from headwater.sql.definition import notices
from headwater.sql.parse import parse, parse_script
from headwater.sql.statements import (
    CreateTopic,
    DescribeTopic,
    DropTopic,
    Explain,
    FlushTopic,
    Query,
    ShowTopics,
    Statement,
)
from headwater.state.leases import Leases, open_state
from headwater.storage.writer import local_path
from headwater.topics.dead_letters import dead_definition
from headwater.topics.describe import description, summary
from headwater.topics.ingest import Ingested, Ingester, log_topic
from headwater.topics.ingest_loop import IngestLoop, record
from headwater.topics.log_sqlite import SqliteLog
from headwater.topics.produce import Ack, Format, Producer, Source
from headwater.types import DEAD_SUFFIX, TOPICS, TopicDefinition

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

CONFIG_TEXT = """\
# Settings of this lake; docs/reference/settings.md lists them all.
# HEADWATER_* variables override them.
"""

_TOPICS = pa.schema(
    {
        "topic": pa.string(),
        "records": pa.int64(),
        "tail": pa.int64(),
        "files": pa.int64(),
        "bytes": pa.int64(),
        "description": pa.string(),
    }
)
_COLUMNS = pa.schema({"column": pa.string(), "type": pa.string(), "nullable": pa.bool_(), "comment": pa.string()})
_DONE = pa.schema({"status": pa.string()})
_FLUSHED = pa.schema(
    {
        "topic": pa.string(),
        "records": pa.int64(),
        "files": pa.int64(),
        "bytes": pa.int64(),
        "seconds": pa.float64(),
        "snapshot": pa.int64(),
    }
)


class Lake:
    """An open lake. Threads may share it; several processes may open the same folder."""

    def __init__(self, paths: LakePaths, settings: Settings) -> None:
        self.paths = paths
        self.settings = settings
        self.metrics = Metrics()
        self._lock = threading.Lock()
        self._loop: IngestLoop | None = None
        self._spark = SparkEngine(self._start_spark)
        self._opened_duck: Duck | None = None
        self._closed = False
        self._tables = Tables(open_catalog(paths.catalog, paths.warehouse, settings.busy_timeout))
        self.topics = Topics(self._tables)
        self.log = SqliteLog(
            paths.state,
            busy_timeout=settings.busy_timeout,
            max_tail_bytes=settings.max_tail_bytes,
            producer_horizon=settings.producer_horizon,
        )
        self._producer = Producer(
            self.topics, self.log, max_rejects=settings.max_reported_rejects, max_body_bytes=settings.max_body_bytes
        )
        self._ingester = Ingester(
            self.topics, self.log, paths.state, lambda: self.spark, max_bytes=settings.ingest_max_bytes
        )
        self._queries = Queries(
            self.topics,
            self.log,
            self._duck,
            lambda: self.spark,
            self.metrics,
            duckdb_max_bytes=settings.duckdb_max_bytes,
            max_rows=settings.query_max_rows,
            timeout=settings.query_timeout,
        )

    # -- life ---------------------------------------------------------------------------------------------------

    @classmethod
    def init(cls, path: str | Path, **settings: Any) -> Self:
        """Create a lake in the folder `path` (made if missing) and open it; LakeExists if there is one."""
        paths = LakePaths(Path(path).resolve())
        if paths.config.exists():
            raise LakeExists(f'"{path}" is a lake already', hint=f"Open it: `headwater -C {path} ...`.")
        paths.warehouse.mkdir(parents=True, exist_ok=True)
        loaded = load_settings(None, **settings)
        create_catalog_file(paths.catalog, loaded.busy_timeout)
        catalog = open_catalog(paths.catalog, paths.warehouse, loaded.busy_timeout)
        catalog.create_namespace_if_not_exists(TOPICS)
        catalog.close()
        paths.config.write_text(CONFIG_TEXT)  # last: a folder with this file is a complete lake
        return cls(paths, loaded)

    @classmethod
    def open(cls, path: str | Path = ".", **settings: Any) -> Self:
        """Open the lake in the folder `path`."""
        paths = LakePaths.existing(path)
        return cls(paths, load_settings(paths.config, **settings))

    def close(self) -> None:
        """Stop background work, Spark and the log. What was acknowledged is on disk already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._loop is not None:
            self._loop.stop()
        self._spark.stop()
        if self._opened_duck is not None:
            self._opened_duck.close()
        self.log.close()
        self._tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spark(self) -> SparkSession:
        """The lake's Spark session, started on first use; tables are in the catalog `lake`."""
        return self._spark.session

    @property
    def spark_state(self) -> SparkState:
        """How far Spark is; asking does not start it."""
        return self._spark.state

    def _start_spark(self) -> SparkSession:
        from headwater.spark.java import find_java
        from headwater.spark.packages import ensure_packages

        settings = SparkSettings(
            warehouse=file_location(self.paths.warehouse),
            catalog_uri=f"jdbc:sqlite:file:{self.paths.catalog}?busy_timeout=30000&journal_mode=WAL",
            scratch=self.paths.scratch,
            master=self.settings.spark_master,
            driver_memory=self.settings.spark_memory,
            preload=(*PRELOAD, "headwater.topics.ingest", "headwater.topics.log_entries", "headwater.state.sqlite"),
            extra=self.settings.spark_conf,
        )
        return start(settings, ensure_packages(self.settings.cache, _say, find_java()))

    def _duck(self) -> Duck:
        with self._lock:
            if self._opened_duck is None:
                self._opened_duck = Duck(self.paths.warehouse, self.settings.query_memory, self.paths.scratch)
            return self._opened_duck

    # -- statements ---------------------------------------------------------------------------------------------

    def sql(self, text: str, **options: Any) -> Result:
        """Run one statement of any kind; `options` (engine, tail, max_rows, timeout) are a query's."""
        statement = parse(text)
        if isinstance(statement, Query) and options:
            from dataclasses import replace

            statement = replace(statement, **options)
        return self.execute(statement)

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
        match statement:
            case Query():
                return self._queries.run(statement, cancel)
            case Explain(query, analyze):
                return self._queries.explain(query, analyze=analyze, cancel=cancel)
            case CreateTopic(definition, if_not_exists):
                return self._create(definition, if_not_exists)
            case DropTopic(name, if_exists):
                return self._drop(name, if_exists)
            case ShowTopics():
                return Result.of_rows(_TOPICS, [summary(topic, self.log) for topic in self.topics.all()])
            case DescribeTopic(name):
                return self._describe(name)
            case FlushTopic(name):
                return self._flushed([done for each in self._named(name) for done in self.flush(each)])
            case _:
                assert_never(statement)

    def _create(self, definition: TopicDefinition, if_not_exists: bool) -> Result:
        name = definition.name
        try:
            if definition.options.on_invalid == "dead_letter":
                self._create_dead(name)
            self.topics.create(definition)
        except TopicExists:
            if not if_not_exists:
                raise
            return _done(f'topic "{name}" exists already')
        return _done(f'topic "{name}" created', notices(definition))

    def _create_dead(self, name: str) -> None:
        # Before the topic itself: a topic that promises dead letters always has them.
        if not self.topics.exists(name) and not self.topics.exists(name + DEAD_SUFFIX):
            self.topics.create(dead_definition(name))

    def _drop(self, name: str, if_exists: bool) -> Result:
        try:
            self._drop_one(self.topics.load(name))
        except TopicNotFound:
            if not if_exists:
                raise
            return _done(f'topic "{name}" does not exist')
        if self.topics.exists(name + DEAD_SUFFIX):
            self._drop_one(self.topics.load(name + DEAD_SUFFIX))
        return _done(f'topic "{name}" dropped')

    def _drop_one(self, topic: Topic) -> None:
        self.topics.drop(topic.name)
        self.log.drop(log_topic(topic))
        shutil.rmtree(local_path(topic.table.location()), ignore_errors=True)

    def _describe(self, name: str) -> Result:
        about = description(self.topics.load(name), self.log)
        rows = [{**column, "column": column["name"]} for column in about["columns"]]
        return Result.of_rows(_COLUMNS, [{key: row[key] for key in _COLUMNS.names} for row in rows], info=about)

    def _flushed(self, done: Sequence[Ingested]) -> Result:
        rows = [
            {
                "topic": each.topic,
                "records": len(each.offsets),
                "files": each.files,
                "bytes": each.bytes,
                "seconds": round(each.seconds, 3),
                "snapshot": each.snapshot_id,
            }
            for each in done
        ]
        return Result.of_rows(_FLUSHED, rows)

    def _named(self, name: str | None) -> list[str]:
        return [name] if name is not None else [topic.name for topic in self.topics.all()]

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicHandle:
        """The topic `name`, which must exist."""
        return TopicHandle(self, self.topics.load(name).name)

    def create_topic(self, definition: TopicDefinition, *, if_not_exists: bool = False) -> TopicHandle:
        """Create a topic from a definition value."""
        self.execute(CreateTopic(definition, if_not_exists))
        return self.topic(definition.name)

    def append(self, name: str, blocks: Iterable[Any], format: Format, source: Source, *, wait: bool = True) -> Ack:
        """Store one request. In process, a full log is committed to the table first (setting auto_flush)."""
        started = time.perf_counter()
        blocks = list(blocks) if wait and self.settings.auto_flush else blocks
        try:
            ack = self._producer.append(name, blocks, format, source)
        except RecordsRejected as rejected:
            self.metrics.rejected.labels(name).inc(rejected.data.get("rejected", 0))
            raise
        except Backpressure:
            self.metrics.backpressure.inc()
            if not (wait and self.settings.auto_flush):
                raise
            self.flush()
            ack = self._producer.append(name, blocks, format, source)
        self.metrics.append_seconds.observe(time.perf_counter() - started)
        self._count(ack)
        return ack

    def _count(self, ack: Ack) -> None:
        if ack.repeated:
            self.metrics.repeated.labels(ack.topic).inc()
            return
        self.metrics.records.labels(ack.topic).inc(ack.rows)
        if ack.duplicates:
            self.metrics.duplicates.labels(ack.topic).inc(ack.duplicates)
        if ack.dead:
            self.metrics.dead.labels(ack.topic).inc(ack.dead)

    def flush(self, name: str | None = None, progress: Callable[[Ingested], None] = lambda _: None) -> list[Ingested]:
        """Commit what waits in the log now."""

        if name is None:
            self._forget_dropped()

        def counted(done: Ingested) -> None:
            record(self.metrics, done)
            progress(done)

        return [done for each in self._named(name) for done in self._ingester.drain(each, counted)]

    def _forget_dropped(self) -> None:
        """Drop from the log what a crash in DROP TOPIC left there."""
        waiting = self.log.waiting()  # before the catalog is read: a topic is there before its first record is here
        known = {topic.id for topic in self.topics.all()} if waiting else set()
        for topic in waiting:
            if topic.id not in known:
                self.log.drop(topic)

    def start_ingest(self) -> None:
        """Ingest in the background until the lake is closed: what `headwater serve` does."""
        self._forget_dropped()
        holder = f"{socket.gethostname()}:{os.getpid()}:{id(self)}"
        engine = open_state(self.paths.state, self.settings.busy_timeout)
        leases = Leases(engine, holder, self.settings.lease_ttl)
        self._loop = IngestLoop(
            self.topics,
            self.log,
            self._ingester,
            leases,
            self.metrics,
            poll=self.settings.ingest_poll,
            ttl=self.settings.lease_ttl,
        )
        self._loop.start()


class TopicHandle:
    """A topic of an open lake."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self.name = name

    def append(
        self,
        records: bytes | str | Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch | pd.DataFrame,
        *,
        producer: str | None = None,
        sequence: int = 0,
    ) -> Ack:
        """Store NDJSON, dicts, Arrow or pandas; return when it is on disk. A retry with the same producer and
        sequence is stored once."""
        format, block = _block(records)
        return self._lake.append(self.name, [block], format, Source("python", producer, sequence))

    def flush(self) -> list[Ingested]:
        """Commit what waits in the log to the table now."""
        return self._lake.flush(self.name)

    def describe(self) -> dict[str, Any]:
        """Everything about the topic, as plain data."""
        return description(self._lake.topics.load(self.name), self._lake.log)

    def __repr__(self) -> str:
        return f"<topic {self.name}>"


def _block(records: Any) -> tuple[Format, Any]:
    if isinstance(records, str):
        return "ndjson", records.encode()
    if isinstance(records, bytes | bytearray | memoryview):
        return "ndjson", bytes(records)
    if isinstance(records, pa.Table | pa.RecordBatch):
        return "arrow", records
    if hasattr(records, "columns") and hasattr(records, "dtypes"):
        return "pandas", records
    return "rows", [records] if isinstance(records, Mapping) else list(records)


def _say(line: str) -> None:
    """A line of progress for work that happens once on a machine: fetching JVM packages."""
    sys.stderr.write(f"headwater: {line}\n")


def _done(status: str, notices: Sequence[str] = ()) -> Result:
    return Result.of_rows(_DONE, [{"status": status}], notices=notices)
