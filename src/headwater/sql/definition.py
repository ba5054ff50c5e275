"""The one way to a topic definition: every surface ends here, so that no surface can define what another refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimeType,
    UUIDType,
)

from headwater.errors import InvalidName, InvalidOption, InvalidSchema
from headwater.sql.options import check_options, parse_options
from headwater.sql.partitioning import check_partitioning, unknown_column
from headwater.sql.schema_rules import checked_schema
from headwater.types import DEAD_SUFFIX, MAX_NAME, Partition, TopicDefinition, TopicOptions, checked_name

MAX_TOPIC_NAME = MAX_NAME - len(DEAD_SUFFIX)
"""Shorter than other names, so that the name of the topic's dead letters is a name too."""


def checked_definition(
    name: str,
    schema: Schema | Iterable[NestedField],
    partitioning: Iterable[Partition] = (),
    options: TopicOptions | Mapping[str, object] | None = None,
) -> TopicDefinition:
    """A topic that can be created: every part checked, and all of them together; field ids are assigned afresh."""
    if isinstance(schema, Schema) and schema.identifier_field_ids:
        raise InvalidSchema(
            f'topic "{name[:MAX_NAME]}" has identifier fields',
            hint="Use the option dedup_key to keep one record per key.",
        )
    columns = checked_schema(schema.fields if isinstance(schema, Schema) else schema)
    values = check_options(options) if isinstance(options, TopicOptions) else parse_options(options or {})
    _check_dedup_key(columns, values.dedup_key)
    return TopicDefinition(checked_topic_name(name), columns, check_partitioning(columns, partitioning), values)


def checked_topic_name(name: str) -> str:
    """`name`, if a user may create a topic of this name."""
    checked_name(name, "topic")
    if name.endswith(DEAD_SUFFIX):
        raise InvalidName(
            f'topic name "{name}" is reserved', detail=f"Names that end in {DEAD_SUFFIX} belong to dead letters."
        )
    if len(name) > MAX_TOPIC_NAME:
        raise InvalidName(
            f'topic name "{name}" is too long', detail=f"Names of topics have at most {MAX_TOPIC_NAME} characters."
        )
    return name


def _check_dedup_key(schema: Schema, key: tuple[str, ...]) -> None:
    columns = {field.name: field.field_type for field in schema.fields}
    for column in key:
        of = columns.get(column)
        if of is None:
            unknown = unknown_column('option "dedup_key"', column, tuple(columns))
            raise InvalidOption(unknown.message, detail=unknown.detail, hint=unknown.hint, option="dedup_key")
        if not of.is_primitive or isinstance(of, FloatType | DoubleType):
            kind = f'type "{of}"' if of.is_primitive else "a nested type"
            raise InvalidOption(
                f'option "dedup_key" does not take column "{column}" of {kind}',
                detail="Keys are compared for equality: nested columns, FLOAT and DOUBLE cannot be part of one.",
                option="dedup_key",
            )


def notices(definition: TopicDefinition) -> tuple[str, ...]:
    """What the creator of a topic must know although it can be created, as whole sentences."""
    return tuple(_notices(definition))


def _notices(definition: TopicDefinition) -> Iterator[str]:
    if columns := _columns_with(definition.schema, TimeType):
        yield (
            f"{columns}: Spark cannot read Iceberg tables with TIME columns. "
            "The topic can be queried with DuckDB only; views and streams cannot use it."
        )
    if columns := _columns_with(definition.schema, UUIDType):
        yield f"{columns}: Spark shows UUID values as strings."
    if columns := _columns_with(definition.schema, FixedType):
        yield f"{columns}: Spark shows FIXED values as binary."
    options = definition.options
    if not options.dedup_key and options.dedup_horizon != TopicOptions().dedup_horizon:
        yield "dedup_horizon has no effect without dedup_key."


def _columns_with(schema: Schema, of: type[IcebergType]) -> str:
    """`Column "a"` or `Columns "a", "b.c"`: the fields of a type at any depth, or an empty text."""
    found = [f'"{path}"' for field in schema.fields for path in _paths(field.name, field.field_type, of)]
    return f"Column{'s' if len(found) > 1 else ''} {', '.join(found)}" if found else ""


def _paths(path: str, of: IcebergType, wanted: type[IcebergType]) -> Iterator[str]:
    match of:
        case ListType():
            yield from _paths(f"{path}.element", of.element_type, wanted)
        case MapType():
            yield from _paths(f"{path}.key", of.key_type, wanted)
            yield from _paths(f"{path}.value", of.value_type, wanted)
        case StructType():
            for field in of.fields:
                yield from _paths(f"{path}.{field.name}", field.field_type, wanted)
        case _ if isinstance(of, wanted):
            yield path
