"""What a view reads: topics and other views, each as a table with snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from zlib import crc32

from pyiceberg.table import Table

from headwater.catalog.metadata import summary_count
from headwater.catalog.topics import Topics
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import S_SIGNED, View, Views
from headwater.errors import InvalidName, TopicNotFound, ViewNotFound
from headwater.types import TableName


@dataclass(frozen=True, slots=True)
class Head:
    """A source at one moment. `view` is set when it is a view, whose table holds states."""

    table_name: TableName
    table: Table = field(repr=False, compare=False)
    snapshot_id: int | None
    view: View | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.table_name.name

    @property
    def id(self) -> str:
        """What the source is: another table under its name, or a view replaced by another query, is another."""
        made = str(self.table.metadata.table_uuid)
        return made if self.view is None else f"{made}:{crc32(self.view.layout.encode()):08x}"

    @property
    def layout(self) -> Layout | None:
        return None if self.view is None else Layout.from_json(self.view.layout)

    def rows(self, snapshot_id: int | None) -> int:
        """The table's rows at a snapshot, as its summary counts them."""
        snapshot = self.table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        return summary_count(snapshot, "total-records")

    def signed(self, *snapshots: int | None) -> bool:
        """Whether rows of the view's table take others back in any of these snapshots."""
        return self.view is not None and any(self._signed(each) for each in snapshots if each is not None)

    def _signed(self, snapshot_id: int) -> bool:
        snapshot = self.table.metadata.snapshot_by_id(snapshot_id)
        return snapshot is None or snapshot.summary is None or snapshot.summary[S_SIGNED] != "false"


class Sources:
    """Finds sources by the names that queries use."""

    def __init__(self, topics: Topics, views: Views) -> None:
        self._topics = topics
        self._views = views

    def find(self, name: str) -> Head | None:
        """The topic or view of this name as it is now; None if there is none."""
        try:
            topic = self._topics.load(name)
            return Head(topic.table_name, topic.table, topic.snapshot_id)
        except (TopicNotFound, InvalidName):
            pass
        try:
            view = self._views.load(name)
            return Head(view.table_name, view.table, view.snapshot_id, view)
        except (ViewNotFound, InvalidName):
            return None

    def near(self, name: str) -> str | None:
        """The topic or view that was probably meant by a name that nothing has."""
        return next(iter(get_close_matches(name, [*self._topics.names(), *self._views.names()], n=1)), None)

    def load(self, names: Iterable[TableName]) -> Mapping[TableName, Head]:
        """The sources as they are now; those that are gone are left out."""
        found: dict[TableName, Head] = {}
        for name in names:
            head = self.find(name.name)
            if head is not None and head.table_name == name:
                found[name] = head
        return found
