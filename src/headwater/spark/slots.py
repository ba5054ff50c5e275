"""How many tasks Spark runs at once inside one process: one more than there are cores for.

A task of maintenance may take minutes. With a slot to spare, what producers and readers wait for keeps a slot per core
meanwhile; who gets the cores then is up to the operating system, behind which maintenance steps back.
"""

from __future__ import annotations

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def slots(master: str, quota: Path = QUOTA) -> dict[str, str]:
    """Spark's settings for `master`; only `local[*]` leaves the number to us."""
    if master != "local[*]":
        return {"spark.master": master}
    cores = usable_cores(quota)
    return {"spark.master": f"local[{cores + 1}]", "spark.default.parallelism": str(cores)}


def usable_cores(quota: Path = QUOTA) -> int:
    """The cores that this process may use, by its affinity and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(cores, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file, or no limit: "max 100000"
        return cores
