"""Many small commits to one topic, with maintenance at its defaults: what the last hundred cost beside the first.

`flat_commit` is the rate of the last 100 commits over that of the first 100, `flat_query` the time of a grouping query
among the first 100 over that among the last 100; the same in CPU seconds of the process and all its children, which
other work on the machine disturbs less. Both sides are in one run, after commits to another topic that warm Spark up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import headwater
from bench.report import Report
from headwater.engine import Lake

WINDOW = 100
QUERY_EVERY = 5
QUERY = "SELECT k, count(*) AS n, sum(v) AS total FROM {topic} GROUP BY k"


def cpu_seconds() -> float:
    """CPU seconds that this process and its descendants have used, those that have ended included (Linux)."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
        used[int(entry.name)] = sum(int(field) for field in fields[11:15])
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        ticks += used.get(process, 0)
        waiting += parents.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Window:
    """What a hundred commits cost, and the queries among them."""

    commit_seconds: float
    commit_cpu: float
    query_seconds: float
    query_cpu: float

    def shown(self) -> str:
        return (
            f"{self.commit_seconds * 1000:.0f} ms a commit, {self.commit_cpu * 1000:.0f} ms of CPU; "
            f"query {self.query_seconds * 1000:.1f} ms, {self.query_cpu * 1000:.1f} ms of CPU"
        )


def run_window(lake: Lake, name: str, start: int) -> Window:
    topic, queries, query_cpu = lake.topic(name), [], []
    began, cpu = time.perf_counter(), cpu_seconds()
    for number in range(start, start + WINDOW):
        topic.append([{"id": number * 10 + place, "k": f"k{place}", "v": place * 1.5} for place in range(10)])
        topic.flush()
        if number % QUERY_EVERY == QUERY_EVERY - 1:
            asked, asked_cpu = time.perf_counter(), time.process_time()
            rows = lake.sql(QUERY.format(topic=name)).arrow()
            queries.append(time.perf_counter() - asked)
            query_cpu.append(time.process_time() - asked_cpu)
            assert rows.num_rows == 10 and sum(rows.column("n").to_pylist()) == (number + 1) * 10
    seconds = time.perf_counter() - began - sum(queries)
    used = cpu_seconds() - cpu - sum(query_cpu)
    return Window(seconds / WINDOW, used / WINDOW, statistics.median(queries), statistics.median(query_cpu))


def maintenance_seconds(lake: Lake) -> dict[str, float]:
    """How long the steps of maintenance on the measured topic took in the median."""
    steps: dict[str, list[float]] = {}
    for row in lake.sql("SHOW MAINTENANCE OF measured LIMIT 1000").info["steps"]:
        if row["outcome"] == "done":
            steps.setdefault(row["step"], []).append(row["seconds"])
    return {step: statistics.median(seconds) for step, seconds in steps.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--commits", type=int, default=5000)
    arguments.add_argument("--warm", type=int, default=300)
    asked = arguments.parse_args()
    report = Report("commits")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        with headwater.init(folder / "lake") as lake:
            for name in ("warm", "measured"):
                lake.sql(f"CREATE TOPIC {name} (id BIGINT, k STRING, v DOUBLE)")
            lake.start_background()
            for start in range(0, asked.warm, WINDOW):
                run_window(lake, "warm", start)
            windows = []
            for start in range(0, asked.commits, WINDOW):
                windows.append(run_window(lake, "measured", start))
                report.row(f"commits {start + 1} to {start + WINDOW}", windows[-1].shown())
            table = lake.topics.load("measured").table
            assert table.metadata.current_snapshot() is not None
            size = Path(table.metadata_location.removeprefix("file://")).stat().st_size
            report.figure("snapshots", len(table.metadata.snapshots), f"{len(table.metadata.snapshots)}")
            report.figure("metadata_kb", size / 1000, f"{size / 1000:.0f} KB of metadata")
            files = sum(1 for _ in table.scan().plan_files())
            report.figure("files", files, f"{files} data files")
            for step, seconds in maintenance_seconds(lake).items():
                report.figure(f"{step}_s", seconds, f"{seconds:.2f} s in the median")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    first, last = windows[0], windows[-1]
    for name, before, after in (
        ("flat_commit", first.commit_seconds, last.commit_seconds),
        ("flat_commit_cpu", first.commit_cpu, last.commit_cpu),
        ("flat_query", first.query_seconds, last.query_seconds),
        ("flat_query_cpu", first.query_cpu, last.query_cpu),
    ):
        report.ratio(name, before / after, f"{before / after:.2f}")
    report.print()


if __name__ == "__main__":
    main()
