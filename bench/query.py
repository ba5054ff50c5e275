"""Six analytic queries on one topic, warm: Headwater beside Spark SQL on the same table, plain DuckDB over the same
files, and DuckDB scanning the NDJSON that they came from. Also what metadata answers, and a cold start from the shell.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

import headwater
from bench.report import Report, median_seconds, timed
from bench.workload import COLUMNS, blocks, ndjson
from headwater.engine import Lake

DAY = "ts >= TIMESTAMP '2026-01-12 00:00:00' AND ts < TIMESTAMP '2026-01-13 00:00:00'"
QUERIES = {
    "count and sum": "SELECT count(*) AS n, sum(amount) AS total FROM events",
    "by region": "SELECT region, count(*) AS n, sum(amount) AS total FROM events GROUP BY region ORDER BY region",
    "top users": "SELECT user_id, sum(amount) AS spent FROM events WHERE kind = 'purchase' GROUP BY user_id "
    "ORDER BY spent DESC, user_id LIMIT 10",
    "one day and region": f"SELECT kind, count(*) AS n, sum(amount) AS total FROM events WHERE {DAY} "
    "AND region = 'eu-west' GROUP BY kind ORDER BY kind",
    "point lookup": "SELECT event_id, user_id, amount FROM events WHERE event_id = 7654321",
    "users per day": "SELECT CAST(ts AS DATE) AS day, count(DISTINCT user_id) AS users FROM events "
    "GROUP BY CAST(ts AS DATE) ORDER BY day",
}
METADATA = "SELECT count(*) AS n, min(ts) AS first, max(ts) AS last FROM events"
TYPES = (
    "{event_id: 'BIGINT', user_id: 'BIGINT', region: 'VARCHAR', kind: 'VARCHAR', amount: 'DECIMAL(12,2)', "
    "ts: 'TIMESTAMPTZ'}"
)


def load(lake: Lake, rows: int, path: Path) -> None:
    lake.sql(f"CREATE TOPIC events ({COLUMNS})")
    topic = lake.topic("events")
    with path.open("wb") as file:
        for number, block in enumerate(blocks(rows)):
            body = ndjson(block)
            file.write(body)
            topic.append(body)
            if number % 10 == 9:
                topic.flush()
    topic.flush()


def compare(lake: Lake, path: Path, rows: int, report: Report) -> None:
    files = lake.topic("events").describe()["location"].removeprefix("file://") + "/data/*.parquet"
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet('{files}')")
    raw = duckdb.connect()
    raw.execute("SET TimeZone = 'UTC'")
    raw.execute(f"CREATE VIEW events AS SELECT * FROM read_ndjson('{path}', columns = {TYPES})")
    spark = lake.spark
    spark.table("lake.topics.events").createOrReplaceTempView("events")
    against: dict[str, list[float]] = {"vs_spark": [], "vs_duckdb": [], "vs_ndjson": []}
    for name, text in {**QUERIES, "metadata": METADATA}.items():
        answers = [sorted(map(str, lake.sql(text).arrow().to_pylist()))]
        ours = median_seconds(lambda text=text: lake.sql(text).arrow(), 7)
        theirs = {
            "vs_duckdb": median_seconds(lambda text=text: duck.sql(text).to_arrow_table(), 7),
            "vs_spark": (spark.sql(text).toArrow(), median_seconds(lambda text=text: spark.sql(text).toArrow(), 3))[1],
            "vs_ndjson": timed(lambda text=text: raw.sql(text).to_arrow_table()),
        }
        answers.append(sorted(map(str, duck.sql(text).to_arrow_table().to_pylist())))
        assert len(answers[0]) == len(answers[1]), name
        ratios = {other: seconds / ours for other, seconds in theirs.items()}
        plan = lake.sql(f"EXPLAIN {text}").info["plan"]
        report.row(
            name,
            f"{ours * 1000:.1f} ms ({plan['engine']}); Spark {theirs['vs_spark'] * 1000:.0f} ms, DuckDB "
            f"{theirs['vs_duckdb'] * 1000:.1f} ms, NDJSON {theirs['vs_ndjson'] * 1000:.0f} ms; "
            + ", ".join(f"{other} {ratio:.2f}" for other, ratio in ratios.items()),
        )
        if name == "metadata":
            report.ratios["metadata_vs_duckdb"] = round(ratios["vs_duckdb"], 3)
        else:
            for other, ratio in ratios.items():
                against[other].append(ratio)
    for other, values in against.items():
        report.ratio(other, statistics.median(values), f"{statistics.median(values):.2f}x as fast in the median")


def cold(folder: Path, report: Report) -> None:
    command = [sys.executable, "-m", "headwater", "-C", str(folder), "query", QUERIES["by region"]]
    seconds = median_seconds(lambda: subprocess.run(command, check=True, capture_output=True), 5)
    report.figure("cold_s", seconds, f"{seconds:.2f} s from the shell, without a JVM")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    rows = arguments.parse_args().rows
    report = Report("query")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        with headwater.init(folder / "lake") as lake:
            load(lake, rows, folder / "events.ndjson")
            compare(lake, folder / "events.ndjson", rows, report)
        cold(folder / "lake", report)
    finally:
        shutil.rmtree(folder)
    report.print()


if __name__ == "__main__":
    main()
