from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ulid import ULID

from headwater.state.care import CareStore, Outcome, Pending, Step, lease_of
from headwater.state.leases import Leases

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CareStore]:
    store = CareStore(tmp_path / "state.db", 5.0, keep=3)
    yield store
    store.close()


def step(table: str = "topics.t", name: str = "expire", outcome: Outcome = "done", minutes: int = 0) -> Step:
    return Step(str(ULID()), table, name, "manual", MOMENT + timedelta(minutes=minutes), outcome, numbers={"files": 1})


def test_the_newest_come_first_and_the_oldest_go(store: CareStore) -> None:
    made = [step(minutes=n) for n in range(5)]
    other = step("views.v")
    for each in [*made, other]:
        store.record(each)
    now = time.time()
    assert store.recent("topics.t", 10, now) == [made[4], made[3], made[2]]
    assert store.recent("topics.t", 1, now) == [made[4]]
    assert store.recent(None, 10, now)[-1] == other
    store.forget("topics.t")
    assert store.recent(None, 10, now) == [other]


def test_a_step_that_runs_is_told_while_its_lease_is_held(store: CareStore) -> None:
    running = replace(step(outcome="running"), numbers={})
    store.record(running)
    assert store.recent(None, 1, time.time())[0].outcome == "lost"
    leases = Leases(store.engine, "me", 30.0)
    leases.acquire(lease_of("topics.t"))
    store.progress(running.id, {"files": 7})
    found = store.recent(None, 1, time.time())[0]
    assert (found.outcome, found.numbers) == ("running", {"files": 7})
    store.record(replace(running, outcome="failed", error="no", code="conflict", seconds=1.5))
    store.progress(running.id, {"files": 9})
    (ended,) = store.recent(None, 5, time.time())
    assert (ended.outcome, ended.error, ended.seconds, ended.numbers) == ("failed", "no", 1.5, {})


def test_when_a_step_last_ended_well(store: CareStore) -> None:
    for each in (step(minutes=1), step(outcome="nothing", minutes=2), step(outcome="failed", minutes=3)):
        store.record(each)
    now = (MOMENT + timedelta(hours=1)).timestamp()
    assert store.last("expire", now) == {"topics.t": MOMENT + timedelta(minutes=2)}
    assert store.last("orphans", now) == {}


def test_files_wait_until_they_are_due(store: CareStore) -> None:
    noted = [Pending(f"/t/{n}", "a", float(n), n) for n in range(1200)]
    store.pend([*noted, Pending("/u/1", "b", 5.0, 1)])
    assert len(store.pending()) == 1201
    assert [p.path for p in store.pending("b")] == ["/u/1"]
    assert len(store.pending("a", due=9.0)) == 10
    store.pend([Pending("/t/3", "a", 2.0, 3), Pending("/t/4", "a", 4000.0, 4)])
    assert {p.due for p in store.pending("a") if p.path in ("/t/3", "/t/4")} == {3.0, 4000.0}
    store.settle([p.path for p in noted])
    assert [p.path for p in store.pending()] == ["/u/1"]
    assert store.settle_tables(["b"]) == 0
    assert store.settle_tables(["c"]) == 1
