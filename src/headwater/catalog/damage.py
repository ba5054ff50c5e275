"""What a file of Iceberg's metadata that cannot be read means to a user, and what helps."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from headwater.errors import Corrupt, HeadwaterError, Unavailable

MetadataKind = Literal["metadata file", "manifest list", "manifest", "statistics file"]

_MEANING: dict[MetadataKind, str] = {
    "metadata file": "Table {table} cannot be read without it; other tables are not affected.",
    "manifest list": "The snapshot that it belongs to cannot be read; other snapshots of the table are not affected.",
    "manifest": "The snapshots that refer to it cannot be read; other snapshots of the table are not affected.",
    "statistics file": "It holds statistics only; no row depends on it.",
}
_DAMAGE = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.EINVAL)
"""Numbers of system errors that say something about the file; others are about the process or the machine."""
HINT = "Restore the file from a backup, or run `headwater doctor --deep`, which says what can be repaired without one."


@contextmanager
def reading(kind: MetadataKind, location: str) -> Iterator[None]:
    """Turn whatever a reader raises inside for a missing or damaged file into an error that names the file."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:  # readers of damaged bytes raise anything: ValueError, KeyError, EOFError, zlib.error, …
        raise unreadable(kind, location, error) from error


def unreadable(kind: MetadataKind, location: str, error: Exception, table: str = "") -> HeadwaterError:
    """The error for a file that could not be read because of `error`."""
    meaning = _MEANING[kind].format(table=table)
    path = Path(location.removeprefix("file://"))
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in _DAMAGE):
        said = getattr(error, "strerror", None) or "out of memory"
        return Unavailable(f'{kind} "{path}" cannot be read', detail=f"The system says: {said}.", file=str(path))
    try:
        size = path.stat().st_size
    except (OSError, ValueError):  # ValueError: the name itself is damaged
        return missing(kind, location, meaning)
    wrong = "It is empty." if size == 0 else f"Its {size:,} bytes are not those of a {kind}."
    return Corrupt(f'{kind} "{path}" is damaged', detail=f"{wrong} {meaning}", hint=HINT, file=str(path))


def missing(kind: MetadataKind, location: str, detail: str) -> Corrupt:
    """The error for a file that is not there."""
    path = location.removeprefix("file://")
    return Corrupt(f'{kind} "{path}" is missing', detail=detail, hint=HINT, file=path)


def damaged(kind: MetadataKind, location: str, detail: str) -> Corrupt:
    """The error for a file whose contents are wrong in the way that `detail` says."""
    path = location.removeprefix("file://")
    return Corrupt(f'{kind} "{path}" is damaged', detail=f"{detail} {_MEANING[kind]}", hint=HINT, file=path)
