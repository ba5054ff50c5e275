"""What maintenance has done and is doing, and files that wait to be deleted: bounded accounts in the state database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import BigInteger, Column, DateTime, Float, String, Table, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError
from ulid import ULID

from headwater.state.leases import LONGEST, Lease, is_held, leases, metadata, open_state
from headwater.state.sqlite import storage_error

Outcome = Literal["planned", "running", "done", "nothing", "failed", "skipped", "lost"]
"""`planned`: by a dry run. `lost`: the process ended before it told of the outcome."""
Trigger = Literal["manual", "schedule"]

steps = Table(
    "maintenance_steps",
    metadata,
    Column("id", String, primary_key=True),
    Column("table", String, nullable=False, index=True),
    Column("step", String, nullable=False),
    Column("trigger", String, nullable=False),
    Column("started_at", DateTime, nullable=False),  # UTC
    Column("seconds", Float),
    Column("outcome", String, nullable=False),
    Column("reason", String),
    Column("numbers", String, nullable=False),
    Column("code", String),
    Column("error", String),
)

deletions = Table(
    "pending_deletions",
    metadata,
    Column("path", String, primary_key=True),
    Column("table_id", String, nullable=False, index=True),
    Column("due", Float, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

reads = Table(
    "long_reads",
    metadata,
    Column("id", String, primary_key=True),
    Column("began", Float, nullable=False),
    Column("until", Float, nullable=False),
)

damage = Table(
    "damaged_files",
    metadata,
    Column("path", String, primary_key=True),
    Column("table_id", String, nullable=False, index=True),
    Column("state", String, nullable=False),
    Column("why", String, nullable=False),
)

_PIECE = 500
"""Paths in one statement."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the care of one table. `numbers` says what it did, or while it runs, how far it is."""

    id: str
    table: str
    step: str
    trigger: Trigger
    started_at: datetime
    outcome: Outcome
    reason: str | None = None
    seconds: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A file that may be deleted from `due` on, if then no snapshot refers to it."""

    path: str
    table_id: str
    due: float
    bytes: int


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that cannot be rewritten, why, and the state in which it was found: once that has changed, it may be."""

    path: str
    table_id: str
    state: str
    why: str


def lease_of(table: str) -> str:
    """The lease of whoever takes care of a table."""
    return f"maintain:{table}"


class CareStore:
    """The accounts in one state database; `keep` steps are remembered of each table."""

    def __init__(self, path: Path, busy_timeout: float, keep: int = 1000) -> None:
        self._path = path
        self._keep = keep
        self.engine = open_state(path, busy_timeout)

    def close(self) -> None:
        self.engine.dispose()

    # -- steps ----------------------------------------------------------------------------------------------------

    def record(self, step: Step) -> None:
        """Add or change a line, and let the table's oldest go."""
        row = _row(step)
        newest = select(steps.c.id).where(steps.c.table == step.table).order_by(*_NEWEST).limit(self._keep)
        with self._named(), self.engine.begin() as connection:
            connection.execute(insert(steps).values(row).on_conflict_do_update(index_elements=["id"], set_=row))
            connection.execute(delete(steps).where(steps.c.table == step.table, steps.c.id.not_in(newest)))

    def progress(self, id: str, numbers: Mapping[str, Any]) -> None:
        """Say how far a step is that runs."""
        with self._named(), self.engine.begin() as connection:
            found = update(steps).where(steps.c.id == id, steps.c.outcome == "running")
            connection.execute(found.values(numbers=json.dumps(dict(numbers), default=str)))

    def recent(self, table: str | None, limit: int, now: float) -> list[Step]:
        """The newest steps of a table, or of all, the newest first; one whose process is gone counts as lost."""
        wanted = select(steps).order_by(*_NEWEST).limit(limit)
        if table is not None:
            wanted = wanted.where(steps.c.table == table)
        with self._named(), self.engine.connect() as connection:
            rows = connection.execute(wanted).all()
            known = [Lease(*row) for row in connection.execute(select(leases))]
        held = {lease.name for lease in known if is_held(lease, now, LONGEST)}
        return [_step(row._mapping, held) for row in rows]

    def last(self, step: str, now: float) -> Mapping[str, datetime]:
        """When a step last came to an end, by table; what a clock dated that was ahead does not count."""
        moment = datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
        wanted = select(steps.c.table, func.max(steps.c.started_at)).where(
            steps.c.step == step, steps.c.outcome.in_(("done", "nothing")), steps.c.started_at <= moment
        )
        with self._named(), self.engine.connect() as connection:
            rows = connection.execute(wanted.group_by(steps.c.table)).all()
        return {table: at.replace(tzinfo=UTC) for table, at in rows}

    def forget(self, table: str) -> None:
        """Drop the lines of a table that is gone."""
        with self._named(), self.engine.begin() as connection:
            connection.execute(delete(steps).where(steps.c.table == table))

    # -- deletions ------------------------------------------------------------------------------------------------

    def pend(self, pending: Sequence[Pending]) -> None:
        """Note files to delete; one that is noted already becomes due later, if that is said now."""
        rows = [{"path": p.path, "table_id": p.table_id, "due": p.due, "bytes": p.bytes} for p in pending]
        with self._named(), self.engine.begin() as connection:
            for start in range(0, len(rows), _PIECE):
                noted = insert(deletions).values(rows[start : start + _PIECE])
                later = {"due": func.max(deletions.c.due, noted.excluded.due)}
                connection.execute(noted.on_conflict_do_update(index_elements=["path"], set_=later))

    def pending(self, table_id: str | None = None, due: float | None = None) -> list[Pending]:
        """Files that wait, of one table or of all; those only that are due at a moment."""
        wanted = select(deletions).order_by(deletions.c.path)
        if table_id is not None:
            wanted = wanted.where(deletions.c.table_id == table_id)
        if due is not None:
            wanted = wanted.where(deletions.c.due <= due)
        with self._named(), self.engine.connect() as connection:
            return [Pending(row.path, row.table_id, row.due, row.bytes) for row in connection.execute(wanted)]

    def settle(self, paths: Sequence[str]) -> None:
        """Forget files that need no more thought."""
        with self._named(), self.engine.begin() as connection:
            for start in range(0, len(paths), _PIECE):
                piece = list(paths[start : start + _PIECE])
                connection.execute(delete(deletions).where(deletions.c.path.in_(piece)))
                connection.execute(delete(damage).where(damage.c.path.in_(piece)))

    def settle_tables(self, live: Sequence[str]) -> int:
        """Forget the files of tables that are not among `live`, whose folders went with them; how many."""
        with self._named(), self.engine.begin() as connection:
            connection.execute(delete(damage).where(damage.c.table_id.not_in(list(live))))
            return connection.execute(delete(deletions).where(deletions.c.table_id.not_in(list(live)))).rowcount

    # -- damage -----------------------------------------------------------------------------------------------------

    def note_damage(self, found: Sequence[DamagedFile]) -> None:
        """Remember files that are damaged, as they are now."""
        with self._named(), self.engine.begin() as connection:
            for each in found:
                row = {"path": each.path, "table_id": each.table_id, "state": each.state, "why": each.why}
                connection.execute(insert(damage).values(row).on_conflict_do_update(index_elements=["path"], set_=row))

    def damaged(self, table_id: str) -> list[DamagedFile]:
        """The files of a table that were found damaged."""
        wanted = select(damage).where(damage.c.table_id == table_id).order_by(damage.c.path)
        with self._named(), self.engine.connect() as connection:
            rows = connection.execute(wanted).all()
        return [DamagedFile(row.path, row.table_id, row.state, row.why) for row in rows]

    # -- reads ------------------------------------------------------------------------------------------------------

    def note_read(self, began: float, until: float) -> str:
        """Record a read that may run longer than queries usually may, and forget those that are over; its id."""
        id = str(ULID())
        with self._named(), self.engine.begin() as connection:
            connection.execute(delete(reads).where(reads.c.until < began))
            connection.execute(insert(reads).values(id=id, began=began, until=until))
        return id

    def extend_read(self, id: str, until: float) -> None:
        """Let a read run longer than it was recorded to."""
        with self._named(), self.engine.begin() as connection:
            connection.execute(update(reads).where(reads.c.id == id).values(until=until))

    def end_read(self, id: str) -> None:
        """Forget a read that is over."""
        with self._named(), self.engine.begin() as connection:
            connection.execute(delete(reads).where(reads.c.id == id))

    def long_reads(self, now: float) -> list[float]:
        """When those queries began that may still run."""
        with self._named(), self.engine.connect() as connection:
            return list(connection.scalars(select(reads.c.began).where(reads.c.until >= now)))

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as wrong:
            raise storage_error(wrong.orig or wrong, self._path) from wrong


_NEWEST = (steps.c.started_at.desc(), steps.c.id.desc())


def _row(step: Step) -> dict[str, Any]:
    row = {name: getattr(step, name) for name in steps.columns.keys()}  # noqa: SIM118  a column collection
    row["started_at"] = step.started_at.astimezone(UTC).replace(tzinfo=None)
    row["numbers"] = json.dumps(dict(step.numbers), default=str)
    return row


def _step(row: Any, held: set[str]) -> Step:
    values = {name: row[name] for name in steps.columns.keys()}  # noqa: SIM118
    values["started_at"] = row["started_at"].replace(tzinfo=UTC)
    values["numbers"] = json.loads(row["numbers"])
    if row["outcome"] == "running" and lease_of(row["table"]) not in held:
        values["outcome"] = "lost"
    return Step(**values)
