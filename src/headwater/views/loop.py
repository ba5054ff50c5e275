"""The refresher of a running service: looks at all views, refreshes those that are due, compacts and verifies them.

Each view is a job of its own: a slow or failing one holds up only what stands on it. A lease per view saves processes
from doing the same work; that nothing is done twice rests on the commits.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from headwater.catalog.views import View
from headwater.errors import QueryCancelled, StaleCommit, ViewBroken, ViewNotFound
from headwater.spark.jobs import RunningQuery
from headwater.views.round import Round
from headwater.views.schedule import Shape, Standing, Trigger, plan_due, retry_after
from headwater.views.upkeep import Upkeep
from headwater.views.watch import Look, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.state.leases import Leases

log = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0
"""How long a cancelled refresh may take to end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often is looked, how much is done at once, how long failures wait, how long a stop waits; in seconds."""

    poll: float = 1.0
    at_once: int = 2
    retry: float = 1.0
    retry_max: float = 300.0
    grace: float = 10.0


@dataclass(slots=True, eq=False)
class Job:
    """Work on one view, waiting or under way. `holds`: the views with which no other job may begin meanwhile."""

    what: Literal["refresh", "compact", "verify"]
    view: View
    id: str
    holds: frozenset[str] = frozenset()
    waits: set[str] = field(default_factory=set)
    round: Round | None = None
    trigger: Trigger = "schedule"
    shape: Shape = ()
    running: RunningQuery | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.what, self.view.name

    @property
    def lease(self) -> str:
        """What changes a view excludes itself; comparing it changes nothing."""
        return f"{'verify' if self.what == 'verify' else 'view'}:{self.view.name}"


class ViewLoop:
    """A thread that looks, and a few that work, until they are stopped. `verified` hears what a comparison found."""

    def __init__(
        self,
        upkeep: Upkeep,
        spark: Callable[[], SparkSession],
        leases: Leases,
        pace: Pace,
        *,
        verified: Callable[[str, int | None, str], None] = lambda *_: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._upkeep = upkeep
        self._spark = spark
        self._leases = leases
        self._pace = pace
        self._verified = verified
        self._now = now
        self._watch = Watch(upkeep)
        self._standings: dict[str, Standing] = {}
        self._cared: dict[str, int] = {}
        self._care_after: dict[str, float] = {}
        self._jobs: dict[tuple[str, str], Job] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._pool = ThreadPoolExecutor(pace.at_once, thread_name_prefix="headwater-view")
        self._thread = threading.Thread(target=self._run, name="headwater-views", daemon=True)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look now: something was committed."""
        self._woken.set()

    def stop(self) -> None:
        """Begin nothing more; let what runs finish within the grace, and cancel what does not."""
        self._stop.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.wait_idle(self._pace.grace):
            with self._changed:
                running = [job.running for job in self._jobs.values() if job.running is not None]
            for each in running:
                each.cancel()
            self.wait_idle(CANCEL_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._leases.release_all()

    def wait_idle(self, timeout: float) -> bool:
        """Until no job waits or runs; whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._woken.clear()  # before the look: what is committed during it wakes the next one
            try:
                self.tick()
            except Exception as failed:  # whatever it is, it must not end the refreshes of this process
                log.warning("views cannot be looked at", extra={"error": str(failed)})
            self._woken.wait(self._pace.poll)

    # -- what to do -----------------------------------------------------------------------------------------------

    def tick(self) -> list[tuple[str, str]]:
        """Look once and begin what is due; the jobs that were begun."""
        with self._changed:  # before the look, which so sees what the jobs that ended did
            busy = {name for job in self._jobs.values() for name in job.holds}
            begun = set(self._jobs)
        look = self._watch.look()
        self._forget_all_but({view.at.id for view in look.watched.values()})
        cares = [job for job in self._cares(look, busy) if job.key not in begun]
        return self._begin([*cares, *self._refreshes(look, busy.union(*(job.holds for job in cares)))])

    def _forget_all_but(self, live: set[str]) -> None:
        with self._changed:
            for known in (self._standings, self._cared, self._care_after):
                for gone in known.keys() - live:
                    del known[gone]

    def _refreshes(self, look: Look, busy: set[str]) -> list[Job]:
        with self._changed:
            scene = look.scene(dict(self._standings))
        due = plan_due(scene, busy, self._now())
        round = look.round(due)
        return [
            Job(
                "refresh",
                look.views[each.name],
                look.watched[each.name].at.id,
                each.below | {each.name},
                set(each.after),
                round,
                each.trigger,
                scene.shape(each.name),
            )
            for each in due
        ]

    def _cares(self, look: Look, busy: set[str]) -> Iterator[Job]:
        """Compactions and comparisons of views that have moved since they were last thought of."""
        for name, view in look.views.items():
            id = look.watched[name].at.id
            before, at = self._cared.get(id), _commits(view)
            if before == at or name in busy or self._now() < self._care_after.get(id, 0.0):
                continue
            if view.definition.options.compact == "auto" and self._compaction_pays(name, id):
                yield Job("compact", view, id, frozenset({name}))
                continue  # it moves the view, which is thought of again then
            self._cared[id] = at
            every = view.definition.options.verify_every
            # By the number of the commit: all processes know it, and a restart does not forget it.
            if every and before is not None and at // every > before // every:
                yield Job("verify", view, id)

    def _compaction_pays(self, name: str, id: str) -> bool:
        try:
            return self._upkeep.compaction_due(name) is not None
        except Exception as failed:  # of one view: the others must not wait for it
            log.warning("view cannot be looked at", extra={"view": name, "error": str(failed)})
            self._care_after[id] = self._now() + self._pace.retry_max
            return False

    def _begin(self, jobs: Sequence[Job]) -> list[tuple[str, str]]:
        with self._changed:
            self._jobs |= {job.key: job for job in jobs}
        for job in jobs:
            if not job.waits:
                self._pool.submit(self._do, job)
        return [job.key for job in jobs]

    # -- doing it -------------------------------------------------------------------------------------------------

    def _do(self, job: Job) -> None:
        """One job to its end, in a thread of the pool."""
        began, done = self._now(), False
        try:
            with self._leases.held(job.lease) as ours:
                if ours and not self._stop.is_set():
                    self._work(job, began)
                    done = True
        except Exception as failed:
            self._failed(job, began, failed)
        finally:
            self._ended(job, done)

    def _work(self, job: Job, began: float) -> None:
        with self._cancellable(job):
            match job.what:
                case "refresh":
                    self._refresh(job)
                    with self._changed:
                        self._standings[job.id] = Standing(began, self._now())
                case "compact":
                    self._compact(job.view.name)
                case "verify":
                    self._verify(job.view)

    @contextmanager
    def _cancellable(self, job: Job) -> Iterator[None]:
        session = self._spark()
        # A pool for each thread: they share the cores, and a large refresh does not keep small ones waiting.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
        job.running = RunningQuery(session, f"headwater-{job.what}-{uuid4().hex}")
        with job.running:
            yield

    def _refresh(self, job: Job) -> None:
        assert job.round is not None

        def planned(_: object) -> None:
            job.holds = frozenset({job.view.name})  # snapshots are chosen: what is below may move on

        done = self._upkeep.refresh_in(job.round, job.view.name, trigger=job.trigger, progress=planned)
        fields = {"view": done.view, "method": done.method, "rows": done.rows_written, "seconds": done.seconds}
        if done.method != "skip":
            log.info("refreshed", extra=fields)
            self.wake()  # for what waited until now

    def _compact(self, name: str) -> None:
        due = self._upkeep.compaction_due(name)
        if due is None:  # another process was first
            return
        done = self._upkeep.compact(name, whole=due.what == "all")
        fields = {"view": name, "reason": due.reason, "files": done.files_before, "seconds": done.seconds}
        log.info("compacted", extra=fields)
        self.wake()

    def _verify(self, view: View) -> None:
        found = self._upkeep.verify(view.name, view.definition.options.verify_sample)
        self._verified(view.name, found.snapshot_id, "equal" if found.equal else "different")
        if not found.equal:
            fields = {"view": view.name, "extra_rows": found.extra, "missing": found.missing}
            log.error("view differs from its query", extra={**fields, "examples": found.examples})

    def _failed(self, job: Job, began: float, failed: Exception) -> None:
        name, now = job.view.name, self._now()
        moved = isinstance(failed, StaleCommit | ViewNotFound) or not self._exists(name)
        if moved or (isinstance(failed, QueryCancelled) and self._stop.is_set()):
            log.info(f"{job.what} stepped back", extra={"view": name, "reason": str(failed)})
            return
        wait = self._pace.retry_max
        with self._changed:
            if job.what == "refresh":
                before = self._standings.get(job.id, Standing())
                if not isinstance(failed, ViewBroken):  # that one mends itself when its sources change, if at all
                    wait = retry_after(before.failures + 1, self._pace.retry, wait, random.random())
                self._standings[job.id] = before.failed(began, str(failed), job.shape, now, wait)
            else:
                self._care_after[job.id] = now + wait
        log.warning(f"{job.what} failed", extra={"view": name, "error": str(failed), "retry_in": wait})

    def _exists(self, name: str) -> bool:
        try:
            return self._upkeep.views.exists(name)
        except Exception:  # the catalog does not say: what failed stays a failure
            return True

    def _ended(self, job: Job, done: bool) -> None:
        """Let go of the views; what waited for this one in its round begins, or is given up with it."""
        with self._changed:
            del self._jobs[job.key]
            above = [each for each in self._jobs.values() if each.round is job.round and job.view.name in each.waits]
            for each in above:
                each.waits.discard(job.view.name)
                if not done:
                    del self._jobs[each.key]
            self._changed.notify_all()
        for each in above:
            if done and not each.waits:
                self._pool.submit(self._do, each)


def _commits(view: View) -> int:
    """The number of the view's newest commit."""
    newest = view.table.metadata.current_snapshot()
    return 0 if newest is None else newest.sequence_number or 0
