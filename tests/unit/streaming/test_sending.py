"""Which parts of which epochs a view sends, without a table: files are what stands for them here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from headwater.catalog.progress import S_EPOCH
from headwater.streaming import sending
from headwater.streaming.outbox import At
from headwater.streaming.sending import Sender

VIEW: Any = SimpleNamespace(name="v", table=None)


class Outlet:
    """Takes everything, until it has taken as many parts as it can."""

    def __init__(self, sent: At | None = None, room: int = 1000) -> None:
        self.sent = sent
        self.room = room
        self.got: list[tuple[At, list[int]]] = []

    def send(self, at: At, rows: pa.Table) -> None:
        if len(self.got) == self.room:
            raise TimeoutError
        self.sent = at
        self.got.append((at, rows.column("n").to_pylist()))


class Epochs:
    """Epochs of a view, each with files of so many rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *epochs: dict[str, int]) -> None:
        self._files = dict(enumerate(epochs))
        monkeypatch.setattr(sending, "_epochs", self._newest_first)
        monkeypatch.setattr(sending, "made_by", self._made_by)
        monkeypatch.setattr(sending, "_rows", self._rows)
        monkeypatch.setattr(sending, "PART_ROWS", 3)

    def _newest_first(self, _: Any, done: int) -> list[Snapshot]:
        return [
            Snapshot(
                snapshot_id=number + 1,
                timestamp_ms=0,
                manifest_list="",
                summary=Summary(
                    Operation.APPEND, **{S_EPOCH: str(number)}, **{"added-data-files": str(len(files))} if files else {}
                ),
            )
            for number, files in sorted(self._files.items(), reverse=True)
            if number > done
        ]

    def _made_by(self, _: Any, snapshot: Snapshot, __: Any) -> Any:
        files = self._files[snapshot.snapshot_id - 1]
        return SimpleNamespace(added=[SimpleNamespace(file_path=path, record_count=n) for path, n in files.items()])

    def _rows(self, _: Any, path: str) -> pa.Table:
        rows = next(files[path] for files in self._files.values() if path in files)
        return pa.table({"n": list(range(rows))})


def send(outlet: Outlet, generation: int = 1) -> list[tuple[At, list[int]]]:
    progress: Any = SimpleNamespace(generation=generation)
    cache: Any = None
    Sender(outlet, cache)(VIEW, progress)
    return outlet.got


def test_files_are_sent_in_parts_that_have_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    Epochs(monkeypatch, {"b": 4, "a": 7, "c": 0})
    assert send(Outlet()) == [
        ((1, 0, 0), [0, 1, 2]),
        ((1, 0, 1), [3, 4, 5]),
        ((1, 0, 2), [6]),
        ((1, 0, 3), [0, 1, 2]),
        ((1, 0, 4), [3]),
        ((1, 0, 5), []),
    ]


def test_what_was_left_of_an_epoch_is_sent_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    Epochs(monkeypatch, {"a": 7, "b": 4}, {"c": 1})
    whole = send(Outlet((1, 0, -1)))
    for room in range(len(whole)):
        first = Outlet((1, 0, -1), room)
        with pytest.raises(TimeoutError):
            send(first)
        assert first.got + send(Outlet(first.sent)) == whole


def test_an_outlet_that_forgot_gets_the_newest_epoch_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Epochs(monkeypatch, {"a": 1}, {"b": 1}, {"c": 2})
    assert send(Outlet()) == [((1, 2, 0), [0, 1])]
    assert caplog.messages == ["how far a view was sent is forgotten: its last rows are repeated"]
    caplog.clear()
    Epochs(monkeypatch, {}, {}, {"c": 2})  # it never had anything to send
    assert send(Outlet()) == [((1, 2, 0), [0, 1])]
    assert caplog.messages == []


def test_a_query_that_replaced_another_is_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    Epochs(monkeypatch, {"a": 1}, {"b": 1})
    assert [at for at, _ in send(Outlet((1, 9, 9)), generation=2)] == [(2, 0, 0), (2, 1, 0)]
