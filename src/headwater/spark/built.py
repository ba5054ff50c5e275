"""Files that Headwater builds on this machine for the JVM, and the proof that they are still what was built.

No lock file can name their digests, so each is recorded when a file is built, in a file beside it that others can
read (a cache may be shared) and only its owner can write. A file whose inode, size and times are those of its last
verification is not read again: nobody but its owner can write to the folder, and a write changes the time of change,
which no user can set. A record proves nothing in a folder that others can write to, so `close_folder` comes before
`is_intact`, and files that others may have put there before it was closed are not trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path

from headwater.errors import InvalidSetting

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def record(file: Path) -> None:
    """Remember the digest of a file that was just built; `is_intact` is true from now on."""
    file.chmod(0o644)
    _write(file, _digest(file))


def is_intact(file: Path) -> bool:
    """Whether the file is there and is byte for byte what its owner, this user or root, recorded."""
    try:
        if not (is_closed(file) and is_closed(_sidecar(file))):
            return False
        known = json.loads(_sidecar(file).read_text(encoding="utf-8"))
        if known["identity"] == _identity(file):
            return True
        if known["sha256"] != _digest(file):
            return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    with suppress(OSError):  # a cache that cannot be written is read whole every time
        _write(file, known["sha256"])
    return True


def remove(file: Path) -> None:
    """Remove a built file and its record."""
    for each in (file, _sidecar(file)):
        with suppress(OSError):
            each.unlink()


def close_folder(folder: Path) -> None:
    """Create the folder of files that the JVM runs, and see that nobody else can replace or change what is in it."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() and (found.st_uid != 0 or found.st_mode & OTHERS_WRITE):
        raise InvalidSetting(
            f'cache folder "{folder}" belongs to another user',
            detail="That user could replace the code that Spark runs.",
            hint="Set HEADWATER_CACHE_DIR to a folder of your own.",
        )
    for path in (folder, *folder.iterdir()):
        with suppress(FileNotFoundError):  # the temporary file of another process
            found = path.lstat()
            if found.st_uid == os.geteuid() and found.st_mode & OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
                path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)


def is_closed(file: Path) -> bool:
    """Whether this is a file that nobody but this user or root can change; OSError if it is not there."""
    found = file.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & OTHERS_WRITE


def _sidecar(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _identity(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write(file: Path, digest: str) -> None:
    text = json.dumps({"sha256": digest, "identity": _identity(file)})
    written = _sidecar(file).with_name(f"{file.name}.{os.getpid()}.tmp")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    written.replace(_sidecar(file))
