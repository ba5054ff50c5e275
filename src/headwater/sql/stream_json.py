"""Streams as JSON values: the body of POST /api/v1/streams, and what a topic's table keeps of its streams::

    {"name": "orders",
     "columns": [{"name": "placed_at", "type": "TIMESTAMP"}],
     "partitioned_by": ["days(placed_at)"],
     "options": {"timestamp_field": "placed_at", "max_out_of_orderness": "10 seconds", "compression": "zstd"}}

Options of the topic stand among those of the stream, as in WITH; without `columns` the stream has those of its topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.errors import InvalidInput
from headwater.sql.schema_files import check_keys, column_to_dict, columns_of, options_of, partitioning_of
from headwater.sql.stream_definition import checked_stream
from headwater.sql.stream_options import parse_stream_options, render_stream_options, split_options
from headwater.types import StreamDefinition

_KEYS = ("name", "columns", "partitioned_by", "options")


def stream_to_dict(definition: StreamDefinition, *, all_options: bool = False) -> dict[str, Any]:
    """The JSON form of a definition, which `stream_from_dict` reads back to an equal one."""
    options = render_stream_options(definition.options, changed_only=not all_options)
    schema = definition.schema
    return {
        "name": definition.name,
        "columns": None if schema is None else [column_to_dict(field) for field in schema.fields],
        "partitioned_by": [str(part) for part in definition.partitioning],
        "options": {**options, **definition.topic_options},
    }


def stream_from_dict(body: Mapping[str, Any]) -> StreamDefinition:
    """A checked definition from its JSON form."""
    check_keys(body, _KEYS, "stream definition")
    name = body.get("name")
    if not isinstance(name, str):
        raise InvalidInput("a stream has a name, a text")
    columns = None if body.get("columns") is None else columns_of(body)
    values, of_topic = split_options(options_of(body))
    return checked_stream(name, columns, parse_stream_options(values), partitioning_of(body), of_topic)
