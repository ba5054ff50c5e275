"""The steps of the care of one table: each is planned, which a dry run prints, and the same plan is then run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from headwater.catalog.definitions import P_KIND
from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import P_POSITION, P_SIGNED, S_METHOD, S_POSITION, S_SIGNED, View, Views
from headwater.config import Settings
from headwater.sql.statements import MaintenanceStep
from headwater.sql.units import counted
from headwater.state.care import CareStore, DamagedFile, Pending
from headwater.storage.checksums import state_of
from headwater.storage.maintenance.deletions import run_deletions
from headwater.storage.maintenance.expire import (
    ExpiryPlan,
    Keep,
    Unreferenced,
    plan_expiry,
    run_expiry,
    unreferenced,
)
from headwater.storage.maintenance.manifests import manifest_plan, run_manifests
from headwater.storage.maintenance.orphans import orphan_plan, run_orphans
from headwater.storage.maintenance.retention import plan_retention, run_retention
from headwater.storage.scan import ManifestCache
from headwater.streaming.sending import last_epoch
from headwater.types import VIEW_TAG, TableName, id_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARGIN = 600.0
"""Seconds beyond the longest query for which files are kept that only expired snapshots refer to."""

Numbers = Mapping[str, Any]
Tell = Callable[[dict[str, Any]], None]
"""Hears how far a step is."""


def nobody(_: dict[str, Any]) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic or a view whose table is taken care of, as it is now."""

    of: Topic | View

    @property
    def name(self) -> TableName:
        return self.of.table_name

    @property
    def table(self) -> Table:
        return self.of.table

    @property
    def topic(self) -> Topic | None:
        return self.of if isinstance(self.of, Topic) else None


@dataclass(frozen=True, slots=True)
class Asked:
    """How a step is wanted: at which moment, whether compaction was asked for by its name, of all files, and when to
    stop. A `brief` plan leaves out numbers that cost more than the decision; the run tells them."""

    now: float
    optimize: bool = False
    full: bool = False
    brief: bool = False
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Planned:
    """A step as it would be run: whether there is anything to do, why, in numbers; `run` does it, and says what it did
    in numbers too."""

    step: MaintenanceStep
    table: str
    due: bool
    reason: str
    numbers: Numbers = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    run: Callable[[Tell], Numbers] = field(default=lambda _: {}, repr=False)


class Steps:
    """Plans the steps for the tables of one lake."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        store: CareStore,
        cache: ManifestCache,
        spark: Callable[[], SparkSession],
        settings: Settings,
        now: Callable[[], float],
    ) -> None:
        self._topics = topics
        self._views = views
        self._store = store
        self._cache = cache
        self._spark = spark
        self._settings = settings
        self._now = now
        self.grace = settings.query_timeout + MARGIN

    def applicable(self, subject: Subject) -> tuple[MaintenanceStep, ...]:
        """The steps that a table can need, in their order; views fold and forget rows by themselves."""
        every: tuple[MaintenanceStep, ...] = ("expire", "manifests", "deletions", "orphans")
        return ("retention", "compact", *every) if subject.topic is not None else every

    def plan(self, step: MaintenanceStep, subject: Subject, asked: Asked) -> Planned:
        """What the step would do now."""
        plans: dict[MaintenanceStep, Callable[[Subject, Asked], Planned]] = {
            "retention": self._retention,
            "compact": self._compact,
            "expire": self._expire,
            "manifests": self._manifests,
            "deletions": self._deletions,
            "orphans": self._orphans,
        }
        return plans[step](subject, asked)

    def _load(self, subject: Subject) -> Callable[[], Table]:
        return lambda: self._topics.tables.load_for_commit(subject.name)

    # -- rows -------------------------------------------------------------------------------------------------------

    def _retention(self, subject: Subject, asked: Asked) -> Planned:
        topic = subject.topic
        assert topic is not None
        plan = plan_retention(topic, self._cache, asked.now)
        name = str(subject.name)
        if plan.empty:
            return Planned("retention", name, False, plan.reason, plan.describe())
        readers = sorted(view.name for view in self._views.readers_of(topic.table_name))
        notes = (f"Materialized views that lose what those rows gave them: {', '.join(readers)}.",) if readers else ()

        def run(_: Tell) -> Numbers:
            done = run_retention(self._load(subject), topic, plan)
            return done.describe() | {"views": readers, "snapshot": id_text(done.snapshot_id)}

        return Planned("retention", name, True, plan.reason, plan.describe() | {"views": readers}, notes, run)

    def _compact(self, subject: Subject, asked: Asked) -> Planned:
        from headwater.topics.compaction import plan_compaction, run_compaction

        topic = subject.topic
        assert topic is not None
        name = str(subject.name)
        if topic.definition.options.compaction == "off" and not asked.optimize:
            return Planned("compact", name, False, "the option compaction is off")
        # Who asks by name is told again; otherwise a damaged file is told once, and waits until it has changed.
        bad = [] if asked.optimize else [each.path for each in self._store.damaged(topic.id) if _is_as_found(each)]
        plan = plan_compaction(topic, self._cache, now=asked.now, full=asked.full, asked=asked.optimize, damaged=bad)
        notes = (_left_alone(plan.passed_over),) if plan.passed_over else ()

        def run(tell: Tell) -> Numbers:
            memory = self._settings.sort_memory
            # As they are before they are read: one that is put back meanwhile has another state than the damaged one.
            states = {path: state_of(Path(path)) for path in plan.paths}
            done = run_compaction(
                self._topics,
                plan,
                self._spark,
                self._cache,
                progress=tell,
                cancelled=asked.cancelled,
                memory=memory,
            )
            if done.damaged:  # what could be rewritten is committed
                self._store.note_damage(
                    [DamagedFile(path, topic.id, states[path], why) for path, why in done.left_alone if path in states]
                )
                raise done.damaged[0]
            return done.describe()

        return Planned("compact", name, bool(plan.groups), plan.reason, plan.describe(), notes, run)

    # -- metadata ---------------------------------------------------------------------------------------------------

    def keep(self, subject: Subject) -> Keep:
        """How many past states the table keeps."""
        topic, settings = subject.topic, self._settings
        if topic is None:
            seconds, least = settings.view_snapshot_retention, settings.view_min_snapshots
            most = max(least, settings.view_max_snapshots)
        else:
            options = topic.definition.options
            seconds, least, most = options.snapshot_retention, options.min_snapshots, options.max_snapshots
        return Keep(seconds, least, most, self.grace)

    def _expire(self, subject: Subject, asked: Asked) -> Planned:
        keep = self.keep(subject)

        def planned(table: Table) -> ExpiryPlan:
            return plan_expiry(table.metadata, keep, asked.now, self._stale_tags(table), _unsent(subject, table))

        def note(files: Sequence[Unreferenced]) -> None:
            # From now on, not from when the run began: the steps before may have taken longer than any read may.
            due, id = self._now() + self.grace, str(subject.table.metadata.table_uuid)
            self._store.pend([Pending(file.path, id, due, file.bytes) for file in files])

        def run(_: Tell) -> Numbers:
            return run_expiry(self._load(subject), planned, note, self._cache).describe()

        plan = planned(subject.table)
        numbers: dict[str, Any] = {"snapshots": len(plan.snapshots), "tags": len(plan.tags)}
        numbers |= {"snapshots_kept": plan.kept, "snapshots_held_by_views": plan.held_by_views}
        if not asked.brief:
            files = unreferenced(subject.table, plan.snapshots, self._cache)
            numbers |= {"files": len(files), "bytes": sum(file.bytes for file in files)}
        return Planned("expire", str(subject.name), not plan.empty, plan.reason, numbers, (), run)

    def _stale_tags(self, table: Table) -> list[str]:
        """Tags of views that do not exist; the metadata was read before, and a view exists before its tags do."""
        tags = [name for name in table.metadata.refs if name.startswith(VIEW_TAG)]
        if not tags:
            return []
        views = set(self._views.names())
        return [name for name in tags if name.removeprefix(VIEW_TAG) not in views]

    def _manifests(self, subject: Subject, asked: Asked) -> Planned:
        plan = manifest_plan(subject.table, self._cache)

        def run(_: Tell) -> Numbers:
            done = run_manifests(self._load(subject), self._cache, carried)
            return done.describe() | {"snapshot": id_text(done.snapshot_id)}

        return Planned("manifests", str(subject.name), not plan.empty, plan.reason, plan.describe(), (), run)

    # -- files ------------------------------------------------------------------------------------------------------

    def _deletions(self, subject: Subject, asked: Asked) -> Planned:
        id = str(subject.table.metadata.table_uuid)
        waiting = self._store.pending(id)
        reads = self._store.long_reads(asked.now)
        # A read that may take longer than others began before the file was noted: it may have been planned with it.
        due = [
            each
            for each in waiting
            if each.due <= asked.now and not any(began <= each.due - self.grace for began in reads)
        ]

        def run(_: Tell) -> Numbers:
            paths = [each.path for each in due]
            return run_deletions(self._load(subject), paths, self._cache, self._store.settle).describe()

        later = len(waiting) - len(due)
        reason = f"no read can still use {counted(len(due), 'file')}" if due else "no file is due"
        reason += f", {later} more are due later" if later else ""
        numbers = {"files": len(due), "bytes": sum(each.bytes for each in due), "files_later": later}
        return Planned("deletions", str(subject.name), bool(due), reason, numbers, (), run)

    def _orphans(self, subject: Subject, asked: Asked) -> Planned:
        load, oldest = self._load(subject), asked.now - self._settings.orphan_age
        id = str(subject.table.metadata.table_uuid)
        plan = orphan_plan(load, self._cache, oldest, lambda: [each.path for each in self._store.pending(id)])
        notes = (f"Files of unknown kinds are left alone: {', '.join(plan.unknown[:5])}.",) if plan.unknown else ()

        def run(_: Tell) -> Numbers:
            return run_orphans(load, self._cache, plan).describe()

        return Planned("orphans", str(subject.name), not plan.empty, plan.reason, plan.describe(), notes, run)


def _is_as_found(file: DamagedFile) -> bool:
    return state_of(Path(file.path)) == file.state


def _left_alone(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return (
        f"Damaged files are left alone until they change: {', '.join(paths[:3])}{more}. See `headwater doctor --deep`."
    )


def _unsent(subject: Subject, table: Table) -> list[int]:
    """The snapshot whose rows a view may still have to send on, whatever its age."""
    if not isinstance(subject.of, View):
        return []
    options = subject.of.definition.options
    last = last_epoch(table) if options.into_topic or options.into_kafka else None
    return [] if last is None else [last]


def carried(table: Table) -> dict[str, str]:
    """What a snapshot that changes nothing must say all the same: a view's tells what it stands for."""
    properties = table.metadata.properties
    if properties.get(P_KIND) != "view":
        return {}
    return {S_POSITION: properties[P_POSITION], S_SIGNED: properties[P_SIGNED], S_METHOD: "manifests"}
