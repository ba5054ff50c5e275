"""When folding a view's states in its table pays. Pure over the table's metadata.

What was appended is folded in memory by the first read after a refresh, and every read masks the groups that it
concerns, so its cost grows with the appended rows (`make bench NAME=view-read` prints both). A full fold writes every
base row again, so it is due only at a fifth of the base rows: then it writes five of them for each appended one. Until
then, many small files are folded among themselves, which costs only what was appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.manifest import DataFile

from headwater.catalog.views import View

APPENDED_SHARE = 0.2
"""Appended rows per base row from which on everything is folded."""

SMALL_VIEW = 20_000
"""Appended rows below which a view's reads are quick anyway."""

MANY_FILES = 12
"""Appended files from which on they are folded among themselves."""


@dataclass(frozen=True, slots=True)
class Files:
    """Some files of a table."""

    files: tuple[DataFile, ...] = field(repr=False)
    rows: int
    bytes: int

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> Files:
        return cls(
            tuple(files), sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files)
        )


@dataclass(frozen=True, slots=True)
class Due:
    """A compaction that pays: of `all` rows, or of those that were `appended`."""

    what: Literal["all", "appended"]
    reason: str


def appended(view: View, files: Sequence[DataFile]) -> Files:
    """The files that refreshes appended since everything was folded."""
    return Files.of([file for file in files if not view.is_base(file)])


def due(view: View, files: Sequence[DataFile]) -> Due | None:
    """What to fold now; None while it does not pay."""
    since = appended(view, files)
    base_rows = sum(file.record_count for file in files) - since.rows
    if not since.files:
        return None
    if since.rows > max(SMALL_VIEW, APPENDED_SHARE * base_rows):
        return Due("all", f"{since.rows:,} rows were appended to {base_rows:,}")
    if len(since.files) >= MANY_FILES:
        what: Literal["all", "appended"] = "all" if base_rows <= SMALL_VIEW else "appended"
        return Due(what, f"{len(since.files)} files were appended")
    if view.signed and since.rows > APPENDED_SHARE * base_rows:
        return Due("all", "rows take others back")
    return None
