"""What a compaction will cost and bring, and what it cost and brought: the two are said in the same words.

Seconds are predicted from what earlier compactions of the table took, which their snapshots' summaries tell; where
there was none, from figures of `make bench NAME=care`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headwater.errors import Corrupt
from headwater.storage.maintenance.policy import Group, Kind
from headwater.storage.writer import local_path
from headwater.types import id_text

S_COMPACTION = "headwater.compaction"
S_SECONDS = "headwater.compaction-seconds"
S_GROUPS = "headwater.compaction-groups"

BYTES_PER_SECOND: Mapping[Kind, float] = {"pack": 18e6, "sort": 14e6, "zorder": 12e6, "full": 14e6}
"""Bytes of source files that two cores rewrite in a second, where the table has no earlier compaction to go by."""
OVERHEAD = 0.5
"""Seconds that a compaction takes however little there is to do."""
LEAST_MEASURED = 4 * 1024**2
"""Bytes below which a compaction says nothing of how fast one is."""
REMEMBERED = 8
"""How many of a table's last compactions say how long the next one takes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for: a plan can be made anew on a newer state of the table by the same wish."""

    now: float
    full: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """Files, bytes and rows that are rewritten, what they become, and the seconds that it takes."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    seconds: float = 0.0

    def __add__(self, other: Effect) -> Effect:
        return Effect(
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.rows + other.rows,
            self.seconds + other.seconds,
        )

    def describe(self) -> dict[str, Any]:
        return {
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Groups of files to rewrite, why, and what that is predicted to cost and bring. `passed_over` are live files that
    are known to be damaged."""

    topic: str
    table_id: str
    groups: tuple[Group, ...] = field(repr=False)
    reason: str
    effect: Effect
    wish: Wish
    passed_over: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The files that it rewrites."""
        return [str(local_path(file.file_path)) for group in self.groups for file in group.files]

    def describe(self) -> dict[str, Any]:
        kinds = Counter(group.kind for group in self.groups)
        return {"reason": self.reason, "groups": dict(kinds), **self.effect.describe()}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did beside what was predicted; `damaged` says which files were left alone, and why."""

    topic: str
    effect: Effect = field(default_factory=Effect)
    predicted: Effect = field(default_factory=Effect)
    groups: int = 0
    stale: int = 0  # groups of which another statement took files away meanwhile
    snapshots: tuple[int, ...] = ()
    damaged: tuple[Corrupt, ...] = ()
    left_alone: tuple[tuple[str, str], ...] = ()  # the paths of damaged files, each with what is wrong
    cancelled: bool = False

    def describe(self) -> dict[str, Any]:
        return {
            **self.effect.describe(),
            "groups": self.groups,
            "groups_stale": self.stale,
            "predicted": self.predicted.describe(),
            "snapshots": [id_text(each) for each in self.snapshots],
            "damaged": [str(each) for each in self.damaged],
            "cancelled": self.cancelled,
        }


def predict(groups: Sequence[Group], metadata: TableMetadata) -> Effect:
    """What rewriting the groups will cost and bring, going by the table's history."""
    rate = _rates(metadata)
    total = Effect(seconds=OVERHEAD if groups else 0.0)
    for group in groups:
        seconds = group.bytes / rate(group.kind)
        total += Effect(len(group.files), group.files_after, group.bytes, group.bytes, group.rows, seconds)
    return total


def _rates(metadata: TableMetadata) -> Callable[[Kind], float]:
    """Bytes per second by kind, from the last compactions of that kind."""
    past: dict[str, list[tuple[float, float]]] = {}
    for snapshot in sorted(metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True):
        if (found := _measured(snapshot)) is not None:
            past.setdefault(found[0], []).append(found[1:])

    def rate(kind: Kind) -> float:
        last = past.get(kind, [])[:REMEMBERED]
        seconds = sum(taken for _, taken in last)
        return sum(size for size, _ in last) / seconds if seconds > 0 else BYTES_PER_SECOND[kind]

    return rate


def _measured(snapshot: Snapshot) -> tuple[str, float, float] | None:
    """The kind, bytes and seconds of a compaction that was large enough; None if the snapshot is none."""
    said = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    size, seconds = float(said.get("removed-files-size", 0)), float(said.get(S_SECONDS, 0))
    if S_COMPACTION not in said or size < LEAST_MEASURED:
        return None
    return said[S_COMPACTION], size, max(seconds - OVERHEAD, seconds / 10)
