"""Leases: which process does a job now. They save work; correctness rests on commits fenced by position.

A lease is a name, a holder and a time. It can be taken when it is free, when it has expired, and when its holder is
dead, whatever time it has: a clock that was ahead dates leases into the future.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import (
    Column,
    Engine,
    Float,
    MetaData,
    String,
    Table,
    and_,
    create_engine,
    delete,
    false,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.pool import NullPool, StaticPool

from headwater.config import is_writable
from headwater.errors import Conflict
from headwater.state.holders import holder_state
from headwater.state.sqlite import connect, is_open, named_errors

log = logging.getLogger(__name__)

LONGEST = 3600.0
"""Seconds ahead beyond which not even the lease of a live process ends, unless its time to live is long."""

PASSING = 1.0
"""Seconds for which a process may look at the state database without counting as one that uses the lake."""

metadata = MetaData()
leases = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("expires_at", Float, nullable=False),
)


def open_state(path: Path, busy_timeout: float) -> Engine:
    """The engine of the embedded state file, with its tables made if the file can be written."""
    if not is_writable(path):
        engine = create_engine("sqlite://", creator=lambda: connect(path, busy_timeout), poolclass=NullPool)
        if metadata.tables.keys() <= set(inspect(engine).get_table_names()):
            return engine
        # Nothing was ever written there: it is as if it were empty.
        engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)
    else:
        engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": busy_timeout})
    metadata.create_all(engine)
    return engine


@dataclass(frozen=True, slots=True)
class Lease:
    name: str
    holder: str
    expires_at: float


def is_held(lease: Lease, now: float, ttl: float) -> bool:
    """Whether the lease is its holder's at `now`, where leases live for `ttl` seconds."""
    if lease.expires_at < now:
        return False
    match holder_state(lease.holder):
        case "dead":
            return False
        case "alive":  # the next renewal dates it by the right clock
            return lease.expires_at <= now + max(LONGEST, 4 * ttl)
        case "unknown":  # no clock that is right gives a lease more than its time to live
            return lease.expires_at <= now + 2 * ttl


def check_unused(state: Path, lease_ttl: float) -> None:
    """Conflict while a process uses the lake: any that has its state database open, or one elsewhere with a lease."""
    if not state.exists():
        return
    if is_open(state, PASSING):
        raise Conflict(
            f'lake in "{state.parent}" is in use',
            detail="A process has its state database open.",
            hint="Stop the service, and whatever else uses the lake.",
        )
    with named_errors(state), closing(connect(state, PASSING, read_only=True)) as db:
        has_leases = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'leases'").fetchone()
        found = db.execute("SELECT name, holder, expires_at FROM leases").fetchall() if has_leases else ()
    now = time.time()
    for lease in (Lease(*row) for row in found):
        if is_held(lease, now, lease_ttl):
            raise Conflict(
                f'lake in "{state.parent}" is in use',
                detail=f'A process holds the lease "{lease.name}" for another {lease.expires_at - now:.0f} seconds.',
                hint="Stop the service, or wait until the lease of a service that was killed has expired.",
            )


class Leases:
    """Leases of one holder (a process) in a shared database."""

    def __init__(self, engine: Engine, holder: str, ttl: float, now: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self.holder = holder
        self._ttl = ttl
        self._now = now

    def acquire(self, name: str) -> bool:
        """Take or renew the lease; False while another holder has it."""
        found = self.get(name)
        if found is not None and self._is_held(found):
            return False
        row = {"name": name, "holder": self.holder, "expires_at": self._now() + self._ttl}
        # Only from the holder that was judged: another may have taken it since.
        judged = false() if found is None else leases.c.holder == found.holder
        if found is not None and found.holder != self.holder:
            judged = and_(judged, leases.c.expires_at == found.expires_at)
        taken = insert(leases).values(row).on_conflict_do_update(index_elements=["name"], set_=row, where=judged)
        with self._engine.begin() as connection:
            return connection.execute(taken).rowcount > 0

    def held_by_another(self, name: str) -> Lease | None:
        """The lease, if another holder really has it."""
        found = self.get(name)
        return found if found is not None and self._is_held(found) else None

    def _is_held(self, lease: Lease) -> bool:
        """Whether another holder has the lease, by its time and by what is known of the holder."""
        return lease.holder != self.holder and is_held(lease, self._now(), self._ttl)

    def release(self, name: str) -> None:
        """Give the lease up, if it is still ours."""
        with self._engine.begin() as connection:
            connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == self.holder))

    def renew(self, name: str) -> bool:
        """Move the expiry of a lease that is still ours; False when it was lost."""
        mine = update(leases).where(leases.c.name == name, leases.c.holder == self.holder)
        with self._engine.begin() as connection:
            return connection.execute(mine.values(expires_at=self._now() + self._ttl)).rowcount > 0

    @contextmanager
    def renewing(self, name: str) -> Iterator[None]:
        """Renew the lease again and again while the block lasts."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self._ttl / 3):
                try:
                    self.renew(name)
                except Exception as failed:  # a lost lease costs work, never records: commits are fenced
                    log.warning("lease was not renewed", extra={"lease": name, "error": str(failed)})

        renewer = threading.Thread(target=renew, name="headwater-lease", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            done.set()

    @contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Take the lease for the block and give it up afterwards; False while another holder has it."""
        if not self.acquire(name):
            yield False
            return
        try:
            with self.renewing(name):
                yield True
        finally:
            self.release(name)

    def get(self, name: str) -> Lease | None:
        with self._engine.connect() as connection:
            row = connection.execute(select(leases).where(leases.c.name == name)).first()
        return None if row is None else Lease(row.name, row.holder, row.expires_at)

    def release_all(self) -> None:
        """Give up every lease of this holder."""
        with self._engine.begin() as connection:
            connection.execute(delete(leases).where(leases.c.holder == self.holder))
