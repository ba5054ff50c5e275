"""Views that are refreshed when they are asked for: before a query reads one that is too stale, and once for all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.catalog.views import View
from headwater.topics.log import Log
from headwater.views.staleness import behind_since
from headwater.views.upkeep import Upkeep

if TYPE_CHECKING:
    from headwater.state.leases import Leases

log = logging.getLogger(__name__)

LOOK_EVERY = 0.05
"""Seconds between looks at a view that another process refreshes."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A refresh that some queries wait for."""

    began: float
    landed: Future[None] = field(default_factory=Future)


class OnQuery:
    """Refreshes views for queries. `wait`: seconds for which a refresh of another process is waited for."""

    def __init__(
        self,
        upkeep: Upkeep,
        wal: Log,
        leases: Leases,
        *,
        wait: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._upkeep = upkeep
        self._wal = wal
        self._leases = leases
        self._wait = wait
        self._now = now
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}

    def before_read(self, views: Sequence[View]) -> None:
        """Bring those views that are refreshed on query within their `max_staleness`."""
        for view in views:
            if view.definition.options.mode == "on_query":
                self.refresh_if_stale(view.name)

    def refresh_if_stale(self, name: str) -> None:
        """Refresh the view if it lacks a change that is older than it may lack now, or wait for who does."""
        asked = self._now()
        while self._is_stale(name, asked):
            flight, ours = self._board(name)
            if ours:
                self._fly(name, flight, asked)
                return
            failed = flight.landed.exception()  # waits for it
            if flight.began >= asked:  # a refresh of our own would come to the same
                if failed is not None:
                    raise failed
                return

    def _board(self, name: str) -> tuple[_Flight, bool]:
        """The refresh of the view that is under way in this process; True with a new one, which the caller runs."""
        with self._lock:
            if (flight := self._flights.get(name)) is not None:
                return flight, False
            flight = self._flights[name] = _Flight(self._now())
            return flight, True

    def _is_stale(self, name: str, asked: float) -> bool:
        """Whether the view lacked at `asked` what it may not have lacked then. What came later is not asked for."""
        view = self._upkeep.views.load(name)
        since = behind_since(view, self._upkeep.sources, self._wal)
        return since is not None and since <= asked - view.definition.options.max_staleness

    def _fly(self, name: str, flight: _Flight, asked: float) -> None:
        try:
            self._refresh(name, asked)
        except BaseException as failed:
            self._land(name)
            flight.landed.set_exception(failed)
            raise
        self._land(name)
        flight.landed.set_result(None)

    def _land(self, name: str) -> None:
        with self._lock:
            del self._flights[name]

    def _refresh(self, name: str, asked: float) -> None:
        until = time.monotonic() + self._wait
        while time.monotonic() < until:
            with self._leases.held(f"view:{name}") as ours:
                if ours:
                    self._run(name)
                    return
            time.sleep(LOOK_EVERY)
            if not self._is_stale(name, asked):
                return
        log.info("refresh elsewhere takes too long", extra={"view": name})
        self._run(name)  # a lease saves work, no more: the commits keep the two apart

    def _run(self, name: str) -> None:
        self._upkeep.refresh(name, trigger="query", manual=False)
