"""The one way to a stream definition: every surface ends here, so that no surface can define what another refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headwater.errors import InvalidOption, InvalidStatement
from headwater.sql.definition import check_reserved, checked_definition, checked_topic_name
from headwater.sql.options import parse_options
from headwater.sql.partitioning import unknown_column
from headwater.sql.schema_rules import checked_schema
from headwater.sql.schema_text import render_type
from headwater.sql.stream_options import (
    PART_FIELDS,
    altered_option,
    change_stream_options,
    check_stream_options,
    parse_stream_options,
)
from headwater.types import Partition, StreamDefinition, StreamOptions, TopicDefinition, checked_name


def checked_stream(
    name: str,
    schema: Schema | Iterable[NestedField] | None = None,
    options: StreamOptions | Mapping[str, object] | None = None,
    partitioning: Iterable[Partition] = (),
    topic_options: Mapping[str, str] | None = None,
) -> StreamDefinition:
    """A stream whose parts are what they should be; whether its topic fits is decided when the stream is made."""
    given = options if options is not None else {}
    values = check_stream_options(given) if isinstance(given, StreamOptions) else parse_stream_options(given)
    fields = schema.fields if isinstance(schema, Schema) else schema
    columns = None if fields is None else checked_schema(fields)
    parts, of_topic = tuple(partitioning), dict(topic_options or {})
    definition = StreamDefinition(checked_stream_name(name), columns, values, parts, of_topic)
    checked_topic_name(definition.topic)
    if columns is None:
        _check_without_columns(parts, of_topic)
    else:
        check_stream_columns(columns, values)
        topic_of(definition)
    return definition


def checked_stream_name(name: str) -> str:
    """`name`, if a user may create a stream of this name."""
    check_reserved(checked_name(name, "stream"), "stream")
    return name


def topic_of(definition: StreamDefinition) -> TopicDefinition:
    """The topic that the stream makes if there is none; only for a stream with columns."""
    assert definition.schema is not None
    options = {"description": definition.options.description, **definition.topic_options}
    return checked_definition(definition.topic, definition.schema, definition.partitioning, options)


def change_stream(definition: StreamDefinition, values: Mapping[str, object]) -> StreamDefinition:
    """The definition with the options changed that ALTER STREAM names."""
    for name in values:
        altered_option(name)
    options = change_stream_options(definition.options, values)
    if definition.schema is not None:
        check_stream_columns(definition.schema, options)
    return StreamDefinition(
        definition.name, definition.schema, options, definition.partitioning, definition.topic_options
    )


def check_stream_columns(schema: Schema, options: StreamOptions) -> None:
    """InvalidOption if an option names a column that is not there, or one that cannot take what it is for."""
    columns = {field.name: field.field_type for field in schema.fields}
    time = options.timestamp_field
    if time and time != "_timestamp":
        of = _column(columns, "timestamp_field", time)
        if not isinstance(of, TimestampType | TimestamptzType):
            raise _refused("timestamp_field", time, of, "It takes a TIMESTAMP or TIMESTAMP_NTZ.")
    filled: dict[str, str] = {}
    for option, column in _parts(options):
        of = _column(columns, option, column)
        if not _takes(option, of):
            raise _refused(option, column, of, f"It takes {_TAKEN[option]}.")
        if column in filled:
            detail = f'It takes what the option "{filled[column]}" names.'
            raise InvalidOption(f'option "{option}" does not take column "{column}"', detail=detail, option=option)
        filled[column] = option
    if options.format == "raw":
        _check_raw({name: of for name, of in columns.items() if name not in filled})


def _check_raw(left: Mapping[str, IcebergType]) -> None:
    if len(left) == 1 and isinstance(next(iter(left.values())), StringType | BinaryType):
        return
    shown = ", ".join(left) or "no column"
    raise InvalidOption(
        'format "raw" needs one STRING or BINARY column',
        detail=f"A message is one value, and this stream has {shown} beside the columns that take its other parts.",
        option="format",
    )


_TAKEN = {
    "key_field": "a STRING or BINARY",
    "headers_field": "a MAP of STRING to STRING or BINARY",
    "record_time_field": "a TIMESTAMP",
    "partition_field": "an INT or BIGINT",
    "offset_field": "a BIGINT",
}


def _takes(option: str, of: IcebergType) -> bool:
    match option:
        case "key_field":
            return isinstance(of, StringType | BinaryType)
        case "headers_field":
            if not isinstance(of, MapType) or not isinstance(of.key_type, StringType):
                return False
            return isinstance(of.value_type, StringType | BinaryType)
        case "record_time_field":
            return isinstance(of, TimestamptzType)
        case "partition_field":
            return isinstance(of, IntegerType | LongType)
        case _:
            return isinstance(of, LongType)


def _parts(options: StreamOptions) -> Iterator[tuple[str, str]]:
    return ((name, getattr(options, name)) for name in PART_FIELDS if getattr(options, name))


def _column(columns: Mapping[str, IcebergType], option: str, column: str) -> IcebergType:
    if column in columns:
        return columns[column]
    unknown = unknown_column(f'option "{option}"', column, tuple(columns))
    raise InvalidOption(unknown.message, detail=unknown.detail, hint=unknown.hint, option=option)


def _refused(option: str, column: str, of: IcebergType, detail: str) -> InvalidOption:
    return InvalidOption(
        f'option "{option}" does not take column "{column}" of type "{render_type(of)}"', detail=detail, option=option
    )


def _check_without_columns(partitioning: tuple[Partition, ...], topic_options: Mapping[str, str]) -> None:
    """Without columns there is nothing to make a topic of, and what is for that topic would be lost silently."""
    if partitioning:
        raise InvalidStatement(
            "a stream without columns has no partitioning", hint="Name the columns, or partition the topic."
        )
    if topic_options:
        parse_options(topic_options)
        name = next(iter(topic_options))
        raise InvalidOption(
            f'option "{name}" has no effect on a stream without columns',
            detail="It is one of the topic, which must exist if the stream does not say what its columns are.",
            hint=f"Name the columns, or use ALTER TOPIC ... SET ({name} = ...).",
            option=name,
        )
