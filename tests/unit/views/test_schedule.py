"""What is due when: a world of views and topics with a clock that only the test moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.types import TableName, ViewOptions
from headwater.views.schedule import At, Due, Scene, Standing, Watched, plan_due, retry_after


def table(name: str) -> TableName:
    return TableName.view(name) if name.startswith("v") else TableName.topic(name)


class World:
    """Topics are `t…`, views `v…`; everything is consumed until `move` says otherwise."""

    def __init__(self) -> None:
        self.views: dict[str, Watched] = {}
        self.tables: dict[TableName, At] = {}
        self.standings: dict[str, Standing] = {}
        self.busy: set[str] = set()

    def topic(self, name: str) -> None:
        self.tables[table(name)] = At(f"id of {name}", 1)

    def view(self, name: str, *sources: str, mode: Any = "immediate", **more: Any) -> None:
        for each in sources:
            if table(each) not in self.tables:
                self.topic(each)
        options = ViewOptions(mode=mode, interval=more.pop("interval", 60.0))
        at = self.tables[table(name)] = At(f"id of {name}", 1)
        position = {table(each): (f"id of {each}", 1) for each in sources}
        self.views[name] = Watched(name, options, at, position, **more)

    def move(self, name: str, **how: Any) -> None:
        at = self.tables[table(name)]
        self.tables[table(name)] = replace(at, **(how or {"snapshot": (at.snapshot or 0) + 1}))

    def stand(self, name: str, standing: Standing, *, shaped: bool = True) -> None:
        shape = self.scene().shape(name) if shaped else standing.shape
        self.standings[self.views[name].at.id] = replace(standing, shape=shape)

    def scene(self) -> Scene:
        return Scene(self.views, self.tables, self.standings)

    def plan(self, now: float = 1000.0) -> tuple[Due, ...]:
        return plan_due(self.scene(), self.busy, now)

    def names(self, now: float = 1000.0) -> list[str]:
        return [due.name for due in self.plan(now)]


def world(*views: tuple[Any, ...], **kwargs: Any) -> World:
    found = World()
    for name, *sources in views:
        found.view(name, *sources, **kwargs)
    return found


def test_nothing_is_due_while_nothing_moves() -> None:
    assert world(("v", "t")).plan() == ()
    assert world(("v", "t"), mode="periodic").plan() == ()


def test_an_immediate_view_follows_its_source() -> None:
    found = world(("v", "t"), ("w", "u"))
    found.move("t")
    assert found.plan() == (Due("v", '"t" moved', "immediate"),)


def test_a_source_made_anew_has_moved_and_so_has_one_that_is_gone() -> None:
    found = world(("v", "t"))
    found.move("t", id="another", snapshot=1)
    assert found.names() == ["v"]
    del found.tables[table("t")]
    assert found.plan()[0].reason == '"t" is gone'


def test_a_periodic_view_waits_for_its_interval_from_the_start_of_the_last_refresh() -> None:
    found = world(("v", "t"), mode="periodic")
    found.move("t")
    found.stand("v", Standing(started_at=1000, ended_at=1050))
    assert found.names(1059.9) == []
    assert found.plan(1060) == (Due("v", '"t" moved', "schedule"),)


def test_a_refresh_by_another_process_counts_too() -> None:
    found = world(("v", "t"), mode="periodic", refreshed_at=1030.0)
    found.move("t")
    assert found.names(1089) == []
    assert found.names(1090) == ["v"]
    found.stand("v", Standing(started_at=1020, ended_at=1031))  # ours after all: its start is known
    assert found.names(1080) == ["v"]


def test_a_view_that_time_changes_needs_no_move() -> None:
    found = world(("v", "t"), mode="periodic", clock=True)
    found.stand("v", Standing(started_at=1000, ended_at=1000))
    assert found.names(1059) == []
    assert found.plan(1060)[0].reason == "time has passed"
    assert world(("v", "t"), clock=True).names() == []  # immediate: on commits only


def test_manual_and_on_query_views_are_never_due() -> None:
    for mode in ("manual", "on_query", "continuous"):
        found = world(("v", "t"), mode=mode)
        found.move("t")
        assert found.names(1e9) == []


def test_a_view_is_refreshed_with_what_it_stands_on_and_after_it() -> None:
    found = World()
    found.view("v9", "t", mode="periodic")
    found.view("v5", "t", mode="on_query")
    found.view("v1", "v9", "v5")
    found.stand("v9", Standing(started_at=999, ended_at=999))
    found.move("t")
    first, second, last = found.plan(1000)
    assert {first.name, second.name} == {"v5", "v9"}
    assert first.reason == second.reason == '"v1" reads it'
    assert (last.name, last.reason) == ("v1", '"t" moved')
    assert last.after == last.below == {"v5", "v9"}


def test_what_has_not_moved_below_is_left_alone_but_known() -> None:
    found = world(("v1", "t"), ("v2", "u"), ("v3", "v1", "v2"))
    found.move("t")
    due = {each.name: each for each in found.plan()}
    assert due.keys() == {"v1", "v3"}
    assert due["v3"].after == {"v1"}
    assert due["v3"].below == {"v1", "v2"}


def test_a_diamond_is_one_round_with_the_top_at_its_end() -> None:
    found = world(("v1", "t"), ("v2", "t"), ("v3", "v2", "v1"), ("v4", "v3"))
    found.move("t")
    assert found.names() == ["v1", "v2", "v3", "v4"]


def test_a_view_by_hand_is_not_touched_from_above() -> None:
    found = World()
    found.view("v1", "t", mode="manual")
    found.view("v2", "v1")
    found.move("t")
    assert found.names() == []
    found.move("v1")  # somebody refreshed it
    found.views["v1"] = replace(found.views["v1"], at=found.tables[table("v1")])
    assert found.plan() == (Due("v2", '"v1" moved', "immediate"),)


def test_work_under_way_is_not_begun_again_nor_what_builds_on_it() -> None:
    found = world(("v1", "t"), ("v2", "v1"), ("v3", "t"))
    found.move("t")
    found.busy = {"v1"}
    assert found.names() == ["v3"]
    found.busy = {"v2"}
    assert found.names() == ["v1", "v3"]


def test_a_failing_view_waits_and_holds_up_only_what_stands_on_it() -> None:
    found = world(("v1", "t"), ("v2", "v1"), ("v3", "t"))
    found.move("t")
    found.stand("v1", Standing(failures=1, retry_at=1010))
    assert found.names(1009) == ["v3"]
    assert found.names(1010) == ["v1", "v3", "v2"]
    found.standings.clear()
    found.stand("v2", Standing(failures=1, retry_at=1010))
    assert found.names(1009) == ["v1", "v3"]


def test_a_failing_periodic_view_is_overdue_until_somebody_refreshes_it() -> None:
    found = world(("v", "t"), mode="periodic", interval=3600)
    found.move("t")
    found.stand("v", Standing(started_at=1000, ended_at=1001, failures=1, retry_at=1003))
    assert found.names(1002) == []
    assert found.names(1003) == ["v"]
    found.views["v"] = replace(found.views["v"], refreshed_at=1002.0)
    assert found.names(1003) == []


def test_a_broken_view_is_tried_at_once_when_its_sources_change_their_shape() -> None:
    found = world(("v", "t"))
    found.move("t")
    found.stand("v", Standing(failures=1, retry_at=1e6))
    found.move("t")
    assert found.names() == []  # more rows mend nothing
    found.move("t", shape="with another column")
    assert found.names() == ["v"]
    found.stand("v", found.standings["id of v"])
    assert found.names() == []
    del found.tables[table("t")]
    assert found.names() == ["v"]


def test_a_view_made_anew_has_no_past() -> None:
    found = world(("v", "t"))
    found.move("t")
    found.stand("v", Standing(failures=1, retry_at=1e6))
    found.views["v"] = replace(found.views["v"], at=At("another", 1))
    assert found.names() == ["v"]


def test_failures_wait_twice_as_long_each_time_up_to_a_limit() -> None:
    assert [retry_after(n, 1, 60, 0.999999) for n in (1, 2, 3)] == [*map(approximately, (1, 2, 4))]
    assert retry_after(1, 1, 60, 0) == 0.5
    assert retry_after(10_000, 1, 60, 0.999999) == approximately(60)


def approximately(value: float) -> Any:
    import pytest

    return pytest.approx(value, rel=1e-5)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    found = World()
    names = [f"t{n}" for n in range(3)]
    for name in names:
        found.topic(name)
    for n in range(draw(st.integers(1, 7))):
        sources = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        mode = draw(st.sampled_from(["immediate", "periodic", "manual", "on_query"]))
        found.view(f"v{n}", *sources, mode=mode, clock=draw(st.booleans()))
        names.append(f"v{n}")
    for name in draw(st.sets(st.sampled_from(names))):
        found.move(name)
    views = sorted(found.views)
    for name in draw(st.sets(st.sampled_from(views))):
        found.stand(name, Standing(990, 995, retry_at=draw(st.sampled_from([0.0, 2000.0]))))
    found.busy = draw(st.sets(st.sampled_from(views)))
    return found


@given(worlds())
def test_every_plan_can_be_run_in_its_order(found: World) -> None:
    plan = found.plan(1000.0)
    names = [due.name for due in plan]
    held = found.busy | {name for name in found.views if found.scene().standing(name).retry_at > 1000}
    assert len(set(names)) == len(names)
    for number, due in enumerate(plan):
        assert due.after <= set(names[:number])
        assert due.after <= due.below
        assert not held & {due.name, *due.below}
        assert found.views[due.name].options.mode not in ("manual", "continuous")
        moved_below = {name for name in due.below if found.scene().changed(name)}
        assert moved_below <= due.after  # so that all of it stands for the same snapshots


def test_what_a_clock_dated_that_was_ahead_holds_up_no_refresh() -> None:
    found = world(("v", "t"), mode="periodic", refreshed_at=4000.0)
    found.move("t")
    assert found.names(1000) == ["v"], "committed by a process whose clock was ahead"
    found.stand("v", Standing(started_at=1000, ended_at=1001))  # it is committed with a date that is ahead again
    assert found.names(1059) == []
    assert found.names(1060) == ["v"]
    found.stand("v", Standing(started_at=4000, ended_at=4001))
    assert found.names(1000) == ["v"], "begun by this process while the clock was ahead"
    found.stand("v", Standing(started_at=4000, ended_at=4001, failures=1, retry_at=4300))
    assert found.names(1000) == ["v"]
