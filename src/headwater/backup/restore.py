"""Makes a lake from a backup, in another folder.

Crash behaviour: a folder without headwater.toml is not a lake, and that file is written last. Until then, a note in the
folder says that a restore is under way, and the next one into the same folder starts over. A restore holds a lock on
its note, which the system releases however the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from headwater.backup.relocate import Relocation, rewrite_locations
from headwater.backup.rewrite import is_empty
from headwater.backup.store import ReportProgress, Store
from headwater.catalog.durable_files import sync_file
from headwater.catalog.iceberg import create_catalog_file, file_location
from headwater.config import LakePaths, load_settings
from headwater.errors import Conflict, Corrupt, InvalidSetting, LakeExists
from headwater.observability.failpoints import failpoint
from headwater.state.sqlite import connect

NOTE = "restoring.json"
_NOTE_START = b'{"source": '


def restore_backup(
    source: Path, place: Path, busy_timeout: float, *, progress: ReportProgress = lambda _: None
) -> Relocation:
    """Make the lake in the folder `place`, which must be new or empty, from the backup in `source`."""
    store, paths = Store(source.resolve()), LakePaths(place.resolve())
    file_location(paths.warehouse)
    with store.reading():
        backup = store.load()
        with _restoring(paths, source):
            failpoint("restore.begun")
            files = store.files(backup)
            config = None
            for number, file in enumerate(files):
                target = paths.root / file.path
                if not target.is_relative_to(paths.root) or ".." in Path(file.path).parts:
                    raise Corrupt(f'backup in "{source}" is damaged', detail=f"It has a file at {file.path}.")
                if target == paths.config:
                    config = file
                    continue
                store.extract(file, target)
                progress({"files": len(files), "restored_files": number + 1, "bytes": backup.bytes})
            if config is None:
                raise Corrupt(f'backup in "{source}" is damaged', detail="It has no settings.")
            failpoint("restore.unpacked")
            _forget_processes(paths, busy_timeout)
            done = rewrite_locations(paths, busy_timeout, copy=True)
            failpoint("restore.relocated")
            part = paths.root / "restoring.toml"
            store.extract(config, part)
            _set_modes(paths.root, part)
            part.replace(paths.config)
            sync_file(paths.config)
            failpoint("restore.finished")
    return done


@contextmanager
def _restoring(paths: LakePaths, source: Path) -> Iterator[None]:
    """Make the folder, or empty the one that an earlier restore did not finish, and keep other restores out of it."""
    _check_place(paths)
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = paths.root / NOTE
    try:
        path.touch(exist_ok=False)
        is_first = True
    except FileExistsError:
        is_first = False
    with path.open("a") as note:
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f'another restore into "{paths.root}" is running', hint="Wait until it has finished."
            ) from None
        _check_place(paths)  # the other one may have finished meanwhile
        for each in () if is_first else paths.root.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each != path:
                each.unlink()
        if os.fstat(note.fileno()).st_size == 0:
            note.write(json.dumps({"source": str(source)}))
            note.flush()
            sync_file(path)
        yield
        path.unlink()


def _check_place(paths: LakePaths) -> None:
    if paths.config.exists():
        raise LakeExists(f'"{paths.root}" is a lake already', hint="Restore into a new or empty folder.")
    for parent in paths.root.parents:
        if LakePaths(parent).config.exists() or (parent / "backup.json").exists():
            raise Conflict(
                f'"{paths.root}" is inside a lake or a backup, which is in "{parent}"',
                hint="Restore into a folder of its own.",
            )
    if is_empty(paths.root):
        return
    note = paths.root / NOTE
    start = note.read_bytes()[: len(_NOTE_START)] if note.is_file() else None
    # An empty note, and nothing else, is what a restore leaves that was killed before it wrote the note.
    if start == _NOTE_START or (start == b"" and list(paths.root.iterdir()) == [note]):
        return
    raise Conflict(f'folder "{paths.root}" is not empty', hint="Restore into a new or empty folder.")


def _set_modes(root: Path, config: Path) -> None:
    """Give everything the modes that the restored settings allow; until now, only the owner may read it."""
    umask = 0o077
    with suppress(InvalidSetting):  # it is reported when the lake is opened
        umask = load_settings(config).umask
    with suppress(OSError):  # a file system without modes
        for path in root.rglob("*"):
            path.chmod((0o770 if path.is_dir() else 0o660) & ~umask)
        # The group may not write the configuration, nor replace it: its settings run code as the service.
        config.chmod(0o640 & ~umask)
        root.chmod(root.stat().st_mode & 0o777 | 0o750 & ~umask)


def _forget_processes(paths: LakePaths, busy_timeout: float) -> None:
    """Leases and long reads are of processes of another lake; and the copies are put into WAL mode."""
    create_catalog_file(paths.catalog, busy_timeout)
    paths.warehouse.mkdir(exist_ok=True)
    with closing(connect(paths.state, busy_timeout)) as db:
        for table in ("leases", "long_reads"):
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                db.execute(f"DELETE FROM {table}")  # noqa: S608
