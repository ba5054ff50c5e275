"""A full disk, locked files, two ingesters, a dropped topic, a dead lease holder: named errors, and no record lost."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog.topics import Topics
from headwater.engine import Lake
from headwater.errors import StaleCommit, StorageBusy, TopicNotFound, Unavailable
from headwater.state.leases import Leases, open_state
from headwater.topics.ingest_plan import Ingest
from headwater.topics.log import Append, LogTopic, Part
from headwater.topics.log_sqlite import SqliteLog


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program holds the SQLite file exclusively."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


def released_after(path: Path, seconds: float) -> threading.Thread:
    """Hold the file for a while, from another thread; returns once it is held."""
    held = threading.Event()

    def hold() -> None:
        with locked(path):
            held.set()
            time.sleep(seconds)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    return holder


# -- a full disk ----------------------------------------------------------------------------------------------------


def test_files_that_cannot_grow_lose_nothing(quick: Any) -> None:
    """A limit set by the system: requests and commits fail at every step, at last succeed, and are stored once."""
    assert quick.run("--out-of-room", "--no-spark", "--batches", "4") == 0, quick.said()
    refused = next(int(line.split()[1]) for line in quick.notes.read_text().splitlines() if line.startswith("refused"))
    assert refused > 20  # the limit struck the log, the data files, the manifests and the catalog
    with quick.open() as lake:
        quick.retry_and_check(lake)
    referred = {Path(file).name for file in data_files(quick)}
    left = {file.name for file in (quick.path / "warehouse").rglob("*.parquet")}
    assert referred <= left
    assert len(left - referred) <= refused  # a commit of unknown outcome keeps its files


def data_files(abused: Any) -> list[str]:
    with abused.open() as lake:
        return [task.file.file_path for task in lake.topics.load("t").table.scan().plan_files()]


@pytest.mark.parametrize(
    "point", ["log.before_commit", "ingest.planned", "ingest.file_written", "ingest.before_commit"]
)
def test_a_full_disk_is_named_and_can_be_emptied(quick: Any, arm: Callable[[str], None], point: str) -> None:
    with quick.notes.open("a") as notes, quick.open() as lake:
        quick.worker.produce(lake, notes, "p", 0)
        arm(f"{point}=full")
        quick.worker.note(notes, "send p 1")
        with pytest.raises(StorageBusy, match="full"):
            lake.topic("t").append(quick.worker.records(1), producer="p", sequence=1)
            lake.flush()
        assert quick.check_table() == []
        arm("")
        quick.retry_and_check(lake)


# -- locked files ---------------------------------------------------------------------------------------------------


def test_a_locked_log_is_waited_for_and_then_named(quick: Any) -> None:
    with quick.notes.open("a") as notes, quick.open(busy_timeout=2) as lake:
        quick.worker.produce(lake, notes, "p", 0)
        with locked(quick.path / "state.db"):
            with pytest.raises(StorageBusy, match=r'state "state\.db" stayed locked') as busy:
                lake.topic("t").append(quick.worker.records(1), producer="p", sequence=1)
            assert busy.value.hint == "Try again; nothing was written."
            assert len(quick.check_visible(lake)) == quick.rows  # reading goes on
        quick.check_visible(lake)
        quick.worker.note(notes, "send p 1")
        holder = released_after(quick.path / "state.db", 0.2)
        lake.topic("t").append(quick.worker.records(1), producer="p", sequence=1)
        holder.join()
        quick.retry_and_check(lake)


def test_a_locked_catalog_stops_a_commit_but_no_acknowledgement(quick: Any) -> None:
    with quick.notes.open("a") as notes, quick.open(busy_timeout=2) as lake:
        quick.worker.produce(lake, notes, "p", 0)
        with locked(quick.path / "catalog.db"):
            quick.worker.produce(lake, notes, "p", 1)
            with pytest.raises(StorageBusy, match="locked"):
                lake.flush()
            assert len(quick.check_visible(lake)) == 2 * quick.rows
        assert quick.check_table() == []
        holder = released_after(quick.path / "catalog.db", 0.2)
        lake.flush()
        holder.join()
        quick.retry_and_check(lake)


def test_a_locked_log_after_a_commit_is_trimmed_later(quick: Any) -> None:
    with quick.notes.open("a") as notes, quick.open(busy_timeout=0.3) as lake:
        quick.worker.produce(lake, notes, "p", 0)
        with locked(quick.path / "state.db"), pytest.raises(StorageBusy, match="locked"):
            lake.flush()
        assert len(quick.check_table()) == quick.rows  # the commit needs no lock on the log
        assert len(quick.check_visible(lake)) == quick.rows
        lake._ingester.run("t")
        quick.retry_and_check(lake)


def test_the_background_ingest_outlives_failures(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with quick.notes.open("a") as notes, quick.open(busy_timeout=0.1, ingest_poll=0.05) as lake:
        lake.sql("CREATE TOPIC quick (n BIGINT) WITH (batch_size = 1, commit_interval = '100 ms')")
        lake.start_ingest()
        with locked(quick.path / "catalog.db"), locked(quick.path / "state.db"):
            time.sleep(0.7)
        with monkeypatch.context() as broken:  # readers of SQLite are hard to lock out
            broken.setattr(Topics, "names", lambda _: open_missing())
            time.sleep(0.3)
        lake.topic("quick").append([{"n": 1}])
        until = time.monotonic() + 60
        while lake.topics.load("quick").committed < 1:
            assert time.monotonic() < until, "the ingest has stopped"
            time.sleep(0.05)
        quick.worker.produce(lake, notes, "p", 0)
        quick.retry_and_check(lake)


def open_missing() -> list[str]:
    raise OSError("the catalog cannot be read")


# -- two ingesters --------------------------------------------------------------------------------------------------


def flush_until(lake: Lake, done: threading.Event) -> int:
    commits = 0
    while not done.is_set():
        commits += len(lake.flush())
    return commits


def test_two_processes_produce_and_ingest_one_topic(quick: Any) -> None:
    """Each flushes what both produce; whoever comes second finds the position moved."""
    common = ("--flush-every", "1", "--no-spark", "--batches", "25")
    workers = [
        quick.start(*common, "--producer", "p"),
        quick.start(*common, "--producer", "q", "--start", "1000"),
    ]
    assert [worker.wait(timeout=180) for worker in workers] == [0, 0], quick.said()
    assert len(quick.noted("ack")) == 50
    with quick.open() as lake:
        quick.retry_and_check(lake)
    assert {file.name for file in (quick.path / "warehouse").rglob("*.parquet")} == {
        Path(file).name for file in data_files(quick)
    }  # the second one's files are removed


@pytest.mark.spark
def test_two_ingesters_on_one_spark(abused: Any) -> None:
    done = threading.Event()
    with abused.notes.open("a") as notes, abused.open() as one, abused.open() as two, ThreadPoolExecutor(2) as pool:
        flushing = [pool.submit(flush_until, lake, done) for lake in (one, two)]
        try:
            for sequence in range(30):
                abused.worker.produce(one if sequence % 2 else two, notes, "p", sequence)
        finally:
            done.set()
        assert sum(each.result(timeout=120) for each in flushing) >= 1
        abused.retry_and_check(one)
        abused.check_visible(two)


def test_an_ingest_that_comes_second_is_refused_and_leaves_no_file(quick: Any) -> None:
    with quick.notes.open("a") as notes, quick.open() as one, quick.open() as two:
        quick.worker.produce(one, notes, "p", 0)
        topic, plan = two._ingester.plan("t", force=True)
        assert isinstance(plan, Ingest)
        one.flush()
        with pytest.raises(StaleCommit, match="came too late"):  # its entries have left the log
            two._ingester._commit(topic, plan)
        quick.retry_and_check(one)
        assert len(list((quick.path / "warehouse").rglob("*.parquet"))) == len(data_files(quick))


def test_entries_that_vanish_between_two_looks_are_no_damage(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ingester commits and trims after this one has loaded the topic: StaleCommit inside, nothing outside."""
    with quick.notes.open("a") as notes, quick.open() as one, quick.open() as two:
        quick.worker.produce(one, notes, "p", 0)
        listed, raced = two.log.entries, []

        def race(*arguments: Any) -> Any:
            if not raced:
                raced.append(one.flush())
                quick.worker.produce(one, notes, "p", 1)
            return listed(*arguments)

        monkeypatch.setattr(two.log, "entries", race)
        two.flush()
        assert raced
        quick.retry_and_check(two)


# -- a dropped topic ------------------------------------------------------------------------------------------------


def test_a_topic_dropped_while_producers_and_an_ingester_work(quick: Any) -> None:
    def produce(lake: Lake, producer: str) -> int:
        for sequence in range(10_000):
            try:
                lake.topic("t").append(quick.worker.records(sequence), producer=producer, sequence=sequence)
            except TopicNotFound:
                return sequence
        raise AssertionError("the topic was never dropped")

    def flush(lake: Lake) -> None:
        while True:
            try:
                lake.flush("t")
            except (TopicNotFound, StaleCommit):
                return

    with quick.open() as one, quick.open() as two, ThreadPoolExecutor(4) as pool:
        working = [pool.submit(produce, one, "p"), pool.submit(produce, two, "q"), pool.submit(flush, two)]
        time.sleep(0.5)
        one.sql("DROP TOPIC t")
        for each in working:
            each.result(timeout=60)
        assert one.topics.names() == []
        assert one.log.sqlite._db.execute(
            "SELECT count(*), coalesce(sum(length(payload)), 0) FROM log_entries"
        ).fetchone() == (
            0,
            0,
        )
        two.sql("CREATE TOPIC t (n BIGINT NOT NULL, text STRING)")
        for lake in (one, two):
            assert lake.sql("SELECT n FROM t").rows() == []
        one.topic("t").append([{"n": 1}], producer="p", sequence=0)  # sequences belong to the topic that is gone
        assert two.sql("SELECT n, _offset FROM t").rows() == [{"n": 1, "_offset": 0}]


def test_a_topic_made_anew_during_an_ingest_gets_none_of_it(quick: Any, arm: Callable[[str], None]) -> None:
    with quick.open() as one, quick.open() as two, ThreadPoolExecutor(1) as pool:
        one.topic("t").append(quick.worker.records(0))
        arm("ingest.before_commit=sleep:1.0")
        flushing = pool.submit(one.flush, "t")
        time.sleep(0.4)
        two.sql("DROP TOPIC t")
        two.sql("CREATE TOPIC t (n BIGINT NOT NULL, text STRING)")
        two.topic("t").append([{"n": -7}])
        assert flushing.result(timeout=60) == []  # what it was asked to commit is gone
        arm("")
        assert two.sql("SELECT n, _offset FROM t").rows() == [{"n": -7, "_offset": 0}]
        one.flush()
        assert one.sql("SELECT n FROM t", tail=False).rows() == [{"n": -7}]
        assert len(list((quick.path / "warehouse").rglob("*.parquet"))) == 1


# -- leases ---------------------------------------------------------------------------------------------------------


def test_a_dead_ingester_is_succeeded_although_its_lease_has_not_run_out(quick: Any) -> None:
    """The worker dies inside its first ingest, holding the lease: that its process is gone is evidence enough."""
    with quick.open() as lake:
        lake.sql("DROP TOPIC t")
        lake.sql("CREATE TOPIC t (n BIGINT NOT NULL, text STRING) WITH (batch_size = 1, commit_interval = '100 ms')")
    environment = {"HEADWATER_LEASE_TTL": "3600", "HEADWATER_INGEST_POLL": "0.05"}
    worker = quick.start("--ingest", "--batches", "2", points="ingest.planned=kill", env=environment)
    assert worker.wait(timeout=120) == -9, quick.said()
    with quick.open(lease_ttl=3600, ingest_poll=0.05) as lake:
        held = Leases(open_state(quick.path / "state.db", 5.0), "me", 3600).get("ingest:t")
        assert held is not None
        lake.start_ingest()
        until = time.monotonic() + 60
        while lake.topics.load("t").committed == 0:
            assert time.monotonic() < until, "nobody took over"
            time.sleep(0.02)
        assert time.time() < held.expires_at
        quick.retry_and_check(lake)


# -- closing --------------------------------------------------------------------------------------------------------


def test_closing_answers_every_request(tmp_path: Path) -> None:
    """Whoever appends while the log closes is either stored and acknowledged or refused; nobody waits for ever."""
    topic = LogTopic("id", "t", 0)
    rows = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    for number in range(20):
        log = SqliteLog(tmp_path / f"{number}.db")
        begun, stored = threading.Barrier(5), threading.Event()

        def flood(log: SqliteLog = log, begun: threading.Barrier = begun, stored: threading.Event = stored) -> int:
            begun.wait()
            for acknowledged in itertools.count():
                try:
                    log.append(Append((Part(topic, (rows,)),)))
                except Unavailable:
                    return acknowledged
                stored.set()
            raise AssertionError("the log was never closed")

        with ThreadPoolExecutor(4) as pool:
            flooding = [pool.submit(flood) for _ in range(4)]
            begun.wait()
            if number % 2:
                assert stored.wait(60)
            else:
                time.sleep(0.005)
            log.close()
            acknowledged = sum(each.result(timeout=60) for each in flooding)
        assert acknowledged or number % 2 == 0
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as db:
            assert db.execute("SELECT coalesce(sum(rows), 0) FROM log_entries").fetchone() == (1000 * acknowledged,)


# -- what another process remembers ---------------------------------------------------------------------------------


def test_a_reader_never_takes_an_old_entry_for_a_new_one(quick: Any) -> None:
    """The reader has the first entry in memory; another process commits and trims it, or drops its topic."""
    with quick.open() as reader, quick.open() as other:
        other.topic("t").append([{"n": 1}])
        assert reader.sql("SELECT n FROM t").rows() == [{"n": 1}]
        other.flush()
        other.topic("t").append([{"n": 2}])
        assert reader.sql("SELECT n FROM t ORDER BY n").rows() == [{"n": 1}, {"n": 2}]
        other.sql("DROP TOPIC t")
        other.sql("CREATE TOPIC t (n BIGINT NOT NULL)")
        other.topic("t").append([{"n": 3}])
        assert reader.sql("SELECT n FROM t").rows() == [{"n": 3}]
