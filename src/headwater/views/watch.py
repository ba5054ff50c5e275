"""A look at all views and their sources, as the schedule wants it: cheap enough to be taken every second.

It asks the catalog where each table's metadata is, and parses again only what moved.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table.snapshots import Operation, Snapshot

from headwater.catalog.progress import progress_of
from headwater.catalog.views import P_LAYOUT, P_POSITION, P_QUERY, P_SOURCES, View
from headwater.errors import Unavailable
from headwater.types import VIEWS, TableName
from headwater.views.round import Round
from headwater.views.schedule import At, Due, Scene, Standing, Watched
from headwater.views.sources import Head
from headwater.views.upkeep import Upkeep

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment."""

    views: Mapping[str, View]
    topics: Mapping[TableName, Head]
    watched: Mapping[str, Watched] = field(repr=False)

    def scene(self, standings: Mapping[str, Standing]) -> Scene:
        tables = {TableName.view(name): view.at for name, view in self.watched.items()}
        return Scene(self.watched, tables | {name: _at(head) for name, head in self.topics.items()}, standings)

    def round(self, due: tuple[Due, ...]) -> Round:
        """A round at the topics as they were seen; views below that stand for them already belong to it."""
        names = {name for each in due for name in each.below} - {each.name for each in due}
        standing = {name: self.views[name].table.metadata.properties[P_POSITION] for name in names}
        return Round(self.topics, {TableName.view(name): position for name, position in standing.items()})


class Watch:
    """Takes looks; a view that cannot be read is left out of them."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._views = upkeep.views
        self._sources = upkeep.sources
        self._known: dict[str, tuple[View, Watched]] = {}

    def look(self) -> Look:
        self._known = {name: known for name in self._views.names() if (known := self._watched(name)) is not None}
        watched = {name: view for name, (_, view) in self._known.items()}
        topics = {source for view in watched.values() for source in view.position if source.namespace != VIEWS}
        heads = {name: head for name in sorted(topics) if (head := self._head(name)) is not None}
        return Look({name: view for name, (view, _) in self._known.items()}, heads, watched)

    def _head(self, topic: TableName) -> Head | None:
        try:
            return self._sources.load([topic]).get(topic)
        except Unavailable:
            raise
        except Exception:  # it counts as gone; whoever refreshes a view over it learns what is wrong
            return None

    def _watched(self, name: str) -> tuple[View, Watched] | None:
        known = self._known.get(name)
        try:
            view = self._views.load(name)
            return known if known is not None and known[0] is view else (view, watched(view))
        except Unavailable:
            raise
        except Exception as wrong:  # dropped since it was listed, or damaged: the others must not wait for it
            log.debug("view is left out of the schedule", extra={"view": name, "error": str(wrong)})
            return None


def watched(view: View) -> Watched:
    """What the schedule has to know of a view."""
    position, properties = view.position, view.table.metadata.properties
    shape = hash(tuple(properties.get(name) for name in (P_QUERY, P_LAYOUT, P_SOURCES)))
    head = Head(view.table_name, view.table, view.snapshot_id, view)
    options = view.definition.options
    if options.mode == "continuous" and progress_of(properties) is None:  # no stream keeps it: it follows every commit
        options = replace(options, mode="immediate")
    return Watched(
        view.name,
        options,
        At(head.id, head.snapshot_id, str(shape)),
        {source: (position.ids.get(source), snapshot) for source, snapshot in position.snapshots.items()},
        max((each.timestamp_ms / 1000 for each in view.table.metadata.snapshots if not _is_fold(each)), default=0.0),
        position.now is not None,
    )


def _is_fold(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _at(head: Head) -> At:
    return At(head.id, head.snapshot_id, str(head.table.metadata.current_schema_id))
