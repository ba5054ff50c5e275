"""What there is to know about a view: definition, table, lag, last refresh; as plain data for every surface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from headwater.catalog.kept import DamagedTable
from headwater.catalog.metadata import summary_count
from headwater.catalog.progress import progress_of
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import S_METHOD, View, Views
from headwater.errors import Corrupt, InvalidInput, QueryCancelled, ViewBroken
from headwater.sql.schema_text import parse_type, render_type
from headwater.sql.view_options import render_view_options
from headwater.storage.scan import ManifestCache
from headwater.topics.log import Log
from headwater.types import VIEWS, TableName, id_text
from headwater.views.explain import describe_view
from headwater.views.history import Attempt, History, consumed
from headwater.views.lag import Lag, lags, tail_rows
from headwater.views.plan import check_sources
from headwater.views.sources import Head, Sources

if TYPE_CHECKING:
    from headwater.views.compact import Compacted
    from headwater.views.refresh import Refreshed
    from headwater.views.verify import Verified

Status = Literal["fresh", "behind", "broken", "failing", "damaged"]


class ViewReader:
    """Tells about the views of one lake; never changes them, and never starts Spark."""

    def __init__(
        self,
        views: Views,
        sources: Sources,
        log: Log,
        history: History,
        cache: ManifestCache,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._views = views
        self._sources = sources
        self._log = log
        self._history = history
        self._cache = cache
        self._now = now

    def summaries(self) -> list[dict[str, Any]]:
        """One line about each view: `SHOW MATERIALIZED VIEWS`."""
        newest = self._history.newest()
        found, damaged = self._views.survey()
        lines = [self._line(view, newest.get(view.name)) for view in found]
        return sorted([*lines, *map(_damaged_summary, damaged)], key=lambda line: str(line["view"]))

    def _line(self, view: View, newest: Attempt | None) -> dict[str, Any]:
        try:
            return self._summary(view, newest, *self._behind(view))
        except Corrupt as error:  # of a source, or of the manifests that tell how far the view is behind
            return {**self._summary(view, newest, {}, ()), "status": "broken", "lag_rows": None, "error": str(error)}

    def description(self, name: str) -> dict[str, Any]:
        """Everything about a view: `DESCRIBE MATERIALIZED VIEW`."""
        view = self._views.load(name)
        newest = self._history.newest().get(name)
        heads, behind = self._behind(view)
        layout, options = Layout.from_json(view.layout), view.definition.options
        return {
            **self._summary(view, newest, heads, behind),
            "id": view.id,
            "query": view.definition.query,
            "columns": [{"name": name, "type": _type(of)} for name, of, _ in layout.outputs],
            "options": render_view_options(options),
            "sources": [self._source(lag) for lag in behind],
            "readers": [reader.name for reader in self._views.readers_of(view.table_name)],
            **describe_view(layout, options),
            **_streamed(view, layout),
            **_totals(view, "files", "bytes"),
            "snapshot": id_text(view.snapshot_id),
            "next_due": told_at(_next_due(view, newest)),
            "location": view.table.location(),
            "metadata": view.table.metadata_location,
        }

    def history(self, name: str | None, limit: int) -> list[dict[str, Any]]:
        """The newest refreshes of a view, or of all views: `SHOW REFRESHES`."""
        views = [self._views.load(name)] if name is not None else self._views.all()
        found = [attempt for view in views for attempt in self._history.of(view, limit)]
        newest = sorted(found, key=lambda attempt: attempt.started_at, reverse=True)[:limit]
        return [
            {
                **asdict(attempt),
                "started_at": told_at(attempt.started_at),
                "sources": [each.describe() for each in attempt.sources],
                "snapshot": id_text(attempt.snapshot),
                "seconds": None if attempt.seconds is None else round(attempt.seconds, 3),
            }
            for attempt in newest
        ]

    def lags(self) -> list[tuple[str, Lag, float]]:
        """Each view's lag behind each of its sources that exist, and its seconds."""
        now = self._now()
        return [
            (view.name, lag, lag.seconds(now))
            for view in self._views.all()
            for lag in self._readable_lags(view)
            if not lag.gone
        ]

    def _readable_lags(self, view: View) -> tuple[Lag, ...]:
        try:
            return self._behind(view)[1]
        except Corrupt:  # `SHOW MATERIALIZED VIEWS` says which file is damaged
            return ()

    def waiting(self, topics: Sequence[TableName]) -> dict[str, int]:
        """Records in the log of these topics, where there are any."""
        heads = self._sources.load(topics)
        return {head.name: tail for head in heads.values() if (tail := tail_rows(head, self._log))}

    def _behind(self, view: View) -> tuple[Mapping[TableName, Head], tuple[Lag, ...]]:
        heads = self._sources.load([source.table for source in view.sources])
        return heads, lags(view, heads, self._log, self._cache)

    def _summary(
        self, view: View, newest: Attempt | None, heads: Mapping[TableName, Head], behind: Sequence[Lag]
    ) -> dict[str, Any]:
        options = view.definition.options
        return {
            "view": view.name,
            "mode": options.mode,
            "method": options.method,
            "status": _status(view, newest, heads, behind),
            **_totals(view, "rows"),
            "lag_rows": sum(lag.rows for lag in behind),
            "last_refresh": told_at(_last_refresh(view, newest)),
            "description": options.description,
            "error": newest.error if newest is not None and newest.outcome == "failed" else None,
        }

    def _source(self, lag: Lag) -> dict[str, Any]:
        return {
            "source": lag.source.name,
            "kind": "view" if lag.source.namespace == VIEWS else "topic",
            "exists": not lag.gone,
            "snapshot": id_text(lag.consumed),
            "head": id_text(lag.head),
            "lag_rows": lag.rows,
            "lag_bytes": lag.bytes,
            "lag_seconds": round(lag.seconds(self._now()), 3),
        }


def _damaged_summary(damaged: DamagedTable) -> dict[str, Any]:
    """The line about a view that cannot be read."""
    unknown = dict.fromkeys(("mode", "method", "rows", "lag_rows", "last_refresh"))
    return {"view": damaged.name, **unknown, "status": "damaged", "description": "", "error": str(damaged.error)}


def _status(view: View, newest: Attempt | None, heads: Mapping[TableName, Head], behind: Sequence[Lag]) -> Status:
    try:
        check_sources(view, heads)
    except ViewBroken:
        return "broken"
    if newest is not None and newest.outcome == "failed" and newest.code != QueryCancelled.code:
        return "failing"
    return "behind" if any(lag.rows for lag in behind) else "fresh"


def _last_refresh(view: View, newest: Attempt | None) -> datetime | None:
    """When the view was last brought to its sources: as its snapshots tell, or later when there was nothing to do."""
    snapshots = [
        datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
        for snapshot in view.table.metadata.snapshots
        if snapshot.summary is not None and snapshot.summary[S_METHOD] is not None
    ]
    looked = [newest.ended_at] if newest is not None and newest.outcome != "failed" else []
    return max((*snapshots, *looked), default=None)


def _next_due(view: View, newest: Attempt | None) -> datetime | None:
    """When a periodic view is refreshed next, if a service runs; other modes have no such time."""
    options = view.definition.options
    if options.mode != "periodic":
        return None
    last = _last_refresh(view, newest)
    tried = [moment for moment in (last, newest.started_at if newest is not None else None) if moment is not None]
    return max(tried) + timedelta(seconds=options.interval) if tried else None


def _totals(view: View, *wanted: str) -> dict[str, int]:
    snapshot = view.table.metadata.current_snapshot()
    keys = {"rows": "total-records", "files": "total-data-files", "bytes": "total-files-size"}
    return {name: summary_count(snapshot, keys[name]) for name in wanted}


def _type(of: str) -> str:
    """A Spark type as topics show it."""
    try:
        return render_type(parse_type(of))
    except InvalidInput:
        return of.upper()


def told_at(moment: datetime | None) -> str | None:
    """A moment as text: ISO 8601, in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _streamed(view: View, layout: Layout) -> dict[str, Any]:
    """How a view is kept that is not refreshed."""
    if progress_of(view.table.metadata.properties) is None:
        return {}
    emits = "every row once" if layout.kind == "rows" else "groups as they change; the newest row of a group counts"
    return {"kept": f"A stream keeps it, and emits {emits}.", "incremental": True}


def refreshed(done: Refreshed) -> dict[str, Any]:
    """What a refresh did: `REFRESH MATERIALIZED VIEW`."""
    return {
        "view": done.view,
        "method": done.method,
        "reason": done.reason,
        "sources": [each.describe() for each in consumed(done.sources)],
        "rows_read": done.rows_read,
        "rows_written": done.rows_written,
        "files": done.files,
        "bytes": done.bytes,
        "seconds": round(done.seconds, 3),
        "snapshot": id_text(done.snapshot_id),
    }


def verified(outcome: Verified) -> dict[str, Any]:
    """What a comparison found: `VERIFY MATERIALIZED VIEW`."""
    return {
        "view": outcome.view,
        "equal": outcome.equal,
        "rows": outcome.rows,
        "extra": outcome.extra,
        "missing": outcome.missing,
        "examples": list(outcome.examples),
        "skipped": list(outcome.skipped),
        "late": 0,
        "sample": outcome.sample,
        "seconds": round(outcome.seconds, 3),
        "snapshot": id_text(outcome.snapshot_id),
    }


def compacted(done: Compacted) -> dict[str, Any]:
    """What a compaction did: `COMPACT MATERIALIZED VIEW`."""
    return {
        "view": done.view,
        "files_before": done.files_before,
        "files_after": done.files_after,
        "rows_before": done.rows_before,
        "rows_after": done.rows_after,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "seconds": round(done.seconds, 3),
        "snapshot": id_text(done.snapshot_id),
    }
