"""What every benchmark prints: a table for people, and one JSON line, last, for machines."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Report:
    """Collects rows, ratios and figures of one benchmark."""

    def __init__(self, bench: str) -> None:
        self.bench = bench
        self.rows: list[tuple[str, str]] = []
        self.ratios: dict[str, float] = {}
        self.figures: dict[str, float] = {}

    def row(self, what: str, value: str) -> None:
        """A line of the table; shown on stderr at once, as progress."""
        self.rows.append((what, value))
        print(f"  {what}: {value}", file=sys.stderr, flush=True)

    def figure(self, name: str, value: float, shown: str) -> None:
        self.figures[name] = round(value, 4)
        self.row(name, shown)

    def ratio(self, name: str, value: float, shown: str) -> None:
        self.ratios[name] = round(value, 3)
        self.row(f"ratio {name}", shown)

    def print(self) -> None:
        width = max(len(what) for what, _ in self.rows)
        for what, value in self.rows:
            print(f"{what:<{width}}  {value}")
        print(json.dumps({"bench": self.bench, "ratios": self.ratios, "figures": self.figures}))


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_seconds(work: Callable[[], Any], times: int) -> float:
    """The median of several runs, in seconds."""
    return statistics.median(timed(work) for _ in range(times))


def peak_mb(process: int | str = "self") -> float:
    """The most memory a process has held so far, in MB (Linux)."""
    # Not getrusage: that counts what the parent held when it started this process.
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024
