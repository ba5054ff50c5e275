"""The care of a lake's tables: MAINTAIN, OPTIMIZE, SHOW MAINTENANCE, and what a service asks for by itself.

A step that fails does not keep the others from being done. A lease per table keeps processes, and the parts of one,
from doing the same at once; that nothing is lost rests on the commits, and on asking again before a file is deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import Views
from headwater.config import LakePaths, Settings
from headwater.engine.care_folders import plan_leftovers
from headwater.engine.care_run import StepRunner, Wanted, begun, described, failed
from headwater.engine.care_steps import Asked, Steps, Subject, Tell, nobody
from headwater.errors import Corrupt, NotFound, TopicNotFound, ViewNotFound
from headwater.observability.metrics import Metrics
from headwater.serving.care_answers import maintained, remembered
from headwater.serving.query import Cancel
from headwater.serving.result import Result
from headwater.sql.statements import CareStatement, Maintain, MaintenanceStep, Optimize, ShowMaintenance
from headwater.state.care import CareStore, Step, Trigger
from headwater.storage.scan import ManifestCache
from headwater.types import TOPICS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

WAREHOUSE = "warehouse"
"""In the place of a table's name: what belongs to no table."""


class Care:
    """Takes care of the tables of one lake."""

    def __init__(
        self,
        paths: LakePaths,
        settings: Settings,
        topics: Topics,
        views: Views,
        spark: Callable[[], SparkSession],
        metrics: Metrics,
        cache: ManifestCache,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._warehouse = paths.warehouse
        self._orphan_age = settings.orphan_age
        self._topics = topics
        self._views = views
        self._metrics = metrics
        self.now = now
        self.store = CareStore(paths.state, settings.busy_timeout, settings.maintenance_history)
        self._cache = cache
        self.steps = Steps(topics, views, self.store, self._cache, spark, settings, lambda: self.now())
        self.runner = StepRunner(self.steps, self.store, metrics, settings.lease_ttl, self._reloaded)

    def close(self) -> None:
        self.store.close()

    # -- tables ---------------------------------------------------------------------------------------------------

    def subjects(self, broken: Callable[[str, Exception], None] = lambda *_: None) -> list[Subject]:
        """Every topic, dead letters included, and every view; `broken` hears of those that cannot be read."""
        found: list[Subject] = []
        for kept in (self._topics, self._views):
            for name in kept.names():
                try:
                    found.append(Subject(kept.load(name)))
                except NotFound:  # dropped since it was listed
                    continue
                except Exception as error:  # of one table: the others must not wait for it
                    log.warning("table cannot be read", extra={"table": name, "error": str(error)})
                    broken(f"{kept.namespace}.{name}", error)
        return found

    def _named(self, name: str) -> Subject:
        try:
            return Subject(self._topics.load(name))
        except TopicNotFound as missing:
            try:
                return Subject(self._views.load(name))
            except ViewNotFound:
                raise missing from None

    def _reloaded(self, subject: Subject) -> Subject:
        kept = self._topics if subject.name.namespace == TOPICS else self._views
        return Subject(kept.load(subject.name.name))

    def commits(self) -> dict[str, int]:
        """How many commits this process has made to each table."""
        return {".".join(table): count for table, count in self._topics.tables.commits().items()}

    # -- statements -----------------------------------------------------------------------------------------------

    def run(self, statement: CareStatement, cancel: Cancel | None = None, progress: Tell = nobody) -> Result:
        """Answer a statement; `progress` hears of each step when it begins and while it goes on."""
        match statement:
            case ShowMaintenance(name, limit):
                return self._show(name, limit)
            case Optimize(topic, full, dry_run):
                asked = Asked(self.now(), True, full, cancelled=_asks(cancel))
                wanted = Wanted(asked, progress=progress, alone=True)
                return _answered(self._do([Subject(self._topics.load(topic))], ("compact",), wanted, dry_run), wanted)
            case Maintain(name, only, dry_run):
                wanted = Wanted(Asked(self.now(), cancelled=_asks(cancel)), progress=progress)
                lost: list[Step] = []
                subjects = [self._named(name)] if name is not None else self.subjects(_telling(lost))
                done = [*lost, *self._do(subjects, only, wanted, dry_run)]
                if name is None and (not only or "orphans" in only):
                    done.append(self.sweep(wanted.asked, "manual", dry_run=dry_run))
                return _answered(done, wanted)
            case _:
                assert_never(statement)

    def _do(
        self, subjects: Sequence[Subject], only: tuple[MaintenanceStep, ...], wanted: Wanted, dry_run: bool
    ) -> list[Step]:
        done: list[Step] = []
        for subject in subjects:
            steps = [step for step in self.steps.applicable(subject) if not only or step in only]
            done += self._planned(subject, steps, wanted) if dry_run else self.runner.run(subject, steps, wanted)
        return done

    def _planned(self, subject: Subject, steps: Sequence[MaintenanceStep], wanted: Wanted) -> Iterator[Step]:
        for step in steps:
            line = begun(str(subject.name), step, wanted.trigger)
            try:
                plan = self.steps.plan(step, subject, wanted.asked)
            except Exception as error:
                if wanted.alone:
                    raise
                yield failed(line, error, 0.0)
                continue
            wanted.notes.extend(plan.notes)
            yield replace(line, outcome="planned" if plan.due else "nothing", reason=plan.reason, numbers=plan.numbers)

    def sweep(self, asked: Asked, trigger: Trigger, *, dry_run: bool = False) -> Step:
        """Remove the folders of tables that are gone, and the notes of their files."""
        line, clock = begun(WAREHOUSE, "orphans", trigger), time.perf_counter()
        try:
            plan = plan_leftovers(self._topics.tables, self._warehouse, asked.now - self._orphan_age)
            line = replace(line, reason=plan.reason, numbers=plan.describe())
            if dry_run:
                return replace(line, outcome="nothing" if plan.empty else "planned")
            with self.runner.held(WAREHOUSE) as ours:
                line = replace(line, outcome="nothing" if plan.empty or not ours else "done")
                if line.outcome == "done":
                    line = replace(line, numbers=plan.run(), seconds=time.perf_counter() - clock)
            lost: list[Step] = []
            live = [str(each.table.metadata.table_uuid) for each in self.subjects(_telling(lost))]
            if not lost:  # a table that cannot be read just now is not gone
                self.store.settle_tables(live)
        except Exception as error:
            line = failed(line, error, time.perf_counter() - clock)
        self.runner.account(line)
        return line

    # -- reads --------------------------------------------------------------------------------------------------------

    def note_read(self, timeout: float) -> None:
        """A query begins that may run longer than others: files that it may need are kept for as long."""
        self.store.note_read(time.time(), time.time() + timeout)

    # -- telling --------------------------------------------------------------------------------------------------

    def _show(self, name: str | None, limit: int) -> Result:
        table = None if name is None else self._shown(name)
        waiting = self.store.pending()
        pending = {"files": len(waiting), "bytes": sum(each.bytes for each in waiting)}
        return remembered([described(each) for each in self.store.recent(table, limit, time.time())], pending)

    def _shown(self, name: str) -> str:
        try:
            return str(self._named(name).name)
        except NotFound:
            if self.store.recent(f"{TOPICS}.{name}", 1, time.time()):  # it is gone, but not forgotten
                return f"{TOPICS}.{name}"
            raise

    def measure(self) -> None:
        """Set the gauges of what tables look like, from metadata alone."""
        self._metrics.small_files.clear()
        for topic in self._topics.all():
            with suppress(Corrupt):  # the other topics are measured all the same
                self._metrics.small_files.labels(topic.name).set(small_files(topic, self._cache))
        self._metrics.pending_deletion_bytes.set(sum(each.bytes for each in self.store.pending()))


def small_files(topic: Topic, cache: ManifestCache) -> int:
    """Data files of less than half of the size that the topic's files are meant to have."""
    snapshot = topic.table.metadata.current_snapshot()
    manifests = cache.manifests(snapshot, topic.table.io) if snapshot is not None else ()
    half = topic.definition.options.target_file_size / 2
    return sum(file.file_size_in_bytes < half for each in manifests for file in cache.files(each, topic.table.io))


def _answered(steps: Sequence[Step], wanted: Wanted) -> Result:
    return maintained([described(each) for each in steps], wanted.notes)


def _telling(lost: list[Step]) -> Callable[[str, Exception], None]:
    """Notes tables that cannot be read as steps that failed: nothing can be said of any of theirs."""
    return lambda table, error: lost.append(failed(begun(table, "expire", "manual"), error, 0.0))


def _asks(cancel: Cancel | None) -> Callable[[], bool]:
    return (lambda: False) if cancel is None else (lambda: cancel.asked)
