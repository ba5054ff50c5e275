"""Leases: which process does a job now. They save work; correctness rests on commits fenced by position.

A lease is a name, a holder and a time. Whoever finds it free, expired or its own takes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Column, Engine, Float, MetaData, String, Table, create_engine, delete, or_, select, update
from sqlalchemy.dialects.sqlite import insert

log = logging.getLogger(__name__)

LONGEST = 3600.0
"""Seconds ahead beyond which no lease ends, unless its time to live is long: the clock that dated it was wrong."""

metadata = MetaData()
leases = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("expires_at", Float, nullable=False),
)


def open_state(path: Path, busy_timeout: float) -> Engine:
    """The engine of the embedded state file, with its tables made."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": busy_timeout})
    metadata.create_all(engine)
    return engine


@dataclass(frozen=True, slots=True)
class Lease:
    name: str
    holder: str
    expires_at: float


class Leases:
    """Leases of one holder (a process) in a shared database."""

    def __init__(self, engine: Engine, holder: str, ttl: float, now: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self.holder = holder
        self._ttl = ttl
        self._now = now

    def acquire(self, name: str) -> bool:
        """Take or renew the lease; False while another holder has it."""
        now = self._now()
        row = {"name": name, "holder": self.holder, "expires_at": now + self._ttl}
        ahead = now + max(LONGEST, 4 * self._ttl)
        free = or_(leases.c.holder == self.holder, leases.c.expires_at < now, leases.c.expires_at > ahead)
        taken = insert(leases).values(row).on_conflict_do_update(index_elements=["name"], set_=row, where=free)
        with self._engine.begin() as connection:
            return connection.execute(taken).rowcount > 0

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
