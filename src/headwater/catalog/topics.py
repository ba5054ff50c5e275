"""Topics in the catalog: create, drop, list, load. The catalog is the only place where definitions are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches

from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headwater.catalog.definitions import (
    P_KIND,
    P_OFFSET,
    partition_spec,
    table_properties,
    table_schema,
    topic_definition,
)
from headwater.catalog.iceberg import Tables, named_errors
from headwater.errors import TopicExists, TopicNotFound
from headwater.types import TOPICS, TableName, TopicDefinition


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the catalog has it at one moment: its definition and the table's metadata behind it."""

    definition: TopicDefinition
    table: Table = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def table_name(self) -> TableName:
        return TableName.topic(self.name)

    @property
    def id(self) -> str:
        """The table's UUID: a topic dropped and made again under its name is another topic."""
        return str(self.table.metadata.table_uuid)

    @property
    def committed(self) -> int:
        """The first offset that the table lacks."""
        return int(self.table.metadata.properties[P_OFFSET])

    @property
    def schema(self) -> Schema:
        """All columns, the system's included."""
        return self.table.schema()

    @property
    def snapshot_id(self) -> int | None:
        return self.table.metadata.current_snapshot_id


class Topics:
    """The catalog's topics."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._loaded: dict[str, Topic] = {}

    def create(self, definition: TopicDefinition) -> Topic:
        """Make the topic's table; TopicExists if the name is taken."""
        schema = table_schema(definition)
        name = TableName.topic(definition.name)
        try:
            with named_errors():
                table = self.tables.catalog.create_table(
                    name.identifier,
                    schema,
                    location=self.new_location(name),
                    partition_spec=partition_spec(definition, schema),
                    properties=table_properties(definition),
                )
        except TableAlreadyExistsError:
            raise TopicExists(
                f'topic "{definition.name}" already exists', hint="Use IF NOT EXISTS, or drop it first."
            ) from None
        return Topic(definition, table)

    def new_location(self, name: TableName) -> str:
        """A folder that no table of this name ever had."""
        from ulid import ULID

        # Not the name alone: whoever drops a topic deletes its folder, and must not meet one made anew meanwhile.
        warehouse = self.tables.catalog.properties["warehouse"].rstrip("/")
        return f"{warehouse}/{name.namespace}/{name.name}-{str(ULID()).lower()}"

    def load(self, name: str) -> Topic:
        """The topic as it is now; TopicNotFound with a suggestion otherwise."""
        try:
            table = self.tables.load(TableName.topic(name))
        except NoSuchTableError:
            raise self._not_found(name) from None
        if (loaded := self._loaded.get(name)) is not None and loaded.table is table:
            return loaded
        definition = topic_definition(name, table.schema(), table.spec(), table.metadata.properties)
        topic = self._loaded[name] = Topic(definition, table)
        return topic

    def exists(self, name: str) -> bool:
        with named_errors():
            return bool(self.tables.catalog.table_exists(TableName.topic(name).identifier))

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        return self.tables.names(TOPICS)

    def all(self) -> list[Topic]:
        """All topics; a table in the namespace that is no topic is left out."""
        found = []
        for name in self.names():
            try:
                table = self.tables.load(TableName.topic(name))
            except NoSuchTableError:  # dropped since it was listed
                continue
            if table.metadata.properties.get(P_KIND) == "topic":
                found.append(self.load(name))
        return found

    def drop(self, name: str) -> Topic:
        """Remove the topic from the catalog; its files stay until the caller deletes them."""
        topic = self.load(name)
        try:
            with named_errors():
                self.tables.catalog.drop_table(topic.table_name.identifier)
        except NoSuchTableError:
            raise self._not_found(name) from None
        self.tables.forget(topic.table_name)
        return topic

    def _not_found(self, name: str) -> TopicNotFound:
        near = get_close_matches(name, self.names(), n=1)
        hint = f'Did you mean "{near[0]}"?' if near else "`SHOW TOPICS` lists them."
        return TopicNotFound(f'topic "{name}" does not exist', hint=hint)
