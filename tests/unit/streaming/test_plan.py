"""Which queries a stream keeps, how, and why not: a table of queries with what is planned for each."""

from __future__ import annotations

import pytest

from headwater.errors import InvalidStatement
from headwater.sql.windows_streaming import streaming_windows
from headwater.streaming.correct import WindowColumn, check_correctable, window_column
from headwater.streaming.lateness import LateRule, late_rules
from headwater.streaming.plan import Continuous, Input, NotStreamed, Outline, plan_continuous
from headwater.types import StreamDefinition, StreamOptions, TableName, ViewDefinition, ViewOptions

COLUMNS = ("id", "customer", "amount", "ts")
BY = StreamOptions(timestamp_field="ts", max_out_of_orderness=10.0)
ORDERS = Input("orders", TableName.topic("orders"), COLUMNS, StreamDefinition("orders", options=BY))
CLICKS = Input("clicks", TableName.topic("clicks"), COLUMNS, StreamDefinition("clicks", options=BY))
NAMES = Input("names", TableName.topic("names"), ("id", "name"))
TUMBLE = "TUMBLE(ts, INTERVAL '1 minute')"
TABLE = "TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1 minute')"
START, END = f"{TUMBLE[:6]}_START{TUMBLE[6:]}", f"{TUMBLE[:6]}_END{TUMBLE[6:]}"


def outline(query: str, *outputs: str, inputs: tuple[Input, ...] = (ORDERS,), **options: str) -> Outline:
    streaming = streaming_windows(query)
    definition = ViewDefinition("v", query, ViewOptions(mode="continuous", **options))  # type: ignore[arg-type]
    types = tuple((name, "bigint") for name in outputs)
    return Outline(definition, streaming.text, query, types, inputs, streaming.windows)


def planned(query: str, *outputs: str, inputs: tuple[Input, ...] = (ORDERS,), **options: str) -> Continuous:
    found = plan_continuous(outline(query, *outputs, inputs=inputs, **options))
    assert isinstance(found, Continuous), found
    return found


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM orders",
        "SELECT id FROM orders WHERE amount > (SELECT 1)",
        "SELECT id FROM (SELECT id, amount * 2 AS double FROM orders) WHERE double > 4",
        "SELECT id FROM orders UNION ALL SELECT id FROM clicks",
        "WITH big AS (SELECT * FROM orders WHERE amount > 1) SELECT id FROM big",
        "SELECT o.id FROM orders AS o JOIN names AS n ON o.id = n.id",
    ],
)
def test_what_only_adds_rows_is_appended(query: str) -> None:
    found = planned(query, "id")
    assert (found.mode, found.layout.kind, found.layout.keys) == ("append", "rows", ())
    assert found.layout.outputs == (("id", "bigint", "id"),)


@pytest.mark.parametrize(
    ("query", "outputs", "keys"),
    [
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", "customer n", "customer"),
        ("SELECT customer AS who, count(*) AS n FROM orders GROUP BY 1", "who n", "who"),
        ("SELECT customer AS who, count(*) AS n FROM orders GROUP BY who", "who n", "who"),
        ("SELECT customer AS who, count(*) AS n FROM orders GROUP BY customer", "who n", "who"),
        ("SELECT count(*) AS n, id % 3 AS part FROM orders GROUP BY id % 3", "n part", "part"),
        ("SELECT o.customer, count(*) AS n FROM orders o GROUP BY o.customer", "customer n", "customer"),
        ("SELECT o.customer, count(*) AS n FROM orders o GROUP BY customer", "customer n", "customer"),
        ("SELECT Customer, count(*) AS n FROM orders GROUP BY CUSTOMER", "Customer n", "Customer"),
        ("SELECT customer, id, max(ts) AS t FROM orders GROUP BY id, customer", "customer id t", "id customer"),
        ("SELECT count(*) AS n, sum(amount) AS a FROM orders", "n a", ""),
        (f"SELECT {START} AS m, count(*) AS n FROM orders GROUP BY {TUMBLE}", "m n", "m"),
        (f"SELECT {END} AS e, customer, count(*) AS n FROM orders GROUP BY {TUMBLE}, customer", "e customer n",
         "e customer"),
        (f"SELECT window_start, count(*) AS n FROM {TABLE} GROUP BY window_start, window_end", "window_start n",
         "window_start"),
        (f"SELECT t.window_end AS e, customer, count(*) AS n FROM {TABLE} AS t GROUP BY customer, t.window_end",
         "e customer n", "customer e"),
    ],
)  # fmt: skip
def test_groups_are_kept_by_the_columns_that_tell_them(query: str, outputs: str, keys: str) -> None:
    found = planned(query, *outputs.split())
    assert (found.mode, found.layout.kind) == ("update", "latest")
    assert found.layout.keys == tuple(keys.split())


ORDERED = "its rows are ordered, or only some of them are wanted"
NESTED = "groups are not made at the top of the query alone"
TAKEN_BACK = "a group that was emitted may have to be taken back"
UNTOLD = "a group is not told by the selected columns"


@pytest.mark.parametrize(
    ("query", "outputs", "reason"),
    [
        ("SELECT id FROM orders ORDER BY id", "id", ORDERED),
        ("SELECT id FROM orders LIMIT 3", "id", ORDERED),
        ("SELECT id FROM orders UNION ALL SELECT id FROM clicks LIMIT 3", "id", ORDERED),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer ORDER BY n DESC", "customer n", ORDERED),
        ("SELECT max(n) AS n FROM (SELECT customer, count(*) AS n FROM orders GROUP BY customer)", "n", NESTED),
        ("SELECT id FROM (SELECT DISTINCT id FROM orders)", "id", NESTED),
        ("SELECT count(*) AS n FROM orders UNION ALL SELECT count(*) AS n FROM clicks", "n", NESTED),
        ("SELECT DISTINCT customer FROM orders", "customer", TAKEN_BACK),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) < 3", "customer n", TAKEN_BACK),
        ("SELECT count(*) AS n FROM orders GROUP BY customer", "n", UNTOLD),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer, id", "customer n", UNTOLD),
        ("SELECT customer || 'x' AS c, count(*) AS n FROM orders GROUP BY customer", "c n", UNTOLD),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY ROLLUP (customer)", "customer n", UNTOLD),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY CUBE (customer)", "customer n", UNTOLD),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY ALL", "customer n", UNTOLD),
        ("SELECT s.start AS b, count(*) AS n FROM (SELECT struct(id AS start, ts) AS s FROM orders) GROUP BY s", "b n",
         UNTOLD),
        (f"SELECT count(*) AS n FROM {TABLE} GROUP BY window_start", "n", UNTOLD),
        (f"SELECT customer, count(*) AS n FROM orders GROUP BY {TUMBLE}, customer", "customer n", UNTOLD),
        (f"SELECT date_trunc('hour', {START}) AS h, count(*) AS n FROM orders GROUP BY {TUMBLE}", "h n", UNTOLD),
        # The column of the source is what is grouped by, not what is selected under its name.
        ("SELECT upper(customer) AS customer, count(*) AS n FROM orders GROUP BY customer", "customer n", UNTOLD),
        ("SELECT amount AS customer, count(*) AS n FROM orders GROUP BY customer", "customer n", UNTOLD),
        ("SELECT upper(c) AS c, count(*) AS n FROM (SELECT customer AS c FROM orders) GROUP BY c", "c n", UNTOLD),
    ],
)  # fmt: skip
def test_what_is_not_streamed_says_why(query: str, outputs: str, reason: str) -> None:
    assert plan_continuous(outline(query, *outputs.split())) == NotStreamed(reason)


def test_what_no_parser_reads_is_not_streamed() -> None:
    assert isinstance(plan_continuous(outline("SELECT id FROM orders WHERE (", "id")), NotStreamed)


@pytest.mark.parametrize("having", ["", " HAVING count(*) > 1"])
def test_windows_that_are_emitted_on_close_are_rows(having: str) -> None:
    query = f"SELECT {START} AS m, count(*) AS n FROM orders GROUP BY {TUMBLE}{having}"
    found = planned(query, "m", "n", emit="close")
    assert (found.mode, found.layout.kind, found.name) == ("append", "rows", "v")


@pytest.mark.parametrize("rest", [" LIMIT 2", " ORDER BY m", " OFFSET 1"])
def test_what_is_emitted_on_close_has_no_order_and_no_end(rest: str) -> None:
    query = f"SELECT {START} AS m, count(*) AS n FROM orders GROUP BY {TUMBLE}{rest}"
    assert plan_continuous(outline(query, "m", "n", emit="close")) == NotStreamed(ORDERED)


def test_streams_are_told_from_tables() -> None:
    found = outline("SELECT 1 AS one FROM orders, names", "one", inputs=(ORDERS, NAMES))
    assert found.streams == (ORDERS,)


WINDOW = LateRule("window", 60_000_000, 60_000_000)


@pytest.mark.parametrize(
    ("query", "rules"),
    [
        (f"SELECT {START} AS m, count(*) AS n FROM orders GROUP BY {TUMBLE}", {"orders": WINDOW}),
        (
            "SELECT HOP_START(o.ts, INTERVAL '1 minute', INTERVAL '2 minutes') AS m, count(*) AS n FROM orders AS o "
            "GROUP BY HOP(o.ts, INTERVAL '1 minute', INTERVAL '2 minutes')",
            {"orders": LateRule("window", 60_000_000, 120_000_000)},
        ),
        (
            "SELECT SESSION_START(ts, INTERVAL '5 seconds') AS m, customer, count(*) AS n FROM orders "
            "GROUP BY SESSION(ts, INTERVAL '5 seconds'), customer",
            {"orders": LateRule("session", size=5_000_000)},
        ),
        (f"SELECT window_end AS m, count(*) AS n FROM {TABLE} GROUP BY window_end", {"orders": WINDOW}),
        ("SELECT DISTINCT id, ts FROM orders", {"orders": LateRule("time")}),
        ("SELECT id, ts, count(*) AS n FROM orders GROUP BY id, ts", {"orders": LateRule("time")}),
        ("SELECT id FROM orders WHERE amount > 1", {}),
    ],
)
def test_when_records_are_late(query: str, rules: dict[str, LateRule]) -> None:
    assert late_rules(planned(query, "a", "b", "c", emit="close")) == rules


def test_both_sides_of_a_join_can_be_late() -> None:
    query = (
        "SELECT o.id AS a FROM orders o JOIN clicks c ON o.id = c.id AND c.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR"
    )
    found = planned(query, "a", inputs=(ORDERS, CLICKS))
    assert late_rules(found) == {"orders": LateRule("time"), "clicks": LateRule("time")}


@pytest.mark.parametrize("clicked", ["clicks", "(SELECT ts, id FROM clicks WHERE id > 1) AS c"])
def test_streams_with_times_of_one_name_have_windows_of_their_own(clicked: str) -> None:
    hour, both = "TUMBLE{}(ts, INTERVAL '1 hour')", (ORDERS, CLICKS)
    orders = f"SELECT {START} AS a, count(*) AS b FROM orders GROUP BY {TUMBLE}"
    clicks = f"SELECT {hour.format('_START')} AS a, count(*) AS b FROM {clicked} GROUP BY {hour.format('')}"
    found = planned(f"{orders} UNION ALL {clicks}", "a", "b", inputs=both, emit="close")
    hours = LateRule("window", 3_600_000_000, 3_600_000_000)
    assert late_rules(found) == {"orders": WINDOW, "clicks": hours}
    times = f"SELECT DISTINCT ts AS a, id AS b FROM {clicked}"
    found = planned(f"{orders} UNION ALL {times}", "a", "b", inputs=both, emit="close")
    assert late_rules(found) == {"orders": WINDOW, "clicks": LateRule("time")}


def test_a_window_over_a_named_query_is_of_every_stream_with_such_a_time() -> None:
    union = "WITH u AS (SELECT ts FROM orders UNION ALL SELECT ts FROM clicks)"
    query = f"{union} SELECT {START} AS a, count(*) AS b FROM u GROUP BY {TUMBLE}"
    found = planned(query, "a", "b", inputs=(ORDERS, CLICKS), emit="close")
    assert late_rules(found) == {"orders": WINDOW, "clicks": WINDOW}


def test_a_time_that_nobody_reads_makes_nothing_late() -> None:
    ids = tuple(Input(each.name, each.table, ("id",), each.stream) for each in (ORDERS, CLICKS))
    found = planned("SELECT o.id AS a FROM orders o JOIN clicks c ON o.id = c.id", "a", inputs=ids)
    assert late_rules(found) == {}


def test_groups_that_are_no_windows_are_never_late() -> None:
    assert late_rules(planned("SELECT customer, count(*) AS n FROM orders GROUP BY customer", "customer", "n")) == {}


def test_the_column_that_tells_a_window() -> None:
    text = "SELECT customer, {0} AS m, count(*) AS n FROM orders GROUP BY {1}, customer"
    table = text.replace("FROM orders", f"FROM {TABLE}")
    by_table = (
        (table.format(f"window_{bound}", "window_start, window_end"), bound == "end") for bound in ("start", "end")
    )
    for query, is_end in ((text.format(START, TUMBLE), False), (text.format(END, TUMBLE), True), *by_table):
        found = planned(query, "customer", "m", "n", emit="close", late="correct")
        assert window_column(found) == WindowColumn("m", is_end)
        check_correctable(found)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT customer AS a, count(*) AS b FROM orders GROUP BY {TUMBLE}, customer",
        "SELECT customer AS a, count(*) AS b FROM orders GROUP BY customer",
        "SELECT SESSION_START(ts, INTERVAL '5 seconds') AS a, count(*) AS b FROM orders "
        "GROUP BY SESSION(ts, INTERVAL '5 seconds')",
        "SELECT id AS a, amount AS b FROM orders",
    ],
)
def test_what_cannot_be_corrected(query: str) -> None:
    with pytest.raises(InvalidStatement, match="does not take late = 'correct'"):
        check_correctable(planned(query, "a", "b", emit="close", late="correct"))
