"""What a running service does for its tables by itself: it looks at each of them now and then, and does what is due.

A table with many commits is looked at after so many of them, however often they come: what a commit and a query cost
grows with the small files, manifests and snapshots that maintenance has not seen yet.

One step at a time, in one thread. To look costs no more than the table's metadata, which is in memory for the most
part; Spark starts only when there are files to rewrite.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime

from headwater.engine.care import WAREHOUSE, Care
from headwater.engine.care_run import Wanted
from headwater.engine.care_steps import Asked, Subject
from headwater.errors import NotFound
from headwater.sql.statements import MaintenanceStep
from headwater.state.care import Step

log = logging.getLogger(__name__)

FIRST = 60.0
"""Seconds before the first look: views that catch up after a restart come first, and need the same cores."""
COMMITS = 100
"""Commits of this process to one table after which it is looked at, whenever the interval ends."""
COMMITS_POLL = 1.0
"""Seconds between two looks at the number of commits."""
ORPHANS_EVERY = 86_400.0
"""Seconds between two searches of a table's folder for orphans."""
LONGEST_PAUSE = 86_400.0
"""Seconds for which a step that keeps failing is left alone at the most."""
STOP_SECONDS = 30.0


class CareLoop:
    """A thread that looks until it is stopped; a step that fails waits twice as long each time, others go on."""

    def __init__(self, care: Care, *, interval: float, first: float = FIRST) -> None:
        self._care = care
        self._interval = interval
        self._first = min(first, interval)
        self._stop = threading.Event()
        self._failures: dict[tuple[str, str], int] = {}
        self._pauses: dict[tuple[str, str], tuple[float, float]] = {}
        self._seen: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="headwater-care", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more, cancel what can be cancelled, and wait for the rest."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        due = time.monotonic() + self._first
        while not self._stop.wait(max(0.0, min(COMMITS_POLL, due - time.monotonic()))):
            began = time.monotonic()
            try:
                if began >= due:
                    due = began + self._interval
                    self.tick()
                elif busy := self.busy():
                    self.tick(busy)
            except Exception as failed:  # whatever it is, it must not end the care of this process
                log.warning("tables cannot be looked at", extra={"error": str(failed)})

    def busy(self) -> frozenset[str]:
        """The tables that had so many commits since they were looked at."""
        commits = self._care.commits()
        return frozenset(table for table, count in commits.items() if count - self._seen.get(table, 0) >= COMMITS)

    def tick(self, only: frozenset[str] | None = None) -> list[Step]:
        """Look at every table, or `only` at these, once and do what is due."""
        commits = self._care.commits()
        # Also for tables that are gone or damaged, which are no subjects: they must not be looked for every second.
        self._seen = commits if only is None else self._seen | {name: commits.get(name, 0) for name in only}
        searched = self._care.store.last("orphans", self._care.now())
        done: list[Step] = []
        for subject in self._care.subjects():
            if self._stop.is_set():
                break
            name = str(subject.name)
            if only is not None and name not in only:
                continue
            done += self._look_at(subject, search=self._long_ago(searched.get(name)))
        if only is None and not self._stop.is_set() and self._long_ago(searched.get(WAREHOUSE)):
            done.append(self._care.sweep(self._asked(), "schedule"))
        return done

    def _long_ago(self, last: datetime | None) -> bool:
        return last is None or self._care.now() - last.timestamp() >= ORPHANS_EVERY

    def _asked(self) -> Asked:
        return Asked(self._care.now(), brief=True, cancelled=self._stop.is_set)

    def _look_at(self, subject: Subject, *, search: bool) -> list[Step]:
        try:
            steps = [step for step in self._care.steps.applicable(subject) if self._wanted(subject, step, search)]
            if not steps:
                return []
            done = self._care.runner.run(subject, steps, Wanted(self._asked(), "schedule"))
        except NotFound:  # dropped since it was listed
            return []
        except Exception as failed:  # of one table: the others must not wait for it
            log.warning("table cannot be looked at", extra={"table": str(subject.name), "error": str(failed)})
            return []
        for step in done:
            self._heard(step)
        return done

    def _wanted(self, subject: Subject, step: MaintenanceStep, search: bool) -> bool:
        """Whether it is worth taking the lease for: a plan is made without one."""
        began, until = self._pauses.get((str(subject.name), step), (0.0, 0.0))
        if began <= self._care.now() < until:  # not if the clock went back behind its beginning
            return False
        if step == "orphans":
            return search
        try:
            return self._care.steps.plan(step, subject, self._asked()).due
        except NotFound:
            raise
        except Exception:  # the step itself tells what is wrong, and is left alone for a while then
            return True

    def _heard(self, step: Step) -> None:
        key = (step.table, step.step)
        if step.outcome != "failed":
            self._failures.pop(key, None)
            if step.outcome == "done":
                fields = {"table": step.table, "step": step.step, "reason": step.reason, "seconds": step.seconds}
                log.info("maintained", extra=fields)
            return
        count = self._failures[key] = self._failures.get(key, 0) + 1
        now = self._care.now()
        self._pauses[key] = (now, now + min(LONGEST_PAUSE, self._interval * 2**count))
