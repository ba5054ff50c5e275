"""Definitions as Iceberg tables: a topic's definition becomes a schema, a partition spec and properties, and back.

Everything of ours is under `headwater.*`; what Iceberg has a property for is set there too, so that any Iceberg tool
writes the table as we do. `headwater.version` numbers this mapping; a later number than ours is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, VoidTransform, parse_transform
from pyiceberg.types import LongType, NestedField, TimestamptzType

from headwater.errors import Corrupt
from headwater.sql.options import parse_options, render_options
from headwater.types import (
    OFFSET,
    SYSTEM_COLUMNS,
    TIMESTAMP,
    Partition,
    SortKey,
    TopicDefinition,
    TopicOptions,
    ViewOptions,
)
from headwater.version import __version__, newer_version

VERSION = 1
P_VERSION = "headwater.version"
P_WRITTEN_BY = "headwater.written-by"
"""The version of Headwater that wrote the format."""
P_KIND = "headwater.kind"
P_OFFSET = "headwater.offset"
"""The next offset that the table lacks: everything below it is committed."""
P_ACKNOWLEDGED = "headwater.acknowledged"
"""The end of the topic's log in SQLite when the position last moved: what a log that is lost or older lacks."""
P_OPTION = "headwater.option."
P_ZORDER = "headwater.zorder"
"""The columns of a Z-order, separated by commas; Iceberg's sort orders cannot say one."""
P_GAPS = "headwater.offset-gaps"
"""Ranges of offsets that a rollback took out of the table, as JSON."""
S_FROM = "headwater.offset-from"
S_TO = "headwater.offset-to"

_FIRST_PARTITION_ID = 1000


def table_schema(definition: TopicDefinition) -> Schema:
    """The table's columns: the user's, then `_offset` and `_timestamp`."""
    last = definition.schema.highest_field_id
    return assign_fresh_schema_ids(
        Schema(
            *definition.schema.fields,
            NestedField(last + 1, OFFSET, LongType(), required=True, doc="position in the topic, dense from 0"),
            NestedField(last + 2, TIMESTAMP, TimestamptzType(), required=True, doc="when it was acknowledged"),
        )
    )


def partition_spec(definition: TopicDefinition, schema: Schema) -> PartitionSpec:
    """The Iceberg partition spec over the table's `schema`."""
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(part.column).field_id,
                field_id=_FIRST_PARTITION_ID + position,
                transform=parse_transform(_transform_text(part)),
                name=part.name,
            )
            for position, part in enumerate(definition.partitioning)
        )
    )


def _transform_text(part: Partition) -> str:
    return part.transform if part.parameter is None else f"{part.transform}[{part.parameter}]"


def table_properties(definition: TopicDefinition) -> dict[str, str]:
    """The properties of a new topic's table."""
    options = definition.options
    ours = {P_VERSION: str(VERSION), P_WRITTEN_BY: __version__, P_KIND: "topic", P_OFFSET: "0"}
    if options.description:
        ours["comment"] = options.description
    if definition.clustering:
        ours[P_ZORDER] = ",".join(definition.clustering)
    return file_properties(options) | ours | {P_OPTION + name: value for name, value in render_options(options).items()}


def sort_order(definition: TopicDefinition, schema: Schema) -> SortOrder:
    """The Iceberg sort order over the table's `schema`."""
    if not definition.ordering:
        return UNSORTED_SORT_ORDER
    return SortOrder(
        *(
            SortField(
                source_id=schema.find_field(key.column).field_id,
                transform=IdentityTransform(),
                direction=SortDirection.DESC if key.descending else SortDirection.ASC,
                null_order=NullOrder.NULLS_FIRST if key.nulls_first else NullOrder.NULLS_LAST,
            )
            for key in definition.ordering
        )
    )


def file_properties(options: TopicOptions | ViewOptions) -> dict[str, str]:
    """Iceberg's own properties, of topics and views: how files are written, and metadata kept."""
    found = {
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "uncompressed" if options.compression == "none" else options.compression,
        "write.target-file-size-bytes": str(options.target_file_size),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "20",
        "commit.manifest-merge.enabled": "true",
        # A commit on a stale base must fail, not rebase itself: our own code checks the position and tries again.
        "commit.retry.num-retries": "0",
    }
    if options.compression_level is not None:
        found["write.parquet.compression-level"] = str(options.compression_level)
    return found | _page_properties(options) if isinstance(options, TopicOptions) else found


def _page_properties(options: TopicOptions) -> dict[str, str]:
    """What Iceberg's writers know of the settings of pages and bloom filters."""
    found = {"write.parquet.page-size-bytes": str(options.page_size)}
    for column, share in options.bloom_columns:
        found[f"write.parquet.bloom-filter-enabled.column.{column}"] = "true"
        found[f"write.parquet.bloom-filter-fpp.column.{column}"] = share
    return found


def topic_definition(
    name: str,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    order: SortOrder = UNSORTED_SORT_ORDER,
) -> TopicDefinition:
    """The definition that a topic's table carries; Corrupt when it is not one that this version understands."""
    version = properties.get(P_VERSION, "")
    if properties.get(P_KIND) != "topic" or not version.isdigit():
        raise Corrupt(
            f'definition of topic "{name}" cannot be read',
            detail=f"The property {P_KIND} or {P_VERSION} of its table is not as it was written.",
            hint="Restore its metadata from a backup; `headwater doctor` checks all tables.",
        )
    if int(version) > VERSION:
        raise newer_version(f'topic "{name}"', "version", version, VERSION, properties.get(P_WRITTEN_BY))
    options = parse_options(
        {key.removeprefix(P_OPTION): value for key, value in properties.items() if key.startswith(P_OPTION)}
    )
    # Fresh ids, so that equal definitions are equal; the table's own are those of `Topic.columns`.
    users = assign_fresh_schema_ids(user_columns(schema))
    # A field that partition evolution dropped stays in the spec of some tables as a void one.
    parts = tuple(_partition(each, schema) for each in spec.fields if not isinstance(each.transform, VoidTransform))
    keys = tuple(_sort_key(each, schema) for each in order.fields if isinstance(each.transform, IdentityTransform))
    clustering = tuple(filter(None, properties.get(P_ZORDER, "").split(",")))
    return TopicDefinition(name, users, parts, options, keys, clustering)


def user_columns(schema: Schema) -> Schema:
    """The columns without the system's, with the ids that they have."""
    return Schema(*(field for field in schema.fields if field.name not in SYSTEM_COLUMNS), schema_id=schema.schema_id)


def _sort_key(field: SortField, schema: Schema) -> SortKey:
    column = schema.find_column_name(field.source_id) or ""
    return SortKey(column, field.direction is SortDirection.DESC, field.null_order is NullOrder.NULLS_FIRST)


def _partition(field: PartitionField, schema: Schema) -> Partition:
    column = schema.find_column_name(field.source_id) or field.name
    transform = field.transform
    match transform:
        case BucketTransform():
            return Partition("bucket", column, transform.num_buckets)
        case TruncateTransform():
            return Partition("truncate", column, transform.width)
        case _:
            return replace(Partition("identity", column), transform=str(transform))  # type: ignore[arg-type]
