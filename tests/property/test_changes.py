"""Changes between snapshots: whatever happened to a table, old + added - removed = new, as bags of rows."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from headwater.catalog.definitions import partition_spec
from headwater.catalog.iceberg import create_catalog_file, open_catalog
from headwater.errors import SnapshotGone
from headwater.storage.changes import Changes, between
from headwater.storage.commit import Change, commit
from headwater.storage.scan import ManifestCache
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import Layout, PartitionedWriter, Target, local_path
from headwater.types import Partition, TopicDefinition

SCHEMA = Schema(NestedField(1, "p", LongType()), NestedField(2, "n", LongType()))
Row = tuple[int, int]
_numbers = itertools.count()


class World:
    """A table, and what it should hold at each of its snapshots."""

    def __init__(self, catalog: SqlCatalog, parts: Sequence[Partition] = ()) -> None:
        self.identifier = ("topics", f"t{next(_numbers)}")
        self.catalog = catalog
        spec = partition_spec(TopicDefinition("t", SCHEMA, tuple(parts)), SCHEMA)
        # Manifests merge early, so that entries of one snapshot pass through manifests of another.
        properties = {"commit.manifest.min-count-to-merge": "3", "commit.manifest-merge.enabled": "true"}
        catalog.create_table(self.identifier, SCHEMA, partition_spec=spec, properties=properties)
        self.bags: dict[int | None, Counter[Row]] = {None: Counter()}

    def load(self) -> Table:
        return self.catalog.load_table(self.identifier)

    @property
    def head(self) -> int | None:
        return self.load().metadata.current_snapshot_id

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.load().metadata.snapshots]

    def live(self) -> list[DataFile]:
        return sorted((task.file for task in self.load().scan().plan_files()), key=lambda file: file.file_path)

    def write(self, rows: Iterable[Row]) -> list[DataFile]:
        table = self.load()
        into = Target("t", table.location(), table.schema(), table.spec(), Layout("none", None, 1 << 30), {})
        writer = PartitionedWriter(into, lambda: str(next(_numbers)))
        columns = list(zip(*rows, strict=True)) or [(), ()]
        writer.write(pa.table(columns, schema=arrow_schema(SCHEMA)))
        return writer.close()

    def change(self, made: Change) -> None:
        before = self.bags[self.head]
        done = commit(self.load, made, lambda _: None)
        self.bags[done.snapshot_id] = before + bag(made.added) - bag(made.removed)

    def forget(self, snapshot_id: int) -> None:
        """Expire a snapshot, and delete the files that none of the others has."""
        self.load().maintenance.expire_snapshots().by_id(snapshot_id).commit()
        table, needed = self.load(), set[str]()
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                needed |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        for path in (local_path(table.location()) / "data").rglob("*.parquet"):
            if f"file://{path}" not in needed:
                path.unlink()


def bag(files: Iterable[DataFile]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for file in files:
        table = pq.read_table(local_path(file.file_path), partitioning=None)
        found.update(zip(table["p"].to_pylist(), table["n"].to_pylist(), strict=True))
    return found


@pytest.fixture(scope="module")
def catalog() -> Iterable[SqlCatalog]:
    with tempfile.TemporaryDirectory() as folder:
        create_catalog_file(Path(folder) / "catalog.db", 5.0)
        opened = open_catalog(Path(folder) / "catalog.db", Path(folder) / "warehouse", 5.0)
        opened.create_namespace("topics")
        yield opened
        opened.close()


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6)
steps = st.one_of(
    st.tuples(st.just("append"), rows),
    st.tuples(st.just("append"), rows),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("rewrite"), st.integers(0, 9), rows),
    st.tuples(st.just("replace"), st.integers(1, 4)),
    st.tuples(st.just("nothing")),
    st.tuples(st.just("rollback"), st.integers(0, 9)),
    st.tuples(st.just("expire"), st.integers(0, 9)),
)


def take(world: World, step: tuple) -> None:
    live = world.live()
    match step:
        case ("append", added):
            world.change(Change(world.write(added)))
        case ("delete", which) if live:
            world.change(Change(removed=[live[which % len(live)]], operation="overwrite"))
        case ("rewrite", which, changed) if live:
            old = live[which % len(live)]
            kept = list(bag([old]).elements())[1:]
            world.change(Change(world.write([*kept, *changed]), [old], "overwrite"))
        case ("replace", count) if live:
            old = live[:count]
            world.change(Change(world.write(bag(old).elements()), old, "replace"))
        case ("nothing",):
            world.change(Change(properties={"position": "1"}))
        case ("rollback", which) if world.snapshots():
            with suppress(ValueError):  # not every snapshot is an ancestor
                snapshot = world.snapshots()[which % len(world.snapshots())]
                world.load().manage_snapshots().rollback_to_snapshot(snapshot).commit()
        case ("expire", which):
            protected = {ref.snapshot_id for ref in world.load().metadata.refs.values()}
            if free := [snapshot for snapshot in world.snapshots() if snapshot not in protected]:
                world.forget(free[which % len(free)])


def weighted(changes: Changes) -> Counter[Row]:
    """Rows with their weights, those that cancel left out."""
    net = bag(changes.added)
    net.subtract(bag(changes.removed))
    return Counter({row: weight for row, weight in net.items() if weight})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=st.lists(steps, min_size=1, max_size=10), partitioned=st.booleans(), data=st.data())
def test_old_plus_changes_is_new(catalog: SqlCatalog, taken: list, partitioned: bool, data: st.DataObject) -> None:
    world, cache = World(catalog, [Partition("identity", "p")] if partitioned else []), ManifestCache()
    for step in taken:
        take(world, step)
        if data.draw(st.booleans()):  # a cache that has seen earlier states
            between(world.load(), None, world.head, cache)
    table, known = world.load(), [None, *world.snapshots()]
    for start, end in itertools.product(known, repeat=2):
        if end is None:
            continue
        expected = Counter(world.bags[end])
        expected.subtract(world.bags[start])
        assert weighted(between(table, start, end, cache)) == {row: by for row, by in expected.items() if by}


def test_appends_and_compaction_are_append_only(catalog: SqlCatalog) -> None:
    world = World(catalog)
    take(world, ("append", [(0, 1)]))
    start = world.head
    take(world, ("append", [(0, 2), (0, 2)]))
    take(world, ("replace", 4))
    take(world, ("append", [(0, 3)]))
    changes = between(world.load(), start, world.head, ManifestCache())
    assert changes.append_only
    assert bag(changes.added) == {(0, 2): 2, (0, 3): 1}
    assert changes.rows == 3
    assert changes.bytes == sum(file.file_size_in_bytes for file in changes.added)


def test_a_file_that_came_and_went_is_no_change(catalog: SqlCatalog) -> None:
    world = World(catalog)
    take(world, ("append", [(0, 1)]))
    start = world.head
    added = world.write([(0, 2)])
    world.change(Change(added))
    world.change(Change(removed=added, operation="overwrite"))
    assert between(world.load(), start, world.head, ManifestCache()) == Changes((), ())


def test_a_rewritten_file_counts_in_whole(catalog: SqlCatalog) -> None:
    world = World(catalog)
    old = world.write([(0, 1), (0, 2)])
    world.change(Change(old))
    start, new = world.head, world.write([(0, 2)])
    world.change(Change(new, old, "overwrite"))
    changes = between(world.load(), start, world.head, ManifestCache())
    assert (changes.added, changes.removed) == (tuple(new), tuple(old))
    assert not changes.append_only
    assert weighted(changes) == {(0, 1): -1}


def test_without_the_snapshots_between_live_files_are_compared(catalog: SqlCatalog) -> None:
    world = World(catalog)
    take(world, ("append", [(0, 1)]))
    start = world.head
    take(world, ("append", [(0, 2)]))
    between_them = world.head
    take(world, ("replace", 2))
    assert between_them is not None
    world.forget(between_them)
    changes = between(world.load(), start, world.head, ManifestCache())
    assert weighted(changes) == {(0, 2): 1}
    assert not changes.append_only  # the compaction shows, because the walk is broken


def test_a_snapshot_that_is_gone_is_named(catalog: SqlCatalog) -> None:
    world = World(catalog)
    take(world, ("append", [(0, 1)]))
    with pytest.raises(SnapshotGone, match=r"snapshot 7 of table .* does not exist"):
        between(world.load(), 7, world.head, ManifestCache())
    with pytest.raises(SnapshotGone):
        between(world.load(), None, 7, ManifestCache())


def test_each_manifest_is_read_once(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    world, cache = World(catalog), ManifestCache()
    take(world, ("append", [(0, 1)]))
    start = world.head
    take(world, ("append", [(0, 2)]))
    first = between(world.load(), start, world.head, cache)
    monkeypatch.setattr("pyiceberg.manifest.ManifestFile.fetch_manifest_entry", None)
    assert between(world.load(), start, world.head, cache) == first
