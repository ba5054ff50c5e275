"""Which files of a snapshot a filter needs: by manifest summaries, partition values, column statistics, bloom filters.

Manifests never change, so their entries are parsed once and kept; planning a query on a table that grew by one commit
reads one new manifest.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from uuid import UUID

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import (
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IntegerType, ListType, LongType, MapType, NestedField, StructType

from headwater.catalog.damage import damaged, missing, reading
from headwater.errors import Unavailable
from headwater.storage.blooms import BloomCache, plan_probe
from headwater.storage.partitions import least_multiple
from headwater.storage.schemas import nullable_inside
from headwater.storage.statistics import plan_statistics
from headwater.storage.writer import local_name

MAX_CACHED_FILES = 200_000
MAX_CACHED_LISTS = 4096
"""More than the snapshots that a table keeps by default: expiry asks all of them what they refer to."""


@dataclass(frozen=True, slots=True)
class FileScan:
    """The files of one snapshot that a filter needs, and how many it does not, by reason."""

    snapshot_id: int | None
    files: tuple[DataFile, ...] = field(repr=False)
    total: int
    skipped_by_partition: int
    skipped_by_statistics: int
    skipped_by_bloom_filter: int
    skipped_by_null_counts: int = 0

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self.files)

    def bytes_of(self, schema: Schema, columns: Iterable[str]) -> int:
        """Bytes of the named top-level columns in the kept files; whole files where sizes are unknown."""
        ids = {leaf for name in columns for leaf in leaf_ids(schema.find_field(name))}
        return sum(
            sum(size for column, size in file.column_sizes.items() if column in ids)
            if file.column_sizes
            else file.file_size_in_bytes
            for file in self.files
        )


def read_manifest_list(snapshot: Snapshot, io: FileIO, known: Container[str] = ()) -> tuple[ManifestFile, ...]:
    """The manifests that the snapshot lists; Corrupt if the list cannot be read, or is not all of what it was.

    That a manifest is there is checked unless its path is `known`."""
    path = snapshot.manifest_list
    with reading("manifest list", path):
        found = tuple(snapshot.manifests(io))
        files, rows = (sum(each[place] for each in map(_live_counts, found)) for place in (0, 1))
        for manifest in found:
            if manifest.manifest_path not in known:
                _check_present(manifest, path)
    # Neither a list nor a manifest has a checksum. A list that was cut between two of its entries can be read, and a
    # commit on top of it would lose the files of the others: only the summary's totals tell.
    total = snapshot.summary["total-data-files"] if snapshot.summary is not None else None
    records = snapshot.summary["total-records"] if snapshot.summary is not None else None
    # As text, because a damaged summary may hold anything.
    if total not in (None, str(files)) or records not in (None, str(rows)):
        said = f"It lists {files:,} files with {rows:,} records; its snapshot has {total} with {records}."
        raise damaged("manifest list", path, said)
    return found


def _check_present(manifest: ManifestFile, named_by: str) -> None:
    """Corrupt unless the manifest is there, with the length that it was written with."""
    path = local_name(manifest.manifest_path)
    try:
        size = os.stat(path).st_size  # noqa: PTH116 (a Path takes longer, and this runs for every manifest)
    except FileNotFoundError:
        said = f'Manifest list "{local_name(named_by)}" names it, and may itself be damaged.'
        raise missing("manifest", path, said) from None
    if size != manifest.manifest_length:
        said = f'It has {size:,} bytes; manifest list "{local_name(named_by)}" says {manifest.manifest_length:,}.'
        raise damaged("manifest", path, said)


def read_manifest(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """All entries of a manifest; Corrupt if it cannot be read, or does not hold what the manifest list says."""
    path = manifest.manifest_path
    with reading("manifest", path):
        entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
        live = [entry.data_file for entry in entries if entry.status != ManifestEntryStatus.DELETED]
        found = (len(live), sum(file.record_count for file in live))
    if found != (listed := _live_counts(manifest)):
        said = f"It names {found[0]:,} files with {found[1]:,} records instead of {listed[0]:,} with {listed[1]:,}."
        raise damaged("manifest", path, said)
    return entries


def _live_counts(manifest: ManifestFile) -> tuple[int, int]:
    """Live files and their rows, as the manifest list counts them."""
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    return files, (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)


class ManifestCache:
    """What manifests and their lists say, by path, up to a number of files, the least recently used leaving first."""

    def __init__(self, max_files: int = MAX_CACHED_FILES) -> None:
        self._max_files = max_files
        self._files = 0
        self._held: OrderedDict[str, tuple[DataFile, ...]] = OrderedDict()
        self._lists: OrderedDict[str, tuple[ManifestFile, ...]] = OrderedDict()
        self._listed: dict[str, ManifestFile] = {}
        self._listed_limit = 4 * MAX_CACHED_LISTS
        self.blooms = BloomCache()
        self._lock = Lock()

    def manifests(self, snapshot: Snapshot, io: FileIO) -> tuple[ManifestFile, ...]:
        """The manifests that the snapshot lists."""
        with self._lock:
            if (held := self._lists.get(snapshot.manifest_list)) is not None:
                self._lists.move_to_end(snapshot.manifest_list)
                return held
        read = read_manifest_list(snapshot, io, self._listed)
        with self._lock:
            # A list has most of its manifests in common with the one before it: they are the same objects.
            found = tuple(self._listed.setdefault(each.manifest_path, each) for each in read)
            self._lists[snapshot.manifest_list] = found
            while len(self._lists) > MAX_CACHED_LISTS:
                self._lists.popitem(last=False)
            if len(self._listed) > self._listed_limit:  # most are of lists that have left
                self._listed = {each.manifest_path: each for held in self._lists.values() for each in held}
                self._listed_limit = max(4 * MAX_CACHED_LISTS, 2 * len(self._listed))
        return found

    def files(self, manifest: ManifestFile, io: FileIO) -> tuple[DataFile, ...]:
        """The live data files that the manifest lists."""

        def read() -> tuple[DataFile, ...]:
            entries = read_manifest(manifest, io)
            found = tuple(entry.data_file for entry in entries if entry.status != ManifestEntryStatus.DELETED)
            if any(file.content != DataFileContent.DATA for file in found):
                raise Unavailable("the table has delete files", detail="Headwater's tables are copy-on-write.")
            return found

        return self.remembered(manifest.manifest_path, read)

    def remembered(self, key: str, read: Callable[[], tuple[DataFile, ...]]) -> tuple[DataFile, ...]:
        """What `read` found for `key` the first time: files that a manifest, which never changes, names."""
        with self._lock:
            if (held := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                return held
        found = read()
        with self._lock:
            if key not in self._held:
                self._held[key] = found
                self._files += len(found)
            while self._files > self._max_files and len(self._held) > 1:
                self._files -= len(self._held.popitem(last=False)[1])
        return found


def plan_scan(
    table: Table,
    snapshot_id: int | None,
    row_filter: BooleanExpression,
    cache: ManifestCache,
    schema: Schema | None = None,
) -> FileScan:
    """The files of `snapshot_id` (None: an empty table) that may hold rows matching `row_filter`.

    The filter's names are those of `schema`, of the table's columns unless it is given.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None:
        return FileScan(None, (), 0, 0, 0, 0)
    schema, specs = nullable_inside(schema or table.schema()), table.metadata.specs()
    pruners: dict[int, _Pruner] = {}
    kept: list[DataFile] = []
    total = by_partition = by_statistics = by_bloom_filter = by_null_counts = 0
    statistics = plan_statistics(schema, row_filter)
    probe = plan_probe(schema, table.metadata.properties, row_filter, cache.blooms)
    for manifest in live_manifests(snapshot, table, cache):
        spec_id = manifest.partition_spec_id
        if spec_id not in pruners:
            pruners[spec_id] = _Pruner.of(schema, specs[spec_id], row_filter)
        pruner = pruners[spec_id]
        if not pruner.manifest(manifest):
            skipped = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            total, by_partition = total + skipped, by_partition + skipped
            continue
        for file in cache.files(manifest, table.io):
            total += 1
            if not pruner.partition(file):
                by_partition += 1
            elif (reason := statistics(file)) is not None:
                by_null_counts += reason == "null counts"
                by_statistics += reason != "null counts"
            elif probe is not None and not probe(file):
                by_bloom_filter += 1
            else:
                kept.append(file)
    return FileScan(snapshot_id, tuple(kept), total, by_partition, by_statistics, by_bloom_filter, by_null_counts)


def live_manifests(snapshot: Snapshot, table: Table, cache: ManifestCache) -> Iterator[ManifestFile]:
    """The snapshot's manifests that list live files: others may be of a partitioning whose column is gone."""
    for manifest in cache.manifests(snapshot, table.io):
        if manifest.has_added_files() or manifest.has_existing_files():
            yield manifest


@dataclass(frozen=True, slots=True)
class _Pruner:
    """Decides by partition values, for one partition spec."""

    manifest: Callable[[ManifestFile], bool]
    partition: Callable[[DataFile], bool]

    @classmethod
    def of(cls, schema: Schema, spec: PartitionSpec, row_filter: BooleanExpression) -> _Pruner:
        try:
            projected = inclusive_projection(schema, spec)(row_filter)
        except OverflowError:
            # PyIceberg asks for the month or year of the next larger date, and its calendar ends with the year 9999.
            projected = AlwaysTrue()
        if isinstance(projected, AlwaysTrue) or isinstance(row_filter, AlwaysFalse):
            return cls(lambda _: True, lambda _: True)
        evaluate = expression_evaluator(Schema(*spec.partition_type(schema).fields), projected, case_sensitive=True)
        boundaries = _boundary_places(schema, spec)
        if not boundaries:
            return cls(manifest_evaluator(spec, schema, projected), lambda file: evaluate(_comparable(file.partition)))
        return cls(
            lambda _: True,
            lambda file: (
                any(least <= (file.partition[place] or 0) <= last for place, least, last in boundaries)
                or evaluate(_comparable(file.partition))
            ),
        )


def _boundary_places(schema: Schema, spec: PartitionSpec) -> list[tuple[int, Any, Any]]:
    """Places of truncated numbers, with the ranges of values that may stand for the smallest numbers of the type.

    Those have no truncated value within the type: integers wrap around to the largest ones, decimals get the least
    multiple. Ranges of narrower types count too: files may be older than the day when the column's type became wider.
    """
    found: list[tuple[int, Any, Any]] = []
    for place, part in enumerate(spec.fields):
        of = schema.find_field(part.source_id).field_type
        if not isinstance(part.transform, TruncateTransform):
            continue
        if isinstance(of, DecimalType):
            for precision in range(max(of.scale, 1), of.precision + 1):
                least = least_multiple(DecimalType(precision, of.scale), part.transform.width)
                found.append((place, least, least))
        elif isinstance(of, IntegerType | LongType):
            ends = (2**31,) if isinstance(of, IntegerType) else (2**31, 2**63)
            found += [(place, end - 2 * part.transform.width, end - 1) for end in ends]
    return found


def _comparable(partition: Record) -> Record:
    """A partition's values in the form that a filter's literals have: PyIceberg keeps UUIDs as bytes there."""
    values = [partition[position] for position in range(len(partition))]
    return Record(*(value.bytes if isinstance(value, UUID) else value for value in values))


def leaf_ids(column: NestedField) -> set[int]:
    """The ids of the Parquet columns that store a field."""
    match column.field_type:
        case StructType() as struct:
            return {leaf for child in struct.fields for leaf in leaf_ids(child)}
        case ListType() as of:
            return leaf_ids(of.element_field)
        case MapType() as of:
            return leaf_ids(of.key_field) | leaf_ids(of.value_field)
        case _:
            return {column.field_id}
