"""Makes a backup of a lake, also while it is in use.

The catalog and the state database are copied as they are at one moment: both are locked for the moment in which a read
transaction begins on each. Everything that the catalog refers to then is immutable, except checkpoints of continuous
views, which are cut back to the epoch that the view's table has. So a backup is what a crash at that moment would have
left, and restoring it is as safe as a restart.

Files may be deleted before they are copied. Those that are deleted within seconds are secured first: commits delete old
metadata of their table, and streams the files of old batches. Maintenance deletes nothing that a backup may need while
it runs. After a DROP, the backup begins again from a newer moment, and uses the files that it has stored already.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import Compressor, FromByteStream
from pyiceberg.table import StaticTable

from headwater.backup.store import Backup, ReportProgress, Store, StoredFile, inventory
from headwater.catalog.durable_files import FILES, is_inside
from headwater.catalog.iceberg import NAME, named_errors
from headwater.catalog.identity import P_LAKE, P_LOCATION, connect_catalog, read_properties
from headwater.catalog.progress import BATCHES_RETAINED, progress_of
from headwater.config import LakePaths
from headwater.errors import Conflict, Corrupt, StorageBusy, Unavailable
from headwater.observability.failpoints import failpoint
from headwater.state.care import CareStore
from headwater.state.sqlite import connect
from headwater.state.sqlite import named_errors as named_state_errors
from headwater.storage.checksums import verify_file
from headwater.storage.maintenance.reachable import plain, referred
from headwater.storage.scan import ManifestCache

ATTEMPTS = 10
PAUSE = 0.2
"""Seconds before the second attempt; each further one waits as much longer."""
READ_SECONDS = 3600.0
"""Seconds for which maintenance keeps files for a backup that does not say that it is still running."""
MAX_BATCHES_AHEAD = BATCHES_RETAINED - 4
"""Batches by which a checkpoint may be ahead of its view: what is older may be partly deleted."""

KnownFiles = dict[tuple[str, int, int], StoredFile]
"""Stored files that need not be copied again, by path, size and time."""

_TABLES = (
    "SELECT table_namespace || '.' || table_name, iceberg_type, metadata_location "
    "FROM iceberg_tables WHERE catalog_name = ?"
)


FREE_PAGES = 128
"""Unused pages of a database that a backup may copy."""


class _Gone(Exception):
    """A file that the pinned catalog refers to does not exist any more."""


class _TooFarAhead(Exception):
    """The checkpoint of a continuous view no longer has the epoch that the view's table has."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a run did: the backup that there is now, and what was copied for it."""

    backup: Backup
    copied_files: int
    copied_bytes: int
    removed_objects: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "lake": self.backup.lake,
            "location": self.backup.location,
            "created_at": self.backup.created_at,
            "files": self.backup.files,
            "bytes": self.backup.bytes,
            "copied_files": self.copied_files,
            "copied_bytes": self.copied_bytes,
            "removed_objects": self.removed_objects,
            "seconds": round(self.seconds, 3),
        }


def create_backup(
    paths: LakePaths,
    busy_timeout: float,
    destination: Path,
    *,
    verify: bool = False,
    progress: ReportProgress = lambda _: None,
) -> BackupReport:
    """Bring the backup in the folder `destination` up to date; with `verify`, every byte that it has is read again."""
    started = time.monotonic()
    folder = destination.resolve()
    if folder.is_relative_to(paths.root) or paths.root.is_relative_to(folder):
        raise Conflict(
            f'"{destination}" cannot hold a backup',
            detail="A backup is kept outside of the lake's folder.",
            hint="Choose another folder, best on another disk.",
        )
    store = Store(folder)
    with store.writing() as incoming, _long_read(paths, busy_timeout) as extend_read:
        known = _known_files(store, _previous(store, paths, busy_timeout), verify=verify)
        absent: set[str] = set()
        failure = _changing_lake(paths)
        copier = _Copier(paths, store, incoming, known, progress, extend_read)
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE * attempt)
            try:
                return copier.complete(busy_timeout, started)
            except _Gone as gone:
                # It was gone before this attempt's moment, and the catalog referred to it all the same.
                if str(gone) in absent:
                    raise Corrupt(
                        f"file {gone} does not exist",
                        detail="The catalog refers to it. The previous backup, if any, is still complete.",
                        hint="Run `headwater doctor --deep`.",
                    ) from None
                absent.add(str(gone))
                failure = _changing_lake(paths)
            except _TooFarAhead as ahead:
                failure = Unavailable(
                    f'continuous view "{ahead}" cannot be backed up now',
                    detail="Its stream is too many batches ahead of its table. "
                    "The previous backup, if any, is still complete.",
                    hint="Refresh the view, or start the service, and run the backup again.",
                )
    raise failure


def _changing_lake(paths: LakePaths) -> Unavailable:
    return Unavailable(
        f'lake in "{paths.root}" changed faster than it could be copied',
        detail=f"Files were deleted during each of {ATTEMPTS} attempts. "
        "The previous backup, if any, is still complete.",
        hint="Run the backup again while fewer topics and views are dropped.",
    )


@contextmanager
def _long_read(paths: LakePaths, busy_timeout: float) -> Iterator[Callable[[], None]]:
    """Have maintenance keep files while the block runs; the block calls the function that it gets now and then."""
    with closing(CareStore(paths.state, busy_timeout)) as reads:
        began = extended = time.time()
        id = None
        with suppress(Unavailable):  # a lake that cannot be written is not maintained either
            id = reads.note_read(began, began + READ_SECONDS)

        def extend() -> None:
            nonlocal extended
            if id is not None and time.time() - extended > READ_SECONDS / 4:
                with suppress(Unavailable):  # the next call tries again
                    reads.extend_read(id, time.time() + READ_SECONDS)
                    extended = time.time()

        try:
            yield extend
        finally:
            if id is not None:
                with suppress(Unavailable):  # it expires by itself
                    reads.end_read(id)


def _previous(store: Store, paths: LakePaths, busy_timeout: float) -> Backup | None:
    """The backup that is there; Conflict if it is one of another lake."""
    if (found := store.current()) is None:
        return None
    with named_errors(), closing(connect_catalog(paths.catalog, busy_timeout)) as db:
        lake = read_properties(db).get(P_LAKE)
    if found.lake != lake:
        raise Conflict(
            f'folder "{store.folder}" has the backup of another lake',
            detail=f"That lake is in {found.location}, with the id {found.lake}.",
            hint="Choose another folder.",
        )
    return found


def _known_files(store: Store, previous: Backup | None, *, verify: bool) -> KnownFiles:
    if previous is None:
        return {}
    try:
        files = store.files(previous)
    except Corrupt:  # without its list, everything is copied again
        return {}
    return {(f.path, f.bytes, f.modified): f for f in files if store.is_stored(f, verify=verify)}


class _Copier:
    """Copies one moment of the lake at each call. What it stores is added to `known`, even if the call fails."""

    def __init__(
        self,
        paths: LakePaths,
        store: Store,
        incoming: Path,
        known: KnownFiles,
        progress: ReportProgress,
        extend_read: Callable[[], None],
    ) -> None:
        self._paths = paths
        self._store = store
        self._incoming = incoming
        self._known = known
        self._progress = progress
        self._extend_read = extend_read
        self._files: list[StoredFile] = []
        self._copied = self._copied_bytes = 0

    def complete(self, busy_timeout: float, started: float) -> BackupReport:
        catalog, state = self._incoming / "catalog.db", self._incoming / "state.db"
        self._files = []
        with ExitStack() as stack:
            with pin(self._paths, busy_timeout) as pinned:
                properties = read_properties(pinned.catalog)
                rows = pinned.catalog.execute(_TABLES, (NAME,)).fetchall()
                # First what is deleted soon: 20 commits later, a table's metadata is; so is a batch of a stream.
                tables = self._load_tables(rows)
                checkpoints = self._secure_checkpoints(tables, stack)
                pinned.copy_to(state, catalog)
            failpoint("backup.pinned")
            files = self._data_files(tables)
            self._progress({"files": len(files), "copied_files": self._copied, "copied_bytes": self._copied_bytes})
            for path in files:
                self._add(path, path.relative_to(self._paths.root).as_posix(), data=path.suffix == ".parquet")
            for name, path in checkpoints.items():
                self._add(path, name)
            for path in (catalog, state, self._paths.config):
                self._add(path, path.name)
        failpoint("backup.copied")
        backup = Backup(
            lake=properties[P_LAKE],
            location=properties[P_LOCATION],
            created_at=pinned.moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            files=len(self._files),
            bytes=sum(each.bytes for each in self._files),
            inventory=self._store.add_bytes(inventory(self._files)),
        )
        self._store.switch(backup)
        removed = self._store.prune({backup.inventory, *(each.sha256 for each in self._files)})
        return BackupReport(backup, self._copied, self._copied_bytes, removed, time.monotonic() - started)

    def _load_tables(self, rows: list[tuple[str, str, str]]) -> dict[str, StaticTable]:
        """Store the metadata of all tables and views, then load the tables from what is stored."""
        stored = {}
        for name, kind, location in rows:
            path = self._inside(plain(location), name)
            found = self._add(path, path.relative_to(self._paths.root).as_posix())
            if kind != "VIEW":
                stored[name] = location, found
        tables = {}
        for name, (location, file) in stored.items():
            data = BytesIO(self._store.read(file))
            try:
                metadata = FromByteStream.table_metadata(data, compression=Compressor.get_compressor(location))
            except Exception as wrong:  # whatever damaged bytes raise in the reader
                raise _unreadable(name, wrong) from wrong
            tables[name] = StaticTable((name,), metadata, location, load_file_io(FILES, location), NoopCatalog(name))
        return tables

    def _data_files(self, tables: Mapping[str, StaticTable]) -> list[Path]:
        """Every file of the warehouse that the tables refer to, without their metadata of now and before."""
        cache, found = ManifestCache(), set[Path]()
        for name, table in tables.items():
            try:
                named = referred(table, table.metadata_location, cache)
            except Unavailable:
                raise
            except Exception as wrong:  # whatever a damaged file raises in the reader
                file = getattr(wrong, "data", {}).get("file") or getattr(wrong, "filename", None)
                if file is not None and not Path(file).exists():
                    raise _Gone(str(file)) from None
                raise _unreadable(name, wrong) from wrong
            # Commits delete older metadata, and nothing needs it.
            logged = {plain(entry.metadata_file) for entry in table.metadata.metadata_log}
            found |= {self._inside(path, name) for path in named - logged - {plain(table.metadata_location)}}
        return sorted(found)

    def _inside(self, path: str, table: str) -> Path:
        if not is_inside(path, self._paths.warehouse):
            raise Corrupt(
                f"file {path} is outside the lake",
                detail=f'Table "{table}" refers to it, and a backup holds only files of the lake.',
                hint="Drop the table, or create it again inside the lake, and run the backup again.",
            )
        return Path(path)

    def _add(self, path: Path, name: str, *, data: bool = False) -> StoredFile:
        """Make a file part of the backup, and store it unless it is stored already."""
        self._extend_read()
        try:
            seen = path.stat()
            key = name, seen.st_size, seen.st_mtime_ns
            if key not in self._known:
                sha256, size = self._store.add(path)
                if data:
                    verify_file(path)  # a damaged file must not replace the good copy of an earlier backup
                self._known[key] = StoredFile(name, sha256, size, seen.st_mtime_ns)
                self._copied, self._copied_bytes = self._copied + 1, self._copied_bytes + size
                self._progress({"copied_files": self._copied, "copied_bytes": self._copied_bytes})
        except (FileNotFoundError, Corrupt):
            if path.exists():
                raise
            raise _Gone(str(path)) from None  # deleted since the catalog was copied
        self._files.append(self._known[key])
        return self._known[key]

    def _secure_checkpoints(self, tables: Mapping[str, StaticTable], stack: ExitStack) -> dict[str, Path]:
        """The files of the checkpoints of continuous views, each as of the epoch that its view's table has."""
        streams = {name: found for name, table in tables.items() if (found := progress_of(table.metadata.properties))}
        if not streams:
            return {}
        folder = stack.enter_context(_checkpoint_folder(self._paths.streams, self._incoming))
        for name, found in streams.items():
            source = self._paths.streams / found.folder / "checkpoint"
            if not source.is_dir():
                raise _Gone(str(source))
            if not copy_checkpoint(source, folder / found.folder / "checkpoint", found.epoch):
                raise _TooFarAhead(name.partition(".")[2])
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {f"streams/{path.relative_to(folder).as_posix()}": path for path in files}


# -- one moment -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pinned:
    """Read transactions on both databases of a lake that see the same moment."""

    moment: datetime
    state: sqlite3.Connection
    catalog: sqlite3.Connection

    def copy_to(self, state: Path, catalog: Path) -> None:
        for reader, target in ((self.state, state), (self.catalog, catalog)):
            target.unlink(missing_ok=True)
            with named_copy_errors(target), closing(sqlite3.connect(target)) as copy:
                reader.backup(copy)
                # Not in WAL mode: a copy is one file. Opening the restored one puts it back.
                copy.execute("PRAGMA journal_mode=DELETE")
                # A log that was large once keeps its pages for later; every backup would copy them.
                if copy.execute("PRAGMA freelist_count").fetchone()[0] > FREE_PAGES:
                    copy.execute("VACUUM")


@contextmanager
def named_copy_errors(target: Path) -> Iterator[None]:
    """Turn SQLite's failures on a copy into errors about the copy: the lake's own files are not at fault."""
    try:
        yield
    except sqlite3.Error as failed:
        if "full" in str(failed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from failed
        raise StorageBusy(
            f'copy "{target}" cannot be written',
            detail=f"SQLite says: {failed}.",
            hint="Check the space and the disk of the backup's folder, and run the command again.",
        ) from failed


@contextmanager
def pin(paths: LakePaths, busy_timeout: float) -> Iterator[Pinned]:
    """Both databases as they are at one moment; writers wait only until the transactions have begun."""
    with ExitStack() as stack:
        stack.enter_context(named_errors())
        stack.enter_context(named_state_errors(paths.state))
        locks = [
            stack.enter_context(closing(connect(paths.state, busy_timeout))),
            stack.enter_context(closing(connect_catalog(paths.catalog, busy_timeout))),
        ]
        with _allowing_read_only():
            for lock in locks:
                lock.execute("BEGIN IMMEDIATE")
        readers = []
        for source in (paths.state, paths.catalog):
            reader = stack.enter_context(closing(connect(source, busy_timeout, read_only=True)))
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the transaction begins with this
            readers.append(reader)
        moment = datetime.now(UTC)
        for lock in locks:
            lock.rollback()
        yield Pinned(moment, *readers)


@contextmanager
def _allowing_read_only() -> Iterator[None]:
    """A folder that cannot be written to cannot be written to by others either, and needs no lock."""
    try:
        yield
    except sqlite3.OperationalError as failed:
        if "readonly" not in str(failed):
            raise


def _unreadable(name: str, wrong: Exception) -> Corrupt:
    return Corrupt(
        f'table "{name}" cannot be backed up',
        detail=f"{wrong}. The previous backup, if any, is still complete.",
        hint="Run `headwater doctor --deep`; repair or drop the table, then run the backup again.",
    )


# -- checkpoints ------------------------------------------------------------------------------------------------------


@contextmanager
def _checkpoint_folder(streams: Path, incoming: Path) -> Iterator[Path]:
    """A folder for checkpoints, on the disk of the lake if that can be written, so that files can be linked there.

    After a crash the service sweeps it, as any folder that no view has.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="backup-", dir=streams))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="streams-", dir=incoming))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_checkpoint(source: Path, target: Path, epoch: int) -> bool:
    """Copy a checkpoint as it was when `epoch` was the last batch; False if it has moved too far beyond that.

    The query may be running: it writes files under other names and renames them, and deletes those of old batches. So a
    file under its own name does not change, and a link to it is a copy, however large the state is.
    """
    for path in _checkpoint_files(source):
        if _batch(path.relative_to(source)) > epoch:
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # of an old batch
            try:
                os.link(path, copy)
            except FileNotFoundError:
                raise
            except OSError:  # another disk, or one without links
                shutil.copy2(path, copy)
    newest = max((int(path.name) for path in (source / "offsets").glob("[0-9]*") if path.name.isdigit()), default=-1)
    return (target / "offsets" / str(epoch)).exists() and newest - epoch <= MAX_BATCHES_AHEAD


def _checkpoint_files(source: Path) -> Iterator[Path]:
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield path


def _batch(path: Path) -> int:
    """The batch that wrote a file of a checkpoint; -1 if it belongs to all of them."""
    first, number = path.parts[0], path.name.partition(".")[0].partition("_")[0]
    if not number.isdigit():
        return -1
    # Batch n reads version n of the state and writes version n + 1.
    return int(number) - 1 if first == "state" else int(number) if first in ("offsets", "commits") else -1
