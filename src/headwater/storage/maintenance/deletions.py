"""Deleting what expiry left, once no read that began before it can still run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from headwater.observability.failpoints import failpoint
from headwater.storage.maintenance.reachable import inside, plain, referred
from headwater.storage.scan import ManifestCache


@dataclass(frozen=True, slots=True)
class Deleted:
    """Paths that need no more thought: files deleted, gone already, or referred to again."""

    settled: tuple[str, ...]
    files: int
    bytes: int
    kept: int

    def describe(self) -> dict[str, Any]:
        return {"files": self.files, "bytes": self.bytes, "files_in_use": self.kept}


def run_deletions(
    load: Callable[[], Table], paths: Sequence[str], cache: ManifestCache, settle: Callable[[Sequence[str]], None]
) -> Deleted:
    """Delete those of the files that no snapshot refers to; `settle` is told of all of them, after that.

    A crash in between leaves notes of files that are gone, which the next run settles.
    """
    table = load()
    named, folder = referred(table, table.metadata_location, cache), plain(table.location())
    failpoint("deletions.checked")
    files = size = kept = 0
    for path in paths:
        if path in named or not inside(path, folder):
            kept += 1
            continue
        try:
            found = Path(path).lstat().st_size
            Path(path).unlink()
        except FileNotFoundError:
            continue
        files, size = files + 1, size + found
        failpoint("deletions.deleted")
    settle(paths)
    return Deleted(tuple(paths), files, size, kept)
