"""The doctor's view of tags, branches and what views stand for; some of it can be repaired without loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable, Table

from headwater.catalog.progress import progress_of
from headwater.catalog.views import P_POSITION, Position
from headwater.cli.checks import Check, Repair
from headwater.cli.screen import counted
from headwater.storage.commit import tag
from headwater.types import VIEW_TAG, VIEWS, TableName

Load = Callable[[TableName], Table]


def check_refs(tables: Mapping[TableName, StaticTable], damaged: Collection[TableName], load: Load) -> Iterator[Check]:
    """Whether tags and branches point to snapshots that are there, and each view's tags to what it stands for.

    `damaged` tables exist, but nothing can be said of them here.
    """
    for name, table in tables.items():
        yield _check_dangling(name, table)
        yield from _stale(name, table, {*tables, *damaged}, load)
    for name, table in tables.items():
        if name.namespace == VIEWS and P_POSITION in table.metadata.properties:
            yield from _check_view(name, table, tables, damaged, load)


def _check_dangling(name: TableName, table: StaticTable) -> Check:
    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    lost = [ref for ref, at in table.metadata.refs.items() if at.snapshot_id not in known]
    if lost:
        message = f"{', '.join(lost)} point to snapshots that are not there"
        return Check(f"tags of {name.name}", "fail", message, "Restore the table's metadata from a backup.")
    return Check(f"tags of {name.name}", "ok", f"{counted(len(table.metadata.refs), 'reference')} in order")


def _stale(name: TableName, table: StaticTable, tables: Collection[TableName], load: Load) -> Iterator[Check]:
    """Tags of views that do not exist: they keep snapshots from expiring for nobody."""
    for ref in table.metadata.refs:
        if ref.startswith(VIEW_TAG) and TableName(VIEWS, ref.removeprefix(VIEW_TAG)) not in tables:
            message = f'tag "{ref}" of {name} is of a view that does not exist'
            repair = Repair(f'remove tag "{ref}" of {name}', partial(_unpin, name, ref, load))
            action = "Run `headwater doctor --repair`; maintenance removes it, too."
            yield Check("views", "warn", message, action, repair)


def _unpin(name: TableName, ref: str, load: Load) -> None:
    try:
        load(TableName(VIEWS, ref.removeprefix(VIEW_TAG)))
    except NoSuchTableError:
        tag(lambda: load(name), ref, None)


def _check_view(
    name: TableName,
    table: StaticTable,
    tables: Mapping[TableName, StaticTable],
    damaged: Collection[TableName],
    load: Load,
) -> Iterator[Check]:
    label, view = f"sources of {name.name}", name.name
    position = Position.from_json(table.metadata.properties[P_POSITION])
    streamed = progress_of(table.metadata.properties) is not None
    for source, snapshot in position.snapshots.items():
        of = tables.get(source)
        if source in damaged:
            yield Check(label, "warn", f"{source}, which it reads, is damaged", "See what is wrong with that table.")
        elif of is None or not _is_same(position.ids.get(source), of):
            message = f"{source}, which it reads, is gone"
            yield Check(label, "fail", message, f"Make the source again, or `DROP MATERIALIZED VIEW {view}`.")
        elif streamed:  # it goes on from offsets, and keeps no snapshot
            yield Check(label, "ok", f"{source}, which a stream follows")
        elif snapshot is not None and of.metadata.snapshot_by_id(snapshot) is None:
            message = f"snapshot {snapshot} of {source}, for which it stands, is not there"
            yield Check(label, "warn", message, "The next refresh recomputes the view.")
        elif snapshot is not None and _pinned(of, view) != snapshot:
            message = f"snapshot {snapshot} of {source}, for which it stands, is not kept by its tag"
            repair = Repair(
                f'let tag "{VIEW_TAG}{view}" of {source} point to snapshot {snapshot}',
                partial(_pin, name, source, load),
            )
            yield Check(label, "warn", message, "Run `headwater doctor --repair`, or refresh the view.", repair)
        else:
            yield Check(label, "ok", f"{source} at snapshot {snapshot}, which its tag keeps")


def _is_same(id: str | None, table: StaticTable) -> bool:
    """Whether a source is the table that a view was computed from.

    The id of a view has a second part, which stands for its query: one that was replaced since is still there."""
    return id is None or id.partition(":")[0] == str(table.metadata.table_uuid)


def _pinned(table: StaticTable, view: str) -> int | None:
    ref = table.metadata.refs.get(VIEW_TAG + view)
    return None if ref is None else ref.snapshot_id


def _pin(name: TableName, source: TableName, load: Load) -> None:
    """By what the view says now: it may have been refreshed since it was looked at."""
    position = Position.from_json(load(name).metadata.properties[P_POSITION])
    tag(lambda: load(source), VIEW_TAG + name.name, position.snapshots[source])
