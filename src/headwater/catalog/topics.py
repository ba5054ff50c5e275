"""Topics in the catalog: create, drop, list, load. The catalog is the only place where definitions are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headwater.catalog.definitions import (
    P_ACKNOWLEDGED,
    P_OFFSET,
    partition_spec,
    sort_order,
    table_properties,
    table_schema,
    topic_definition,
    user_columns,
)
from headwater.catalog.iceberg import named_errors
from headwater.catalog.kept import Kept
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
    def acknowledged(self) -> int:
        """At least this many records had been acknowledged when the table last moved."""
        return int(self.table.metadata.properties.get(P_ACKNOWLEDGED, "0"))

    @property
    def schema(self) -> Schema:
        """All columns, the system's included."""
        return self.table.schema()

    @property
    def columns(self) -> Schema:
        """The user's columns with the table's field ids."""
        return user_columns(self.table.schema())

    @property
    def snapshot_id(self) -> int | None:
        return self.table.metadata.current_snapshot_id


class Topics(Kept[Topic]):
    """The catalog's topics."""

    namespace, kind, noun, missing, listing = TOPICS, "topic", "topic", TopicNotFound, "SHOW TOPICS"

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
                    sort_order=sort_order(definition, schema),
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

    def _of(self, name: str, table: Table) -> Topic:
        properties = table.metadata.properties
        topic = Topic(topic_definition(name, table.schema(), table.spec(), properties, table.sort_order()), table)
        if topic.committed < 0:
            raise ValueError(f"property {P_OFFSET} is negative")
        return topic
