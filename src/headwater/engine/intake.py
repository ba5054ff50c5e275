"""Records on their way in: stored in the log on request, committed to the tables on request, both counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from headwater.catalog.topics import Topic, Topics
from headwater.errors import (
    Backpressure,
    Corrupt,
    HeadwaterError,
    RecordsRejected,
    StorageBusy,
    TopicNotFound,
    Unavailable,
)
from headwater.observability.metrics import Metrics
from headwater.storage.decode import Account, Decoded
from headwater.topics.ingest import Ingested, Ingester
from headwater.topics.ingest_loop import record
from headwater.topics.log import Log
from headwater.topics.produce import Ack, Format, Producer, Source

log = logging.getLogger(__name__)


class Intake:
    """Appends and flushes of one lake."""

    def __init__(
        self, topics: Topics, log: Log, producer: Producer, ingester: Ingester, metrics: Metrics, *, auto_flush: bool
    ) -> None:
        self._topics = topics
        self._log = log
        self._producer = producer
        self._ingester = ingester
        self._metrics = metrics
        self._auto_flush = auto_flush

    def append(
        self,
        name: str,
        blocks: Iterable[Any],
        format: Format,
        source: Source,
        *,
        wait: bool,
        account: Account | None = None,
    ) -> Ack:
        """Store one request; with `wait` and the setting auto_flush, a full log is committed to the table first."""
        started = time.perf_counter()
        wait = wait and self._auto_flush
        blocks = list(blocks) if wait else blocks
        try:
            ack = self._producer.append(name, blocks, format, source, account)
        except RecordsRejected as rejected:
            self._metrics.rejected.labels(name).inc(rejected.data.get("rejected", 0))
            raise
        except Backpressure:
            self._metrics.backpressure.inc()
            if not wait:
                raise
            ack = self._append_with_room(name, blocks, format, source, account)
        self._metrics.append_seconds.observe(time.perf_counter() - started)
        self._count(ack)
        return ack

    def _append_with_room(
        self, name: str, blocks: Iterable[Any], format: Format, source: Source, account: Account | None
    ) -> Ack:
        """Commit what fills the log, then append. A topic that cannot be committed matters only while it leaves no
        room: one damaged table must not keep records from the others."""
        failure: HeadwaterError | None = None
        try:
            self.flush()
        except HeadwaterError as error:
            failure = error
        try:
            return self._producer.append(name, blocks, format, source, account)
        except Backpressure:
            if failure is not None:
                raise failure from None
            raise

    def store(self, topic: Topic, decoded: Decoded, source: Source) -> Ack:
        """Store what a connector decoded for the topic."""
        started = time.perf_counter()
        ack = self._producer.store(topic, decoded, source)
        self._metrics.append_seconds.observe(time.perf_counter() - started)
        self._count(ack)
        return ack

    def _count(self, ack: Ack) -> None:
        if ack.repeated:
            self._metrics.repeated.labels(ack.topic).inc()
            return
        self._metrics.records.labels(ack.topic).inc(ack.rows)
        if ack.duplicates:
            self._metrics.duplicates.labels(ack.topic).inc(ack.duplicates)
        if ack.dead:
            self._metrics.dead.labels(ack.topic).inc(ack.dead)

    def flush(self, name: str | None = None, progress: Callable[[Ingested], None] = lambda _: None) -> list[Ingested]:
        """Commit what waits in the log of the topic, or of all topics, now.

        Unavailable when a log does not answer, Corrupt when a topic is damaged; the others are committed all the same.
        """
        if name is None:
            self.forget_dropped()

        def counted(done: Ingested) -> None:
            record(self._metrics, done)
            progress(done)

        if name is not None:
            return self._ingester.drain(name, counted)
        done: list[Ingested] = []
        found, damaged = self._topics.survey()
        failures: list[HeadwaterError] = [each.error for each in damaged]
        for topic in found:
            try:
                done += self._drain_if_there(topic.name, counted)
            except StorageBusy:  # what keeps one topic from being written keeps all
                raise
            except (Unavailable, Corrupt) as failed:
                failures.append(failed)
        if failures:
            raise failures[0]
        return done

    def _drain_if_there(self, name: str, counted: Callable[[Ingested], None]) -> list[Ingested]:
        try:
            return self._ingester.drain(name, counted)
        except TopicNotFound:  # dropped since it was listed
            return []

    def forget_dropped(self) -> None:
        """Drop from the log what a crash in DROP TOPIC left there, if the log answers: otherwise the next one does."""
        try:
            # Before the catalog is read: a topic is there before its first record is here.
            waiting = self._log.waiting()
        except Unavailable as away:
            log.warning("topics that were dropped are not forgotten yet", extra={"error": str(away)})
            return
        if not waiting:
            return
        found, damaged = self._topics.survey()
        if damaged:  # records in the log may be theirs
            return
        known = {topic.id for topic in found}
        for topic in waiting:
            if topic.id not in known:
                self._log.drop(topic)
