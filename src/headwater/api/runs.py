"""Queries of the service: so many at once, so many waiting, each with an id by which it is read or cancelled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from ulid import ULID

from headwater.api.models import RunStatus
from headwater.api.problems import unexpected_error
from headwater.errors import Backpressure, Conflict, HeadwaterError, QueryCancelled, QueryNotFound
from headwater.serving.query import Cancel
from headwater.serving.result import Result
from headwater.sql.statements import Explain, Query

log = logging.getLogger(__name__)

Reading = Query | Explain

WAITING_PER_SLOT = 8
KEEP_SECONDS = 600.0
KEEP_RUNS = 1000
KEEP_BYTES = 4 * 1024**3
KEEP_FILES = 128
"""Results on disk that are retained: each occupies a file descriptor."""
CLOSE_SECONDS = 10.0


class Sink(Protocol):
    """Where a query's batches go."""

    def open(self, result: Result) -> None: ...

    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> None: ...

    def fail(self, error: HeadwaterError) -> None: ...

    def stop(self, error: HeadwaterError) -> None:
        """Called by another thread than the rest: let nobody wait any longer."""
        ...

    def close(self) -> None: ...


class Run:
    """One query, from its submission until it is forgotten."""

    def __init__(self, id: str, sql: str, sink: Sink, ends_as: RunStatus) -> None:
        self.id = id
        self.sql = sql
        self.sink = sink
        self.status: RunStatus = "queued"
        self.submitted_at = datetime.now(UTC)
        self.row_count: int | None = None
        self.info: dict[str, Any] = {}
        self.notices: tuple[str, ...] = ()
        self.error: HeadwaterError | None = None
        self.ended: float | None = None
        self.future: Future[None] = Future()
        self._ends_as = ends_as
        self._began = time.monotonic()
        self._cancel = Cancel()

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self._began

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return int(getattr(self.sink, "bytes", 0)) if self.status == "finished" else 0

    @property
    def is_on_disk(self) -> bool:
        return bool(getattr(self.sink, "is_on_disk", False))

    def work(self, execute: Callable[[Reading, Cancel], Result], statement: Reading) -> None:
        """Run the query into its sink; every error ends up in `error`."""
        self.status = "running"
        try:
            self._cancel.check()
            result = execute(statement, self._cancel)
            try:
                self._pour(result)
            finally:
                result.close()
            self._end(self._ends_as)
        except Exception as failed:
            self._fail(*self._judged(failed))

    def _judged(self, failed: Exception) -> tuple[HeadwaterError, RunStatus]:
        """The error to tell; once a query is asked to stop, whatever its engine raises is the stop."""
        if not isinstance(failed, QueryCancelled):
            try:
                self._cancel.check()
            except QueryCancelled as cancelled:
                failed = cancelled
        if isinstance(failed, QueryCancelled):
            return failed, "cancelled"
        if isinstance(failed, HeadwaterError):
            return failed, "failed"
        return unexpected_error(failed, f"query {self.id}"), "failed"

    def _pour(self, result: Result) -> None:
        self.info, self.notices, self.row_count = dict(result.info), result.notices, 0
        self.sink.open(result)
        for batch in result.batches():
            self._cancel.check()
            self.sink.write(batch)
            self.row_count += batch.num_rows
        self._cancel.check()
        self.sink.finish()

    def cancel(self) -> None:
        """Stop the query, whether it waits or runs; nothing happens to one that has ended."""
        if self.ended is not None:
            return
        self.sink.stop(QueryCancelled("query was cancelled"))
        try:
            self._cancel()
        except Exception as late:  # the engine may have finished in the same moment
            log.info("query ended before it was cancelled", extra={"query": self.id, "error": str(late)})
        if self.future.cancel():
            self._fail(QueryCancelled("query was cancelled", detail="It had not begun."), "cancelled")

    def _fail(self, error: HeadwaterError, status: RunStatus) -> None:
        # Without its traceback: the frames there hold the engine, and with it the log's tail.
        self.error = error.with_traceback(None)
        self.error.__cause__ = self.error.__context__ = None
        self._end(status)
        with suppress(QueryCancelled):  # told already, or nobody is there to be told
            self.sink.fail(error)

    def _end(self, status: RunStatus) -> None:
        self._cancel.detach()  # a run is retained for minutes, and its engine holds the log's tail
        self.status = status
        self.ended = time.monotonic()


class Runs:
    """All queries that run, wait, or ended a short while ago."""

    def __init__(
        self,
        execute: Callable[[Reading, Cancel], Result],
        *,
        concurrency: int,
        keep_seconds: float = KEEP_SECONDS,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self._execute = execute
        self._concurrency = concurrency
        self._limit = concurrency * (1 + WAITING_PER_SLOT)
        self._keep_seconds = keep_seconds
        self._keep_bytes = keep_bytes
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="headwater-query")
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def submit(self, statement: Reading, sql: str, sink: Sink, ends_as: RunStatus, id: str | None = None) -> Run:
        """Start the query, or let it wait its turn; Backpressure when too many wait already."""
        self.sweep()
        run = Run(id or str(ULID()), sql, sink, ends_as)
        try:
            with self._lock:
                self._check_room(run.id)
                self._runs[run.id] = run
                run.future = self._pool.submit(run.work, self._execute, statement)
        except BaseException:
            sink.close()
            raise
        return run

    def _check_room(self, id: str) -> None:
        if id in self._runs:
            raise Conflict(f'query "{id}" exists already', hint="Use an id only once.")
        active = sum(run.ended is None for run in self._runs.values())
        if active >= self._limit:
            raise Backpressure(
                "too many queries wait",
                detail=f"{active} run or wait; the setting query_concurrency lets {self._concurrency} run at once.",
                hint="Try again after Retry-After.",
                retry_after=1,
            )

    def get(self, id: str) -> Run:
        """The query of this id; QueryNotFound when there is none or it was forgotten."""
        self.sweep()
        with self._lock:
            run = self._runs.get(id)
        if run is None:
            raise QueryNotFound(
                f'query "{id[:64]}" does not exist',
                detail=f"Results are kept for {self._keep_seconds:g} s.",
                hint="GET /api/v1/queries lists them.",
            )
        return run

    def all(self) -> list[Run]:
        """All queries, the newest first."""
        self.sweep()
        with self._lock:
            return list(reversed(self._runs.values()))

    def forget(self, id: str) -> Run:
        """Cancel the query if it has not ended; give back what it holds if it has."""
        run = self.get(id)
        if run.ended is None:
            run.cancel()
            return run
        with self._lock:
            self._runs.pop(id, None)
        run.sink.close()
        return run

    def sweep(self) -> None:
        """Forget what ended long ago, and the oldest results when they are too many or too large."""
        for run in self._expired():
            run.sink.close()

    def _expired(self) -> list[Run]:
        horizon = time.monotonic() - self._keep_seconds
        with self._lock:
            ended = [run for run in self._runs.values() if run.ended is not None]
            size, files = sum(run.size for run in ended), sum(run.is_on_disk for run in ended)
            gone: list[Run] = []
            for place, run in enumerate(sorted(ended, key=lambda run: run.ended or 0.0)):
                too_many = len(ended) - place > KEEP_RUNS or files > KEEP_FILES
                if (run.ended or 0.0) >= horizon and size <= self._keep_bytes and not too_many:
                    break
                gone.append(self._runs.pop(run.id))
                size, files = size - run.size, files - run.is_on_disk
            return gone

    def close(self) -> None:
        """Cancel everything and give back what it holds; a query that does not stop in time is left behind."""
        runs = self.all()
        for run in runs:
            run.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + CLOSE_SECONDS
        while any(run.ended is None for run in runs) and time.monotonic() < deadline:
            time.sleep(0.01)
        for run in runs:
            run.sink.close()
