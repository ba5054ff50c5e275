"""The care of tables: what compaction and clustering do to queries, and what they cost.

Both sides of every ratio are measured in one run on the same rows: queries with filters before and after clustering
(`compaction_query`), our compaction beside Spark's `rewrite_data_files` on the same files (`vs_rewrite_data_files`),
point lookups without and with bloom filters (`bloom_lookup`), bytes without and with the recommendations
(`recommended_bytes`), and the rate of ingest with and without a compaction beside it (`ingest_during_compaction`). Also
bytes by codec and encoding, and the peak memory of a sort that is larger than the memory given. `--small` is quick, and
only says that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from ulid import ULID

import headwater
from bench.report import Report, median_seconds, peak_mb, timed
from bench.workload import COLUMNS, events
from headwater.engine import Lake
from headwater.storage.layout import layout_of
from headwater.storage.maintenance.compact import Means, Rewrite, Source, run_rewrites
from headwater.storage.maintenance.effect import Compacted
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import PartitionedWriter
from headwater.topics.compaction import plan_compaction, run_compaction
from headwater.topics.ingest import target, with_system_columns
from headwater.types import Offsets

COMMITS = 40
FILTERS = (
    "user_id = 4711",
    "user_id BETWEEN 100 AND 120",
    "ts >= TIMESTAMP '2026-01-12 06:00:00' AND ts < TIMESTAMP '2026-01-12 12:00:00'",
    "user_id < 500 AND ts >= TIMESTAMP '2026-01-20 00:00:00'",
)
CODECS = ("none", "snappy", "lz4", "gzip", "zstd", "brotli")
ENCODINGS = {
    "encodings by sample": "dictionary = 'auto'",
    "dictionaries only": "dictionary = 'on'",
    "no dictionary, plain": "dictionary = 'off', encoding_columns = '"
    + ", ".join(f"{name}=plain" for name in ("event_id", "user_id", "region", "kind", "amount", "ts"))
    + "'",
}


def load(lake: Lake, name: str, rows: int, rest: str = "", commits: int = COMMITS) -> None:
    """A topic of many small files: a commit each, events in order of time."""
    lake.sql(f"CREATE TOPIC {name} ({COLUMNS}) {rest}")
    topic, each = lake.topic(name), rows // commits
    for number in range(commits):
        topic.append(events(number * each, each, total=rows))
        topic.flush()


def compact(lake: Lake, name: str, *, full: bool = False, **more: Any) -> Compacted:
    topic = lake.topics.load(name)
    plan = plan_compaction(topic, ManifestCache(), now=time.time(), full=full, asked=True)
    done = run_compaction(lake.topics, plan, lambda: lake.spark, ManifestCache(), **more)
    assert done.groups and not done.damaged and not done.stale
    return done


def stored(lake: Lake, name: str) -> tuple[int, int]:
    """How many files a topic has, and their bytes."""
    files = [task.file for task in lake.topics.load(name).table.scan().plan_files()]
    return len(files), sum(file.file_size_in_bytes for file in files)


# -- queries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """What queries with filters took, what they read, and what they answered."""

    seconds: list[float]
    files: list[int]
    answers: list[Any]


def ask(lake: Lake, name: str) -> Asked:
    found = Asked([], [], [])
    for condition in FILTERS:
        text = f"SELECT kind, count(*) AS n, sum(amount) AS total FROM {name} WHERE {condition} GROUP BY kind"
        found.answers.append(sorted(map(str, lake.sql(text).rows())))
        found.seconds.append(median_seconds(lambda text=text: lake.sql(text).arrow(), 9))
        plan = lake.sql(f"EXPLAIN {text}").info["plan"]
        found.files.append(sum(int(scan["files"]) for scan in plan["scans"]))
    return found


def queries(lake: Lake, rows: int, report: Report) -> None:
    load(lake, "clustered", rows, "CLUSTERED BY ZORDER (user_id, ts) WITH (target_file_size = '4MB')")
    before, (files, _) = ask(lake, "clustered"), stored(lake, "clustered")
    compact(lake, "clustered")
    after, (left, _) = ask(lake, "clustered"), stored(lake, "clustered")
    assert after.answers == before.answers
    for place, condition in enumerate(FILTERS):
        report.row(
            condition,
            f"{before.seconds[place] * 1000:.1f} ms and {before.files[place]} of {files} files; clustered "
            f"{after.seconds[place] * 1000:.1f} ms and {after.files[place]} of {left}",
        )
    ratio = statistics.median(old / new for old, new in zip(before.seconds, after.seconds, strict=True))
    report.ratio("compaction_query", ratio, f"{ratio:.2f}x as fast in the median")
    read = sum(before.files) / max(1, sum(after.files))
    report.figure("files_read", read, f"{read:.1f}x fewer files read")


# -- beside Spark ---------------------------------------------------------------------------------------------------


def roll_back(lake: Lake, name: str, snapshot_id: int) -> None:
    table = lake.topics.tables.load_for_commit(lake.topics.load(name).table_name)
    table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def spark_rewrites(lake: Lake, name: str, rows: int, strategy: str) -> None:
    # Everything, as ours does: files of an order are otherwise left where they are large enough.
    call = f"CALL lake.system.rewrite_data_files(table => 'topics.{name}', strategy => '{strategy}', "
    (row,) = lake.spark.sql(call + "options => map('rewrite-all', 'true'))").collect()
    assert row.rewritten_data_files_count > 1 and row.failed_data_files_count == 0


def beside_spark(lake: Lake, rows: int, report: Report, times: int) -> None:
    ratios = []
    for name, rest, strategy in (("packed", "", "binpack"), ("ordered", "ORDERED BY (user_id, ts)", "sort")):
        load(lake, name, rows, rest)
        base = lake.topics.load(name).snapshot_id
        assert base is not None
        files, size = stored(lake, name)
        ours, theirs = [], []
        for _ in range(times + 1):  # the first one warms up
            ours.append(timed(lambda name=name: compact(lake, name)))
            our_size = stored(lake, name)[1]
            roll_back(lake, name, base)
            theirs.append(timed(lambda name=name, by=strategy: spark_rewrites(lake, name, rows, by)))
            their_size = stored(lake, name)[1]
            roll_back(lake, name, base)
        our, their = (statistics.median(taken[1:]) for taken in (ours, theirs))
        report.row(
            f"{strategy} of {files} files, {size / 1e6:.0f} MB",
            f"{our:.2f} s, {rows / our:,.0f} rows/s, {our_size / 1e6:.0f} MB after; Spark {their:.2f} s, "
            f"{their_size / 1e6:.0f} MB after",
        )
        report.figure(f"{strategy}_mb_per_s", size / our / 1e6, f"{size / our / 1e6:.1f} MB/s of source files")
        ratios.append(their / our)
        report.figure(f"vs_rewrite_{strategy}", their / our, f"{their / our:.2f}x as fast as rewrite_data_files")
    report.ratio("vs_rewrite_data_files", min(ratios), f"{min(ratios):.2f}x as fast, the smaller of the two")


# -- lookups --------------------------------------------------------------------------------------------------------


def lookups(lake: Lake, rows: int, report: Report) -> None:
    """Numbers without any order, and so in the range of every file."""
    seconds = {}
    for name, rest in (("without_bloom", ""), ("with_bloom", "WITH (bloom_columns = 'k')")):
        lake.sql(f"CREATE TOPIC {name} (k BIGINT, v STRING) {rest}")
        each = rows // COMMITS
        for number in range(COMMITS):
            keys = (pa.array(range(number * each, (number + 1) * each)).to_numpy() * 0x9E3779B1) % 2**40
            values = pa.array([f"value {key % 1000}" for key in range(each)])
            lake.topic(name).append(pa.table({"k": keys, "v": values}))
            lake.topic(name).flush()
        wanted = [(place * 0x9E3779B1) % 2**40 for place in range(7, rows, rows // 12)]
        texts = [f"SELECT v FROM {name} WHERE k = {key}" for key in wanted]
        assert all(lake.sql(text).arrow().num_rows == 1 for text in texts)
        seconds[name] = median_seconds(lambda texts=texts: [lake.sql(text).arrow() for text in texts], 5) / len(texts)
    plain, bloom = seconds["without_bloom"], seconds["with_bloom"]
    report.row("point lookup", f"{plain * 1000:.1f} ms; with bloom filters {bloom * 1000:.1f} ms")
    report.ratio("bloom_lookup", plain / bloom, f"{plain / bloom:.2f}x as fast with bloom filters")


# -- bytes ----------------------------------------------------------------------------------------------------------


def bytes_of(lake: Lake, name: str, rest: str, rows: pa.Table) -> int:
    """The bytes of one file of the rows, as the topic's settings have it."""
    lake.sql(f"CREATE TOPIC {name} ({COLUMNS}) {rest}")
    writer = PartitionedWriter(target(lake.topics.load(name)), lambda: str(ULID()))
    writer.write(rows)
    return sum(file.file_size_in_bytes for file in writer.close())


def stored_bytes(lake: Lake, rows: int, report: Report) -> None:
    given = events(0, rows, total=rows).combine_chunks().to_batches()[0]
    table = pa.Table.from_batches([with_system_columns(given, Offsets(0, given.num_rows), 0)])
    for codec in CODECS:
        size = bytes_of(lake, f"codec_{codec}", f"WITH (compression = '{codec}')", table)
        report.figure(f"bytes_per_row_{codec}", size / rows, f"{size / rows:.2f} bytes a row")
    for number, (what, rest) in enumerate(ENCODINGS.items()):
        size = bytes_of(lake, f"encoding_{number}", f"WITH ({rest})", table)
        report.row(what, f"{size / rows:.2f} bytes a row with zstd")


def recommended(lake: Lake, rows: int, report: Report) -> None:
    """What `RECOMMEND ... APPLY` and a full rewrite make of a topic with default settings.

    First nothing was asked of it, so the advice is about space. Then queries with filters were: the advice may then
    name an order, which is there to skip files and can cost bytes, so that is told apart.
    """
    load(lake, "advised", rows, commits=8)
    compact(lake, "advised", full=True)
    before = stored(lake, "advised")[1]
    after, changes = advised(lake)
    report.row("recommended", f"{before / rows:.2f} bytes a row, {after / rows:.2f} after {changes} changes")
    report.ratio("recommended_bytes", before / after, f"{before / after:.2f}x smaller with the recommendations")
    for condition in FILTERS:
        lake.sql(f"SELECT count(*) AS n FROM advised WHERE {condition}").rows()
    after, changes = advised(lake)
    shown = f"{after / rows:.2f} bytes a row, {before / after:.2f}x smaller, after {changes} changes more"
    report.figure("recommended_bytes_after_queries", before / after, shown)


def advised(lake: Lake) -> tuple[int, int]:
    """The topic's bytes once it was rewritten as recommended, and the number of recommendations."""
    changes = len(lake.sql("RECOMMEND FOR advised APPLY").rows())
    compact(lake, "advised", full=True)
    return stored(lake, "advised")[1], changes


# -- ingest beside it -----------------------------------------------------------------------------------------------


def ingest_rate(lake: Lake, seconds: float, blocks: list[pa.Table]) -> float:
    """Rows a second, produced and committed, for so long."""
    topic, rows, started = lake.topic("arriving"), 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds:
        for block in blocks:
            rows += topic.append(block).rows
        topic.flush()
    return rows / taken


def beside_ingest(lake: Lake, report: Report, seconds: float) -> None:
    lake.sql(f"CREATE TOPIC arriving ({COLUMNS})")
    blocks = [events(number * 100_000, 100_000) for number in range(4)]
    ingest_rate(lake, seconds / 4, blocks)
    stop, compacted = threading.Event(), [0]

    def work() -> None:
        while not stop.is_set():
            compacted[0] += compact_some(lake, stop)

    alone, beside = [], []
    for _ in range(3):
        alone.append(ingest_rate(lake, seconds / 3, blocks))
        stop.clear()
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.5)
        beside.append(ingest_rate(lake, seconds / 3, blocks))
        stop.set()
        thread.join()
    before, during = statistics.mean(alone), statistics.mean(beside)
    report.row("ingest", f"{before:,.0f} rows/s; {during:,.0f} rows/s beside compaction of {compacted[0]:,} rows")
    report.ratio("ingest_during_compaction", during / before, f"{during / before:.2f} of the rate")


def compact_some(lake: Lake, stop: threading.Event) -> int:
    plan = plan_compaction(lake.topics.load("ordered"), ManifestCache(), now=time.time(), full=True)
    return run_compaction(lake.topics, plan, lambda: lake.spark, ManifestCache(), cancelled=stop.is_set).effect.rows


# -- memory ---------------------------------------------------------------------------------------------------------


def memory(rows: int, given: int) -> None:
    """In a process of its own: sort rows of files within the memory given; print the peak, and what the rows take."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder, headwater.init(Path(folder) / "l") as lake:
        lake.sql(f"CREATE TOPIC sorted ({COLUMNS}) ORDERED BY (user_id, ts)")
        into = target(lake.topics.load("sorted"))
        unsorted = replace(into, layout=replace(layout_of(lake.topics.load("sorted")), ordering=()))
        sources, size = [], 0
        for start in range(0, rows, 100_000):
            batch = events(start, 100_000, total=rows).combine_chunks().to_batches()[0]
            writer = PartitionedWriter(unsorted, lambda: str(ULID()))
            table = pa.Table.from_batches([with_system_columns(batch, Offsets(start, start + 100_000), 0)])
            size += table.nbytes
            writer.write(table)
            sources += [Source(file.file_path, file.file_size_in_bytes, file.record_count) for file in writer.close()]
        before = peak_mb()
        means = Means(given, Path(folder), 2)
        (done,) = run_rewrites([Rewrite(0, tuple(sources), "s00000000_bench_0", True)], into, means, 0)
        assert done.failed is None, done.failed
        print(json.dumps({"before": before, "peak": peak_mb(), "rows_mb": size / 1024**2, "seconds": done.seconds}))


def sort_memory(rows: int, report: Report) -> None:
    given = 64 * 1024**2
    command = [sys.executable, "-m", "bench.care", "--memory", str(rows), str(given)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(printed.splitlines()[-1])
    grown = found["peak"] - found["before"]
    report.figure(
        "sort_peak_mb",
        grown,
        f"{grown:.0f} MB more at the peak for {found['rows_mb']:.0f} MB of rows, with 64 MB to sort in, "
        f"{found['seconds']:.1f} s",
    )


def measure(folder: Path, rows: int, *, small: bool) -> Report:
    report = Report("care")
    with headwater.init(folder / "lake", max_tail_bytes=2 * 1024**3) as lake:
        queries(lake, rows, report)
        beside_spark(lake, rows, report, 1 if small else 3)
        lookups(lake, rows // 2, report)
        stored_bytes(lake, min(rows, 1_000_000), report)
        recommended(lake, rows // 2, report)
        beside_ingest(lake, report, 4 if small else 30)
    sort_memory(rows * 2, report)
    return report


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=3_000_000)
    arguments.add_argument("--small", action="store_true", help="few rows: see that it runs, not how fast")
    arguments.add_argument("--memory", type=int, nargs=2, help="sort so many rows in so many bytes, and nothing else")
    given = arguments.parse_args()
    if given.memory:
        memory(*given.memory)
        return
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        report = measure(folder, 200_000 if given.small else given.rows, small=given.small)
    finally:
        shutil.rmtree(folder)
    report.print()


if __name__ == "__main__":
    main()
