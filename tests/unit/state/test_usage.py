from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

import headwater
from headwater.state.usage import HORIZON, MAX_FILTERS, MAX_PATTERNS, ColumnUsage, Pattern, UsageStore


@pytest.fixture
def store(tmp_path: Path) -> UsageStore:
    return UsageStore(tmp_path / "state.db", 5.0)


def test_patterns_are_counted_across_writes_and_topics_are_apart(store: UsageStore) -> None:
    lookup = Pattern(("id", "note"), (("id", "equal"),), 3, ('{"a": 1}',))
    store.add([("t1", lookup), ("t1", Pattern(("note",)))])
    store.add([("t1", lookup), ("t2", lookup)])
    usage = store.of("t1")
    assert [(each.queries, each.uses) for each in usage.patterns] == [(6, (("id", "equal"),)), (1, ())]
    assert usage.queries == 7
    assert usage.of("id") == ColumnUsage(reads=6, equal=6)
    assert usage.columns["note"] == ColumnUsage(reads=7)
    assert store.of("t2").queries == 3


def test_a_pattern_keeps_its_latest_filters_each_once(store: UsageStore) -> None:
    for number in range(MAX_FILTERS + 3):
        store.add([("t", Pattern(("a",), (), 1, (str(number),)))])
    store.add([("t", Pattern(("a",), (), 1, ("5", "x" * 10_000)))])
    (pattern,) = store.of("t").patterns
    assert pattern.filters == ("3", "4", "6", "7", "8", "9", "10", "5")


def test_what_is_kept_is_bounded_and_forgets(tmp_path: Path) -> None:
    now = [0.0]
    store = UsageStore(tmp_path / "state.db", 5.0, lambda: now[0])
    for number in range(MAX_PATTERNS + 20):
        now[0] += 1
        store.add([("t", Pattern((f"c{number}",)))])
    kept = {each.reads[0] for each in store.of("t").patterns}
    assert kept == {f"c{number}" for number in range(20, MAX_PATTERNS + 20)}
    store.add([("dropped", Pattern(("c",)))])
    now[0] += HORIZON - 10
    store.add([("t", Pattern(("again",)))])
    late = {f"c{number}" for number in range(MAX_PATTERNS + 9, MAX_PATTERNS + 20)}  # the last eleven seconds
    assert {each.reads[0] for each in store.of("t").patterns} == {"again"} | late
    now[0] += 20
    store.add([("t", Pattern(("again",)))])
    assert store.of("dropped").patterns == () and len(store.of("t").patterns) == 1


def test_queries_leave_what_they_needed(tmp_path: Path) -> None:
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (id BIGINT, at TIMESTAMP, note STRING, price DOUBLE)")
        topic = lake.topics.load("t").id
        for _ in range(3):
            lake.sql("SELECT note FROM t WHERE id = 7 AND at >= TIMESTAMP '2024-01-01 00:00:00'").rows()
        lake.sql("SELECT count(*) FROM t WHERE note LIKE 'ab%' OR id IN (1, 2)").rows()
        lake.sql("EXPLAIN SELECT price FROM t").rows()
        usage = lake.usage.of(topic)
        assert usage.queries == 4
        assert usage.of("id") == ColumnUsage(reads=4, equal=4)
        assert (usage.of("at").range, usage.of("note").prefix, usage.of("price").reads) == (3, 1, 0)
        filters = [json.loads(text) for each in usage.patterns for text in each.filters]
        assert {"type": "eq", "term": "id", "value": 7} in [each.get("left") for each in filters]
        lake.sql("SELECT price FROM t").rows()
    with headwater.open(tmp_path / "lake", record_usage=False) as lake:
        assert lake.usage.of(topic).of("price").reads == 1  # written when the lake was closed
        lake.sql("SELECT price FROM t").rows()
        assert lake.usage.of(topic).of("price").reads == 1


def test_a_state_file_that_is_locked_costs_the_record_and_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with headwater.init(tmp_path / "lake", busy_timeout=0.1) as lake:
        lake.sql("CREATE TOPIC t (id BIGINT)")
        lake.sql("SELECT * FROM t").rows()
        other = sqlite3.connect(lake.paths.state)
        other.execute("BEGIN IMMEDIATE")
        lake.usage.write()
        other.close()
        assert "usage of columns was not recorded" in caplog.text
        assert lake.usage.of(lake.topics.load("t").id).queries == 0


def test_it_is_written_while_the_lake_is_open(tmp_path: Path) -> None:
    from headwater.serving.usage import UsageRecorder

    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (id BIGINT)")
        store = UsageStore(tmp_path / "state.db", 5.0)
        recorder = UsageRecorder(store, every=0.01)
        lake._queries._used = recorder.record
        lake.sql("SELECT * FROM t").rows()
        topic = lake.topics.load("t").id
        deadline = time.monotonic() + 60
        while not store.of(topic).queries and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.of(topic).queries == 1
        recorder.close()
