"""Compaction of topics: planned from metadata, written by Spark tasks, committed as `replace` so that no row changes.

Ingest and statements go on meanwhile and never wait. An append beside it does no harm: the commit is tried again on
the new base. If a statement took one of the files away, the group's new files are dropped, and what is left of the
group is tried again.

Crash behaviour: before a commit, new files are orphans and the table is as it was; after it, both states can be read,
and they hold the same rows.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headwater.catalog.topics import Topic, Topics
from headwater.errors import Conflict, Corrupt, QueryCancelled, StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.storage.commit import Change, Committed, MadeFor, commit
from headwater.storage.maintenance.compact import Outcome, Rewrite, Source
from headwater.storage.maintenance.effect import (
    S_COMPACTION,
    S_GROUPS,
    S_SECONDS,
    Compacted,
    CompactionPlan,
    Effect,
)
from headwater.storage.maintenance.policy import Group, order_mark, run_name
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.writer import local_path
from headwater.topics.compaction_plan import plan_compaction
from headwater.topics.ingest import remove_files, target
from headwater.topics.ingest_failures import storage_error, storage_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["plan_compaction", "run_compaction"]

log = logging.getLogger(__name__)

SORT_MEMORY = 256 * 1024**2
JOB_BYTES = 512 * 1024**2
"""Bytes of files that one job rewrites, and one commit replaces, unless a group is larger."""
ATTEMPTS = 4
"""How often a group is tried whose files others keep taking away."""


def run_compaction(
    topics: Topics,
    plan: CompactionPlan,
    spark: Callable[[], SparkSession],
    cache: ManifestCache,
    *,
    progress: Callable[[dict[str, Any]], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    memory: int = SORT_MEMORY,
) -> Compacted:
    """Rewrite the plan's groups; what was committed stays when it is cancelled, or when a group is damaged."""
    run = _Run(topics, plan, spark, cache, progress, cancelled, memory)
    try:
        done = run.all(plan.groups)
        if plan.wish.full and run.moved and not done.cancelled:
            # Rows of files of an older partition spec lie in many small files now, one for each partition and group.
            topic, bad = topics.load(plan.topic), {path for path, _ in done.left_alone}
            done = run.all(plan_compaction(topic, cache, now=plan.wish.now, asked=True, damaged=bad).groups)
    except storage_errors() as failed:
        left = "What was committed stays; no row has changed."
        raise storage_error(failed, f'compaction of topic "{plan.topic}"', left) from failed
    log.info("topic compacted", extra={"topic": plan.topic, **done.describe()})
    return done


@dataclass(frozen=True, slots=True)
class _Written:
    """A group with the files that are to stand for it."""

    group: Group
    outcome: Outcome


class _Run:
    """One run of a plan."""

    def __init__(
        self,
        topics: Topics,
        plan: CompactionPlan,
        spark: Callable[[], SparkSession],
        cache: ManifestCache,
        progress: Callable[[dict[str, Any]], None],
        cancelled: Callable[[], bool],
        memory: int,
    ) -> None:
        self._topics = topics
        self._plan = plan
        self._spark = spark
        self._cache = cache
        self._progress = progress
        self._cancelled = cancelled
        self._memory = memory
        self._done = Compacted(plan.topic, predicted=plan.effect)
        self.moved = False

    def all(self, groups: Sequence[Group]) -> Compacted:
        left = list(groups)
        for _ in range(ATTEMPTS):
            stale: list[Group] = []
            for job in _jobs(left):
                if self._cancelled():
                    return replace(self._done, cancelled=True)
                try:
                    stale += self._job(job)
                except QueryCancelled:
                    return replace(self._done, cancelled=True)
            if not stale:
                break
            left = self._what_is_left(stale)
        else:
            self._done = replace(self._done, stale=len(left))
        return self._done

    def _job(self, groups: Sequence[Group]) -> list[Group]:
        """Rewrite some groups of a kind and commit them; those of which files have gone meanwhile, or are damaged."""
        from ulid import ULID

        from headwater.storage.maintenance.compact_spark import run_job

        started = time.perf_counter()
        topic = self._load()
        into, write = target(topic), str(ULID()).lower()
        self.moved |= any(file.spec_id != into.spec.spec_id for group in groups for file in group.files)
        rewrites = _rewrites(groups, order_mark(into.layout, into.schema), write)
        try:
            outcomes = run_job(self._spark(), rewrites, into, self._memory, self._cancelled)
        except BaseException:
            sweep(topic, write)
            raise
        failpoint("compaction.written")
        written = self._good(groups, outcomes)
        again = self._without_damage(groups, outcomes)
        again += self._commit(topic, written, time.perf_counter() - started)
        failpoint("compaction.committed")
        self._progress(self._so_far())
        return again

    def _load(self) -> Topic:
        topic = self._topics.load(self._plan.topic)
        if topic.id != self._plan.table_id:
            raise StaleCommit(f'topic "{topic.name}" was made anew', hint="Plan the compaction again.")
        return topic

    def _good(self, groups: Sequence[Group], outcomes: Sequence[Outcome]) -> list[_Written]:
        """The groups that were written; any failure but damage ends the run."""
        good = [_Written(groups[each.number], each) for each in outcomes if each.failed is None]
        for outcome in outcomes:
            if outcome.failed is not None and not isinstance(outcome.failed, Corrupt):
                remove_files([file for each in good for file in each.outcome.files])
                raise outcome.failed
        return good

    def _without_damage(self, groups: Sequence[Group], outcomes: Sequence[Outcome]) -> list[Group]:
        """The groups that have damaged files, without them; the files are remembered."""
        left: list[Group] = []
        for outcome in outcomes:
            if not isinstance(outcome.failed, Corrupt):
                continue
            group, damaged = groups[outcome.number], outcome.damaged or (outcome.failed,)
            alone = [(path, str(each)) for each in damaged for path in _blamed(each, group)]
            log.error("compaction leaves damaged files alone", extra={"why": [str(each) for each in damaged]})
            self._done = replace(
                self._done,
                damaged=(*self._done.damaged, *damaged),
                left_alone=(*self._done.left_alone, *alone),
            )
            bad = {path for path, _ in alone}
            left.append(_only(group, {each.file_path for each in group.files if _path(each) not in bad}))
        return left

    def _commit(self, topic: Topic, written: Sequence[_Written], seconds: float) -> list[Group]:
        """Commit all groups at once, or each by itself if files of some have gone; those of which they have."""
        if not written:
            return []
        try:
            self._swap(topic, written, seconds)
            return []
        except StaleCommit:
            if len(written) > 1:
                return [group for each in written for group in self._commit(topic, [each], seconds / len(written))]
        except (Conflict, NoSuchTableError):
            remove_files([file for each in written for file in each.outcome.files])
            self._topics.load(topic.name)  # TopicNotFound, if that is why
            raise
        remove_files(written[0].outcome.files)  # no table will ever refer to them
        return [written[0].group]

    def _swap(self, topic: Topic, written: Sequence[_Written], seconds: float) -> None:
        added = [file for each in written for file in each.outcome.files]
        removed = [file for each in written for file in each.group.files]
        summary = {
            S_COMPACTION: written[0].group.kind,
            S_GROUPS: str(len(written)),
            S_SECONDS: f"{seconds:.3f}",
        }
        change = Change(added, removed, "replace", summary, made_for=MadeFor.of(topic.table))

        def check(table: Table) -> None:
            if str(table.metadata.table_uuid) != topic.id:
                raise StaleCommit(f'topic "{topic.name}" was made anew')

        done = commit(lambda: self._topics.tables.load_for_commit(topic.table_name), change, check)
        self._count(done, written, removed, seconds)

    def _count(self, done: Committed, written: Sequence[_Written], removed: Sequence[DataFile], seconds: float) -> None:
        before = sum(file.file_size_in_bytes for file in removed)
        self._done = replace(
            self._done,
            effect=self._done.effect + Effect(len(removed), done.files, before, done.bytes, done.rows, seconds),
            groups=self._done.groups + len(written),
            snapshots=(*self._done.snapshots, done.snapshot_id),
        )

    def _so_far(self) -> dict[str, Any]:
        return {"groups_planned": len(self._plan.groups), "bytes_planned": self._plan.effect.bytes_before} | {
            key: value for key, value in self._done.describe().items() if key not in ("predicted", "snapshots")
        }

    def _what_is_left(self, stale: Sequence[Group]) -> list[Group]:
        """The groups without the files that have gone; a statement has written those anew in the current layout."""
        topic = self._load()
        live = {file.file_path for file in plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), self._cache).files}
        groups = [_only(group, live) for group in stale]
        return [group for group in groups if len(group.files) > 1 or (group.files and group.kind != "pack")]


def _blamed(damage: Corrupt, group: Group) -> list[str]:
    """The files that cannot be rewritten: the one that the error names, or all if it names none."""
    named = damage.data.get("file")
    return [_path(file) for file in group.files] if named is None else [str(named)]


def _path(file: DataFile) -> str:
    return str(local_path(file.file_path))


def _only(group: Group, live: set[str]) -> Group:
    files = tuple(file for file in group.files if file.file_path in live)
    rows, size = (sum(getattr(file, name) for file in files) for name in ("record_count", "file_size_in_bytes"))
    return replace(group, files=files, rows=rows, bytes=size)


def _jobs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Groups of one kind at a time, as many as one commit takes, in the order of the plan."""
    by_kind: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_kind[group.kind].append(group)
    for same in by_kind.values():
        job: list[Group] = []
        for group in same:
            if job and sum(each.bytes for each in job) + group.bytes > JOB_BYTES:
                yield job
                job = []
            job.append(group)
        yield job


def _rewrites(groups: Sequence[Group], mark: str | None, write: str) -> list[Rewrite]:
    return [
        Rewrite(
            number,
            tuple(Source(file.file_path, file.file_size_in_bytes, file.record_count) for file in group.files),
            run_name(mark, write, number) if group.run and mark is not None else f"p_{write}_{number}",
            group.run,
            frozenset(each for file in group.files for each in _with_nans(file)),
        )
        for number, group in enumerate(groups)
    ]


def _with_nans(file: DataFile) -> Iterator[int]:
    """The fields in which the file has NaN, or may have: not every writer counts them."""
    counts = dict(file.nan_value_counts or {})
    return (each for each in {*counts, *(file.value_counts or {})} if counts.get(each, 1))


def sweep(topic: Topic, write: str) -> None:
    """Delete what a write has left; no snapshot refers to it."""
    for path in (local_path(topic.table.location()) / "data").rglob(f"*_{write}_*.parquet"):
        path.unlink(missing_ok=True)
