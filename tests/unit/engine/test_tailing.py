"""A topic's tail in one process: order, pages, waiting, marks, and what ends it. Only Spark's part is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.engine import Lake
from headwater.engine.tailing import News
from headwater.errors import InvalidInput, InvalidStatement, TopicNotFound
from headwater.serving import tailing
from headwater.topics import ingest


def write_in_process(_: Any, reader: Any, into: Any, entries: Any) -> Any:
    return ingest.write_entries(reader, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(tmp_path / "lake") as opened:
        opened._spark = type("NoSpark", (), {"session": None, "stop": lambda self: None})()
        opened.sql("CREATE TOPIC orders (n BIGINT NOT NULL, city STRING) PARTITIONED BY (bucket(2, n))")
        yield opened


def put(lake: Lake, *numbers: int, city: str = "x") -> None:
    lake.topic("orders").append([{"n": number, "city": city} for number in numbers])


def shown(lake: Lake, *args: Any, **kwargs: Any) -> list[int]:
    return [row["n"] for row in lake.tail("orders", *args, **kwargs, follow=False)]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_the_table_then_the_log_in_order(lake: Lake) -> None:
    put(lake, *range(300))
    lake.flush("orders")
    put(lake, *range(300, 450))
    lake.flush("orders")
    put(lake, *range(450, 500))
    put(lake, *range(500, 503))
    assert shown(lake, "earliest") == list(range(503))
    assert shown(lake, 299) == list(range(299, 503))
    assert shown(lake, "449", limit=2) == [449, 450]
    assert shown(lake, 10_000) == shown(lake, "latest") == []
    assert shown(lake, "1 hour") == list(range(503))
    assert shown(lake, where="n % 100 = 1 OR city IS NULL", start="earliest") == [1, 101, 201, 301, 401, 501]


def test_a_time_begins_at_the_first_record_that_came_since(lake: Lake) -> None:
    put(lake, 1, 2)
    lake.flush("orders")
    put(lake, 3)
    arrived = [row["_timestamp"] for row in lake.tail("orders", "earliest", follow=False)]
    time.sleep(0.002)
    put(lake, 4)
    assert shown(lake, arrived[0]) == [1, 2, 3, 4]
    assert shown(lake, arrived[2]) == [3, 4]
    after = next(row["_timestamp"] for row in lake.tail("orders", 3, follow=False))
    time.sleep(0.002)
    assert shown(lake, after.isoformat()) == [4]
    assert shown(lake, "0 s") == []


def test_rows_are_those_that_a_query_gives(lake: Lake) -> None:
    lake.sql("CREATE TOPIC kinds (u UUID, d DECIMAL(9,2), at TIMESTAMP, m MAP<STRING, INT>, t TIME, raw BINARY)")
    row = {"u": "6f1c7f4e-8d0f-4b57-9d4e-0a3c5c1f2b11", "d": "1.50", "at": "2026-01-01T00:00:00Z", "m": {"a": 1}}
    lake.topic("kinds").append([row, {}])
    queried = lake.sql("SELECT * FROM topics.kinds ORDER BY _offset", engine="duckdb").arrow()
    for where in (None, "TRUE"):
        (batch,) = lake.tail("kinds", "earliest", where=where, follow=False).batches()
        assert pa.Table.from_batches([batch]).equals(queried)
    lake.flush("kinds")
    (batch,) = lake.tail("kinds", "earliest", follow=False).batches()
    assert pa.Table.from_batches([batch]).equals(queried)


def test_chosen_columns_in_their_order(lake: Lake) -> None:
    put(lake, 7)
    for where in (None, "n = 7"):
        rows = list(lake.tail("orders", 0, columns=["city", "_offset", "n"], where=where, follow=False))
        assert rows == [{"city": "x", "_offset": 0, "n": 7}]
        assert list(rows[0]) == ["city", "_offset", "n"]
    lake.flush("orders")
    assert next(iter(lake.tail("orders", 0, columns=["CITY"], follow=False))).popitem()[1] == "x"


def test_mistakes_are_told_before_anything_comes(lake: Lake) -> None:
    with pytest.raises(TopicNotFound, match='topic "oders" does not exist') as wrong:
        lake.tail("oders")
    assert wrong.value.hint == 'Did you mean "orders"?'
    with pytest.raises(InvalidStatement, match='column "nope" does not exist'):
        lake.tail("orders", where="nope > 1")
    with pytest.raises(InvalidInput, match='column "nope" of topic "orders" does not exist'):
        lake.tail("orders", columns=["nope"])


def test_a_tail_waits_and_goes_on_across_commits(lake: Lake) -> None:
    put(lake, 0)
    found: list[int] = []
    tail = lake.tail("orders", "earliest")
    reader = threading.Thread(target=lambda: found.extend(row["n"] for row in tail))
    reader.start()
    for number in range(1, 30):
        put(lake, number)
        if number % 7 == 0:
            lake.flush("orders")
    wait_for(lambda: len(found) == 30)
    tail.close()
    reader.join(60)
    assert not reader.is_alive()
    assert found == list(range(30))


def test_who_appends_elsewhere_is_noticed(lake: Lake) -> None:
    tail = lake.tail("orders")
    with Lake.open(lake.paths.root) as other:
        threading.Timer(0.2, put, (other, 1, 2)).start()
        assert [row["n"] for row in islice(tail, 2)] == [1, 2]


def test_an_append_wakes_a_tail_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.engine.tailing.LOOK", 60.0)
    tail = lake.tail("orders")
    threading.Timer(0.3, put, (lake, 5)).start()
    started = time.monotonic()
    assert next(iter(tail))["n"] == 5
    assert time.monotonic() - started < 30


def test_a_tail_that_was_woken_rests_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, poll = [0], tailing.TopicTail.poll

    def counted(self: tailing.TopicTail) -> Any:
        looks[0] += 1
        return poll(self)

    monkeypatch.setattr(tailing.TopicTail, "poll", counted)
    found: list[Any] = []
    tail = lake.tail("orders")
    reader = threading.Thread(target=lambda: found.extend(tail))
    reader.start()
    put(lake, 1)
    wait_for(lambda: bool(found))
    before, began = looks[0], time.monotonic()
    time.sleep(0.5)
    tail.close()
    reader.join(60)
    assert looks[0] - before <= 10 * (time.monotonic() - began) + 5


def test_the_lake_s_end_is_every_tail_s(tmp_path: Path) -> None:
    lake = Lake.init(tmp_path / "lake")
    lake.sql("CREATE TOPIC orders (n BIGINT)")
    ended = threading.Event()
    reader = threading.Thread(target=lambda: (list(lake.tail("orders")), ended.set()))
    reader.start()
    wait_for(lambda: bool(lake.tailing.news._listeners))
    time.sleep(0.15)
    lake.close()
    reader.join(60)
    assert ended.is_set()


def test_marks_go_on_without_gap_or_repeat(lake: Lake) -> None:
    tail = lake.tail("orders")
    assert tail.at == "-1"
    put(lake, *range(200))
    lake.flush("orders")
    put(lake, *range(200, 400))
    found: list[int] = []
    for place in range(100):
        part = lake.tail("orders", after=tail.at, limit=300, follow=False, where="n % 2 = 0")
        batches = part.batches()
        rows = next(batches, None)
        batches.close()
        if rows is None:
            break
        found += rows["n"].to_pylist()
        tail = part
        if place == 0:
            lake.flush("orders")
    assert found == list(range(0, 400, 2))


def test_a_limit_leaves_the_mark_at_the_last_row_given(lake: Lake) -> None:
    put(lake, *range(10))
    tail = lake.tail("orders", "earliest", limit=3, follow=False)
    assert [row["n"] for row in tail] == [0, 1, 2]
    assert tail.at == "2"
    assert shown(lake, after=tail.at) == list(range(3, 10))


def test_pages_grow_but_never_beyond_their_bytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailing, "PAGE_BYTES", 40_000)
    put(lake, *range(2000), city="c" * 100)
    lake.flush("orders")
    put(lake, *range(2000, 4000), city="c" * 100)
    sizes = [batch.num_rows for batch in lake.tail("orders", "earliest", follow=False).batches()]
    assert sum(sizes) == 4000
    assert sizes[0] == tailing.FIRST_ROWS
    assert max(sizes) < 500


def test_a_topic_that_goes_ends_its_tail(lake: Lake) -> None:
    put(lake, 1)
    tail = lake.tail("orders", "earliest")
    rows = iter(tail)
    assert next(rows)["n"] == 1
    lake.sql("DROP TOPIC orders")
    with pytest.raises(TopicNotFound):
        next(rows)
    lake.sql("CREATE TOPIC orders (n BIGINT)")
    again = lake.tail("orders", "earliest")
    lake.sql("DROP TOPIC orders")
    lake.sql("CREATE TOPIC orders (n BIGINT)")
    with pytest.raises(TopicNotFound, match="does not exist any more"):
        next(iter(again))


def test_columns_that_are_added_are_in_later_rows(lake: Lake) -> None:
    put(lake, 1)
    rows = iter(lake.tail("orders", "earliest"))
    assert set(next(rows)) == {"n", "city", "_offset", "_timestamp"}
    lake.alter_topic("orders", "ADD COLUMN price DOUBLE")
    lake.topic("orders").append([{"n": 2, "price": 1.5}])
    assert next(rows)["price"] == 1.5


def test_news_reach_those_who_listen_and_no_others() -> None:
    news, heard = News(), list[str]()
    with news.listening("a", lambda: heard.append("a")), news.listening("a__dead", lambda: heard.append("dead")):
        news.tell("b")
        news.tell("a")
    news.tell("a")
    assert heard == ["a", "dead"]
    assert not news._listeners
