"""Where a stream stands in a topic, and the files that hold the records between two such places.

A place is a snapshot and the first offset that it lacks. Usually the files are those that the snapshots in between
appended, as they were written; compaction is stepped over. If one of the two has expired, or records were deleted or
changed meanwhile, the files are found by the offsets that they hold. So a stream sees every record once, in whatever
files it lies by then, and never one that was only moved or changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThan, Reference
from pyiceberg.manifest import DataFile
from pyiceberg.types import LongType

from headwater.catalog.topics import Topic
from headwater.errors import SnapshotGone
from headwater.storage.changes import between
from headwater.storage.checksums import decoding
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.writer import local_path
from headwater.types import OFFSET, Offsets

File = tuple[str, int, int]
"""A file's path, bytes and rows."""


@dataclass(frozen=True, slots=True)
class Place:
    """In a topic everything below `offset` has been read; `snapshot` is one that has exactly that."""

    topic: str
    snapshot: int | None = None
    offset: int = 0

    @property
    def is_start(self) -> bool:
        return self.snapshot is None

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Place:
        return cls(**json.loads(text))


def head_of(topic: Topic) -> Place:
    """The place behind all that the topic has committed."""
    return Place(topic.name, topic.snapshot_id, topic.committed)


@dataclass(frozen=True, slots=True)
class Span:
    """The files between two places; `changed`: records from before were deleted or rewritten in between."""

    files: tuple[File, ...]
    changed: bool = False

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.files)

    def to_json(self) -> str:
        return json.dumps(self.files)


def span(topic: Topic, start: Place, end: Place, cache: ManifestCache, scratch: Path) -> Span:
    """What a stream that stands at `start` reads up to `end`; parts of files are copied to the folder `scratch`."""
    if start.is_start and topic.table.metadata.snapshot_by_id(end.snapshot or 0) is not None:
        return Span(tuple(map(_file, plan_scan(topic.table, end.snapshot, AlwaysTrue(), cache).files)))
    try:
        if not start.is_start and (changes := between(topic.table, start.snapshot, end.snapshot, cache)).append_only:
            return Span(tuple(map(_file, changes.added)))
    except SnapshotGone:
        pass
    wanted = Offsets(start.offset, end.offset)
    return Span(tuple(_by_offsets(topic, wanted, cache, scratch)), changed=not start.is_start)


def _file(file: DataFile) -> File:
    return file.file_path, file.file_size_in_bytes, file.record_count


def _by_offsets(topic: Topic, wanted: Offsets, cache: ManifestCache, scratch: Path) -> Iterator[File]:
    row_filter = And(
        GreaterThanOrEqual(Reference(OFFSET), wanted.start),  # type: ignore
        LessThan(Reference(OFFSET), wanted.end),  # type: ignore
    )
    for file in plan_scan(topic.table, topic.snapshot_id, row_filter, cache).files:
        held = _held(topic, file)
        if held is not None and wanted.start <= held.start and held.end <= wanted.end:
            yield _file(file)
        else:
            yield from _cut(file, wanted, scratch)


def _held(topic: Topic, file: DataFile) -> Offsets | None:
    """The offsets between which all of the file's are."""
    field = topic.schema.find_field(OFFSET).field_id
    lower, upper = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
    if lower is None or upper is None:
        return None
    return Offsets(int(from_bytes(LongType(), lower)), int(from_bytes(LongType(), upper)) + 1)


def _cut(file: DataFile, wanted: Offsets, scratch: Path) -> Iterator[File]:
    """A copy of the file with the records that are wanted, row group by row group."""
    scratch.mkdir(parents=True, exist_ok=True)
    source = local_path(file.file_path)
    path = scratch / f"{wanted.start}-{wanted.end}-{source.name}"
    rows = 0
    with (
        decoding(source),
        pq.ParquetFile(source, page_checksum_verification=True) as read,
        pq.ParquetWriter(path, read.schema_arrow, compression="zstd") as writer,
    ):
        for number in range(read.num_row_groups):
            group = read.read_row_group(number)
            offsets = group.column(OFFSET)
            kept = group.filter(pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end)))
            rows += kept.num_rows
            writer.write_table(kept)
    if rows:
        yield f"file://{path}", path.stat().st_size, rows


def remove_cuts(scratch: Path, keep: Sequence[str] = ()) -> None:
    """Delete copies that no batch reads any more."""
    for path in scratch.glob("*.parquet") if scratch.exists() else ():
        if f"file://{path}" not in keep:
            path.unlink(missing_ok=True)
