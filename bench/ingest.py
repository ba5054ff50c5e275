"""NDJSON to Iceberg, produce included, beside Spark's own reader and writer, PyIceberg and delta-rs on the same file.

Both sides are warm: each does a small load first. Prints `vs_spark`, `vs_pyiceberg`, `vs_delta_rs`, `bytes_vs_ndjson`
and, from separate processes, the peak memory of Headwater's Python side at 1 M and 10 M rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as paj

import headwater
from bench.report import Report, peak_mb, timed
from bench.workload import BLOCK, COLUMNS, blocks, ndjson, write_ndjson
from headwater.engine import Lake

SCHEMA = pa.schema(
    {
        "event_id": pa.int64(),
        "user_id": pa.int64(),
        "region": pa.string(),
        "kind": pa.string(),
        "amount": pa.decimal128(12, 2),
        "ts": pa.timestamp("us", "UTC"),
    }
)
CHUNK = 16 * 1024**2


def chunks(path: Path) -> Iterator[bytes]:
    """The file in pieces that end at a line."""
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data + file.readline()


def ours(lake: Lake, topic: str, path: Path) -> None:
    """Produce the file with two requests under way (one is decoded while the other waits for the disk), and commit."""
    handle = lake.topic(topic)
    with ThreadPoolExecutor(2) as producers:
        for acknowledged in producers.map(handle.append, chunks(path)):
            assert acknowledged.rows
    handle.flush()


def spark_load(lake: Lake, path: Path, table: str) -> None:
    schema = "event_id BIGINT, user_id BIGINT, region STRING, kind STRING, amount DECIMAL(12,2), ts TIMESTAMP"
    lake.spark.read.schema(schema).json(str(path)).writeTo(f"lake.bench.{table}").using("iceberg").create()


def pyiceberg_load(table: Any, path: Path) -> None:
    options = paj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error")
    read = paj.ReadOptions(block_size=4 * 1024**2)
    pending: list[pa.Table] = []
    rows = 0
    for chunk in chunks(path):
        pending.append(paj.read_json(pa.BufferReader(chunk), read_options=read, parse_options=options))
        rows += pending[-1].num_rows
        while rows >= BLOCK:
            all_rows = pa.concat_tables(pending)
            table.append(all_rows.slice(0, BLOCK))
            pending, rows = [all_rows.slice(BLOCK)], rows - BLOCK
    if rows:
        table.append(pa.concat_tables(pending))


def delta_load(folder: Path, path: Path) -> None:
    import deltalake

    options = paj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error")
    for chunk in chunks(path):
        rows = paj.read_json(
            pa.BufferReader(chunk), read_options=paj.ReadOptions(block_size=4 * 1024**2), parse_options=options
        )
        deltalake.write_deltalake(str(folder), rows, mode="append")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def compare(folder: Path, rows: int, report: Report) -> None:
    data, warm = folder / "events.ndjson", folder / "warm.ndjson"
    raw = write_ndjson(data, rows)
    write_ndjson(warm, 20_000)
    report.row("input", f"{rows:,} rows, {raw / 1e6:,.0f} MB of NDJSON, {raw / rows:.0f} bytes a row")
    with headwater.init(folder / "lake", max_tail_bytes=2 * 1024**3) as lake:
        lake.sql(f"CREATE TOPIC warm ({COLUMNS})")
        lake.sql(f"CREATE TOPIC events ({COLUMNS})")
        lake.spark.sql("CREATE NAMESPACE lake.bench")
        ours(lake, "warm", warm)
        spark_load(lake, warm, "warm")
        headwater_s = timed(lambda: ours(lake, "events", data))
        report.figure("headwater_s", headwater_s, f"{headwater_s:.1f} s, {rows / headwater_s:,.0f} rows/s, committed")
        spark_s = timed(lambda: spark_load(lake, data, "events"))
        report.figure("spark_s", spark_s, f"{spark_s:.1f} s with Spark's JSON reader and Iceberg writer")
        table = lake.topics.tables.catalog.create_table("bench.pyiceberg", SCHEMA)
        pyiceberg_load(table, warm)
        pyiceberg_s = timed(lambda: pyiceberg_load(table, data))
        report.figure("pyiceberg_s", pyiceberg_s, f"{pyiceberg_s:.1f} s with PyIceberg, {BLOCK:,} rows an append")
        delta_load(folder / "delta_warm", warm)
        delta_s = timed(lambda: delta_load(folder / "delta", data))
        report.figure("delta_s", delta_s, f"{delta_s:.1f} s with delta-rs")
        assert lake.sql("SELECT count(*) AS n FROM events").rows() == [{"n": rows}]
        stored = lake.topic("events").describe()["bytes"]
    warehouse = folder / "lake" / "warehouse"
    report.row("Spark's files", f"{raw / size_of(warehouse / 'bench' / 'events'):.1f}x smaller than NDJSON")
    report.row("PyIceberg's files", f"{raw / size_of(warehouse / 'bench' / 'pyiceberg'):.1f}x smaller than NDJSON")
    report.row("delta-rs's files", f"{raw / size_of(folder / 'delta'):.1f}x smaller than NDJSON")
    report.ratio("vs_spark", spark_s / headwater_s, f"{spark_s / headwater_s:.2f}x as fast as Spark")
    report.ratio("vs_pyiceberg", pyiceberg_s / headwater_s, f"{pyiceberg_s / headwater_s:.2f}x as fast as PyIceberg")
    report.ratio("vs_delta_rs", delta_s / headwater_s, f"{delta_s / headwater_s:.2f}x as fast as delta-rs")
    report.ratio("bytes_vs_ndjson", raw / stored, f"{raw / stored:.1f}x smaller than NDJSON")


def memory(rows: int) -> None:
    """In a process of its own: load generated rows, and print the peak memory of this process."""
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder,
        headwater.init(Path(folder) / "lake") as lake,
    ):
        lake.sql(f"CREATE TOPIC events ({COLUMNS})")
        topic = lake.topic("events")
        for block in blocks(rows):
            topic.append(ndjson(block))
        topic.flush()
        print(json.dumps({"peak_mb": peak_mb()}))


def peak_of(rows: int) -> float:
    command = [sys.executable, "-m", "bench.ingest", "--memory", str(rows)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.splitlines()[-1])["peak_mb"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=5_000_000)
    arguments.add_argument("--memory", type=int, help="measure peak memory of loading so many rows, and nothing else")
    arguments.add_argument("--skip-memory", action="store_true")
    given = arguments.parse_args()
    if given.memory:
        memory(given.memory)
        return
    report = Report("ingest")
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        compare(folder, given.rows, report)
    finally:
        shutil.rmtree(folder)
    if not given.skip_memory:
        small, large = peak_of(1_000_000), peak_of(10_000_000)
        report.figure("peak_mb_1m", small, f"{small:.0f} MB held by Python at 1 M rows")
        report.figure("peak_mb_10m", large, f"{large:.0f} MB held by Python at 10 M rows")
        report.figure("peak_growth", large / small, f"{large / small:.2f}x the memory for 10x the rows")
    report.print()


if __name__ == "__main__":
    main()
