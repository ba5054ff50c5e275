"""The queue of queries, with results that a test controls."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.api.runs import WAITING_PER_SLOT, Reading, Run, Runs
from headwater.api.spool import Spool
from headwater.errors import Backpressure, Conflict, QueryCancelled, QueryFailed, QueryNotFound
from headwater.serving.query import Cancel
from headwater.serving.result import Result
from headwater.sql.statements import Query

ONE = pa.table({"id": [1]})


def at_once(statement: Reading, cancel: Cancel) -> Result:
    return Result(ONE.schema, iter(ONE.to_batches()))


class Gate:
    """Queries that run until they are let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, statement: Reading, cancel: Cancel) -> Result:
        return Result(ONE.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self.begun.release()
        self.open.wait(60)
        yield from ONE.to_batches()


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., Run]:
    def submitted(runs: Runs, id: str | None = None) -> Run:
        return runs.submit(Query("SELECT 1"), "SELECT 1", Spool(tmp_path, 100, 10**12), "finished", id)

    return submitted


def ended(run: Run) -> Run:
    deadline = time.monotonic() + 60
    while run.ended is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert run.ended is not None
    return run


def test_a_query_finishes_and_is_found(submit: Callable[..., Run]) -> None:
    runs = Runs(at_once, concurrency=1)
    run = ended(submit(runs, "a" * 16))
    assert (run.status, run.row_count, run.error) == ("finished", 1, None)
    assert runs.get("a" * 16) is run
    with pytest.raises(Conflict):
        submit(runs, "a" * 16)
    runs.close()


class Engine:
    """What a query holds while it runs."""

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_a_query_that_has_ended_lets_go_of_its_engine(submit: Callable[..., Run], fails: bool) -> None:
    engines: list[weakref.ref[Engine]] = []

    def execute(statement: Reading, cancel: Cancel) -> Result:
        engine = Engine()
        engines.append(weakref.ref(engine))
        cancel.attach(engine)
        if fails:
            raise QueryFailed("query failed")
        return Result(ONE.schema, iter(ONE.to_batches()))

    runs = Runs(execute, concurrency=1)
    run = ended(submit(runs, "a" * 16))
    run.future.result(60)
    gc.collect()
    assert engines[0]() is None
    assert runs.get(run.id) is run
    runs.close()


def test_results_on_disk_are_limited_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.api.runs.KEEP_FILES", 2)
    table = pa.table({"id": range(100_000)})
    runs = Runs(lambda statement, cancel: Result(table.schema, iter(table.to_batches())), concurrency=1)
    finished = []
    for _ in range(4):
        finished.append(ended(runs.submit(Query("SELECT 1"), "SELECT 1", Spool(tmp_path, 10**6, 10**12), "finished")))
    assert [run.id for run in runs.all()] == [finished[3].id, finished[2].id]
    assert [run.is_on_disk for run in finished] == [False, False, True, True]
    runs.close()


def test_too_many_queries_are_backpressure_and_room_comes_back(submit: Callable[..., Run]) -> None:
    gate = Gate()
    runs = Runs(gate, concurrency=2)
    admitted = [submit(runs) for _ in range(2 * (1 + WAITING_PER_SLOT))]
    for _ in range(2):
        assert gate.begun.acquire(timeout=60)
    assert sorted(run.status for run in admitted) == ["queued"] * 2 * WAITING_PER_SLOT + ["running"] * 2
    with pytest.raises(Backpressure):
        submit(runs)
    gate.open.set()
    assert {ended(run).status for run in admitted} == {"finished"}
    assert ended(submit(runs)).status == "finished"
    runs.close()


def test_cancelling_stops_what_waits_and_what_runs(submit: Callable[..., Run]) -> None:
    gate = Gate()
    runs = Runs(gate, concurrency=1)
    running, waiting = submit(runs), submit(runs)
    assert gate.begun.acquire(timeout=60)
    runs.forget(waiting.id)
    assert waiting.status == "cancelled"
    runs.forget(running.id)
    gate.open.set()
    assert ended(running).status == "cancelled"
    assert isinstance(running.error, QueryCancelled)
    runs.close()


def test_errors_are_kept_and_bugs_are_named(submit: Callable[..., Run], caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([QueryFailed("query failed"), ZeroDivisionError("secret")])

    def failing(statement: Reading, cancel: Cancel) -> Result:
        raise next(failures)

    runs = Runs(failing, concurrency=1)
    assert isinstance(ended(submit(runs)).error, QueryFailed)
    bug = ended(submit(runs)).error
    assert bug is not None
    assert bug.status == 500
    assert "secret" not in str(bug)
    assert bug.data["incident"] in caplog.text
    runs.close()


def test_results_expire_by_age_and_by_size(submit: Callable[..., Run]) -> None:
    runs = Runs(at_once, concurrency=1, keep_seconds=2)
    run = ended(submit(runs))
    assert runs.get(run.id) is run
    time.sleep(2.1)
    with pytest.raises(QueryNotFound):
        runs.get(run.id)
    with pytest.raises(QueryNotFound):
        assert isinstance(run.sink, Spool)
        run.sink.page(0, 1)
    runs.close()

    runs = Runs(at_once, concurrency=1, keep_bytes=8)
    first, second = ended(submit(runs)), ended(submit(runs))
    assert [run.id for run in runs.all()] == [second.id]
    with pytest.raises(QueryNotFound):
        runs.get(first.id)
    runs.close()


def test_closing_cancels_everything(submit: Callable[..., Run]) -> None:
    gate = Gate()
    runs = Runs(gate, concurrency=1)
    running, waiting = submit(runs), submit(runs)
    assert gate.begun.acquire(timeout=60)
    threading.Timer(0.2, gate.open.set).start()
    runs.close()
    assert (running.status, waiting.status) == ("cancelled", "cancelled")
