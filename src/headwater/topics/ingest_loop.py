"""The ingester of a running service: looks at every topic, commits what is due, one process per topic at a time."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from headwater.catalog.topics import Topic, Topics
from headwater.errors import StaleCommit, TopicNotFound
from headwater.observability.metrics import Metrics
from headwater.topics.ingest import Ingested, Ingester, log_topic
from headwater.topics.ingest_plan import Wait
from headwater.topics.log import Log

if TYPE_CHECKING:
    from headwater.state.leases import Leases

log = logging.getLogger(__name__)

MAX_PAUSE = 30.0


class IngestLoop:
    """A thread that calls the ingester until it is stopped; a failing topic waits longer each time, others go on."""

    def __init__(
        self, topics: Topics, wal: Log, ingester: Ingester, leases: Leases, metrics: Metrics, *, poll: float
    ) -> None:
        self._topics = topics
        self._wal = wal
        self._ingester = ingester
        self._leases = leases
        self._metrics = metrics
        self._poll = poll
        self._stop = threading.Event()
        self._failures: dict[str, int] = {}
        self._pause: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="headwater-ingest", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the commit under way, then return."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._leases.release_all()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                names = self._topics.names()
            except Exception as failed:  # whatever it is, it must not end the ingest of this process
                log.warning("topics cannot be listed", extra={"error": str(failed)})
                names = []
            for name in names:
                if self._stop.is_set():
                    break
                self._look_at(name)
            self._stop.wait(self._poll)

    def _look_at(self, name: str) -> None:
        self._pause[name] = self._pause.get(name, 0.0) - self._poll
        if self._pause[name] > 0:
            return
        try:
            outcome = self._run_if_due(name)
            self._failures.pop(name, None)
        except (TopicNotFound, StaleCommit) as moved:  # dropped, or another process was first
            log.info("ingest stepped back", extra={"topic": name, "reason": str(moved)})
            return
        except Exception as failed:
            self._failed(name, failed)
            return
        if isinstance(outcome, Ingested):
            record(self._metrics, outcome)
            fields = {"topic": name, "records": len(outcome.offsets), "files": outcome.files, "bytes": outcome.bytes}
            log.info("committed", extra={**fields, "seconds": outcome.seconds, "reason": outcome.reason})

    def _run_if_due(self, name: str) -> Ingested | Wait:
        topic, plan = self._ingester.plan(name)
        self._measure(topic)
        if isinstance(plan, Wait):
            return plan
        if not self._leases.acquire(f"ingest:{name}"):
            return Wait("another process ingests")
        with self._leases.renewing(f"ingest:{name}"):
            done = self._ingester.run(name)
        self._measure(self._topics.load(name))
        return done

    def _failed(self, name: str, failed: Exception) -> None:
        count = self._failures[name] = self._failures.get(name, 0) + 1
        self._pause[name] = min(MAX_PAUSE, self._poll * 2**count)
        self._metrics.ingest_failures.labels(name).inc()
        log.warning("ingest failed", extra={"topic": name, "error": str(failed), "retry_in": self._pause[name]})

    def _measure(self, topic: Topic) -> None:
        stats = self._wal.stats(log_topic(topic))
        self._metrics.tail_records.labels(topic.name).set(max(0, stats.end - topic.committed))
        self._metrics.tail_bytes.labels(topic.name).set(stats.bytes)


def record(metrics: Metrics, done: Ingested) -> None:
    """Count one commit."""
    metrics.ingested.labels(done.topic).inc(len(done.offsets))
    metrics.ingested_bytes.labels(done.topic).inc(done.bytes)
    metrics.ingest_seconds.observe(done.seconds)
