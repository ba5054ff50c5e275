"""One streaming query from its start to its end, and what can be told of it meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from headwater.errors import Corrupt, HeadwaterError, QueryFailed, StreamFailed
from headwater.spark.jobs import reason_of
from headwater.streaming.checkpoint_damage import check_checkpoint
from headwater.streaming.frames_spark import Opened
from headwater.streaming.offsets import Place
from headwater.streaming.plan import Continuous
from headwater.streaming.sink import Sink

Heads = Callable[[], Iterable[Place]]
"""How far the topics of a query reach now."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What Spark says about a running query."""

    started_at: datetime
    last_batch_at: datetime | None = None
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    batch_seconds: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None


_COUNTED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


class Run:
    """A query that runs until it is stopped, has failed or, with `once`, has read all there is."""

    def __init__(self, plan: Continuous, opened: Opened, sink: Sink, checkpoint: Path, heads: Heads) -> None:
        self._plan = plan
        self._opened = opened
        self._sink = sink
        self._checkpoint = checkpoint
        self._heads = heads
        self._failed: BaseException | None = None
        self._draining = threading.Event()
        self._query: StreamingQuery | None = None
        self._started_at = datetime.now(UTC)

    @property
    def sink(self) -> Sink:
        return self._sink

    def start(self, *, once: bool = False) -> None:
        self._sink.send()  # what a crash left unsent, although nothing new may come
        self.look()
        # Counting rows costs a look for every one that is written. Who goes on with the state counts it when it opens.
        self._opened.frame.sparkSession.conf.set(_COUNTED, str(not once).lower())
        writer = (
            self._opened.frame.writeStream.outputMode(self._plan.mode)
            .queryName(self._plan.name)
            .option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._each)
        )
        least = round(self._plan.outline.definition.options.trigger * 1000)
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{least} milliseconds")
        self._query = writer.start()

    def _each(self, frame: Any, number: int) -> None:
        try:
            self._sink(frame, number)
        except BaseException as failed:  # Spark would turn it into text
            self._failed = failed
            raise

    def look(self) -> None:
        """Let the query see what its topics have committed by now."""
        if not self._draining.is_set():
            for head in self._heads():
                self._opened.advance(head)

    @property
    def active(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def wait(self, seconds: float | None = None) -> bool:
        """Until the query has ended by itself; StreamFailed, or what a batch raised, if it failed."""
        assert self._query is not None
        try:
            return self._query.awaitTermination(seconds) is not False
        except Exception as failed:
            raise self._error(failed) from failed

    def _error(self, failed: Exception) -> HeadwaterError:
        if isinstance(self._failed, HeadwaterError) and not isinstance(self._failed, QueryFailed | StreamFailed):
            return self._failed
        try:
            check_checkpoint(self._plan.name, self._checkpoint, deep=True)
        except Corrupt as damaged:
            return damaged
        if isinstance(self._failed, HeadwaterError):
            return self._failed
        reason, _, _ = reason_of(str(self._failed or failed))
        return StreamFailed(f'stream of materialized view "{self._plan.name}" failed', detail=f"{reason}.")

    def stop(self, grace: float = 0.0) -> None:
        """Finish what is there within so many seconds, then end; a later run repeats a batch that was not finished."""
        self._draining.set()
        if self._query is None:
            return
        until = time.monotonic() + grace
        while self.active and time.monotonic() < until and self._is_busy():
            time.sleep(0.05)
        with suppress(Exception):  # it failed before it could be stopped
            self._query.stop()
        with suppress(HeadwaterError):  # the view is gone, or has another query by now
            self._sink.settle()
        self._opened.close()

    def _is_busy(self) -> bool:
        assert self._query is not None
        status = self._query.status
        return bool(status["isTriggerActive"] or status["isDataAvailable"])

    def observed(self) -> Observed:
        """What Spark says now."""
        progress = self._query.lastProgress if self._query is not None else None
        if progress is None:
            return Observed(self._started_at)
        states = progress.stateOperators
        return Observed(
            self._started_at,
            datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")),
            progress.inputRowsPerSecond,
            progress.processedRowsPerSecond,
            progress.batchDuration / 1000,
            sum(each.numRowsTotal for each in states),
            sum(each.memoryUsedBytes for each in states),
        )
