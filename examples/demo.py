"""The main job, end to end: a service, a topic, views that follow a live workload, queries while it runs, the plans
and the files.

Run it with `make demo`. It works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.workload import blocks, ndjson

from headwater.client import RemoteLake
from headwater.sql.parse import parse
from headwater.topics.produce import Source

CREATE = """\
CREATE TOPIC events (
    event_id BIGINT NOT NULL,
    user_id  BIGINT NOT NULL,
    region   STRING,
    kind     STRING,
    amount   DECIMAL(12,2),
    ts       TIMESTAMP
) PARTITIONED BY (days(ts))
  WITH (batch_size = 50000, commit_interval = '2 seconds')"""

REVENUE = """\
CREATE MATERIALIZED VIEW revenue WITH (refresh = 'immediate') AS
SELECT region, count(*) AS purchases, sum(amount) AS revenue FROM events WHERE kind = 'purchase' GROUP BY region"""
SPENDERS = """\
CREATE MATERIALIZED VIEW spenders WITH (refresh = 'manual') AS
SELECT user_id, count(*) AS events, sum(amount) AS spent FROM events GROUP BY user_id ORDER BY spent DESC, user_id"""
STREAM = """\
CREATE STREAM events WITH (timestamp_field = 'ts', max_out_of_orderness = '5 minutes')"""
HOURLY = """\
CREATE MATERIALIZED VIEW hourly AS
SELECT TUMBLE_START(ts, INTERVAL '1 hour') AS hour, count(*) AS events, sum(amount) AS revenue FROM events
GROUP BY TUMBLE(ts, INTERVAL '1 hour') EMIT ON WINDOW CLOSE WITH (refresh = 'continuous')"""
MORE = 5_000

LIVE = (
    ("how many, and how fresh?", "SELECT count(*) AS events, max(_timestamp) AS newest FROM events"),
    (
        "revenue by region, newest records included",
        "SELECT region, count(*) AS purchases, sum(amount) AS revenue FROM events WHERE kind = 'purchase' "
        "GROUP BY region ORDER BY revenue DESC LIMIT 3",
    ),
    ("the same, as the view has it", "SELECT * FROM revenue ORDER BY revenue DESC LIMIT 3"),
    (
        "who spends most?",
        "SELECT user_id, sum(amount) AS spent FROM events GROUP BY user_id ORDER BY spent DESC, user_id LIMIT 3",
    ),
)
ON_SPARK = (
    "SELECT kind, percentile_approx(amount, 0.5) AS median, percentile_approx(amount, 0.99) AS p99 "
    "FROM events GROUP BY kind ORDER BY kind"
)
PRUNED = (
    "SELECT sum(amount) AS revenue FROM events WHERE ts >= '2026-01-02' AND ts < '2026-01-03' AND kind = 'purchase'"
)
RATE = 60_000

console = Console(highlight=False)


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """`headwater serve` in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "headwater", "--json", "-C", str(folder), "serve", "--port", "0"]
    log = folder.parent / "serve.log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise SystemExit(log.read_text())
        yield json.loads(said)["url"]
    finally:
        process.terminate()
        process.wait(timeout=60)


def headwater(folder: Path, *arguments: str) -> None:
    """A command as one would type it."""
    console.print(f"[bold cyan]$ headwater {' '.join(arguments)}[/]")
    subprocess.run([sys.executable, "-m", "headwater", *arguments], cwd=folder, check=True)


def shown(lake: RemoteLake, title: str, text: str) -> None:
    """Run a query and print its answer."""
    started = time.perf_counter()
    answer = lake.execute(parse(text)).arrow()
    took = (time.perf_counter() - started) * 1000
    console.print(f"[bold]{title}[/]  [dim]{took:,.0f} ms[/]")
    table = Table(header_style="cyan")
    for name in answer.column_names:
        table.add_column(name, justify="left" if name in ("region", "kind", "plan") else "right")
    for row in answer.to_pylist():
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console.print(table)


def explained(lake: RemoteLake, text: str) -> None:
    """Print a query's plan, or a refresh's."""
    lines = [row["plan"] for row in lake.execute(parse(f"EXPLAIN {text}"))]
    body = "\n".join(line if len(line) < 150 else line[:147] + "..." for line in lines)
    title = f"EXPLAIN {text}" if text.startswith("REFRESH") else "EXPLAIN"
    console.print(Panel(Text(body), title=title, title_align="left", border_style="cyan"))


class Workload(threading.Thread):
    """Sends events at a steady rate and remembers what was acknowledged."""

    def __init__(self, url: str, rows: int, progress: Progress) -> None:
        super().__init__(name="workload", daemon=True)
        self._url = url
        self._rows = rows
        self._progress = progress
        self.acknowledged = 0
        self.failed: Exception | None = None

    def run(self) -> None:
        bar = self._progress.add_task("producing", total=self._rows)
        started = time.perf_counter()
        try:
            with RemoteLake(self._url) as lake:
                for number, block in enumerate(blocks(self._rows, days=3)):
                    for part in range(0, block.num_rows, 5_000):
                        body = ndjson(block.slice(part, 5_000))
                        sequence = number * 1_000 + part // 5_000
                        ack = lake.append("events", [body], "ndjson", Source("demo", "demo", sequence))
                        self.acknowledged += ack.rows
                        self._progress.update(bar, completed=self.acknowledged)
                        ahead = self.acknowledged / RATE - (time.perf_counter() - started)
                        time.sleep(max(0.0, ahead))
        except Exception as failed:
            self.failed = failed


def run(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-demo-") as temporary:
        folder = Path(temporary)
        console.rule("[bold]1. a lake is a folder[/]")
        headwater(folder, "init", "shop")
        with service(folder / "shop") as url, RemoteLake(url) as lake:
            console.print(f"[bold cyan]$ headwater serve[/]\nserving at {url}\n")
            console.rule("[bold]2. a topic is an Iceberg table, a view is a query whose answer is kept[/]")
            console.print(CREATE, style="green")
            lake.execute(parse(CREATE))
            warmed(url)
            for statement in (REVENUE, SPENDERS, STREAM, HOURLY):
                console.print(statement, style="green")
                console.print(*lake.execute(parse(statement)).notices, style="dim")
            stream(lake, url, rows)
            settled(lake, rows)
            followed(lake, rows)
            streamed(lake)
            cared_for(lake)
            files(folder / "shop")
        console.print("\n[bold green]stopped cleanly.[/] Next: the README's tour, or `headwater --help`.")


def warmed(url: str) -> None:
    """Wait for the service's Spark; producing and small queries would not need to."""
    with console.status("Spark starts in the service, once…"):
        while httpx.get(f"{url}/ready").json()["spark"] != "ready":
            time.sleep(0.2)


def stream(lake: RemoteLake, url: str, rows: int) -> None:
    console.rule(f"[bold]3. {rows:,} events, and questions while they arrive[/]")
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        workload = Workload(url, rows, progress)
        workload.start()
        asked = 0
        while workload.is_alive():
            workload.join(timeout=1.5)
            if workload.acknowledged and asked < len(LIVE) * 2:
                shown(lake, *LIVE[asked % len(LIVE)])
                asked += 1
        workload.join()
    if workload.failed is not None:
        raise workload.failed
    console.print(f"[bold]{workload.acknowledged:,}[/] events acknowledged, each of them on disk first.\n")


def settled(lake: RemoteLake, rows: int) -> None:
    console.rule("[bold]4. the answers, and who gave them[/]")
    for title, text in LIVE:
        shown(lake, title, text)
    (counted,) = lake.execute(parse("SELECT count(*) AS n, count(DISTINCT _offset) AS offsets FROM events")).rows()
    assert counted == {"n": rows, "offsets": rows}, counted
    lake.flush("events")
    console.print(f"[green]✓[/] every event is there, exactly once: {rows:,} records, {rows:,} offsets\n")
    explained(lake, PRUNED)
    console.print("A function that DuckDB is not proven to answer alike goes to Spark:")
    shown(lake, "median and p99", ON_SPARK)
    explained(lake, ON_SPARK)


def followed(lake: RemoteLake, rows: int) -> None:
    console.rule("[bold]5. views that follow, at the cost of the change[/]")
    done = [each for each in lake.view("revenue").history(limit=1000) if each["outcome"] == "ok"]
    methods = ", ".join(f"{count} {method}" for method, count in Counter(each["method"] for each in done).items())
    console.print(f"revenue was refreshed with every commit while events arrived: {methods}")
    refreshed(lake)
    (block,) = blocks(MORE, days=3)
    lake.append("events", [ndjson(block)], "ndjson", Source("demo", "later", 0))
    shown(lake, f"{MORE:,} more events; the view does not have them", "SELECT sum(events) AS events FROM spenders")
    fresh = "SELECT sum(events) AS events FROM mv('spenders', fresh => true)"
    shown(lake, "read as if it were refreshed now", fresh)
    lake.flush("events")
    explained(lake, "REFRESH spenders")
    refreshed(lake)
    (counted,) = lake.execute(parse("SELECT sum(events) AS n FROM spenders")).rows()
    assert counted == {"n": rows + MORE}, counted
    assert lake.view("spenders").verify()["equal"]
    console.print("[green]✓[/] the view is what its query gives, row by row\n")
    shown(lake, "who spends most, from the view", "SELECT * FROM spenders LIMIT 3")


def refreshed(lake: RemoteLake) -> None:
    """Refresh the manual view, and say what it took."""
    done = lake.view("spenders").refresh()[-1]
    console.print(
        f"[bold cyan]$ headwater mv refresh spenders[/]\n{done['method']}: read {done['rows_read']:,} rows, "
        f"wrote {done['rows_written']:,}, {done['seconds']:.1f} s ({done['reason']})"
    )


def streamed(lake: RemoteLake) -> None:
    console.rule("[bold]6. a stream closed an hour when its watermark passed it[/]")
    lake.view("hourly").refresh()
    shown(lake, "the last hours that are final", "SELECT * FROM hourly ORDER BY hour DESC LIMIT 3")
    (status,) = lake.execute(parse("SHOW STREAM STATUS FOR hourly")).rows()
    console.print(
        f"{status['rows_in']:,} records read, {status['rows_out']:,} hours emitted, watermark "
        f"{status['watermark']:%Y-%m-%d %H:%M}.\nOf the later events {status['late_rows']:,} came after their hour had "
        "closed: late = 'correct' would fold them in.\n"
    )


def cared_for(lake: RemoteLake) -> None:
    console.rule("[bold]7. small files become few, and every past state stays readable[/]")
    (before,) = lake.execute(parse("SHOW SNAPSHOTS OF events LIMIT 1")).rows()
    console.print("OPTIMIZE events", style="green")
    for done in lake.execute(parse("OPTIMIZE events")).rows():
        console.print(f"{done['step']}: {done['reason']}; {done['rows']:,} rows in {done['seconds']:.1f} s")
    then = f"SELECT count(*) AS events FROM events VERSION AS OF {before['snapshot']}"  # noqa: S608
    shown(lake, "as it was before", then)


def files(folder: Path) -> None:
    console.rule("[bold]8. plain Parquet, readable by anyone[/]")
    headwater(folder, "topic", "list")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    table = catalog.load_table("topics.events")
    for path in sorted((folder / "warehouse").rglob("*.parquet"))[:4]:
        console.print(
            f"  {path.stat().st_size / 1024:,.0f} KB  [dim]{path.relative_to(folder / 'warehouse')}[/]", soft_wrap=True
        )
    snapshots = len(table.metadata.snapshots)
    console.print(f"PyIceberg, without Headwater: {table.scan().count():,} rows in {snapshots} snapshots")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=600_000)
    run(arguments.parse_args().rows)


if __name__ == "__main__":
    main()
