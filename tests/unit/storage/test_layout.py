"""Every setting of a layout is in the footer of the file that was written with it, and the file stays whole."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema

from headwater.catalog.definitions import file_properties
from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.topics import Topics
from headwater.errors import InvalidOption
from headwater.sql.definition import checked_definition
from headwater.sql.schema_text import parse_columns
from headwater.storage.checksums import verify_file
from headwater.storage.layout import Layout, codecs, column_kind, layout_of, leaves, view_layout
from headwater.storage.pages import Page, read_pages
from headwater.storage.schemas import arrow_schema
from headwater.storage.seal import read_range
from headwater.storage.writer import PartitionedWriter, Target, local_path
from headwater.topics.ingest import target
from headwater.types import TOPICS, SortKey, TopicOptions, ViewOptions

COLUMNS = """
    id BIGINT, note STRING, price DOUBLE, at TIMESTAMP, flag BOOLEAN, raw BINARY,
    place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>, by MAP<STRING, STRUCT<n: BIGINT>>
"""
SCHEMA = parse_columns(COLUMNS)
ROWS = 6000
PATHS = [
    "id",
    "note",
    "price",
    "at",
    "flag",
    "raw",
    "place.city",
    "place.zip",
    "tags.list.element",
    "by.key_value.key",
    "by.key_value.value.n",
]


def rows(count: int = ROWS) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": n * 7919 % count,
                "note": f"note {n * 31} of some length",
                "price": n / 7,
                "at": n * 1000,
                "flag": n % 3 == 0,
                "raw": n.to_bytes(4, "big"),
                "place": {"city": f"c{n}", "zip": n},
                "tags": [f"t{n}"],
                "by": [("k", {"n": n})],
            }
            for n in range(count)
        ],
        schema=arrow_schema(SCHEMA),
    )


def layout(**settings: Any) -> Layout:
    return Layout("zstd", None, 1 << 30, **settings)


def written(folder: Path, how: Layout, properties: dict[str, str] | None = None, schema: Schema = SCHEMA) -> DataFile:
    ids = (f"{number}" for number in itertools.count())
    into = Target("t", folder.as_uri(), schema, UNPARTITIONED_PARTITION_SPEC, how, properties or {})
    writer = PartitionedWriter(into, lambda: next(ids))
    writer.write(rows().select([field.name for field in schema.fields]))
    (file,) = writer.close()
    assert verify_file(local_path(file.file_path), rows=ROWS)  # sealed, and every column matches
    return file


def footer(file: DataFile) -> pq.FileMetaData:
    return pq.read_metadata(local_path(file.file_path))


def chunks(file: DataFile) -> dict[str, pq.ColumnChunkMetaData]:
    group = footer(file).row_group(0)
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


def pages(file: DataFile, path: str) -> list[Page]:
    chunk = chunks(file)[path]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    handle = os.open(local_path(file.file_path), os.O_RDONLY)
    try:
        return list(read_pages(read_range(handle, start, start + chunk.total_compressed_size)))
    finally:
        os.close(handle)


def test_leaves_have_their_paths_in_parquet_and_in_iceberg(tmp_path: Path) -> None:
    found = list(leaves(arrow_schema(SCHEMA)))
    assert [leaf.path for leaf in found] == PATHS == list(chunks(written(tmp_path, layout())))
    assert {leaf.column for leaf in found} <= set(SCHEMA.column_names)
    assert [leaf.column for leaf in found][-3:] == ["tags.element", "by.key", "by.value.n"]
    kinds = ["numeric", "text", "numeric", "temporal", "boolean", "binary"]
    assert [column_kind(leaf.type) for leaf in found[:6]] == kinds
    assert (column_kind(pa.uuid()), column_kind(pa.decimal128(38, 2)), column_kind(pa.date32())) == (
        "binary",
        "numeric",
        "temporal",
    )


def test_a_column_beats_its_kind_and_that_the_table(tmp_path: Path) -> None:
    how = layout(
        compression_kinds=(("text", "gzip:9"), ("boolean", "none"), ("temporal", "zstd:1")),
        compression_columns=(("note", "snappy"), ("by", "lz4"), ("by.value.n", "brotli:5"), ("place", "none")),
    )
    expected = {
        "id": "ZSTD",
        "note": "SNAPPY",
        "price": "ZSTD",
        "at": "ZSTD",
        "flag": "UNCOMPRESSED",
        "raw": "ZSTD",
        "place.city": "UNCOMPRESSED",
        "place.zip": "UNCOMPRESSED",
        "tags.list.element": "GZIP",
        "by.key_value.key": "LZ4",
        "by.key_value.value.n": "BROTLI",
    }
    file = written(tmp_path, how)
    assert {path: chunk.compression for path, chunk in chunks(file).items()} == expected
    chosen = codecs(how, arrow_schema(SCHEMA))
    assert (chosen["at"], chosen["by.key_value.value.n"]) == (("zstd", 1), ("brotli", 5))
    read = pq.read_table(local_path(file.file_path), page_checksum_verification=True)
    assert read.column("by").to_pylist() == rows().column("by").to_pylist()


def test_a_level_is_that_of_its_column(tmp_path: Path) -> None:
    low = written(tmp_path / "low", Layout("zstd", 1, 1 << 30, dictionary="off"))
    high = written(
        tmp_path / "high", Layout("zstd", 1, 1 << 30, dictionary="off", compression_columns=(("note", "zstd:19"),))
    )
    assert chunks(high)["note"].total_compressed_size != chunks(low)["note"].total_compressed_size
    assert chunks(high)["raw"].total_compressed_size == chunks(low)["raw"].total_compressed_size


def test_pages_row_groups_and_the_page_index(tmp_path: Path) -> None:
    apart = {"encoding_columns": (("note", "plain"),), "compression_columns": (("note", "none"),)}
    plain = written(tmp_path / "a", layout(**apart))
    small = written(tmp_path / "b", layout(**apart, page_bytes=4096, row_group_rows=2500, page_index=False))
    assert len(pages(plain, "note")) == 1
    assert len(pages(small, "note")) > 10
    assert all(len(page.body) < 1.5 * 4096 for page in pages(small, "note"))
    assert all(page.crc is not None for file in (plain, small) for path in PATHS for page in pages(file, path))
    sizes = [footer(small).row_group(group).num_rows for group in range(footer(small).num_row_groups)]
    assert sizes == [2500, 2500, 1000]
    assert all(chunk.has_offset_index and chunk.has_column_index for chunk in chunks(plain).values())
    assert not any(chunk.has_offset_index or chunk.has_column_index for chunk in chunks(small).values())
    assert all(chunk.is_stats_set for path, chunk in chunks(small).items() if path in ("id", "note", "at"))


def test_bloom_filters_are_on_the_leaves_that_the_option_names(tmp_path: Path) -> None:
    asked = ("id", "0.01"), ("place.city", "0.5"), ("tags.element", "0.1"), ("by.key", "0.1"), ("note", "0.000001")
    file = written(tmp_path, layout(), file_properties(TopicOptions(bloom_columns=asked)))
    with_filters = {path for path, chunk in chunks(file).items() if chunk.bloom_filter_offset is not None}
    assert with_filters == {"id", "place.city", "tags.list.element", "by.key_value.key", "note"}
    sizes = {path: chunk.bloom_filter_length for path, chunk in chunks(file).items() if path in with_filters}
    assert sizes["note"] > sizes["id"] > sizes["place.city"]  # fewer false positives take more room


def test_sorted_files_say_so(tmp_path: Path) -> None:
    how = layout(ordering=(SortKey("price", True, False), SortKey("id")), sort_order_id=3)
    file = written(tmp_path, how)
    assert file.sort_order_id == 3
    keys = footer(file).row_group(0).sorting_columns
    assert keys == (pq.SortingColumn(2, True, False), pq.SortingColumn(0, False, True))
    # By the number of the Parquet column: those of nested columns before it count.
    turned = Schema(*reversed(SCHEMA.fields))
    assert footer(written(tmp_path / "turned", how, schema=turned)).row_group(0).sorting_columns[1].column_index == 10
    unordered = written(tmp_path / "unordered", layout())
    assert (unordered.sort_order_id, footer(unordered).row_group(0).sorting_columns) == (None, ())


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    create_catalog_file(tmp_path / "catalog.db", 5.0)
    tables = Tables(tmp_path / "catalog.db", tmp_path / "warehouse", 5.0)
    tables.catalog.create_namespace(TOPICS)
    yield Topics(tables)
    tables.close()


def test_a_topic_says_all_of_its_layout(topics: Topics) -> None:
    options = TopicOptions(
        compression="gzip",
        compression_level=4,
        compression_kinds=(("text", "zstd"),),
        compression_columns=(("id", "none"),),
        dictionary="off",
        dictionary_columns=(("note", "on"),),
        encoding_columns=(("id", "delta"),),
        page_index="off",
        page_size=8192,
        row_group_rows=2000,
        target_file_size=1 << 20,
    )
    ordering = (SortKey("id", True, False),)
    found = layout_of(topics.create(checked_definition("t", SCHEMA, (), options, ordering)))
    default = Layout("zstd", None, 0)
    clustered = layout_of(topics.create(checked_definition("z", SCHEMA, (), {}, (), ("id", "price"))))
    changed = {each.name for each in fields(Layout) if getattr(found, each.name) != getattr(default, each.name)}
    assert changed == {each.name for each in fields(Layout)} - {"clustering"}
    assert (found.sort_order_id, clustered.sort_order_id, clustered.clustering) == (1, None, ("id", "price"))
    assert pickle.loads(pickle.dumps(target(topics.load("t")))).layout == found
    assert view_layout(ViewOptions(compression="lz4", target_file_size=5)) == Layout("lz4", None, 5)


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"encoding_columns": "raw=byte_stream_split"}, "is for FLOAT, DOUBLE, whole numbers"),
        ({"encoding_columns": "note=delta"}, "is for whole numbers"),
        ({"encoding_columns": "place=plain"}, "is for every primitive column"),
        ({"encoding_columns": "id=delta", "dictionary_columns": "id=on"}, "a column has one encoding"),
        ({"bloom_columns": "price"}, "looked up by equality"),
    ],
)
def test_settings_that_no_file_could_have_are_refused(options: dict[str, object], detail: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        checked_definition("t", SCHEMA, (), options)
    assert detail in (refused.value.detail or "")
    assert checked_definition("t", SCHEMA, (), {"encoding_columns": "id=delta", "dictionary_columns": "id=off"})
