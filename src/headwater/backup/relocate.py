"""Makes a folder that holds a moved or copied lake a lake in its own right, by rewriting the locations in it.

Crash behaviour: the catalog says that the lake is being moved, and to where, before the first file is rewritten, and
the lake is not opened while it says so. The catalog's own locations change in one transaction at the end, together
with that note. A second run finishes what the first began, also after an error of the system such as a full disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.backup.rewrite import FolderChange, TableRewrite, remove_parts, rewrite_table, rewrite_view
from headwater.catalog.definitions import P_OPTION
from headwater.catalog.durable_files import is_inside, sync_file
from headwater.catalog.iceberg import NAME, named_errors
from headwater.catalog.identity import (
    P_COPIED_FROM,
    P_FORMAT,
    P_KAFKA,
    P_LAKE,
    P_LOCATION,
    P_RELOCATING,
    P_WRITTEN_BY,
    check_format,
    connect_catalog,
    is_lake,
    is_same_folder,
    moved_error,
    new_identity,
    put_properties,
    read_properties,
    recorded_location,
)
from headwater.catalog.kept import DamagedTable
from headwater.config import LakePaths, Settings
from headwater.errors import Conflict, Corrupt
from headwater.observability.failpoints import failpoint
from headwater.state.leases import check_unused
from headwater.state.sqlite import connect
from headwater.state.sqlite import named_errors as named_state_errors
from headwater.state.streams import StreamStore
from headwater.types import TOPICS, VIEWS, TableName

_TABLES = (
    "SELECT table_namespace, table_name, iceberg_type, metadata_location, previous_metadata_location "
    "FROM iceberg_tables WHERE catalog_name = ? ORDER BY table_namespace, table_name"
)
_SET_LOCATIONS = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
    "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
_STATE_PATHS = ("pending_deletions", "damaged_files")
"""Tables of the state database whose primary key `path` is the plain path of a file in the warehouse."""


_INTO_KAFKA = f"{P_OPTION}into_kafka"


@dataclass(frozen=True, slots=True)
class Relocation:
    """What was done: `tables` were rewritten from `old` to `new`; of the `damaged` ones, not all could be.

    `stopped` are continuous views of a copy that send to Kafka, as those of the original do: they run once started.
    """

    lake: str
    old: str
    new: str
    tables: int
    damaged: tuple[DamagedTable, ...] = ()
    stopped: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "lake": self.lake,
            "old": self.old,
            "new": self.new,
            "tables": self.tables,
            "damaged": [{"table": str(each.table), "reason": str(each.error)} for each in self.damaged],
            "stopped": list(self.stopped),
        }


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the catalog, with the locations of its current and its previous metadata."""

    name: TableName
    kind: str | None
    current: str
    previous: str | None


def relocate(paths: LakePaths, settings: Settings, *, copy: bool) -> Relocation:
    """Make the folder to which a lake was moved, or copied with `copy`, the lake's own.

    A folder whose original still exists is refused without `copy` (LakeMoved), and the original itself with it
    (Conflict): it would lose its id, and with that the records in its log in Kafka. No other process may use the lake.
    """
    with named_errors(), closing(connect_catalog(paths.catalog, settings.busy_timeout)) as db:
        known, recorded = _read_identity(db, paths)
    lake, is_there = known.get(P_LAKE), recorded == paths.root or is_same_folder(recorded, paths.root)
    is_begun_copy = P_RELOCATING in known and known.get(P_COPIED_FROM) == (lake or "")
    if is_there and copy and not is_begun_copy:
        raise Conflict(
            f'lake in "{paths.root}" is not a copy',
            detail="It records this folder as its own.",
            hint="Run the command in the folder of the copy. If this is a copy that came from another machine, "
            "move it to another folder first, and run the command there.",
        )
    if recorded == paths.root and P_RELOCATING not in known:
        return Relocation(lake or "", str(recorded), str(recorded), 0)
    copy = copy or is_begun_copy
    if not is_there and not copy and is_lake(recorded, lake, settings.busy_timeout):
        raise moved_error(paths.root, recorded, lake, settings.busy_timeout)
    if copy:
        _check_links(paths.root)
    check_unused(paths.state, settings.lease_ttl)
    for database in (paths.catalog, paths.state, paths.kafka_index):
        for suffix in ("", "-wal", "-shm"):
            _separate(database.with_name(database.name + suffix))
    return rewrite_locations(paths, settings.busy_timeout, copy=copy)


def _check_links(root: Path) -> None:
    """Conflict if a symbolic link leads out of a copy: to the files of the original, which the copy would change."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
                raise Conflict(
                    f'folder "{root}" shares files with another one',
                    detail=f'"{path}" is a link to {path.resolve()}.',
                    hint="Copy the files that links lead to as well, for example with `cp -rL`, or use `headwater "
                    "backup` and `headwater restore`.",
                )


def _separate(path: Path) -> None:
    """Give a file that is written in place, and that has other names in the file system, an inode of its own.

    All other files are replaced or deleted, never written to: there, hard links do no harm."""
    if path.exists() and path.stat().st_nlink > 1:
        part = path.with_name(f".{path.name}.part")
        shutil.copy2(path, part)
        sync_file(part)
        part.replace(path)


def rewrite_locations(paths: LakePaths, busy_timeout: float, *, copy: bool) -> Relocation:
    """Rewrite the locations of the lake in a folder, which no process uses, to that folder.

    With `copy` the lake gets an id of its own, because the one that it was copied from lives on.
    """
    with named_errors(), closing(connect_catalog(paths.catalog, busy_timeout)) as db:
        known, recorded = _read_identity(db, paths)
        old = tuple(dict.fromkeys((recorded, Path(known.get(P_RELOCATING, recorded)))))
        change = FolderChange(old, paths.root)
        origin = {P_COPIED_FROM: known.get(P_LAKE, "")} if copy else {}  # a copy that was begun is finished as one
        with _transaction(db):
            put_properties(db, {P_RELOCATING: str(paths.root), **origin})
        failpoint("relocate.begun")
        with _transaction(db):
            tables = [_Table(TableName(*row[:2]), *row[2:]) for row in db.execute(_TABLES, (NAME,))]
            remove_parts(paths.warehouse)
            damaged, outlets = [], []
            for each in tables:
                found = _rewrite(each, change)
                if found.damage:
                    damaged.append(DamagedTable(each.name, found.damage[0]))
                if copy and each.name.namespace == VIEWS and found.properties.get(_INTO_KAFKA):
                    outlets.append(each.name.name)
            failpoint("relocate.rewritten")
            # Others lock the state database before the catalog, but nobody else can have this lake open.
            _change_state(paths.state, busy_timeout, change, outlets)
            for each in tables:
                moved = change.location(each.current), each.previous and change.location(each.previous)
                db.execute(_SET_LOCATIONS, (*moved, NAME, each.name.namespace, each.name.name))
            if copy:  # the index of the original's log in Kafka
                for suffix in ("", "-wal", "-shm"):
                    paths.kafka_index.with_name(paths.kafka_index.name + suffix).unlink(missing_ok=True)
            values = _identity(known, paths.root, copy=copy)
            put_properties(db, values)
            failpoint("relocate.before_commit")
        failpoint("relocate.committed")
        folders = str(recorded), str(paths.root)
        return Relocation(str(values[P_LAKE]), *folders, len(tables), tuple(damaged), tuple(outlets))


def _read_identity(db: sqlite3.Connection, paths: LakePaths) -> tuple[dict[str, str], Path]:
    """The properties of a lake that this Headwater knows the format of, and the folder that it records."""
    known = read_properties(db)
    check_format(paths.root, known)
    return known, Path(recorded_location(db, paths, known))


def _identity(known: dict[str, str], root: Path, *, copy: bool) -> dict[str, str | None]:
    """The lake's properties once its locations are rewritten."""
    new = new_identity(root)
    kept = {} if copy else {key: known[key] for key in (P_LAKE, P_FORMAT, P_WRITTEN_BY) if key in known}
    # A log in Kafka is named after the lake's id: a copy has none, rather than the one of its original.
    kafka = {P_KAFKA: None} if copy else {P_KAFKA: "true"} if P_LAKE in known and P_LOCATION not in known else {}
    return {**new, **kept, **kafka, P_LOCATION: str(root), P_RELOCATING: None}


def _rewrite(table: _Table, change: FolderChange) -> TableRewrite:
    """Rewrite one table. What is wrong with it must not hold up the others: it is as unreadable afterwards, and can be
    dropped."""
    if not is_inside(change.location(table.current), change.new):
        if table.name.namespace not in (TOPICS, VIEWS):  # not Headwater's
            return TableRewrite({}, [])
        outside = f'metadata file "{table.current}" is outside of the lake'
        return TableRewrite({}, [Corrupt(outside, detail="It stays as it is.", file=table.current)])
    try:
        return (rewrite_view if table.kind == "VIEW" else rewrite_table)(table.current, change)
    except Corrupt as error:
        return TableRewrite({}, [error])


def _change_state(state: Path, busy_timeout: float, change: FolderChange, outlets: Sequence[str]) -> None:
    """Rewrite the paths in the state database, and let the streams of `outlets` wait until they are started."""
    if not state.exists():
        return
    with named_state_errors(state):
        with closing(connect(state, busy_timeout)) as db, _transaction(db):
            for table in _STATE_PATHS:
                if not _has_table(db, table):
                    continue
                for (path,) in db.execute(f"SELECT path FROM {table}").fetchall():  # noqa: S608
                    moved = change.location(path)
                    db.execute(f"UPDATE OR REPLACE {table} SET path = ? WHERE path = ?", (moved, path))  # noqa: S608
        streams = StreamStore(state, busy_timeout)
        for name in outlets:
            streams.want(name, False)


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
