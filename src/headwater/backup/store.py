"""Where a backup is kept: a folder of objects named after their SHA-256, and one file that says which of them count.

::

    DEST/backup.json         the current backup: the lake, when it was made, and the object that lists its files
    DEST/objects/ab/abcd…    contents; each is stored once, however many backups have it
    DEST/incoming            what a run prepares; deleted when the next one begins
    DEST/lock                held by a run, and shared by restores; its text says that the folder is a backup's

Objects are only added until `backup.json` is replaced, by one rename; then those that it no longer needs are deleted.
So a crash leaves the previous backup or the new one, and objects that the next run deletes or uses.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwater.catalog.durable_files import sync_file
from headwater.errors import Conflict, Corrupt, NotFound
from headwater.observability.failpoints import failpoint
from headwater.version import __version__, newer_version

FORMAT = 1
_MARK = b"headwater backup\n"
_CHUNK = 1024**2

ReportProgress = Callable[[Mapping[str, Any]], None]
"""Called with numbers about a backup or a restore while it runs."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the lake, by its path below the lake's folder. `modified` is in nanoseconds, as the lake had it."""

    path: str
    sha256: str
    bytes: int
    modified: int


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup; `inventory` is the object that lists its files."""

    lake: str
    location: str
    created_at: str
    files: int
    bytes: int
    inventory: str
    format: int = FORMAT
    written_by: str = __version__


class Store:
    """The backup in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects = folder / "objects"
        self._incoming = folder / "incoming"

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Keep other writers and restores out while the block runs; it gets a folder for what it prepares.

        Conflict if the folder holds anything but a backup: a run deletes files in it.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._check_folder()
        with (self.folder / "lock").open("ab+") as lock:
            self._acquire(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_size == 0:
                lock.write(_MARK)
                lock.flush()
                sync_file(self.folder / "lock")
            shutil.rmtree(self._incoming, ignore_errors=True)
            self._incoming.mkdir(mode=0o700)
            try:
                yield self._incoming
            finally:
                shutil.rmtree(self._incoming, ignore_errors=True)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out while the block runs, as far as the folder has a lock: a copy on read-only media may not."""
        try:
            lock = (self.folder / "lock").open("rb")
        except OSError:
            yield
            return
        with lock:
            self._acquire(lock, fcntl.LOCK_SH)
            yield

    def _acquire(self, lock: Any, kind: int) -> None:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f'backup in "{self.folder}" is in use',
                detail="Another backup into that folder, or a restore from it, is running.",
                hint="Wait until it has finished.",
            ) from None

    def _check_folder(self) -> None:
        if self.current() is not None:
            return
        lock = self.folder / "lock"
        mark = lock.read_bytes() if lock.is_file() else None
        # An empty lock, and nothing else, is what a run leaves that was killed before it wrote the mark.
        own = {"lock", "incoming", "objects"} if mark == _MARK else {"lock"} if mark == b"" else set()
        if {each.name for each in self.folder.iterdir()} <= own:
            return
        raise Conflict(
            f'folder "{self.folder}" is not empty',
            detail="A backup needs a folder of its own.",
            hint="Choose a new or empty folder.",
        )

    # -- what there is --------------------------------------------------------------------------------------------

    def current(self) -> Backup | None:
        """The complete backup; None before there is one."""
        path = self.folder / "backup.json"
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._unknown("backup.json is not JSON") from None
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise self._unknown("backup.json does not describe a backup")
        if found["format"] > FORMAT:
            what = f'backup in "{self.folder}"'
            raise newer_version(what, "format", found["format"], FORMAT, found.get("written_by"))
        try:
            return Backup(**found)
        except TypeError:
            raise self._unknown("backup.json is incomplete") from None

    def _unknown(self, reason: str) -> Corrupt:
        return Corrupt(
            f'backup in "{self.folder}" is damaged',
            detail=f"{reason}.",
            hint="Restore from another backup. If the lake still exists, back it up into a new folder.",
        )

    def load(self) -> Backup:
        """The complete backup; NotFound if there is none."""
        if (found := self.current()) is None:
            raise NotFound(
                f'no complete backup in "{self.folder}"',
                detail="There is no backup.json in that folder.",
                hint="Create one with `headwater backup`.",
            )
        return found

    def files(self, backup: Backup) -> list[StoredFile]:
        """What the backup holds."""
        try:
            data = self._object(backup.inventory).read_bytes()
        except FileNotFoundError:
            data = b""
        if hashlib.sha256(data).hexdigest() != backup.inventory:
            raise Corrupt(f'backup in "{self.folder}" is damaged', detail="Its list of files is missing or damaged.")
        return [StoredFile(*row) for row in json.loads(data)]

    def read(self, file: StoredFile) -> bytes:
        """The contents of a stored file; Corrupt if they are not what was stored."""
        try:
            data = self._object(file.sha256).read_bytes()
        except FileNotFoundError:
            raise self._damaged(file, "is missing") from None
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise self._damaged(file, "does not match its checksum")
        return data

    def is_stored(self, file: StoredFile, *, verify: bool) -> bool:
        """Whether the contents of a file are here: by their size, or by every byte."""
        path = self._object(file.sha256)
        try:
            if path.stat().st_size != file.bytes:
                return False
        except FileNotFoundError:
            return False
        return not verify or _digest(path) == file.sha256

    # -- writing --------------------------------------------------------------------------------------------------

    def add(self, source: Path) -> tuple[str, int]:
        """Store the contents of a file; their SHA-256 and size. They are read back before they count."""
        part = self._incoming / "part"
        with source.open("rb") as reading, _private(part) as writing:
            sha256, size = _copy(reading, writing)
        return self._place(part, sha256), size

    def add_bytes(self, data: bytes) -> str:
        part = self._incoming / "part"
        with _private(part) as writing:
            writing.write(data)
        return self._place(part, hashlib.sha256(data).hexdigest())

    def _place(self, part: Path, sha256: str) -> str:
        sync_file(part)
        if _digest(part) != sha256:
            raise Corrupt(
                f'what was written to "{self.folder}" is not what was read',
                detail="The copy's checksum differs.",
                hint="Check the disk and memory of this machine, and try again.",
            )
        path = self._object(sha256)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.replace(path)
        sync_file(path)
        failpoint("backup.stored")
        return sha256

    def switch(self, backup: Backup) -> None:
        """Make this the current backup."""
        part = self._incoming / "backup.json"
        with _private(part) as writing:
            writing.write(json.dumps(asdict(backup), indent=1).encode())
        sync_file(part)
        for folder in (*self._objects.iterdir(), self._objects):
            sync_file(folder)
        failpoint("backup.before_switch")
        part.replace(self.folder / "backup.json")
        sync_file(self.folder / "backup.json")
        failpoint("backup.after_switch")

    def prune(self, needed: Collection[str]) -> int:
        """Delete objects that are not needed; how many."""
        gone = 0
        for path in self._objects.glob("??/*"):
            if path.name not in needed:
                path.unlink()
                gone += 1
        failpoint("backup.pruned")
        return gone

    # -- reading --------------------------------------------------------------------------------------------------

    def extract(self, file: StoredFile, target: Path) -> None:
        """Write a file of the backup; Corrupt if it is not what was stored."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._object(file.sha256).open("rb") as reading, _private(target) as writing:
                sha256, _ = _copy(reading, writing)
        except FileNotFoundError:
            raise self._damaged(file, "is missing") from None
        if sha256 != file.sha256:
            raise self._damaged(file, "does not match its checksum")
        os.utime(target, ns=(file.modified, file.modified))
        sync_file(target)

    def _damaged(self, file: StoredFile, what: str) -> Corrupt:
        return Corrupt(
            f'backup in "{self.folder}" is damaged',
            detail=f"The copy of {file.path} ({self._object(file.sha256)}) {what}.",
            hint="Restore from another backup; if the lake still exists, `headwater backup --verify` repairs this one.",
        )

    def _object(self, sha256: str) -> Path:
        return self._objects / sha256[:2] / sha256


def inventory(files: list[StoredFile]) -> bytes:
    """The list of a backup's files, as it is stored."""
    return json.dumps([[each.path, each.sha256, each.bytes, each.modified] for each in files]).encode()


def _private(path: Path) -> Any:
    """A new file that only its owner may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _copy(reading: Any, writing: Any) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while chunk := reading.read(_CHUNK):
        digest.update(chunk)
        writing.write(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
