"""Data files verified before they are read by an engine that does not verify them: once per process, file and column.

A file that Headwater wrote carries checksums of everything (`seal.py`). Another writer's file has checksums of its
pages' bodies at the most (`pages.py`); where it has none, it passes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pyarrow as pa
from pyiceberg.manifest import DataFile

from headwater.errors import Corrupt
from headwater.storage.pages import Chunk, read_footer
from headwater.storage.seal import SealedColumn, read_end, read_seal
from headwater.storage.writer import local_name, local_path

MAX_FILES = 100_000
_HINT = "Run `headwater doctor --deep` to find every damaged file, and restore them from a backup."
THREADS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Verified:
    """What was verified of a file, and when it had last been changed. One that did change is verified again."""

    modified: int
    columns: frozenset[str]


class Checksums:
    """Which columns of which files were verified in this process; what was remembered first is forgotten first."""

    def __init__(self, max_files: int = MAX_FILES) -> None:
        self._max_files = max_files
        self._verified: dict[str, _Verified] = {}
        self._lock = Lock()

    def verify(self, files: Iterable[DataFile], columns: Iterable[str], check: Callable[[], None]) -> None:
        """Corrupt if a file's footer or one of the top-level columns is damaged; `check` may raise to stop it."""
        wanted = frozenset(columns)
        unverified = [(file, lacks) for file in files if (lacks := self._lacks(file, wanted)) is not None]
        if not unverified:
            return
        with ThreadPoolExecutor(min(THREADS, len(unverified)), "headwater-verify") as pool:
            try:
                for _ in pool.map(lambda each: self._verify(*each), unverified):
                    check()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _lacks(self, file: DataFile, wanted: frozenset[str]) -> _Verified | None:
        """What remains to be verified; None if nothing does."""
        # Runs for every file of every query: a Path would take longer than the rest of it.
        try:
            found = os.stat(local_name(file.file_path))  # noqa: PTH116
        except FileNotFoundError:
            raise missing(local_path(file.file_path)) from None
        if found.st_size != file.file_size_in_bytes:
            size = f"It has {found.st_size} bytes instead of {file.file_size_in_bytes}."
            raise damaged(local_path(file.file_path), size)
        known = self._verified.get(file.file_path)
        if known is None or known.modified != found.st_mtime_ns:
            return _Verified(found.st_mtime_ns, wanted)
        return None if wanted <= known.columns else _Verified(found.st_mtime_ns, wanted - known.columns)

    def _verify(self, file: DataFile, lacks: _Verified) -> None:
        verify_file(local_path(file.file_path), lacks.columns, file.record_count)
        with self._lock:
            known = self._verified.get(file.file_path)
            before = known.columns if known is not None and known.modified == lacks.modified else frozenset()
            self._verified[file.file_path] = _Verified(lacks.modified, before | lacks.columns)
            while len(self._verified) > self._max_files:
                del self._verified[next(iter(self._verified))]


def verify_file(path: Path, columns: Collection[str] | None = None, rows: int | None = None) -> bool:
    """Whether the file was written by Headwater, and so verified in full; Corrupt if it is damaged.

    Its footer is verified, and the top-level `columns` (None: all); it must have `rows` rows (None: any number).
    """
    with path.open("rb", buffering=0) as file:
        handle = file.fileno()
        try:
            sealed, parts = _parts(path, handle, rows)
        except ValueError as wrong:
            raise damaged(path, f"The file is not as it was written: {wrong}.") from None
        for part in parts:
            if columns is None or part.column.partition(".")[0] in columns:
                _verify_part(path, handle, part)
    return sealed


def _parts(path: Path, handle: int, rows: int | None) -> tuple[bool, Sequence[SealedColumn | Chunk]]:
    """Whether a file is sealed, and what can be verified of it; ValueError if its footer is damaged."""
    size = os.fstat(handle).st_size
    sealed = read_seal(path, handle, size)
    found, parts = (sealed[0].num_rows, sealed[1]) if sealed else read_footer(read_end(handle, size)[0])
    if rows not in (None, found):
        raise ValueError(f"it has {found} rows instead of {rows}")
    return sealed is not None, parts


def _verify_part(path: Path, handle: int, part: SealedColumn | Chunk) -> None:
    try:
        part.verify(handle)
    except ValueError as wrong:
        raise damaged(path, f'Column "{part.column}": {wrong}.', column=part.column) from None


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Corrupt if the file cannot be decoded inside: another writer's may be damaged where nothing has a checksum."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except (pa.ArrowInvalid, OSError) as wrong:
        # What the system says has a number, what Arrow says has none.
        if isinstance(wrong, OSError) and wrong.errno not in (None, errno.EIO):
            raise
        said = str(wrong).partition("\n")[0].rstrip(".")
        raise damaged(path, f"It cannot be decoded: {said}.") from wrong


def state_of(path: Path) -> str:
    """What changes whenever a file does, also when it is put back with the time that it had; `missing` has one too."""
    try:
        found = path.stat()
    except OSError:
        return "missing"
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def missing(path: Path) -> Corrupt:
    """The error for a data file that is not there."""
    detail = "Rows of its table's snapshots are in it, and nowhere else."
    return Corrupt(f'data file "{path}" is missing', detail=detail, hint=_HINT, file=str(path))


def damaged(path: Path, detail: str, **data: str) -> Corrupt:
    """The error for a data file that is not as it was written."""
    return Corrupt(f'data file "{path}" is damaged', detail=detail, hint=_HINT, file=str(path), **data)
