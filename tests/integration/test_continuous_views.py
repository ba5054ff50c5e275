"""Continuous views over real topics: each is its query over all records, or over the windows that are closed."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.catalog.progress import progress_of
from headwater.engine import Lake
from headwater.errors import (
    Conflict,
    HeadwaterError,
    InvalidSchema,
    InvalidStatement,
    StreamFailed,
    StreamNotFound,
    Unavailable,
    ViewExists,
)
from headwater.spark.session import SparkEngine
from headwater.storage.maintenance.expire import Keep
from headwater.streaming import correct, sink
from headwater.streaming.outbox import Outbox
from headwater.streaming.status import StreamStatus

pytestmark = pytest.mark.spark

BOUND = 10
ZERO = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0
_numbers = itertools.count()

Row = tuple[int, str, int | None, float]
"""An id, a customer, an amount and the seconds since ZERO."""
TUMBLE = "TUMBLE(ts, INTERVAL '1 minute')"
START, END = "TUMBLE_START(ts, INTERVAL '1 minute')", "TUMBLE_END(ts, INTERVAL '1 minute')"
SELECTED = f"{START} AS m, {END} AS e, customer, count(*) AS n, sum(amount) AS a"
MINUTES = f"SELECT {SELECTED} FROM t GROUP BY {TUMBLE}, customer"


class Streams:
    """A stream `t` of orders, and what a test makes beside it; all of it goes in the end."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._prefix = f"cv{next(_numbers)}_"
        self._topics: list[str] = []
        self._views: list[str] = []
        self.last: dict[str, float] = {}
        self.stream("t")

    def named(self, name: str) -> str:
        return self._prefix + name

    def text(self, query: str, *names: str) -> str:
        """The query with the names that this test's topics and views have in the lake."""
        for name in ("t", *names):
            query = re.sub(rf"\b(FROM|JOIN|TABLE) {name}\b", rf"\1 {self.named(name)}", query)
        return query

    def stream(self, name: str, options: str = "min_snapshots = 1") -> None:
        more = f", {options}" if options else ""
        self.lake.sql(
            f"CREATE STREAM {self.named(name)} (id BIGINT, customer STRING, amount BIGINT, ts TIMESTAMP) "
            f"WITH (timestamp_field = 'ts', max_out_of_orderness = '{BOUND} seconds'{more})"
        )
        self._topics.append(name)

    def topic(self, name: str, columns: str) -> None:
        self.lake.sql(f"CREATE TOPIC {self.named(name)} ({columns})")
        self._topics.append(name)

    def put(self, *rows: Row, into: str = "t", flush: bool = True) -> None:
        """One commit of orders."""
        moments = [(ZERO + timedelta(seconds=each[3])).isoformat() for each in rows]
        names = ("id", "customer", "amount", "ts")
        records = [dict(zip(names, (*row[:3], at), strict=True)) for row, at in zip(rows, moments, strict=True)]
        self.lake.topic(self.named(into)).append(records)
        self.last[into] = max([self.last.get(into, 0.0), *(each[3] for each in rows)])
        if flush:
            self.lake.flush(self.named(into))

    def view(self, name: str, query: str, emit: str = "", options: str = "", *names: str, replace: bool = False) -> Any:
        """Make a continuous view; what was said about it."""
        more = f", {options}" if options else ""
        into = f" {emit}" if emit else ""
        word = "OR REPLACE " if replace else ""
        done = self.lake.sql(
            f"CREATE {word}MATERIALIZED VIEW {self.named(name)} AS {self.text(query, *names)}{into} "
            f"WITH (refresh = 'continuous'{more})"
        )
        if name not in self._views:
            self._views.append(name)
        return done.notices

    def catch_up(self, *names: str) -> list[int]:
        """Let views read what there is; how many records each did."""
        done = (self.lake.sql(f"REFRESH MATERIALIZED VIEW {self.named(name)}").rows()[0] for name in names)
        return [each["rows_read"] for each in done]

    def rows(self, query: str, *names: str, **options: Any) -> list[tuple[Any, ...]]:
        """A query's rows in an order of their own."""
        found = self.lake.sql(self.text(query, *names), **options).rows()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def status(self, name: str) -> StreamStatus:
        return self.lake.streams.status(self.named(name))[0]

    @property
    def watermark(self) -> str:
        """Of what was read so far, as SQL."""
        moment = ZERO + timedelta(seconds=min(self.last.values()) - BOUND)
        return f"TIMESTAMP '{moment.strftime('%Y-%m-%d %H:%M:%S')}'"

    def check(self, name: str, query: str, closed: str | None = None, *names: str) -> None:
        """The view is its query over everything, or the part of it that is `closed` by a column."""
        where = f" WHERE {closed} <= {self.watermark}" if closed else ""
        expected = self.rows(f"SELECT * FROM ({query}) {where}", *names)
        assert self.rows(f"SELECT * FROM {name}", name) == expected, name

    def drop(self) -> None:
        for name in reversed(self._views):
            self.lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {self.named(name)}")
        for name in self._topics:
            self.lake.sql(f"DROP TOPIC IF EXISTS {self.named(name)}")


@pytest.fixture
def streams(lake: Lake) -> Iterator[Streams]:
    made = Streams(lake)
    yield made
    lake.care.now = time.time
    made.drop()


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


HOP = "(ts, INTERVAL '20 seconds', INTERVAL '50 seconds')"
SHAPES: dict[str, tuple[str, str, str | None]] = {
    "plain": ("SELECT id, upper(customer) AS c, amount * 2 AS d, ts FROM t WHERE amount > 1", "", None),
    "keyed": ("SELECT customer, count(*) AS n, sum(amount) AS a, max(ts) AS l FROM t GROUP BY customer", "", None),
    "total": ("SELECT count(*) AS n, min(amount) AS a FROM t", "EMIT CHANGES", None),
    "minutes": (MINUTES, "EMIT CHANGES", None),
    "closed": (MINUTES, "EMIT ON WINDOW CLOSE", "e"),
    "hops": (
        f"SELECT HOP_START{HOP} AS m, HOP_END{HOP} AS e, count(*) AS n, avg(amount) AS a FROM t GROUP BY HOP{HOP}",
        "EMIT ON WINDOW CLOSE",
        "e",
    ),
    "sessions": (
        "SELECT SESSION_START(ts, INTERVAL '15 seconds') AS m, SESSION_END(ts, INTERVAL '15 seconds') AS e, customer, "
        "count(*) AS n FROM t GROUP BY SESSION(ts, INTERVAL '15 seconds'), customer",
        "EMIT ON WINDOW CLOSE",
        "e",
    ),
    "tabled": (
        "SELECT w.window_start AS m, w.customer, count(*) AS n "
        "FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE) AS w "
        "GROUP BY w.window_start, w.window_end, w.customer",
        "EMIT CHANGES",
        None,
    ),
    "tabled_hops": (
        "SELECT window_start, window_end, sum(amount) AS a FROM TABLE(HOP(TABLE t, DESCRIPTOR(ts), '20 s', '50 s')) "
        "GROUP BY window_start, window_end",
        "EMIT ON WINDOW CLOSE",
        "window_end",
    ),
    "tabled_sessions": (
        "SELECT customer, window_start, window_end, count(*) AS n FROM SESSION(TABLE t PARTITION BY customer, "
        "DESCRIPTOR(ts), '15 s') GROUP BY window_start, window_end, customer",
        "EMIT ON WINDOW CLOSE",
        "window_end",
    ),
    "distinct": ("SELECT DISTINCT customer, ts FROM t", "EMIT ON WINDOW CLOSE", "ts"),
    "having": (f"{MINUTES} HAVING count(*) > 1", "EMIT CHANGES", None),
}


def test_views_of_every_shape_are_their_queries(streams: Streams) -> None:
    """After the backfill and after a batch, records out of order within the bound."""
    streams.put(*((i, f"c{i % 3}", i % 5, 3 * i - i * 7 % 10) for i in range(40)))
    said = {}
    for name, (query, emit, closed) in SHAPES.items():
        said[name] = streams.view(name, query, emit)[0]
        streams.check(name, query, closed)
    assert {name for name, each in said.items() if each == "A stream keeps it, and emits every row once."} == {
        *("plain", "closed", "hops", "sessions", "tabled_hops", "tabled_sessions", "distinct"),
    }
    assert (
        said["keyed"]
        == said["minutes"]
        == said["tabled"]
        == "A stream keeps it, and emits the rows of groups as they change."
    )
    assert "refreshed incrementally after every commit: a group that was emitted" in said["having"]
    streams.put(*((i, f"c{i % 4}", i % 5, 3 * i - i * 7 % 10) for i in range(40, 70)))
    for name, (query, _, closed) in SHAPES.items():
        read = streams.catch_up(name)
        assert read == [30] or name == "having"
        streams.check(name, query, closed)
    status = streams.status("closed")
    assert (status.state, status.kind, status.engine, status.generation) == ("idle", "view", "streaming", 1)
    assert (status.rows_in, status.late_rows, status.skipped_changes, status.lag_rows) == (70, 0, 0, 0)
    assert status.sources == (streams.named("t"),)
    assert status.watermark == ZERO + timedelta(seconds=streams.last["t"] - BOUND)
    streams.put((99, "c1", 1, 300))
    assert streams.status("closed").lag_rows == 1
    for name in ("keyed", "closed"):  # both engines read what the other does, and it is what it is
        assert streams.lake.sql(f"VERIFY MATERIALIZED VIEW {streams.named(name)}").rows()[0]["equal"]
        assert streams.rows(f"SELECT * FROM {name}", name, engine="spark") == streams.rows(
            f"SELECT * FROM {name}", name, engine="duckdb"
        )


def test_streams_are_joined_within_a_bound(streams: Streams) -> None:
    streams.stream("u")
    on = "ON a.id = b.id AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '30 seconds'"
    inner = f"SELECT a.id, a.amount, b.amount AS other, b.ts FROM t AS a JOIN u AS b {on}"
    outer = f"SELECT a.id, a.amount, b.amount AS other FROM t AS a LEFT JOIN u AS b {on}"
    own = "SELECT a.id, b.id AS other FROM t AS a JOIN t AS b ON a.amount = b.amount AND a.ts = b.ts AND a.id < b.id"
    streams.put(*((i, "c", i, 2 * i) for i in range(10)))
    streams.put(*((i, "d", i + 100, 2 * i + i % 5 * 10) for i in range(0, 10, 2)), into="u")
    streams.view("inner_join", inner, "", "", "u")
    streams.view("outer_join", outer, "", "", "u")
    streams.view("own_join", own)
    streams.check("inner_join", inner, None, "u")
    for batch in range(2):  # of pairs, one side comes a batch later
        first = 10 + batch * 10
        streams.put(*((i, "c", i, 2 * i) for i in range(first, first + 10)))
        streams.put(*((i, "d", i + 100, 2 * i + i % 5 * 10) for i in range(first - 1, first + 9, 2)), into="u")
        streams.catch_up("inner_join", "outer_join")
        streams.check("inner_join", inner, None, "u")
    streams.put((90, "c", 7, 500), (91, "c", 7, 500))
    streams.put((92, "d", 7, 500), into="u")
    streams.catch_up("inner_join", "outer_join", "own_join")
    streams.check("inner_join", inner, None, "u")
    streams.check("own_join", own)
    # What has no partner shows once no partner can come any more.
    expected = [row for row in streams.rows(outer, "u") if row[0] < 90]
    assert any(row[2] is None for row in expected)
    assert streams.rows("SELECT * FROM outer_join", "outer_join") == expected
    assert streams.status("outer_join").late_rows == 0


def test_tables_move_on_between_batches(streams: Streams) -> None:
    """A topic that is no stream, and a view, are read as they are when a batch begins."""
    streams.topic("names", "customer STRING, name STRING")
    names, lake = streams.named("names"), streams.lake
    lake.topic(names).append([{"customer": "c0", "name": "zero"}])
    lake.flush(names)
    lake.sql(
        f"CREATE MATERIALIZED VIEW {streams.named('known')} WITH (refresh = 'manual') AS "
        f"SELECT customer, max(name) AS name FROM {names} GROUP BY customer"
    )
    streams._views.append("known")
    streams.put((1, "c0", 1, 0), (2, "c1", 1, 0))
    query = "SELECT a.id, b.name FROM t AS a LEFT JOIN {} AS b ON a.customer = b.customer"
    said = streams.view("by_topic", query.format("names"), "", "", "names")
    assert said[1].startswith(f"Read as tables, as they are when a batch begins: {names}.")
    streams.view("by_view", query.format("known"), "", "", "known")
    lake.topic(names).append([{"customer": "c1", "name": "one"}])
    lake.flush(names)
    lake.sql(f"REFRESH MATERIALIZED VIEW {streams.named('known')}")
    streams.put((3, "c0", 1, 1), (4, "c1", 1, 1))
    for name in ("by_topic", "by_view"):
        assert streams.catch_up(name) == [2]
        assert streams.rows(f"SELECT id, name FROM {name}", name) == [(1, "zero"), (2, None), (3, "zero"), (4, "one")]
        assert streams.status(name).lag_rows == 0, "tables are never behind"


def test_a_subquery_over_a_stream_is_no_stream(streams: Streams) -> None:
    streams.stream("u")
    query = "SELECT id, ts FROM t WHERE id IN (SELECT id FROM u)"
    streams.put((1, "c0", 1, 0), (2, "c0", 1, 0))
    streams.put((2, "c0", 1, 0), into="u")
    (said,) = streams.view("v", query, "", "", "u")
    assert said.endswith(": a subquery over a stream, as in IN or EXISTS, needs all of its records.")
    streams.check("v", query, None, "u")


def test_a_total_over_no_records_has_a_row(streams: Streams) -> None:
    total = "SELECT count(*) AS n, sum(amount) AS a FROM t"
    streams.view("v", total)
    assert streams.rows("SELECT * FROM v", "v") == streams.rows(total) == [(0, None)]
    streams.put((1, "c0", 3, 5), (2, "c0", 4, 6))
    assert streams.catch_up("v") == [2]
    assert streams.rows("SELECT * FROM v", "v") == [(2, 7)]


def test_what_only_a_stream_can_do_is_refused_where_none_keeps_the_view(streams: Streams) -> None:
    ranks = "SELECT id, rank() OVER (ORDER BY amount) AS r FROM t"
    with pytest.raises(InvalidStatement, match="cannot be sent on") as refused:
        streams.view("v", ranks, f"INTO TOPIC '{streams.named('out')}'")
    assert refused.value.detail is not None and "ranks" in refused.value.detail.lower()
    assert not streams.lake.topics.exists(streams.named("out"))
    said = streams.view("v", ranks, options="late = 'keep'")
    assert said[1] == "late = 'keep' has no effect: no record is too late for it."
    with pytest.raises(InvalidStatement, match='option "into_topic" of a continuous view cannot be altered'):
        streams.lake.sql(f"ALTER MATERIALIZED VIEW {streams.named('v')} SET (into_topic = 'x')")


def test_records_of_before_1970_are_in_no_window_that_a_stream_would_close(streams: Streams) -> None:
    """A stream's time begins there: such a topic is looked at as a whole instead."""
    streams.put((1, "c0", 1, -60 * 365 * DAY), (2, "c0", 1, 5), flush=False)
    (said,) = streams.view("v", MINUTES)
    assert "has records of before 1970, where the time of a stream begins" in said
    assert len(streams.rows("SELECT * FROM v", "v")) == 2
    assert streams.rows("SELECT * FROM v", "v") == streams.rows(MINUTES)
    with pytest.raises(InvalidStatement, match="close") as refused:
        streams.view("w", MINUTES, "EMIT ON WINDOW CLOSE")
    assert "before 1970" in str(refused.value.detail)


def test_late_records_are_counted_kept_or_folded_in(streams: Streams) -> None:
    policies = {
        "dropped": ("EMIT ON WINDOW CLOSE", "late = 'drop'"),
        "kept": ("EMIT ON WINDOW CLOSE", "late = 'keep'"),
        "corrected": ("EMIT ON WINDOW CLOSE", "late = 'correct'"),
        "changed": ("EMIT CHANGES", "late = 'correct'"),
    }
    streams.put(*((i, f"c{i % 2}", 1, 2 * i) for i in range(60)))
    for name, (emit, options) in policies.items():
        streams.view(name, MINUTES, emit, options)
    before = streams.rows(f"{MINUTES}")
    streams.put((100, "c0", 5, 1), (101, "c9", 7, 2), (102, "c0", 1, 200))  # two late ones, one of a new group
    for name in policies:
        assert streams.catch_up(name) == [3]
        assert streams.status(name).late_rows == 2
    streams.check("corrected", MINUTES, "e")
    streams.check("changed", MINUTES)
    for name in ("dropped", "kept"):
        first = f"SELECT * FROM {name} WHERE m = TIMESTAMP '2026-01-01 00:00:00'"
        assert streams.rows(first, name) == [row for row in before if row[0] == ZERO]
    streams.put((103, "c0", 5, 3), (104, "c1", 1, 260))
    for name in policies:
        streams.catch_up(name)
    streams.check("corrected", MINUTES, "e")
    streams.check("changed", MINUTES)
    kept = streams.rows("SELECT record_offset, epoch, get_json_object(record, '$.id') FROM kept__late", "kept__late")
    assert [(offset, id) for offset, _, id in kept] == [(60, "100"), (61, "101"), (63, "103")]
    assert len({epoch for _, epoch, _ in kept}) == 2
    said = streams.lake.sql(
        f"SELECT op, customer, n, a FROM {streams.named('corrected')}__corrections ORDER BY epoch, op DESC, customer"
    ).rows()
    assert [tuple(row.values()) for row in said] == [
        ("-", "c0", 15, 15), ("+", "c0", 16, 20), ("+", "c9", 1, 7), ("-", "c0", 16, 20), ("+", "c0", 17, 25),
    ]  # fmt: skip
    for engine in ("spark", "duckdb"):
        assert len(streams.rows("SELECT * FROM corrected WHERE n > 15", "corrected", engine=engine)) == 1
    streams.lake.sql(f"COMPACT MATERIALIZED VIEW {streams.named('corrected')}")
    streams.check("corrected", MINUTES, "e")
    for name, late in (("dropped", 3), ("corrected", 0)):
        verified = streams.lake.sql(f"VERIFY MATERIALIZED VIEW {streams.named(name)}")
        assert (verified.rows()[0]["equal"], verified.info["verified"]["late"]) == (not late, late)
        assert (f"{late} records came too late for it." in verified.notices[0]) == bool(late)
        assert ('\n  only in the query: {"m":"2026-01-01T00:00:00Z",' in verified.notices[0]) == bool(late)
    for name in ("kept", "corrected"):
        streams.lake.sql(f"DROP MATERIALIZED VIEW {streams.named(name)}")
    left = [each for each in streams.lake.topics.names() if each.startswith(streams.named("")) and "__" in each]
    assert left == [streams.named("changed__corrections")], "what is beside a view goes with it"


def test_a_repeated_batch_reads_records_as_they_came(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.put((1, "c0", 5, 1))
    streams.view("sums", "SELECT customer, count(amount) AS n, sum(amount) AS a FROM t GROUP BY customer")
    streams.put((2, "c1", None, 2), (3, "c0", 2, 3))
    with monkeypatch.context() as crashing:
        crashing.setattr(sink, "failpoint", lambda name: 1 / 0)
        with pytest.raises(StreamFailed):
            streams.catch_up("sums")
    streams.lake.sql(f"UPDATE {streams.named('t')} SET amount = 100 WHERE amount IS NULL")
    streams.lake.sql(f"ALTER TOPIC {streams.named('t')} ALTER COLUMN amount SET NOT NULL")
    streams.catch_up("sums")
    assert streams.rows("SELECT * FROM sums", "sums") == [("c0", 2, 7), ("c1", 0, None)]


def test_event_times_without_a_zone_keep_their_type(streams: Streams) -> None:
    lake, local = streams.lake, streams.named("local")
    lake.sql(
        f"CREATE STREAM {local} (id BIGINT, customer STRING, ts TIMESTAMP_NTZ) "
        "WITH (timestamp_field = 'ts', max_out_of_orderness = '10 seconds')"
    )
    streams._topics.append("local")

    def put(*rows: tuple[int, str, str]) -> None:
        names = ("id", "customer", "ts")
        lake.topic(local).append([dict(zip(names, row, strict=True)) for row in rows])
        lake.flush(local)

    put((1, "c0", "2026-01-01T00:00:10"), (2, "c1", "2026-01-01T00:00:50.5"))
    queries = {
        "plain": ("SELECT id, ts, hour(ts) AS h FROM local WHERE ts >= TIMESTAMP_NTZ '2026-01-01 00:00:20'", ""),
        "minutes": (
            f"SELECT {START} AS m, max(ts) AS last, sort_array(collect_list(ts)) AS every FROM local GROUP BY {TUMBLE}",
            "",
        ),
        "distinct": ("SELECT DISTINCT customer, ts FROM local", "EMIT ON WINDOW CLOSE"),
    }
    for name, (query, emit) in queries.items():
        assert "A stream keeps it" in streams.view(name, query, emit, "", "local")[0]
    put((3, "c0", "2026-01-01T00:01:10"), (4, "c1", "2026-01-01T00:00:55"), (4, "c1", "2026-01-01T00:00:55"))
    for name, (query, _) in queries.items():
        assert streams.catch_up(name) == [3]
        found = lake.sql(f"SELECT * FROM {streams.named(name)}")
        expected = lake.sql(streams.text(query, "local"), engine="spark")
        types, of_batch = ([str(of).replace(" not null", "") for of in each.schema.types] for each in (found, expected))
        assert types == of_batch, name
        closed = [row for row in expected if name != "distinct" or row["ts"].minute == 0]
        assert Counter(map(repr, found.rows())) == Counter(map(repr, closed)), name


@pytest.mark.parametrize(("of", "bound"), [("TIMESTAMP", "START"), ("TIMESTAMP_NTZ", "END")])
def test_a_correction_reads_what_may_hold_its_windows(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, of: str, bound: str
) -> None:
    lake, days = streams.lake, streams.named("days")
    lake.sql(
        f"CREATE STREAM {days} (id BIGINT, ts {of}) PARTITIONED BY (days(ts)) "
        "WITH (timestamp_field = 'ts', max_out_of_orderness = '10 seconds')"
    )
    streams._topics.append("days")

    def put(day: float, *ids: int) -> None:
        zone = "+00:00" if of == "TIMESTAMP" else ""
        at = f"{(ZERO + timedelta(days=day)).replace(tzinfo=None).isoformat()}{zone}"
        lake.topic(days).append([{"id": id, "ts": at} for id in ids])
        lake.flush(days)

    put(0, 1)
    query = (
        f"SELECT HOP_{bound}(ts, INTERVAL '1 hour', INTERVAL '2 hours') AS w, count(*) AS n FROM {days} "
        "GROUP BY HOP(ts, INTERVAL '1 hour', INTERVAL '2 hours')"
    )
    streams.view("hours", query, "EMIT ON WINDOW CLOSE", "late = 'correct'")
    for day in range(1, 5):
        put(day, day)
        streams.catch_up("hours")
    read: list[tuple[int, int]] = []
    scan = correct.plan_scan

    def watched(*asked: Any) -> Any:
        found = scan(*asked)
        read.append((len(found.files), found.total))
        return found

    monkeypatch.setattr(correct, "plan_scan", watched)
    put(2, 20, 21)
    streams.catch_up("hours")
    of_topic, of_view = read
    assert of_topic == (2, 6), "the files of that day"
    assert of_view[0] <= 2 < of_view[1], "those of its two windows"
    put(4.5, 30)  # closes all but its own
    streams.catch_up("hours")
    found = {row["w"]: row["n"] for row in lake.sql(f"SELECT * FROM {streams.named('hours')}")}
    assert sorted(found.values()) == [1, 1, 1, 1, 1, 1, 1, 1, 3, 3]
    expected = {row["w"]: row["n"] for row in lake.sql(query)}
    assert found == {window: n for window, n in expected.items() if window in found}


def test_rows_go_to_a_topic_once(streams: Streams) -> None:
    out = streams.named("out")
    streams._topics.append("out")
    streams.put(*((i, f"c{i % 2}", 1, 2 * i) for i in range(60)))
    streams.view("sent", MINUTES, f"EMIT ON WINDOW CLOSE INTO TOPIC '{out}'", "late = 'correct'")
    sent = f"SELECT m, e, customer, n, a FROM {out}"
    assert streams.rows(sent) == streams.rows("SELECT * FROM sent", "sent") != [], "what the backfill found"
    streams.put(*((i, f"c{i % 2}", 1, 2 * i) for i in range(60, 90)))
    streams.catch_up("sent")
    streams.catch_up("sent")
    assert streams.rows(sent) == streams.rows("SELECT * FROM sent", "sent")
    streams.put((200, "c0", 5, 0), (201, "c0", 1, 300))
    streams.catch_up("sent")
    assert set(streams.rows("SELECT * FROM sent", "sent")) < set(streams.rows(sent)), "and what was corrected, anew"
    assert len(streams.rows(sent)) == len(set(streams.rows(sent)))
    with pytest.raises(InvalidSchema, match="does not take rows of materialized view"):
        streams.view("other", "SELECT id, customer FROM t", f"INTO TOPIC '{out}'")
    status = streams.status("sent")
    assert status.into == out


def test_rows_that_were_not_sent_outlive_their_snapshots(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outlet is away for days; meanwhile the view is compacted, and snapshots expire."""
    lake, out, view = streams.lake, streams.named("out"), streams.named("v")
    streams._topics.append("out")
    streams.put((1, "c0", 1, 0))
    streams.view("v", "SELECT id, amount FROM t", f"INTO TOPIC '{out}'")
    streams.put((2, "c0", 1, 1), (3, "c0", 1, 2))
    with monkeypatch.context() as away:
        away.setattr(Outbox, "send", _away)
        with pytest.raises(Unavailable):
            streams.catch_up("v")
    assert streams.rows("SELECT id FROM v", "v") == [(1,), (2,), (3,)]
    assert streams.rows(f"SELECT id FROM {out}") == [(1,)]
    lake.sql(f"COMPACT MATERIALIZED VIEW {view}")
    monkeypatch.setattr(lake.care.steps, "keep", lambda _: Keep(0, 1))
    monkeypatch.setattr(lake.care, "now", lambda: time.time() + 3 * DAY)
    assert lake.maintain(view, only=["expire"])[0]["numbers"]["snapshots"] == 1
    monkeypatch.setattr(lake.care, "now", lambda: time.time() + 6 * DAY)
    lake.maintain(view, only=["deletions", "orphans"])
    streams.put((4, "c0", 1, 3))
    streams.catch_up("v")
    assert streams.rows(f"SELECT id FROM {out}") == [(1,), (2,), (3,), (4,)]


def _away(*_: object) -> None:
    raise Unavailable("the outlet is away")


def test_another_query_takes_its_place(streams: Streams) -> None:
    streams.put((1, "c0", 1, 0), (2, "c1", 2, 1))
    streams.view("v", "SELECT id, amount FROM t")
    old, folder = streams.lake.views.load(streams.named("v")), streams.lake.paths.streams
    checkpoints = {each.name for each in folder.iterdir()}
    streams.put((3, "c0", 4, 2))
    streams.view("v", "SELECT customer, sum(amount) AS a FROM t GROUP BY customer", replace=True)
    assert streams.rows("SELECT * FROM v", "v") == [("c0", 5), ("c1", 2)], "records that the old one had not read too"
    past = f"SELECT * FROM {streams.named('v')} VERSION AS OF {old.snapshot_id}"
    with pytest.raises(HeadwaterError):
        streams.lake.sql(past).rows()
    status = streams.status("v")
    assert (status.generation, status.rows_in) == (2, 3)
    now = {each.name for each in folder.iterdir()}
    assert len(now - checkpoints) == len(checkpoints - now) == 1, "its checkpoint is another one"
    streams.put((4, "c1", 1, 3))
    assert streams.catch_up("v") == [1]
    assert streams.rows("SELECT * FROM v", "v") == [("c0", 5), ("c1", 3)]
    streams.lake.sql(
        f"CREATE OR REPLACE MATERIALIZED VIEW {streams.named('v')} WITH (refresh = 'manual') AS "
        f"{streams.text('SELECT count(*) AS n FROM t')}"
    )
    assert streams.rows("SELECT * FROM v", "v") == [(4,)]
    assert not {each.name for each in folder.iterdir()} & now - checkpoints
    with pytest.raises(InvalidStatement, match="does not run"):
        streams.status("v")


def test_every_record_is_read_once_whatever_becomes_of_its_topic(streams: Streams) -> None:
    """Deleted, changed, compacted, expired: between batches and beside new records."""
    lake, topic = streams.lake, streams.named("t")
    streams.put((1, "c0", 1, 0), (2, "c1", 1, 1))
    streams.view("v", "SELECT id, amount FROM t")
    lake.sql(f"DELETE FROM {topic} WHERE id = 1")
    assert streams.catch_up("v") == [0]
    assert streams.status("v").skipped_changes == 1
    streams.put((3, "c0", 1, 2))
    lake.sql(f"UPDATE {topic} SET amount = 100 WHERE id IN (2, 3)")
    streams.put((4, "c0", 1, 3))
    assert streams.catch_up("v") == [2]
    assert streams.status("v").skipped_changes == 2
    assert streams.rows("SELECT id, amount FROM v", "v") == [(1, 1), (2, 1), (3, 100), (4, 1)]
    streams.put((5, "c0", 1, 4))
    assert lake.topic(topic).optimize()["outcome"] == "done"
    streams.put((6, "c0", 1, 5))
    assert streams.catch_up("v") == [2]
    assert streams.status("v").skipped_changes == 2, "a compaction changes nothing"
    streams.put((7, "c0", 1, 6))
    lake.sql(f"OPTIMIZE {topic} FULL")
    lake.care.now = lambda: time.time() + 3 * DAY
    assert lake.maintain(topic, only=["expire"])[0]["outcome"] == "done"
    lake.care.now = lambda: time.time() + 6 * DAY
    lake.maintain(topic, only=["deletions"])
    streams.put((8, "c0", 1, 7))
    assert streams.catch_up("v") == [2], "one of a file that holds what was read, too"
    assert [row[0] for row in streams.rows("SELECT id FROM v", "v")] == list(range(1, 9))
    assert streams.status("v").lag_rows == 0


def test_views_read_continuous_views(streams: Streams) -> None:
    """What only adds rows is followed row by row; what changes rows is not."""
    lake = streams.lake
    streams.put(*((i, f"c{i % 2}", 1, 2 * i) for i in range(60)))
    streams.view("closed", MINUTES, "EMIT ON WINDOW CLOSE")
    streams.view("changing", MINUTES, "EMIT CHANGES")
    for name in ("closed", "changing"):
        lake.sql(
            f"CREATE MATERIALIZED VIEW {streams.named('of_' + name)} WITH (refresh = 'manual') AS "
            f"SELECT customer, sum(n) AS n FROM {streams.named(name)} GROUP BY customer"
        )
        streams._views.append("of_" + name)
    streams.put(*((i, f"c{i % 2}", 1, 2 * i) for i in range(60, 120)))
    streams.catch_up("closed", "changing")
    before = streams.rows("SELECT * FROM changing", "changing")
    for name, method in (("closed", "append"), ("changing", "full")):
        done = lake.sql(f"REFRESH MATERIALIZED VIEW {streams.named('of_' + name)}").rows()[-1]
        assert done["method"] == method, done
        expected = streams.rows(f"SELECT customer, sum(n) AS n FROM {name} GROUP BY customer", name)
        assert streams.rows(f"SELECT * FROM of_{name}", f"of_{name}") == expected
    streams.put((400, "c7", 1, 239), (401, "c8", 1, 500))  # a refresh does not do what the stream has not done yet
    then = lake.views.load(streams.named("closed")).snapshot_id
    lake.sql(f"REFRESH MATERIALIZED VIEW {streams.named('of_closed')}")
    assert lake.views.load(streams.named("closed")).snapshot_id == then
    # Compaction between epochs changes nothing that is read, and the past stays where it is.
    then = lake.views.load(streams.named("changing")).snapshot_id
    lake.sql(f"COMPACT MATERIALIZED VIEW {streams.named('changing')}")
    for engine in ("spark", "duckdb"):
        assert streams.rows("SELECT * FROM changing", "changing", engine=engine) == before
    streams.put((500, "c0", 9, 499))
    streams.catch_up("changing", "closed")
    streams.check("changing", MINUTES)
    streams.check("closed", MINUTES, "e")
    past = f"SELECT * FROM {streams.named('changing')} VERSION AS OF {then}"
    assert streams.rows(past, engine="spark") == streams.rows(past) == before
    with pytest.raises(HeadwaterError, match="read by"):
        lake.sql(f"DROP MATERIALIZED VIEW {streams.named('closed')}")


def test_what_is_refused(streams: Streams) -> None:
    streams.put((1, "c0", 1, 0))
    streams.view("v", "SELECT id FROM t")
    with pytest.raises(ViewExists, match="is a materialized view"):
        streams.lake.sql(f"CREATE STREAM {streams.named('v')} (id BIGINT)")
    with pytest.raises(ViewExists, match="already exists"):
        streams.view("v", "SELECT id FROM t")
    with pytest.raises(InvalidStatement, match="cannot be emitted on window close"):
        streams.view("w", "SELECT customer, count(*) AS n FROM t GROUP BY customer", "EMIT ON WINDOW CLOSE")
    untimed = streams.named("untimed")
    streams.lake.sql(f"CREATE STREAM {untimed} (id BIGINT, at TIMESTAMP)")
    minute = "at, INTERVAL '1 minute'"
    windows = f"SELECT TUMBLE_START({minute}) AS w, count(*) AS n FROM {untimed} GROUP BY TUMBLE({minute})"
    with pytest.raises(InvalidStatement, match="cannot be emitted on window close") as refused:
        streams.view("w", windows, "EMIT ON WINDOW CLOSE")
    assert refused.value.hint == (
        f'TUMBLE cuts "at", and the event time of stream "{untimed}" is "_timestamp". Run DROP STREAM {untimed}, which '
        f"keeps the topic, and CREATE STREAM {untimed} WITH (topic = '{untimed}', timestamp_field = 'at')."
    )
    for statement in (
        refused.value.hint.partition("Run ")[2].partition(",")[0],
        f"CREATE{refused.value.hint.rpartition('CREATE')[2][:-1]}",
    ):
        streams.lake.sql(statement)
    streams.view("w", windows, "EMIT ON WINDOW CLOSE")
    streams.lake.sql(f"DROP MATERIALIZED VIEW {streams.named('w')}")
    streams.lake.sql(f"DROP STREAM {untimed}")
    streams.lake.sql(f"DROP TOPIC {untimed}")
    with pytest.raises(InvalidStatement, match="does not take late = 'correct'"):
        streams.view("w", "SELECT id FROM t", "", "late = 'correct'")
    with pytest.raises(InvalidStatement, match="cannot be altered"):
        streams.lake.sql(f"ALTER MATERIALIZED VIEW {streams.named('v')} SET (late = 'keep')")
    for engine in ("duckdb", "spark"):
        with pytest.raises(InvalidStatement, match="cannot be read fresh"):
            streams.lake.sql(f"SELECT * FROM mv('{streams.named('v')}', fresh => true)", engine=engine).rows()
    with pytest.raises(HeadwaterError, match="read by"):
        streams.lake.sql(f"DROP TOPIC {streams.named('t')}")
    assert not streams.lake.views.exists(streams.named("w"))
    left = {each.name.rpartition("-")[0] for each in streams.lake.paths.streams.iterdir()}
    assert streams.named("w") not in left


@pytest.fixture
def service(lake: Lake, spark: Any, spark_lake: Path) -> Iterator[Lake]:
    """A second lake in the same folder, which keeps views in the background as a service does."""
    with Lake.open(spark_lake, maintenance=False, query_worker="never") as running:
        running._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        running.start_background()
        yield running


def test_a_service_follows_stops_starts_and_waits(streams: Streams, service: Lake) -> None:
    """One that fails disturbs no other, and says why."""
    good, bad = streams.named("good"), streams.named("bad")
    keyed = "SELECT customer, count(*) AS n FROM t GROUP BY customer"
    streams.put((1, "c0", 1, 0))
    streams.view("good", keyed)
    streams.view("bad", "SELECT id FROM t")

    def state(name: str) -> StreamStatus:
        return service.streams.status(name)[0]

    def has(name: str, *rows: tuple[Any, ...]) -> Callable[[], bool]:
        return lambda: streams.rows(f"SELECT * FROM {name}", name) == list(rows)

    wait_for(lambda: state(good).state == state(bad).state == "running")
    streams.put((2, "c1", 1, 1))
    wait_for(has("good", ("c0", 1), ("c1", 1)))
    wait_for(has("bad", (1,), (2,)))
    now = state(good)
    assert now.epoch is not None and now.epoch >= 1
    assert now.started_at is not None and now.last_batch_at is not None and now.batch_seconds is not None
    assert (now.rows_in, now.lag_rows, now.restarts, now.last_error) == (2, 0, 0, None)
    assert now.state_rows == 2
    with pytest.raises(Conflict, match="a service keeps materialized view"):
        streams.lake.sql(f"REFRESH MATERIALIZED VIEW {good}")
    streams.put((20, "c1", 1, 1), flush=False)
    service.sql(f"REFRESH MATERIALIZED VIEW {good}")
    assert has("good", ("c0", 1), ("c1", 2))(), "it waits until what was acknowledged is there"
    streams.lake.sql(f"ALTER MATERIALIZED VIEW {good} SET (trigger = '10 ms')")  # by another process
    wait_for(lambda: state(good).state == "running" and state(good).started_at not in (None, now.started_at))

    seen = ((1,), (2,), (20,))
    wait_for(has("bad", *seen))
    assert service.sql(f"STOP STREAM {bad}").rows()[0]["state"] == "stopped"
    folder = progress_of(streams.lake.views.load(bad).table.metadata.properties)
    assert folder is not None
    shutil.move(streams.lake.paths.streams / folder.folder, streams.lake.paths.streams / "away")
    streams.put((3, "c1", 1, 2))
    wait_for(has("good", ("c0", 1), ("c1", 3)))
    assert has("bad", *seen)(), "it was stopped"
    service.sql(f"START STREAM {bad}")
    wait_for(lambda: state(bad).state == "waiting")
    failed = state(bad)
    assert failed.last_error is not None and f'checkpoint of materialized view "{bad}" is gone' in failed.last_error
    assert failed.restarts >= 1 and failed.last_error_at is not None and failed.next_start is not None
    assert state(good).state == "running" and state(good).restarts == 0
    shutil.move(streams.lake.paths.streams / "away", streams.lake.paths.streams / folder.folder)
    service.sql(f"RESTART STREAM {bad}")
    wait_for(has("bad", *seen, (3,)))

    service.sql(
        f"CREATE OR REPLACE MATERIALIZED VIEW {good} AS {streams.text(keyed.replace('count(*)', 'sum(amount)'))} "
        "WITH (refresh = 'continuous')"
    )
    streams.put((4, "c2", 7, 3))
    wait_for(has("good", ("c0", 1), ("c1", 3), ("c2", 7)))
    wait_for(lambda: state(good).state == "running")
    assert (state(good).generation, state(good).restarts) == (2, 0)
    service.sql(f"DROP MATERIALIZED VIEW {good}")
    with pytest.raises(StreamNotFound):
        state(good)
    streams.put((5, "c0", 1, 4))
    wait_for(has("bad", *seen, (3,), (4,), (5,)))
    assert not [each for each in streams.lake.paths.streams.iterdir() if each.name.startswith(good)]


def test_a_backup_beside_a_service_whose_view_emits_nothing(
    streams: Streams, service: Lake, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view's table lags behind its checkpoint; restored, both go on from the same epoch."""
    monkeypatch.setattr(sink, "IDLE_COMMIT", 3600.0)
    view, topic = streams.named("closed"), streams.named("t")
    streams.view("closed", MINUTES, "EMIT ON WINDOW CLOSE")
    wait_for(lambda: service.streams.status(view)[0].state == "running")
    for n in range(8):
        before = service.streams.status(view)[0].epoch or 0
        streams.put((n, "c0", 1, n / 100))
        wait_for(lambda before=before: (service.streams.status(view)[0].epoch or 0) > before)
    table = progress_of(service.views.load(view).table.metadata.properties)
    assert table is not None and (service.streams.status(view)[0].epoch or 0) >= table.epoch + 8

    done = threading.Event()

    def write() -> None:
        for n in itertools.count(8):
            streams.put((n, "c0", 1, min(n / 100, 50)), flush=False)
            if done.wait(0.05):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        service.backup(tmp_path / "backup")
    finally:
        done.set()
        writer.join()
    service.sql(f"STOP STREAM {view}")  # one Spark runs a query once, and knows it by an id in the checkpoint
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as restored:
        restored._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        [(least, most, count)] = [
            tuple(row.values()) for row in restored.sql(f"SELECT min(id), max(id), count(*) FROM {topic}").rows()
        ]
        assert (least, most) == (0, count - 1) and count >= 8
        later = (ZERO + timedelta(seconds=1000)).isoformat()
        restored.topic(topic).append([{"id": -1, "customer": "c0", "amount": 1, "ts": later}])
        restored.sql(f"REFRESH MATERIALIZED VIEW {view}")
        assert [row["n"] for row in restored.sql(f"SELECT n FROM {view}").rows()] == [count]
