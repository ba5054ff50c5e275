"""The care of tables with Spark, views and every surface: what anybody can read stays the same, whatever is tidied."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from headwater.cli.checks_lake import check_lake
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.engine.care_steps import carried
from headwater.errors import HeadwaterError, InvalidStatement, TopicNotFound
from headwater.sql.parse import parse
from headwater.sql.statements import Maintain, Optimize
from headwater.storage.maintenance.expire import Keep
from headwater.storage.maintenance.manifests import run_manifests
from headwater.storage.scan import ManifestCache

pytestmark = pytest.mark.spark

NDJSON = "application/x-ndjson"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or "CACHE" in name}
DAY = 86_400.0
_numbers = itertools.count()


@pytest.fixture
def sales(lake: Lake) -> Iterator[str]:
    """A topic whose snapshots expire as soon as they may; it goes with the views that read it."""
    name = f"care_sales{next(_numbers)}"
    lake.sql(f"CREATE TOPIC {name} (city STRING, amount BIGINT, at TIMESTAMP) WITH (min_snapshots = 1)")
    yield name
    lake.care.now = time.time
    for view in lake.views.readers_of(lake.topics.load(name).table_name):
        lake.view(view.name).drop()
    lake.sql(f"DROP TOPIC {name}")


def sell(lake: Lake, name: str, *amounts: int, at: str = "2026-01-01T00:00:00") -> None:
    """A commit for each amount."""
    for amount in amounts:
        lake.topic(name).append([{"city": "rome" if amount % 2 else "oslo", "amount": amount, "at": at}])
        lake.flush(name)


def later(lake: Lake, days: float) -> None:
    lake.care.now = lambda: time.time() + days * DAY


def total(lake: Lake, name: str) -> int:
    """What both engines say, and any Iceberg reader."""
    said = {
        lake.sql(f"SELECT sum(amount) AS s FROM {name}", engine="duckdb").rows()[0]["s"],
        lake.sql(f"SELECT sum(amount) AS s FROM {name}", engine="spark").rows()[0]["s"],
        sum(lake.topics.load(name).table.scan().to_arrow()["amount"].to_pylist()),
    }
    assert len(said) == 1, said
    return int(said.pop())


def test_a_view_follows_its_topic_through_all_of_it(lake: Lake, sales: str) -> None:
    sell(lake, sales, 1, 2, 3)
    view = f"{sales}_by_city"
    lake.create_view(view, f"SELECT city, count(*) AS n, sum(amount) AS s FROM {sales} GROUP BY city", refresh="manual")
    sell(lake, sales, 4, 5)
    compacted = lake.topic(sales).optimize()
    assert (compacted["outcome"], compacted["numbers"]["files_before"], compacted["numbers"]["files_after"]) == (
        "done",
        5,
        1,
    )
    sell(lake, sales, 6)
    later(lake, 2)
    steps = {step["step"]: step for step in lake.maintain(sales)}
    assert steps["expire"]["outcome"] == "done"
    assert len(lake.topics.load(sales).table.metadata.snapshots) == 6, "the line from what the view stands for"
    later(lake, 4)
    assert lake.maintain(sales, only=["deletions", "orphans"])[0]["outcome"] == "done"

    assert "append" in lake.view(view).explain()
    refreshed = lake.sql(f"REFRESH MATERIALIZED VIEW {view} VERIFY").info
    assert [(each["method"], each["rows_read"]) for each in refreshed["refreshed"]] == [("append", 3)], "not 9"
    assert refreshed["verified"]["equal"]
    assert {row["city"]: row["s"] for row in lake.sql(f"SELECT city, s FROM {view}")} == {"rome": 9, "oslo": 12}

    assert lake.maintain(sales, only=["expire"])[0]["outcome"] == "done", "the view has moved on"
    sell(lake, sales, 7)
    assert lake.sql(f"REFRESH MATERIALIZED VIEW {view} VERIFY").info["verified"]["equal"]
    later(lake, 6)
    of_view = {step["step"]: step["outcome"] for step in lake.maintain(view)}
    assert of_view == {"expire": "nothing", "manifests": "nothing", "deletions": "nothing", "orphans": "nothing"}
    lake.maintain(sales)
    assert total(lake, sales) == 28
    assert {row["city"]: row["s"] for row in lake.sql(f"SELECT city, s FROM {view}")} == {"rome": 16, "oslo": 12}
    assert [check for check in check_lake(lake.paths.root, deep=True) if check.status == "fail"] == []


def test_the_table_of_a_view_is_cared_for_too(lake: Lake, sales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view, above = f"{sales}_sums", f"{sales}_all"
    sell(lake, sales, 1)
    lake.create_view(view, f"SELECT city, sum(amount) AS s FROM {sales} GROUP BY city", refresh="manual")
    lake.create_view(above, f"SELECT count(*) AS n FROM {view}", refresh="manual")
    try:
        for amount in (2, 3):
            sell(lake, sales, amount)
            lake.sql(f"REFRESH MATERIALIZED VIEW {view}")
        table = lake.views.load(view).table_name
        done = run_manifests(lambda: lake.topics.tables.load_for_commit(table), ManifestCache(), carried, least=2)
        assert done.plan.before > done.plan.after == 1
        now = lake.views.load(view)
        assert now.snapshot_id == done.snapshot_id
        assert now.position_at(now.table.current_snapshot()) == now.position  # type: ignore[arg-type]
        monkeypatch.setattr(lake.care.steps, "keep", lambda _: Keep(0, 1))
        later(lake, 2)
        assert lake.maintain(view, only=["expire"])[0]["outcome"] == "nothing", "the view above stands for the first"
        sell(lake, sales, 4)
        assert lake.sql(f"REFRESH MATERIALIZED VIEW {above} VERIFY").info["verified"]["equal"]
        assert lake.maintain(view, only=["expire"])[0]["numbers"]["snapshots"] == 4
        later(lake, 3)
        assert lake.maintain(view, only=["deletions"])[0]["outcome"] == "done"
        outcome = lake.sql(f"REFRESH MATERIALIZED VIEW {above} VERIFY").info
        assert outcome["verified"]["equal"]
        assert lake.sql(f"VERIFY MATERIALIZED VIEW {view}").info["verified"]["equal"]
        assert {row["city"]: row["s"] for row in lake.sql(f"SELECT city, s FROM {view}")} == {"rome": 4, "oslo": 6}
        assert lake.sql(f"SELECT n FROM {above}").rows() == [{"n": 2}]
    finally:
        lake.view(above).drop()


def test_retention_takes_rows_from_views_and_says_so(lake: Lake, sales: str) -> None:
    kept = f"{sales}_kept"
    lake.sql(f"CREATE TOPIC {kept} (amount BIGINT, at TIMESTAMP) WITH (retention = '30 days', retention_column = 'at')")
    view = f"{kept}_days"
    try:
        for day in ("01", "02", "20"):
            lake.topic(kept).append([{"amount": 1, "at": f"2026-01-{day}T00:00:00"}])
            lake.flush(kept)
        lake.create_view(view, f"SELECT to_date(at) AS day, sum(amount) AS s FROM {kept} GROUP BY 1", refresh="manual")
        lake.care.now = lambda: 1_770_336_000.0  # 2026-02-06
        planned = lake.take_care(Maintain(kept, ("retention",), True))
        assert planned.notices == (f"Materialized views that lose what those rows gave them: {view}.",)
        assert planned.rows()[0] | {"bytes": 0} == {
            "table": f"topics.{kept}",
            "step": "retention",
            "outcome": "planned",
            "reason": "all rows of 2 files are older than 2026-01-07 00:00:00",
            "files": 2,
            "bytes": 0,
            "rows": 2,
            "seconds": None,
            "error": None,
        }
        assert lake.maintain(kept, only=["retention"])[0]["outcome"] == "done"
        assert total(lake, kept) == 1
        refreshed = lake.sql(f"REFRESH MATERIALIZED VIEW {view} VERIFY").info
        assert refreshed["refreshed"][0]["method"] != "full"
        assert refreshed["verified"]["equal"]
        assert len(lake.sql(f"SELECT * FROM {view}").rows()) == 1
    finally:
        lake.care.now = time.time
        if lake.views.exists(view):
            lake.view(view).drop()
        lake.sql(f"DROP TOPIC {kept}")


def test_over_http_and_through_remote_lake(lake: Lake, sales: str, http: httpx.Client, remote: RemoteLake) -> None:
    sell(lake, sales, 1, 2)
    planned = http.post(f"/topics/{sales}/parquet/compact", json={"dry_run": True}).json()
    (step,) = planned["steps"]
    assert (step["step"], step["outcome"], step["numbers"]["files_before"]) == ("compact", "planned", 2)
    told = http.post(f"/topics/{sales}/parquet/compact", headers={"Accept": NDJSON})
    lines = [json.loads(line) for line in told.text.splitlines()]
    assert lines[0]["step"]["outcome"] == "running"
    assert lines[-1]["answer"]["steps"][0]["outcome"] == "done"
    assert total(lake, sales) == 3

    answered = http.post(f"/topics/{sales}/maintain", json={"only": ["expire", "manifests"]}).json()
    assert [each["step"] for each in answered["steps"]] == ["expire", "manifests"]
    history = http.get("/maintenance", params={"name": sales, "limit": 2}).json()
    assert [(each["step"], each["trigger"]) for each in history["steps"]] == [
        ("manifests", "manual"),
        ("expire", "manual"),
    ]
    assert history["running"] == []
    assert set(history["pending_deletions"]) == {"files", "bytes"}
    assert http.post("/topics/nothing/maintain").json()["code"] == "topic_not_found"
    assert http.post("/maintain", json={"name": "nothing"}).status_code == 404
    assert http.post("/maintain", json={"only": ["vacuum"]}).status_code == 400

    sell(lake, sales, 3, 4)
    heard: list[str] = []
    done = remote.take_care(Optimize(sales), lambda step: heard.append(step["outcome"]))
    assert heard[0] == "running"
    assert done.rows()[0]["files"] == 3
    assert remote.maintain(sales, only=["expire"])[0]["outcome"] == "nothing"
    shown = remote.execute(parse(f"SHOW MAINTENANCE OF {sales} LIMIT 1")).rows()[0]
    assert (shown["step"], shown["outcome"], shown["table"]) == ("expire", "nothing", f"topics.{sales}")
    with pytest.raises(TopicNotFound):
        remote.maintain("nothing")
    with pytest.raises(InvalidStatement):
        remote.maintain(sales, only=["vacuum"])  # type: ignore[list-item]


def command(lake: Lake, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headwater", "-C", str(lake.paths.root), *words],
        capture_output=True,
        text=True,
        env=CLEAN,
        check=False,
        timeout=120,
    )


def test_from_the_command_line(lake: Lake, sales: str) -> None:
    sell(lake, sales, 1, 2)
    planned = command(lake, "maintain", sales, "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    steps = json.loads(planned.stdout)["steps"]
    assert [step["step"] for step in steps] == ["retention", "compact", "expire", "manifests", "deletions", "orphans"]
    done = command(lake, "maintain", sales, "--only", "expire, orphans")
    assert (done.returncode, done.stdout) == (0, "")
    assert "2 steps had nothing to do" in done.stderr
    shown = command(lake, "maintain", sales, "--history")
    assert f"topics.{sales}" in shown.stdout
    assert "orphans" in shown.stdout
    wrong = command(lake, "maintain", sales, "--only", "orphan")
    assert wrong.returncode == 1
    assert "Did you mean orphans?" in wrong.stderr


def test_a_dry_run_of_everything_changes_nothing(lake: Lake, sales: str) -> None:
    sell(lake, sales, 1)
    before = lake.topics.load(sales).table.metadata_location
    steps = lake.sql("MAINTAIN DRY RUN").rows()
    assert {"warehouse", f"topics.{sales}"} <= {step["table"] for step in steps}
    assert {step["outcome"] for step in steps} <= {"planned", "nothing"}
    assert lake.topics.load(sales).table.metadata_location == before


def test_a_state_that_has_expired_says_so(lake: Lake, sales: str) -> None:
    sell(lake, sales, 1, 2)
    first = lake.topics.load(sales).table.metadata.snapshots[0].snapshot_id
    query = f"SELECT count(*) AS n FROM {sales} VERSION AS OF {first}"
    assert lake.sql(query).rows() == [{"n": 1}]
    later(lake, 2)
    assert lake.maintain(sales, only=["expire"])[0]["numbers"]["snapshots"] == 1
    with pytest.raises(HeadwaterError) as gone:
        lake.sql(query).rows()
    assert gone.value.code == "snapshot_gone"
