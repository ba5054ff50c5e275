"""Whatever happened to a topic, CHANGES BETWEEN two snapshots is the difference of their rows, and gaps are its holes.

Rows are changed through the real writer and the real commits, without Spark: what a DELETE, an UPDATE or a compaction
commits is written here by hand. Rollbacks and picks are the engine's own statements.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

import headwater
from headwater.catalog.definitions import P_OFFSET, S_FROM, S_TO
from headwater.engine import Lake
from headwater.errors import Conflict
from headwater.sql.moments import AsOf
from headwater.sql.snapshot_statements import changes_query
from headwater.sql.statements import CherryPick, RollbackTopic
from headwater.storage.commit import Change, commit
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.schemas import arrow_schema
from headwater.storage.time_travel_gaps import read_gaps
from headwater.storage.writer import PartitionedWriter
from headwater.topics.ingest import target
from headwater.types import TableName

COLUMNS = "n BIGINT, d DOUBLE, tags ARRAY<STRING>, m MAP<STRING, INT>, s STRUCT<a: INT, b: DOUBLE>"
Row = dict[str, Any]
CHECKS = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a step costs tens of milliseconds: shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_numbers = itertools.count()


class World:
    """A topic, its rows by offset at each of its snapshots, and the offsets that each of them ever had."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.name = lake, f"t{next(_numbers)}"
        lake.sql(f"CREATE TOPIC {self.name} ({COLUMNS})")
        self.rows: dict[int | None, dict[int, Row]] = {None: {}}
        self.brought: dict[int | None, frozenset[int]] = {None: frozenset()}
        self.expired = False

    @property
    def topic(self) -> Any:
        return self.lake.topics.load(self.name)

    @property
    def head(self) -> int | None:
        return self.topic.snapshot_id

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.topic.table.metadata.snapshots]

    def files(self) -> list[DataFile]:
        topic = self.topic
        found = plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), ManifestCache()).files
        return sorted(found, key=lambda file: file.file_path)

    def write(self, rows: dict[int, Row]) -> list[DataFile]:
        topic = self.topic
        writer = PartitionedWriter(target(topic), lambda: f"f{next(_numbers)}")
        full = [{**row, "_offset": offset, "_timestamp": 0} for offset, row in sorted(rows.items())]
        writer.write(pa.Table.from_pylist(full, schema=arrow_schema(topic.schema)))
        return writer.close()

    def held(self, files: list[DataFile]) -> dict[int, Row]:
        """The rows of the current snapshot that some of its files hold."""
        bounds = [(file.lower_bounds, file.upper_bounds) for file in files]
        field_id = self.topic.schema.find_field("_offset").field_id
        ranges = [(_long(low[field_id]), _long(high[field_id])) for low, high in bounds]
        return {at: row for at, row in self.rows[self.head].items() if any(a <= at <= b for a, b in ranges)}

    def change(self, made: Change, rows: dict[int, Row], brought: frozenset[int] | None = None) -> None:
        before = self.brought[self.head]
        name = TableName.topic(self.name)
        done = commit(lambda: self.lake.topics.tables.load_for_commit(name), made, lambda _: None)
        self.rows[done.snapshot_id] = rows
        self.brought[done.snapshot_id] = before | (brought or frozenset())


def _long(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


numbers = st.sampled_from([0.0, -0.0, 1.5, math.nan, None])
rows = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(0, 2),
        "d": numbers,
        "tags": st.none() | st.lists(st.none() | st.sampled_from(["a", "b"]), max_size=2),
        "m": st.none() | st.dictionaries(st.sampled_from(["k", "l"]), st.none() | st.integers(0, 1), max_size=2),
        "s": st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": numbers}),
    }
)
which = st.integers(0, 9)
steps = st.one_of(
    st.tuples(st.just("ingest"), st.lists(rows, min_size=1, max_size=4)),
    st.tuples(st.just("ingest"), st.lists(rows, min_size=1, max_size=4)),
    st.tuples(st.just("delete"), which),
    st.tuples(st.just("update"), which, rows),
    st.tuples(st.just("update"), which, rows),
    st.tuples(st.just("compact")),
    st.tuples(st.just("rollback"), which),
    st.tuples(st.just("rollback"), which),
    st.tuples(st.just("pick"), which),
    st.tuples(st.just("expire"), which),
)


def take(world: World, step: tuple[Any, ...]) -> None:
    current, files = world.rows[world.head], world.files()
    match step:
        case ("ingest", new):
            start = world.topic.committed
            added = dict(enumerate(new, start))
            end = start + len(new)
            told = ({S_FROM: str(start), S_TO: str(end)}, {P_OFFSET: str(end)})
            world.change(Change(world.write(added), (), "append", *told), current | added, frozenset(added))
        case ("delete", place) if files:
            file = files[place % len(files)]
            held = world.held([file])
            gone = sorted(held)[0]
            left = {at: row for at, row in held.items() if at != gone}
            told = {"headwater.deleted-rows": "1"}
            after = {at: row for at, row in current.items() if at != gone}
            world.change(Change(world.write(left) if left else (), [file], "overwrite", told), after)
        case ("update", place, new) if files:
            file = files[place % len(files)]
            held = world.held([file])
            after = held | {sorted(held)[place % len(held)]: new}
            told = {"headwater.updated-rows": "1"}
            world.change(Change(world.write(after), [file], "overwrite", told), current | after)
        case ("compact",) if files:
            world.change(Change(world.write(current), files, "replace"), current)
        case ("rollback", place) if world.snapshots():
            known = world.snapshots()
            world.lake.execute(RollbackTopic(world.name, AsOf(version=known[place % len(known)])))
        case ("pick", place) if world.snapshots():
            pick(world, world.snapshots()[place % len(world.snapshots())])
        case ("expire", place):
            table = world.lake.topics.tables.load_for_commit(TableName.topic(world.name))
            kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
            if free := [each for each in world.snapshots() if each not in kept]:
                table.maintenance.expire_snapshots().by_id(free[place % len(free)]).commit()
                world.expired = True


def pick(world: World, source: int) -> None:
    head = world.head
    parent = world.topic.table.metadata.snapshot_by_id(source).parent_snapshot_id
    with suppress(Conflict):
        world.lake.execute(CherryPick(world.name, source))
        before, after = world.rows[parent], world.rows[source]
        done = {at: row for at, row in world.rows[head].items() if at in after or at not in before}
        changed = {at: row for at, row in after.items() if at not in before or _key(before[at]) != _key(row)}
        world.rows[world.head] = done | changed
        world.brought[world.head] = world.brought[head] | (world.brought[source] - world.brought[parent])


def _key(value: Any) -> Any:
    """A value as both engines compare it: NaN is NaN, -0.0 is 0.0, and maps are lists of entries."""
    match value:
        case {"a": a, "b": b}:
            return _key(a), _key(b)
        case {"n": n, "d": d, "tags": tags, "m": m, "s": s}:
            return tuple(map(_key, (n, d, tags, m, s)))
        case dict():
            return tuple((name, _key(each)) for name, each in value.items())
        case list():
            return tuple(map(_key, value))
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
    return value


def difference(before: dict[int, Row], after: dict[int, Row]) -> set[tuple[Any, ...]]:
    """What CHANGES BETWEEN has to answer, from all rows of both states."""
    found = set()
    for at in before.keys() | after.keys():
        old, new = (_key(state[at]) if at in state else None for state in (before, after))
        if old == new:
            continue
        if old is not None:
            found.add((at, old, "deleted" if new is None else "updated_from"))
        if new is not None:
            found.add((at, new, "inserted" if old is None else "updated_to"))
    return found


def answered(lake: Lake, name: str, start: int, end: int, engine: Any = "duckdb") -> list[tuple[Any, ...]]:
    """What CHANGES BETWEEN does answer."""
    query = changes_query(name, AsOf(version=start), AsOf(version=end))
    return [shown(row) for row in lake.sql(query.text, engine=engine).rows()]


def shown(row: Row) -> tuple[Any, ...]:
    plain = {**row, "m": dict(row["m"]) if row["m"] is not None else None}
    return row["_offset"], _key(plain), row["_change"]


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    with tempfile.TemporaryDirectory() as folder, headwater.init(Path(folder) / "lake") as opened:
        yield opened


@settings(CHECKS, max_examples=40)
@given(taken=st.lists(steps, min_size=2, max_size=9), data=st.data())
def test_changes_are_the_difference_of_all_rows(lake: Lake, taken: list[Any], data: st.DataObject) -> None:
    world = World(lake)
    for step in taken:
        take(world, step)
    known = world.snapshots()
    if not known:
        return
    for _ in range(4):
        start, end = data.draw(st.sampled_from(known)), data.draw(st.sampled_from(known))
        found = answered(lake, world.name, start, end)
        assert len(found) == len(set(found))
        assert set(found) == difference(world.rows[start], world.rows[end])


@settings(CHECKS, max_examples=60)
@given(taken=st.lists(steps, min_size=2, max_size=12))
def test_gaps_are_the_offsets_that_rollbacks_took(lake: Lake, taken: list[Any]) -> None:
    world = World(lake)
    for step in taken:
        take(world, step)
        topic = world.topic
        gaps = {at for gap in read_gaps(topic.table) for at in range(gap.start, gap.end)}
        missing = set(range(topic.committed)) - world.brought[world.head]
        assert gaps >= missing
        assert not gaps & world.rows[world.head].keys()
        if not world.expired:
            assert gaps == missing
    live = {row["_offset"] for row in lake.sql(f"SELECT _offset FROM {world.name}").rows()}
    assert live == world.rows[world.head].keys()


def test_the_cases_reach_what_they_are_for(lake: Lake) -> None:
    """An update and its way back, a compaction between, a rollback and a pick: each shows as it should."""
    row = {"n": 1, "d": math.nan, "tags": ["a"], "m": {"k": None}, "s": {"a": 1, "b": -0.0}}
    world = World(lake)
    take(world, ("ingest", [row, row]))
    first = world.head
    take(world, ("update", 0, {**row, "d": 2.0}))
    updated = world.head
    take(world, ("compact",))
    assert first is not None and updated is not None and world.head is not None
    assert {kind for _, _, kind in answered(lake, world.name, first, world.head)} == {"updated_from", "updated_to"}
    assert answered(lake, world.name, updated, world.head) == []
    take(world, ("update", 0, {**row, "s": {"a": 1, "b": 0.0}}))  # back to what it was: -0.0 is 0.0
    assert answered(lake, world.name, first, world.head) == []
    take(world, ("ingest", [row]))
    lost = world.head
    assert lost is not None
    lake.execute(RollbackTopic(world.name, AsOf(version=first)))
    assert [(at, kind) for at, _, kind in answered(lake, world.name, lost, first)] == [(2, "deleted")]
    pick(world, lost)
    assert world.head not in (lost, first) and world.head is not None
    assert answered(lake, world.name, lost, world.head) == []
