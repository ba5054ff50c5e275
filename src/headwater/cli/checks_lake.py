"""The doctor's view of a lake: settings, catalog, log, tables. Reads only, also while a service runs."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.serializers import Compressor

from headwater.catalog.damage import unreadable
from headwater.catalog.definitions import P_KIND
from headwater.catalog.durable_files import FILES, is_inside, local_path
from headwater.catalog.iceberg import NAME, Tables, create_catalog_file
from headwater.catalog.identity import locate_lake
from headwater.catalog.kept import P_OURS
from headwater.catalog.topics import Topics
from headwater.catalog.views import Views
from headwater.cli.checks import Check, Repair, failed
from headwater.cli.checks_log import check_stored, lost_log
from headwater.cli.checks_streams import check_streams
from headwater.cli.screen import counted, sized
from headwater.config import LakePaths, Settings, is_writable, load_settings
from headwater.errors import HeadwaterError
from headwater.sql.statements import DropTopic, DropView
from headwater.state.sqlite import connect
from headwater.types import TOPICS, VIEWS, TableName

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable, Table

ATTEMPTS, PAUSE = 5, 0.1
"""How often, and after how many seconds, a table is looked at again that moved while it was looked at."""
_RESTORE = "Restore {} from a backup; do not run anything else on this lake before."


@dataclass(frozen=True, slots=True)
class Registered:
    """A table as the catalog names it."""

    table: TableName
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
    if state.status != "fail" or catalog.status == "fail":
        yield state
    if catalog.status != "fail":
        try:
            paths = locate_lake(paths, settings.busy_timeout, adopt=False)
        except HeadwaterError as error:
            yield failed("location", error)
            return
        log = [lost_log(state, paths, settings)] if state.status == "fail" else list(check_stored(paths, settings))
        yield from log
        yield from _check_tables(paths, settings, all(check.status != "fail" for check in log), deep)


def _check_database(name: str, path: Path, timeout: float) -> Check:
    """Whether SQLite's own check passes, and whether the file is in WAL mode."""
    if not path.exists():
        return Check(name, "fail", f"{path.name} is missing", _RESTORE.format(path.name))
    if path.stat().st_size == 0:
        return Check(name, "fail", f"{path.name} is empty", _RESTORE.format(path.name))
    try:
        with closing(connect(path, timeout, read_only=True)) as db:
            found = [str(row[0]) for row in db.execute("PRAGMA quick_check(5)")]
            mode = str(db.execute("PRAGMA journal_mode").fetchone()[0])
    except sqlite3.Error as error:
        return Check(name, "fail", f"{path.name} cannot be read: {error}", _RESTORE.format(path.name))
    if found != ["ok"]:
        return Check(name, "fail", f"{path.name} is damaged: {found[0]}", _RESTORE.format(path.name))
    if mode != "wal" and is_writable(path):  # where nothing can be written, SQLite does not say
        message = f"{path.name} is in journal mode {mode}: readers block writers"
        repair = Repair(f"put {path.name} into WAL mode", lambda: create_catalog_file(path, timeout))
        return Check(name, "warn", message, "Run `headwater doctor --repair`.", repair)
    return Check(name, "ok", f"{path.name} passes SQLite's check, {sized(path.stat().st_size)}")


def _check_tables(paths: LakePaths, settings: Settings, with_log: bool, deep: bool) -> Iterator[Check]:
    try:
        registered = _registered(paths, settings)
    except sqlite3.Error as error:
        yield Check("tables", "fail", f"the catalog has no tables: {error}", _RESTORE.format(paths.catalog.name))
        return
    yield Check("tables", "ok", f"the catalog names {counted(len(registered), 'table')}")
    for each in registered:
        look = partial(_check_table, each.table, paths, settings, with_log, deep)
        yield from _until_still(look, paths, settings, {each})
    yield from _until_still(partial(_check_published, paths, settings), paths, settings, set(registered))
    yield from _until_still(partial(_check_between, paths, settings, with_log, deep), paths, settings, set(registered))


def _until_still(
    look: Callable[[], Iterable[Check]], paths: LakePaths, settings: Settings, seen: set[Registered]
) -> list[Check]:
    """What `look` finds. While a service runs, tables move between two looks at them, which is not damage: something
    wrong is told only if none of them has moved."""
    for _ in range(ATTEMPTS):
        checks = list(look())
        if all(check.status == "ok" for check in checks):
            return checks
        time.sleep(PAUSE)
        now = set(_registered(paths, settings))
        if seen <= now:
            return checks
        names = {each.table for each in seen}
        seen = {each for each in now if each.table in names}
    return checks


def _registered(paths: LakePaths, settings: Settings) -> list[Registered]:
    """The tables that the catalog names now."""
    with closing(connect(paths.catalog, settings.busy_timeout, read_only=True)) as db:
        rows = db.execute(
            "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? "
            "AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL) ORDER BY table_namespace, table_name",
            (NAME,),
        ).fetchall()
    return [Registered(TableName(str(namespace), str(name)), str(metadata)) for namespace, name, metadata in rows]


def _check_published(paths: LakePaths, settings: Settings) -> Iterator[Check]:
    """The Iceberg views in which other engines read materialized views; Headwater itself does not."""
    with closing(connect(paths.catalog, settings.busy_timeout, read_only=True)) as db:
        query = "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE iceberg_type = 'VIEW'"
        rows = db.execute(query).fetchall()
    for namespace, name, location in rows:
        try:
            if not is_inside(location, paths.warehouse) or "versions" in _read_view(location):
                continue
            reason = "is damaged"
        except FileNotFoundError:
            reason = "is missing"
        except (OSError, ValueError, EOFError, zlib.error):
            reason = "is damaged"
        yield Check(
            f"{namespace}.{name}",
            "fail",
            f"metadata file {local_path(location)} of this Iceberg view {reason}; other engines read it",
            f"Run `headwater doctor --repair`, then `REFRESH MATERIALIZED VIEW {name} FULL`, which creates it again.",
            Repair(f"remove the Iceberg view {namespace}.{name}", partial(_withdraw, name, paths, settings)),
        )


def _read_view(location: str) -> dict[str, object]:
    with local_path(location).open("rb") as file:
        found = json.load(Compressor.get_compressor(location).stream_decompressor(file))
    return found if isinstance(found, dict) else {}


def _withdraw(name: str, paths: LakePaths, settings: Settings) -> None:
    from headwater.views.publish import withdraw

    with closing(Tables(paths.catalog, paths.warehouse, settings.busy_timeout)) as tables:
        withdraw(name, tables.catalog)


def _check_between(paths: LakePaths, settings: Settings, with_log: bool, deep: bool) -> Iterator[Check]:
    """What tables have to do with each other, and what belongs to none of them."""
    from headwater.cli.checks_care import check_folders, check_pending
    from headwater.cli.checks_refs import check_refs

    def load(name: TableName) -> Table:
        with closing(Tables(paths.catalog, paths.warehouse, settings.busy_timeout)) as catalog:
            return catalog.load_for_commit(name)

    tables: dict[TableName, StaticTable] = {}
    damaged: set[TableName] = set()
    # Views first: a source that is read later has the snapshots that they stand for.
    for each in reversed(_registered(paths, settings)):
        if each.table.namespace not in (TOPICS, VIEWS) and not is_inside(each.metadata, paths.warehouse):
            continue
        table = _read_table(each, paths, settings)
        if isinstance(table, Check):
            damaged.add(each.table)
        else:
            tables[each.table] = table
    tables = dict(sorted(tables.items()))
    yield from check_streams(paths, tables, deep=deep)
    yield from check_refs(tables, damaged, load)
    if damaged:  # folders and notes may be theirs
        return
    yield check_folders(paths, tables, settings)
    if with_log:
        yield check_pending(paths, settings, tables)


def _outside(each: Registered, paths: LakePaths, settings: Settings) -> Check:
    """A table whose metadata are outside of the lake: another program registered it, and its files are not touched."""
    message = f"its metadata are outside of the lake, in {each.metadata}"
    if each.table.namespace not in (TOPICS, VIEWS):
        return Check(str(each.table), "ok", f"{message}; Headwater does not use it")

    def remove() -> None:
        with closing(Tables(paths.catalog, paths.warehouse, settings.busy_timeout)) as catalog:
            catalog.catalog.drop_table(each.table.identifier)

    action = (
        "Headwater neither reads nor changes it. Register the metadata of the table in this lake with the program that "
        f"registered these, or run `headwater doctor --repair --drop {each.table}`, which removes it from the catalog "
        "and leaves its files."
    )
    repair = Repair(f"remove {each.table} from the catalog", remove, f"--drop {each.table}")
    return Check(str(each.table), "fail", message, action, repair)


def _read_table(each: Registered, paths: LakePaths, settings: Settings) -> StaticTable | Check:
    from pyiceberg.table import StaticTable

    if not is_inside(each.metadata, paths.warehouse):
        return _outside(each, paths, settings)
    try:
        return StaticTable.from_metadata(each.metadata, FILES)
    except Exception as error:  # whatever a missing or damaged file raises in the reader
        found = unreadable("metadata file", each.metadata, error, str(each.table))
        return _damaged(str(each.table), found, each.table, paths)


def _damaged(label: str, error: Exception, table: TableName, paths: LakePaths) -> Check:
    """A table that cannot be read at all. To drop it is a decision: a topic's records go with it."""
    lost = "create it again after that" if table.namespace == VIEWS else "that deletes its records"
    action = f"Restore the file from a backup, or run `headwater doctor --repair --drop {table}`; {lost}."
    return Check(
        label, "fail", str(error), action, Repair(f"drop {table}", partial(_drop, table, paths), f"--drop {table}")
    )


def _drop(table: TableName, paths: LakePaths) -> None:
    from headwater.engine import Lake

    with Lake.open(paths.root) as lake:
        lake.execute(DropView(table.name) if table.namespace == VIEWS else DropTopic(table.name))


def _check_definition(name: TableName, paths: LakePaths, settings: Settings) -> Iterator[Check]:
    """Whether the table's properties say what topic or view it is."""
    kinds: dict[str, type[Topics] | type[Views]] = {TOPICS: Topics, VIEWS: Views}
    with closing(Tables(paths.catalog, paths.warehouse, settings.busy_timeout)) as catalog:
        try:
            ours = any(key.startswith(P_OURS) for key in catalog.load(name).metadata.properties)
            if ours and name.namespace in kinds:
                kinds[name.namespace](catalog).load(name.name)
        except (HeadwaterError, NoSuchTableError) as error:
            yield _damaged(f"definition of {name.name}", error, name, paths)


def _check_table(name: TableName, paths: LakePaths, settings: Settings, with_log: bool, deep: bool) -> Iterator[Check]:
    from headwater.cli.checks_care import check_damage, check_orphans
    from headwater.cli.checks_files import check_files, check_metadata, read_contents
    from headwater.cli.checks_lost import check_lost
    from headwater.cli.checks_offsets import check_position, check_ranges, check_rows

    each = next((one for one in _registered(paths, settings) if one.table == name), None)
    if each is None:  # dropped since it was listed
        return
    table = _read_table(each, paths, settings)
    if isinstance(table, Check):
        yield table
        return
    if wrong := list(_check_definition(name, paths, settings)):
        yield from wrong
        return
    contents = read_contents(table, deep=deep)
    yield check_files(str(name), table, contents)
    if deep:
        yield check_metadata(name.name, table, contents)
    elif with_log:  # every file is read otherwise
        yield from check_damage(name.name, table, contents.of(table.current_snapshot()), paths, settings)
    if table.metadata.properties.get(P_KIND) == "topic":
        if with_log:
            position = check_position(name.name, table, paths.state, settings.busy_timeout)
            yield lost_log(position, paths, settings) if position.status == "fail" else position
        yield check_ranges(name.name, table)
        if deep:
            sound = contents.of(table.current_snapshot())
            yield check_rows(name.name, table, [file for path, file in sound.items() if path not in contents.damaged])
            if contents.damaged.keys() & sound.keys():
                yield from check_lost(name.name, table, contents, paths, settings)
    if deep and with_log:  # files that wait to be deleted are noted there
        yield check_orphans(name.name, table, paths, settings)
