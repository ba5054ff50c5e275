"""The streams of a running service: each in a thread of its own, started again when it fails, stopped when asked.

One that fails disturbs no other: it waits, longer each time, and says why. A lease per stream saves processes from
running the same one; that nothing is kept twice rests on the commits.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from headwater.errors import HeadwaterError, StaleCommit
from headwater.state.leases import Leases
from headwater.state.streams import StreamStore
from headwater.streaming.status import State

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0
STEADY = 60.0
"""Seconds after which a stream that ran is counted as running well: its next failure waits as the first one did."""


class Job(Protocol):
    """Something that runs until it is told to stop, or fails."""

    name: str

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        """Run in the calling thread; `wake` is set when a topic has moved. A stop finishes what is under way."""
        ...


@dataclass(slots=True)
class _Running:
    job: Job
    stop: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Waiting:
    failures: int
    until: float
    error: str


class Supervisor:
    """`jobs` tells what is to run now, by name; a job is made anew for every start."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[str]],
        make: Callable[[str], Job],
        store: StreamStore,
        leases: Leases,
        *,
        poll: float = 1.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._jobs = jobs
        self._make = make
        self._store = store
        self._leases = leases
        self._poll = poll
        self._chance = chance
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # held from seeing what is to run until all of it was begun
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-streams", daemon=True)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """A topic has moved, or what is to run has changed."""
        with self._lock:
            for each in self._running.values():
                each.wake.set()
        self._woken.set()

    def stop(self) -> None:
        """Stop all streams, each after what is under way."""
        self._stop.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            running = list(self._running.values())
        for each in running:
            each.stop.set()
            each.wake.set()
        for each in running:
            if each.thread is not None:
                each.thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._woken.clear()
            try:
                self.tick()
            except Exception as failed:  # whatever it is, it must not end the streams of this process
                log.warning("streams cannot be looked at", extra={"error": str(failed)})
            self._woken.wait(self._poll)

    def tick(self) -> None:
        """Look once: start what is to run and does not, stop what runs and is not to."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        wanted = set(self._jobs())
        with self._lock:
            self._waiting = {name: each for name, each in self._waiting.items() if name in wanted}
            leave = [each for name, each in self._running.items() if name not in wanted]
            due = [name for name in wanted - self._running.keys() if self._is_due(name)]
        for each in leave:
            each.stop.set()
            each.wake.set()
        for name in sorted(due):
            self._begin(name)

    def _is_due(self, name: str) -> bool:
        return name not in self._waiting or self._waiting[name].until <= time.monotonic()

    # -- one stream -----------------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        if not self._leases.acquire(f"stream:{name}"):
            return
        try:
            running = _Running(self._make(name))
        except Exception as failed:
            self._failed(name, failed, 0.0)
            self._leases.release(f"stream:{name}")
            return
        running.thread = threading.Thread(
            target=self._do, args=(running,), name=f"headwater-stream-{name}", daemon=True
        )
        with self._lock:  # whoever finds it can wait for it
            self._running[name] = running
            running.thread.start()

    def _do(self, running: _Running) -> None:
        name = running.job.name
        try:
            with self._leases.renewing(f"stream:{name}"):
                running.job.run(running.stop, running.wake)
        except StaleCommit as late:  # another runs it, or its view has another query: looked at anew
            log.info("stream stepped back", extra={"stream": name, "reason": str(late)})
            with self._lock:
                self._waiting[name] = _Waiting(0, time.monotonic() + FIRST_WAIT, str(late))
        except Exception as failed:
            if running.stop.is_set():  # it was to end, and what it works on may be gone already
                log.info("stream ended", extra={"stream": name, "reason": _said(failed)})
            else:
                self._failed(name, failed, time.monotonic() - running.since)
        else:
            with self._lock:
                self._waiting.pop(name, None)
        finally:
            try:  # before another start of it takes the lease, which this would give away
                self._leases.release(f"stream:{name}")
            finally:
                with self._lock:
                    self._running.pop(name, None)
                self._woken.set()

    def _failed(self, name: str, failed: Exception, ran: float) -> None:
        if not isinstance(failed, HeadwaterError):
            log.exception("stream failed", extra={"stream": name})
        error = _said(failed)
        with self._lock:
            before = self._waiting.get(name)
            failures = 1 if before is None or ran > STEADY else before.failures + 1
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 60)) * (0.5 + self._chance() / 2)
            self._waiting[name] = _Waiting(failures, time.monotonic() + wait, error)
        self._store.failed(name, error)
        log.warning("stream failed", extra={"stream": name, "error": error, "retry_in": wait})

    # -- what others ask ------------------------------------------------------------------------------------------

    def job(self, name: str) -> Job | None:
        """The job that runs under this name, in this process."""
        with self._lock:
            found = self._running.get(name)
        return None if found is None else found.job

    def state(self, name: str) -> tuple[State, datetime | None] | None:
        """Whether it runs here, or when it starts again; None if this process knows nothing of it."""
        with self._lock:
            if name in self._running:
                return "running", None
            if (waiting := self._waiting.get(name)) is not None:
                left = max(0.0, waiting.until - time.monotonic())
                return "waiting", datetime.fromtimestamp(time.time() + left, UTC)
        return None

    def end(self, name: str, timeout: float = 60.0) -> bool:
        """Stop the job of this name, if it runs here, after what is under way; whether it has ended.

        What was not to run any more before this is called does not run after it."""
        with self._looking, self._lock:
            found = self._running.get(name)
            self._waiting.pop(name, None)
        if found is None or found.thread is None:
            return True
        found.stop.set()
        found.wake.set()
        if found.thread is not threading.current_thread():
            found.thread.join(timeout)
        return not found.thread.is_alive()


def _said(failed: Exception) -> str:
    return str(failed) or type(failed).__name__
