"""Orphans: files in a table's folder that no snapshot refers to, as crashed work leaves them, and folders of no table.

A file that somebody is just writing looks the same, so only what is older than a safe age goes. What is not plainly a
file that Headwater or Iceberg writes is reported and left alone. Links are not followed.

Order of things: the folder is listed first, the metadata read afterwards, and read again before anything is deleted. So
a file that is committed meanwhile is never taken for an orphan.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from headwater.observability.failpoints import failpoint
from headwater.storage.maintenance.reachable import inside, plain, referred
from headwater.storage.scan import ManifestCache

_KINDS = {
    "data": re.compile(r"[^.].*\.parquet\Z"),
    "metadata": re.compile(r"[^.].*(\.avro|\.metadata\.json|\.stats|\.puffin)\Z"),
}
_CHECKSUM = re.compile(r"\..+\.crc\Z")
"""Beside each file that Hadoop's file system writes."""
_FOLDER = re.compile(r"[a-z][a-z0-9_]*-[0-7][0-9a-hjkmnp-tv-z]{25}\Z")
"""A table's folder: its name, and a ULID."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file below a table's folder."""

    path: str
    bytes: int
    modified: float
    known: bool = True


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """Files that no snapshot refers to: old ones, which go, and how many are too young or of unknown kinds."""

    orphans: tuple[Found, ...] = field(default=(), repr=False)
    young: int = 0
    unknown: tuple[str, ...] = ()
    listed: int = 0

    @property
    def empty(self) -> bool:
        return not self.orphans

    @property
    def reason(self) -> str:
        said = f"{len(self.orphans)} of {self.listed} files are referred to by no snapshot"
        young = f", {self.young} more are too young" if self.young else ""
        unknown = f", {len(self.unknown)} of unknown kinds are left alone" if self.unknown else ""
        return f"{said}{young}{unknown}"

    def describe(self) -> dict[str, Any]:
        return {
            "files": len(self.orphans),
            "bytes": sum(file.bytes for file in self.orphans),
            "files_young": self.young,
            "files_unknown": len(self.unknown),
        }


def list_files(location: str) -> list[Found]:
    """The files below a table's folder, links left out."""
    folder = plain(location)
    found: list[Found] = []
    for entry, known in _walk(folder, folder):
        with suppress(FileNotFoundError):  # gone since: every commit deletes the oldest metadata file
            seen = entry.stat(follow_symlinks=False)
            found.append(Found(entry.path, seen.st_size, seen.st_mtime, known))
    return found


def _walk(folder: str, top: str) -> Iterator[tuple[os.DirEntry[str], bool]]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:  # nothing was written yet, or it is gone meanwhile
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, top)
        elif entry.is_file(follow_symlinks=False):
            yield entry, _known(entry.path, top)


def _known(path: str, top: str) -> bool:
    first, _, _ = os.path.relpath(path, top).partition(os.sep)
    name = _name(path)
    return first in _KINDS and bool(_KINDS[first].match(name) or _CHECKSUM.match(name))


def plan_orphans(found: Sequence[Found], named: Iterable[str], oldest: float) -> OrphanPlan:
    """What of the files is in no snapshot, `named` being all that are, and was last written before `oldest`."""
    paths = set(named)
    # A file of a known name in another place may be the same one, under a path that we do not understand.
    names = {_name(path) for path in paths}
    loose = [file for file in found if file.path not in paths and _subject(file.path) not in names]
    old = [file for file in loose if file.known and file.modified < oldest]
    unknown = tuple(file.path for file in loose if not file.known)
    return OrphanPlan(tuple(old), len(loose) - len(old) - len(unknown), unknown, len(found))


def _subject(path: str) -> str:
    """The name of the file that a file is about: a checksum file stays with what it is beside."""
    name = _name(path)
    return name[1:].removesuffix(".crc") if _CHECKSUM.match(name) else name


def _name(path: str) -> str:
    return path.rpartition(os.sep)[2]


def orphan_plan(
    load: Callable[[], Table], cache: ManifestCache, oldest: float, waiting: Callable[[], Iterable[str]]
) -> OrphanPlan:
    """The plan for one table; raises if its metadata cannot be read completely.

    Files that are `waiting` to be deleted are none: a read may still use them, however old they are.
    """
    found = list_files(load().location())
    table = load()  # after the listing
    named = referred(table, table.metadata_location, cache)
    return plan_orphans(found, named.union(waiting()), oldest)  # noted before they left the metadata, so asked after it


@dataclass(frozen=True, slots=True)
class Removed:
    plan: OrphanPlan
    files: int
    bytes: int

    def describe(self) -> dict[str, Any]:
        return self.plan.describe() | {"files": self.files, "bytes": self.bytes}


def run_orphans(load: Callable[[], Table], cache: ManifestCache, plan: OrphanPlan) -> Removed:
    """Delete the plan's files that are still in no snapshot, as they were seen."""
    table = load()
    named, folder = referred(table, table.metadata_location, cache), plain(table.location())
    failpoint("orphans.checked")
    files = size = 0
    for file in plan.orphans:
        if file.path not in named and inside(file.path, folder) and _unchanged(file):
            Path(file.path).unlink()
            files, size = files + 1, size + file.bytes
            failpoint("orphans.deleted")
    return Removed(plan, files, size)


def _unchanged(file: Found) -> bool:
    try:
        now = os.lstat(file.path)
    except OSError:
        return False
    return stat.S_ISREG(now.st_mode) and now.st_mtime == file.modified and now.st_size == file.bytes


# -- folders of no table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder in the warehouse that is named like a table's."""

    path: str
    files: int
    bytes: int
    modified: float


def list_folders(warehouse: Path, namespaces: Iterable[str]) -> list[Folder]:
    """Everything in the warehouse that is named as tables' folders are; links left out."""
    found: list[Folder] = []
    for namespace in namespaces:
        if not (warehouse / namespace).is_dir() or (warehouse / namespace).is_symlink():
            continue
        for entry in os.scandir(warehouse / namespace):
            if entry.is_dir(follow_symlinks=False) and _FOLDER.match(entry.name):
                with suppress(FileNotFoundError):  # its table is being dropped
                    found.append(_measured(Path(entry.path)))
    return found


def _measured(folder: Path) -> Folder:
    files = size = 0
    modified = folder.stat().st_mtime
    for below, _, names in os.walk(folder):
        modified = max(modified, os.lstat(below).st_mtime)
        for name in names:
            with suppress(FileNotFoundError):
                seen = (Path(below) / name).lstat()
                files, size, modified = files + 1, size + seen.st_size, max(modified, seen.st_mtime)
    return Folder(str(folder), files, size, modified)


def plan_folders(found: Sequence[Folder], locations: Iterable[str], oldest: float) -> tuple[Folder, ...]:
    """Those that belong to none of the tables, which are at `locations`, and in which nothing was written lately."""
    used = {plain(location) for location in locations}
    return tuple(folder for folder in found if plain(folder.path) not in used and folder.modified < oldest)


def run_folders(folders: Sequence[Folder], locations: Callable[[], Iterable[str]], warehouse: Path) -> int:
    """Delete them, if they still belong to no table; how many."""
    used = {plain(location) for location in locations()}
    gone = [
        folder for folder in folders if plain(folder.path) not in used and inside(folder.path, plain(str(warehouse)))
    ]
    for folder in gone:
        shutil.rmtree(folder.path, ignore_errors=True)
    return len(gone)
