"""The doctor's view of files that nothing refers to, and of those that wait to be deleted. It deletes none of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from headwater.cli.checks import Check, Repair
from headwater.cli.screen import counted, sized
from headwater.config import LakePaths, Settings
from headwater.state.care import CareStore
from headwater.state.sqlite import connect
from headwater.storage.checksums import state_of
from headwater.storage.maintenance.orphans import list_files, list_folders, plan_folders, plan_orphans
from headwater.storage.maintenance.reachable import referred
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import local_path
from headwater.types import TOPICS, VIEWS, TableName


def check_orphans(name: str, table: StaticTable, paths: LakePaths, settings: Settings) -> Check:
    """How many files below the table's folder no snapshot refers to, and nobody has noted for deletion."""
    label = f"orphans of {name}"
    try:
        found = list_files(table.location())
        known = referred(table, table.metadata_location, ManifestCache()) | {row[0] for row in _noted(paths, settings)}
        plan = plan_orphans(found, known, time.time() - settings.orphan_age)
    except Exception:  # whatever damaged metadata raise in the reader; another check names the file
        return Check(label, "warn", "not counted: its metadata cannot be read", "Repair its metadata first.")
    size = sized(sum(file.bytes for file in plan.orphans))
    young = f", {counted(plan.young, 'younger file')} may be in use" if plan.young else ""
    if plan.unknown:
        message = f"{counted(len(plan.unknown), 'file')} of unknown kinds: {', '.join(plan.unknown[:3])}"
        return Check(label, "warn", message, "Headwater leaves them alone; remove what you do not need.")
    if plan.orphans:
        message = f"{counted(len(plan.orphans), 'file')} ({size}) that no snapshot refers to{young}"
        return Check(label, "warn", message, f"`headwater maintain {name} --only orphans` deletes them.")
    return Check(label, "ok", f"none of {counted(plan.listed, 'file')}{young}")


def check_damage(
    name: str, table: StaticTable, live: Iterable[str], paths: LakePaths, settings: Settings
) -> list[Check]:
    """The live files that compaction found damaged and passes over; not those that have changed since."""
    id = str(table.metadata.table_uuid)
    rows = _rows(paths, settings, "damaged_files", "path, table_id, state, why")
    noted = {path: why for path, of, state, why in rows if of == id and state_of(Path(path)) == state}
    found = [noted[path] for path in sorted(str(local_path(each)) for each in live) if path in noted]
    if not found:
        return []
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    message = f"compaction passes over {counted(len(found), 'damaged file')}: {found[0]}{more}"
    return [
        Check(f"damage in {name}", "fail", message, "Run `headwater doctor --deep`, which says what can be repaired.")
    ]


def check_folders(paths: LakePaths, tables: Mapping[TableName, StaticTable], settings: Settings) -> Check:
    """Folders of tables that are gone."""
    found = list_folders(paths.warehouse, (TOPICS, VIEWS))
    left = plan_folders(found, [table.location() for table in tables.values()], time.time() - settings.orphan_age)
    if left:
        names = ", ".join(Path(folder.path).name for folder in left[:3])
        size = sized(sum(folder.bytes for folder in left))
        message = f"{counted(len(left), 'folder')} ({size}) of no table: {names}"
        return Check("folders", "warn", message, "`headwater maintain --only orphans` deletes them.")
    return Check("folders", "ok", f"{counted(len(found), 'folder')}, each of a table or young")


def check_pending(paths: LakePaths, settings: Settings, tables: Mapping[TableName, StaticTable]) -> Check:
    """Files that wait to be deleted. Notes of a dropped table are normal until maintenance should have removed them."""
    ids = {str(table.metadata.table_uuid) for table in tables.values()}
    rows = [row[1:] for row in _noted(paths, settings)]
    overdue = time.time() - 86_400
    stray = sum(row[0] not in ids and row[1] < overdue for row in rows)
    if stray:
        message = f"{counted(stray, 'file')} of tables that are gone are noted for deletion"
        repair = Repair(
            f"forget {counted(stray, 'note')} of files of tables that are gone", lambda: _forget(paths, settings, ids)
        )
        return Check("deletions", "warn", message, "Run `headwater doctor --repair`.", repair)
    late = sum(row[1] < overdue for row in rows)
    size = sized(sum(row[2] for row in rows))
    if late:
        message = f"{counted(late, 'file')} should have been deleted a day ago"
        return Check("deletions", "warn", message, "Run `headwater maintain`, or `headwater serve` all the time.")
    return Check("deletions", "ok", f"{counted(len(rows), 'file')} ({size}) wait to be deleted")


def _noted(paths: LakePaths, settings: Settings) -> list[tuple[str, str, float, int]]:
    return _rows(paths, settings, "pending_deletions", "path, table_id, due, bytes")


def _rows(paths: LakePaths, settings: Settings, table: str, columns: str) -> list[Any]:
    with closing(connect(paths.state, settings.busy_timeout, read_only=True)) as db:
        known = db.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        return db.execute(f"SELECT {columns} FROM {table}").fetchall() if known else []  # noqa: S608


def _forget(paths: LakePaths, settings: Settings, ids: set[str]) -> None:
    with closing(CareStore(paths.state, settings.busy_timeout)) as store:
        store.settle_tables(sorted(ids))
