"""Tails on a whole lake: while Spark commits, compacts and deletes; of views of every kind; on the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import SnapshotGone
from headwater.storage.maintenance.expire import Keep

pytestmark = pytest.mark.spark

COMMAND = (sys.executable, "-c", "from headwater.cli.main import run; run()")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or "CACHE" in name}


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Reader(threading.Thread):
    """A thread that reads a tail until it is closed."""

    def __init__(self, tail: Any) -> None:
        super().__init__(daemon=True)
        self.tail = tail
        self.rows: list[dict[str, Any]] = []
        self.start()

    def run(self) -> None:
        for row in self.tail:
            self.rows.append(row)

    def end(self) -> list[dict[str, Any]]:
        self.tail.close()
        self.join(60)
        assert not self.is_alive()
        return self.rows


def test_a_tail_through_commits_compaction_and_deletion(lake: Lake, remote: RemoteLake) -> None:
    lake.sql("CREATE TOPIC tailed (n BIGINT NOT NULL, word STRING) PARTITIONED BY (bucket(2, n))")
    topic, chance = lake.topic("tailed"), random.Random(6)
    readers = [
        Reader(lake.tail("tailed")),
        Reader(remote.tail("tailed", columns=["n", "_offset"])),
        Reader(lake.tail("tailed", where="n % 5 = 0 AND upper(word) = 'W'")),
    ]
    count = 0
    for round_ in range(3):
        for _ in range(chance.randrange(3, 8)):
            more = chance.randrange(1, 40)
            topic.append([{"n": count + place, "word": "w"} for place in range(more)])
            count += more
        if round_ != 2:
            lake.flush("tailed")
        if round_ == 1:
            topic.optimize(full=True)
    wait_for(lambda: len(readers[0].rows) == len(readers[1].rows) == count)
    wait_for(lambda: len(readers[2].rows) == len(range(0, count, 5)))
    for reader, step in zip(readers, (1, 1, 5), strict=True):
        assert [row["n"] for row in reader.end()] == list(range(0, count, step))
    late = lake.tail("tailed", 0).batches()
    shown = next(late)["n"].to_pylist()
    first = len(shown)
    assert shown == list(range(first))
    topic.delete(f"n >= {first} AND n % 2 = 1")  # what was not shown yet is not shown
    while shown[-1] < count - 2:
        shown += next(late)["n"].to_pylist()
    assert shown == [*range(first), *(n for n in range(first, count) if n % 2 == 0)]
    late.close()


def test_a_condition_that_only_spark_can_judge(lake: Lake) -> None:
    lake.sql("CREATE TOPIC judged (n BIGINT NOT NULL, word STRING)")
    lake.topic("judged").append([{"n": n, "word": "x" * n} for n in range(6)])
    where = "soundex(word) = soundex('x') AND n > 2"
    plan = lake.sql(f"EXPLAIN SELECT * FROM judged WHERE {where}").info["plan"]
    assert plan["engine"] == "spark"  # or this tests nothing
    assert [row["n"] for row in lake.tail("judged", "earliest", where=where, follow=False)] == [3, 4, 5]


SALES = "CREATE TOPIC {t} (id BIGINT NOT NULL, city STRING, amount INT)"


def sell(lake: Lake, topic: str, *rows: tuple[int, str, int]) -> None:
    lake.topic(topic).append([{"id": id_, "city": city, "amount": amount} for id_, city, amount in rows])
    lake.flush(topic)


def news(tail: Any) -> list[tuple[Any, ...]]:
    """What a tail gives now."""
    return [tuple(row.values()) for row in tail]


def test_the_changes_of_views(lake: Lake, remote: RemoteLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.sql(SALES.format(t="sold"))
    sell(lake, "sold", (1, "rome", 5), (2, "oslo", 7), (3, "rome", 1))
    lake.create_view("dear", "SELECT id, amount FROM sold WHERE amount >= 5", refresh="manual")
    lake.create_view("per_city", "SELECT city, sum(amount) AS total FROM sold GROUP BY city", refresh="manual")
    lake.create_view("total", "SELECT count(*) AS n FROM sold", refresh="manual")
    lake.create_view("top", "SELECT id, amount FROM sold ORDER BY amount DESC LIMIT 2", refresh="manual")
    names = ("dear", "per_city", "total", "top")
    start = {name: lake.views.load(name).snapshot_id for name in names}
    live = Reader(remote.tail("per_city"))

    def refreshed() -> dict[str, list[tuple[Any, ...]]]:
        """What the next refresh of each view changes, told by a tail that begins before it."""
        tails = {name: lake.tail(name, follow=False) for name in names}
        for name in names:
            lake.view(name).refresh()
        return {name: news(tail) for name, tail in tails.items()}

    sell(lake, "sold", (4, "rome", 9), (5, "bonn", 2))
    first = refreshed()
    assert first["dear"] == [("+", 4, 9)]
    assert sorted(first["per_city"]) == [("~", "bonn", 2), ("~", "rome", 15)]
    assert first["total"] == [("~", 5)]
    assert first["top"] == [("-", 1, 5), ("+", 4, 9)]

    lake.topic("sold").delete("id IN (2, 4)")
    second = refreshed()
    assert second["dear"] == [("-", 2, 7), ("-", 4, 9)]
    assert second["per_city"] == [("-", "oslo", 7), ("~", "rome", 6)]
    assert second["total"] == [("~", 3)]
    assert second["top"] == [("-", 2, 7), ("-", 4, 9), ("+", 1, 5), ("+", 5, 2)]

    for name in names:
        if name == "per_city":
            lake.view(name).compact()  # changes nothing
        assert news(lake.tail(name, start[name], follow=False)) == [*first[name], *second[name]]
    wanted = {"where": "total > 5", "columns": ["total"]}
    assert news(remote.tail("per_city", start["per_city"], follow=False, **wanted)) == [
        *(("~", total) for op, city, total in first["per_city"] if total > 5),
        ("-", 7),
        ("~", 6),
    ]
    wait_for(lambda: len(live.rows) == 4)
    assert Counter(tuple(row.values()) for row in live.end()) == Counter([*first["per_city"], *second["per_city"]])

    # from any mark on, exactly the rest
    everything = [*first["per_city"], *second["per_city"]]
    tail = lake.tail("per_city", start["per_city"], follow=False, limit=1)
    for place in range(len(everything)):
        assert news(tail) == [everything[place]]
        assert news(remote.tail("per_city", after=tail.at, follow=False)) == everything[place + 1 :]
        tail = lake.tail("per_city", after=tail.at, follow=False, limit=1)

    # from the earliest on: first what the view held then, and a mark among its rows holds when older states are gone
    whole = [("~", "oslo", 7), ("~", "rome", 6), *everything]
    assert news(lake.tail("per_city", "earliest", follow=False)) == whole
    tail = lake.tail("per_city", "earliest", follow=False, limit=1)
    assert news(tail) == whole[:1]
    assert news(remote.tail("per_city", after=tail.at, follow=False)) == whole[1:]
    monkeypatch.setattr(lake.care.steps, "keep", lambda _: Keep(0, 3))
    monkeypatch.setattr(lake.care, "now", lambda: time.time() + 10 * 86_400)
    assert lake.maintain("per_city", only=["expire"])[0]["numbers"]["snapshots"] == 1
    left = [("~", "bonn", 2), ("~", "oslo", 7), ("~", "rome", 15), *second["per_city"]]
    assert news(lake.tail("per_city", "earliest", follow=False)) == left
    tail = lake.tail("per_city", "earliest", follow=False, limit=2)
    assert news(tail) == left[:2]
    assert news(remote.tail("per_city", after=tail.at, follow=False)) == left[2:]
    with pytest.raises(SnapshotGone):
        lake.tail("per_city", start["per_city"], follow=False)
    with pytest.raises(SnapshotGone, match='snapshot 17 of materialized view "dear" does not exist'):
        lake.tail("dear", 17)
    followed = iter(lake.tail("dear"))
    lake.create_view("dear", "SELECT city FROM sold", refresh="manual", or_replace=True)
    with pytest.raises(SnapshotGone, match='materialized view "dear" was replaced while it was followed'):
        next(followed)
    assert sorted(news(lake.tail("dear", "earliest", follow=False))) == [("+", "bonn"), ("+", "rome"), ("+", "rome")]


def test_parts_of_a_view_say_what_the_whole_says(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways that read less give the rows that comparing two whole readings gives."""
    lake.sql(SALES.format(t="compared"))
    chance, counter = random.Random(3), iter(range(1000))
    views = {
        "c_rows": "SELECT city, amount FROM compared WHERE amount > 3",
        "c_states": "SELECT city, min(amount) AS least, count(*) AS n FROM compared GROUP BY city HAVING count(*) > 1",
        "c_hidden": "SELECT sum(amount) AS total FROM compared GROUP BY city",
    }

    def more() -> None:
        cities = [(next(counter), chance.choice("abcd"), chance.randrange(8)) for _ in range(6)]
        sell(lake, "compared", *cities)

    more()
    for name, query in views.items():
        lake.create_view(name, query, refresh="manual")
    start = {name: lake.views.load(name).snapshot_id for name in views}
    for step in range(2):
        if step == 1:
            lake.topic("compared").delete("amount % 3 = 0")
        more()
        for name in views:
            lake.view(name).refresh()
    ran: list[tuple[bool, str]] = []
    run = lake._queries.run

    def watched(query: Any, cancel: Any = None, given: Any = None) -> Any:
        result = run(query, cancel, given)
        ran.append((given is not None and bool(given.parts), result.info["plan"]["engine"]))
        return result

    monkeypatch.setattr(lake._queries, "run", watched)
    quick = {name: news(lake.tail(name, at, follow=False)) for name, at in start.items()}
    assert ran == [(True, "duckdb")] * 3 * len(views)  # two steps of each, and the look at the condition
    monkeypatch.setattr("headwater.serving.tailing_views.ViewTail._cut_down", lambda *_: None)
    whole = {name: news(lake.tail(name, at, follow=False)) for name, at in start.items()}
    assert quick == whole
    assert all(quick.values())


def start_tail(lake: Lake, *arguments: str) -> subprocess.Popen[bytes]:
    command = (*COMMAND, "-C", str(lake.paths.root), "tail", *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN)


def test_the_command_line(lake: Lake, url: str) -> None:
    lake.sql("CREATE TOPIC spoken (n BIGINT, word STRING)")
    lake.topic("spoken").append([{"n": 1, "word": "one"}, {"n": 2, "word": None}])
    ways = (("-C", str(lake.paths.root)), ("--url", url))
    for way in ways:
        command = (*COMMAND, *way, "tail", "spoken", "--from", "earliest", "--no-follow", "--columns", "n,word")
        table = subprocess.run(command, capture_output=True, env=CLEAN, text=True, check=True)
        assert table.stdout.splitlines() == [" n │ word", "───┼──────", " 1 │ one", " 2 │ NULL"]
        lines = subprocess.run((*command, "--json", "--limit", "1"), capture_output=True, env=CLEAN, check=True)
        assert lines.stdout == b'{"n":1,"word":"one"}\n'
    wrong = subprocess.run((*COMMAND, *ways[0], "tail", "spokn"), capture_output=True, env=CLEAN, text=True)
    assert (wrong.returncode, 'hint: Did you mean "spoken"?' in wrong.stderr) == (1, True)

    live, piped = start_tail(lake, "spoken", "--json", "--from", "0"), start_tail(lake, "spoken", "--json")
    assert live.stdout is not None
    assert piped.stdout is not None
    assert [json.loads(live.stdout.readline())["n"] for _ in range(2)] == [1, 2]
    lake.topic("spoken").append([{"n": 3}])
    assert json.loads(live.stdout.readline())["n"] == 3
    live.send_signal(signal.SIGINT)
    assert live.wait(120) == 0
    assert live.stderr is not None
    assert live.stderr.read() == b""
    piped.stdout.close()  # nobody reads any more, and nothing is written either
    assert piped.wait(120) == 0
