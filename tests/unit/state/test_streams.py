from __future__ import annotations

from pathlib import Path

import pytest

from headwater.state.streams import Standing, StreamStore


@pytest.fixture
def store(tmp_path: Path) -> StreamStore:
    return StreamStore(tmp_path / "state.db", 5.0, lambda: 100.0)


def test_a_stream_runs_unless_it_was_stopped(store: StreamStore, tmp_path: Path) -> None:
    assert store.get("orders") == Standing(wanted=True, restarts=0, error=None, error_at=None)
    store.want("orders", False)
    assert not StreamStore(tmp_path / "state.db", 5.0).get("orders").wanted, "another process knows it"
    assert store.get("clicks").wanted
    store.want("orders", True)
    assert store.get("orders") == Standing()


def test_failures_are_counted_and_the_last_one_is_told(store: StreamStore) -> None:
    store.failed("orders", "no such topic")
    store.failed("orders", "disk is full")
    assert store.get("orders") == Standing(True, 2, "disk is full", 100.0)
    store.want("orders", False)
    assert store.get("orders") == Standing(False, 2, "disk is full", 100.0), "a stop forgets no failure"
    store.failed("orders", "again")
    assert store.get("orders") == Standing(False, 3, "again", 100.0), "and a failure starts nothing"


def test_what_is_forgotten_is_as_new(store: StreamStore) -> None:
    store.failed("orders", "no such topic")
    store.want("clicks", False)
    store.forget("orders")
    store.forget("never heard of")
    assert store.get("orders") == Standing()
    assert not store.get("clicks").wanted
