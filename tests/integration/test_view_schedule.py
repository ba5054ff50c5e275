"""Views that are refreshed by themselves, on a real lake with Spark: each change once, whoever looks, whoever fails."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from headwater.catalog.views import STATES, View
from headwater.engine import Lake
from headwater.errors import StaleCommit
from headwater.spark.gate_spark import isolated
from headwater.spark.session import SparkEngine
from headwater.state.leases import Leases, open_state
from headwater.types import TableName
from headwater.views import compact_policy
from headwater.views.loop import Pace, ViewLoop
from headwater.views.on_query import OnQuery
from headwater.views.schedule import Standing, plan_due

pytestmark = pytest.mark.spark

_numbers = itertools.count()
PACE = Pace(poll=0.2, retry=0.05, retry_max=0.4, grace=30)


class World:
    """A topic `t` with some views over it, and as many refreshers as one likes."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.upkeep = lake.view_room.upkeep
        self._names: dict[str, str] = {}
        self._made: list[tuple[str, str]] = []
        self._loops: list[ViewLoop] = []
        self._state = open_state(lake.paths.state, 10)
        self.sql("CREATE TOPIC {t} (n BIGINT NOT NULL, g INT)")
        self.add(range(5))

    def __getitem__(self, name: str) -> str:
        return self._names.setdefault(name, f"sched{next(_numbers)}_{name}")

    def sql(self, text: str) -> Any:
        for word in ("t", "u", "v1", "v2", "v3", "v4"):
            text = text.replace("{" + word + "}", self[word])
        return self.lake.sql(text)

    def add(self, numbers: range, topic: str = "t") -> None:
        """Rows that are committed to the table."""
        self.lake.topic(self[topic]).append([{"n": n, "g": n % 3} for n in numbers])
        self.lake.flush(self[topic])

    def create(self, name: str, query: str, options: str = "refresh = 'immediate'") -> None:
        self.sql(f"CREATE MATERIALIZED VIEW {{{name}}} WITH ({options}) AS {query}")
        self._made.append(("MATERIALIZED VIEW", name))

    def view(self, name: str) -> View:
        return self.lake.views.load(self[name])

    def snapshots(self, name: str) -> int:
        return len(self.view(name).table.metadata.snapshots)

    def folds(self, name: str) -> int:
        summaries = [each.summary for each in self.view(name).table.metadata.snapshots]
        return sum(summary is not None and summary.operation is Operation.REPLACE for summary in summaries)

    def leases(self, holder: str, ttl: float = 30) -> Leases:
        return Leases(self._state, holder, ttl)

    def loop(self, holder: str = "one", pace: Pace = PACE, **more: Any) -> ViewLoop:
        loop = ViewLoop(self.upkeep, lambda: self.lake.spark, self.leases(holder), pace, **more)
        self._loops.append(loop)
        return loop

    def standing(self, loop: ViewLoop, name: str) -> Standing | None:
        return loop._standings.get(loop._watch.look().watched[self[name]].at.id)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """What the view holds, by its own fold."""
        session = isolated(self.lake.spark)
        session.read.table(f"lake.views.{self[name]}").createOrReplaceTempView(STATES)
        return sorted(map(tuple, session.sql(self.view(name).read).collect()))

    def answers(self, query: str) -> list[tuple[Any, ...]]:
        """What the query says of the tables as they are."""
        session = isolated(self.lake.spark)
        for word in ("t", "u"):
            if self.lake.topics.exists(self[word]):
                session.read.table(f"lake.topics.{self[word]}").createOrReplaceTempView(word)
        return sorted(map(tuple, session.sql(query.format(t="t", u="u")).collect()))

    def close(self) -> None:
        for loop in self._loops:
            loop.stop()
        for kind, name in reversed(self._made):
            self.lake.sql(f"DROP {kind} IF EXISTS {self[name]}")
        for name in ("t", "u"):
            self.lake.sql(f"DROP TOPIC IF EXISTS {self[name]}")
        self._state.dispose()


@pytest.fixture
def world(lake: Lake) -> Iterator[World]:
    made = World(lake)
    yield made
    made.close()


def settle(loop: ViewLoop) -> list[str]:
    """Tick until nothing is due; the names of the views that were refreshed, without the test's numbers."""
    done: list[str] = []
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        begun = loop.tick()
        assert loop.wait_idle(120)
        if not begun:
            return done
        time.sleep(0.05)
        done += [name.split("_")[-1] for what, name in begun if what == "refresh"]
    raise AssertionError(f"it never comes to rest: {done} {loop._standings}")


def until(true: Callable[[], bool], timeout: float = 60) -> float:
    """Wait; the seconds that it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < timeout
        time.sleep(0.01)
    return time.monotonic() - began


SUMS = "SELECT g, count(*) AS c, sum(n) AS s FROM {t} GROUP BY g"
ROWS = "SELECT n FROM {t} WHERE g = 1"


# -- when -----------------------------------------------------------------------------------------------------------


def test_immediate_views_follow_and_others_do_not(world: World) -> None:
    world.create("v1", SUMS)
    world.create("v2", SUMS, "refresh = 'manual'")
    world.create("v3", SUMS, "refresh = 'on_query'")
    loop = world.loop()
    assert settle(loop) == []
    world.add(range(5, 10))
    assert settle(loop) == ["v1"]
    assert [standing.error for standing in loop._standings.values()] == [None]
    assert world.rows("v1") == world.answers(SUMS)
    assert settle(loop) == []
    assert [world.snapshots(name) for name in ("v1", "v2", "v3")] == [2, 1, 1]


def test_periodic_views_wait_for_their_interval(world: World) -> None:
    world.create("v1", SUMS, "interval = '60 seconds'")
    clock = [time.time()]
    loop = world.loop(now=lambda: clock[0])
    world.add(range(5, 10))
    assert settle(loop) == []
    clock[0] += 61
    assert settle(loop) == ["v1"]
    world.add(range(10, 12))
    clock[0] += 30
    assert settle(loop) == []
    clock[0] += 31
    assert settle(loop) == ["v1"]
    assert world.rows("v1") == world.answers(SUMS)


def test_an_immediate_view_follows_an_ingest_within_a_poll(spark: Any, lake: Lake, world: World) -> None:
    world.sql("CREATE TOPIC {u} (n BIGINT) WITH (batch_size = 1, commit_interval = '100 ms')")
    world.create("v1", "SELECT count(*) AS c FROM {u}")
    with Lake.open(lake.paths.root, ingest_poll=0.05, refresh_poll=30) as serving:
        serving._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        serving.start_background()
        serving.topic(world["u"]).append([{"n": 1}])  # no poll: the commit itself wakes the refresher
        until(lambda: world.snapshots("v1") == 2, 20)
        assert world.rows("v1") == [(1,)]


# -- once -----------------------------------------------------------------------------------------------------------


def test_two_refreshers_refresh_each_change_once(world: World) -> None:
    world.create("v1", SUMS)
    world.create("v2", ROWS)
    one, two = world.loop("one"), world.loop("two")
    for round in range(4):
        world.add(range(5 + round * 5, 10 + round * 5))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(settle, (one, two)))
        settle(one)  # what one of them left to the other, who had it already
        assert world.snapshots("v1") == world.snapshots("v2") == round + 2
    assert world.rows("v1") == world.answers(SUMS)
    assert world.rows("v2") == world.answers(ROWS)


def test_a_view_that_another_process_works_on_is_left_to_it(world: World) -> None:
    world.create("v1", SUMS)
    world.create("v2", ROWS)
    loop, other = world.loop(), world.leases("other")
    assert other.acquire(f"view:{world['v1']}")
    world.add(range(5, 10))
    loop.tick()
    assert loop.wait_idle(60)
    assert [world.snapshots(name) for name in ("v1", "v2")] == [1, 2]
    other.release(f"view:{world['v1']}")
    assert settle(loop) == ["v1"]


def test_a_refresh_at_older_snapshots_does_not_take_a_view_back(world: World) -> None:
    """Two processes looked at different times; the one with the older look comes last."""
    world.create("v1", SUMS)
    late, quick = world.loop("late"), world.loop("quick")
    world.add(range(5, 10))
    old = late._watch.look()
    world.add(range(10, 15))
    assert settle(quick) == ["v1"]
    late._begin(late._refreshes(old, set()))
    assert late.wait_idle(60)
    assert world.snapshots("v1") == 2
    assert world.rows("v1") == world.answers(SUMS)
    assert not late._standings  # nothing failed


# -- views over views -----------------------------------------------------------------------------------------------


def consumed(world: World, name: str, snapshot: Any, below: str) -> int | None:
    """The snapshot of `t` that a snapshot of a view stands for by way of the view below it."""
    view, under = world.view(name), world.view(below)
    at = view.position_at(snapshot).snapshots[TableName.view(world[below])]
    found = under.table.metadata.snapshot_by_id(at)
    assert found is not None
    return under.position_at(found).snapshots[TableName.topic(world["t"])]


JOINED = "SELECT a.g, a.c, b.s FROM {v1} a JOIN {v2} b ON a.g = b.g"


def test_a_diamond_sees_both_sides_at_the_same_moment(world: World) -> None:
    world.create("v1", "SELECT g, count(*) AS c FROM {t} GROUP BY g", "interval = '1 hour'")
    world.create("v2", "SELECT g, sum(n) AS s FROM {t} GROUP BY g", "refresh = 'on_query'")
    world.create("v3", JOINED)
    one, two = world.loop("one"), world.loop("two")
    stop = threading.Event()

    def disturb() -> None:
        for number in itertools.count(2):
            if stop.is_set():
                return
            world.add(range(number * 5, number * 5 + 5))
            world.upkeep.refresh(world["v2" if number % 2 else "v1"])

    with ThreadPoolExecutor(3) as threads:
        disturbing = threads.submit(disturb)
        looping = [threads.submit(run_for, loop, 6.0) for loop in (one, two)]
        for each in looping:
            each.result()
        stop.set()
        disturbing.result()
    settle(one)
    snapshots = world.view("v3").table.metadata.snapshots
    assert len(snapshots) >= 3
    for snapshot in snapshots:
        assert consumed(world, "v3", snapshot, "v1") == consumed(world, "v3", snapshot, "v2")
    assert world.rows("v3") == world.answers(SUMS)


def test_a_side_of_a_diamond_that_moved_on_ends_the_round(world: World) -> None:
    world.create("v1", "SELECT g, count(*) AS c FROM {t} GROUP BY g")
    world.create("v2", "SELECT g, sum(n) AS s FROM {t} GROUP BY g")
    world.create("v3", JOINED)
    loop = world.loop()
    world.add(range(5, 10))
    look = loop._watch.look()
    due = plan_due(look.scene({}), set(), time.time())
    assert [each.name for each in due] == [world["v1"], world["v2"], world["v3"]]
    round = look.round(due)
    for each in due[:2]:
        world.upkeep.refresh_in(round, each.name, trigger="immediate")
    world.add(range(10, 15))
    world.upkeep.refresh(world["v2"])
    with pytest.raises(StaleCommit, match="came too late"):
        world.upkeep.refresh_in(round, world["v3"], trigger="immediate")
    assert world.snapshots("v3") == 1
    assert set(settle(loop)) == {"v1", "v3"}
    assert world.rows("v3") == world.answers(SUMS)


def run_for(loop: ViewLoop, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loop.tick()
        time.sleep(0.05)
    assert loop.wait_idle(60)


def test_a_view_by_hand_is_a_source_like_any_other(world: World) -> None:
    world.create("v1", SUMS, "refresh = 'manual'")
    world.create("v2", "SELECT count(*) AS groups, sum(c) AS rows FROM {v1}")
    loop = world.loop()
    world.add(range(5, 10))
    assert settle(loop) == []
    world.sql("REFRESH MATERIALIZED VIEW {v1}")
    assert settle(loop) == ["v2"]
    assert world.rows("v2") == [(3, 10)]


# -- failures -------------------------------------------------------------------------------------------------------

FRAGILE = "SELECT g, sum(100 DIV (n - 13)) AS s FROM {t} GROUP BY g"


def test_a_failing_view_does_not_hold_up_others_and_recovers(world: World) -> None:
    world.create("v1", FRAGILE)
    world.create("v2", SUMS)
    world.create("v3", "SELECT count(*) AS c FROM {v1}")
    clock = [time.time()]
    loop = world.loop(pace=Pace(retry=100), now=lambda: clock[0])
    world.add(range(10, 15))
    loop.tick()
    assert loop.wait_idle(60)
    assert world.rows("v2") == world.answers(SUMS)
    assert [world.snapshots(name) for name in ("v1", "v2", "v3")] == [1, 2, 1]
    failing = world.standing(loop, "v1")
    assert (failing.failures, "ivision by zero" in (failing.error or "")) == (1, True)
    assert world.standing(loop, "v3") is None  # it waits, it does not fail
    assert loop.tick() == []
    world.sql("DELETE FROM {t} WHERE n = 13")
    clock[0] += 100
    assert set(settle(loop)) == {"v1", "v2", "v3"}
    assert world.rows("v1") == world.answers(FRAGILE)
    assert world.rows("v3") == [(3,)]
    assert world.standing(loop, "v1").failures == 0


def test_failures_are_told_and_wait_longer_each_time(world: World) -> None:
    world.create("v1", FRAGILE)
    clock = [time.time()]
    loop = world.loop(pace=Pace(retry=10, retry_max=60), now=lambda: clock[0])
    world.add(range(10, 15))
    waits = []
    for failures in (1, 2, 3, 4):
        assert settle(loop) == ["v1"]
        standing = world.standing(loop, "v1")
        assert standing.failures == failures
        waits.append(standing.retry_at - clock[0])
        clock[0] = standing.retry_at - 0.1
        assert settle(loop) == []
        clock[0] += 0.2
    for wait, longest in zip(waits, (10, 20, 40, 60), strict=True):
        assert longest / 2 <= wait <= longest
    attempt = world.lake.view_room.history.newest()[world["v1"]]
    assert (attempt.outcome, attempt.trigger) == ("failed", "immediate")
    assert "ivision by zero" in (attempt.error or "")


def test_a_broken_view_is_tried_again_when_its_source_is_back(world: World) -> None:
    world.sql("CREATE TOPIC {u} (n BIGINT, g INT)")
    world.create("v1", "SELECT sum(n) AS s FROM {u}")
    loop = world.loop(pace=Pace(retry=1000, retry_max=1000))
    world.lake.topics.drop(world["u"])  # behind the back of DROP TOPIC, which would refuse
    assert settle(loop) == ["v1"]
    standing = world.standing(loop, "v1")
    assert "does not exist any more" in (standing.error or "")
    assert settle(loop) == []
    world.sql("CREATE TOPIC {u} (other BIGINT)")
    assert settle(loop) == ["v1"]
    assert 'no column "n"' in (world.standing(loop, "v1").error or "")
    world.lake.topics.drop(world["u"])
    world.sql("CREATE TOPIC {u} (n BIGINT, g INT)")
    world.add(range(5), "u")
    assert settle(loop) == ["v1"]
    assert world.rows("v1") == [(10,)]
    assert world.standing(loop, "v1").failures == 0


def test_damaged_views_and_topics_hold_up_nobody_else(world: World) -> None:
    world.sql("CREATE TOPIC {u} (n BIGINT, g INT)")
    world.create("v1", SUMS)
    world.create("v2", SUMS)
    world.create("v3", "SELECT count(*) AS c FROM {u}")
    good = dict(world.view("v1").table.metadata.properties)
    damage(world, world.view("v1").table_name, {"headwater.view.position": "{"})
    damage(world, TableName.topic(world["u"]), {"headwater.version": "999"})
    loop = world.loop()
    world.add(range(5, 10))
    assert world["v1"] not in loop._watch.look().views
    begun = loop.tick()
    assert loop.wait_idle(60)
    assert set(begun) == {("refresh", world["v2"]), ("refresh", world["v3"])}
    assert world.rows("v2") == world.answers(SUMS)
    assert "newer Headwater" in (world.standing(loop, "v3").error or "")
    damage(world, world.view("v2").table_name.view(world["v1"]), good)
    damage(world, TableName.topic(world["u"]), {"headwater.version": "1"})
    assert set(settle(loop)) == {"v1"}


def damage(world: World, table: TableName, properties: dict[str, str]) -> None:
    with world.lake.views.tables.load_for_commit(table).transaction() as transaction:
        transaction.set_properties(properties)


def test_a_dropped_view_vanishes(world: World) -> None:
    world.create("v1", FRAGILE)
    loop = world.loop()
    world.add(range(10, 15))
    assert settle_failing(loop)
    assert loop._standings
    world.sql("DROP MATERIALIZED VIEW {v1}")
    assert settle(loop) == []
    assert not loop._standings


def settle_failing(loop: ViewLoop) -> bool:
    begun = loop.tick()
    return loop.wait_idle(60) and bool(begun)


SLOW = "SELECT sum(a.n * b.n % 7) AS s FROM {t} a JOIN {t} b ON a.n + b.n > 0"


def test_a_slow_view_does_not_hold_up_others_and_is_cancelled_by_a_stop(world: World) -> None:
    world.create("v1", SLOW)
    world.create("v2", SUMS)
    loop = world.loop(pace=Pace(at_once=2, grace=0.2))
    world.add(range(5, 60_000))
    loop.tick()
    until(lambda: world.snapshots("v2") == 2)
    assert ("refresh", world["v1"]) in loop._jobs
    files = sorted(Path(world.view("v1").table.location().removeprefix("file://")).rglob("*.parquet"))
    began = time.monotonic()
    loop.stop()
    assert time.monotonic() - began < 40
    assert loop.wait_idle(0)
    assert world.snapshots("v1") == 1
    assert sorted(Path(world.view("v1").table.location().removeprefix("file://")).rglob("*.parquet")) == files
    assert world.leases("next").acquire(f"view:{world['v1']}")
    assert world.standing(loop, "v1") is None  # that was no failure of the view


# -- care -----------------------------------------------------------------------------------------------------------


def test_views_are_compacted_and_verified_in_the_background(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_policy, "MANY_FILES", 3)
    world.create("v1", SUMS, "refresh = 'immediate', verify_every = 2")
    world.create("v2", SUMS, "refresh = 'immediate', compact = 'off'")
    verified: list[tuple[str, int | None, str]] = []
    loop = world.loop(verified=lambda *found: verified.append(found))
    for number in range(1, 5):
        world.add(range(number * 5, number * 5 + 5))
        settle(loop)
    assert (world.folds("v1"), world.folds("v2")) == (1, 0)
    assert world.rows("v1") == world.answers(SUMS)
    assert [name for name, _, _ in verified] == [world["v1"]] * len(verified)
    assert {outcome for _, _, outcome in verified} == {"equal"}
    assert 2 <= len(verified) <= 3


def test_a_view_that_differs_from_its_query_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.create("v1", SUMS, "refresh = 'immediate', verify_every = 1")
    verified: list[tuple[str, int | None, str]] = []
    loop = world.loop(verified=lambda *found: verified.append(found))
    settle(loop)
    lie(world, "v1")
    world.add(range(5, 10))
    settle(loop)
    assert verified[-1][2] == "different"
    assert "view differs from its query" in caplog.text


def lie(world: World, name: str) -> None:
    """Let the view believe that it has consumed what it has not."""
    world.add(range(100, 105))
    view, topic = world.view(name), world.lake.topics.load(world["t"])
    text = view.position.to_json().replace(str(view.position.snapshots[topic.table_name]), str(topic.snapshot_id))
    damage(world, view.table_name, {"headwater.view.position": text})


# -- on query -------------------------------------------------------------------------------------------------------


def on_query(world: World, holder: str = "queries", wait: float = 30) -> OnQuery:
    return OnQuery(world.upkeep, world.lake.log, world.leases(holder), wait=wait)


def test_a_query_finds_everything_that_was_acknowledged_before_it(world: World) -> None:
    world.create("v1", SUMS, "refresh = 'on_query'")
    ask = on_query(world)
    ask.refresh_if_stale(world["v1"])
    assert world.snapshots("v1") == 1  # nothing was missing
    world.lake.topic(world["t"]).append([{"n": 7, "g": 1}])  # in the log only
    ask.refresh_if_stale(world["v1"])
    assert world.snapshots("v1") == 2
    assert world.rows("v1") == world.answers(SUMS)
    assert (1, 3, 12) in world.rows("v1")


def test_select_and_explain(world: World) -> None:
    """Through the engine: SELECT refreshes first, EXPLAIN reads nothing."""
    world.create("v1", SUMS, "refresh = 'on_query'")
    world.lake.topic(world["t"]).append([{"n": 7, "g": 1}])
    world.sql("EXPLAIN SELECT * FROM {v1}").rows()
    assert world.snapshots("v1") == 1
    assert world.sql("SELECT s FROM {v1} WHERE g = 1").rows() == [{"s": 12}]
    assert world.snapshots("v1") == 2


def test_a_view_may_be_as_stale_as_it_says(world: World) -> None:
    world.create("v1", SUMS, "refresh = 'on_query', max_staleness = '1 hour'")
    world.create("v2", "SELECT sum(c) AS c FROM {v1}", "refresh = 'on_query', max_staleness = '1 hour'")
    clock = [time.time()]
    ask = OnQuery(world.upkeep, world.lake.log, world.leases("queries"), wait=30, now=lambda: clock[0])
    world.add(range(5, 10))
    clock[0] = time.time() + 3590
    ask.refresh_if_stale(world["v1"])
    assert world.snapshots("v1") == 1
    world.sql("REFRESH MATERIALIZED VIEW {v1}")
    ask.refresh_if_stale(world["v2"])
    assert world.snapshots("v2") == 1
    clock[0] += 20  # v2 lacks records of an hour ago, although v1 has them since a moment
    ask.refresh_if_stale(world["v1"])
    assert world.snapshots("v1") == 2
    ask.refresh_if_stale(world["v2"])
    assert world.rows("v2") == [(10,)]


def test_queries_at_once_share_one_refresh(world: World) -> None:
    world.create("v1", SUMS, "refresh = 'on_query'")
    ask = on_query(world)
    world.add(range(5, 10))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask.refresh_if_stale, [world["v1"]] * 8))
    assert world.snapshots("v1") == 2
    attempts = world.lake.view_room.history.of(world.view("v1"), 10)
    assert [attempt.trigger for attempt in attempts] == ["query", "create"]


def test_queries_at_once_share_one_failure(world: World) -> None:
    world.create("v1", FRAGILE, "refresh = 'on_query'")
    ask = on_query(world)
    world.add(range(10, 15))
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask.refresh_if_stale, world["v1"]) for _ in range(4)]
        assert all("ivision by zero" in str(each.exception()) for each in asked)
    attempts = world.lake.view_room.history.of(world.view("v1"), 10)
    assert 1 <= sum(attempt.outcome == "failed" for attempt in attempts) <= 4
    assert not ask._flights


def test_a_refresh_of_another_process_is_waited_for(world: World) -> None:
    world.create("v1", SUMS, "refresh = 'on_query'")
    world.add(range(5, 10))
    other = world.leases("other")
    assert other.acquire(f"view:{world['v1']}")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(on_query(world).refresh_if_stale, world["v1"])
        time.sleep(0.3)
        assert not asked.done()
        world.upkeep.refresh(world["v1"])
        asked.result(60)
    assert world.snapshots("v1") == 2  # theirs
    world.add(range(10, 15))
    on_query(world, wait=0.2).refresh_if_stale(world["v1"])  # they take too long
    assert world.rows("v1") == world.answers(SUMS)
