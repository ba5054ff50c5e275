"""Nexmark's queries as continuous views, beside hand-written Structured Streaming and beside PyFlink; and how soon a
record is seen in a view.

The same events, out of order by up to two seconds, are in topics (one commit for each piece) and in Parquet files (one
for each piece). Timed is what a user waits for: here, one CREATE MATERIALIZED VIEW on the topics, until the view has
caught up; by hand, the program from its first line to its last commit into an Iceberg table, reading all files in one
micro-batch, in the same JVM; in Flink, one INSERT in a warm JVM, two slots, into Parquet files, or into nothing where
the answer changes. Events per second count all events of the three streams, also those that a query does not read.

Latency is from before a record is produced until a query of the view shows it, with the service's loops running.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import headwater
from bench.nexmark import COLUMNS, Workload, events, pieces
from bench.nexmark_flink import ensure_flink, run_flink
from bench.nexmark_flink_job import QUERIES as IN_FLINK
from bench.nexmark_queries import QUERIES, SIDE_INPUT, SIDE_ROWS
from bench.nexmark_spark import BY_HAND, ByHand
from bench.nexmark_steady import steady_by_hand, steady_headwater
from bench.report import Report, timed
from headwater.engine import Lake

WORKLOAD = Workload(rate=10_000, disorder=2.0)
SIDES = ("headwater", "by-hand", "flink")
STEADY = {"q1", "q7", "q17"}
"""Queries whose micro-batches are timed while they run: of no state, of windows, of keys."""
BY_ARRIVAL = "q12"
"""Its answer depends on when it runs."""


@dataclass(slots=True)
class Taken:
    """Seconds of each run of a query, by side."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, seconds: float) -> None:
        self.seconds.setdefault(side, []).append(seconds)

    def median(self, side: str) -> float | None:
        # The first run warms up, if there is another.
        found = self.seconds.get(side, [])
        return statistics.median(found[1:] or found) if found else None


class Bench:
    """A lake with the events, the same events as files, and the ways to run a query over them."""

    def __init__(self, folder: Path, events: int, commits: int) -> None:
        self.lake = headwater.init(folder / "lake", spark_memory="3g", maintenance=False)
        self.events, self.commits = events, commits
        self.files, self.checkpoints, self.out = (folder / name for name in ("files", "checkpoints", "out"))
        self.taken: dict[str, Taken] = {}
        self.answers: dict[str, int] = {}
        self.steadied = -1

    def load(self, *, lake: bool) -> None:
        """Write the events to files, and to topics of the lake."""
        if lake:
            make_streams(self.lake)
        side = pa.table({"key": list(range(SIDE_ROWS)), "value": [f"value {key}" for key in range(SIDE_ROWS)]})
        self._put("side_input", 0, side, lake)
        for number, piece in enumerate(pieces(self.events, self.commits, WORKLOAD)):
            for name, table in piece.tables():
                self._put(name, number, table, lake)
            self.lake.flush()

    def _put(self, name: str, number: int, table: pa.Table, lake: bool) -> None:
        (self.files / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, self.files / name / f"{number:04}.parquet", compression="zstd")
        if lake:
            self.lake.topic(name).append(table)

    def headwater(self, name: str) -> None:
        view = f"{name}_view"
        self._add(name, "headwater", timed(lambda: self.lake.sql(QUERIES[name].view(view))))
        (row,) = self.lake.sql(f"SELECT count(*) AS n FROM {view}").rows()
        self._answered(name, "headwater", row["n"])
        self.lake.sql(f"DROP MATERIALIZED VIEW {view}")

    def by_hand(self, name: str) -> None:
        runner = ByHand(self.lake.spark, self.files, self.checkpoints, WORKLOAD.disorder)
        seconds, table, _ = runner.run(name, self.commits)
        self._add(name, "by-hand", seconds)
        self._answered(name, "by-hand", self.lake.spark.table(table).count())
        self.lake.spark.sql(f"DROP TABLE {table} PURGE")
        shutil.rmtree(self.checkpoints)

    def steady(self, name: str, batches: int, report: Report) -> None:
        """Micro-batches of a running query, on both sides after the same events, of which there is one piece more."""
        each = self.events // self.commits
        self.steadied += 1
        more = [
            events(each, WORKLOAD, first=self.events + (self.steadied * batches + n) * each) for n in range(batches)
        ]
        ours = steady_headwater(self.lake, name, iter(more))
        runner = ByHand(self.lake.spark, self.files, self.checkpoints, WORKLOAD.disorder)
        theirs = steady_by_hand(runner, self.files, name, self.commits + self.steadied * batches, iter(more))
        shown = (
            f"{ours * 1000:.0f} ms for {each:,} events, by hand {theirs * 1000:.0f} ms: {theirs / ours:.2f}x as fast"
        )
        report.figure(f"{name}_micro_batch", theirs / ours, shown)

    def flink(self, names: Sequence[str], times: int) -> None:
        """All queries in one process, the first of them once more to warm it up."""
        asked = [names[0], *(name for name in names for _ in range(times))]
        found = run_flink(ensure_flink(), self.files, self.out, asked, WORKLOAD.disorder)
        for place, (name, seconds) in enumerate(found):
            if isinstance(seconds, str):
                progress(f"{name} in Flink: {seconds}")
            elif place:
                self._add(name, "flink", seconds)

    def _add(self, name: str, side: str, seconds: float) -> None:
        self.taken.setdefault(name, Taken()).add(side, seconds)
        progress(f"{name} {side}: {seconds:.2f} s, {self.events / seconds:,.0f} events/s")

    def _answered(self, name: str, side: str, rows: int) -> None:
        """Both sides have the same number of rows, or one of them is wrong."""
        known = self.answers.setdefault(name, rows)
        assert known == rows or name == BY_ARRIVAL, f"{name} has {rows} rows {side}, and {known} otherwise"


def make_streams(lake: Lake, rest: str = "") -> None:
    for name, columns in COLUMNS.items():
        lake.sql(
            f"CREATE STREAM {name} ({columns}) WITH (timestamp_field = 'date_time', "
            f"max_out_of_orderness = '{WORKLOAD.disorder:g} seconds'{rest})"
        )
    lake.sql(f"CREATE TOPIC side_input ({SIDE_INPUT})")


def measure(bench: Bench, names: Sequence[str], sides: Iterable[str], times: int) -> None:
    for name in names:
        for _ in range(times + 1):
            if "headwater" in sides:
                bench.headwater(name)
            if "by-hand" in sides and name in BY_HAND:
                bench.by_hand(name)


def tell(bench: Bench, report: Report) -> None:
    """Each query's rates and ratios, then the medians over the queries that both sides have."""
    ratios: dict[str, list[float]] = {"vs_structured_streaming": [], "vs_pyflink": []}
    for name, taken in bench.taken.items():
        own = taken.median("headwater")
        for side in SIDES:
            if (seconds := taken.median(side)) is not None:
                rate = bench.events / seconds
                report.figure(f"{name}_{side.replace('-', '_')}", rate, f"{rate:,.0f} events/s ({seconds:.2f} s)")
        for ratio, side in zip(ratios, SIDES[1:], strict=True):
            other = taken.median(side)
            if own is not None and other is not None:
                ratios[ratio].append(other / own)
                report.figure(f"{name}_{ratio}", other / own, f"{other / own:.2f}x")
    for ratio, found in ratios.items():
        if found:
            middle = statistics.median(found)
            shown = f"{middle:.2f}x in the median of {len(found)} queries, {min(found):.2f}x to {max(found):.2f}x"
            report.ratio(ratio, middle, shown)


# -- latency --------------------------------------------------------------------------------------------------------

LATENCY_TOPIC = "CREATE TOPIC clicks_{0} (n BIGINT, at TIMESTAMP) WITH (batch_size = 1, commit_interval = '10 ms')"
LATENCY_VIEW = (
    "CREATE MATERIALIZED VIEW seen_{0} AS SELECT n % 10 AS bucket, count(*) AS clicks, max(n) AS newest "
    "FROM clicks_{0} GROUP BY n % 10 WITH (refresh = '{0}')"
)
POLL, PATIENCE = 0.002, 60.0


def latency(folder: Path, mode: str, records: int, report: Report) -> None:
    """Single records, each produced when the one before has been seen in a view that counts them."""
    with headwater.init(folder, ingest_poll=0.01, refresh_poll=0.05, maintenance=False) as lake:
        lake.sql(LATENCY_TOPIC.format(mode))
        lake.topic(f"clicks_{mode}").append([{"n": 0}])
        lake.sql(LATENCY_VIEW.format(mode))
        lake.start_background()
        seconds = [seen_after(lake, mode, number) for number in range(1, records + 4)][3:]
    cuts = statistics.quantiles(seconds, n=100)
    for name, value in (("median", statistics.median(seconds)), ("p99", cuts[98])):
        report.figure(f"{mode}_{name}_ms", value * 1000, f"{value * 1000:.0f} ms from produce to visible")


def seen_after(lake: Lake, mode: str, number: int) -> float:
    started = time.perf_counter()
    lake.topic(f"clicks_{mode}").append([{"n": number}])
    while (waited := time.perf_counter() - started) < PATIENCE:
        (row,) = lake.sql(f"SELECT max(newest) AS newest FROM seen_{mode}").rows()
        if row["newest"] == number:
            return waited
        time.sleep(POLL)
    raise SystemExit(f"record {number} was not seen in a view with refresh = '{mode}' for {PATIENCE:g} s")


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=3_000_000)
    arguments.add_argument("--commits", type=int, default=8)
    arguments.add_argument("--times", type=int, default=1, help="runs that count; one more before them warms up")
    arguments.add_argument("--queries", nargs="*", choices=list(QUERIES), default=list(QUERIES))
    arguments.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    arguments.add_argument("--batches", type=int, default=8, help="micro-batches of a running query; 0 for none")
    arguments.add_argument("--records", type=int, default=100, help="records whose latency is measured; 0 for none")
    arguments.add_argument("--small", action="store_true", help="few events: see that it runs, not how fast")
    asked = arguments.parse_args()
    report = Report("streaming")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        bench = Bench(folder, 20_000 if asked.small else asked.events, 2 if asked.small else asked.commits)
        with bench.lake:
            if asked.queries and asked.sides:
                bench.load(lake="headwater" in asked.sides)
                measure(bench, asked.queries, asked.sides, 0 if asked.small else asked.times)
            if asked.batches and {"headwater", "by-hand"} <= set(asked.sides):
                bench.lake.start_background()
                for name in sorted(STEADY & set(asked.queries)):
                    bench.steady(name, 3 if asked.small else asked.batches, report)
        # Flink comes when the other JVM is gone: two on one machine would disturb each other.
        if "flink" in asked.sides and (in_flink := [name for name in asked.queries if name in IN_FLINK]):
            bench.flink(in_flink, 1 if asked.small else asked.times)
        tell(bench, report)
        for mode in ("immediate", "continuous") if asked.records else ():
            latency(folder / mode, mode, 5 if asked.small else asked.records, report)
    finally:
        shutil.rmtree(folder)
    report.print()


if __name__ == "__main__":
    main()
