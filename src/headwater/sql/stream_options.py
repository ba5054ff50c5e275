"""Every option that a stream's `WITH (...)` takes, as one table, and what their values mean together.

CREATE STREAM takes the options of a topic too, for the topic that it makes if there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headwater.errors import InvalidOption
from headwater.sql.cursor import closest
from headwater.sql.kafka_texts import CLIENT_SETTINGS, CONNECTION, TOPIC
from headwater.sql.option_table import Option, find_option
from headwater.sql.options import OPTIONS, option
from headwater.types import StreamOptions

_ROWS = (
    Option("topic", "topic", "The topic that the stream is a view of; the one of the stream's name if it is not set."),
    Option(
        "format",
        "choice",
        "What the messages of the connector hold. Producers of the topic may use every format whatever it is.",
        choices=("json", "csv", "avro", "raw"),
    ),
    Option(
        "timestamp_field",
        "column",
        "The column that tells when a record happened; if it is not set, _timestamp, when the record arrived.",
    ),
    Option(
        "max_out_of_orderness",
        "duration",
        "How far behind the newest record another may be without being late: the watermark's distance.",
        maximum=365 * 86_400,
    ),
    Option("connector", "choice", "Where records come from, besides producers.", choices=("none", "kafka")),
    Option(
        "connection",
        "text",
        "The connection to the brokers that the connector reads from: a table [connections.NAME] of the configuration.",
        pattern=CONNECTION,
        example="the name of a connection that is configured",
    ),
    Option(
        "kafka_topic",
        "text",
        "The Kafka topic that is read.",
        pattern=TOPIC,
        example="the name of a Kafka topic: letters, digits, '.', '_' and '-', at most 249",
    ),
    Option(
        "kafka_start",
        "choice",
        "Where reading starts the first time: with the oldest message, or with those that come from now on.",
        choices=("earliest", "latest"),
    ),
    Option(
        "kafka_options",
        "pairs",
        "Settings that tune the Kafka client. Addresses, files and credentials are those of the connection.",
        pairs=CLIENT_SETTINGS,
    ),
    Option("avro_schema", "json", "The schema with which messages of format avro were written."),
    Option("key_field", "column", "The column that takes the key of a message, a STRING or BINARY."),
    Option("headers_field", "column", "The column that takes its headers, a MAP of STRING to STRING or BINARY."),
    Option("record_time_field", "column", "The column that takes its timestamp, a TIMESTAMP."),
    Option("partition_field", "column", "The column that takes its partition, an INT or BIGINT."),
    Option("offset_field", "column", "The column that takes its offset, a BIGINT."),
    Option("description", "text", "What the stream is for. COMMENT sets the same."),
)
STREAM_OPTIONS: tuple[Option, ...] = tuple(replace(each, of=StreamOptions) for each in _ROWS)

PART_FIELDS = ("key_field", "headers_field", "record_time_field", "partition_field", "offset_field")
"""Options that name columns which take parts of a message."""

_OF_CONNECTOR = ("connection", "kafka_topic", "kafka_start", "kafka_options", *PART_FIELDS)
_NEEDED = ("connection", "kafka_topic")
_FIXED = ("topic", "connector", "timestamp_field", *PART_FIELDS)
_NAMES = tuple(each.name for each in STREAM_OPTIONS)


def stream_option(name: str) -> Option:
    """The option of a stream of this name, or InvalidOption with a suggestion."""
    if name == "bootstrap_servers":
        raise InvalidOption(
            'option "bootstrap_servers" is not known',
            detail="Brokers are named in the configuration, not in statements.",
            hint='Add a table [connections.NAME] with type = "kafka" and bootstrap_servers to headwater.toml, '
            "and use connection = 'NAME'.",
            option=name,
        )
    return find_option(name, STREAM_OPTIONS, "Streams")


def created_option(name: str) -> Option:
    """What CREATE STREAM takes under this name: an option of the stream, or else one of the topic that it makes."""
    if name in (*_NAMES, "bootstrap_servers"):
        return stream_option(name)
    of_topics = tuple(each.name for each in OPTIONS)
    if name in of_topics:
        return option(name)
    guess = closest(name, (*_NAMES, *of_topics))
    raise InvalidOption(
        f'option "{name[:64]}" is not known',
        detail=f"Streams have the options {', '.join(_NAMES)}, and take those of topics for the topic that they make.",
        hint=f'Did you mean "{guess}"?' if guess else None,
        option=name,
    )


def altered_option(name: str) -> Option:
    """What ALTER STREAM takes under this name: what the stream reads and where from stays as it was created."""
    if name in _FIXED:
        raise InvalidOption(
            f'option "{name}" of a stream cannot be altered', hint="Use CREATE OR REPLACE STREAM.", option=name
        )
    if name not in _NAMES and name in (each.name for each in OPTIONS):
        hint = f"Use ALTER TOPIC name SET ({name} = ...)."
        raise InvalidOption(f'option "{name}" is one of topics, not of streams', hint=hint, option=name)
    return stream_option(name)


def split_options(values: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """What CREATE STREAM was given, as options of the stream, and as texts of those of the topic."""
    read = {name: created_option(name).read(value) for name, value in values.items()}
    of_topic = {name: option(name).render(value) for name, value in read.items() if name not in _NAMES}
    return {name: value for name, value in values.items() if name in _NAMES}, of_topic


def parse_stream_options(values: Mapping[str, object]) -> StreamOptions:
    """Stream options from texts, numbers and lists by name; what is not named keeps its default."""
    return change_stream_options(StreamOptions(), values)


def change_stream_options(options: StreamOptions, values: Mapping[str, object]) -> StreamOptions:
    """The options with those changed that `values` names."""
    read: dict[str, Any] = {name: stream_option(name).read(value) for name, value in values.items()}
    changed = replace(options, **read)
    _check_connector(changed)
    _check_avro(changed)
    return changed


def check_stream_options(options: StreamOptions) -> StreamOptions:
    """The same options if each has a value that it takes; the way in for options built in Python."""
    return parse_stream_options({name: getattr(options, name) for name in _NAMES})


def render_stream_options(options: StreamOptions, *, changed_only: bool = False) -> dict[str, str]:
    """Options as texts by name, which `parse_stream_options` reads back to equal ones; optionally the non-defaults."""
    values = ((each, getattr(options, each.name)) for each in STREAM_OPTIONS)
    return {each.name: each.render(value) for each, value in values if not changed_only or value != each.default}


def _check_connector(options: StreamOptions) -> None:
    is_set = [name for name in _OF_CONNECTOR if getattr(options, name) != stream_option(name).default]
    if options.connector == "none" and is_set:
        raise InvalidOption(
            f'option "{is_set[0]}" has no effect without a connector',
            hint="Add connector = 'kafka', or leave the option out.",
            option=is_set[0],
        )
    missing = [name for name in _NEEDED if name not in is_set]
    if options.connector == "kafka" and missing:
        raise InvalidOption(
            f'connector "kafka" needs the option "{missing[0]}"',
            detail=stream_option(missing[0]).taken,
            option="connector",
        )


def _check_avro(options: StreamOptions) -> None:
    if options.format == "avro" and options.connector != "none" and not options.avro_schema:
        raise InvalidOption(
            'format "avro" needs the option "avro_schema"',
            detail="Messages do not hold the schema with which they were written.",
            option="format",
        )
    if options.avro_schema and options.format != "avro":
        raise InvalidOption(
            'option "avro_schema" has no effect without format "avro"',
            hint="Add format = 'avro', or leave the option out.",
            option="avro_schema",
        )
