"""Streams in the catalog: a stream is a property of the topic that it is a view of, and goes with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pyiceberg.exceptions import CommitFailedException

from headwater.catalog.topics import Topic, Topics
from headwater.errors import (
    Conflict,
    Corrupt,
    HeadwaterError,
    InvalidName,
    StreamExists,
    StreamNotFound,
    TopicNotFound,
)
from headwater.sql.kafka_texts import upgrade_kafka_options
from headwater.sql.stream_json import stream_from_dict, stream_to_dict
from headwater.sql.stream_names import Named
from headwater.types import SYSTEM_COLUMNS, VIEWS, StreamDefinition

P_STREAMS = "headwater.stream."
"""Before the name of a stream; the value is its definition as JSON."""
ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as the catalog has it at one moment, with its topic."""

    definition: StreamDefinition
    topic: Topic

    @property
    def name(self) -> str:
        return self.definition.name


class Streams:
    """The catalog's streams."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def find(self, name: str) -> Stream | None:
        """The stream of this name; None if there is none."""
        try:
            for stream in streams_of(self._topics.load(name)):  # most have the name of their topic
                if stream.name == name:
                    return stream
        except (TopicNotFound, InvalidName):
            pass
        return next((stream for stream in self.all() if stream.name == name), None)

    def load(self, name: str) -> Stream:
        """The stream of this name; StreamNotFound with a suggestion if there is none."""
        if (found := self.find(name)) is not None:
            return found
        raise StreamNotFound(f'stream "{name}" does not exist', hint=self._meant(name))

    def _meant(self, name: str) -> str:
        """What somebody may mean who names a stream that there is not."""
        if name in self._topics.tables.names(VIEWS):
            return f'"{name}" is a materialized view: DESCRIBE MATERIALIZED VIEW {name}, SHOW STREAM STATUS FOR {name}.'
        if name in self._topics.names():
            return f'"{name}" is a topic: CREATE STREAM {name} WITH (timestamp_field = …) makes it a stream.'
        near = get_close_matches(name, [stream.name for stream in self.all()], n=1)
        return f'Did you mean "{near[0]}"?' if near else "`SHOW STREAMS` lists them."

    def all(self) -> list[Stream]:
        """All streams, by name."""
        found = [stream for topic in self._topics.all() for stream in streams_of(topic)]
        return sorted(found, key=lambda stream: stream.name)

    def named(self, name: str) -> Named | None:
        """What a name that is no topic's stands for in a query."""
        stream = None if self._topics.exists(name) else self.find(name)
        if stream is None:
            return None
        columns = [field.name for field in (stream.definition.schema or stream.topic.columns).fields]
        return Named(stream.topic.name, [*columns, *SYSTEM_COLUMNS])

    def put(self, definition: StreamDefinition, *, new: bool) -> Stream:
        """Keep the definition with its topic, which must exist; StreamExists if it is to be a new one and is not."""
        key, text = P_STREAMS + definition.name, json.dumps(stream_to_dict(definition), separators=(",", ":"))
        for _ in range(ATTEMPTS):
            topic = self._topics.load(definition.topic)
            if new and key in topic.table.metadata.properties:
                raise StreamExists(
                    f'stream "{definition.name}" already exists', hint="Use OR REPLACE or IF NOT EXISTS."
                )
            if self._set(topic, {key: text}):
                return Stream(definition, self._topics.load(definition.topic))
        raise Conflict(f'topic "{definition.topic}" was changed all the time', hint="Try again.")

    def drop(self, name: str) -> Stream:
        """Forget a stream; its topic stays."""
        for _ in range(ATTEMPTS):
            stream = self.load(name)
            if self._set(stream.topic, {P_STREAMS + name: None}):
                return stream
        raise Conflict(f'stream "{name}" was changed all the time', hint="Try again.")

    def _set(self, topic: Topic, properties: dict[str, str | None]) -> bool:
        table = self._topics.tables.load_for_commit(topic.table_name)
        try:
            with table.transaction() as transaction:
                for key, value in properties.items():
                    if value is None:
                        transaction.remove_properties(key)
                    else:
                        transaction.set_properties({key: value})
        except CommitFailedException:
            return False
        return True


def streams_of(topic: Topic) -> Iterator[Stream]:
    """The streams of a topic."""
    for key, text in sorted(topic.table.metadata.properties.items()):
        if key.startswith(P_STREAMS):
            try:
                body = json.loads(text)
                options = upgrade_kafka_options(body["options"])
                yield Stream(stream_from_dict({**body, "options": options}), topic)
            except (ValueError, KeyError, TypeError, HeadwaterError) as wrong:
                name = key.removeprefix(P_STREAMS)
                raise Corrupt(f'stream "{name}" of topic "{topic.name}" cannot be read', detail=f"{wrong}.") from None
