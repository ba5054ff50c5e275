"""Retention: files whose rows are all too old, or the oldest files of a table that is too large, leave it.

Only whole files go, by their statistics, in a commit that reads no row: a row lives at least as long as it is to be
kept, and at most until every row of its file is that old. A row without a time is never old. To those who follow the
table it is a deletion like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import DateType, NestedField, PrimitiveType

from headwater.catalog.topics import Topic
from headwater.errors import StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.sql.units import counted
from headwater.storage.commit import Change, Committed, commit
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.types import OFFSET, TopicOptions

S_RETIRED = "headwater.retired-rows"
"""Entry of a snapshot's summary: how many rows were too old, or too many."""

_DAY = 86_400


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Files that go because all of their rows are older than `cutoff`, and because the table is too large."""

    old: tuple[DataFile, ...] = field(default=(), repr=False)
    beyond_size: tuple[DataFile, ...] = field(default=(), repr=False)
    cutoff: datetime | None = None
    straddling: int = 0
    total: int = 0

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (*self.old, *self.beyond_size)

    @property
    def empty(self) -> bool:
        return not self.files

    @property
    def reason(self) -> str:
        if self.empty:
            return "no file is too old, and the table is not too large"
        parts = []
        if self.old:
            parts.append(f"all rows of {counted(len(self.old), 'file')} are older than {self.cutoff:%Y-%m-%d %H:%M:%S}")
        if self.beyond_size:
            parts.append(f"the oldest {counted(len(self.beyond_size), 'file')} to get below retention_size")
        return " and ".join(parts)

    def describe(self) -> dict[str, Any]:
        return {
            "files": len(self.files),
            "bytes": sum(file.file_size_in_bytes for file in self.files),
            "rows": sum(file.record_count for file in self.files),
            "files_kept": self.total - len(self.files),
            "files_partly_old": self.straddling,
        }


def plan_retention(topic: Topic, cache: ManifestCache, now: float) -> RetentionPlan:
    """What the topic's options ask to go at `now`."""
    options = topic.definition.options
    if not options.retention and not options.retention_size:
        return RetentionPlan()
    files = plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), cache).files
    column, offset = topic.schema.find_field(options.retention_column), topic.schema.find_field(OFFSET)
    old, straddling = _old(files, column, options, now)
    chosen = {file.file_path for file in old}
    left = [file for file in files if file.file_path not in chosen]
    beyond = _beyond(left, column, offset, options.retention_size)
    cutoff = datetime.fromtimestamp(now - options.retention, UTC) if options.retention else None
    return RetentionPlan(tuple(old), tuple(beyond), cutoff, straddling, len(files))


def _old(
    files: Sequence[DataFile], column: NestedField, options: TopicOptions, now: float
) -> tuple[list[DataFile], int]:
    """Files whose rows are all old, and how many others have some that are."""
    if not options.retention:
        return [], 0
    cutoff, old, straddling = now - options.retention, [], 0
    for file in files:
        latest, earliest = _seconds(file.upper_bounds, column, end=True), _seconds(file.lower_bounds, column)
        nulls = (file.null_value_counts or {}).get(column.field_id)
        if latest is not None and latest < cutoff and (column.required or nulls == 0):
            old.append(file)
        elif earliest is not None and earliest < cutoff:
            straddling += 1
    return old, straddling


def _seconds(bounds: dict[int, bytes] | None, column: NestedField, *, end: bool = False) -> float | None:
    """A bound of the column in seconds since 1970; the `end` of a date is that of its day."""
    found = (bounds or {}).get(column.field_id)
    if found is None or not isinstance(column.field_type, PrimitiveType):
        return None
    value: int = from_bytes(column.field_type, found)  # type: ignore[assignment]
    return float((value + end) * _DAY) if isinstance(column.field_type, DateType) else value / 1e6


def _beyond(files: Sequence[DataFile], column: NestedField, offset: NestedField, most: int) -> list[DataFile]:
    """The oldest files, so that the others have at most `most` bytes."""
    excess = sum(file.file_size_in_bytes for file in files) - most
    if not most or excess <= 0:
        return []
    gone: list[DataFile] = []
    for file in sorted(files, key=lambda file: _age(file, column, offset)):
        if excess <= 0:
            break
        gone.append(file)
        excess -= file.file_size_in_bytes
    return gone


def _age(file: DataFile, column: NestedField, offset: NestedField) -> tuple[float, float, str]:
    """By the latest time in it, then by its last offset; a file without times counts as new."""
    latest = _seconds(file.upper_bounds, column, end=True)
    last = (file.upper_bounds or {}).get(offset.field_id)
    number = float(from_bytes(offset.field_type, last)) if last is not None else 0.0  # type: ignore[arg-type]
    return (float("inf") if latest is None else latest, number, file.file_path)


@dataclass(frozen=True, slots=True)
class Retired:
    plan: RetentionPlan
    snapshot_id: int | None = None

    def describe(self) -> dict[str, Any]:
        return self.plan.describe()


def run_retention(load: Callable[[], Table], topic: Topic, plan: RetentionPlan) -> Retired:
    """Take the plan's files out of the table; StaleCommit if another change took one of them first."""
    failpoint("retention.planned")
    rows = str(sum(file.record_count for file in plan.files))

    def check(table: Table) -> None:
        if str(table.metadata.table_uuid) != topic.id:
            raise StaleCommit(f'topic "{topic.name}" was made anew')

    done: Committed = commit(load, Change((), plan.files, "overwrite", {S_RETIRED: rows}), check)
    failpoint("retention.committed")
    return Retired(plan, done.snapshot_id)
