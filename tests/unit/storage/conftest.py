"""A topic's table without a lake or Spark: rows are appended one commit at a time, each at a moment that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, TimestamptzType

from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.topics import Topic, Topics
from headwater.storage.commit import Change, Committed, append, commit
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import PartitionedWriter
from headwater.topics.ingest import POSITION, target, with_system_columns
from headwater.types import Offsets, Partition, TopicDefinition, TopicOptions


class Kept:
    """The topic `t` (n BIGINT, at TIMESTAMPTZ) of a small catalog."""

    def __init__(self, folder: Path, options: TopicOptions, partitioning: tuple[Partition, ...]) -> None:
        create_catalog_file(folder / "catalog.db", 5.0)
        self.folder = folder
        self.topics = Topics(Tables(folder / "catalog.db", folder / "warehouse", 5.0))
        self.topics.tables.catalog.create_namespace("topics")
        schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "at", TimestamptzType()))
        self.id = self.topics.create(TopicDefinition("t", schema, partitioning, options)).id
        self.cache = ManifestCache()

    @property
    def topic(self) -> Topic:
        return self.topics.load("t")

    @property
    def table(self) -> Table:
        return self.topic.table

    def load(self) -> Table:
        return self.topics.tables.load_for_commit(self.topic.table_name)

    def files(self, rows: int, at: Sequence[int | None] = (), start: int | None = None) -> list[DataFile]:
        """Files of so many rows; `at` are the microseconds of the column of that name."""
        first = self.topic.committed if start is None else start
        offsets = Offsets(first, first + rows)
        writer = PartitionedWriter(target(self.topic), lambda: uuid4().hex)
        moments = list(at) or [0] * rows
        batch = pa.record_batch(
            {
                "n": pa.array(range(offsets.start, offsets.end), pa.int64()),
                "at": pa.array(moments, pa.timestamp("us", "UTC")),
            }
        )
        writer.write(pa.Table.from_batches([with_system_columns(batch, offsets, 0)]))
        return writer.close()

    def append(self, rows: int = 2, at: Sequence[int | None] = ()) -> int:
        first = self.topic.committed
        done = append(self.load, self.files(rows, at), Offsets(first, first + rows), POSITION, self.topic.id)
        return done.snapshot_id

    def change(self, change: Change) -> Committed:
        return commit(self.load, change, lambda _: None)

    def live(self) -> list[DataFile]:
        snapshot = self.table.metadata.current_snapshot()
        manifests = self.cache.manifests(snapshot, self.table.io) if snapshot is not None else ()
        return [file for manifest in manifests for file in self.cache.files(manifest, self.table.io)]

    def numbers(self, snapshot: int | None = None) -> list[int]:
        return sorted(self.topics.load("t").table.scan(snapshot_id=snapshot).to_arrow().column("n").to_pylist())

    def stored(self) -> set[Path]:
        folder = Path(self.table.location().removeprefix("file://"))
        return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make_kept(options: TopicOptions | None = None, *partitioning: Partition) -> Kept:
        made.append(Kept(tmp_path, options or TopicOptions(), partitioning))
        return made[-1]

    yield make_kept
    for each in made:
        each.topics.tables.close()


@pytest.fixture
def kept(make: Callable[..., Kept]) -> Kept:
    return make()
