"""Prometheus metrics of continuous views and connectors: what their status says, at the moment of a scrape.

A job's own counters live with its checkpoint and survive a restart, so they are told as they are, not counted again
here. What is not known, such as the state of a job that does not run, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class JobStatus(Protocol):
    """What is told of a job."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def rows_in(self) -> int: ...
    @property
    def rows_out(self) -> int: ...
    @property
    def late_rows(self) -> int: ...
    @property
    def restarts(self) -> int: ...
    @property
    def lag_rows(self) -> int | None: ...
    @property
    def watermark(self) -> datetime | None: ...
    @property
    def batch_seconds(self) -> float | None: ...
    @property
    def state_rows(self) -> int | None: ...
    @property
    def state_bytes(self) -> int | None: ...


LABELS = ("stream", "kind")
COUNTED = (
    ("rows_in", "Rows that a continuous view or a connector has read."),
    ("rows_out", "Rows that it has written."),
    ("late_rows", "Rows that came after their window had closed."),
    ("restarts", "Times that it failed and was started again."),
)
MEASURED = (
    ("running", "Whether it runs: 1, or 0."),
    ("lag_rows", "Records that its source has and that it has not read."),
    ("watermark_age_seconds", "How long ago the time was up to which events are taken to be complete."),
    ("batch_seconds", "How long its latest batch took."),
    ("state_rows", "Rows in its state."),
    ("state_bytes", "Bytes of its state."),
)


class StreamMetrics(Collector):
    """The statuses that were seen last, as metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seen: Sequence[JobStatus] = ()
        registry.register(self)

    def measure(self, found: Iterable[JobStatus]) -> None:
        """Tell these, and no others, from now on."""
        self._seen = tuple(found)

    def collect(self) -> Iterator[Metric]:
        now = datetime.now(UTC)
        for name, about in COUNTED:
            counter = CounterMetricFamily(f"headwater_stream_{name}", about, labels=LABELS)
            for each in self._seen:
                counter.add_metric((each.name, each.kind), float(getattr(each, name)))
            yield counter
        for name, about in MEASURED:
            gauge = GaugeMetricFamily(f"headwater_stream_{name}", about, labels=LABELS)
            for each in self._seen:
                if (value := _measured(each, name, now)) is not None:
                    gauge.add_metric((each.name, each.kind), value)
            yield gauge


def _measured(status: JobStatus, name: str, now: datetime) -> float | None:
    if name == "running":
        return float(status.state in ("running", "backfilling"))
    if name == "watermark_age_seconds":
        return None if status.watermark is None else (now - status.watermark).total_seconds()
    value: float | None = getattr(status, name)
    return None if value is None else float(value)
