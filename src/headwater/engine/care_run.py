"""Running the steps of the care of a table, under its lease, and writing down what became of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ulid import ULID

from headwater.engine.care_steps import Asked, Planned, Steps, Subject, Tell, nobody
from headwater.errors import Conflict, HeadwaterError, StaleCommit, TopicNotFound, ViewNotFound
from headwater.observability.metrics import Metrics
from headwater.sql.statements import MaintenanceStep
from headwater.state.care import CareStore, Step, Trigger, lease_of
from headwater.state.holders import holder_name
from headwater.state.leases import Leases

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
"""How often the progress of a step is written down at the most."""
ATTEMPTS = 3
"""How often a step is planned again when another change was first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Who wants the steps, and who hears of them. With `alone`, an error is raised instead of told."""

    asked: Asked
    trigger: Trigger = "manual"
    progress: Tell = nobody
    alone: bool = False
    notes: list[str] = field(default_factory=list)


class StepRunner:
    """Does steps and accounts for them. `reload` gives a table as it is now."""

    def __init__(
        self,
        steps: Steps,
        store: CareStore,
        metrics: Metrics,
        lease_ttl: float,
        reload: Callable[[Subject], Subject],
    ) -> None:
        self._steps = steps
        self._store = store
        self._metrics = metrics
        self._lease_ttl = lease_ttl
        self._reload = reload

    def run(self, subject: Subject, steps: Sequence[MaintenanceStep], wanted: Wanted) -> list[Step]:
        """Do the steps, one after the other, each on the table as the one before it left it."""
        with self.held(str(subject.name)) as ours:
            if not ours:
                return [self._held_up(subject, step, wanted) for step in steps]
            done = []
            for step in steps:
                if wanted.asked.cancelled():
                    break
                done.append(self._step(subject, step, wanted))
            return done

    @contextmanager
    def held(self, table: str) -> Iterator[bool]:
        """The lease of the table, for a holder of its own: the parts of a process keep out of each other's way too."""
        holder = holder_name(str(ULID()))
        with Leases(self._store.engine, holder, self._lease_ttl).held(lease_of(table)) as ours:
            yield ours

    def _held_up(self, subject: Subject, step: MaintenanceStep, wanted: Wanted) -> Step:
        message = f'table "{subject.name}" is being taken care of already'
        if wanted.alone:
            raise Conflict(message, hint="SHOW MAINTENANCE tells how far it is.")
        return replace(begun(str(subject.name), step, wanted.trigger), outcome="skipped", reason=message)

    def _step(self, subject: Subject, step: MaintenanceStep, wanted: Wanted) -> Step:
        line, clock = begun(str(subject.name), step, wanted.trigger), time.perf_counter()
        try:
            ended = replace(self._replanned(subject, line, step, wanted), seconds=time.perf_counter() - clock)
        except Exception as error:
            if not wanted.alone and self._is_gone(subject):
                return replace(line, outcome="skipped", reason="it was dropped")
            ended = failed(line, error, time.perf_counter() - clock)
            self.account(ended)
            if wanted.alone:
                raise
            log.warning("maintenance failed", extra={"table": line.table, "step": step, "error": str(error)})
            return ended
        self.account(ended)
        return ended

    def _is_gone(self, subject: Subject) -> bool:
        try:
            self._reload(subject)
        except (TopicNotFound, ViewNotFound):
            return True
        return False

    def _replanned(self, subject: Subject, line: Step, step: MaintenanceStep, wanted: Wanted) -> Step:
        """Run the step's plan, made anew when another change was first."""
        asked = replace(wanted.asked, brief=True)
        for attempt in range(ATTEMPTS):
            plan = self._steps.plan(step, self._reload(subject), asked)
            if not plan.due:
                wanted.notes.extend(plan.notes)
                return replace(line, outcome="nothing", reason=plan.reason, numbers=plan.numbers)
            try:
                return self._run(plan, line, wanted)
            except StaleCommit:
                if attempt == ATTEMPTS - 1:
                    raise
                log.info("maintenance is planned again", extra={"table": line.table, "step": step})
        raise AssertionError

    def _run(self, plan: Planned, line: Step, wanted: Wanted) -> Step:
        running = replace(line, reason=plan.reason, numbers=plan.numbers)
        self._store.record(running)
        wanted.progress(described(running))
        told = [0.0]

        def tell(numbers: dict[str, Any]) -> None:
            wanted.progress(described(replace(running, numbers=numbers)))
            if time.monotonic() - told[0] >= TELL_SECONDS:
                told[0] = time.monotonic()
                self._store.progress(line.id, numbers)

        numbers = dict(plan.run(tell))
        wanted.notes.extend(plan.notes)
        return replace(running, outcome="done", numbers=numbers)

    def account(self, step: Step) -> None:
        """Count a step that ended, and write it down unless nobody asked and there was nothing to do."""
        if step.outcome != "nothing":
            self._metrics.maintenance_steps.labels(step.step, step.outcome).inc()
        if step.outcome == "done":
            self._metrics.maintenance_seconds.labels(step.step).observe(step.seconds or 0.0)
            self._metrics.maintenance_files.labels(step.step).inc(_number(step, "files"))
            self._metrics.maintenance_bytes.labels(step.step).inc(_number(step, "bytes"))
        # The search for orphans is spaced by when it last ended, so that one is written down in any case.
        if step.outcome == "nothing" and step.trigger == "schedule" and step.step != "orphans":
            return
        try:
            self._store.record(step)
        except HeadwaterError as wrong:  # what was done stands
            log.warning("maintenance was not written down", extra={"table": step.table, "error": str(wrong)})


def begun(table: str, step: MaintenanceStep, trigger: Trigger) -> Step:
    """The account of a step that begins now."""
    return Step(str(ULID()), table, step, trigger, datetime.now(UTC), "running")


def failed(line: Step, error: Exception, seconds: float) -> Step:
    """The account of a step that raised."""
    code = error.code if isinstance(error, HeadwaterError) else HeadwaterError.code
    return replace(line, outcome="failed", code=code, error=str(error) or type(error).__name__, seconds=seconds)


def described(step: Step) -> dict[str, Any]:
    """A step as plain data."""
    seconds = None if step.seconds is None else round(step.seconds, 3)
    return {
        **asdict(step),
        "numbers": dict(step.numbers),
        "started_at": step.started_at.isoformat(),
        "seconds": seconds,
    }


def _number(step: Step, name: str) -> int:
    return int(step.numbers.get(name, step.numbers.get(f"{name}_before", 0)) or 0)
