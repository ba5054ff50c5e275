"""The two ends of the query worker without Spark: in its place is a process that does what the text of a query says."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.engine import Lake
from headwater.engine.query_worker import _Worker
from headwater.errors import QueryCancelled, QueryFailed, QueryInterrupted, QueryTimeout, Unavailable
from headwater.serving.moment import Given
from headwater.serving.run_worker import WorkerRun
from headwater.serving.tail import read_at_once
from headwater.spark import query_worker
from headwater.spark.query_worker import EXIT_MEMORY, QueryWorker
from headwater.sql.statements import Query

STAND_IN = """
import json, os, signal, socket, sys, threading, time
from headwater.errors import QueryCancelled
from headwater.spark.query_worker import receive_frame, send_error, send_frame

def begin(connection):
    send_frame(connection, b"P", b"{}")
    send_frame(connection, b"S", bytes.fromhex(config["schema"]))

def finish(connection, batches):
    for _ in range(batches):
        send_frame(connection, b"B", bytes.fromhex(config["batch"]))
    send_frame(connection, b"D")

def answer(connection):
    with connection:
        exec(json.loads(receive_frame(connection)[1])["text"])

control = socket.socket(fileno=int(sys.argv[1]))
config = json.loads(receive_frame(control)[1])
exec(config["start"])
send_frame(control, b"R", json.dumps({"scratch": config["scratch"]}).encode())
while True:
    message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not message:
        os._exit(0)
    threading.Thread(target=answer, args=(socket.socket(fileno=descriptors[0]),), daemon=True).start()
"""

SMALL = "begin(connection); finish(connection, 1)"
LARGE = "begin(connection); finish(connection, 1000)"
STUCK = "begin(connection); time.sleep(600)"
OBEDIENT = "begin(connection); connection.recv(1); send_error(connection, QueryCancelled('query was cancelled'))"

BATCH = pa.record_batch({"n": range(1000)})


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueryWorker]]:
    monkeypatch.setattr(query_worker, "_COMMAND", STAND_IN)
    opened: list[QueryWorker] = []

    def start_worker(at_start: str = "", replaced: list[str] | None = None) -> QueryWorker:
        worker = QueryWorker(
            lambda: {
                "scratch": str(tmp_path),
                "start": at_start,
                "schema": BATCH.schema.serialize().to_pybytes().hex(),
                "batch": BATCH.serialize().to_pybytes().hex(),
            },
            tmp_path,
            max_scratch_bytes=2**30,
            on_replace=lambda reason: None if replaced is None else replaced.append(reason),
        )
        opened.append(worker)
        return worker

    yield start_worker
    for worker in opened:
        worker.close()


def begin(worker: QueryWorker, text: str, timeout: float = 600, grace: float = 600) -> WorkerRun:
    run = WorkerRun(worker, Query(text), None, timeout, grace)
    run.begin(lambda: None)
    return run


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(run: WorkerRun) -> int:
    return sum(batch.num_rows for batch in run.batches())


@pytest.fixture
def slow_sweep(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Removing what a worker left takes until the event is set."""
    done = threading.Event()
    monkeypatch.setattr(query_worker, "sweep", lambda _: done.wait())
    return done


def test_a_query_that_comes_while_a_worker_is_replaced_waits_for_the_next(
    start: Callable[..., QueryWorker], slow_sweep: threading.Event
) -> None:
    worker = start()
    first = worker.process(lambda: None)
    os.kill(first.pid, signal.SIGTERM)
    until(lambda: not first.ready)
    assert not first.ended.is_set() and worker.state == "starting"
    waited = 0

    def check() -> None:
        nonlocal waited
        waited += 1
        assert worker.state != "failed"
        if waited == 3:
            slow_sweep.set()

    second = worker.process(check)
    assert waited >= 3 and second.pid != first.pid and worker.state == "ready"
    assert rows(begin(worker, SMALL)) == 1000


def test_a_query_that_could_not_be_sent_runs_in_the_next_worker(start: Callable[..., QueryWorker]) -> None:
    worker = start()
    first = worker.process(lambda: None)
    first._control.shutdown(socket.SHUT_WR)  # it ends, and nobody has noticed yet
    assert rows(begin(worker, SMALL)) == 1000
    assert worker.pid != first.pid


def test_a_worker_that_does_not_start_is_no_replacement(start: Callable[..., QueryWorker]) -> None:
    replaced: list[str] = []
    worker = start("sys.exit(1)", replaced)
    with pytest.raises(Unavailable, match="did not start"):
        worker.process(lambda: None)
    assert worker._process is not None and worker._process.ended.wait()
    assert (worker.state, replaced) == ("failed", [])


@pytest.mark.parametrize(
    ("text", "reason", "error"),
    [
        (f"os._exit({EXIT_MEMORY})", "memory", QueryFailed),
        ("os.kill(os.getpid(), signal.SIGKILL)", "memory", QueryFailed),  # as the kernel does, out of memory
        ("os.kill(os.getpid(), signal.SIGTERM)", "died", QueryInterrupted),
        ("os._exit(1)", "died", QueryInterrupted),
    ],
)
def test_a_query_that_ends_its_worker_for_want_of_memory_is_not_to_be_run_again(
    start: Callable[..., QueryWorker], text: str, reason: str, error: type[Exception]
) -> None:
    replaced: list[str] = []
    worker = start(replaced=replaced)
    with pytest.raises(error) as failed:
        begin(worker, text)
    assert ("retry_after" in getattr(failed.value, "data", {})) == (error is QueryInterrupted)
    until(lambda: replaced)
    assert replaced == [reason]


def test_after_its_end_a_worker_is_neither_signalled_nor_blamed(
    start: Callable[..., QueryWorker], slow_sweep: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    process = worker.process(lambda: None)
    process.open_query()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process._process.returncode is not None)
    until(lambda: not process.ready)
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(number))
    process.kill("timeout")
    assert (process.reason, process.alone, [each for each in signalled if each]) == ("memory", True, [])
    monkeypatch.undo()
    slow_sweep.set()


def test_a_worker_that_died_by_itself_keeps_its_reason(start: Callable[..., QueryWorker]) -> None:
    worker = start()
    process = worker.process(lambda: None)
    with process._lock:  # its watcher cannot go on
        os.kill(process.pid, signal.SIGKILL)
        until(process._has_exited)
        killing = threading.Thread(target=process.kill, args=("timeout",))
        killing.start()
    killing.join()
    process.ended.wait()
    assert process.reason == "memory"


def test_only_a_query_that_ran_alone_is_blamed(start: Callable[..., QueryWorker], slow_sweep: threading.Event) -> None:
    worker = start()
    process = worker.process(lambda: None)
    stopping, running = begin(worker, STUCK), begin(worker, STUCK)
    stopping.close()
    process.kill("scratch")
    until(lambda: not process.ready)
    process.kill("scratch")
    assert process.queries == 2  # one that is being stopped counts until the worker's end is known
    slow_sweep.set()
    with pytest.raises(QueryInterrupted, match="interrupted"):
        rows(running)
    until(lambda: process.queries == 0)


def test_a_result_that_is_there_meets_its_deadline_whenever_it_is_read(start: Callable[..., QueryWorker]) -> None:
    worker = start()
    neighbour = begin(worker, OBEDIENT)
    run = begin(worker, LARGE, grace=0.01)
    until(run._has_result)
    run._time_out()
    assert run._stopped is None
    assert rows(run) == 1_000_000
    neighbour.cancel()
    with pytest.raises(QueryCancelled):
        rows(neighbour)


def test_a_query_without_a_result_ends_at_its_deadline(start: Callable[..., QueryWorker]) -> None:
    replaced: list[str] = []
    worker = start(replaced=replaced)
    with pytest.raises(QueryTimeout):
        rows(begin(worker, STUCK, timeout=0.2, grace=0.1))
    until(lambda: replaced)
    assert replaced == ["timeout"]


def test_cancelling_a_result_that_nobody_reads_ends_no_worker(start: Callable[..., QueryWorker]) -> None:
    worker = start()
    process = worker.process(lambda: None)
    run = begin(worker, LARGE, grace=0.01)
    until(run._has_result)
    run.cancel()
    run._timers[-1].join()  # it has decided whether to kill the worker
    assert process.ready
    with pytest.raises(QueryCancelled):
        rows(run)
    until(lambda: process.queries == 0)
    assert worker.process(lambda: None) is process


def test_a_result_is_drained_once_however_often_it_is_closed(start: Callable[..., QueryWorker]) -> None:
    worker = start()
    run = begin(worker, STUCK)
    for _ in range(3):
        run.close()
    with pytest.raises(QueryCancelled):  # a second reader would tear the frames of the first
        rows(run)
    assert len([each for each in threading.enumerate() if each.name == "headwater-query-drain"]) == 1
    process = worker.process(lambda: None)
    process.kill("cancelled")
    until(lambda: process.queries == 0)


def test_a_reader_in_another_thread_ends_by_itself_when_its_result_is_closed(start: Callable[..., QueryWorker]) -> None:
    worker = start()
    run = begin(worker, OBEDIENT)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            rows(run)
        except QueryCancelled as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: run._receiving)
    run.close()
    reader.join()
    assert len(errors) == 1
    assert worker.process(lambda: None).queries == 0


def test_rows_of_a_topic_that_was_altered_meanwhile_are_read_as_they_were_sent(tmp_path: Path) -> None:
    with Lake.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT, s STRING)")
        lake.topic("t").append([{"n": 1, "s": "a"}])
        sent = read_at_once(lake.topics, lake.log, "t")
        lake.sql("ALTER TOPIC t ADD COLUMN more BIGINT")
        lake.sql("ALTER TOPIC t RENAME COLUMN s TO text")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            run = WorkerRun(
                QueryWorker(dict, tmp_path, max_scratch_bytes=1), Query("SELECT 1"), Given({"t": sent}), 1, 1
            )
            run._connection = ours
            run._send()
            _, given = _Worker(lake)._request(theirs)
        found = given.tables["t"]
        assert (found.rows, found.schema, found.offsets) == (sent.rows, sent.schema, sent.offsets)
        assert {"n", "s"} <= set(found.rows.schema.names)
