"""Whole files go by their statistics, no row of another file ever; by age and by size."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import StaleCommit
from headwater.storage.changes import between
from headwater.storage.commit import Change
from headwater.storage.maintenance.retention import S_RETIRED, plan_retention, run_retention
from headwater.types import TopicOptions

NOW = 1_700_000_000.0
HOUR = 3600


def at(*hours: float | None) -> list[int | None]:
    """Moments so many hours before NOW."""
    return [None if each is None else int((NOW - each * HOUR) * 1e6) for each in hours]


def by_time(hours: float, size: int = 0) -> TopicOptions:
    return TopicOptions(retention=hours * HOUR, retention_column="at", retention_size=size)


def test_only_files_of_which_every_row_is_old(make: Any) -> None:
    kept = make(by_time(10))
    kept.append(2, at(30, 20))
    kept.append(2, at(20, 5))
    kept.append(2, at(20, None))
    newest = kept.append(2, at(3, 1))
    plan = plan_retention(kept.topic, kept.cache, NOW)
    assert plan.describe() == {
        "files": 1,
        "bytes": plan.files[0].file_size_in_bytes,
        "rows": 2,
        "files_kept": 3,
        "files_partly_old": 2,
    }
    assert plan.cutoff == datetime.fromtimestamp(NOW - 10 * HOUR, UTC)
    done = run_retention(kept.load, kept.topic, plan)
    assert kept.numbers() == [2, 3, 4, 5, 6, 7]
    snapshot = kept.table.current_snapshot()
    assert (snapshot.snapshot_id, snapshot.summary[S_RETIRED]) == (done.snapshot_id, "2")
    assert kept.topic.committed == 8, "the position stays"
    assert kept.numbers(newest) == list(range(8)), "the past can still be read"
    assert between(kept.table, newest, done.snapshot_id, kept.cache).removed == plan.files
    assert plan_retention(kept.topic, kept.cache, NOW).empty


def test_a_row_lives_to_the_end_of_its_time(make: Any) -> None:
    kept = make(by_time(10))
    kept.append(1, at(10))
    assert plan_retention(kept.topic, kept.cache, NOW).empty
    assert not plan_retention(kept.topic, kept.cache, NOW + 1).empty


def test_by_the_time_of_acknowledgement_unless_a_column_is_named(make: Any) -> None:
    kept = make(TopicOptions(retention=60))
    kept.append(3)
    assert len(plan_retention(kept.topic, kept.cache, time.time()).old) == 1


def test_without_an_option_nothing_is_even_looked_at(kept: Any) -> None:
    kept.append()
    plan = plan_retention(kept.topic, None, NOW)  # type: ignore[arg-type]
    assert plan.empty
    assert plan.reason == "no file is too old, and the table is not too large"


def test_the_oldest_files_beyond_a_size(make: Any) -> None:
    kept = make(by_time(1000, 1))
    for hours in (5, 30, None, 1):
        kept.append(1, at(hours))
    sizes = {file.upper_bounds[3]: file.file_size_in_bytes for file in kept.live()}
    assert len(plan_retention(kept.topic, kept.cache, NOW).beyond_size) == 4
    most = sum(sizes.values()) - 1
    topic = kept.topic
    limited = replace(topic, definition=replace(topic.definition, options=by_time(1000, most)))
    plan = plan_retention(limited, kept.cache, NOW)
    assert len(plan.beyond_size) == 1
    run_retention(kept.load, limited, plan)
    assert kept.numbers() == [0, 2, 3], "the one of 30 hours ago was the oldest"
    assert "retention_size" in plan.reason


def test_a_file_that_another_change_took_first(make: Any) -> None:
    kept = make(by_time(10))
    kept.append(2, at(30, 20))
    plan = plan_retention(kept.topic, kept.cache, NOW)
    kept.change(Change(kept.files(2, start=0), kept.live(), "replace"))
    with pytest.raises(StaleCommit):
        run_retention(kept.load, kept.topic, plan)
    assert kept.numbers() == [0, 1]


HOURS = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOURS, st.integers(1, 20))
def test_no_row_goes_before_its_time(make: Any, files: list[list[int | None]], hours: int) -> None:
    kept = make(by_time(hours))
    try:
        for each in files:
            kept.append(len(each), at(*each))
        plan = plan_retention(kept.topic, kept.cache, NOW)
        if not plan.empty:
            run_retention(kept.load, kept.topic, plan)
        left = kept.table.scan().to_arrow()
        wanted = [each for each in files if any(hour is None or hour <= hours for hour in each)]
        assert left.num_rows == sum(map(len, wanted))
        assert pa.compute.sum(pa.compute.is_null(left["at"])).as_py() in (None, sum(each.count(None) for each in files))
    finally:
        kept.topics.tables.close()
        (kept.folder / "catalog.db").unlink()
        shutil.rmtree(kept.folder / "warehouse")
