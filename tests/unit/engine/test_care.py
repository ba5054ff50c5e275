"""The care of tables without Spark: files are written in this process, everything else is real."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Snapshot

from headwater.engine import Lake, care_loop
from headwater.engine.care import WAREHOUSE
from headwater.engine.care_loop import CareLoop
from headwater.engine.care_run import Wanted, begun
from headwater.engine.care_steps import Asked, Subject
from headwater.errors import Conflict, TopicNotFound
from headwater.observability.failpoints import VARIABLE, _actions
from headwater.sql.statements import Maintain, Optimize
from headwater.state.care import Pending, lease_of
from headwater.state.leases import Leases
from headwater.storage.commit import tag
from headwater.storage.maintenance import expire
from headwater.storage.scan import ManifestCache
from headwater.topics import ingest
from headwater.types import TableName

DAY = 86_400.0
METADATA = ("expire", "manifests", "deletions", "orphans")


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(tmp_path / "lake") as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        yield lake


def filled(lake: Lake, commits: int = 12, options: str = "min_snapshots = 2") -> None:
    lake.sql(f"CREATE TOPIC t (n BIGINT, at TIMESTAMP) WITH ({options})")
    for n in range(commits):
        lake.topic("t").append([{"n": n, "at": f"2026-01-{n + 1:02d}T00:00:00"}])
        lake.flush()


def later(lake: Lake, days: float) -> None:
    lake.care.now = lambda: time.time() + days * DAY


def outcomes(steps: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {step["step"]: step["outcome"] for step in steps}


def numbers(lake: Lake) -> list[int]:
    return [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n", tail=False, engine="duckdb")]


def stored(lake: Lake) -> set[Path]:
    folder = Path(lake.topics.load("t").table.location().removeprefix("file://"))
    return {path for path in folder.rglob("*") if path.is_file()}


def test_steps_follow_each_other_and_files_go_in_the_end(lake: Lake) -> None:
    filled(lake)
    later(lake, 2)
    before = stored(lake)
    planned = lake.maintain("t", only=METADATA, dry_run=True)
    assert outcomes(planned) == {
        "expire": "planned",
        "manifests": "planned",
        "deletions": "nothing",
        "orphans": "nothing",
    }
    assert planned[0]["numbers"]["snapshots"] == 10
    assert stored(lake) == before
    assert len(lake.topics.load("t").table.metadata.snapshots) == 12
    assert lake.sql("SHOW MAINTENANCE").rows() == [], "a dry run is not written down"

    done = lake.maintain("t", only=METADATA)
    assert outcomes(done) == {"expire": "done", "manifests": "done", "deletions": "nothing", "orphans": "nothing"}
    assert done[0]["numbers"]["snapshots"] == 10
    assert stored(lake) >= before - {path for path in before if path.name.endswith(".metadata.json")}
    assert done[2]["reason"] == f"no file is due, {done[0]['numbers']['files']} more are due later"
    assert numbers(lake) == list(range(12))

    later(lake, 2.1)
    (again,) = lake.maintain("t", only=["deletions"])
    assert again["outcome"] == "done"
    assert again["numbers"]["files"] == done[0]["numbers"]["files"] == 10
    assert numbers(lake) == list(range(12))
    assert lake.care.store.pending() == []
    history = lake.sql("SHOW MAINTENANCE OF t LIMIT 3").rows()
    shown = [(row["step"], row["outcome"], row["files"]) for row in history]
    assert shown == [("deletions", "done", 10), ("orphans", "nothing", 0), ("deletions", "nothing", 0)]


def test_a_file_waits_from_when_its_snapshots_expired_however_long_the_run_took(lake: Lake) -> None:
    """Steps before the expiry may take hours; a read that began just before it must still find its files."""
    filled(lake)
    began = time.time() + 2 * DAY
    lake.care.now = lambda: began + 3600
    lake.care.runner.run(Subject(lake.topics.load("t")), ["expire"], Wanted(Asked(began)))
    waiting = lake.care.store.pending()
    assert waiting
    assert {each.due for each in waiting} == {began + 3600 + lake.care.steps.grace}


def test_all_tables_and_what_no_table_has(lake: Lake) -> None:
    filled(lake, 1, "on_invalid = 'dead_letter'")
    gone = lake.paths.warehouse / "topics" / "gone-01hz0000000000000000000000"
    (gone / "data").mkdir(parents=True)
    (gone / "data" / "a.parquet").write_bytes(b"x")
    later(lake, 5)
    steps = lake.maintain(only=["orphans"], dry_run=True)
    assert [step["table"] for step in steps] == ["topics.t", "topics.t__dead", "warehouse"]
    assert steps[-1]["numbers"] == {"folders": 1, "files": 1, "bytes": 1}
    assert gone.exists()
    assert lake.maintain(only=["orphans"])[-1]["outcome"] == "done"
    assert not gone.exists()
    with pytest.raises(TopicNotFound, match='topic "nope" does not exist'):
        lake.maintain("nope")


def test_a_file_of_an_expired_snapshot_is_no_orphan_however_old(lake: Lake) -> None:
    filled(lake, 3, "min_snapshots = 1, retention_size = '1 B'")
    later(lake, 2)
    lake.maintain("t", only=["retention"])
    for path in stored(lake):
        os.utime(path, (0, 0))
    before = stored(lake)
    steps = {step["step"]: step for step in lake.maintain("t", only=METADATA)}
    assert (steps["expire"]["outcome"], steps["orphans"]["outcome"]) == ("done", "nothing")
    assert {path for path in stored(lake) if path.suffix == ".parquet"} == {p for p in before if p.suffix == ".parquet"}
    later(lake, 2.1)
    assert lake.maintain("t", only=["deletions"])[0]["outcome"] == "done"
    assert {path for path in stored(lake) if path.suffix == ".parquet"} == set()


def test_a_query_that_may_run_long_keeps_the_files_that_it_may_need(lake: Lake) -> None:
    filled(lake, 3, "min_snapshots = 1, retention_size = '1 B'")
    lake.sql("SELECT n FROM t", timeout=10 * DAY).rows()
    later(lake, 2)
    lake.maintain("t", only=["retention", "expire"])
    later(lake, 5)
    (held,) = lake.maintain("t", only=["deletions"])
    assert (held["outcome"], held["numbers"]["files_later"] > 0) == ("nothing", True)
    later(lake, 11)
    assert lake.maintain("t", only=["deletions"])[0]["outcome"] == "done"


def test_a_failing_step_is_told_and_the_others_are_done(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake)
    later(lake, 2)

    def fail(*_: object) -> None:
        raise RuntimeError("no way")

    monkeypatch.setattr(expire, "_remove", fail)
    steps = lake.maintain("t", only=METADATA)
    assert outcomes(steps) == {"expire": "failed", "manifests": "done", "deletions": "nothing", "orphans": "nothing"}
    assert (steps[0]["error"], steps[0]["code"]) == ("no way", "internal")
    shown = lake.sql("SHOW MAINTENANCE").rows()
    assert [(row["step"], row["error"]) for row in shown if row["outcome"] == "failed"] == [("expire", "no way")]
    scraped = lake.metrics.exposition().decode()
    assert 'headwater_maintenance_steps_total{outcome="failed",step="expire"} 1.0' in scraped
    assert 'headwater_maintenance_steps_total{outcome="done",step="manifests"} 1.0' in scraped
    assert 'headwater_maintenance_files_total{step="manifests"} 12.0' in scraped


@pytest.mark.leaves_damage
def test_a_table_that_cannot_be_read_is_told_and_the_others_are_done(lake: Lake) -> None:
    filled(lake, 12, "compaction = 'off'")
    lake.sql("CREATE TOPIC broken (n BIGINT)")
    Path(lake.topics.load("broken").table.metadata_location.removeprefix("file://")).unlink()
    lake.topics.tables.forget(TableName.topic("broken"))
    lake.care.store.pend([Pending("/gone/a", "another table", 0.0, 1)])
    steps = lake.maintain(only=("manifests", "orphans"))
    assert [(step["table"], step["outcome"]) for step in steps] == [
        ("topics.broken", "failed"),
        ("topics.t", "done"),
        ("topics.t", "nothing"),
        ("warehouse", "nothing"),
    ]
    assert len(lake.care.store.pending()) == 1, "it may be of the one that cannot be read"
    later(lake, 2)
    assert {step.table for step in CareLoop(lake.care, interval=600).tick()} == {"topics.t", "warehouse"}
    assert lake.spark_state == "not started"


def test_only_one_takes_care_of_a_table(lake: Lake) -> None:
    filled(lake, 1)
    other = Leases(lake.care.store.engine, "another", 30.0)
    assert other.acquire(lease_of("topics.t"))
    steps = lake.maintain("t", only=["expire"])
    assert (steps[0]["outcome"], steps[0]["reason"]) == ("skipped", 'table "topics.t" is being taken care of already')
    with pytest.raises(Conflict, match="taken care of already"):
        lake.topic("t").optimize()
    other.release(lease_of("topics.t"))
    assert lake.maintain("t", only=["expire"])[0]["outcome"] == "nothing"


def test_retention_names_what_it_took_and_keeps_the_position(lake: Lake) -> None:
    filled(lake, 5, "retention = '10 days', retention_column = 'at'")
    lake.care.now = lambda: 1_768_435_200.0  # 2026-01-15
    assert lake.maintain("t", only=["retention"], dry_run=True)[0]["numbers"]["rows"] == 4
    done = lake.maintain("t", only=["retention"])[0]
    assert (done["outcome"], done["numbers"]["files"], done["numbers"]["views"]) == ("done", 4, [])
    assert "older than 2026-01-05 00:00:00" in done["reason"]
    assert numbers(lake) == [4]
    assert lake.topics.load("t").committed == 5


def test_progress_is_told(lake: Lake) -> None:
    filled(lake)
    later(lake, 2)
    told: list[dict[str, Any]] = []
    result = lake.take_care(Maintain("t", ("expire", "deletions")), told.append)
    assert [(step["step"], step["outcome"]) for step in told] == [("expire", "running")]
    assert [row["outcome"] for row in result.rows()] == ["done", "nothing"]


def test_compaction_is_off_for_the_service_but_not_for_who_asks(lake: Lake) -> None:
    filled(lake, 3, "compaction = 'off'")
    (step,) = lake.maintain("t", only=["compact"], dry_run=True)
    assert (step["outcome"], step["reason"]) == ("nothing", "the option compaction is off")
    asked = lake.take_care(Optimize("t", dry_run=True)).info["steps"][0]
    assert (asked["outcome"], asked["numbers"]["files_before"]) == ("planned", 3)
    assert lake.topic("t").optimize(full=True, dry_run=True)["numbers"]["rows"] == 3


def test_a_view_that_is_gone_keeps_nothing_back(lake: Lake) -> None:
    filled(lake, 4, "min_snapshots = 1")
    topic = lake.topics.load("t")
    first = topic.table.metadata.snapshots[0].snapshot_id
    tag(lambda: lake.topics.tables.load_for_commit(topic.table_name), "headwater-view-gone", first)
    later(lake, 2)
    (step,) = lake.maintain("t", only=["expire"])
    assert (step["numbers"]["snapshots"], step["numbers"]["tags"]) == (3, 1)
    assert list(lake.topics.load("t").table.metadata.refs) == ["main"]


# -- by itself ---------------------------------------------------------------------------------------------------


def test_the_loop_does_what_is_due_and_nothing_else(lake: Lake) -> None:
    filled(lake, 12, "min_snapshots = 2, compaction = 'off'")
    loop = CareLoop(lake.care, interval=600)
    first = loop.tick()
    assert {(step.table, step.step, step.outcome) for step in first} == {
        ("topics.t", "manifests", "done"),
        ("topics.t", "orphans", "nothing"),
        ("warehouse", "orphans", "nothing"),
    }
    assert loop.tick() == [], "an idle lake costs nothing"
    later(lake, 2)
    assert {(step.step, step.outcome) for step in loop.tick()} == {("expire", "done"), ("orphans", "nothing")}
    later(lake, 2.1)
    assert {(step.step, step.outcome) for step in loop.tick() if step.step != "orphans"} == {("deletions", "done")}
    assert lake.spark_state == "not started"
    assert numbers(lake) == list(range(12))


def test_a_step_that_keeps_failing_waits_longer_each_time(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake, 12, "min_snapshots = 2, compaction = 'off'")
    monkeypatch.setattr(expire, "_remove", lambda *_: 1 / 0)
    loop = CareLoop(lake.care, interval=600)
    at = [time.time() + 2 * DAY]
    lake.care.now = lambda: at[0]
    failures = 0
    for _ in range(20):
        failures += sum(step.outcome == "failed" for step in loop.tick())
        at[0] += 600
    assert failures == 4, "after 2, 4 and 8 looks"
    at[0] -= DAY
    assert [step.step for step in loop.tick() if step.outcome == "failed"] == ["expire"], "the clock went back"


def test_a_search_that_a_clock_dated_ahead_does_not_count(lake: Lake) -> None:
    filled(lake, 1)
    ahead = datetime.now(UTC) + timedelta(days=365)
    for table in ("topics.t", WAREHOUSE):
        lake.care.store.record(replace(begun(table, "orphans", "schedule"), started_at=ahead, outcome="nothing"))
    loop = CareLoop(lake.care, interval=600)
    assert [step.step for step in loop.tick()] == ["orphans", "orphans"]
    assert loop.tick() == []


def test_the_loop_runs_and_stops(lake: Lake) -> None:
    filled(lake, 12, "compaction = 'off'")
    loop = CareLoop(lake.care, interval=0.05)
    loop.start()
    until = time.monotonic() + 60
    while not lake.sql("SHOW MAINTENANCE").rows():
        assert time.monotonic() < until
        time.sleep(0.02)
    loop.stop()
    assert not loop._thread.is_alive()
    assert lake.sql("SHOW MAINTENANCE").rows()[-1]["trigger"] == "schedule"


def test_an_error_in_between_loses_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake)
    later(lake, 2)
    for point in ("expire.planned", "expire.noted", "expire.committed"):
        monkeypatch.setenv(VARIABLE, f"{point}=error")
        _actions.cache_clear()
        assert outcomes(lake.maintain("t", only=["expire"]))["expire"] in ("failed", "nothing")
        assert numbers(lake) == list(range(12))
    monkeypatch.delenv(VARIABLE)
    _actions.cache_clear()
    later(lake, 2.1)
    lake.maintain("t", only=METADATA)
    assert lake.care.store.pending() == []
    assert numbers(lake) == list(range(12))
    for path in stored(lake):
        os.utime(path, (0, 0))
    assert lake.maintain("t", only=["orphans"])[0]["outcome"] == "nothing", "everything is accounted for"


def test_a_table_that_moves_meanwhile_is_planned_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake, 3, "retention = '1 day', retention_column = 'at'")
    subject = Subject(lake.topics.load("t"))
    lake.care.now = lambda: 1_768_435_200.0
    inner, raced = lake.care.steps.plan, []

    def race(step: Any, of: Subject, asked: Asked) -> Any:
        plan = inner(step, of, asked)
        if not raced:
            raced.append(True)
            stale = replace(asked, now=asked.now)
            inner(step, of, stale).run(lambda _: None)  # another process is first
        return plan

    monkeypatch.setattr(lake.care.steps, "plan", race)
    (done,) = lake.care.runner.run(subject, ["retention"], Wanted(Asked(lake.care.now())))
    assert done.outcome == "nothing", "the other one did it"


def test_a_service_takes_care_unless_it_is_told_not_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(tmp_path / "lake") as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        filled(lake, 12, "compaction = 'off'")
    with Lake.open(tmp_path / "lake", maintenance=False, maintenance_interval=0.05) as idle:
        idle.start_background()
        assert "headwater-care" not in {thread.name for thread in threading.enumerate()}
    with Lake.open(tmp_path / "lake", maintenance_interval=0.05) as lake:
        lake.start_background()
        until = time.monotonic() + 60
        while "manifests" not in {row["step"] for row in lake.sql("SHOW MAINTENANCE")}:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert "headwater-care" not in {thread.name for thread in threading.enumerate()}, "closing ends it"


def test_a_table_that_was_dropped_meanwhile_is_left_alone(lake: Lake) -> None:
    filled(lake, 2)
    subject = Subject(lake.topics.load("t"))
    lake.sql("DROP TOPIC t")
    done = lake.care.runner.run(subject, METADATA, Wanted(Asked(time.time()), "schedule"))
    assert {(step.outcome, step.reason) for step in done} == {("skipped", "it was dropped")}
    with pytest.raises(TopicNotFound):
        lake.care.runner.run(subject, METADATA, Wanted(Asked(time.time()), alone=True))


def test_many_commits_are_looked_at_before_the_interval_ends(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(care_loop, "COMMITS", 20)
    lake.sql("CREATE TOPIC t (n BIGINT) WITH (compaction = 'off')")
    loop = CareLoop(lake.care, interval=3600.0, first=3600.0)
    for n in range(15):
        lake.topic("t").append([{"n": n}])
        lake.flush()
    assert loop.busy() == frozenset()
    for n in range(15, 25):
        lake.topic("t").append([{"n": n}])
        lake.flush()
    assert loop.busy() == {"topics.t"}
    assert {step.step: step.outcome for step in loop.tick(loop.busy())}["manifests"] == "done"
    assert loop.busy() == frozenset()
    assert numbers(lake) == list(range(25))
    loop.start()
    try:
        for n in range(25, 50):
            lake.topic("t").append([{"n": n}])
            lake.flush()
        deadline = time.monotonic() + 60
        while loop.busy() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not loop.busy()
    finally:
        loop.stop()


def test_a_table_that_is_gone_or_damaged_does_not_keep_the_loop_busy(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care_loop, "COMMITS", 5)
    loop = CareLoop(lake.care, interval=3600.0, first=3600.0)

    def commit(topic: str, times: int) -> None:
        for n in range(times):
            lake.topic(topic).append([{"n": n}])
            lake.flush(topic)

    lake.sql("CREATE TOPIC gone (n BIGINT)")
    commit("gone", 6)
    lake.sql("DROP TOPIC gone")
    assert loop.busy() == frozenset()
    lake.sql("CREATE TOPIC gone (n BIGINT)")
    commit("gone", 3)
    assert loop.busy() == frozenset()  # what a topic of that name had before does not count
    commit("gone", 3)
    assert loop.busy() == {"topics.gone"}
    monkeypatch.setattr(lake.care, "subjects", list)  # as a damaged table is no subject
    loop.tick(loop.busy())
    assert loop.busy() == frozenset()


def test_expiry_reads_each_manifest_list_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake, commits=30)
    later(lake, 2)
    read: list[str] = []
    fetch = Snapshot.manifests

    def counted(snapshot: Snapshot, io: Any) -> Any:
        read.append(snapshot.manifest_list)
        return fetch(snapshot, io)

    monkeypatch.setattr(Snapshot, "manifests", counted)
    for only in ("expire", "deletions", "orphans"):
        lake.maintain("t", only=[only])
        lake.maintain("t", only=[only], dry_run=True)
    assert len(read) == len(set(read))


def test_views_keep_no_more_snapshots_than_the_setting(tmp_path: Path) -> None:
    with Lake.init(tmp_path / "lake", view_max_snapshots=7, view_min_snapshots=3) as lake:
        view = SimpleNamespace(topic=None)
        assert (lake.care.steps.keep(view).most, lake.care.steps.keep(view).least) == (7, 3)  # type: ignore[arg-type]


def test_a_lake_has_one_manifest_cache(tmp_path: Path) -> None:
    before = {id(each) for each in gc.get_objects() if isinstance(each, ManifestCache)}
    with Lake.init(tmp_path / "lake") as lake:
        parts = (lake.care, lake.parquet, lake.view_room, lake.streams, lake.tailing)
        assert all(parts)
        found = [each for each in gc.get_objects() if isinstance(each, ManifestCache) and id(each) not in before]
        assert len(found) == 1
