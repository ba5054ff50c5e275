"""How many bytes of request bodies may be in memory at once."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from headwater.errors import Backpressure

RETRY_AFTER = 1


class Budget:
    """A number of bytes that all requests share. A request that is alone is always let in, whatever its size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self._held

    def reserve(self, size: int) -> Reservation:
        """Bytes for a request whose size is known; Backpressure when others hold too many."""
        reservation = Reservation(self)
        reservation.cover(size)
        return reservation

    def take(self, size: int, already: int) -> None:
        """Hold `size` more bytes for a request that holds `already`; Backpressure when there is no room."""
        with self._lock:
            others = self._held - already
            if others > 0 and self._held + size > self._limit:
                raise Backpressure(
                    "the service holds too many request bodies",
                    detail=f"{self._held} bytes are in flight; the limit is {self._limit}. Nothing was written.",
                    hint="Try again after Retry-After, with fewer or smaller requests at once.",
                    retry_after=RETRY_AFTER,
                )
            self._held += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size


class Reservation:
    """One request's part of a budget, given back when the request ends."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self._lock = threading.Lock()

    def cover(self, total: int) -> None:
        """Hold at least `total` bytes; Backpressure when there is no room."""
        with self._lock:
            if total > self._held:
                self._budget.take(total - self._held, self._held)
                self._held = total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._budget.give_back(self._held)
            self._held = 0
