"""Statements about materialized views, their history and their metrics, on a real lake with Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import (
    InvalidOption,
    QueryFailed,
    TopicExists,
    ViewBroken,
    ViewExists,
    ViewInUse,
    ViewNotFound,
)
from headwater.observability import failpoints
from headwater.views.history import LOST

pytestmark = pytest.mark.spark

_numbers = itertools.count()


@dataclass
class Shop:
    """A topic with a view over it, and one over that."""

    lake: Lake
    orders: str
    sales: str
    top: str

    def sell(self, *rows: tuple[str, int]) -> None:
        self.lake.topic(self.orders).append([{"city": city, "amount": amount} for city, amount in rows])

    def sql(self, text: str) -> list[dict[str, Any]]:
        return self.lake.sql(text.format(orders=self.orders, sales=self.sales, top=self.top)).rows()

    def info(self, text: str) -> dict[str, Any]:
        return dict(self.lake.sql(text.format(orders=self.orders, sales=self.sales, top=self.top)).info)

    def summary(self, view: str) -> dict[str, Any]:
        return next(row for row in self.sql("SHOW MATERIALIZED VIEWS") if row["view"] == view)


@pytest.fixture
def shop(lake: Lake) -> Iterator[Shop]:
    number = next(_numbers)
    made = Shop(lake, f"vs_orders{number}", f"vs_sales{number}", f"vs_top{number}")
    made.sql("CREATE TOPIC {orders} (city STRING, amount BIGINT)")
    made.sell(("rome", 1), ("rome", 2), ("oslo", 5))
    made.sql(
        "CREATE MATERIALIZED VIEW {sales} COMMENT 'per city' WITH (refresh = 'manual') "
        "AS SELECT city, count(*) AS orders, sum(amount) AS total FROM {orders} GROUP BY city"
    )
    yield made
    for view in (made.top, made.sales):
        lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {view}")
    lake.sql(f"DROP TOPIC IF EXISTS {made.orders}")


def test_create_says_how_the_view_is_kept(shop: Shop) -> None:
    made = shop.lake.sql(
        f"CREATE MATERIALIZED VIEW {shop.top} WITH (interval = '5 s', max_staleness = '1 s') "
        f"AS SELECT max(amount) AS most FROM {shop.orders}"
    )
    assert made.rows() == [{"status": f'materialized view "{shop.top}" created'}]
    kept, ignored = made.notices
    assert kept.startswith("Refreshes are incremental:")
    assert ignored == "max_staleness has no effect with refresh = 'periodic'."


@pytest.mark.parametrize(
    "inner",
    [
        "(SELECT amount, city, _offset FROM {orders})",
        "(SELECT o.city, o.amount AS a FROM {orders} AS o)",
        "(SELECT * EXCEPT (amount) FROM {orders})",
    ],
)
def test_what_only_an_inner_query_names_does_not_make_a_view_recompute(shop: Shop, inner: str) -> None:
    """A stream of another name than its topic is such an inner query, too."""
    source = inner.format(orders=shop.orders)
    made = shop.lake.sql(
        f"CREATE MATERIALIZED VIEW {shop.top} WITH (refresh = 'manual') "
        f"AS SELECT city, count(*) AS n FROM {source} AS i GROUP BY city"
    )
    assert made.notices == ("Refreshes are incremental: groups are kept as states that add up.",)
    shop.sell(("rome", 7), ("bonn", 1))
    assert shop.info("REFRESH MATERIALIZED VIEW {top} VERIFY")["verified"]["equal"]
    shop.sql("ALTER TOPIC {orders} ADD COLUMN note STRING")
    with pytest.raises(ViewInUse):  # the query's text would not be one any more
        shop.sql("ALTER TOPIC {orders} DROP COLUMN amount")
    shop.sell(("rome", 8))
    assert shop.info("REFRESH MATERIALIZED VIEW {top} VERIFY")["verified"]["equal"]


def test_create_twice_is_an_error_a_notice_or_a_replacement(shop: Shop) -> None:
    text = "CREATE MATERIALIZED VIEW {sales} AS SELECT count(*) AS n FROM {orders}"
    with pytest.raises(ViewExists):
        shop.sql(text)
    again = shop.sql(text.replace("VIEW", "VIEW IF NOT EXISTS"))
    assert again == [{"status": f'materialized view "{shop.sales}" exists already'}]
    assert len(shop.info("DESCRIBE MATERIALIZED VIEW {sales}")["columns"]) == 3
    replaced = shop.sql(text.replace("CREATE", "CREATE OR REPLACE"))
    assert replaced == [{"status": f'materialized view "{shop.sales}" replaced'}]
    assert shop.info("DESCRIBE MATERIALIZED VIEW {sales}")["columns"] == [{"name": "n", "type": "BIGINT"}]


def test_a_view_that_cannot_be_computed_leaves_nothing(shop: Shop) -> None:
    with pytest.raises(QueryFailed):
        shop.sql("CREATE MATERIALIZED VIEW {top} AS SELECT sum(1 / (amount - amount)) AS x FROM {orders}")
    with pytest.raises(ViewNotFound):
        shop.sql("DESCRIBE MATERIALIZED VIEW {top}")
    assert shop.top not in [row["view"] for row in shop.sql("SHOW REFRESHES LIMIT 10000")]


def test_refresh_tells_what_it_took_and_made(shop: Shop) -> None:
    before = shop.lake.topics.load(shop.orders).snapshot_id
    shop.sell(("rome", 10), ("bonn", 7))
    result = shop.lake.sql(f"REFRESH MATERIALIZED VIEW {shop.sales}")
    (row,) = result.rows()
    after = shop.lake.topics.load(shop.orders).snapshot_id
    assert (row["view"], row["method"], row["reason"]) == (
        shop.sales,
        "append",
        "groups are kept as states that add up",
    )
    assert row["sources"] == f"{shop.orders} {before}→{after}"
    assert (row["rows_read"], row["rows_written"], row["files"]) == (2, 2, 1)
    assert row["bytes"] > 0
    assert row["seconds"] > 0
    assert row["snapshot"] == str(shop.lake.views.load(shop.sales).snapshot_id)
    consumed = {"source": shop.orders, "start": str(before), "end": str(after), "rows": 2}
    assert result.info["refreshed"][0]["sources"] == [consumed]
    (again,) = shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    assert (again["method"], again["reason"], again["rows_read"]) == ("skip", "no source changed", 0)
    assert again["sources"] == f"{shop.orders} {after}"


def test_refresh_of_a_view_on_a_view_tells_of_both(shop: Shop) -> None:
    shop.sql("CREATE MATERIALIZED VIEW {top} AS SELECT max(total) AS most FROM {sales}")
    shop.sell(("oslo", 100))
    below, above = shop.sql("REFRESH MATERIALIZED VIEW {top}")
    assert (below["view"], above["view"]) == (shop.sales, shop.top)
    assert above["method"] in ("append", "keys", "full")
    (full_below, full) = shop.sql("REFRESH MATERIALIZED VIEW {top} FULL")
    assert (full_below["method"], full["method"]) == ("skip", "full")
    shop.sell(("oslo", 1))
    (full_below, full) = shop.sql("REFRESH MATERIALIZED VIEW {top} FULL")
    assert (full_below["method"], full["method"], full["reason"]) == ("append", "full", "REFRESH ... FULL asks for it")


def test_progress_hears_of_plans_before_they_run(shop: Shop) -> None:
    from headwater.sql.statements import RefreshView

    shop.sell(("oslo", 100))
    heard: list[Any] = []
    shop.lake.refresh_view(RefreshView(shop.sales), heard.append)
    assert [(each["view"], each["method"], each["rows"]) for each in heard] == [(shop.sales, "append", 1)]


def test_the_list_shows_status_and_lag(shop: Shop) -> None:
    fresh = shop.summary(shop.sales)
    assert (fresh["mode"], fresh["method"], fresh["status"], fresh["rows"]) == ("manual", "auto", "fresh", 2)
    assert (fresh["lag_rows"], fresh["description"]) == (0, "per city")
    assert abs((datetime.now(UTC) - fresh["last_refresh"]).total_seconds()) < 600
    shop.sell(("rome", 1))
    assert (shop.summary(shop.sales)["status"], shop.summary(shop.sales)["lag_rows"]) == ("behind", 1)
    shop.lake.flush(shop.orders)
    shop.sell(("rome", 1), ("rome", 2))
    assert (shop.summary(shop.sales)["status"], shop.summary(shop.sales)["lag_rows"]) == ("behind", 3)
    shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    assert (shop.summary(shop.sales)["status"], shop.summary(shop.sales)["lag_rows"]) == ("fresh", 0)


def test_describe_tells_everything(shop: Shop) -> None:
    shop.sql("CREATE MATERIALIZED VIEW {top} AS SELECT max(total) AS most FROM {sales}")
    shop.sell(("rome", 1))
    result = shop.lake.sql(f"DESCRIBE MATERIALIZED VIEW {shop.sales}")
    assert [(row["column"], row["type"]) for row in result.rows()] == [
        ("city", "STRING"),
        ("orders", "BIGINT"),
        ("total", "BIGINT"),
    ]
    about = result.info
    assert about["query"].startswith("SELECT city, count(*)")
    assert about["options"]["refresh"] == "manual"
    assert (about["kind"], about["incremental"], about["next_due"], about["error"]) == ("states", True, None, None)
    assert about["readers"] == [shop.top]
    (source,) = about["sources"]
    topic = shop.lake.topics.load(shop.orders)
    assert (source["source"], source["kind"], source["exists"]) == (shop.orders, "topic", True)
    assert (source["snapshot"], source["head"], source["lag_rows"]) == (*[str(topic.snapshot_id)] * 2, 1)
    assert source["lag_bytes"] > 0
    assert 0 < source["lag_seconds"] < 600
    assert about["files"] == 1
    assert about["bytes"] > 0
    assert about["snapshot"] == str(shop.lake.views.load(shop.sales).snapshot_id)
    periodic = shop.info("DESCRIBE MATERIALIZED VIEW {top}")
    due, last = (datetime.fromisoformat(periodic[key]) for key in ("next_due", "last_refresh"))
    assert 0 < (due - last).total_seconds() <= 60
    assert periodic["sources"][0]["kind"] == "view"


def test_options_are_altered_one_by_one(shop: Shop) -> None:
    (status,) = shop.sql("ALTER MATERIALIZED VIEW {sales} SET (interval = '10 s')")
    assert status == {"status": f'materialized view "{shop.sales}" altered'}
    options = shop.info("DESCRIBE MATERIALIZED VIEW {sales}")["options"]
    assert (options["refresh"], options["description"]) == ("periodic", "per city")
    with pytest.raises(InvalidOption):
        shop.lake.view(shop.sales).alter(intervall=5)


def test_explain_refresh_prints_the_plan_that_would_run(shop: Shop) -> None:
    shop.sell(("rome", 1))
    shop.lake.flush(shop.orders)
    shop.sell(("rome", 2))
    result = shop.lake.sql(f"EXPLAIN REFRESH {shop.sales}")
    lines = [row["plan"] for row in result.rows()]
    assert lines[0] == f"refresh {shop.sales}: append the delta (rule states)"
    assert any("1 row came in 1 file, " in line for line in lines)
    assert result.info["plan"]["method"] == "append"
    assert result.info["plan"]["rows"] == 1
    assert result.info["plan"]["full_rows"] == 4
    assert result.notices == (f'The log has 1 more record of "{shop.orders}", which a refresh commits first.',)
    full = shop.info("EXPLAIN REFRESH {sales} FULL")["plan"]
    assert (full["method"], full["reason"]) == ("full", "REFRESH ... FULL asks for it")
    assert shop.summary(shop.sales)["status"] == "behind"


def test_explain_create_makes_nothing(shop: Shop) -> None:
    query = f"SELECT city, max(amount) AS most FROM {shop.orders} GROUP BY city"
    result = shop.lake.sql(f"EXPLAIN CREATE MATERIALIZED VIEW {shop.top} AS {query}")
    lines = [row["plan"] for row in result.rows()]
    assert lines[0].startswith(f"view {shop.top}: Refreshes are incremental")
    assert result.info["plan"]["kind"] == "states"
    assert [state["invertible"] for state in result.info["plan"]["states"]] == [False]
    assert not shop.lake.views.exists(shop.top)


def test_verify_and_compact_answer(shop: Shop) -> None:
    shop.sell(("rome", 1))
    result = shop.lake.sql(f"REFRESH MATERIALIZED VIEW {shop.sales} VERIFY")
    assert result.notices == (f'Materialized view "{shop.sales}" is what its query gives: 2 rows were compared.',)
    assert result.info["verified"]["equal"] is True
    (newest, *_) = shop.lake.view(shop.sales).history()
    assert newest["verified"] == "equal"
    (compared,) = shop.sql("VERIFY MATERIALIZED VIEW {sales} SAMPLE 10")
    assert (compared["equal"], compared["extra"], compared["missing"]) == (True, 0, 0)
    (folded,) = shop.sql("COMPACT MATERIALIZED VIEW {sales}")
    assert (folded["rows_before"], folded["rows_after"]) == (3, 2)
    assert shop.lake.view(shop.sales).history()[0]["method"] == "append"  # a compaction is no refresh


def test_the_history_has_every_attempt(shop: Shop) -> None:
    shop.sell(("rome", 1))
    shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    rows = shop.sql("SHOW REFRESHES FOR {sales}")
    assert [(row["trigger"], row["outcome"], row["method"]) for row in rows] == [
        ("manual", "skipped", "skip"),
        ("manual", "ok", "append"),
        ("create", "ok", "full"),
    ]
    assert rows[1]["rule"] == "states"
    assert [row["view"] for row in shop.sql("SHOW REFRESHES FOR {sales} LIMIT 1")] == [shop.sales]
    assert shop.sales in [row["view"] for row in shop.sql("SHOW REFRESHES LIMIT 5")]
    with pytest.raises(ViewNotFound):
        shop.sql("SHOW REFRESHES FOR {sales}x")
    shop.sql("DROP MATERIALIZED VIEW {sales}")
    assert shop.sales not in [row["view"] for row in shop.sql("SHOW REFRESHES LIMIT 10000")]


def test_a_skip_that_nobody_asked_for_is_counted_only(shop: Shop) -> None:
    shop.lake.view_room.upkeep.refresh(shop.sales, trigger="schedule")
    assert [row["method"] for row in shop.lake.view(shop.sales).history()] == ["full"]
    text = shop.lake.metrics.exposition().decode()
    assert f'headwater_view_refreshes_total{{method="skip",outcome="skipped",view="{shop.sales}"}} 1.0' in text


def test_a_failing_view_says_so_until_it_works_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sell(("rome", 1))
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(failpoints, "_actions", lambda: {"refresh.written": "error"})
        shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    assert shop.summary(shop.sales)["status"] == "failing"
    (newest, *_) = shop.lake.view(shop.sales).history()
    assert (newest["outcome"], newest["code"], newest["method"]) == ("failed", "internal", "append")
    assert newest["error"] == "failpoint refresh.written"
    assert shop.info("DESCRIBE MATERIALIZED VIEW {sales}")["error"] == newest["error"]
    assert f'headwater_view_failures_total{{code="internal",view="{shop.sales}"}} 1.0' in exposition(shop.lake)
    shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    assert shop.summary(shop.sales)["status"] == "fresh"
    assert shop.info("DESCRIBE MATERIALIZED VIEW {sales}")["error"] is None


def test_a_refresh_whose_line_was_lost_is_told_by_its_snapshot(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sell(("rome", 1))
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(failpoints, "_actions", lambda: {"refresh.committed": "error"})
        shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    shop.lake.view_room.history.forget(shop.sales)  # as if the process had been killed there
    lost, created = shop.lake.view(shop.sales).history()
    assert (lost["method"], lost["outcome"], lost["reason"], lost["rows_written"]) == ("append", "ok", LOST, 1)
    assert created["method"] == "full"
    topic = shop.lake.topics.load(shop.orders)
    assert lost["sources"][0]["end"] == str(topic.snapshot_id)


def test_a_view_whose_source_is_gone_is_broken_and_can_still_be_described(shop: Shop) -> None:
    shop.lake.topics.drop(shop.orders)
    assert shop.summary(shop.sales)["status"] == "broken"
    assert shop.info("DESCRIBE MATERIALIZED VIEW {sales}")["sources"][0]["exists"] is False
    with pytest.raises(ViewBroken):
        shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    assert shop.lake.view(shop.sales).history()[0]["code"] == "view_broken"
    shop.lake.measure_views()


def test_what_a_view_reads_cannot_be_dropped(shop: Shop) -> None:
    shop.sql("CREATE MATERIALIZED VIEW {top} AS SELECT max(total) AS most FROM {sales}")
    with pytest.raises(ViewInUse, match=f'topic "{shop.orders}" is read by materialized views') as used:
        shop.sql("DROP TOPIC {orders}")
    assert used.value.detail == f"They are: {shop.sales}."
    with pytest.raises(ViewInUse):
        shop.sql("DROP MATERIALIZED VIEW {sales}")
    assert shop.sql("DROP MATERIALIZED VIEW {top}") == [{"status": f'materialized view "{shop.top}" dropped'}]
    assert shop.sql("DROP MATERIALIZED VIEW IF EXISTS {top}") == [
        {"status": f'materialized view "{shop.top}" does not exist'}
    ]
    shop.sql("DROP MATERIALIZED VIEW {sales}")
    shop.sql("DROP TOPIC {orders}")


def test_dead_letters_that_a_view_reads_keep_their_topic(lake: Lake) -> None:
    lake.sql("CREATE TOPIC vs_bad (n INT) WITH (on_invalid = 'dead_letter')")
    lake.create_view("vs_dead", "SELECT count(*) AS n FROM vs_bad__dead", refresh="manual")
    with pytest.raises(ViewInUse):
        lake.sql("DROP TOPIC vs_bad")
    lake.view("vs_dead").drop()
    lake.sql("DROP TOPIC vs_bad")


def test_topics_and_views_share_their_names(shop: Shop) -> None:
    with pytest.raises(ViewExists, match="is a materialized view"):
        shop.sql("CREATE TOPIC {sales} (n INT)")
    with pytest.raises(TopicExists):
        shop.sql("CREATE MATERIALIZED VIEW {orders} AS SELECT 1 AS one FROM {orders}")


def test_lag_is_measured_from_metadata(shop: Shop) -> None:
    shop.sell(("rome", 1), ("oslo", 2))
    shop.lake.measure_views()
    labels = f'{{source="{shop.orders}",view="{shop.sales}"}}'
    assert f"headwater_view_lag_rows{labels} 2.0" in exposition(shop.lake)
    assert f"headwater_view_lag_seconds{labels}" in exposition(shop.lake)
    shop.sql("REFRESH MATERIALIZED VIEW {sales}")
    shop.lake.measure_views()
    for measure in ("rows", "bytes", "seconds"):
        assert f"headwater_view_lag_{measure}{labels} 0.0" in exposition(shop.lake)
    shop.sql("DROP MATERIALIZED VIEW {sales}")
    shop.lake.measure_views()
    assert f"headwater_view_lag_rows{labels}" not in exposition(shop.lake)


def test_python_holds_a_view(shop: Shop) -> None:
    view = shop.lake.create_view(shop.top, f"SELECT amount FROM {shop.orders} WHERE amount > 1", refresh="manual")
    assert repr(view) == f"<materialized view {shop.top}>"
    shop.sell(("rome", 9))
    (done,) = view.refresh(verify=True)
    assert done["method"] == "append"
    assert view.verify()["equal"] is True
    assert view.explain().startswith(f"refresh {shop.top}: nothing to do")
    assert [each["method"] for each in view.history()] == ["append", "full"]
    assert view.compact()["rows_after"] == 3
    view.alter(interval="5 s")
    assert view.describe()["mode"] == "periodic"
    view.drop()
    with pytest.raises(ViewNotFound):
        shop.lake.view(shop.top)


def exposition(lake: Lake) -> str:
    return lake.metrics.exposition().decode()
