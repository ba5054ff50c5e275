"""What a compaction is predicted to cost: from the table's own history, or from figures of another machine."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from headwater.storage.maintenance.effect import (
    BYTES_PER_SECOND,
    OVERHEAD,
    S_COMPACTION,
    S_SECONDS,
    Compacted,
    CompactionPlan,
    Effect,
    Wish,
    predict,
)
from headwater.storage.maintenance.policy import Group

MB = 1024**2
_numbers = itertools.count(1)


def metadata(*past: tuple[str, int, float]) -> Any:
    """Metadata of a table with compactions in the past, the oldest first: kind, bytes, seconds."""
    return SimpleNamespace(snapshots=[snapshot(*each) for each in past])


def snapshot(kind: str, size: int, seconds: float) -> Snapshot:
    said = {S_COMPACTION: kind, S_SECONDS: str(seconds), "removed-files-size": str(size)}
    number = next(_numbers)
    return Snapshot(
        snapshot_id=number,
        sequence_number=number,
        timestamp_ms=number,
        manifest_list="m",
        summary=Summary(Operation.REPLACE, **said),
    )


GROUP = Group("sort", (), 1000, 100 * MB, 1, run=True)


def test_nothing_costs_nothing() -> None:
    assert predict([], metadata()) == Effect()


def test_without_a_history() -> None:
    assert predict([GROUP], metadata()).seconds == pytest.approx(OVERHEAD + 100 * MB / BYTES_PER_SECOND["sort"])


def test_the_last_compactions_of_the_kind_count() -> None:
    past = [("sort", 1000 * MB, 1.5)] + [("sort", 10 * MB, OVERHEAD + 1.0)] * 8 + [("pack", 10 * MB, 100.0)]
    assert predict([GROUP], metadata(*past)).seconds == pytest.approx(OVERHEAD + 10)


def test_small_ones_say_nothing() -> None:
    assert predict([GROUP], metadata(("sort", 5000, 0.4))).seconds < 60


def test_it_describes_itself() -> None:
    effect = predict([GROUP, GROUP], metadata())
    plan = CompactionPlan("t", "id", (GROUP, GROUP), "why", effect, Wish(0.0))
    said = plan.describe()
    assert (said["groups"], said["rows"], said["bytes_before"], said["files_after"]) == ({"sort": 2}, 2000, 200 * MB, 2)
    done = Compacted("t", Effect(8, 2, 10, 9, 5, 1.0), effect, 2).describe()
    assert (done["files_before"], done["predicted"]["seconds"]) == (8, round(effect.seconds, 3))
