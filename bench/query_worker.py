"""What the hop to the query worker costs: small queries on Spark, warm, in the worker and in the process itself."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import headwater
from bench.report import Report, median_seconds, timed
from bench.workload import COLUMNS, blocks, ndjson

QUERIES = {
    "nothing to read": "SELECT 1 AS one",
    "count": "SELECT count(*) AS n FROM events WHERE user_id < 1000000",
    "by region": "SELECT region, count(*) AS n, sum(amount) AS total FROM events GROUP BY region",
    "rows": "SELECT event_id, user_id, amount FROM events LIMIT 100000",
}


def group_mb(group: int) -> float:
    """Resident memory of a process group in MB, shared pages counted once (Linux)."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
        except (OSError, StopIteration):
            continue
    return total / 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--times", type=int, default=15)
    given = arguments.parse_args()
    report = Report("query_worker")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        with headwater.init(folder / "lake", query_worker="never") as here:
            here.sql(f"CREATE TOPIC events ({COLUMNS})")
            for block in blocks(given.rows):
                here.topic("events").append(ndjson(block))
            here.topic("events").flush()
            with headwater.open(folder / "lake", query_worker="always") as apart:
                compare(here, apart, given.times, report)
    finally:
        shutil.rmtree(folder)
    report.print()


def compare(here: headwater.Lake, apart: headwater.Lake, times: int, report: Report) -> None:
    start = timed(lambda: apart.sql("SELECT 1", engine="spark").arrow())
    report.figure("start_s", start, f"{start:.1f} s until the first answer, the worker's start included")
    worker = apart._opened_worker
    assert worker is not None and worker.pid is not None
    idle = group_mb(worker.pid)
    report.figure("idle_mb", idle, f"{idle:.0f} MB held by the worker and its JVM after one query")
    ratios = []
    for name, text in QUERIES.items():
        for lake in (here, apart) * 3:  # both are warm, in turn
            lake.sql(text, engine="spark").arrow()
        inside = median_seconds(lambda text=text: here.sql(text, engine="spark").arrow(), times)
        outside = median_seconds(lambda text=text: apart.sql(text, engine="spark").arrow(), times)
        ratios.append(outside / inside)
        report.row(name, f"{outside * 1000:.0f} ms in the worker, {inside * 1000:.0f} ms in process; {ratios[-1]:.2f}x")
    report.ratio("hop", statistics.median(ratios), f"{statistics.median(ratios):.2f}x as long in the median")
    busy = group_mb(worker.pid)
    report.figure("busy_mb", busy, f"{busy:.0f} MB held by the worker and its JVM after these queries")


if __name__ == "__main__":
    main()
