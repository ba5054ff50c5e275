"""Folders in the warehouse that belong to no table: what a crash between two steps of DROP leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.catalog.iceberg import Tables
from headwater.errors import Corrupt
from headwater.storage.maintenance.orphans import Folder, list_folders, plan_folders, run_folders
from headwater.types import TOPICS, VIEWS, TableName

NAMESPACES = (TOPICS, VIEWS)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Folders to remove."""

    folders: tuple[Folder, ...]
    tables: Tables
    warehouse: Path

    @property
    def empty(self) -> bool:
        return not self.folders

    @property
    def reason(self) -> str:
        if self.empty:
            return "every folder belongs to a table, or is too young"
        return f"no table has {', '.join(Path(folder.path).name for folder in self.folders)}"

    def describe(self) -> dict[str, Any]:
        return {
            "folders": len(self.folders),
            "files": sum(folder.files for folder in self.folders),
            "bytes": sum(folder.bytes for folder in self.folders),
        }

    def run(self) -> dict[str, Any]:
        return self.describe() | {"folders": run_folders(self.folders, lambda: locations(self.tables), self.warehouse)}


def plan_leftovers(tables: Tables, warehouse: Path, oldest: float) -> Leftovers:
    """What to remove; raises if the place of any table cannot be told."""
    found = list_folders(warehouse, NAMESPACES)
    # After the listing: a table that is made meanwhile is seen.
    return Leftovers(plan_folders(found, locations(tables), oldest), tables, warehouse)


def locations(tables: Tables) -> list[str]:
    """Where the tables are, damaged ones included; raises if that of a damaged one cannot be told."""
    names = [TableName(namespace, name) for namespace in NAMESPACES for name in tables.names(namespace)]
    return [_location(tables, name) for name in names]


def _location(tables: Tables, name: TableName) -> str:
    try:
        return tables.load(name).location()
    except Corrupt:
        if (folder := tables.folder(name)) is None:
            raise
        return str(folder)
