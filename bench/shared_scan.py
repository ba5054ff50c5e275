"""Several views follow one change: each reads the changed files itself, beside reading them once and caching the rows.

Headwater does the former. This is the measurement behind that.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headwater
from bench.refresh import EVENTS, VIEWS, events, progress
from bench.report import Report, timed
from headwater.engine import Lake
from headwater.views.fresh import _adopted
from headwater.views.refresh import Workspace

NAMES = ("narrow", "filter", "distinct", "topn")
TURNS = 3


@contextmanager
def cached_deltas() -> Iterator[None]:
    """While it lasts, the rows of a change are read once, with the columns that any view asks for, and kept."""
    kept: dict[tuple[str, ...], Any] = {}
    reads = Workspace._read

    def read(self: Workspace, table: Any, files: Any, condition: Any = None) -> Any:
        key = tuple(file.file_path for file in files)
        if not files or condition is not None or table.namespace != "topics":
            return reads(self, table, files, condition)
        if key not in kept:
            frame = reads(self, table, files).select("event_id", "user_id", "region", "kind", "amount")
            kept[key] = frame.persist()
            kept[key].count()
        return _adopted(kept[key], self.session)

    Workspace._read = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        Workspace._read = reads  # type: ignore[method-assign]
        for frame in kept.values():
            frame.unpersist()


def follow(lake: Lake) -> None:
    for name in NAMES:
        lake.sql(f"REFRESH MATERIALIZED VIEW {name}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    arguments.add_argument("--change", type=int, default=1_000_000)
    asked = arguments.parse_args()
    report = Report("shared-scan")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    taken: dict[str, list[float]] = {"own": [], "shared": []}
    try:
        with headwater.init(folder / "lake", spark_memory="6g") as lake:
            lake.sql(f"CREATE TOPIC events ({EVENTS})")
            lake.topic("events").append(events(0, asked.rows))
            for name in NAMES:
                lake.sql(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]} WITH (refresh = 'manual', compact = 'off')")
            at = asked.rows
            for turn in range(TURNS + 1):
                for way, seconds in taken.items():
                    lake.topic("events").append(events(at, asked.change))
                    lake.flush()
                    at += asked.change
                    progress(f"turn {turn}: {way}")
                    if way == "shared":
                        with cached_deltas():
                            seconds.append(timed(lambda: follow(lake)))
                    else:
                        seconds.append(timed(lambda: follow(lake)))
    finally:
        shutil.rmtree(folder)
    own, shared = (statistics.median(taken[way][1:]) for way in ("own", "shared"))  # the first turn warms up
    text = f"{own:.2f} s with a read for each of {len(NAMES)} views, {shared:.2f} s with one that is cached"
    report.ratio("own_vs_shared", shared / own, f"{shared / own:.2f}x: {text}")
    report.print()


if __name__ == "__main__":
    main()
