"""Materialized views in the catalog: a view's definition, layout and position are properties of its Iceberg table.

`headwater.view.position` says which snapshot of each source the table's contents stand for; it moves in the same
transaction as the contents, and every snapshot's summary carries it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import BooleanType

from headwater.catalog.definitions import P_KIND, P_OPTION, P_VERSION, P_WRITTEN_BY, VERSION, file_properties
from headwater.catalog.kept import Kept
from headwater.errors import Corrupt, ViewNotFound
from headwater.sql.kafka_texts import upgrade_kafka_options
from headwater.sql.view_options import parse_view_options, render_view_options
from headwater.types import VIEWS, TableName, ViewDefinition
from headwater.version import __version__, newer_version

P_QUERY = "headwater.view.query"
P_LAYOUT = "headwater.view.layout"
P_READ = "headwater.view.read"
"""Spark SQL that makes the view's rows of the table's rows, which it reads under the name STATES."""
P_READ_BASE = "headwater.view.read-base"
"""The same for a table to which nothing was appended since everything was folded."""
P_READ_SIGNED = "headwater.view.read-signed"
"""The same for a table in which some rows take others back."""
P_COMPACT = "headwater.view.compact"
"""Spark SQL that folds rows of the table, which it reads under the name STATES, into as few of its own columns."""
P_TYPES = "headwater.view.types"
P_SOURCES = "headwater.view.sources"
P_POSITION = "headwater.view.position"
P_SIGNED = "headwater.view.signed"
STATES = "__states"
SIGN = "__weight"
"""The column that says whether a row counts (1) or takes an equal one back (-1)."""
BASE = "__base"
"""The column that says whether a row stands for a whole group, as a fold leaves it, or was appended since."""
S_POSITION = "headwater.position"
S_SIGNED = "headwater.signed"
S_METHOD = "headwater.method"


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """A source as the view was made for it: its columns then, as (name, whether it is never null)."""

    table: TableName
    columns: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Position:
    """What a view's contents stand for: a snapshot of each source (None: before the first), and the moment of now()."""

    snapshots: Mapping[TableName, int | None]
    ids: Mapping[TableName, str] = field(default_factory=dict)
    now: str | None = None

    def to_json(self) -> str:
        sources = {
            str(name): {"snapshot": snapshot, "id": self.ids.get(name)}
            for name, snapshot in sorted(self.snapshots.items())
        }
        return json.dumps({"sources": sources, "now": self.now}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Position:
        found = json.loads(text)
        names = {name: TableName(*name.split(".")) for name in found["sources"]}
        return cls(
            {names[name]: each["snapshot"] for name, each in found["sources"].items()},
            {names[name]: each["id"] for name, each in found["sources"].items()},
            found["now"],
        )


@dataclass(frozen=True, slots=True)
class View:
    """A view as the catalog has it at one moment."""

    definition: ViewDefinition
    table: Table = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def table_name(self) -> TableName:
        return TableName.view(self.name)

    @property
    def id(self) -> str:
        return str(self.table.metadata.table_uuid)

    @property
    def schema(self) -> Schema:
        """The columns of the table behind the view, which are not the view's own."""
        return self.table.schema()

    @property
    def snapshot_id(self) -> int | None:
        return self.table.metadata.current_snapshot_id

    @property
    def layout(self) -> str:
        return self._property(P_LAYOUT)

    @property
    def kind(self) -> str:
        """What the table holds: `rows` of the view, or partial `states` of its groups."""
        return str(json.loads(self.layout)["kind"])

    @property
    def types(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._property(P_TYPES))
        return found

    @property
    def sources(self) -> tuple[SourceColumns, ...]:
        return tuple(
            SourceColumns(TableName(*name.split(".")), tuple((column, bool(required)) for column, required in columns))
            for name, columns in json.loads(self._property(P_SOURCES)).items()
        )

    @property
    def position(self) -> Position:
        return Position.from_json(self._property(P_POSITION))

    @property
    def signed(self) -> bool:
        """Whether some rows of the table take others back, so that a read has to cancel them."""
        return self._property(P_SIGNED) == "true"

    @property
    def read(self) -> str:
        """Spark SQL for the view's rows, over its table under the name STATES."""
        return self._property(P_READ_SIGNED if self.signed else P_READ)

    def read_at(self, snapshot: Snapshot) -> str:
        """The same for one of the table's snapshots."""
        signed = snapshot.summary is not None and snapshot.summary[S_SIGNED] == "true"
        return self._property(P_READ_SIGNED if signed else P_READ)

    @property
    def read_base(self) -> str:
        """The same for a table to which nothing was appended since everything was folded."""
        return self._property(P_READ_BASE)

    @property
    def compact(self) -> str:
        """Spark SQL that folds rows of the table."""
        return self._property(P_COMPACT)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that say which rows of the table are folded together; none where only equal rows are."""
        return tuple(json.loads(self.layout)["keys"])

    def is_base(self, file: DataFile) -> bool:
        """Whether a file holds whole groups only, as a fold leaves them: nothing that a refresh appended since."""
        lower = (file.lower_bounds or {}).get(self.schema.find_field(BASE).field_id)
        return lower is not None and bool(from_bytes(BooleanType(), lower))

    def position_at(self, snapshot: Snapshot) -> Position:
        """What the contents of one of the table's snapshots stand for."""
        said = snapshot.summary[S_POSITION] if snapshot.summary is not None else None
        if said is None:
            raise Corrupt(f'snapshot {snapshot.snapshot_id} of view "{self.name}" does not say what it stands for')
        return Position.from_json(said)

    def _property(self, name: str) -> str:
        found = self.table.metadata.properties.get(name)
        if found is None:
            raise Corrupt(f'materialized view "{self.name}" is damaged', detail=f"Its property {name} is missing.")
        return found


def view_properties(
    definition: ViewDefinition,
    *,
    layout: str,
    read: str,
    read_base: str,
    read_signed: str,
    compact: str,
    types: Mapping[str, str],
    sources: tuple[SourceColumns, ...],
    position: Position,
) -> dict[str, str]:
    """The properties of a new view's table."""
    ours = {
        P_VERSION: str(VERSION),
        P_WRITTEN_BY: __version__,
        P_KIND: "view",
        P_QUERY: definition.query,
        P_LAYOUT: layout,
        P_READ: read,
        P_READ_BASE: read_base,
        P_READ_SIGNED: read_signed,
        P_COMPACT: compact,
        P_TYPES: json.dumps(dict(types)),
        P_SOURCES: json.dumps({str(source.table): source.columns for source in sources}),
        P_POSITION: position.to_json(),
        P_SIGNED: "false",
    }
    return file_properties(definition.options) | ours | option_properties(definition)


def option_properties(definition: ViewDefinition) -> dict[str, str]:
    """The properties that hold a view's options."""
    found = {P_OPTION + name: value for name, value in render_view_options(definition.options).items()}
    return found | ({"comment": definition.options.description} if definition.options.description else {})


class Views(Kept[View]):
    """The catalog's materialized views."""

    namespace, kind, noun, missing = VIEWS, "view", "materialized view", ViewNotFound
    listing = "SHOW MATERIALIZED VIEWS"

    def _of(self, name: str, table: Table) -> View:
        view = View(_definition(name, table), table)
        # What the properties say is decoded here once, so that damage is found before anything relies on it.
        _ = view.kind, view.types, view.sources, view.position, view.read
        return view

    def readers_of(self, table: TableName) -> list[View]:
        """The views that read a table directly."""
        return [view for view in self.all() if any(source.table == table for source in view.sources)]


def _definition(name: str, table: Table) -> ViewDefinition:
    properties = table.metadata.properties
    version = properties.get(P_VERSION, "")
    if properties.get(P_KIND) != "view" or not version.isdigit():
        raise Corrupt(
            f'definition of materialized view "{name}" cannot be read',
            detail=f"The property {P_KIND} or {P_VERSION} of its table is not as it was written.",
            hint="Restore its metadata from a backup; `headwater doctor` checks all tables.",
        )
    if int(version) > VERSION:
        raise newer_version(f'materialized view "{name}"', "version", version, VERSION, properties.get(P_WRITTEN_BY))
    options = {k.removeprefix(P_OPTION): v for k, v in properties.items() if k.startswith(P_OPTION)}
    return ViewDefinition(name, properties[P_QUERY], parse_view_options(upgrade_kafka_options(options)))
