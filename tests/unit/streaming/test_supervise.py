"""Streams that run, fail, wait, are stopped and woken: real threads, jobs of a few lines."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headwater.engine.stream_status import StatusReader
from headwater.errors import StaleCommit, StreamFailed
from headwater.spark.session import SparkState
from headwater.state.holders import holder_name
from headwater.state.leases import Leases, open_state
from headwater.state.streams import Standing, StreamStore
from headwater.streaming import supervise
from headwater.streaming.supervise import Job, Supervisor

Do = Callable[[threading.Event, threading.Event], None]


class Doing:
    """A job that does what it is told to."""

    def __init__(self, name: str, do: Do) -> None:
        self.name = name
        self._do = do

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        self._do(stop, wake)


def follow(stop: threading.Event, wake: threading.Event) -> None:
    stop.wait(60)


class Streams:
    """A supervisor of jobs that a test names, without its own thread unless it is started."""

    def __init__(self, folder: Path) -> None:
        self.todo: dict[str, Do] = {}
        self.made: list[str] = []
        self.store = StreamStore(folder / "streams.db", 5.0)
        self._engine = open_state(folder / "state.db", 5.0)
        self.leases = Leases(self._engine, "here", 30)
        self.elsewhere = Leases(self._engine, "elsewhere", 30)
        self.one = Supervisor(
            lambda: list(self.todo), self._make, self.store, self.leases, poll=0.02, chance=lambda: 1.0
        )

    def _make(self, name: str) -> Job:
        self.made.append(name)
        return Doing(name, self.todo[name])

    def is_free(self, name: str) -> bool:
        if not self.elsewhere.acquire(f"stream:{name}"):
            return False
        self.elsewhere.release(f"stream:{name}")
        return True

    def close(self) -> None:
        self.one.stop()
        self._engine.dispose()


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    monkeypatch.setattr(supervise, "FIRST_WAIT", 0.2)
    made = Streams(tmp_path)
    yield made
    made.close()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def test_what_is_wanted_runs_and_what_is_not_any_more_is_stopped(streams: Streams) -> None:
    streams.todo = {"a": follow, "b": follow}
    streams.one.tick()
    streams.one.tick()
    assert streams.made == ["a", "b"], "each is started once"
    assert streams.one.state("a") == ("running", None)
    assert isinstance(streams.one.job("a"), Doing)
    assert streams.one.job("c") is None
    assert streams.one.state("c") is None
    assert not streams.is_free("a"), "no other process may run it"
    del streams.todo["a"]
    streams.one.tick()
    wait_for(lambda: streams.one.state("a") is None)
    wait_for(lambda: streams.is_free("a"))
    assert streams.one.state("b") == ("running", None)


def test_one_that_fails_waits_longer_each_time_and_disturbs_no_other(streams: Streams) -> None:
    tries: list[float] = []

    def fail(stop: threading.Event, wake: threading.Event) -> None:
        tries.append(time.monotonic())
        raise StreamFailed('topic "a" was dropped', detail="It is gone.")

    streams.todo = {"bad": fail, "good": follow}
    streams.one.start()
    wait_for(lambda: len(tries) == 4)
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert waits[0] >= 0.2 and waits[1] >= 0.4 and waits[2] >= 0.8, waits
    assert streams.one.state("good") == ("running", None)
    assert streams.made.count("good") == 1
    wait_for(lambda: (streams.one.state("bad") or ("",))[0] == "waiting")
    state = streams.one.state("bad")
    assert state is not None and state[1] is not None and state[1] > datetime.now(UTC)
    standing = streams.store.get("bad")
    assert (standing.restarts, standing.error) == (4, 'topic "a" was dropped (It is gone.)')
    assert streams.is_free("bad"), "another process may try"


def test_one_that_cannot_even_be_made_waits_too(streams: Streams) -> None:
    def make(name: str) -> Job:
        raise RuntimeError("no such job")

    streams.todo = {"bad": follow}
    streams.one._make = make
    streams.one.tick()
    assert (streams.one.state("bad") or ("",))[0] == "waiting"
    assert (streams.store.get("bad").restarts, streams.store.get("bad").error) == (1, "no such job")
    assert streams.is_free("bad")


def test_after_a_long_good_run_a_failure_is_the_first(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "STEADY", 0.0)

    def fail(stop: threading.Event, wake: threading.Event) -> None:
        raise StreamFailed("no")

    streams.todo = {"bad": fail}
    streams.one.start()
    wait_for(lambda: streams.store.get("bad").restarts >= 3)
    assert streams.one._waiting["bad"].failures == 1


def test_a_stop_forgets_that_it_waited(streams: Streams) -> None:
    def fail(stop: threading.Event, wake: threading.Event) -> None:
        raise StreamFailed("no")

    streams.todo = {"bad": fail}
    streams.one.tick()
    wait_for(lambda: (streams.one.state("bad") or ("",))[0] == "waiting")
    assert streams.one.end("bad")
    assert streams.one.state("bad") is None
    streams.todo["bad"] = follow
    streams.one.tick()
    assert streams.one.state("bad") == ("running", None), "it starts at once"


def test_an_end_waits_for_what_is_under_way(streams: Streams) -> None:
    done = []

    def finish(stop: threading.Event, wake: threading.Event) -> None:
        stop.wait(60)
        time.sleep(0.2)
        done.append(1)

    streams.todo = {"a": finish}
    streams.one.tick()
    assert streams.one.end("a")
    assert done == [1]
    assert streams.one.end("a") and streams.one.end("never heard of")


def test_an_end_finds_what_is_just_being_started(streams: Streams) -> None:
    """It was seen to be wanted, then it was not any more, then it was begun."""
    seen, go_on = threading.Event(), threading.Event()

    def names() -> list[str]:
        wanted = list(streams.todo)
        seen.set()
        go_on.wait(60)
        return wanted

    streams.todo = {"a": follow}
    streams.one._jobs = names
    looking = threading.Thread(target=streams.one.tick)
    looking.start()
    assert seen.wait(60)
    del streams.todo["a"]
    threading.Timer(0.2, go_on.set).start()
    assert streams.one.end("a")
    assert streams.made == ["a"]
    assert streams.one.state("a") is None
    looking.join()


def test_an_end_gives_up_after_its_time(streams: Streams) -> None:
    let = threading.Event()

    def hang(stop: threading.Event, wake: threading.Event) -> None:
        let.wait(60)

    streams.todo = {"a": hang}
    streams.one.tick()
    assert not streams.one.end("a", timeout=0.05)
    let.set()
    assert streams.one.end("a")


def test_a_wake_reaches_the_jobs_and_starts_what_is_new(streams: Streams) -> None:
    woken = threading.Event()

    def look(stop: threading.Event, wake: threading.Event) -> None:
        wake.wait(60)
        woken.set()
        stop.wait(60)

    streams.one._poll = 20.0
    streams.todo = {"a": look}
    streams.one.start()
    wait_for(lambda: streams.one.state("a"))
    streams.todo["b"] = follow
    streams.one.wake()
    assert woken.wait(60)
    wait_for(lambda: streams.one.state("b"))


def test_one_that_ends_by_itself_is_looked_at_anew(streams: Streams) -> None:
    streams.todo = {"a": lambda stop, wake: None}
    streams.one.start()
    wait_for(lambda: streams.made.count("a") >= 3)
    assert streams.store.get("a").restarts == 0, "it did not fail"


def test_one_that_another_runs_too_steps_back_without_a_failure(streams: Streams) -> None:
    def late(stop: threading.Event, wake: threading.Event) -> None:
        raise StaleCommit("epoch 3 came too late")

    streams.todo = {"a": late}
    streams.one.start()
    wait_for(lambda: streams.made.count("a") >= 2)
    assert streams.store.get("a") == Standing()


def test_what_runs_elsewhere_does_not_run_here(streams: Streams) -> None:
    streams.elsewhere.acquire("stream:a")
    streams.todo = {"a": follow}
    streams.one.tick()
    assert streams.made == []
    streams.elsewhere.release("stream:a")
    streams.one.tick()
    assert streams.made == ["a"]


def test_a_look_that_fails_ends_nothing(streams: Streams) -> None:
    failed: list[int] = []

    def names() -> list[str]:
        if len(failed) < 3:
            failed.append(1)
            raise OSError("catalog is away")
        return ["a"]

    streams.todo = {"a": follow}
    streams.one._jobs = names
    streams.one.start()
    wait_for(lambda: streams.one.state("a"))


def test_at_the_end_all_are_stopped_and_leases_given_up(streams: Streams) -> None:
    streams.todo = {"a": follow, "b": follow}
    streams.one.start()
    wait_for(lambda: streams.one.state("a") and streams.one.state("b"))
    began = time.monotonic()
    streams.one.stop()
    assert time.monotonic() - began < 40
    assert streams.one.state("a") is streams.one.state("b") is None
    assert streams.is_free("a") and streams.is_free("b")


def test_a_stream_whose_process_died_with_its_clock_ahead_is_taken_over_and_its_status_says_so(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    boot, number, started, part = holder_name("streams").split("|")
    dead = Leases(streams._engine, f"{boot}|{number}|{started}0|{part}", 30, lambda: time.time() + 3000)
    assert dead.acquire("stream:s")
    nothing: Any = None
    running: list[Supervisor | None] = [None]
    status = StatusReader(nothing, nothing, streams.store, streams.leases, lambda: running[0], lambda: "ready")
    assert status._running("s", wanted=True) == ("idle", None), "it does not run"
    running[0] = streams.one
    assert status._running("s", wanted=True) == ("starting", None)
    streams.todo["s"] = follow
    streams.one.tick()
    assert status._running("s", wanted=True) == ("running", None)
    assert streams.made == ["s"]
    streams.one.stop()


def test_a_status_says_what_a_stream_waits_for(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    nothing: Any = None
    spark: list[SparkState] = ["not started"]
    status = StatusReader(nothing, nothing, streams.store, streams.leases, lambda: streams.one, lambda: spark[0])
    assert status._waits_for("s", "starting", None, 5) == "Spark, which is not started"
    spark[0] = "starting"
    assert status._waits_for("s", "starting", None, 5) == "Spark, which is starting"
    assert status._waits_for("s", "running", None, 5) == "Spark, which is starting", "an incremental view has no query"
    spark[0] = "ready"
    assert status._waits_for("s", "starting", None, 5) == "the start of its query"
    assert status._waits_for("s", "running", None, 5) == "5 records to catch up with"
    assert status._waits_for("s", "running", None, 0) is None
    assert status._waits_for("s", "stopped", None, 5) is None
    moment = datetime(2026, 1, 1, 10, 5, tzinfo=UTC)
    failed = status._waits_for("s", "waiting", moment, 5)
    assert failed == "its next start at 10:05:00 UTC, because it failed"
    elsewhere = Leases(streams._engine, "another machine/|1|2|streams", 30)
    assert elsewhere.acquire("stream:s")
    said = status._waits_for("s", "running", None, 5)
    assert said is not None and said.startswith("the lease of a process on another machine, which ends at ")
    elsewhere.release("stream:s")
    neighbour = Leases(streams._engine, holder_name("another part"), 30)
    assert neighbour.acquire("stream:s")
    assert status._waits_for("s", "running", None, 5) is None, "it runs there"
