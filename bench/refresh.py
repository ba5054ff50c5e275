"""Refreshing views after 10 k new rows: following the change beside computing everything anew, on growing tables.

Events come in sessions of twenty, in the order of time, so new rows belong to recent sessions: what a delta touches is
near its end. Both ways run on the same lake, warm, one after the other.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import headwater
from bench.report import Report
from headwater.engine import Lake

SIZES = (1_000_000, 10_000_000, 30_000_000)
RATIO_AT = 10_000_000
CHANGE = 10_000
PER_SESSION = 20
CHUNK = 500_000
FIRST = np.datetime64("2026-01-01T00:00:00", "us")

VIEWS = {
    "narrow": "SELECT region, kind, COUNT(*) AS events, SUM(amount) AS total FROM events GROUP BY region, kind",
    "wide": "SELECT event_id, COUNT(*) AS events, SUM(amount) AS total FROM events GROUP BY event_id",
    "filter": "SELECT event_id, user_id, amount FROM events WHERE kind = 'purchase' AND region = 'eu-west'",
    "join": "SELECT s.campaign, COUNT(*) AS events, SUM(e.amount) AS total FROM events e "
    "JOIN sessions s ON e.session_id = s.session_id GROUP BY s.campaign",
    "distinct": "SELECT region, COUNT(DISTINCT user_id) AS users FROM events GROUP BY region",
    "topn": "SELECT user_id, SUM(amount) AS spent FROM events GROUP BY user_id ORDER BY spent DESC LIMIT 10",
    "window": "SELECT event_id, session_id, ROW_NUMBER() OVER (PARTITION BY session_id ORDER BY ts, event_id) AS step "
    "FROM events",
}
EVENTS = (
    "event_id BIGINT NOT NULL, session_id BIGINT, user_id BIGINT, region STRING, kind STRING, amount DECIMAL(12,2), "
    "ts TIMESTAMP"
)


def events(start: int, rows: int) -> pa.Table:
    """Events `start` to `start + rows`, the same for the same numbers."""
    rng = np.random.default_rng(start)
    ids = np.arange(start, start + rows)
    sessions = ids // PER_SESSION
    regions, kinds = (
        np.array(["eu-west", "eu-north", "us-east", "us-west", "ap"]),
        np.array(["view", "cart", "purchase"]),
    )
    cents = rng.integers(0, 20_000, rows)
    return pa.table(
        {
            "event_id": ids,
            "session_id": sessions,
            "user_id": (sessions * 2_654_435_761) % 100_003,
            "region": pa.array(regions[rng.integers(0, 5, rows)]),
            "kind": pa.array(kinds[rng.integers(0, 3, rows)]),
            "amount": pa.array(cents).cast(pa.decimal128(21, 0)).cast(pa.decimal128(23, 2)).cast(pa.decimal128(12, 2)),
            "ts": pa.array(FIRST + ids * 1_000_000, pa.timestamp("us", "UTC")),
        }
    )


def sessions(start: int, rows: int) -> pa.Table:
    ids = np.arange(start, start + rows)
    return pa.table({"session_id": ids, "campaign": pa.array([f"c{number % 40}" for number in ids.tolist()])})


def load(lake: Lake, rows: int) -> None:
    lake.sql(f"CREATE TOPIC events ({EVENTS})")
    lake.sql("CREATE TOPIC sessions (session_id BIGINT NOT NULL, campaign STRING)")
    for start in range(0, rows, CHUNK):
        lake.topic("events").append(events(start, min(CHUNK, rows - start)))
        lake.topic("sessions").append(sessions(start // PER_SESSION, min(CHUNK, rows - start) // PER_SESSION))
        if start // CHUNK % 4 == 3:
            lake.flush()
    lake.flush()


def measure(lake: Lake, rows: int, names: list[str], times: int, report: Report) -> dict[str, float]:
    """Seconds of an incremental refresh by view; the ratio to a recompute where it is asked for."""
    taken: dict[str, list[float]] = {name: [] for name in names}
    jobs: dict[str, int] = {}
    at = rows
    for name in names:
        progress(f"{rows:,} rows: creating {name}")
        lake.sql(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]} WITH (refresh = 'manual')")
    for turn in range(times + 1):
        lake.topic("events").append(events(at, CHANGE))
        lake.topic("sessions").append(sessions(at // PER_SESSION, CHANGE // PER_SESSION))
        lake.flush()
        at += CHANGE
        for name in names:
            before = jobs_run(lake)
            done = lake.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()[-1]
            assert done["method"] in ("append", "keys"), done
            jobs[name] = jobs_run(lake) - before
            if turn:  # the first one warms up
                taken[name].append(done["seconds"])
    for name in names:
        seconds = statistics.median(taken[name])
        text = f"{seconds:.2f} s ({done_text(lake, name)}, {jobs[name]} Spark jobs)"
        if rows == RATIO_AT:
            full = lake.sql(f"REFRESH MATERIALIZED VIEW {name} FULL").rows()[-1]["seconds"]
            report.ratio(name, full / seconds, f"{full / seconds:.1f}x: recompute {full:.2f} s, incremental {text}")
        else:
            report.row(f"{name} at {rows:,}", text)
    return {name: statistics.median(taken[name]) for name in names}


def done_text(lake: Lake, name: str) -> str:
    last = lake.sql(f"SHOW REFRESHES FOR {name} LIMIT 1").rows()[0]
    return f"{last['method']}, {last['rows_read']:,} rows read, {last['rows_written']:,} written"


def jobs_run(lake: Lake) -> int:
    """The Spark jobs that the session has run so far."""
    return int(lake.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    arguments.add_argument("--views", nargs="*", default=list(VIEWS))
    arguments.add_argument("--times", type=int, default=3)
    asked = arguments.parse_args()
    report = Report("refresh")
    found: dict[int, dict[str, float]] = {}
    for rows in asked.sizes:
        folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
        try:
            with headwater.init(folder / "lake", spark_memory="6g") as lake:
                progress(f"{rows:,} rows: loading")
                load(lake, rows)
                found[rows] = measure(lake, rows, asked.views, asked.times, report)
        finally:
            shutil.rmtree(folder)
    if len(found) > 1:
        first, last = min(found), max(found)
        growth = {name: found[last][name] / found[first][name] for name in asked.views}
        worst = max(growth, key=lambda name: growth[name])
        report.figure("growth", growth[worst], f"{growth[worst]:.2f}x from {first:,} to {last:,} rows ({worst})")
    report.print()


if __name__ == "__main__":
    main()
