"""Definitions as Iceberg tables: a topic's definition becomes a schema, a partition spec and properties, and back.

Everything of ours is under `headwater.*`; what Iceberg has a property for is set there too, so that any Iceberg tool
writes the table as we do. `headwater.version` numbers this mapping; a later number than ours is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import BucketTransform, TruncateTransform, parse_transform
from pyiceberg.types import LongType, NestedField, TimestamptzType

from headwater.errors import Corrupt
from headwater.sql.options import parse_options, render_options
from headwater.types import OFFSET, SYSTEM_COLUMNS, TIMESTAMP, Partition, TopicDefinition, TopicOptions, ViewOptions

VERSION = 1
P_VERSION = "headwater.version"
P_KIND = "headwater.kind"
P_OFFSET = "headwater.offset"
"""The next offset that the table lacks: everything below it is committed."""
P_OPTION = "headwater.option."
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
    ours = {P_VERSION: str(VERSION), P_KIND: "topic", P_OFFSET: "0"}
    if options.description:
        ours["comment"] = options.description
    return file_properties(options) | ours | {P_OPTION + name: value for name, value in render_options(options).items()}


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
    return found


def topic_definition(name: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> TopicDefinition:
    """The definition that a topic's table carries; Corrupt when it is not one that this version understands."""
    version = properties.get(P_VERSION, "")
    if properties.get(P_KIND) != "topic" or not version.isdigit():
        raise Corrupt(f'table "topics.{name}" is not a topic', detail=f"Its property {P_KIND} does not say so.")
    if int(version) > VERSION:
        raise Corrupt(
            f'topic "{name}" was written by a later Headwater',
            detail=f"Its definition has version {version}; this one reads up to {VERSION}.",
            hint="Upgrade Headwater.",
        )
    options = parse_options(
        {key.removeprefix(P_OPTION): value for key, value in properties.items() if key.startswith(P_OPTION)}
    )
    users = assign_fresh_schema_ids(Schema(*(field for field in schema.fields if field.name not in SYSTEM_COLUMNS)))
    return TopicDefinition(name, users, tuple(_partition(field, schema) for field in spec.fields), options)


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
