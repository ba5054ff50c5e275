"""When folding a view's states pays. Pure over the table's metadata.

Figures behind it (`make bench NAME=view-read` prints them): reading a base row as it is costs about a tenth of merging
an appended one, and opening a file about as much as merging a few thousand rows. A full fold writes every base row
again, so it is due only when the appended rows make reads about half as dear again: at a fifth of the base rows. Until
then, many small files are folded among themselves, which costs only what was appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import BooleanType

from headwater.catalog.views import View
from headwater.views.layout import BASE

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
    field_id = view.table.schema().find_field(BASE).field_id
    return Files.of([file for file in files if not _is_base(file, field_id)])


def _is_base(file: DataFile, field_id: int) -> bool:
    lower = (file.lower_bounds or {}).get(field_id)
    return lower is not None and bool(from_bytes(BooleanType(), lower))


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
