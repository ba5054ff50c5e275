"""Reading a view that 100 refreshes have appended to, beside a plain table of the same rows, before and after it is
compacted; and reading it fresh beside running its query over everything.

The view is never compacted until the middle of the run, so `before` is the worst that a reader meets: the policy would
have folded it long before. The first read after a refresh folds what was appended in memory; it is shown by itself.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import headwater
from bench.refresh import CHANGE, EVENTS, events, progress
from bench.report import Report, median_seconds, timed
from headwater.engine import Lake

ROWS = 5_000_000
REFRESHES = 100
CHUNK = 500_000
QUERY = (
    "SELECT user_id, COUNT(*) AS events, SUM(amount) AS total, MAX(ts) AS seen, AVG(amount) AS mean "
    "FROM events GROUP BY user_id"
)
READS = {
    "all rows": "SELECT * FROM {}",
    "a sum": "SELECT COUNT(*) AS users, SUM(total) AS total, MAX(seen) AS seen FROM {}",
    "top ten": "SELECT user_id, total FROM {} ORDER BY total DESC, user_id LIMIT 10",
    "a range": "SELECT user_id, events, mean FROM {} WHERE user_id BETWEEN 5000 AND 5999",
    "one key": "SELECT * FROM {} WHERE user_id = 4711",
}
TIMES = 9


def load(lake: Lake, rows: int) -> None:
    progress(f"loading {rows:,} rows")
    lake.sql(f"CREATE TOPIC events ({EVENTS})")
    for start in range(0, rows, CHUNK):
        lake.topic("events").append(events(start, min(CHUNK, rows - start)))
    lake.flush()


def refresh_often(lake: Lake, name: str, rows: int, times: int) -> None:
    lake.sql(f"CREATE MATERIALIZED VIEW {name} AS {QUERY} WITH (refresh = 'manual', compact = 'off')")
    for turn in range(times):
        lake.topic("events").append(events(rows + turn * CHANGE, CHANGE))
        lake.flush()
        (done,) = lake.sql(f"REFRESH MATERIALIZED VIEW {name}").rows()
        assert done["method"] == "append", done
        if turn % 25 == 24:
            progress(f"{turn + 1} refreshes")


def first_read(lake: Lake, view: str, what: str, report: Report) -> None:
    """What a reader waits for who comes right after a refresh."""
    text = READS["one key"].format(f"mv('{view}')")
    first, later = timed(lambda: lake.sql(text).arrow()), median_seconds(lambda: lake.sql(text).arrow(), TIMES)
    report.row(what, f"{first * 1000:.0f} ms, then {later * 1000:.1f} ms (one key)")


def copy_plain(lake: Lake, view: str) -> None:
    """A topic of the same rows, in the same order."""
    rows = lake.sql(f"SELECT * FROM mv('{view}') ORDER BY user_id").arrow()
    columns = "user_id BIGINT, events BIGINT NOT NULL, total DECIMAL(22,2), seen TIMESTAMP, mean DECIMAL(16,6)"
    lake.sql(f"CREATE TOPIC plain ({columns})")
    lake.topic("plain").append(rows)
    lake.flush()


def compare(lake: Lake, view: str, named: str, report: Report) -> None:
    """The median over the reads of the plain table's time over the view's."""
    ratios = []
    for what, text in READS.items():
        plain, stored = (
            text.format("(SELECT user_id, events, total, seen, mean FROM plain)"),
            text.format(f"mv('{view}')"),
        )
        assert sorted(map(str, lake.sql(plain).rows())) == sorted(map(str, lake.sql(stored).rows())), what
        theirs = median_seconds(lambda text=plain: lake.sql(text).arrow(), TIMES)
        ours = median_seconds(lambda text=stored: lake.sql(text).arrow(), TIMES)
        ratios.append(theirs / ours)
        engine = lake.sql(f"EXPLAIN {stored}").info["plan"]["engine"]
        report.row(f"{what}, {named}", f"{ours * 1000:.1f} ms ({engine}); plain table {theirs * 1000:.1f} ms")
    ratio = statistics.median(ratios)
    report.ratio(named, ratio, f"{ratio:.2f}x the plain table's speed in the median")


def fresh(lake: Lake, view: str, at: int, report: Report) -> None:
    """10 k rows came that no refresh has seen: half of them are committed, half are in the log."""
    lake.topic("events").append(events(at, CHANGE // 2))
    lake.flush()
    lake.topic("events").append(events(at + CHANGE // 2, CHANGE // 2))
    read, query = (
        f"SELECT SUM(total) AS total FROM mv('{view}', fresh => true)",
        f"SELECT SUM(total) AS total FROM ({QUERY})",
    )
    assert lake.sql(read).rows() == lake.sql(query).rows()
    ours = median_seconds(lambda: lake.sql(read).arrow(), 5)
    spark = median_seconds(lambda: lake.sql(query, engine="spark").arrow(), 3)
    auto = median_seconds(lambda: lake.sql(query).arrow(), 5)
    report.row(
        "fresh read",
        f"{ours * 1000:.0f} ms; its query over everything: Spark {spark * 1000:.0f} ms, as routed {auto * 1000:.0f} ms",
    )
    report.ratio("fresh_vs_recompute", spark / ours, f"{spark / ours:.1f}x as fast as Spark over everything")
    report.ratio(
        "fresh_vs_routed", auto / ours, f"{auto / ours:.1f}x as fast as the engine that the router picks for it"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=ROWS)
    arguments.add_argument("--refreshes", type=int, default=REFRESHES)
    asked = arguments.parse_args()
    report = Report("view-read")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        with headwater.init(folder / "lake", spark_memory="6g") as lake:
            load(lake, asked.rows)
            refresh_often(lake, "v", asked.rows, asked.refreshes)
            first_read(lake, "v", "first read of all that was appended", report)
            lake.topic("events").append(events(asked.rows + asked.refreshes * CHANGE, CHANGE))
            lake.sql("REFRESH MATERIALIZED VIEW v")
            first_read(lake, "v", "first read after one more refresh", report)
            copy_plain(lake, "v")
            compare(lake, "v", "before", report)
            fresh(lake, "v", asked.rows + (asked.refreshes + 1) * CHANGE, report)
            lake.sql("COMPACT MATERIALIZED VIEW v")
            compare(lake, "v", "after", report)
    finally:
        shutil.rmtree(folder)
    report.print()


if __name__ == "__main__":
    main()
