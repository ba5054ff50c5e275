"""The doctor's view of a lake: settings, catalog, log, tables. Reads only, also while a service runs."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.catalog.definitions import P_KIND, P_OFFSET
from headwater.catalog.iceberg import NAME
from headwater.cli.checks import Check, failed
from headwater.cli.screen import counted, sized
from headwater.config import LakePaths, load_settings
from headwater.errors import Corrupt, HeadwaterError
from headwater.state.sqlite import connect
from headwater.storage.writer import local_path
from headwater.topics.log import LogTopic
from headwater.topics.log_entries import check_dense, list_entries

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

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
        yield from _check_tables(paths, settings.busy_timeout, state.status != "fail", deep)


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
        hint = f"Run `sqlite3 {path} 'PRAGMA journal_mode=WAL'`."
        return Check(name, "warn", f"{path.name} is in journal mode {mode}: readers block writers", hint)
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


def _check_tables(paths: LakePaths, timeout: float, with_log: bool, deep: bool) -> Iterator[Check]:
    with closing(connect(paths.catalog, timeout, read_only=True)) as db:
        try:
            rows = db.execute(
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? "
                "ORDER BY table_namespace, table_name",
                (NAME,),
            ).fetchall()
        except sqlite3.Error as error:
            yield Check("tables", "fail", f"the catalog has no tables: {error}", _RESTORE.format(paths.catalog.name))
            return
    tables = [Registered(*map(str, row)) for row in rows]
    moved = [each for each in tables if not _is_below(each.metadata, paths.warehouse)]
    if moved:
        yield _moved(moved[0], paths)
        return
    yield Check("tables", "ok", f"the catalog names {counted(len(tables), 'table')}")
    for each in tables:
        yield from _check_table(each, paths, timeout, with_log, deep)


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


def _check_table(each: Registered, paths: LakePaths, timeout: float, with_log: bool, deep: bool) -> Iterator[Check]:
    from pyiceberg.table import StaticTable

    name = f"{each.namespace}.{each.name}"
    try:
        table = StaticTable.from_metadata(each.metadata)
    except Exception as error:  # whatever a missing or damaged file raises in the reader
        message = f"its metadata {each.metadata} cannot be read: {type(error).__name__}: {error}"
        yield Check(name, "fail", message, "Restore the file from a backup.")
        return
    yield _check_files(name, table, deep)
    if with_log and table.metadata.properties.get(P_KIND) == "topic":
        yield _check_position(each.name, table, paths.state, timeout)


def _check_files(name: str, table: StaticTable, deep: bool) -> Check:
    """Whether the current snapshot's files exist with their sizes; `deep` reads them and verifies page checksums."""
    try:
        files = list(_data_files(table))
    except Exception as error:
        message = f"a manifest cannot be read: {type(error).__name__}: {error}"
        return Check(name, "fail", message, "Restore the table's metadata folder from a backup.")
    wrong = [reason for path, size in files if (reason := _wrong(path, size, deep))]
    if wrong:
        message = f"{len(wrong)} of {len(files)} data files are not as recorded: {wrong[0]}"
        return Check(name, "fail", message, "Restore the files from a backup, or roll the table back to a snapshot.")
    total = sum(size for _, size in files)
    how = "every one matches its checksums" if deep else "all in place"
    return Check(name, "ok", f"{counted(len(files), 'data file')}, {sized(total)}, {how}")


def _data_files(table: StaticTable) -> Iterator[tuple[Path, int]]:
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield local_path(entry.data_file.file_path), entry.data_file.file_size_in_bytes


def _wrong(path: Path, size: int, deep: bool) -> str | None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    if found != size:
        return f"{path} has {found} bytes instead of {size}"
    return _damaged(path) if deep else None


def _damaged(path: Path) -> str | None:
    from headwater.storage.checksums import verify_file

    try:
        # What another writer left without checksums is found by decoding it, if at all.
        return None if verify_file(path) else _undecodable(path)
    except Corrupt as error:
        return f"{path} is damaged: {error.detail}"
    except OSError as error:
        return f"{path} cannot be read: {error}"


def _undecodable(path: Path) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for _ in pq.ParquetFile(path, page_checksum_verification=True).iter_batches():
            pass
    except (pa.ArrowException, OSError) as error:
        return f"{path} is damaged: {str(error).splitlines()[0]}"
    return None


def _check_position(topic: str, table: StaticTable, state: Path, timeout: float) -> Check:
    """Whether table and log together hold every offset once: the log goes on where the table ends."""
    name, committed = f"offsets of {topic}", int(table.metadata.properties.get(P_OFFSET, "0"))
    with closing(connect(state, timeout, read_only=True)) as db:
        row = db.execute(
            "SELECT id, next_offset, trimmed FROM log_topics WHERE topic = ? AND NOT dropped",
            (str(table.metadata.table_uuid),),
        ).fetchone()
        if row is None:
            return Check(name, "ok", f"committed up to {committed}, nothing in the log")
        row_id, end, _ = row
        if end < committed:
            message = f"the log ends at {end}, the table at {committed}: new records would get offsets that exist"
            return Check(name, "fail", message, f"Restore {state.name} and catalog.db from the same backup.")
        try:
            check_dense(LogTopic("", topic, committed), list_entries(db, row_id, committed), committed, end)
        except HeadwaterError as error:
            return failed(name, error)
    return Check(
        name, "ok", f"committed up to {committed}, the log holds {counted(end - committed, 'record')} after it"
    )
