"""How long Spark takes to start: with the classes that `headwater setup` kept, and without.

`start_ratio` compares the seconds from nothing to a first committed record; `view_ratio` those to a first view and an
answer from Spark. A new JVM every time, both sides in turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

import headwater
from bench.report import Report, timed
from headwater.engine.spark_start import start_spark
from headwater.spark.session import SparkEngine

VIEW = "CREATE MATERIALIZED VIEW v AS SELECT n % 3 AS k, count(*) AS c FROM t GROUP BY n % 3"


def once(folder: Path, jvm: tuple[str, ...] | None) -> tuple[float, float]:
    """Seconds to a first commit, and from there to a view that Spark has read."""
    with headwater.init(folder, maintenance=False) as lake:
        lake._spark = SparkEngine(partial(start_spark, lake.paths, lake.settings, jvm))
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": n} for n in range(100)])
        first = timed(lake.flush)
        return first, timed(lambda: (lake.sql(VIEW), lake.sql("SELECT sum(c) AS c FROM v", engine="spark").rows()))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--times", type=int, default=5)
    asked = arguments.parse_args()
    report = Report("start")
    found: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        for number in range(asked.times + 1):  # the first reads files that no memory has
            for kind, jvm in (("with", None), ("without", ())):
                found[kind].append(once(Path(folder) / f"{kind}{number}", jvm))
    for place, name in enumerate(("start", "view")):
        ours, theirs = (statistics.median(each[place] for each in found[kind][1:]) for kind in ("with", "without"))
        report.figure(f"{name}_s", ours, f"{ours:.1f} s, {theirs:.1f} s without kept classes")
        report.ratio(f"{name}_ratio", theirs / ours, f"{theirs / ours:.2f}x as fast")
    report.print()


if __name__ == "__main__":
    main()
