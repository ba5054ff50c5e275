"""The one way to a topic definition: every surface ends here, so that no surface can define what another refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.errors import InvalidName, InvalidOption, InvalidSchema
from headwater.sql.options import check_options, parse_options
from headwater.sql.ordering import check_clustering, check_ordering
from headwater.sql.partitioning import check_partitioning, unknown_column
from headwater.sql.schema_rules import checked_schema
from headwater.sql.schema_text import BARE_DECIMAL
from headwater.types import (
    CORRECTIONS_SUFFIX,
    DEAD_SUFFIX,
    LATE_SUFFIX,
    MAX_NAME,
    OFFSET,
    SYSTEM_COLUMNS,
    Partition,
    SortKey,
    TopicDefinition,
    TopicOptions,
    checked_name,
)

MAX_TOPIC_NAME = MAX_NAME - len(DEAD_SUFFIX)
"""Shorter than other names, so that the name of the topic's dead letters is a name too."""

_RESERVED = {
    DEAD_SUFFIX: "dead letters",
    LATE_SUFFIX: "late rows",
    CORRECTIONS_SUFFIX: "corrections of late rows",
}


def checked_definition(
    name: str,
    schema: Schema | Iterable[NestedField],
    partitioning: Iterable[Partition] = (),
    options: TopicOptions | Mapping[str, object] | None = None,
    ordering: Iterable[SortKey] = (),
    clustering: Iterable[str] = (),
) -> TopicDefinition:
    """A topic that can be created: every part checked, and all of them together; field ids are assigned afresh."""
    if isinstance(schema, Schema) and schema.identifier_field_ids:
        raise InvalidSchema(
            f'topic "{name[:MAX_NAME]}" has identifier fields',
            hint="Use the option dedup_key to keep one record per key.",
        )
    columns = checked_schema(schema.fields if isinstance(schema, Schema) else schema)
    values = check_options(options) if isinstance(options, TopicOptions) else parse_options(options or {})
    check_column_options(columns, values)
    keys = check_ordering(columns, ordering)
    return TopicDefinition(
        checked_topic_name(name),
        columns,
        check_partitioning(columns, partitioning),
        values,
        keys,
        check_clustering(columns, clustering, keys),
    )


def checked_topic_name(name: str) -> str:
    """`name`, if a user may create a topic of this name."""
    check_reserved(checked_name(name, "topic"), "topic")
    if len(name) > MAX_TOPIC_NAME:
        raise InvalidName(
            f'topic name "{name}" is too long', detail=f"Names of topics have at most {MAX_TOPIC_NAME} characters."
        )
    return name


def check_reserved(name: str, kind: str) -> None:
    """InvalidName if the name is one of those that Headwater gives to tables of its own."""
    for suffix, owner in _RESERVED.items():
        if name.endswith(suffix):
            raise InvalidName(
                f'{kind} name "{name}" is reserved', detail=f"Names that end in {suffix} belong to {owner}."
            )


def check_column_options(schema: Schema, options: TopicOptions) -> None:
    """InvalidOption if an option names a column that is not there, or one that it cannot be for."""
    _check_dedup_key(schema, options.dedup_key)
    _check_dictionaries(options)
    for name in ("compression_columns", "dictionary_columns", "encoding_columns", "bloom_columns"):
        for column, value in getattr(options, name):
            _check_setting(name, value, column, _column_type(schema, column, name))
    if options.retention_column not in SYSTEM_COLUMNS:
        of = _column_type(schema, options.retention_column, "retention_column")
        if not isinstance(of, DateType | TimestampType | TimestamptzType):
            raise _refused(
                "retention_column", options.retention_column, of, "A record's age is told by a date or a time."
            )
    elif options.retention_column == OFFSET:
        raise InvalidOption(
            'option "retention_column" does not take "_offset"',
            detail="A record's age is told by a date or a time.",
            option="retention_column",
        )


def _check_setting(name: str, value: str, column: str, of: IcebergType) -> None:
    if name == "bloom_columns" and (not of.is_primitive or isinstance(of, BooleanType | FloatType | DoubleType)):
        raise _refused(name, column, of, "Bloom filters are for values that are looked up by equality.")
    if name == "encoding_columns" and not (of.is_primitive and encodes(value, of)):
        raise _refused(name, column, of, f"The encoding {value} is for {_ENCODES[value]}.")


def _check_dictionaries(options: TopicOptions) -> None:
    switched = dict(options.dictionary_columns)
    if both := next((name for name, _ in options.encoding_columns if switched.get(name) == "on"), None):
        raise InvalidOption(
            f'option "encoding_columns" does not take column "{both}"',
            detail="The option dictionary_columns gives it a dictionary, and a column has one encoding.",
            hint="Leave it out of one of them.",
            option="encoding_columns",
        )


_ENCODES = {
    "plain": "every primitive column",
    "delta": "whole numbers, dates, times and DECIMAL of up to 18 digits",
    "byte_stream_split": "FLOAT, DOUBLE, whole numbers, dates, times and DECIMAL of up to 18 digits",
    "delta_length": "STRING and BINARY",
    "delta_strings": "STRING and BINARY",
}
_COUNTED = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)


def encodes(encoding: str, of: IcebergType) -> bool:
    """Whether an encoding can store values of a primitive type so that both engines read them.

    Parquet splits the bytes of fixed-length values too, and DuckDB does not read them.
    """
    counted = isinstance(of, _COUNTED) or (isinstance(of, DecimalType) and of.precision <= 18)
    match encoding:
        case "delta":
            return counted
        case "byte_stream_split":
            return counted or isinstance(of, FloatType | DoubleType)
        case "delta_length" | "delta_strings":
            return isinstance(of, StringType | BinaryType)
        case _:
            return True


def _column_type(schema: Schema, path: str, option: str) -> IcebergType:
    """The type of a column or of a field inside one."""
    if path in schema.column_names:
        return schema.find_field(path).field_type
    unknown = unknown_column(f'option "{option}"', path, tuple(schema.column_names))
    raise InvalidOption(unknown.message, detail=unknown.detail, hint=unknown.hint, option=option)


def _refused(option: str, column: str, of: IcebergType, detail: str) -> InvalidOption:
    kind = f'type "{of}"' if of.is_primitive else "a nested type"
    return InvalidOption(f'option "{option}" does not take column "{column}" of {kind}', detail=detail, option=option)


def _check_dedup_key(schema: Schema, key: tuple[str, ...]) -> None:
    columns = {field.name: field.field_type for field in schema.fields}
    for column in key:
        of = columns.get(column)
        if of is None:
            unknown = unknown_column('option "dedup_key"', column, tuple(columns))
            raise InvalidOption(unknown.message, detail=unknown.detail, hint=unknown.hint, option="dedup_key")
        if not of.is_primitive or isinstance(of, FloatType | DoubleType):
            detail = "Keys are compared for equality: nested columns, FLOAT and DOUBLE cannot be part of one."
            raise _refused("dedup_key", column, of, detail)


def notices(definition: TopicDefinition) -> tuple[str, ...]:
    """What the creator of a topic must know although it can be created, as whole sentences."""
    return tuple(_notices(definition))


def _notices(definition: TopicDefinition) -> Iterator[str]:
    if columns := _columns_with(definition.schema, DecimalType, lambda of: of == DecimalType(*BARE_DECIMAL)):
        precision, scale = BARE_DECIMAL
        yield f"{columns}: DECIMAL is DECIMAL({precision}, {scale}); write DECIMAL(p, s) for other digits."
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


def _columns_with(
    schema: Schema, of: type[IcebergType], matches: Callable[[IcebergType], bool] = lambda _: True
) -> str:
    """`Column "a"` or `Columns "a", "b.c"`: the fields of a type at any depth, or an empty text."""

    def wanted(each: IcebergType) -> bool:
        return isinstance(each, of) and matches(each)

    found = [f'"{path}"' for field in schema.fields for path in _paths(field.name, field.field_type, wanted)]
    return f"Column{'s' if len(found) > 1 else ''} {', '.join(found)}" if found else ""


def _paths(path: str, of: IcebergType, wanted: Callable[[IcebergType], bool]) -> Iterator[str]:
    match of:
        case ListType():
            yield from _paths(f"{path}.element", of.element_type, wanted)
        case MapType():
            yield from _paths(f"{path}.key", of.key_type, wanted)
            yield from _paths(f"{path}.value", of.value_type, wanted)
        case StructType():
            for field in of.fields:
                yield from _paths(f"{path}.{field.name}", field.field_type, wanted)
        case _ if wanted(of):
            yield path
