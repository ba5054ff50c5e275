"""What a topic's files are made of: sizes, codecs, encodings, bounds and distinct values of every column.

Columns are put together by field id, so that a renamed one is one column. What manifests say (rows, nulls, bounds) is
taken from there, the rest from footers; only distinct values need the data itself, of at most a bounded number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IcebergType, LongType, PrimitiveType

from headwater.catalog.topics import Topic
from headwater.sql.schema_text import render_type
from headwater.storage.distincts import Distincts
from headwater.storage.layout import layout_of
from headwater.storage.maintenance.policy import SMALL, order_mark, run_of
from headwater.storage.parquet_footers import FileFacts, Footers, LeafFacts, LeafType, field_id
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.types import id_text


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """A Parquet column over all files. `distinct` is an estimate from `distinct_rows` rows, None where not asked."""

    column: str
    type: str
    field_id: int | None
    files: int
    values: int
    nulls: int | None
    compressed: int
    uncompressed: int
    share: float
    codecs: tuple[str, ...]
    encodings: tuple[str, ...]
    data_pages: int
    dictionary_pages: int
    min: str | None
    max: str | None
    bloom_files: int
    bloom_bytes: int
    page_index_files: int
    distinct: int | None = None
    distinct_rows: int | None = None

    @property
    def ratio(self) -> float | None:
        return self.uncompressed / self.compressed if self.compressed else None


@dataclass(frozen=True, slots=True)
class TableStats:
    """The files of a topic's current snapshot."""

    topic: str
    snapshot: str | None
    files: int
    rows: int
    bytes: int
    row_groups: int
    small_files: int
    target_file_size: int
    partitions: int
    ordered_rows: int
    clustered_rows: int
    page_index_files: int
    checksum_files: int
    sealed_files: int
    codecs: tuple[str, ...]
    writers: tuple[str, ...]
    columns: tuple[ColumnStats, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A Parquet column of the newest file; `others` says in how many files it is something else, and what."""

    type: LeafType
    column: str
    files: int
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilesSchema:
    """The Parquet schema of the newest file, and what older files have that it has not."""

    topic: str
    file: str | None
    files: int
    columns: tuple[SchemaColumn, ...]


def table_stats(
    topic: Topic, manifests: ManifestCache, footers: Footers, distincts: Distincts | None = None
) -> TableStats:
    """The statistics; without `distincts` no data is read. Corrupt if a footer or a column that is read is damaged."""
    files = live_files(topic, manifests)
    facts = footers.read([file.file_path for file in files])
    found = distincts.count(topic, files, facts) if distincts is not None else {}
    layout = layout_of(topic)
    mark, order = order_mark(layout, topic.schema), layout.sort_order_id
    return TableStats(
        topic=topic.name,
        snapshot=id_text(topic.snapshot_id),
        files=len(files),
        rows=sum(file.record_count for file in files),
        bytes=sum(file.file_size_in_bytes for file in files),
        row_groups=sum(each.row_groups for each in facts),
        small_files=sum(file.file_size_in_bytes < SMALL * layout.target_bytes for file in files),
        target_file_size=layout.target_bytes,
        partitions=len({(file.spec_id, tuple(_values(file))) for file in files}),
        ordered_rows=sum(file.record_count for file in files if order is not None and file.sort_order_id == order),
        clustered_rows=sum(file.record_count for file in files if mark and run_of(file.file_path, mark)[0]),
        page_index_files=sum(all(leaf.page_index for leaf in each.leaves) for each in facts),
        checksum_files=sum(each.checksums for each in facts),
        sealed_files=sum(each.sealed for each in facts),
        codecs=_names(leaf.codecs for each in facts for leaf in each.leaves),
        writers=tuple(sorted({each.writer for each in facts})),
        columns=tuple(_column_stats(topic, files, facts, found)),
    )


def live_files(topic: Topic, manifests: ManifestCache) -> tuple[DataFile, ...]:
    """The data files of the topic's current snapshot."""
    return plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), manifests).files


def _values(file: DataFile) -> Iterator[Any]:
    return (file.partition[place] for place in range(len(file.partition)))


def _names(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for group in groups for name in group}))


# -- columns ----------------------------------------------------------------------------------------------------


def _column_stats(
    topic: Topic, files: Sequence[DataFile], facts: Sequence[FileFacts], found: dict[int, tuple[int, int]]
) -> Iterator[ColumnStats]:
    """Columns that the topic has in its order, then those that only files have."""
    by_column: dict[int | str, list[LeafFacts]] = {}
    for each in facts:
        for leaf in each.leaves:
            by_column.setdefault(_key(leaf.type, topic.schema), []).append(leaf)
    total = sum(leaf.compressed for leaves in by_column.values() for leaf in leaves)
    places: dict[int | str, int] = {id: place for place, id in enumerate(_leaf_ids(topic.schema))}
    for _, leaves in sorted(by_column.items(), key=lambda item: places.get(item[0], len(places))):
        yield _one_column(topic, files, leaves, max(total, 1), found)


def _key(of: LeafType, schema: Schema) -> int | str:
    """What is the same for one column in all files."""
    id = field_id(of, schema)
    return of.path if id is None else id


def _leaf_ids(schema: Schema) -> list[int]:
    return [id for id, kept in schema._lazy_id_to_field.items() if isinstance(kept.field_type, PrimitiveType)]


def _one_column(
    topic: Topic,
    files: Sequence[DataFile],
    leaves: Sequence[LeafFacts],
    total: int,
    found: dict[int, tuple[int, int]],
) -> ColumnStats:
    of = leaves[-1].type
    name, kind = _named(topic.schema, of)
    id = (field_id(of, topic.schema) or 0) if kind is not None else 0
    least, most = _bounds(files, id, kind) if kind is not None else (None, None)
    compressed = sum(leaf.compressed for leaf in leaves)
    distinct, rows = found.get(id, (None, None))
    return ColumnStats(
        column=name,
        type=render_type(kind) if kind is not None else "dropped",
        field_id=field_id(of, topic.schema),
        files=len(leaves),
        values=sum(leaf.values for leaf in leaves),
        nulls=_nulls(files, id),
        compressed=compressed,
        uncompressed=sum(leaf.uncompressed for leaf in leaves),
        share=compressed / total,
        codecs=_names(leaf.codecs for leaf in leaves),
        encodings=_names(leaf.encodings for leaf in leaves),
        data_pages=sum(count for leaf in leaves for _, count in leaf.pages),
        dictionary_pages=sum(leaf.dictionary_pages for leaf in leaves),
        min=least,
        max=most,
        bloom_files=sum(leaf.bloom_bytes > 0 for leaf in leaves),
        bloom_bytes=sum(leaf.bloom_bytes for leaf in leaves),
        page_index_files=sum(leaf.page_index for leaf in leaves),
        distinct=distinct,
        distinct_rows=rows,
    )


def _named(schema: Schema, of: LeafType) -> tuple[str, IcebergType | None]:
    """The column's name now and its type; a column that the topic has no more keeps the name that files have."""
    id = field_id(of, schema)
    name = schema.find_column_name(id) if id is not None else None
    if name is None or id is None:
        return of.path, None
    return name, schema.find_field(id).field_type


def _nulls(files: Sequence[DataFile], id: int) -> int | None:
    counts = [file.null_value_counts.get(id) for file in files if file.null_value_counts is not None]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _bounds(files: Sequence[DataFile], id: int, of: IcebergType) -> tuple[str | None, str | None]:
    """The smallest and the largest bound, for people; texts may be cut short."""
    if not isinstance(of, PrimitiveType):
        return None, None
    lower = [_bound(of, file.lower_bounds[id]) for file in files if id in (file.lower_bounds or {})]
    upper = [_bound(of, file.upper_bounds[id]) for file in files if id in (file.upper_bounds or {})]
    shown: Callable[[Any], str] = lambda value: IdentityTransform().to_human_string(of, value)  # noqa: E731
    return shown(min(lower)) if lower else None, shown(max(upper)) if upper else None


def _bound(of: PrimitiveType, data: bytes) -> Any:
    """A bound as the column's type has it; one of before a widening is shorter."""
    if len(data) == 4 and isinstance(of, LongType):
        return struct.unpack("<i", data)[0]
    if len(data) == 4 and isinstance(of, DoubleType):
        return struct.unpack("<f", data)[0]
    return from_bytes(of, data)


# -- schema -----------------------------------------------------------------------------------------------------


def files_schema(topic: Topic, manifests: ManifestCache, footers: Footers) -> FilesSchema:
    """The Parquet schema of the newest file, and how other files differ from it."""
    facts = footers.read([file.file_path for file in _by_age(topic, live_files(topic, manifests))])
    if not facts:
        return FilesSchema(topic.name, None, 0, ())
    newest = facts[-1]
    by_file = [{_key(leaf.type, topic.schema): leaf.type for leaf in each.leaves} for each in facts]
    keys = dict.fromkeys([*by_file[-1], *(key for each in by_file for key in each)])
    columns = tuple(_schema_column(topic.schema, [each.get(key) for each in by_file]) for key in keys)
    return FilesSchema(topic.name, newest.path, len(facts), columns)


def _by_age(topic: Topic, files: Sequence[DataFile]) -> list[DataFile]:
    """The files, those with the latest records last."""
    id = topic.schema.find_field("_offset").field_id
    return sorted(files, key=lambda file: (file.upper_bounds or {}).get(id, b"")[::-1])


def _schema_column(schema: Schema, types: Sequence[LeafType | None]) -> SchemaColumn:
    """One column in all files; the newest file that has it says what it is."""
    of = next(each for each in reversed(types) if each is not None)
    different = sorted(_shown(each) for each in types if each != of)
    others = tuple(f"{text} in {len(list(same))}" for text, same in groupby(different))
    return SchemaColumn(of, _named(schema, of)[0], sum(each == of for each in types), others)


def _shown(of: LeafType | None) -> str:
    if of is None:
        return "missing"
    return " ".join(filter(None, (of.path, of.repetition, of.physical, of.logical)))
