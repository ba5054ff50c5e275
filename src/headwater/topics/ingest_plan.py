"""What the next commit of a topic takes from the log: a pure plan.

Rows are committed when enough of them wait (`batch_size`, at most once per `commit_interval`), and in any case when the
oldest has waited `rotation_timeout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.topics.log import Entry
from headwater.types import Offsets, TopicOptions

SPLIT_BYTES = 4 * 1024**2
"""Below this, a second Spark task costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to commit yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ingest:
    """Commit `consumed`, which these entries of the log hold."""

    consumed: Offsets
    entries: tuple[Entry, ...] = field(repr=False)
    bytes: int
    reason: str


IngestPlan = Wait | Ingest


def plan_ingest(
    options: TopicOptions,
    entries: Sequence[Entry],
    *,
    now: float,
    last_commit: float,
    max_bytes: int,
    force: bool = False,
) -> IngestPlan:
    """What to commit of `entries` (all that the table lacks, in order) at `now` (seconds)."""
    if not entries:
        return Wait("the log is empty")
    reason = _due(options, entries, now, last_commit, force)
    if isinstance(reason, Wait):
        return reason
    taken = _upto(entries, max_bytes)
    size = sum(entry.bytes for entry in taken)
    return Ingest(Offsets(taken[0].offsets.start, taken[-1].offsets.end), tuple(taken), size, reason)


def _due(options: TopicOptions, entries: Sequence[Entry], now: float, last_commit: float, force: bool) -> str | Wait:
    rows = entries[-1].offsets.end - entries[0].offsets.start
    age = now - entries[0].appended_at / 1e6
    if force:
        return "flush"
    since = abs(now - last_commit)  # a clock that went back must not hold up commits until it is where it was
    if age >= options.rotation_timeout:
        return f"the oldest record waited {age:.0f} s (rotation_timeout)"
    if -age >= options.rotation_timeout and since >= options.rotation_timeout:
        return f"the oldest record is from {-age:.0f} s ahead of the clock, which went back"
    if rows < options.batch_size:
        return Wait(f"{rows} of {options.batch_size} rows (batch_size) wait")
    if since < options.commit_interval:
        return Wait(f"the last commit is {since:.1f} s old (commit_interval)")
    return f"{rows} rows wait (batch_size)"


def _upto(entries: Sequence[Entry], max_bytes: int) -> list[Entry]:
    taken, size = [entries[0]], entries[0].bytes
    for entry in entries[1:]:
        size += entry.bytes
        if size > max_bytes:
            break
        taken.append(entry)
    return taken


def split(entries: Sequence[Entry], parallelism: int) -> tuple[tuple[Entry, ...], ...]:
    """Runs of about equal bytes, in order: one per Spark task, as many as there are cores for and bytes worth it."""
    size = sum(entry.bytes for entry in entries)
    parts = min(parallelism, max(1, size // SPLIT_BYTES))
    share = size / parts
    runs: list[list[Entry]] = [[]]
    filled = 0.0
    for entry in entries:
        if runs[-1] and len(runs) < parts and filled + entry.bytes / 2 > share * len(runs):
            runs.append([])
        runs[-1].append(entry)
        filled += entry.bytes
    return tuple(tuple(run) for run in runs)
