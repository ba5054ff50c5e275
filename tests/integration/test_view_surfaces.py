"""Materialized views over HTTP, through RemoteLake and from the command line, on one lake with Spark."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import InvalidOption, ViewBroken, ViewExists, ViewInUse, ViewNotFound, ViewNotIncremental
from headwater.sql.parse import parse

pytestmark = pytest.mark.spark

NDJSON = "application/x-ndjson"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or "CACHE" in name}
_numbers = itertools.count()


@pytest.fixture
def orders(lake: Lake) -> Iterator[str]:
    """A topic with three records; it goes with the views that read it."""
    name = f"vf_orders{next(_numbers)}"
    lake.sql(f"CREATE TOPIC {name} (city STRING, amount BIGINT)")
    sell(lake, name, ("rome", 1), ("rome", 2), ("oslo", 5))
    yield name
    made = [view for view in lake.views.all() if view.name.startswith("vf_")]
    for view in (*made, *made):  # one on another goes first
        if lake.views.exists(view.name) and not lake.views.readers_of(view.table_name):
            lake.view(view.name).drop()
    lake.sql(f"DROP TOPIC IF EXISTS {name}")


def sell(lake: Lake, topic: str, *rows: tuple[str, int]) -> None:
    lake.topic(topic).append([{"city": city, "amount": amount} for city, amount in rows])


def per_city(orders: str) -> str:
    return f"SELECT city, count(*) AS orders, sum(amount) AS total FROM {orders} GROUP BY city"


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["code"]) == (status, code)
    return problem


# -- HTTP -----------------------------------------------------------------------------------------------------------


def test_a_view_over_http_from_creation_to_its_end(http: httpx.Client, lake: Lake, orders: str) -> None:
    view = orders.replace("orders", "sales")
    definition = {"name": view, "query": per_city(orders), "options": {"refresh": "manual", "description": "by city"}}
    made = http.post("/views", json=definition)
    assert made.status_code == 201
    assert made.headers["location"] == f"/api/v1/views/{view}"
    assert made.json()["status"] == f'materialized view "{view}" created'
    assert made.json()["notices"][0].startswith("Refreshes are incremental")
    assert made.json()["view"]["status"] == "fresh"
    is_problem(http.post("/views", json=definition), 409, "view_exists")
    again = http.post("/views", json=definition, params={"if_not_exists": True})
    assert (again.status_code, again.json()["status"]) == (200, f'materialized view "{view}" exists already')

    sell(lake, orders, ("bonn", 7))
    about = http.get(f"/views/{view}").json()
    assert (about["status"], about["sources"][0]["lag_rows"]) == ("behind", 1)
    assert about["columns"][2] == {"name": "total", "type": "BIGINT"}
    listed = {each["view"]: each for each in http.get("/views").json()["views"]}
    assert (listed[view]["lag_rows"], listed[view]["description"]) == (1, "by city")
    planned = http.get(f"/views/{view}/explain").json()
    assert planned["plan"]["method"] == "skip"
    assert planned["notices"] == [f'The log has 1 more record of "{orders}", which a refresh commits first.']

    done = http.post(f"/views/{view}/refresh", json={"verify": True}).json()
    assert [(each["view"], each["method"]) for each in done["refreshed"]] == [(view, "append")]
    assert done["verified"]["equal"] is True
    assert http.post(f"/views/{view}/refresh").json()["refreshed"][0]["method"] == "skip"
    history = http.get(f"/views/{view}/history", params={"limit": 2}).json()["refreshes"]
    assert [(each["outcome"], each["trigger"], each["verified"]) for each in history] == [
        ("skipped", "manual", None),
        ("ok", "manual", "equal"),
    ]
    assert http.get("/refreshes", params={"limit": 1}).json()["refreshes"][0]["view"] == view
    assert http.post(f"/views/{view}/verify", json={"sample": 5}).json()["equal"] is True
    assert http.post(f"/views/{view}/compact").json()["rows_after"] == 3

    changed = http.patch(f"/views/{view}", json={"options": {"interval": "10 s"}}).json()
    assert (changed["status"], changed["view"]["mode"]) == (f'materialized view "{view}" altered', "periodic")
    is_problem(http.patch(f"/views/{view}", json={"options": {"intervall": 1}}), 400, "invalid_option")
    assert is_problem(http.delete(f"/topics/{orders}"), 409, "view_in_use")["views"] == [view]
    assert http.delete(f"/views/{view}").json() == {"status": f'materialized view "{view}" dropped'}
    is_problem(http.get(f"/views/{view}"), 404, "view_not_found")
    is_problem(http.post(f"/views/{view}/refresh"), 404, "view_not_found")
    assert http.delete(f"/views/{view}", params={"if_exists": True}).status_code == 200


def test_what_cannot_be_a_view_is_refused(http: httpx.Client, orders: str) -> None:
    view = orders.replace("orders", "bad")
    is_problem(http.post("/views", json={"name": view, "query": "SELECT 1 FROM nowhere"}), 404, "topic_not_found")
    is_problem(http.post("/views", json={"name": view, "query": f"SELEC * FROM {orders}"}), 400, "invalid_statement")
    is_problem(http.post("/views", json={"name": view, "sql": "x"}), 400, "invalid_input")
    query = f"SELECT percentile(amount, 0.5) AS p, count(*) AS n FROM {orders} ORDER BY rand()"
    is_problem(http.post("/views", json={"name": view, "query": query}), 400, "invalid_statement")
    assert view not in [each["view"] for each in http.get("/views").json()["views"]]


def test_a_refresh_tells_of_its_plans_line_by_line(http: httpx.Client, lake: Lake, orders: str) -> None:
    below, above = orders.replace("orders", "below"), orders.replace("orders", "above")
    lake.create_view(below, per_city(orders), refresh="manual")
    lake.create_view(above, f"SELECT max(total) AS most FROM {below}", refresh="manual")
    sell(lake, orders, ("bonn", 70))
    with http.stream("POST", f"/views/{above}/refresh", headers={"Accept": NDJSON}) as response:
        assert response.headers["content-type"] == NDJSON
        *planned, last = [json.loads(line) for line in response.iter_lines()]
    assert [each["planned"]["view"] for each in planned] == [below, above]
    assert [each["view"] for each in last["answer"]["refreshed"]] == [below, above]
    lake.topics.drop(orders)
    failed = http.post(f"/views/{above}/refresh", headers={"Accept": NDJSON})
    is_problem(failed, 409, "view_broken")


def test_writing_statements_stay_out_of_the_query_route(http: httpx.Client) -> None:
    for text, route in {
        "CREATE MATERIALIZED VIEW v AS SELECT 1 AS one FROM t": "POST /api/v1/views",
        "EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT 1 AS one FROM t": "POST /api/v1/explain/view",
        "REFRESH MATERIALIZED VIEW v": "POST /api/v1/views/{view}/refresh",
        "VERIFY MATERIALIZED VIEW v": "POST /api/v1/views/{view}/verify",
        "COMPACT MATERIALIZED VIEW v": "POST /api/v1/views/{view}/compact",
        "DROP MATERIALIZED VIEW v": "DELETE /api/v1/views/{view}",
        "ALTER MATERIALIZED VIEW v SET (interval = 5)": "PATCH /api/v1/views/{view}",
        "SHOW MATERIALIZED VIEWS": "GET /api/v1/views",
        "DESCRIBE MATERIALIZED VIEW v": "GET /api/v1/views/{view}",
        "EXPLAIN REFRESH v": "GET /api/v1/views/{view}/explain",
        "SHOW REFRESHES": "GET /api/v1/refreshes",
        "DELETE FROM t WHERE TRUE": None,
    }.items():
        refused = is_problem(http.post("/query", json={"sql": text}), 403, "statement_not_allowed")
        assert refused.get("endpoint") == route


def test_metrics_are_measured_when_they_are_scraped(url: str, lake: Lake, orders: str) -> None:
    view = orders.replace("orders", "scraped")
    lake.create_view(view, per_city(orders), refresh="manual")
    sell(lake, orders, ("bonn", 7))
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    assert f'headwater_view_lag_rows{{source="{orders}",view="{view}"}} 1.0' in text
    assert f'headwater_view_refreshes_total{{method="full",outcome="ok",view="{view}"}} 1.0' in text


# -- RemoteLake -----------------------------------------------------------------------------------------------------


def test_statements_answer_as_the_lake_does(lake: Lake, remote: RemoteLake, orders: str) -> None:
    view = orders.replace("orders", "same")
    remote.create_view(view, per_city(orders), refresh="manual", description="the same")
    sell(lake, orders, ("bonn", 7))
    for text in (
        "SHOW MATERIALIZED VIEWS",
        f"SHOW REFRESHES FOR {view}",
        "SHOW REFRESHES LIMIT 3",
        f"EXPLAIN REFRESH {view}",
        f"EXPLAIN REFRESH {view} FULL",
        f"EXPLAIN CREATE MATERIALIZED VIEW v AS {per_city(orders)} WITH (max_staleness = 5)",
    ):
        here, there = lake.execute(parse(text)), remote.execute(parse(text))
        assert there.schema == here.schema
        assert there.arrow() == here.arrow()
        assert there.notices == here.notices
        assert dict(there.info) == dict(here.info)
    here, there = (dict(each.execute(parse(f"DESCRIBE MATERIALIZED VIEW {view}")).info) for each in (lake, remote))
    for about in (here, there):
        about["sources"][0].pop("lag_seconds")  # time goes on between the two
    assert there == here


def test_a_handle_works_through_the_service(lake: Lake, remote: RemoteLake, orders: str) -> None:
    name = orders.replace("orders", "handle")
    view = remote.create_view(name, per_city(orders), refresh="manual")
    sell(lake, orders, ("bonn", 7))
    heard: list[Any] = []
    result = remote.refresh_view(parse(f"REFRESH MATERIALIZED VIEW {name} VERIFY SAMPLE 2"), heard.append)  # type: ignore[arg-type]
    assert [each["method"] for each in heard] == ["append"]
    assert result.rows()[0]["method"] == "append"
    assert "is what its query gives" in result.notices[0]
    assert view.refresh(full=True)[-1]["method"] == "full"
    assert view.explain().startswith(f"refresh {name}: nothing to do")
    assert view.verify()["equal"] is True
    assert view.compact()["files_after"] == 1
    assert len(view.history(limit=1)) == 1
    view.alter(refresh="on_query", max_staleness="1 s")
    assert view.describe()["options"]["max_staleness"] == "1 second"
    with pytest.raises(ViewExists):
        remote.create_view(name, per_city(orders))
    with pytest.raises(InvalidOption):
        view.alter(nothing=1)
    with pytest.raises(ViewInUse):
        remote.execute(parse(f"DROP TOPIC {orders}"))
    view.drop()
    with pytest.raises(ViewNotFound):
        remote.view(name)


def test_errors_are_the_lake_s(lake: Lake, remote: RemoteLake, orders: str) -> None:
    name = orders.replace("orders", "wrong")
    opaque = f"SELECT sum(amount) AS total FROM (SELECT amount FROM {orders} ORDER BY amount LIMIT 2)"
    for each in (lake, remote):
        with pytest.raises(ViewNotIncremental, match="cannot refresh incrementally"):
            each.create_view(name, opaque, refresh="incremental")
    view = remote.create_view(name, opaque)
    with pytest.raises(ViewNotIncremental):
        view.alter(refresh="incremental")
    lake.topics.drop(orders)
    with pytest.raises(ViewBroken, match="cannot be refreshed"):
        view.refresh()


# -- command line ---------------------------------------------------------------------------------------------------


def run(url: str, *arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `headwater mv` against the service."""
    command = [sys.executable, "-c", "from headwater.cli.main import run; run()", "--url", url, "mv", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, input=stdin, timeout=120)
    assert done.returncode == code, done
    return done


def test_the_command_line_from_creation_to_the_end(url: str, lake: Lake, orders: str, tmp_path: Path) -> None:
    view = orders.replace("orders", "cli")
    file = tmp_path / "sales.sql"
    file.write_text(per_city(orders) + ";\n")
    how = run(url, "create", view, "-f", str(file), "--refresh", "manual", "--explain")
    assert how.stdout.startswith(f"view {view}: Refreshes are incremental")
    made = run(url, "create", view, "-f", str(file), "--refresh", "manual", "--option", "description=by city")
    assert made.stdout == f'materialized view "{view}" created\n'
    assert made.stderr.startswith("note: Refreshes are incremental")
    assert "view_exists" in run(url, "create", view, per_city(orders), "--json", code=1).stderr
    assert "exists already" in run(url, "create", view, per_city(orders), "--if-not-exists").stdout
    listed = json.loads(run(url, "list", "--json").stdout)
    assert next(each for each in listed if each["view"] == view)["status"] == "fresh"
    assert "manual" in run(url, "list").stdout

    sell(lake, orders, ("bonn", 7))
    described = run(url, "describe", view).stdout
    assert "behind by 1 row" in described
    assert json.loads(run(url, "describe", view, "--json").stdout)["mode"] == "manual"
    explained = run(url, "explain", view)
    assert explained.stdout.startswith(f"refresh {view}: nothing to do")
    assert "1 more record" in explained.stderr
    refreshed = run(url, "refresh", view, "--verify")
    assert f"refreshing {view}: append, 1 row to read" in refreshed.stderr
    assert "is what its query gives" in refreshed.stderr
    assert "append" in refreshed.stdout
    assert "snapshot" not in refreshed.stdout  # the table fits a screen; --json has everything
    document = json.loads(run(url, "refresh", view, "--full", "--json").stdout)
    assert (document["refreshed"][0]["method"], document["verified"]) == ("full", None)
    assert json.loads(run(url, "verify", view, "--sample", "2", "--json").stdout)["equal"] is True
    assert [each["outcome"] for each in json.loads(run(url, "history", view, "--limit", "2", "--json").stdout)] == [
        "ok",
        "ok",
    ]
    assert json.loads(run(url, "compact", view, "--json").stdout)[0]["rows_after"] == 3
    assert run(url, "alter", view, "interval=5 s", "description=x").stdout == f'materialized view "{view}" altered\n'
    assert "--yes" in run(url, "drop", view, code=2).stderr
    assert run(url, "drop", view, "--yes").stdout == f'materialized view "{view}" dropped\n'
    assert "view_not_found" in run(url, "describe", view, "--json", code=1).stderr


def test_all_views_are_refreshed_although_one_is_broken(url: str, lake: Lake, orders: str) -> None:
    good, above, bad = (orders.replace("orders", word) for word in ("good", "after", "broken"))
    other = orders.replace("orders", "other")
    lake.sql(f"CREATE TOPIC {other} (n INT)")
    lake.create_view(bad, f"SELECT count(*) AS n FROM {other}", refresh="manual")
    lake.create_view(good, per_city(orders), refresh="manual")
    lake.create_view(above, f"SELECT max(total) AS most FROM {good}", refresh="manual")
    sell(lake, orders, ("bonn", 70))
    lake.topics.drop(other)
    done = run(url, "refresh", "--all", "--json", code=1)
    methods = {each["view"]: each["method"] for each in json.loads(done.stdout)["refreshed"]}
    assert methods[good] == "append"
    assert methods[above] != "skip"
    assert bad not in methods
    assert json.loads(done.stderr)["code"] == "view_broken"
    lake.view(bad).drop()


def test_wrong_words_are_told(url: str) -> None:
    assert "either as SQL or with -f" in run(url, "create", "v", code=2).stderr
    assert "choose one of" in run(url, "create", "v", "x", "--replace", "--if-not-exists", code=2).stderr
    assert "name a view, or give --all" in run(url, "refresh", code=2).stderr
    assert "takes KEY=VALUE" in run(url, "alter", "v", "x", code=2).stderr
    assert "invalid_option" in run(url, "create", "v", "SELECT 1", "--interval", "soon", "--json", code=1).stderr


# -- rows -----------------------------------------------------------------------------------------------------------


def test_rows_are_read_in_every_way(url: str, http: httpx.Client, lake: Lake, remote: RemoteLake, orders: str) -> None:
    name = orders.replace("orders", "rows")
    here = lake.create_view(name, per_city(orders), refresh="manual")
    there = remote.view(name)
    rows = [{"city": "oslo", "orders": 1, "total": 5}, {"city": "rome", "orders": 2, "total": 3}]
    for view in (here, there):
        assert sorted(view.rows(), key=str) == rows
        assert view.arrow().num_rows == 2
        assert view.query("orders > 1").rows() == rows[1:]
        assert len(view.query(limit=1).rows()) == 1
    page = http.get(f"/views/{name}/query", params={"where": "city = 'oslo'", "limit": 5}).json()
    assert (page["rows"], page["next"]) == ([["oslo", 1, 5]], None)
    streamed = http.get(f"/views/{name}/query", params={"where": "total < 5"}, headers={"Accept": NDJSON})
    assert json.loads(streamed.text) == rows[1]
    is_problem(http.get(f"/views/{name}x/query"), 404, "view_not_found")
    is_problem(http.get(f"/views/{name}/query", params={"where": "nothing = 1"}), 400, "invalid_statement")
    assert json.loads(run(url, "query", name, "WHERE total > 3", "--json").stdout) == rows[:1]
    assert run(url, "query", name, "city = 'rome'", "--csv").stdout == "city,orders,total\nrome,2,3\n"


def test_a_fresh_read_sees_what_the_view_lacks(url: str, http: httpx.Client, lake: Lake, orders: str) -> None:
    name = orders.replace("orders", "freshly")
    view = lake.create_view(name, per_city(orders), refresh="manual")
    sell(lake, orders, ("oslo", 10))
    oslo = {"city": "oslo", "orders": 2, "total": 15}
    assert view.query("city = 'oslo'").rows() == [{"city": "oslo", "orders": 1, "total": 5}]
    assert view.query("city = 'oslo'", fresh=True).rows() == [oslo]
    page = http.get(f"/views/{name}/query", params={"where": "city = 'oslo'", "fresh": True}).json()
    assert page["rows"] == [["oslo", 2, 15]]
    assert json.loads(run(url, "query", name, "city = 'oslo'", "--fresh", "--ndjson").stdout) == oslo
    assert view.describe()["status"] == "behind"


def test_a_view_on_query_is_refreshed_before_it_is_read(lake: Lake, orders: str) -> None:
    name = orders.replace("orders", "asked")
    view = lake.create_view(name, per_city(orders), refresh="on_query")
    sell(lake, orders, ("oslo", 10))
    assert view.query("city = 'oslo'").rows() == [{"city": "oslo", "orders": 2, "total": 15}]
    assert [each["trigger"] for each in view.history()] == ["query", "create"]


# -- rows of the sources --------------------------------------------------------------------------------------------


def test_rows_are_deleted_and_updated_over_http_and_views_follow(
    http: httpx.Client, lake: Lake, remote: RemoteLake, orders: str
) -> None:
    lake.sql(f"CREATE MATERIALIZED VIEW vf_left AS SELECT city, SUM(amount) AS total FROM {orders} GROUP BY city")
    deleted = http.post(f"/topics/{orders}/delete", json={"where": "city = 'rome' AND amount < 2"}).json()
    assert (deleted["topic"], deleted["rows"]) == (orders, 1)
    updated = http.post(
        f"/topics/{orders}/update", json={"set": {"amount": "amount * 10"}, "where": "amount > 2"}
    ).json()
    assert updated["rows"] == 1 and updated["snapshot"] != deleted["snapshot"]
    (again,) = remote.execute(parse(f"UPDATE {orders} SET city = upper(city), amount = 7 WHERE amount = 50")).rows()
    assert again["rows"] == 1
    (none,) = remote.execute(parse(f"DELETE FROM {orders} WHERE city = 'nowhere'")).rows()
    assert none["rows"] == 0
    remote.view("vf_left").refresh()
    assert sorted(map(tuple, map(dict.values, remote.view("vf_left").query().rows()))) == [("OSLO", 7), ("rome", 2)]
    assert lake.topic(orders).update({"amount": "1"}, "TRUE")["rows"] == 2
    assert lake.topic(orders).delete("city = 'rome'")["rows"] == 1


@pytest.mark.parametrize(
    ("verb", "body", "status", "title"),
    [
        ("delete", {"where": "nope = 1"}, 400, "statement is not valid"),
        ("delete", {"where": "TRUE); DROP TOPIC x"}, 400, 'bracket ")" was not opened'),
        ("delete", {"where": "TRUE; DELETE"}, 400, "condition is more than one expression"),
        ("update", {"where": "TRUE", "set": {"_offset": "1"}}, 400, 'system column "_offset" cannot be assigned'),
        ("update", {"where": "TRUE", "set": {"amount": "1, city = 'x'"}}, 400, "is more than one expression"),
        ("update", {"where": "TRUE", "set": {}}, 400, "request is not valid"),
        ("delete", {}, 400, "request is not valid"),
    ],
)
def test_mistakes_in_changes_are_told_and_change_nothing(
    http: httpx.Client, lake: Lake, orders: str, verb: str, body: dict[str, Any], status: int, title: str
) -> None:
    answer = http.post(f"/topics/{orders}/{verb}", json=body)
    assert answer.status_code == status, answer.text
    assert title in answer.json()["title"]
    assert lake.sql(f"SELECT COUNT(*) AS n FROM {orders}").rows() == [{"n": 3}]


def test_rows_of_a_topic_that_is_not_there(http: httpx.Client) -> None:
    assert http.post("/topics/no_such_topic/delete", json={"where": "TRUE"}).json()["code"] == "topic_not_found"
    assert http.post("/topics/No!/delete", json={"where": "TRUE"}).json()["code"] == "invalid_name"
