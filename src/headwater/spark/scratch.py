"""A folder of its own for each process's JVM, and the removal of what dead processes left behind.

A killed JVM leaves native libraries, block files and shuffle files. So everything temporary goes into one folder per
process, named for host and pid, and held by a file lock that the system releases however the process ends. The lock,
not the pid, says whether an owner lives: pids come back, and containers share folders without sharing pids.

Sockets are the exception: their paths may have about a hundred characters, which a lake's path can exceed. They get a
short folder in the system's temporary folder, and the claimed folder keeps a link to it so that a sweep finds it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOCK = "lock"
_SOCKETS = "sockets"
_SOCKETS_PREFIX = "headwater-"


@dataclass(frozen=True, slots=True)
class Claim:
    """A scratch folder that this process owns until it releases it or ends."""

    folder: Path
    sockets: Path
    descriptor: int

    def release(self) -> None:
        """Remove the folder and its sockets, and give up its lock."""
        _remove(self.folder)
        with suppress(OSError):
            os.close(self.descriptor)


def claim(scratch: Path) -> Claim:
    """Sweep `scratch`, then make and lock this process's own folder in it."""
    scratch.mkdir(parents=True, exist_ok=True)
    sweep(scratch)
    while True:
        folder = _unused(scratch)
        folder.mkdir()
        descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        # A sweep by another process may take the folder between mkdir and lock; then there is nothing to own yet.
        if _lock(descriptor) and (folder / _LOCK).exists():
            (folder / "tmp").mkdir()
            return Claim(folder, _make_sockets(folder), descriptor)
        os.close(descriptor)


def sweep(scratch: Path) -> tuple[Path, ...]:
    """Remove the folders in `scratch` whose owners are gone; returns them."""
    removed = []
    for folder in sorted(scratch.glob("spark-*")):
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            continue  # being made at this moment, or already taken by another sweep
        try:
            if _lock(descriptor):
                _remove(folder)
                removed.append(folder)
        finally:
            os.close(descriptor)
    return tuple(removed)


def _unused(scratch: Path) -> Path:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    stem = f"spark-{host}-{os.getpid()}"
    count = 0
    while (folder := scratch / (f"{stem}.{count}" if count else stem)).exists():
        count += 1
    return folder


def _make_sockets(folder: Path) -> Path:
    sockets = Path(tempfile.mkdtemp(prefix=_SOCKETS_PREFIX))
    (folder / _SOCKETS).symlink_to(sockets)
    return sockets


def _remove(folder: Path) -> None:
    link = folder / _SOCKETS
    if link.is_symlink() and (sockets := link.readlink()).name.startswith(_SOCKETS_PREFIX):
        shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
