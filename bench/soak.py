"""Steady load on a service, and its memory over time: `make soak`, or `python -m bench.soak --minutes 60`.

Producers, queries, tails, errors and background work go on at an even pace. The verdict is about the resident memory of
the service's Python process, without Spark's JVM: it has to stay below a ceiling, and to level off. `--without-spark`
leaves out what needs the JVM; the log is then kept small by dropping and creating the topic.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.workload import COLUMNS, events, ndjson

CEILING_MB = 1200
"""The setting memory_limit at its default, and some room for what a process maps."""
LEVEL = 1.15
"""The last quarter may have this much more than the second one."""
NDJSON = {"Content-Type": "application/x-ndjson"}
VIEW = (
    "SELECT region, kind, count(*) AS events, sum(amount) AS total FROM events GROUP BY region, kind",
    {"refresh": "incremental", "interval": "5 seconds"},
)
QUERIES = (
    "SELECT count(*) FROM events",
    "SELECT region, count(*), sum(amount) FROM events GROUP BY region",
    "SELECT * FROM events WHERE user_id = 17 ORDER BY event_id LIMIT 100",
    "SELECT kind, max(amount) FROM events WHERE region = 'eu-west' GROUP BY kind",
    "SELECT nothing FROM events",
)


@dataclass
class Load:
    """What the clients share, and what they have done."""

    url: str
    ended: threading.Event = field(default_factory=threading.Event)
    counts: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    def count(self, what: str, response: httpx.Response, *expected: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        if response.status_code not in expected:
            self.unexpected.append(f"{what}: {response.status_code} {response.text[:200]}")


def produce(load: Load, http: httpx.Client, rows: int = 200) -> None:
    blocks = [ndjson(events(number * rows, rows)) for number in range(50)]
    while not load.ended.wait(0.05):
        block = blocks[load.counts.get("produce", 0) % len(blocks)]
        load.count("produce", http.post("/api/v1/topics/events/records", content=block, headers=NDJSON), 200, 404, 429)


def query(load: Load, http: httpx.Client) -> None:
    number = 0
    while not load.ended.wait(0.05):
        sql, number = QUERIES[number % len(QUERIES)], number + 1
        answer = http.post("/api/v1/query", json={"sql": sql, "engine": "duckdb", "limit": 50})
        load.count("query", answer, 200, 202, 400, 404, 429)
        if answer.status_code == 200 and number % 2:
            load.count("forget", http.delete(f"/api/v1/query/{answer.json()['id']}"), 200)


def stray(load: Load, http: httpx.Client) -> None:
    """Requests that fail, tails that are left, and everything that lists."""
    while not load.ended.wait(0.2):
        bad = http.post("/api/v1/topics/events/records", content=b'{"event_id": "x"}\n' * 500, headers=NDJSON)
        load.count("reject", bad, 404, 422)
        for path in ("/metrics", "/api/v1/topics", "/api/v1/queries", "/api/v1/views", "/nowhere"):
            load.count("list", http.get(path), 200, 404)
        with http.stream("GET", "/api/v1/topics/events/tail?from=earliest&limit=500&follow=false") as tail:
            for _ in tail.iter_bytes():
                break
            load.counts["tail"] = load.counts.get("tail", 0) + 1


def renew(load: Load, http: httpx.Client) -> None:
    """Without Spark nothing is moved from the log into the table, so the topic begins again now and then."""
    while not load.ended.wait(3):
        load.count("renew", http.delete("/api/v1/topics/events"), 200, 404)
        create_topic(load, http)


def create_topic(load: Load, http: httpx.Client) -> None:
    columns = [dict(zip(("name", "type"), part.split(" ")[:2], strict=True)) for part in COLUMNS.split(", ")]
    load.count("create", http.post("/api/v1/topics", json={"name": "events", "columns": columns}), 201, 409)


def run_clients(load: Load, works: tuple[Callable[[Load, httpx.Client], None], ...]) -> list[threading.Thread]:
    def run(work: Callable[[Load, httpx.Client], None]) -> None:
        with httpx.Client(base_url=load.url, timeout=300, trust_env=False) as http:
            while not load.ended.is_set():
                try:
                    work(load, http)
                except httpx.HTTPError as failed:
                    if not load.ended.is_set():
                        load.unexpected.append(f"{work.__name__}: {failed!r}")

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


@contextmanager
def service(folder: Path, *, spark: bool) -> Iterator[tuple[str, int]]:
    """The address of a service in a process of its own, and its process id."""
    command = ("headwater", "-C", str(folder), "serve", "--port", "0") if spark else ("bench.soak_service",)
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": root, "HEADWATER_LAKE": str(folder)}
    started = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert started.stdout is not None
    try:
        line = next((line for line in started.stdout if "http://" in line), "")
        yield "http://" + line.partition("http://")[2].strip().strip('"}'), started.pid
    finally:
        started.terminate()
        started.wait(60)


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1024**2


def verdict(samples: list[float], ceiling: float) -> str | None:
    """Why the memory is not in order; None if it is. The first quarter warms up."""
    quarter = max(1, len(samples) // 4)
    second, last = (statistics.median(part) for part in (samples[quarter : 2 * quarter], samples[-quarter:]))
    if max(samples) > ceiling:
        return f"{max(samples):.0f} MB are more than the ceiling of {ceiling:.0f} MB"
    if last > second * LEVEL:
        return f"memory grew from {second:.0f} MB in the second quarter to {last:.0f} MB in the last"
    return None


def soak(folder: Path, seconds: float, ceiling: float, *, spark: bool) -> dict[str, object]:
    """Put a service under load and measure it."""
    subprocess.run([sys.executable, "-m", "headwater", "init", str(folder)], check=True, capture_output=True)
    samples: list[float] = []
    with service(folder, spark=spark) as (url, pid):
        load = Load(url)
        with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
            create_topic(load, http)
            if spark:
                made = http.post("/api/v1/views", json={"name": "by_region", "query": VIEW[0], "options": VIEW[1]})
                load.count("view", made, 201)
        clients = run_clients(load, (produce, query, query, stray) if spark else (produce, query, query, stray, renew))
        until, pause = time.monotonic() + seconds, min(10.0, seconds / 40)
        while time.monotonic() < until:
            time.sleep(pause)
            samples.append(resident_mb(pid))
            sys.stderr.write(f"{len(samples) * pause:7.0f} s {samples[-1]:8.1f} MB {json.dumps(load.counts)}\n")
        load.ended.set()
        for client in clients:
            client.join(60)
    wrong = verdict(samples, ceiling) or (f"unexpected answers: {load.unexpected[:3]}" if load.unexpected else None)
    return {
        "minutes": seconds / 60,
        "first_mb": round(samples[0], 1),
        "peak_mb": round(max(samples), 1),
        "last_mb": round(samples[-1], 1),
        "requests": sum(load.counts.values()),
        "verdict": wrong or "ok",
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=60)
    arguments.add_argument("--ceiling-mb", type=float, default=CEILING_MB)
    arguments.add_argument("--without-spark", action="store_true")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-soak-") as folder:
        found = soak(Path(folder) / "lake", asked.minutes * 60, asked.ceiling_mb, spark=not asked.without_spark)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.exit(0 if found["verdict"] == "ok" else 1)


if __name__ == "__main__":
    main()
