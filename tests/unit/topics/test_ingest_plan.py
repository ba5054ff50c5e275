from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.ingest_plan import Ingest, Wait, plan_ingest, split
from headwater.topics.log import Entry
from headwater.types import Offsets, TopicOptions


def entries(*sizes: int, rows: int = 10, at: float = 100.0) -> list[Entry]:
    return [Entry(i, Offsets(i * rows, (i + 1) * rows), int(at * 1e6), size) for i, size in enumerate(sizes)]


def plan(found: list[Entry], options: TopicOptions, **more: object) -> Ingest | Wait:
    arguments = {"now": 101.0, "last_commit": 0.0, "max_bytes": 1_000_000, **more}
    return plan_ingest(options, found, **arguments)  # type: ignore[arg-type]


def test_an_empty_log_waits() -> None:
    assert plan([], TopicOptions(), force=True) == Wait("the log is empty")


def test_enough_rows_are_committed() -> None:
    found = plan(entries(5, 5), TopicOptions(batch_size=20))
    assert isinstance(found, Ingest)
    assert found.consumed == Offsets(0, 20)
    assert found.reason == "20 rows wait (batch_size)"


def test_few_rows_wait() -> None:
    assert plan(entries(5), TopicOptions(batch_size=20)) == Wait("10 of 20 rows (batch_size) wait")


def test_few_rows_do_not_wait_for_ever() -> None:
    found = plan(entries(5), TopicOptions(batch_size=20, rotation_timeout=60), now=161.0)
    assert isinstance(found, Ingest)
    assert found.reason == "the oldest record waited 61 s (rotation_timeout)"


def test_commits_keep_their_distance() -> None:
    options = TopicOptions(batch_size=1, commit_interval=10)
    assert plan(entries(5), options, last_commit=95.0) == Wait("the last commit is 6.0 s old (commit_interval)")


def test_a_clock_that_went_back_holds_up_nothing() -> None:
    options = TopicOptions(batch_size=20, rotation_timeout=60, commit_interval=10)
    ahead = entries(5, at=3700.0)
    found = plan(ahead, options, last_commit=3690.0)
    assert isinstance(found, Ingest)
    assert found.reason == "the oldest record is from 3599 s ahead of the clock, which went back"
    assert isinstance(plan(ahead, options, last_commit=100.0), Wait), "but not again and again"
    assert isinstance(plan(entries(5, 5, at=100.0), options, last_commit=3690.0), Ingest)
    assert isinstance(plan(entries(5, at=110.0), options), Wait), "another machine's clock is a little ahead"


def test_force_commits_anything() -> None:
    assert isinstance(plan(entries(5), TopicOptions(), force=True, last_commit=101.0), Ingest)


def test_one_commit_takes_bounded_bytes_but_at_least_one_entry() -> None:
    found = plan(entries(60, 60, 60), TopicOptions(), force=True, max_bytes=130)
    assert isinstance(found, Ingest)
    assert found.consumed == Offsets(0, 20)
    found = plan(entries(600), TopicOptions(), force=True, max_bytes=130)
    assert isinstance(found, Ingest)
    assert found.consumed == Offsets(0, 10)


@pytest.mark.parametrize("parallelism", [1, 2, 7])
@given(sizes=st.lists(st.integers(1, 50_000_000), min_size=1, max_size=40))
def test_splits_cover_the_entries_in_order(sizes: list[int], parallelism: int) -> None:
    found = entries(*sizes)
    runs = split(found, parallelism)
    assert [entry for run in runs for entry in run] == found
    assert 1 <= len(runs) <= parallelism
    assert all(runs)
