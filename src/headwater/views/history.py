"""What became of the refreshes of views: a bounded account in the state database, newest first.

The account is not the truth. A view's snapshots carry the method and the position of the refresh that made them, so a
refresh whose process ended before it wrote its line is told from its snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import BigInteger, Column, DateTime, Float, Integer, String, Table, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError
from ulid import ULID

from headwater.catalog.metadata import summary_count
from headwater.catalog.views import S_METHOD, Position, View
from headwater.errors import HeadwaterError
from headwater.state.leases import metadata, open_state
from headwater.state.sqlite import storage_error
from headwater.types import id_text
from headwater.views.change import AppendDelta, RecomputeKeys

if TYPE_CHECKING:
    from headwater.views.plan import RefreshPlan, SourceRange
    from headwater.views.refresh import Refreshed

Trigger = Literal["manual", "schedule", "immediate", "query", "create"]
Outcome = Literal["ok", "failed", "skipped"]

LOST = "the process ended before it told of this refresh"
_CHANGING = ("append", "keys", "full")

refreshes = Table(
    "view_refreshes",
    metadata,
    Column("id", String, primary_key=True),
    Column("view", String, nullable=False, index=True),
    Column("started_at", DateTime, nullable=False),  # UTC
    Column("seconds", Float),
    Column("trigger", String),
    Column("method", String),
    Column("rule", String),
    Column("reason", String),
    Column("sources", String, nullable=False),
    Column("rows_read", BigInteger),
    Column("rows_written", BigInteger),
    Column("files", Integer),
    Column("bytes", BigInteger),
    Column("snapshot", BigInteger),
    Column("outcome", String, nullable=False),
    Column("code", String),
    Column("error", String),
    Column("verified", String),
)


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a refresh took of one source: from which snapshot to which, and how many rows came or went."""

    source: str
    start: int | None
    end: int | None
    rows: int | None = None

    def describe(self) -> dict[str, Any]:
        return {"source": self.source, "start": id_text(self.start), "end": id_text(self.end), "rows": self.rows}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One refresh of one view, as it ended. What is not known is None."""

    id: str
    view: str
    started_at: datetime
    outcome: Outcome
    seconds: float | None = None
    trigger: Trigger | None = None
    method: str | None = None
    rule: str | None = None
    reason: str | None = None
    sources: tuple[Consumed, ...] = ()
    rows_read: int | None = None
    rows_written: int | None = None
    files: int | None = None
    bytes: int | None = None
    snapshot: int | None = None
    code: str | None = None
    error: str | None = None
    verified: str | None = None

    @property
    def ended_at(self) -> datetime:
        return self.started_at + timedelta(seconds=self.seconds or 0.0)


def finished(done: Refreshed, trigger: Trigger, started_at: datetime, plan: RefreshPlan | None = None) -> Attempt:
    """The account of a refresh that was done, or that found nothing to do; a new view is computed without a plan."""
    return replace(
        _begun(done.view, plan, trigger, started_at),
        outcome="skipped" if done.method == "skip" else "ok",
        seconds=done.seconds,
        method=done.method,
        reason=done.reason,
        sources=consumed(done.sources),
        rows_read=done.rows_read,
        rows_written=done.rows_written,
        files=done.files,
        bytes=done.bytes,
        snapshot=done.snapshot_id,
    )


def failed(
    view: str, plan: RefreshPlan | None, trigger: Trigger, started_at: datetime, seconds: float, error: Exception
) -> Attempt:
    """The account of a refresh that raised, before or after it was planned."""
    code = error.code if isinstance(error, HeadwaterError) else HeadwaterError.code
    told = str(error) or type(error).__name__
    return replace(_begun(view, plan, trigger, started_at), seconds=seconds, code=code, error=told)


def _begun(view: str, plan: RefreshPlan | None, trigger: Trigger, started_at: datetime) -> Attempt:
    attempt = Attempt(str(ULID()), view, started_at, "failed", trigger=trigger)
    if plan is None:
        return attempt
    rule = plan.change.rule if isinstance(plan.change, AppendDelta | RecomputeKeys) else None
    return replace(attempt, method=plan.method, rule=rule, reason=plan.chosen, sources=consumed(plan.ranges))


def consumed(ranges: Sequence[SourceRange]) -> tuple[Consumed, ...]:
    """What a plan takes of each source."""
    return tuple(
        Consumed(each.head.name, each.start, each.end, each.changes.rows if each.changes is not None else None)
        for each in ranges
    )


def unrecorded(view: View, recorded: set[int]) -> list[Attempt]:
    """Refreshes that the view's snapshots tell of and the account does not."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in view.table.metadata.snapshots}
    return [
        _told_by(view, snapshot, by_id.get(snapshot.parent_snapshot_id or -1))
        for snapshot in by_id.values()
        if _method(snapshot) in _CHANGING and snapshot.snapshot_id not in recorded
    ]


def _told_by(view: View, snapshot: Snapshot, parent: Snapshot | None) -> Attempt:
    after, before = view.position_at(snapshot), view.position_at(parent) if parent is not None else Position({})
    return Attempt(
        f"snapshot-{snapshot.snapshot_id}",
        view.name,
        datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        "ok",
        method=_method(snapshot),
        reason=LOST,
        sources=tuple(Consumed(at.name, before.snapshots.get(at), end) for at, end in after.snapshots.items()),
        rows_written=summary_count(snapshot, "added-records"),
        files=summary_count(snapshot, "added-data-files"),
        bytes=summary_count(snapshot, "added-files-size"),
        snapshot=snapshot.snapshot_id,
    )


def _method(snapshot: Snapshot) -> str | None:
    return snapshot.summary[S_METHOD] if snapshot.summary is not None else None


class History:
    """The account in the state file `path`, which keeps the newest `keep` refreshes of each view."""

    def __init__(self, path: Path, busy_timeout: float, keep: int) -> None:
        self._path = path
        self._keep = keep
        with self._named():
            self._engine = open_state(path, busy_timeout)

    def record(self, attempt: Attempt) -> None:
        """Add a line, and let the view's oldest go."""
        newest = _newest(attempt.view).with_only_columns(refreshes.c.id).limit(self._keep)
        oldest = delete(refreshes).where(refreshes.c.view == attempt.view, refreshes.c.id.not_in(newest))
        with self._named(), self._engine.begin() as connection:
            connection.execute(insert(refreshes).values(_row(attempt)))
            connection.execute(oldest)

    def verified(self, view: str, snapshot: int | None, outcome: str) -> None:
        """Note beside the view's newest refresh, if it made this snapshot, what a comparison with its query found."""
        newest = _newest(view).with_only_columns(refreshes.c.id).limit(1).scalar_subquery()
        found = update(refreshes).where(refreshes.c.id == newest, refreshes.c.snapshot == snapshot)
        with self._named(), self._engine.begin() as connection:
            connection.execute(found.values(verified=outcome))

    def forget(self, view: str) -> None:
        """Drop the lines of a view that is gone."""
        with self._named(), self._engine.begin() as connection:
            connection.execute(delete(refreshes).where(refreshes.c.view == view))

    def of(self, view: View, limit: int) -> list[Attempt]:
        """The view's newest refreshes, those included that only its snapshots tell of."""
        with self._named(), self._engine.connect() as connection:
            rows = connection.execute(_newest(view.name)).all()
        known = [_attempt(row._mapping) for row in rows]
        lost = unrecorded(view, {each.snapshot for each in known if each.snapshot is not None})
        if len(known) >= self._keep:  # what is older was let go
            lost = [each for each in lost if each.started_at > known[-1].started_at]
        return sorted((*known, *lost), key=lambda each: each.started_at, reverse=True)[:limit]

    def newest(self) -> Mapping[str, Attempt]:
        """The newest line of every view."""
        rank = func.row_number().over(
            partition_by=refreshes.c.view, order_by=(refreshes.c.started_at.desc(), refreshes.c.id.desc())
        )
        ranked = select(refreshes, rank.label("rank")).subquery()
        with self._named(), self._engine.connect() as connection:
            rows = connection.execute(select(ranked).where(ranked.c.rank == 1)).all()
        return {row.view: _attempt(row._mapping) for row in rows}

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as wrong:
            raise storage_error(wrong.orig or wrong, self._path) from wrong


def _newest(view: str) -> Any:
    return (
        select(refreshes).where(refreshes.c.view == view).order_by(refreshes.c.started_at.desc(), refreshes.c.id.desc())
    )


def _row(attempt: Attempt) -> dict[str, Any]:
    row = {name: getattr(attempt, name) for name in refreshes.columns.keys()}  # noqa: SIM118  a column collection
    row["started_at"] = attempt.started_at.astimezone(UTC).replace(tzinfo=None)
    row["sources"] = json.dumps([asdict(each) for each in attempt.sources])
    return row


def _attempt(row: Any) -> Attempt:
    values = {name: row[name] for name in refreshes.columns.keys()}  # noqa: SIM118
    values["started_at"] = row["started_at"].replace(tzinfo=UTC)
    values["sources"] = tuple(Consumed(**each) for each in json.loads(row["sources"]))
    return Attempt(**values)
