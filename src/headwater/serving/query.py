"""A query from text to result: plan it, route it, run it, and account for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import View, Views
from headwater.errors import QueryCancelled, QueryFailed, ResultTooLarge, TopicNotFound
from headwater.observability.metrics import Metrics
from headwater.serving.agreement import CHECK, Agreed, Mistake, Unproven, agree, scan_needs
from headwater.serving.duck import Duck
from headwater.serving.duck_files import unreadable
from headwater.serving.fresh import UnseenRows
from headwater.serving.metadata_answers import Wanted, answer, known, wanted
from headwater.serving.moment import Given, Moment, is_there
from headwater.serving.plan import QueryPlan, Scan, choose_engine, describe, render
from headwater.serving.result import Result
from headwater.serving.running import Begun, Known, Running, Stoppable
from headwater.serving.settled import Settling
from headwater.sql.cursor import located
from headwater.sql.names import Relation, normalise
from headwater.sql.statements import Query
from headwater.sql.windows import rewrite_windows
from headwater.storage.damage import name_damage
from headwater.storage.scan import ManifestCache
from headwater.topics.log import Log
from headwater.types import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.serving.run_spark import FreshFrame
    from headwater.spark.query_worker import QueryWorker

log = logging.getLogger(__name__)

HELD_ROWS = 200_000
EXPLAINED = pa.schema([pa.field("plan", pa.string())])


class Cancel:
    """Lets another thread stop a query, before or while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Stoppable | None = None
        self._asked = False

    def __call__(self) -> None:
        with self._lock:
            self._asked = True
            running = self._running
        if running is not None:
            running.cancel()

    def attach(self, running: Stoppable) -> None:
        with self._lock:
            self._running = running
            asked = self._asked
        if asked:
            running.cancel()

    def detach(self) -> None:
        """Let go of an engine that has ended, with all that it holds."""
        with self._lock:
            self._running = None

    @property
    def asked(self) -> bool:
        return self._asked

    def check(self) -> None:
        if self._asked:
            raise QueryCancelled("query was cancelled")


class Queries:
    """Answers reading statements over the topics and views of one lake.

    `before_read` is told, once per query and before anything is read, which views the query reads as they are now.
    `fresh_frame` gives a view's rows as they would be if it were refreshed now, as Spark's; `unseen` what they would be
    more than those stored, where that is simple enough for DuckDB. `used` hears what a query that runs needs. `worker`
    is where queries run on Spark, if not in this process.
    """

    def __init__(
        self,
        topics: Topics,
        views: Views,
        log: Log,
        duck: Callable[[], Duck],
        spark: Callable[[], SparkSession],
        metrics: Metrics,
        manifests: ManifestCache,
        *,
        duckdb_max_bytes: int,
        max_rows: int,
        timeout: float,
        max_result_bytes: int | None = None,
        stop_seconds: float = 5.0,
        worker: Callable[[], QueryWorker | None] = lambda: None,
        before_read: Callable[[Sequence[View]], None] | None = None,
        fresh_frame: FreshFrame | None = None,
        unseen: Callable[[str], UnseenRows | None] = lambda _: None,
        used: Callable[[Sequence[Scan]], None] = lambda _: None,
    ) -> None:
        self._topics = topics
        self._views = views
        self._before_read = before_read
        self._fresh_frame = fresh_frame
        self._unseen = unseen
        self._used = used
        self._log = log
        self._duck = duck
        self._spark = spark
        self._metrics = metrics
        self._duckdb_max_bytes = duckdb_max_bytes
        self._max_rows = max_rows
        self._timeout = timeout
        self._max_result_bytes = max_result_bytes
        self._stop_seconds = stop_seconds
        self._worker = worker
        self._manifests = manifests
        self._settling = Settling(self._manifests, lambda *asked: self._duck().verify(*asked))

    def _plan(self, query: Query, cancel: Cancel | None, given: Given | None = None) -> tuple[QueryPlan, Moment]:
        """Where the query would run now, on which files and offsets, and why; and the tables as it sees them.

        Without `cancel` it is not going to run.
        """
        named = normalise(rewrite_windows(query.text))
        if cancel is not None and self._before_read is not None:
            self._before_read(self._current_views(named.relations))
        moment = Moment(
            self._topics,
            self._log,
            self._manifests,
            tail=query.tail,
            views=self._views,
            relations=named.relations,
            given=given,
        )
        for relation in named.relations:
            if relation.kind != "any":  # mv('v') and topic('t') are nothing else: what is not there is told at once
                moment.at(relation.alias_in_text)
        verdict = self._verdict(query, named.text, moment, cancel)
        needs = verdict.tables if isinstance(verdict, Agreed) else scan_needs(named.text, moment)
        scans = tuple(moment.scan(name, need) for name, need in needs.items())
        if isinstance(verdict, Agreed) and (why := _unreadable(scans)) is not None:
            verdict = Unproven(why)
        asks = _asked_of_metadata(named.text, scans) if isinstance(verdict, Agreed) else None
        answerable = asks is not None and known(asks, scans[0].files.files, scans[0].schema)
        to_read = sum(scan.bytes for scan in scans)
        engine, reason = choose_engine(query.engine, verdict, answerable, to_read, self._duckdb_max_bytes)
        agreed = verdict if isinstance(verdict, Agreed) else None
        return QueryPlan(named.text, engine, reason, scans, agreed), moment

    def _verdict(self, query: Query, text: str, moment: Moment, cancel: Cancel | None) -> Agreed | Unproven:
        for alias, name in moment.fresh.items():
            if self._fresh_frame is None:
                raise QueryFailed(
                    f'materialized view "{name}" cannot be read fresh here',
                    hint=f"Refresh it and read it as it is: REFRESH MATERIALIZED VIEW {name}.",
                )
            reason = "asked for" if query.engine == "spark" else self._freshened(query, alias, name, moment, cancel)
            if reason is not None:
                return Unproven(f'what view "{name}" has not consumed is computed by Spark: {reason}')
        if query.engine != "spark":
            self._settle(query, moment, cancel)
        verdict = _judged(query, text, agree(text, moment))
        if isinstance(verdict, Unproven):
            moment.unsettle()
        return verdict

    def _settle(self, query: Query, moment: Moment, cancel: Cancel | None) -> None:
        """Let views be read as if they were folded, where what was appended to them is small."""

        def run(plan: QueryPlan) -> pa.Table:
            return self._rows(plan, query, cancel)

        for name, at in moment.views():
            try:
                settled = self._settling.settle(at.view, at.snapshot_id, at.rows, run)
            except (QueryFailed, pa.ArrowException) as failed:
                if isinstance(failed, QueryFailed) and type(failed) is not QueryFailed:  # it was stopped
                    raise
                log.info("view is folded in every read", extra={"view": at.view.name, "reason": str(failed)})
                continue
            if settled is not None:
                moment.settle(name, settled)

    def _freshened(self, query: Query, alias: str, name: str, moment: Moment, cancel: Cancel | None) -> str | None:
        """Put beside a view what it has not consumed, as far as the query is going to run; or why only Spark can."""
        unseen = self._unseen(name)
        if unseen is None:
            return "it takes more than appending what follows from new rows"
        plan = unseen.plan()
        if plan is None:
            return None
        if plan.engine != "duckdb":
            return plan.reason
        if plan.bytes > self._duckdb_max_bytes:
            return "it is more than duckdb_max_bytes"
        try:
            rows = self._rows(plan, query, cancel) if cancel is not None else None
            moment.freshen(alias, unseen.beside(rows))
        except pa.ArrowException as failed:
            return str(failed)
        except QueryFailed as failed:
            if type(failed) is not QueryFailed:  # it was stopped
                raise
            return _said(failed)
        return None

    def _rows(self, plan: QueryPlan, query: Query, cancel: Cancel | None) -> pa.Table:
        running = self._duck().run(plan, query.timeout or self._timeout)
        if cancel is not None:
            cancel.attach(running)
        return pa.Table.from_batches(running.batches(), running.schema)

    def _current_views(self, relations: Sequence[Relation]) -> list[View]:
        """The views that a query reads as they are now, each once."""
        now = [each.name for each in relations if each.kind != "topic" and each.alias_in_text == each.name]
        tables = self._views.tables
        return [self._views.load(name) for name in dict.fromkeys(now) if is_there(tables, TableName.view(name))]

    def check(self, text: str) -> None:
        """Raise what is surely wrong with the names in a query that is not run now; Spark tells of the rest."""
        named = normalise(rewrite_windows(text))
        moment = Moment(
            self._topics, self._log, self._manifests, tail=False, views=self._views, relations=named.relations
        )
        _judged(Query(text), named.text, agree(named.text, moment))

    def explain(self, query: Query, *, analyze: bool = False, cancel: Cancel | None = None) -> Result:
        """The plan as lines of text, with what running it took if asked; as plain data in the result's `info`."""
        plan, moment = self._plan(query, (cancel or Cancel()) if analyze else None)
        if not analyze:
            return _explained(render(describe(plan)), describe(plan))
        begun = time.perf_counter()
        plan, running = self._start(plan, moment, query, cancel or Cancel())
        described = _described(plan, running)
        rows = sum(batch.num_rows for batch in self._counted(running, plan, moment, begun, query.max_rows))
        seconds = time.perf_counter() - begun
        ran = f"ran: {rows} result row{'' if rows == 1 else 's'} in {seconds * 1000:.1f} ms"
        return _explained([*render(described), ran], {**described, "result_rows": rows, "seconds": seconds})

    def run(self, query: Query, cancel: Cancel | None = None, given: Given | None = None) -> Result:
        """The query's result, streaming; what its `info` says about the engine is final.

        What is `given` is read in place of the lake's, and what a query needs of that is nobody's advice.
        """
        begun = time.perf_counter()
        cancel = cancel or Cancel()
        plan, moment = self._plan(query, cancel, given)
        cancel.check()
        if given is None:
            self._used(plan.scans)
        plan, running = self._start(plan, moment, query, cancel, given)
        return Result(
            running.schema,
            self._counted(running, plan, moment, begun, query.max_rows),
            max_rows=query.max_rows or self._max_rows,
            info={"plan": _described(plan, running)},
            close=running.close,
            spark=self._spark,
        )

    def _start(
        self, plan: QueryPlan, moment: Moment, query: Query, cancel: Cancel, given: Given | None = None
    ) -> tuple[QueryPlan, Running]:
        """The query on its engine, and the plan that it really runs by.

        DuckDB has given its first rows by then. If it raises instead, Spark is asked: only Spark's errors are the right
        ones. Where the SQL checks values and may raise at any row, more rows are awaited.
        """
        try:
            return plan, self._started(plan, moment, query, cancel, given)
        except Exception as failed:
            if plan.engine != "duckdb" or type(failed) is not QueryFailed or moment.parts:
                self._metrics.queries.labels(plan.engine, _outcome(failed)).inc()
                raise
            reason = f"duckdb raised: {_said(failed)}"
        log.info("duckdb raised, spark is asked", extra={"reason": reason})
        return self._start(replace(plan, engine="spark", reason=reason), moment, query, cancel, given)

    def _started(self, plan: QueryPlan, moment: Moment, query: Query, cancel: Cancel, given: Given | None) -> Running:
        match plan.engine:
            case "metadata":
                return _from_metadata(plan)
            case "duckdb":
                return self._start_duck(plan, query.timeout or self._timeout, cancel)
            case "spark":
                worker = self._worker()
                if worker is not None:
                    return self._start_in_worker(worker, query, cancel, given)
                return self._start_spark(plan, moment, query, cancel)

    def _start_duck(self, plan: QueryPlan, timeout: float, cancel: Cancel) -> Running:
        assert plan.agreed is not None
        running: Running = self._duck().run(plan, timeout)
        cancel.attach(running)
        return Begun(running, HELD_ROWS if plan.agreed.checked else 0)

    def _start_spark(self, plan: QueryPlan, moment: Moment, query: Query, cancel: Cancel) -> Running:
        from headwater.serving.run_spark import SparkRun

        session = self._spark()
        cancel.check()
        try:
            running: Running = SparkRun(
                session,
                plan,
                moment,
                query.timeout or self._timeout,
                f"headwater-query-{uuid4().hex}",
                self._fresh_frame,
                max_rows=query.max_rows,
                max_bytes=self._max_result_bytes,
            )
        except Exception as failed:
            if (error := name_damage(failed, moment.tables())) is failed:
                raise
            raise error from failed
        cancel.attach(running)
        return running

    def _start_in_worker(self, worker: QueryWorker, query: Query, cancel: Cancel, given: Given | None) -> Running:
        from headwater.serving.run_worker import WorkerRun

        running = WorkerRun(worker, query, given, query.timeout or self._timeout, self._stop_seconds)
        cancel.attach(running)  # before it begins: planning alone may take for ever
        running.begin(cancel.check)
        return running

    def _counted(
        self, running: Running, plan: QueryPlan, moment: Moment, begun: float, max_rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        outcome, rows = "ok", 0
        try:
            for batch in running.batches():
                yield batch
                rows += batch.num_rows
                if max_rows is not None and rows > max_rows:  # a Result that is held as a whole has raised by now
                    hint = "Add a LIMIT, or raise max_rows."
                    raise ResultTooLarge(f"result has more than {max_rows} rows", hint=hint)
        except BaseException as failed:
            outcome = _outcome(failed)
            if plan.engine != "spark" or not isinstance(failed, Exception):
                raise
            if (error := name_damage(failed, moment.tables())) is failed:
                raise
            raise error from failed
        finally:
            self._metrics.queries.labels(plan.engine, outcome).inc()
            self._metrics.query_seconds.labels(plan.engine).observe(time.perf_counter() - begun)


def _judged(query: Query, text: str, verdict: Agreed | Mistake | Unproven) -> Agreed | Unproven:
    """The verdict, unless it is the user's mistake; Spark tells a column's itself when it was asked for."""
    if not isinstance(verdict, Mistake):
        return verdict
    error, start, end = verdict.error, verdict.start, verdict.end
    if query.engine == "spark" and not isinstance(error, TopicNotFound):
        return Unproven(error.message)
    # The rewritten text keeps every place of the one that was written, unless something in it became longer.
    moved = len(text) != len(query.text)
    raise error if start is None or end is None or moved else located(error, query.text, start, end)


def _unreadable(scans: Sequence[Scan]) -> str | None:
    """Why DuckDB cannot read one of the scans; None if it can read all of them."""
    return next((why for scan in scans if (why := unreadable(scan)) is not None), None)


def _asked_of_metadata(text: str, scans: Sequence[Scan]) -> tuple[Wanted, ...] | None:
    """What a query asks of the metadata of the one topic that it reads, if that is all it asks."""
    if len(scans) != 1 or not isinstance(scans[0].of, Topic) or scans[0].changed is not None:
        return None
    return wanted(text, scans[0].schema)


def _from_metadata(plan: QueryPlan) -> Running:
    asks = _asked_of_metadata(plan.text, plan.scans)
    assert plan.agreed is not None
    assert asks is not None
    return Known(answer(asks, plan.scans[0], plan.agreed))


def _described(plan: QueryPlan, running: Running) -> Mapping[str, Any]:
    """The plan that runs as plain data; the query worker reads tables at a moment of its own, and says at which."""
    ran = getattr(running, "plan", None)
    return describe(plan) if ran is None else {**ran, "engine": plan.engine, "reason": plan.reason}


def _explained(lines: Sequence[str], info: Mapping[str, Any]) -> Result:
    return Result.of_rows(EXPLAINED, [{"plan": line} for line in lines], info={"plan": info})


def _said(failed: QueryFailed) -> str:
    """What DuckDB objects to; of a check that our SQL made, only what the check says."""
    said = failed.detail or failed.message
    return said.partition(CHECK)[2].partition("'")[0] or said.rstrip(".")


def _outcome(failed: BaseException) -> str:
    if isinstance(failed, GeneratorExit):
        return "closed"
    return "cancelled" if isinstance(failed, QueryCancelled) else "failed"
