"""Prometheus metrics of one lake; each lake has a registry of its own, so that several can live in a process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headwater.observability.stream_metrics import StreamMetrics

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """What a lake counts. Names and labels are listed in docs/reference/metrics.md."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.records = Counter("headwater_produced_records", "Records acknowledged.", ["topic"], registry=registry)
        self.rejected = Counter("headwater_rejected_records", "Records refused.", ["topic"], registry=registry)
        self.dead = Counter("headwater_dead_records", "Records sent to dead letters.", ["topic"], registry=registry)
        self.duplicates = Counter(
            "headwater_duplicate_records", "Records dropped by a deduplication key.", ["topic"], registry=registry
        )
        self.repeated = Counter(
            "headwater_repeated_requests", "Requests acknowledged again, stored once.", ["topic"], registry=registry
        )
        self.backpressure = Counter("headwater_backpressure", "Requests told to wait.", registry=registry)
        self.append_seconds = Histogram(
            "headwater_append_seconds", "From request to durable acknowledgement.", buckets=_SECONDS, registry=registry
        )
        self.ingested = Counter(
            "headwater_ingested_records", "Records committed to tables.", ["topic"], registry=registry
        )
        self.ingested_bytes = Counter(
            "headwater_ingested_bytes", "Parquet bytes committed to tables.", ["topic"], registry=registry
        )
        self.ingest_seconds = Histogram(
            "headwater_ingest_seconds", "One commit, from log to trim.", buckets=_SECONDS, registry=registry
        )
        self.ingest_failures = Counter(
            "headwater_ingest_failures", "Commits that failed and will be tried again.", ["topic"], registry=registry
        )
        self.tail_records = Gauge("headwater_tail_records", "Records waiting in the log.", ["topic"], registry=registry)
        self.tail_bytes = Gauge("headwater_tail_bytes", "Bytes waiting in the log.", ["topic"], registry=registry)
        self.queries = Counter(
            "headwater_queries", "Queries by engine and outcome.", ["engine", "outcome"], registry=registry
        )
        self.query_seconds = Histogram(
            "headwater_query_seconds", "Queries from text to last row.", ["engine"], buckets=_SECONDS, registry=registry
        )
        self.query_worker_restarts = Counter(
            "headwater_query_worker_restarts",
            "Times that the process for queries on Spark ended and was replaced, by reason.",
            ["reason"],
            registry=registry,
        )
        self.view_refreshes = Counter(
            "headwater_view_refreshes",
            "Refreshes of views by method and outcome, those included that found nothing to do.",
            ["view", "method", "outcome"],
            registry=registry,
        )
        self.view_refresh_seconds = Histogram(
            "headwater_view_refresh_seconds",
            "Refreshes that changed a view, from plan to commit.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.view_failures = Counter(
            "headwater_view_failures",
            "Refreshes that failed, by the error's code.",
            ["view", "code"],
            registry=registry,
        )
        self.view_lag_rows = Gauge(
            "headwater_view_lag_rows",
            "Rows that came to a source or left it since the view was refreshed, those in the log included.",
            ["view", "source"],
            registry=registry,
        )
        self.view_lag_bytes = Gauge(
            "headwater_view_lag_bytes", "Bytes of those rows.", ["view", "source"], registry=registry
        )
        self.view_lag_seconds = Gauge(
            "headwater_view_lag_seconds", "Age of the oldest of those rows.", ["view", "source"], registry=registry
        )

        self.maintenance_steps = Counter(
            "headwater_maintenance_steps",
            "Steps of maintenance by outcome; those that found nothing to do are not counted.",
            ["step", "outcome"],
            registry=registry,
        )
        self.maintenance_seconds = Histogram(
            "headwater_maintenance_seconds",
            "Steps of maintenance that were done, from plan to end.",
            ["step"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.maintenance_files = Counter(
            "headwater_maintenance_files",
            "Files that steps of maintenance rewrote, removed or deleted.",
            ["step"],
            registry=registry,
        )
        self.maintenance_bytes = Counter(
            "headwater_maintenance_bytes", "Bytes of those files.", ["step"], registry=registry
        )
        self.small_files = Gauge(
            "headwater_small_files", "Data files of less than half of their target size.", ["topic"], registry=registry
        )
        self.pending_deletion_bytes = Gauge(
            "headwater_pending_deletion_bytes",
            "Bytes of files that wait to be deleted because a read may still use them.",
            registry=registry,
        )

        self.streams = StreamMetrics(registry)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
