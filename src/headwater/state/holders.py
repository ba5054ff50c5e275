"""Who holds a lease: the process, named so that others on the machine can tell whether it still lives.

A clock cannot tell that: one that was ahead leaves leases that end in the future. Where the system has no /proc, or the
holder is on another machine or in another container, nothing is known of it, and only time decides.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")
_SEPARATOR = "|"


def holder_name(part: str) -> str:
    """A name for a part of this process as a holder of leases."""
    started = _started(os.getpid())
    return _SEPARATOR.join((_scope() or socket.gethostname(), str(os.getpid()), started or "", part))


def holder_state(holder: str) -> Literal["alive", "dead", "unknown"]:
    """Whether the process of a holder lives, as far as the system can tell."""
    scope, *rest = holder.split(_SEPARATOR)
    if len(rest) < 3 or _scope() is None or scope != _scope() or not rest[1] or not rest[0].isdecimal():
        return "unknown"
    process, started = int(rest[0]), _started(int(rest[0]))
    if started is None:
        # That /proc does not show a process says little: it may hide those of other users (hidepid, ProtectProc=).
        return "dead" if _is_gone(process) else "unknown"
    # A process that has the number of one that ended started at another time.
    return "alive" if started == rest[1] else "dead"


@cache
def _scope() -> str | None:
    """Within which a process number means one process: this boot of this machine, and this namespace of numbers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink().name}"
    except OSError:
        return None


def _started(process: int) -> str | None:
    """When a process started, in ticks since the machine did; "ended" of a zombie, None if /proc does not say."""
    try:
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return None


def _is_gone(process: int) -> bool:
    """Whether the system has no process of this number, whoever owns it."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
