"""Snapshots, tags, rollback and cherry-pick without Spark: files are written in this process, all else is real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.expressions import AlwaysTrue

from headwater import TimeTravelManager
from headwater.api.serve import Service
from headwater.cli.main import main
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.engine import snapshots as room
from headwater.errors import (
    Conflict,
    HeadwaterError,
    InvalidInput,
    InvalidName,
    SnapshotGone,
    StaleCommit,
    TopicNotFound,
)
from headwater.storage import time_travel_rollback
from headwater.storage.commit import Change, commit
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.topics import ingest
from headwater.types import TableName


def write_in_process(_: object, log_path: Path, into: Any, entries: Sequence[Any]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(tmp_path / "lake") as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.sql("CREATE TOPIC t (n BIGINT)")
        yield lake


def add(lake: Lake, *numbers: int) -> int:
    """Records in a commit of their own; its snapshot."""
    lake.topic("t").append([{"n": number} for number in numbers])
    return lake.flush("t")[-1].snapshot_id


def held(lake: Lake) -> list[int]:
    return [row["n"] for row in lake.sql("SELECT n FROM t ORDER BY n").rows()]


def head(lake: Lake) -> int | None:
    return lake.topics.load("t").snapshot_id


def table(lake: Lake) -> Any:
    return lake.topics.tables.load_for_commit(TableName.topic("t"))


def gaps(lake: Lake) -> list[tuple[int, int]]:
    return [(gap["from"], gap["to"]) for gap in lake.sql("SHOW SNAPSHOTS OF t").info["gaps"]]


# -- the list ---------------------------------------------------------------------------------------------------------


def test_snapshots_tell_what_they_did(lake: Lake) -> None:
    first, second = add(lake, 1, 2), add(lake, 3)
    lake.topic("t").tag("v1", first)
    newest, oldest = lake.topic("t").snapshots()
    assert (newest["snapshot"], newest["parent"], oldest["snapshot"]) == (str(second), str(first), str(first))
    told = {key: newest[key] for key in ("made_by", "operation", "rows_added", "rows", "files", "current", "on_main")}
    assert told == {
        "made_by": "ingest",
        "operation": "append",
        "rows_added": 1,
        "rows": 3,
        "files": 2,
        "current": True,
        "on_main": True,
    }
    assert (newest["offset_from"], newest["offset_to"]) == (2, 3)
    assert (newest["refs"], oldest["refs"]) == (["main"], ["v1"])
    assert lake.topic("t").snapshots(limit=1) == [newest]
    assert abs(newest["at"] - datetime.now(UTC)) < timedelta(minutes=1)
    lake.topic("t").alter("ADD COLUMN later STRING")
    assert lake.topic("t").snapshots(limit=1)[0]["made_by"] == "alter"


# -- reading ----------------------------------------------------------------------------------------------------------


def test_the_past_is_read_by_id_time_tag_and_branch(lake: Lake) -> None:
    first = add(lake, 1)
    between_them = datetime.now(UTC)
    add(lake, 2)
    travel = TimeTravelManager(lake)
    travel.tag("t", "v1", first)
    travel.branch("t", "b1", "v1", retain="2 hours")
    reads = [
        travel.read_at_snapshot("t", first),
        travel.read_at_timestamp("t", between_them),
        travel.read_at_timestamp("t", f"{between_them:%Y-%m-%d %H:%M:%S.%f}"),
        travel.read_at("t", "v1"),
        travel.read_at("t", "b1"),
        lake.topic("t").read_at(str(first)),
    ]
    assert [[row["n"] for row in read.rows()] for read in reads] == [[1]] * 6
    kept = {ref["name"]: (ref["kind"], ref["retain_seconds"], ref["owner"]) for ref in travel.list_refs("t")}
    assert kept == {
        "b1": ("branch", 7200.0, "user"),
        "main": ("branch", None, "headwater"),
        "v1": ("tag", None, "user"),
    }


def test_a_time_whose_snapshot_has_expired_is_not_answered_by_an_older_one(lake: Lake) -> None:
    first = add(lake, 1)
    lake.topic("t").tag("v1", first)
    expired = add(lake, 2)
    between_them = datetime.now(UTC)
    add(lake, 3)
    expire(lake, expired)
    with pytest.raises(SnapshotGone, match="has expired"):
        lake.topic("t").read_at(between_them)
    assert sorted(row["n"] for row in lake.topic("t").read_at(datetime.now(UTC)).rows()) == [1, 2, 3]


def test_what_is_not_there_has_no_changes(lake: Lake) -> None:
    with pytest.raises(TopicNotFound):
        TimeTravelManager(lake).changes("nothing", 1, 2)
    add(lake, 1)
    with pytest.raises(SnapshotGone, match='snapshot 5 of topic "t" does not exist'):
        lake.topic("t").changes(5, "main")


def test_rows_that_changed_can_be_asked_for_by_a_condition(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2, 3)
    found = lake.topic("t").changes(first, second, where="n > 2 -- only these")
    assert [(row["n"], row["_change"]) for row in found.rows()] == [(3, "inserted")]
    assert lake.topic("t").diff(second, first)["deleted"] == 2


def test_a_difference_names_types_as_statements_do(lake: Lake) -> None:
    first = add(lake, 1)
    lake.topic("t").alter("ADD COLUMN s STRUCT<x: INT>, ADD COLUMN l ARRAY<INT>, ADD COLUMN m MAP<STRING, INT>")
    assert [each for each in lake.topic("t").diff(first, "main")["schema_changes"] if "." not in each] == [
        "added s STRUCT",
        "added l ARRAY",
        "added m MAP",
    ]


def test_files_that_are_sorted_by_a_dropped_column_are_no_difference(lake: Lake) -> None:
    lake.sql("CREATE TOPIC ordered (n BIGINT, a INT) ORDERED BY (a DESC)")
    topic = lake.topic("ordered")
    topic.append([{"n": 1, "a": 1}])
    topic.flush()
    first = topic.snapshots()[0]["snapshot"]
    topic.alter("SET UNORDERED, DROP COLUMN a")
    assert topic.diff(first, "main")["ordering"] is None


# -- rollback ---------------------------------------------------------------------------------------------------------


def test_a_rollback_says_what_it_does_and_then_does_it(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    third = add(lake, 3)
    lake.topic("t").append([{"n": 4}])
    planned = lake.topic("t").rollback(first, dry_run=True)
    assert (head(lake), held(lake), gaps(lake)) == (third, [1, 2, 3, 4], [])
    done = lake.topic("t").rollback(first, base=planned["from"])
    assert done == {**planned, "dry_run": False}
    assert (done["rows_before"], done["rows_after"], done["rows_removed"], done["files_removed"]) == (3, 1, 2, 2)
    assert (done["offsets_lost"], done["snapshots_left"], done["waiting"]) == ([[1, 3]], [str(third), str(second)], 1)
    assert (held(lake), gaps(lake)) == ([1, 4], [(1, 3)])
    assert lake.topics.load("t").committed == 3
    lake.flush("t")
    assert held(lake) == [1, 4]
    assert [row["_offset"] for row in lake.sql("SELECT _offset FROM t ORDER BY n").rows()] == [0, 3]


def test_a_rollback_is_undone_by_another(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    lake.topic("t").rollback(first)
    back = lake.topic("t").rollback(second)
    assert (back["offsets_regained"], back["offsets_lost"], back["snapshots_regained"]) == ([[1, 2]], [], [str(second)])
    assert (held(lake), gaps(lake)) == ([1, 2], [])
    assert lake.topic("t").rollback(second)["snapshots_left"] == []


def test_a_rollback_to_a_time_is_what_the_topic_was_then(lake: Lake) -> None:
    add(lake, 1)
    then = datetime.now(UTC)
    add(lake, 2)
    TimeTravelManager(lake).rollback_to_timestamp("t", then)
    assert held(lake) == [1]


def racing(monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: Callable[[], object]) -> None:
    """Let something happen once, between the plan and the commit."""
    run, waiting = getattr(room, name), [meanwhile]

    def late(*given: Any) -> Any:
        if waiting:
            waiting.pop()()
        return run(*given)

    monkeypatch.setattr(room, name, late)


def test_a_rollback_that_loses_a_race_is_planned_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first = add(lake, 1)
    add(lake, 2)
    racing(monkeypatch, "run_rollback", lambda: add(lake, 3))
    done = lake.topic("t").rollback(first)
    assert done["offsets_lost"] == [[1, 3]]
    assert (held(lake), gaps(lake)) == ([1], [(1, 3)])


def test_a_rollback_that_was_looked_at_is_refused_when_more_would_be_lost(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(lake, 1), add(lake, 2)
    racing(monkeypatch, "run_rollback", lambda: add(lake, 3))
    with pytest.raises(StaleCommit, match="changed since the rollback was planned"):
        lake.topic("t").rollback(first, base=second)
    assert (held(lake), gaps(lake)) == ([1, 2, 3], [])


def just_before_commit(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Let something happen once, after a rollback has looked at its base and before it commits."""
    commit_one, waiting = time_travel_rollback._commit, [meanwhile]

    def late(given: Any, plan: Any) -> None:
        if waiting:
            waiting.pop()()
        commit_one(given, plan)

    monkeypatch.setattr(time_travel_rollback, "_commit", late)


def test_what_is_committed_just_before_a_rollback_is_not_lost_unseen(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(lake, 1), add(lake, 2)
    just_before_commit(monkeypatch, lambda: add(lake, 3))
    with pytest.raises(StaleCommit):
        lake.topic("t").rollback(first, base=second)
    assert (held(lake), gaps(lake)) == ([1, 2, 3], [])


def test_a_tag_set_meanwhile_is_not_in_the_way_of_a_rollback(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = add(lake, 1), add(lake, 2)
    just_before_commit(monkeypatch, lambda: lake.topic("t").tag("v1"))
    lake.topic("t").rollback(first, base=second)
    assert held(lake) == [1]
    assert sorted(row["n"] for row in lake.topic("t").read_at("v1").rows()) == [1, 2]


def test_an_ingest_that_was_under_way_is_committed_after_a_rollback(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = add(lake, 1)
    add(lake, 2)
    lake.topic("t").append([{"n": 3}])

    def write_late(_: object, log_path: Path, into: Any, entries: Sequence[Any]) -> list[Any]:
        lake.topic("t").rollback(first)
        return ingest.write_entries(log_path, into, entries)

    monkeypatch.setattr(ingest, "write_files", write_late)
    lake.flush("t")
    assert (held(lake), gaps(lake)) == ([1, 3], [(1, 2)])


def expire(lake: Lake, *snapshots: int) -> None:
    for snapshot in snapshots:
        table(lake).maintenance.expire_snapshots().by_id(snapshot).commit()


def test_gaps_are_told_from_rows_where_the_ingests_before_have_expired(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    removed = [file for file in _files(lake) if _offset(lake, file) == 0]
    change = Change((), removed, "overwrite", {"headwater.deleted-rows": "1"})
    deleted = commit(lambda: table(lake), change, lambda _: None).snapshot_id
    lake.topic("t").tag("v1", deleted)
    third = add(lake, 3)
    add(lake, 4)
    expire(lake, first, second, third)
    done = lake.topic("t").rollback("v1")
    assert (done["offsets_lost"], held(lake), gaps(lake)) == ([[2, 4]], [2], [(2, 4)])


def test_what_was_picked_is_a_gap_again_also_where_the_ingests_before_have_expired(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    lake.topic("t").rollback(first)
    third, fourth = add(lake, 3), add(lake, 4)
    lake.topic("t").cherry_pick(second)
    assert (held(lake), gaps(lake)) == ([1, 2, 3, 4], [])
    expire(lake, first, third)
    lake.topic("t").rollback(fourth)
    assert (held(lake), gaps(lake)) == ([1, 3, 4], [(1, 2)])


def _files(lake: Lake) -> list[Any]:
    topic = lake.topics.load("t")
    return list(plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), ManifestCache()).files)


def _offset(lake: Lake, file: Any) -> int:
    """The first offset of a file."""
    bound = file.lower_bounds[lake.topics.load("t").schema.find_field("_offset").field_id]
    return int.from_bytes(bound, "little", signed=True)


def test_a_snapshot_of_a_branch_is_not_rolled_back_to(lake: Lake) -> None:
    first = add(lake, 1)
    staged = _staged(lake)
    with pytest.raises(Conflict, match="was never its current one") as refused:
        lake.topic("t").rollback(staged)
    assert refused.value.hint == f"Use CHERRY PICK VERSION {staged} INTO t."
    with pytest.raises(Conflict, match="cannot be picked"):  # nobody gave its records their offsets
        lake.topic("t").cherry_pick(staged)
    assert (head(lake), held(lake)) == (first, [1])


def _staged(lake: Lake) -> int:
    """A snapshot that another program made beside main."""
    loaded = table(lake)
    rows = loaded.scan().to_arrow()
    loaded.append(rows, branch="side")
    return int(table(lake).metadata.refs["side"].snapshot_id)


# -- cherry-pick ------------------------------------------------------------------------------------------------------


def test_what_a_rollback_took_is_picked_back_once(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    third = add(lake, 3)
    lake.topic("t").rollback(first)
    planned = lake.topic("t").cherry_pick(third, dry_run=True)
    assert (planned["offsets_regained"], planned["snapshot"], head(lake)) == ([[2, 3]], None, first)
    done = lake.topic("t").cherry_pick(third)
    assert (done["snapshot"], done["rows_after"]) == (str(head(lake)), 2)
    assert (held(lake), gaps(lake)) == ([1, 3], [(1, 2)])
    newest = lake.topic("t").snapshots()[0]
    assert (newest["made_by"], newest["offset_from"], newest["on_main"]) == ("cherry-pick", 2, True)
    for again in (third, first, head(lake)):
        with pytest.raises(Conflict, match="already"):
            lake.topic("t").cherry_pick(int(again or 0))
    lake.topic("t").cherry_pick(second)
    assert (held(lake), gaps(lake)) == ([1, 2, 3], [])


def test_a_pick_is_never_done_twice_even_when_nothing_tells_of_it(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    lake.topic("t").rollback(first)
    picked = lake.topic("t").cherry_pick(second)["snapshot"]
    _rewrite(lake)  # other files hold the rows now
    add(lake, 3)
    expire(lake, int(picked))
    with pytest.raises(Conflict, match="cannot be picked") as refused:
        lake.topic("t").cherry_pick(second)
    assert refused.value.detail == "The topic has records of its offsets [1, 2)."


def _rewrite(lake: Lake) -> int:
    """A compaction of everything."""
    from headwater.storage.writer import PartitionedWriter

    topic = lake.topics.load("t")
    files = _files(lake)
    writer = PartitionedWriter(ingest.target(topic), lambda: f"rewritten-{topic.snapshot_id}")
    writer.write(table(lake).scan().to_arrow().cast(ingest_schema(topic)))
    return commit(lambda: table(lake), Change(writer.close(), files, "replace"), lambda _: None).snapshot_id


def ingest_schema(topic: Any) -> Any:
    from headwater.storage.schemas import arrow_schema

    return arrow_schema(topic.schema)


def test_a_compaction_is_not_picked(lake: Lake) -> None:
    first = add(lake, 1)
    add(lake, 2)
    compacted = _rewrite(lake)
    lake.topic("t").rollback(first)
    with pytest.raises(Conflict) as refused:
        lake.topic("t").cherry_pick(compacted)
    assert refused.value.detail == "It rewrote files, and changed no row."


def test_picks_of_one_snapshot_at_the_same_time_are_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = add(lake, 1), add(lake, 2)
    lake.topic("t").rollback(first)
    racing(monkeypatch, "run_pick", lambda: lake.topic("t").cherry_pick(second))
    with pytest.raises(Conflict, match="already"):
        lake.topic("t").cherry_pick(second)
    assert held(lake) == [1, 2]


# -- tags -------------------------------------------------------------------------------------------------------------


def test_names_that_are_not_the_users_are_refused_everywhere(lake: Lake) -> None:
    add(lake, 1)
    before = lake.topics.load("t").table.metadata_location
    travel = TimeTravelManager(lake)
    for name in ("headwater-view-v", "main", "", "a b", "1", "x" * 129):
        for call in (travel.tag, travel.untag, travel.branch, travel.unbranch):
            with pytest.raises(InvalidName):
                call("t", name)
    for wrong in ("", "12345678901234567890123", -1, "2026-99-01"):
        with pytest.raises(InvalidInput):
            travel.tag("t", "v1", wrong)
    for retain in ("soon", 0, -1, 0.5):
        with pytest.raises(InvalidInput):
            travel.tag("t", "v1", retain=retain)
    assert lake.topics.load("t").table.metadata_location == before


def test_a_tag_that_moved_meanwhile_is_not_overwritten(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.storage import time_travel_refs

    first, second = add(lake, 1), add(lake, 2)
    commit_one, waiting = time_travel_refs._committed, [1]

    def late(*given: Any) -> bool:
        if waiting:
            waiting.pop()
            lake.topic("t").tag("v1", first)
        return commit_one(*given)

    monkeypatch.setattr(time_travel_refs, "_committed", late)
    with pytest.raises(Conflict, match='tag "v1" of topic "t" exists already'):
        lake.topic("t").tag("v1", second)
    lake.topic("t").tag("v1", second, replace=True)
    assert sorted(row["n"] for row in lake.topic("t").read_at("v1").rows()) == [1, 2]


# -- over HTTP and from the command line ------------------------------------------------------------------------------


@pytest.fixture
def url(lake: Lake) -> Iterator[str]:
    service = Service(lake, port=0)
    yield service.start()
    service.stop()


def test_a_remote_lake_answers_as_an_open_one(lake: Lake, url: str) -> None:
    first = add(lake, 1)
    second = add(lake, 2)
    with RemoteLake(url) as remote:
        here, there = TimeTravelManager(lake), TimeTravelManager(remote)
        there.tag("t", "v1", first, retain="30 days")
        there.branch("t", "b1")
        assert there.list_snapshots("t") == here.list_snapshots("t")
        assert there.list_refs("t") == here.list_refs("t")
        assert there.diff("t", "v1", second) == here.diff("t", "v1", second)
        assert there.changes("t", "v1", "main").rows() == here.changes("t", "v1", "main").rows()
        assert there.read_at("t", "v1").rows() == here.read_at("t", "v1").rows()
        assert there.rollback("t", "v1", dry_run=True) == here.rollback("t", "v1", dry_run=True)
        lines = remote.execute(room.RollbackTopic("t", room.AsOf(ref="v1"), second)).rows()
        assert lines[0]["plan"].startswith('rolled back topic "t"')
        assert there.cherry_pick("t", second)["snapshot"] == str(head(lake))
        there.untag("t", "v1")
        there.unbranch("t", "b1")
        for wrong, kind in (
            (lambda: there.untag("t", "v1"), SnapshotGone),
            (lambda: there.read_at("t", 5), SnapshotGone),
        ):
            with pytest.raises(kind):
                wrong()
        with pytest.raises(TopicNotFound):
            there.list_snapshots("nothing")
        with pytest.raises(StaleCommit):
            there.rollback("t", first, base=5)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "snapshots/rollback", {}, 400),
        ("POST", "snapshots/rollback", {"version": 1, "tag": "x"}, 400),
        ("POST", "snapshots/rollback", {"version": 1}, 404),
        ("POST", "snapshots/rollback", {"timestamp": "then"}, 400),
        ("POST", "snapshots/cherry-pick", {"version": 1}, 404),
        ("POST", "snapshots/cherry-pick", {"version": -1}, 400),
        ("PUT", "tags/headwater-view-v", None, 400),
        ("PUT", "tags/v1?replace=true&if_not_exists=true", None, 400),
        ("DELETE", "tags/v1", None, 404),
        ("DELETE", "branches/main", None, 400),
        ("GET", "changes?from=1", None, 400),
        ("GET", "changes?from=1&to=2", None, 404),
        ("GET", "diff?from=1&to=x", None, 404),
        ("GET", "snapshots?limit=0", None, 400),
    ],
)
def test_bad_requests_are_problems_and_change_nothing(
    lake: Lake, url: str, method: str, path: str, body: Any, status: int
) -> None:
    add(lake, 1)
    before = lake.topics.load("t").table.metadata_location
    answer = httpx.request(method, f"{url}/api/v1/topics/t/{path}", json=body, trust_env=False)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert lake.topics.load("t").table.metadata_location == before


def test_the_command_line_goes_back_and_forth(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(lake, 1), add(lake, 2)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["-C", str(lake.paths.root), "snapshots", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    assert run("tag", "t", "v1", "--at", str(first), "--retain", "1 day")[0] == 0
    assert "v1" in run("refs", "t")[1]
    assert run("diff", "t", "v1", "main")[1].splitlines()[3].split() == ["inserted:", "1"]
    code, out, err = run("rollback", "t", "v1")
    assert (code, out) == (2, "") and "--yes" in err
    code, out, _ = run("rollback", "t", "v1", "--dry-run")
    assert code == 0 and out.startswith('roll back topic "t"')
    assert held(lake) == [1, 2]
    planned = json.loads(run("rollback", "t", "v1", "--yes", "--json")[1])
    assert (planned["from"], planned["to"], planned["offsets_lost"]) == (str(second), str(first), [[1, 2]])
    listed = run("list", "t")
    assert "ingest" in listed[1] and "offsets [1, 2) are gone" in listed[2]
    assert json.loads(run("list", "t", "--json")[1])["gaps"][0]["to"] == 2
    assert run("cherry-pick", "t", str(second))[0] == 0
    rows = json.loads(run("changes", "t", "v1", "main", "--json")[1])
    assert rows["row_count"] == 1 if isinstance(rows, dict) else len(rows) == 1
    assert run("untag", "t", "v1")[0] == 0
    assert run("untag", "t", "v1")[0] == 1
    assert run("branch", "t", "main")[0] == 1
    assert held(lake) == [1, 2]


def test_errors_have_what_they_need(lake: Lake) -> None:
    with pytest.raises(HeadwaterError, match="no snapshot yet") as wrong:
        lake.topic("t").tag("v1")
    assert wrong.value.hint == "FLUSH commits what waits in its log."
