"""How fast records are acknowledged: NDJSON to a durable acknowledgement, in process and over HTTP.

Prints `rows_per_s`, `http_rows_per_s`, `small_batches_per_s`, `ack_p99_ms`, and two ratios against committing each
small batch to an Iceberg table with PyIceberg and to a Delta table with delta-rs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa

import headwater
import headwater.engine
from bench.report import Report, peak_mb, timed
from bench.workload import BLOCK, COLUMNS, blocks, events, ndjson

SMALL = 10


def in_process(folder: Path, rows: int, report: Report) -> None:
    bodies = [ndjson(block) for block in blocks(rows)]
    with headwater.init(folder, max_tail_bytes=4 * 1024**3) as lake:
        lake.sql(f"CREATE TOPIC events ({COLUMNS})")
        topic = lake.topic("events")
        topic.append(bodies[0])
        seconds = timed(lambda: [topic.append(body) for body in bodies])
        report.figure("rows_per_s", rows / seconds, f"{rows / seconds:,.0f} rows/s in process, {BLOCK:,} rows a batch")
        small = [ndjson(events(i * SMALL, SMALL)) for i in range(1000)]
        waits = [timed(lambda body=body: topic.append(body)) for body in small]
        rate = len(small) / sum(waits)
        report.figure("small_batches_per_s", rate, f"{rate:,.0f} batches/s of {SMALL} rows, one producer")
        p99 = float(np.percentile(waits, 99)) * 1000
        report.figure("ack_p99_ms", p99, f"{p99:.1f} ms until the acknowledgement (p99 of the small batches)")
        concurrent(topic, small, report)


def concurrent(topic: headwater.engine.TopicHandle, small: list[bytes], report: Report) -> None:
    """Eight producers share commits."""

    def produce(mine: list[bytes]) -> None:
        for body in mine:
            topic.append(body)

    threads = [threading.Thread(target=produce, args=(small[i::8],)) for i in range(8)]
    seconds = timed(lambda: ([t.start() for t in threads], [t.join() for t in threads]))
    rate = len(small) / seconds
    report.figure("concurrent_small_batches_per_s", rate, f"{rate:,.0f} batches/s of {SMALL} rows, eight producers")


def over_http(folder: Path, rows: int, report: Report) -> None:
    bodies = [ndjson(block) for block in blocks(rows)]
    # The ingester looks once, at the start: what is measured is producing alone, as in process.
    environment = {**os.environ, "HEADWATER_MAX_TAIL_BYTES": str(4 * 1024**3), "HEADWATER_INGEST_POLL": "3600"}
    with headwater.init(folder) as lake:
        lake.sql(f"CREATE TOPIC events ({COLUMNS})")
    command = [sys.executable, "-m", "headwater", "--json", "-C", str(folder), "serve", "--port", "0"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        with httpx.Client(base_url=json.loads(server.stdout.readline())["url"], timeout=60) as client:
            wait_for_spark(client)
            measure_http(client, bodies, rows, report)
            peak = peak_mb(server.pid)
            report.figure("http_peak_mb", peak, f"{peak:.0f} MB held by the service's Python process at most")
    finally:
        server.terminate()
        server.wait(timeout=60)


def wait_for_spark(client: httpx.Client) -> None:
    """Spark starts in the background; until then it would take half of the machine."""
    for _ in range(600):
        if client.get("/ready").json().get("spark") == "ready":
            return
        time.sleep(0.1)
    raise SystemExit("Spark did not start")


def measure_http(client: httpx.Client, bodies: list[bytes], rows: int, report: Report) -> None:
    def post(body: bytes) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        client.post("/api/v1/topics/events/records", content=body, headers=headers).raise_for_status()

    post(bodies[0])
    rate = rows / timed(lambda: [post(body) for body in bodies])
    report.figure("http_rows_per_s", rate, f"{rate:,.0f} rows/s over HTTP, {BLOCK:,} rows a request")
    small = [ndjson(events(i * SMALL, SMALL)) for i in range(300)]
    rate = len(small) / timed(lambda: [post(body) for body in small])
    report.figure("http_small_batches_per_s", rate, f"{rate:,.0f} requests/s of {SMALL} rows over HTTP")


def against_table_formats(folder: Path, report: Report) -> None:
    """Small commits to a table format, which is what one does without a log."""
    import deltalake
    from pyiceberg.catalog.sql import SqlCatalog

    small = [events(i * SMALL, SMALL) for i in range(30)]
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.events", pa.schema(small[0].schema))
    iceberg = len(small) / timed(lambda: [table.append(batch) for batch in small])
    report.row("PyIceberg", f"{iceberg:,.1f} appends/s of {SMALL} rows")
    delta = len(small) / timed(
        lambda: [deltalake.write_deltalake(f"{folder}/delta", batch, mode="append") for batch in small]
    )
    report.row("delta-rs", f"{delta:,.1f} appends/s of {SMALL} rows")
    ours = report.figures["small_batches_per_s"]
    report.ratio("vs_pyiceberg", ours / iceberg, f"{ours / iceberg:,.0f}x as many small batches as PyIceberg")
    report.ratio("vs_delta_rs", ours / delta, f"{ours / delta:,.0f}x as many small batches as delta-rs")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    rows = arguments.parse_args().rows
    report = Report("produce")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        in_process(Path(folder) / "lake", rows, report)
        over_http(Path(folder) / "http", rows // 2, report)
        (Path(folder) / "others").mkdir()
        against_table_formats(Path(folder) / "others", report)
    report.print()


if __name__ == "__main__":
    main()
