"""Topics and views as one query sees them: each is read at once, the first time the query names it.

A topic is a snapshot and the tail that follows it, or the changes between two snapshots; a view is a snapshot of its
states and the SQL that folds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headwater.catalog.iceberg import Tables
from headwater.catalog.topics import Topics
from headwater.catalog.views import Position, View, Views
from headwater.errors import InvalidName, SnapshotGone, TopicNotFound
from headwater.serving.agreement import Folded, ScanNeeds, no_table
from headwater.serving.change_rows import TopicChanges, topic_changes
from headwater.serving.plan import Mask, Scan
from headwater.serving.settled import Settled
from headwater.serving.tail import TopicAtOnce, read_at_once, read_committed, read_snapshot
from headwater.sql.mentions import no_changes
from headwater.sql.names import Relation
from headwater.storage.scan import FileScan, ManifestCache, plan_scan
from headwater.storage.schemas import arrow_schema
from headwater.storage.time_travel import Named, find_snapshot
from headwater.topics.log import Log
from headwater.types import VIEWS, TableName


@dataclass(frozen=True, slots=True)
class ViewAtOnce:
    """A view at one moment: a snapshot of its states, what that stands for, and the SQL that folds it."""

    view: View = field(repr=False)
    snapshot_id: int | None
    position: Position
    sql: str = field(repr=False)
    rows: pa.Table | None = field(default=None, repr=False)  # beside the snapshot's


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows of a view's table count: those of some files, or of all files those that a mask lets through."""

    files: tuple[DataFile, ...] | None = field(default=None, repr=False)
    mask: Mask | None = None

    def scan(self, name: str, needs: ScanNeeds, at: ViewAtOnce, found: FileScan) -> Scan:
        """What a query reads of the part, which needs the files that were `found`."""
        if self.files is not None:
            needed = {file.file_path for file in found.files}
            files = tuple(file for file in self.files if file.file_path in needed)
            found = FileScan(found.snapshot_id, files, len(self.files), 0, len(self.files) - len(files), 0)
        none = arrow_schema(at.view.schema).empty_table()
        return Scan(name, at.view, needs, found, None, none, at.position, self.mask)


@dataclass(frozen=True, slots=True)
class Given:
    """What a query reads that is not the lake's at this moment: tables by name, and parts of snapshots of views.

    Only DuckDB reads parts: a query that Spark has to answer fails instead.
    """

    tables: Mapping[str, TopicAtOnce] = field(default_factory=dict)
    parts: Mapping[int, Part] = field(default_factory=dict)


class Moment(Mapping[str, Schema | Folded]):
    """What a query's tables are, by the names that its text has for them, read on demand; remembers what was read.

    `relations` say which of those names mean a view or a past state, and `fresh` which views are to be read fresh:
    those are as they are stored, until somebody says what they have not consumed.
    """

    def __init__(
        self,
        topics: Topics,
        log: Log,
        manifests: ManifestCache,
        *,
        tail: bool,
        views: Views | None = None,
        relations: Sequence[Relation] = (),
        given: Given | None = None,
    ) -> None:
        self._topics = topics
        self._log = log
        self.manifests = manifests
        self.tail = tail
        self._views = views
        self._relations = {relation.alias_in_text: relation for relation in relations}
        self.fresh = {relation.alias_in_text: relation.name for relation in relations if relation.fresh}
        self.parts = given.parts if given is not None else {}
        self._read: dict[str, TopicAtOnce | ViewAtOnce | TopicChanges] = dict(given.tables) if given is not None else {}
        self._settled: dict[str, Settled] = {}

    def at(self, name: str) -> TopicAtOnce | ViewAtOnce | TopicChanges:
        """The topic or view at this moment; TopicNotFound, ViewNotFound or SnapshotGone if there is none."""
        if name not in self._read:
            relation = self._relations.get(name) or Relation(name, "any", name)
            view = self._view(relation)
            self._read[name] = self._topic_at(relation) if view is None else view_at(view, relation)
        return self._read[name]

    def tables(self) -> list[tuple[Table, int | None]]:
        """The tables that were read, with their snapshots, as far as they are the lake's own at one snapshot."""
        found: list[tuple[Table, int | None]] = []
        for at in self._read.values():
            if isinstance(at, TopicAtOnce):
                found.append((at.topic.table, at.snapshot_id))
            elif isinstance(at, ViewAtOnce):
                found.append((at.view.table, at.snapshot_id))
        return found

    def freshen(self, name: str, view: ViewAtOnce) -> None:
        """Let this be the view that the query calls `name`."""
        self._read[name] = view

    def views(self) -> Iterator[tuple[str, ViewAtOnce]]:
        """The views of which the query reads all, by the names that it has for them."""
        for name in self._relations:
            if name in self and isinstance(at := self.at(name), ViewAtOnce) and at.snapshot_id not in self.parts:
                yield name, at

    def settle(self, name: str, settled: Settled) -> None:
        """Let a view be read as if it were folded; Spark reads it as it is."""
        self._settled[name] = settled

    def unsettle(self) -> None:
        self._settled.clear()

    def _view(self, relation: Relation) -> View | None:
        """The view that is meant, None for a topic. A name is never both, so whichever is there is meant."""
        if self._views is None or relation.kind == "topic":
            return None
        if relation.kind == "view" or is_there(self._topics.tables, TableName.view(relation.name)):
            return self._views.load(relation.name)
        if not is_there(self._topics.tables, TableName.topic(relation.name)):
            raise no_table(relation.name, self)
        return None

    def _topic_at(self, relation: Relation) -> TopicAtOnce | TopicChanges:
        if relation.changes is not None:
            return topic_changes(self._topics.load(relation.name), *relation.changes, self.manifests)
        if relation.as_of:
            topic = self._topics.load(relation.name)
            return read_snapshot(topic, find_snapshot(topic.table, relation.as_of, Named("topic", topic.name)))
        if self.tail:
            return read_at_once(self._topics, self._log, relation.name)
        return read_committed(self._topics, relation.name)

    def scan(self, name: str, needs: ScanNeeds) -> Scan:
        """What the query reads of a stored table, which the agreed SQL calls `name`."""
        alias = name.removeprefix(_STATES_OF)
        at = self.at(alias)
        if isinstance(at, ViewAtOnce):
            files = plan_scan(at.view.table, at.snapshot_id, needs.filter, self.manifests)
            if at.snapshot_id is not None and (part := self.parts.get(at.snapshot_id)) is not None:
                return part.scan(name, needs, at, files)
            if (settled := self._settled.get(alias)) is not None:
                return settled.scan(name, needs, files, at.position)
            unseen = arrow_schema(at.view.schema).empty_table() if at.rows is None else at.rows
            return Scan(name, at.view, needs, files, None, unseen, at.position)
        if isinstance(at, TopicChanges):
            return at.scan(name)
        files = plan_scan(at.topic.table, at.snapshot_id, needs.filter, self.manifests, at.schema)
        return Scan(name, at.topic, needs, files, at.offsets, at.rows, at=at.schema)

    def __getitem__(self, name: str) -> Schema | Folded:
        try:
            at = self.at(name.lower())
        except (TopicNotFound, InvalidName):
            if self._relations.get(name.lower(), _ANY).kind != "any":
                raise
            raise KeyError(name) from None
        if isinstance(at, ViewAtOnce):
            sql = at.view.read_base if name.lower() in self._settled else at.sql
            return Folded(sql, _STATES_OF + name.lower(), at.view.schema)
        return at.schema

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter((*self._topics.names(), *(self._views.names() if self._views is not None else ())))

    def __len__(self) -> int:
        return len(list(iter(self)))


_ANY = Relation("", "any", "")
_STATES_OF = f"{VIEWS}."
"""Before a view's name, the name of its states: no name in a query's text has a dot."""


def is_there(tables: Tables, name: TableName) -> bool:
    """Whether there is such a table; without looking for near names, which takes longer."""
    try:
        tables.load(name)
    except NoSuchTableError:
        return False
    return True


def view_at(view: View, relation: Relation) -> ViewAtOnce:
    """A view as a query reads it; InvalidStatement for its changes, SnapshotGone for what another query made."""
    if relation.changes is not None:
        raise no_changes(view.name)
    if not relation.as_of:
        return ViewAtOnce(view, view.snapshot_id, view.position, view.read)
    snapshot = find_snapshot(view.table, relation.as_of, Named("materialized view", view.name))
    if snapshot.schema_id != view.table.metadata.current_schema_id:
        raise SnapshotGone(
            f'snapshot {snapshot.snapshot_id} of materialized view "{view.name}" cannot be read any more',
            detail="The view was replaced since, and only its new query is known.",
        )
    return ViewAtOnce(view, snapshot.snapshot_id, view.position_at(snapshot), view.read_at(snapshot))
