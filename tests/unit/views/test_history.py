"""The account of refreshes: what is kept, in which order, and what is told from snapshots when a line was lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.catalog.views import S_METHOD, Position
from headwater.errors import HeadwaterError, StorageBusy
from headwater.types import TableName
from headwater.views.history import LOST, Attempt, Consumed, History, failed

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS = TableName.topic("orders")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "state.db", 5.0, keep=3)
    yield history
    history.close()


def attempt(number: int, view: str = "v", **more: Any) -> Attempt:
    return Attempt(f"{number:04}", view, NOON + timedelta(seconds=number), "ok", snapshot=number, **more)


def view(*snapshots: tuple[int, str | None, int | None, int | None], name: str = "v") -> Any:
    """A view whose snapshots are (id, method, parent, snapshot of its source)."""
    made = [
        SimpleNamespace(
            snapshot_id=number,
            parent_snapshot_id=parent,
            timestamp_ms=int((NOON + timedelta(seconds=number)).timestamp() * 1000),
            summary={S_METHOD: method, "added-records": "7", "added-data-files": "2", "added-files-size": "90"},
            position=Position({ORDERS: source}),
        )
        for number, method, parent, source in snapshots
    ]
    table = SimpleNamespace(metadata=SimpleNamespace(snapshots=made))
    return SimpleNamespace(name=name, table=table, position_at=lambda snapshot: snapshot.position)


def test_a_line_comes_back_as_it_was_written(history: History) -> None:
    full = attempt(
        1,
        seconds=1.5,
        trigger="schedule",
        method="append",
        rule="states",
        reason="groups add up",
        sources=(Consumed("orders", None, 2**62, 3), Consumed("v0", 5, 5, 0)),
        rows_read=3,
        rows_written=2,
        files=1,
        bytes=2**40,
        code=None,
        error=None,
        verified="equal",
    )
    history.record(full)
    assert history.of(view(), 10) == [full]
    assert history.newest() == {"v": full}


def test_each_view_keeps_its_newest(history: History) -> None:
    for number in (1, 2, 3, 4, 5):
        history.record(attempt(number))
    history.record(replace(attempt(9, "other"), id="other"))
    assert [each.id for each in history.of(view(), 10)] == ["0005", "0004", "0003"]
    assert [each.id for each in history.of(view(), 2)] == ["0005", "0004"]
    assert [each.id for each in history.of(view(name="other"), 10)] == ["other"]
    assert {name: each.id for name, each in history.newest().items()} == {"v": "0005", "other": "other"}


def test_a_dropped_view_leaves_nothing(history: History) -> None:
    history.record(attempt(1))
    history.record(attempt(2, "other"))
    history.forget("v")
    assert history.of(view(), 10) == []
    assert list(history.newest()) == ["other"]


def test_a_comparison_is_noted_beside_the_refresh_that_it_is_about(history: History) -> None:
    history.record(attempt(1))
    history.record(attempt(2))
    history.verified("v", 1, "equal")  # not the newest any more
    assert [each.verified for each in history.of(view(), 10)] == [None, None]
    history.verified("v", 2, "equal")
    assert [each.verified for each in history.of(view(), 10)] == ["equal", None]


def test_what_a_crash_kept_from_the_account_is_told_by_its_snapshot(history: History) -> None:
    history.record(attempt(1))
    history.record(attempt(3))
    found = history.of(view((1, "full", None, 10), (2, "append", 1, 20), (3, "keys", 2, 30)), 10)
    assert [each.snapshot for each in found] == [3, 2, 1]
    lost = found[1]
    assert (lost.method, lost.outcome, lost.reason, lost.trigger) == ("append", "ok", LOST, None)
    assert (lost.rows_written, lost.files, lost.bytes) == (7, 2, 90)
    assert lost.sources == (Consumed("orders", 10, 20),)


def test_snapshots_that_are_no_refresh_tell_nothing(history: History) -> None:
    found = history.of(view((1, "full", None, 10), (2, "skip", 1, 20), (3, None, 2, 20), (4, "compact", 3, 20)), 10)
    assert [each.snapshot for each in found] == [1]
    assert found[0].sources == (Consumed("orders", None, 10),)


def test_what_was_let_go_does_not_come_back_from_snapshots(history: History) -> None:
    for number in (2, 3, 4):
        history.record(attempt(number))
    found = history.of(view((1, "full", None, 10), (2, "append", 1, 20), (5, "append", 2, 30)), 10)
    assert [each.snapshot for each in found] == [5, 4, 3, 2]


def test_a_failure_keeps_its_code_and_its_words() -> None:
    ours = failed("v", None, "schedule", NOON, 0.5, StorageBusy("catalog stayed locked", detail="Somebody held it."))
    assert (ours.outcome, ours.code, ours.error) == (
        "failed",
        "storage_busy",
        "catalog stayed locked (Somebody held it.)",
    )
    assert (ours.method, ours.sources, ours.trigger, ours.seconds) == (None, (), "schedule", 0.5)
    bug = failed("v", None, "manual", NOON, 0.5, KeyError())
    assert (bug.code, bug.error) == ("internal", "KeyError")


def test_a_locked_file_is_named(tmp_path: Path) -> None:
    import sqlite3

    history = History(tmp_path / "state.db", 0.05, keep=3)
    with sqlite3.connect(tmp_path / "state.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(HeadwaterError, match="stayed locked"):
            history.record(attempt(1))
        other.execute("ROLLBACK")
    other.close()
    history.record(attempt(1))
    assert len(history.of(view(), 10)) == 1
    history.close()


def test_threads_share_it(history: History) -> None:
    def work(name: str) -> None:
        for number in range(5):
            history.record(replace(attempt(number, name), id=f"{name}{number}"))

    threads = [threading.Thread(target=work, args=(f"v{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: each.id for name, each in history.newest().items()} == {f"v{n}": f"v{n}4" for n in range(4)}
