"""Rows of small files, held in memory: what refreshes appended to views lies in many, and every read needs them all.

Files never change, so what was read of one stays true. A read after another refresh opens only the new file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from headwater.storage.writer import local_path

MAX_HELD = 128 * 1024**2
"""Bytes in memory beyond which the files that were not read for longest are let go."""

MAX_FILES = 4096
"""Files, and sets of files, that are held at most."""

SMALL = 4 * 1024**2
"""Bytes of a set of files up to which it is worth holding."""


Verify = Callable[[Sequence[DataFile], Sequence[str]], None]
"""Raises if one of the files is damaged in one of the columns, or in what describes them."""


def worth_holding(files: Sequence[DataFile]) -> bool:
    """Whether a set of files is small enough to be held."""
    return bool(files) and sum(file.file_size_in_bytes for file in files) <= SMALL


class HeldRows:
    """The rows of sets of files, each set as one table. `verify` raises if files are damaged; it sees each once."""

    def __init__(self, verify: Verify, max_bytes: int = MAX_HELD) -> None:
        self._verify = verify
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, pa.Table] = OrderedDict()
        self._sets: OrderedDict[tuple[str, ...], pa.Table] = OrderedDict()

    def read(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table | None:
        """All rows of the files, which have these columns; None if they are too large to hold."""
        if not worth_holding(files):
            return None
        paths = tuple(file.file_path for file in files)
        with self._lock:
            if (found := self._sets.get(paths)) is not None:
                self._sets.move_to_end(paths)
                return found
            known = {path: self._files[path] for path in paths if path in self._files}
        new = [file for file in files if file.file_path not in known]
        self._verify(new, columns)
        known |= {file.file_path: pq.read_table(local_path(file.file_path)) for file in new}
        together = pa.concat_tables([known[path] for path in paths]).combine_chunks()
        with self._lock:
            self._hold(paths, known, together)
        return together

    def _hold(self, paths: tuple[str, ...], known: dict[str, pa.Table], together: pa.Table) -> None:
        for path, rows in known.items():
            self._files[path] = rows
            self._files.move_to_end(path)
        self._sets[paths] = together
        for held in (self._sets, self._files):
            size = sum(rows.nbytes for rows in held.values())
            while (size > self._max_bytes // 2 or len(held) > MAX_FILES) and len(held) > 1:
                size -= held.popitem(last=False)[1].nbytes
