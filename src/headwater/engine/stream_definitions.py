"""Streams as they are defined: made with their topics, bound to those that exist, changed, described and dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyiceberg.schema import Schema

from headwater.catalog.streams import Stream, Streams
from headwater.catalog.topics import Topics
from headwater.catalog.views import Views
from headwater.connections import Connections, find_connection
from headwater.engine.stream_views import is_streamed
from headwater.errors import (
    InvalidSchema,
    InvalidStatement,
    StreamExists,
    StreamNotFound,
    TopicExists,
    TopicNotFound,
    ViewExists,
    ViewInUse,
)
from headwater.serving.result import Result
from headwater.sql.schema_text import render_type
from headwater.sql.statements import CreateStream, CreateTopic, TopicStatement
from headwater.sql.stream_definition import change_stream, check_stream_columns, topic_of
from headwater.sql.stream_json import stream_to_dict
from headwater.sql.units import render_duration
from headwater.types import StreamDefinition


class StreamDefinitions:
    """Definitions of one lake's streams; `renewed` hears of one that is made or changed, `ended` of one that goes."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        streams: Streams,
        topic_statement: Callable[[TopicStatement], Result],
        renewed: Callable[[Stream], None],
        ended: Callable[[str], None],
        connections: Connections,
    ) -> None:
        self._topics = topics
        self._views = views
        self._streams = streams
        self._topic_statement = topic_statement
        self._renewed = renewed
        self._ended = ended
        self._connections = connections

    def create(self, statement: CreateStream) -> Result:
        definition = statement.definition
        name, known = definition.name, self._streams.find(definition.name)
        if known is not None and not statement.or_replace:
            if not statement.if_not_exists:
                raise StreamExists(f'stream "{name}" already exists', hint="Use OR REPLACE or IF NOT EXISTS.")
            return Result.done(f'stream "{name}" exists already')
        self._check_name(definition)
        if known is not None and known.topic.name != definition.topic:
            raise StreamExists(
                f'stream "{name}" is one of topic "{known.topic.name}"', hint=f"Drop it first: DROP STREAM {name}."
            )
        if definition.options.connector == "kafka":  # before the topic is created
            find_connection(self._connections, definition.options.connection)
        notices = self._bind(definition)
        self._check_connector(definition)
        self._renewed(self._streams.put(definition, new=known is None))
        return Result.done(f'stream "{name}" {"created" if known is None else "replaced"}', notices)

    def _check_name(self, definition: StreamDefinition) -> None:
        name = definition.name
        if self._views.exists(name):
            raise ViewExists(f'"{name}" is a materialized view', hint="Choose another name for the stream.")
        if name != definition.topic and self._topics.exists(name):
            raise TopicExists(
                f'"{name}" is a topic', hint="A stream has the name of its own topic, or one that nothing else has."
            )

    def _bind(self, definition: StreamDefinition) -> Sequence[str]:
        """See that the topic is there and has what the stream says; made if there is none."""
        if not self._topics.exists(definition.topic):
            if definition.schema is None:
                raise TopicNotFound(
                    f'topic "{definition.topic}" does not exist', hint="Name the columns, and the stream makes it."
                )
            made = self._topic_statement(CreateTopic(topic_of(_with_dead_letters(definition))))
            return [f'Topic "{definition.topic}" was created.', *made.notices]
        check_bound(definition, self._topics.load(definition.topic).columns)
        if named := next(iter(definition.topic_options), None):
            raise InvalidStatement(
                f'option "{named}" is one of topic "{definition.topic}", which exists',
                hint=f"Use ALTER TOPIC {definition.topic} SET ({named} = ...).",
            )
        return []

    def drop(self, name: str, if_exists: bool) -> Result:
        try:
            self._check_unread(self._streams.load(name))
            self._ended(name)
            self._streams.drop(name)
        except StreamNotFound:
            if not if_exists:
                raise
            return Result.done(f'stream "{name}" does not exist')
        return Result.done(f'stream "{name}" dropped')

    def _check_unread(self, stream: Stream) -> None:
        """ViewInUse while continuous views go by the stream's event time."""
        views = self._views.readers_of(stream.topic.table_name)
        if readers := [view.name for view in views if is_streamed(view)]:
            raise ViewInUse(
                f'stream "{stream.name}" is read by continuous views',
                detail=f"They are: {', '.join(readers)}.",
                hint="Drop those first.",
                views=readers,
            )

    def _check_connector(self, definition: StreamDefinition) -> None:
        """What the connector would end with at once, now."""
        if definition.options.connector == "kafka":
            from headwater.sources.kafka import check_connector

            check_connector(definition, self._topics.load(definition.topic), self._connections)

    def alter(self, name: str, values: Mapping[str, object]) -> Result:
        """ALTER STREAM."""
        changed = change_stream(self._streams.load(name).definition, values)
        self._check_connector(changed)
        self._renewed(self._streams.put(changed, new=False))
        return Result.done(f'stream "{name}" altered')

    def summaries(self) -> Sequence[Mapping[str, Any]]:
        """A line about each stream."""
        return [_summary(each) for each in self._streams.all()]

    def list(self) -> Sequence[StreamDefinition]:
        """The streams that were created, by name."""
        return [each.definition for each in self._streams.all()]

    def describe(self, name: str) -> dict[str, Any]:
        """A stream with its columns and options, as plain data."""
        stream = self._streams.load(name)
        columns = stream.definition.schema or stream.topic.columns
        return stream_to_dict(stream.definition, all_options=True) | {
            "topic": stream.topic.name,
            "event_time": stream.definition.event_time,
            "columns": [
                {
                    "name": each.name,
                    "type": render_type(each.field_type),
                    "nullable": not each.required,
                    "comment": each.doc,
                }
                for each in columns.fields
            ],
        }


def _with_dead_letters(definition: StreamDefinition) -> StreamDefinition:
    """Messages that are no records go to the dead letters, if the topic that takes them is made for them."""
    if definition.options.connector == "none" or definition.schema is None:
        return definition
    return replace(definition, topic_options={"on_invalid": "dead_letter", **definition.topic_options})


def check_bound(definition: StreamDefinition, columns: Schema) -> None:
    """InvalidSchema unless a topic has the stream's columns; InvalidOption if options name others than it has."""
    check_stream_columns(columns, definition.options)
    for field in definition.schema.fields if definition.schema is not None else ():
        found = next((each for each in columns.fields if each.name == field.name), None)
        if found is None:
            raise InvalidSchema(
                f'topic "{definition.topic}" has no column "{field.name}"',
                hint=f"Add it first: ALTER TOPIC {definition.topic} ADD COLUMN {field.name} ...",
            )
        if render_type(found.field_type) != render_type(field.field_type):
            raise InvalidSchema(
                f'column "{field.name}" of topic "{definition.topic}" is of type {render_type(found.field_type)}',
                detail=f"The stream says {render_type(field.field_type)}.",
            )


def _summary(stream: Stream) -> dict[str, Any]:
    options = stream.definition.options
    return {
        "stream": stream.name,
        "topic": stream.topic.name,
        "event_time": stream.definition.event_time,
        "max_out_of_orderness": render_duration(options.max_out_of_orderness),
        "connector": options.connector,
        "description": options.description,
    }
