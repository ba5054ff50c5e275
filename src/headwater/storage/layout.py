"""How files of a table are written: codec and encoding of every column, sizes of pages and groups, order of rows.

A layout is a value that is pickled to the workers, so that ingest, DELETE and UPDATE, and compaction write alike.
A setting of a column beats that of its kind, and that beats the table's; one of a nested column holds for its leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headwater.catalog.topics import Topic
from headwater.sql.option_pairs import codec_and_level
from headwater.types import Codec, ColumnKind, Pairs, SortKey, ViewOptions

ROW_GROUP_ROWS = 256 * 1024
PAGE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Layout:
    """How files of a table are written; `sort_order_id` is the Iceberg id of `ordering`."""

    codec: Codec
    level: int | None
    target_bytes: int
    row_group_rows: int = ROW_GROUP_ROWS
    compression_kinds: Pairs = ()
    compression_columns: Pairs = ()
    dictionary: Literal["auto", "on", "off"] = "auto"
    dictionary_columns: Pairs = ()
    encoding_columns: Pairs = ()
    page_index: bool = True
    page_bytes: int = PAGE_BYTES
    ordering: tuple[SortKey, ...] = ()
    clustering: tuple[str, ...] = ()
    sort_order_id: int | None = None

    @property
    def ordered(self) -> bool:
        """Whether rows of a file lie in some order other than the one in which they came."""
        return bool(self.ordering or self.clustering)


def layout_of(topic: Topic) -> Layout:
    """The layout of a topic's files."""
    definition, options = topic.definition, topic.definition.options
    return Layout(
        options.compression,
        options.compression_level,
        options.target_file_size,
        options.row_group_rows,
        options.compression_kinds,
        options.compression_columns,
        options.dictionary,
        options.dictionary_columns,
        options.encoding_columns,
        options.page_index == "on",
        options.page_size,
        definition.ordering,
        definition.clustering,
        topic.table.metadata.default_sort_order_id if definition.ordering else None,
    )


def view_layout(options: ViewOptions) -> Layout:
    """The layout of a view's files."""
    return Layout(options.compression, options.compression_level, options.target_file_size)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A Parquet column: its path there, the path by which Iceberg and the options name it, and its type."""

    path: str
    column: str
    type: pa.DataType

    def setting(self, pairs: Mapping[str, str]) -> str | None:
        """What is set for the leaf or for the nearest column around it."""
        parts = self.column.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((pairs[name] for name in names if name in pairs), None)


def leaves(schema: pa.Schema) -> Iterator[Leaf]:
    """The Parquet columns of a file with this schema, in their order."""
    for field in schema:
        yield from _leaves(field.name, field.name, field.type)


def _leaves(path: str, column: str, of: pa.DataType) -> Iterator[Leaf]:
    if pa.types.is_struct(of):
        for field in of:
            yield from _leaves(f"{path}.{field.name}", f"{column}.{field.name}", field.type)
    elif pa.types.is_list(of):
        yield from _leaves(f"{path}.list.element", f"{column}.element", of.value_type)
    elif pa.types.is_map(of):
        yield from _leaves(f"{path}.key_value.key", f"{column}.key", of.key_type)
        yield from _leaves(f"{path}.key_value.value", f"{column}.value", of.item_type)
    else:
        yield Leaf(path, column, of)


def column_kind(of: pa.DataType) -> ColumnKind:
    """The kind of column that a primitive type makes."""
    types = pa.types
    if types.is_string(of) or types.is_large_string(of):
        return "text"
    if types.is_boolean(of):
        return "boolean"
    if types.is_temporal(of):
        return "temporal"
    return "numeric" if types.is_integer(of) or types.is_floating(of) or types.is_decimal(of) else "binary"


def codecs(layout: Layout, schema: pa.Schema) -> dict[str, tuple[Codec, int | None]]:
    """The codec and level of every Parquet column."""
    by_kind, by_column = dict(layout.compression_kinds), dict(layout.compression_columns)
    found = {}
    for leaf in leaves(schema):
        said = leaf.setting(by_column) or by_kind.get(column_kind(leaf.type))
        found[leaf.path] = (layout.codec, layout.level) if said is None else codec_and_level(said)
    return found
