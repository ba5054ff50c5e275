"""The doctor's view of a lake: settings, catalog, log, tables. Reads only, also while a service runs."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.catalog.definitions import P_KIND
from headwater.catalog.iceberg import NAME, create_catalog_file
from headwater.cli.checks import Check, Repair, failed
from headwater.cli.checks_streams import check_streams
from headwater.cli.screen import counted, sized
from headwater.config import LakePaths, Settings, load_settings
from headwater.errors import HeadwaterError
from headwater.state.sqlite import connect
from headwater.storage.writer import local_path
from headwater.types import TableName

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable, Table

_RESTORE = "Restore {} from a backup; do not run anything else on this lake before."


@dataclass(frozen=True, slots=True)
class Registered:
    """A table as the catalog names it."""

    namespace: str
    name: str
    metadata: str


def check_lake(folder: Path, *, deep: bool = False) -> Iterator[Check]:
    """Everything about one lake, in the order in which one thing rests on another; stops where nothing can follow."""
    try:
        paths = LakePaths.existing(folder)
        settings = load_settings(paths.config)
    except HeadwaterError as error:
        yield failed("lake", error)
        return
    yield Check("lake", "ok", f"settings of {paths.root} are valid")
    catalog = _check_database("catalog", paths.catalog, settings.busy_timeout)
    state = _check_database("log", paths.state, settings.busy_timeout)
    yield catalog
    yield state
    if state.status != "fail":
        yield _check_entries(paths.state, settings.busy_timeout)
    if catalog.status != "fail":
        yield from _check_tables(paths, settings, state.status != "fail", deep)


def _check_database(name: str, path: Path, timeout: float) -> Check:
    """Whether SQLite's own check passes, and whether the file is in WAL mode."""
    if not path.exists():
        return Check(name, "fail", f"{path.name} is missing", _RESTORE.format(path.name))
    try:
        with closing(connect(path, timeout, read_only=True)) as db:
            found = [str(row[0]) for row in db.execute("PRAGMA quick_check(5)")]
            mode = str(db.execute("PRAGMA journal_mode").fetchone()[0])
    except sqlite3.Error as error:
        return Check(name, "fail", f"{path.name} cannot be read: {error}", _RESTORE.format(path.name))
    if found != ["ok"]:
        return Check(name, "fail", f"{path.name} is damaged: {found[0]}", _RESTORE.format(path.name))
    if mode != "wal":
        message = f"{path.name} is in journal mode {mode}: readers block writers"
        repair = Repair(f"put {path.name} into WAL mode", lambda: create_catalog_file(path, timeout))
        return Check(name, "warn", message, "Run `headwater doctor --repair`.", repair)
    return Check(name, "ok", f"{path.name} passes SQLite's check, in WAL mode, {sized(path.stat().st_size)}")


def _check_entries(path: Path, timeout: float) -> Check:
    """Whether every stored entry still has the bytes that were acknowledged."""
    damaged: list[int] = []
    count = size = 0
    with closing(connect(path, timeout, read_only=True)) as db:
        try:
            rows = db.execute("SELECT id, checksum, payload FROM log_entries ORDER BY id")
            for entry, checksum, payload in rows:
                count, size = count + 1, size + len(payload)
                if zlib.crc32(payload) != checksum:
                    damaged.append(entry)
        except sqlite3.Error as error:
            return Check("log entries", "fail", f"entries cannot be read: {error}", _RESTORE.format(path.name))
    if damaged:
        listed = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        message = f"{len(damaged)} of {count} entries do not match their checksum: {listed}"
        return Check("log entries", "fail", message, _RESTORE.format(path.name))
    return Check("log entries", "ok", f"{count} waiting entries ({sized(size)}) match their checksums")


def _check_tables(paths: LakePaths, settings: Settings, with_log: bool, deep: bool) -> Iterator[Check]:
    with closing(connect(paths.catalog, settings.busy_timeout, read_only=True)) as db:
        try:
            rows = db.execute(
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? "
                "AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL) ORDER BY table_namespace, table_name",
                (NAME,),
            ).fetchall()
        except sqlite3.Error as error:
            yield Check("tables", "fail", f"the catalog has no tables: {error}", _RESTORE.format(paths.catalog.name))
            return
    registered = [Registered(*map(str, row)) for row in rows]
    moved = [each for each in registered if not _is_below(each.metadata, paths.warehouse)]
    if moved:
        yield _moved(moved[0], paths)
        return
    yield Check("tables", "ok", f"the catalog names {counted(len(registered), 'table')}")
    tables: dict[TableName, StaticTable] = {}
    for each, table in _read_tables(registered):
        if isinstance(table, Check):
            yield table
            continue
        tables[TableName(each.namespace, each.name)] = table
        yield from _check_table(each, table, paths, settings, with_log, deep)
    yield from check_streams(paths, tables)
    if len(tables) == len(registered):  # what belongs to no table is known only if all of them are
        yield from _check_between(tables, paths, settings, with_log)


def _check_between(
    tables: dict[TableName, StaticTable], paths: LakePaths, settings: Settings, with_log: bool
) -> Iterator[Check]:
    """What tables have to do with each other, and what belongs to none of them."""
    from headwater.catalog.iceberg import Tables
    from headwater.cli.checks_care import check_folders, check_pending
    from headwater.cli.checks_refs import check_refs

    def load(name: TableName) -> Table:
        with closing(Tables(paths.catalog, paths.warehouse, settings.busy_timeout)) as catalog:
            return catalog.load_for_commit(name)

    yield from check_refs(tables, load)
    yield check_folders(paths, tables, settings)
    if with_log:
        yield check_pending(paths, settings, tables)


def _is_below(location: str, folder: Path) -> bool:
    return local_path(location).is_relative_to(folder)


def _moved(table: Registered, paths: LakePaths) -> Check:
    was = next((each.parent for each in local_path(table.metadata).parents if each.name == "warehouse"), None)
    return Check(
        "tables",
        "fail",
        f'the lake was moved: table "{table.namespace}.{table.name}" is recorded at {table.metadata}',
        f"Move the folder back to {was}, or link it there: Iceberg keeps absolute paths."
        if was
        else f"Iceberg keeps absolute paths; this lake is in {paths.root}.",
    )


def _read_tables(tables: list[Registered]) -> Iterator[tuple[Registered, StaticTable | Check]]:
    from pyiceberg.table import StaticTable

    for each in tables:
        try:
            yield each, StaticTable.from_metadata(each.metadata)
        except Exception as error:  # whatever a missing or damaged file raises in the reader
            message = f"its metadata {each.metadata} cannot be read: {type(error).__name__}: {error}"
            yield each, Check(f"{each.namespace}.{each.name}", "fail", message, "Restore the file from a backup.")


def _check_table(
    each: Registered, table: StaticTable, paths: LakePaths, settings: Settings, with_log: bool, deep: bool
) -> Iterator[Check]:
    from headwater.cli.checks_care import check_damage, check_orphans
    from headwater.cli.checks_files import check_files, check_metadata, read_contents
    from headwater.cli.checks_lost import check_lost
    from headwater.cli.checks_offsets import check_position, check_ranges, check_rows

    contents = read_contents(table, deep=deep)
    yield check_files(f"{each.namespace}.{each.name}", table, contents)
    if deep:
        yield check_metadata(each.name, table, contents)
    elif with_log:  # every file is read otherwise
        yield from check_damage(each.name, table, contents.of(table.current_snapshot()), paths, settings)
    if table.metadata.properties.get(P_KIND) == "topic":
        if with_log:
            yield check_position(each.name, table, paths.state, settings.busy_timeout)
        yield check_ranges(each.name, table)
        if deep:
            sound = contents.of(table.current_snapshot())
            yield check_rows(each.name, table, [file for path, file in sound.items() if path not in contents.damaged])
            if contents.damaged.keys() & sound.keys():
                yield from check_lost(each.name, table, contents, paths, settings)
    if deep:
        yield check_orphans(each.name, table, paths, settings)
