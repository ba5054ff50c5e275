"""A query from text to result: plan it, route it, run it, and account for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import pyarrow as pa

from headwater.catalog.topics import Topics
from headwater.errors import HeadwaterError, QueryCancelled, QueryFailed
from headwater.observability.metrics import Metrics
from headwater.serving.agreement import Agreed, agree, scan_needs
from headwater.serving.duck import Duck
from headwater.serving.metadata_answers import answer, known, wanted
from headwater.serving.moment import Moment
from headwater.serving.plan import QueryPlan, choose_engine, describe, render
from headwater.serving.result import Result
from headwater.sql.names import normalise_topics
from headwater.sql.statements import Query
from headwater.storage.scan import ManifestCache
from headwater.topics.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

HELD_ROWS = 200_000
EXPLAINED = pa.schema([pa.field("plan", pa.string())])


class Running(Protocol):
    """A query that an engine runs."""

    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Cancel:
    """Lets another thread stop a query, before or while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._asked = False

    def __call__(self) -> None:
        with self._lock:
            self._asked = True
            running = self._running
        if running is not None:
            running.cancel()

    def attach(self, running: Running) -> None:
        with self._lock:
            self._running = running
            asked = self._asked
        if asked:
            running.cancel()

    def check(self) -> None:
        if self._asked:
            raise QueryCancelled("query was cancelled")


class Queries:
    """Answers reading statements over the topics of one lake."""

    def __init__(
        self,
        topics: Topics,
        log: Log,
        duck: Callable[[], Duck],
        spark: Callable[[], SparkSession],
        metrics: Metrics,
        *,
        duckdb_max_bytes: int,
        max_rows: int,
        timeout: float,
    ) -> None:
        self._topics = topics
        self._log = log
        self._duck = duck
        self._spark = spark
        self._metrics = metrics
        self._duckdb_max_bytes = duckdb_max_bytes
        self._max_rows = max_rows
        self._timeout = timeout
        self._manifests = ManifestCache()

    def _plan(self, query: Query) -> tuple[QueryPlan, Moment]:
        """Where the query would run now, on which files and offsets, and why; and the topics as it sees them."""
        text = normalise_topics(query.text)
        moment = Moment(self._topics, self._log, self._manifests, tail=query.tail)
        verdict = agree(text, moment)
        if moment.missing:
            raise next(iter(moment.missing.values()))
        needs = verdict.tables if isinstance(verdict, Agreed) else scan_needs(text, moment)
        scans = tuple(moment.scan(name, need) for name, need in needs.items())
        asks = wanted(text, scans[0].topic.schema) if isinstance(verdict, Agreed) and len(scans) == 1 else None
        answerable = asks is not None and known(asks, scans[0].files.files, scans[0].topic.schema)
        to_read = sum(scan.bytes for scan in scans)
        engine, reason = choose_engine(query.engine, verdict, answerable, to_read, self._duckdb_max_bytes)
        agreed = verdict if isinstance(verdict, Agreed) else None
        return QueryPlan(text, engine, reason, scans, agreed), moment

    def explain(self, query: Query, *, analyze: bool = False, cancel: Cancel | None = None) -> Result:
        """The plan as lines of text, with what running it took if asked; as plain data in the result's `info`."""
        plan, moment = self._plan(query)
        lines, info = render(plan), describe(plan)
        if analyze:
            started = time.perf_counter()
            running = self._start(plan, moment, query, cancel or Cancel())
            rows = sum(batch.num_rows for batch in self._counted(running, plan, started))
            info |= {"result_rows": rows, "seconds": time.perf_counter() - started}
            lines.append(f"ran: {rows} result row{'' if rows == 1 else 's'} in {info['seconds'] * 1000:.1f} ms")
        return Result.of_rows(EXPLAINED, [{"plan": line} for line in lines], info={"plan": info})

    def run(self, query: Query, cancel: Cancel | None = None) -> Result:
        """The query's result, streaming."""
        started = time.perf_counter()
        cancel = cancel or Cancel()
        plan, moment = self._plan(query)
        cancel.check()
        try:
            running = self._start(plan, moment, query, cancel)
        except HeadwaterError:
            self._metrics.queries.labels(plan.engine, "failed").inc()
            raise
        return Result(
            running.schema,
            self._counted(running, plan, started),
            max_rows=query.max_rows or self._max_rows,
            info={"plan": describe(plan)},
            close=running.close,
            spark=self._spark,
        )

    def _start(self, plan: QueryPlan, moment: Moment, query: Query, cancel: Cancel) -> Running:
        timeout = query.timeout or self._timeout
        match plan.engine:
            case "metadata":
                assert plan.agreed is not None
                asks = wanted(plan.text, plan.scans[0].topic.schema)
                assert asks is not None
                return _Known(answer(asks, plan.scans[0], plan.agreed))
            case "duckdb":
                running: Running = self._duck().run(plan, timeout)
                cancel.attach(running)
                assert plan.agreed is not None
                return _OrSpark(running, plan.agreed.checked, lambda: self._start_spark(plan, moment, timeout, cancel))
            case "spark":
                return self._start_spark(plan, moment, timeout, cancel)

    def _start_spark(self, plan: QueryPlan, moment: Moment, timeout: float, cancel: Cancel) -> Running:
        from headwater.serving.run_spark import SparkRun

        session = self._spark()
        cancel.check()
        running: Running = SparkRun(session, plan.text, moment, timeout, f"headwater-query-{uuid4().hex}")
        cancel.attach(running)
        return running

    def _counted(self, running: Running, plan: QueryPlan, started: float) -> Iterator[pa.RecordBatch]:
        outcome = "failed"
        try:
            yield from running.batches()
            outcome = "ok"
        except GeneratorExit:
            outcome = "closed"
            raise
        except QueryCancelled:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.queries.labels(plan.engine, outcome).inc()
            self._metrics.query_seconds.labels(plan.engine).observe(time.perf_counter() - started)


class _Known:
    """A result that planning already had."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches()

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


class _OrSpark:
    """DuckDB's answer; Spark's if DuckDB raises before a row has left: only Spark's errors are the right ones.

    Where the SQL checks values and may raise at any row (`checked`), rows are held back, up to a number of them.
    """

    def __init__(self, duck: Running, checked: bool, spark: Callable[[], Running]) -> None:
        self.schema = duck.schema
        self._running = duck
        self._held_rows = HELD_ROWS if checked else 0
        self._spark = spark

    def batches(self) -> Iterator[pa.RecordBatch]:
        found = self._running.batches()
        try:
            held = list(_taken(found, self._held_rows))
        except QueryFailed as failed:
            if type(failed) is not QueryFailed:
                raise
            log.info("duckdb raised, spark is asked", extra={"reason": failed.detail or failed.message})
            self._running = self._spark()
            held, found = [], self._running.batches()
        yield from held
        yield from found

    def cancel(self) -> None:
        self._running.cancel()

    def close(self) -> None:
        self._running.close()


def _taken(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first batch, and more until there are `rows` rows."""
    seen = 0
    for batch in batches:
        yield batch
        seen += batch.num_rows
        if seen >= rows:
            return
