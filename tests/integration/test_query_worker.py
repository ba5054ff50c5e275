"""One query must not stop everyone's: queries on Spark run in a process that is killed and replaced.

One service, whose pipeline is the shared session, and one worker after another. Nothing here decides by the clock:
what takes long on a busy machine is waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api.serve import Service
from headwater.engine import Lake
from headwater.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MB = 1024**2
STUCK = "SELECT regexp_replace('" + "a" * 60 + "!', '(.*a){25}$', 'x') AS stuck"
"""A constant expression: the optimizer evaluates it, where no cancel of a job reaches."""
LONG = "SELECT count(a.id * b.id) AS n FROM range(3000000) a JOIN range(3000000) b ON a.id != b.id"
HUGE = (
    "SELECT sequence(1, 2000000000) AS x",
    "SELECT lpad('x', 2000000000, 'y') AS x",
    "SELECT printf('%2000000000d', 1) AS x",
    "SELECT array_repeat(1L, 2000000000) AS x",
)


TOO_LARGE = (
    "SELECT 1 IN (" + ",".join(["1"] * 150_000) + ") AS x",
    *(
        f"SELECT {opening * 300}1{closing * 300} AS x"
        for opening, closing in (
            ("(", ")"),
            ("abs(", ")"),
            ("CASE WHEN true THEN ", " END"),
            ("CASE desc WHEN 1 THEN ", " END"),
            ("CASE WHEN end THEN ", " END"),
            ("(SELECT ", ")"),
            ("transform(a, x -> ", ")"),
            ("NOT ", ""),
            ("- ", ""),
        )
    ),
    "SELECT CAST(null AS " + "ARRAY<" * 300 + "INT" + ">" * 300 + ") AS x",
    "SELECT /*+ COALESCE(" + "(" * 300 + "1" + ")" * 300 + ") */ 1 AS x",
    "SELECT /*+ COALESCE('*/') */ " + "(" * 300 + "1" + ")" * 300 + " AS x -- '",
)
"""What no parser sees: it would keep Spark busy long after a cancel."""


class Served:
    """A service over HTTP, and the lake in it."""

    def __init__(self, lake: Lake, http: httpx.Client) -> None:
        self.lake = lake
        self.http = http

    def query(self, sql: str, **body: Any) -> httpx.Response:
        return self.http.post("/api/v1/query", json={"sql": sql, "engine": "spark", "wait": 600, **body})

    def begin(self, sql: str, **body: Any) -> str:
        """Submit a query, and wait until the worker has it; its id."""
        before = self.running
        answer = self.query(sql, **{"wait": 0, **body})
        assert answer.status_code == 202, answer.text
        until(lambda: self.running > before)
        return str(answer.json()["id"])

    def read(self, id: str) -> httpx.Response:
        while (answer := self.http.get(f"/api/v1/query/{id}", params={"wait": 30})).status_code == 202:
            pass
        return answer

    @property
    def running(self) -> int:
        worker = self.lake._opened_worker
        return 0 if worker is None or worker._process is None else worker._process.queries

    @property
    def pid(self) -> int:
        worker = self.lake._opened_worker
        assert worker is not None and worker.pid is not None
        return worker.pid

    @property
    def restarts(self) -> dict[str, float]:
        samples = next(iter(self.lake.metrics.query_worker_restarts.collect())).samples
        return {each.labels["reason"]: each.value for each in samples if each.name.endswith("_total")}

    def works(self) -> None:
        """A query on Spark and one on DuckDB are answered, and a record is acknowledged and committed."""
        assert self.query("SELECT count(*) AS n FROM worker_events WHERE id < 3").json()["rows"] == [[3]]
        answer = self.query("SELECT count(*) AS n FROM worker_events WHERE id < 3", engine="duckdb")
        assert answer.json()["rows"] == [[3]]
        added = self.http.post("/api/v1/topics/worker_events/records", json=[{"id": 9, "name": "more"}])
        assert added.status_code in (200, 201), added.text
        assert self.lake.flush("worker_events")


def until(what: Callable[[], bool]) -> None:
    while not what():
        time.sleep(0.05)


def is_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    found: dict[str, Any] = answer.json()
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended, those included that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def members(group: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def served(spark: Any, spark_lake: Path) -> Iterator[Served]:
    open_lake = Lake.open if (spark_lake / "headwater.toml").exists() else Lake.init
    lake = open_lake(
        spark_lake,
        query_worker="always",
        query_worker_memory="512m",
        query_stop_seconds=6,
        query_timeout=300,
        query_max_scratch_bytes=64 * MB,
    )
    lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
    lake.sql("CREATE TOPIC worker_events (id BIGINT, name STRING)")
    lake.topic("worker_events").append([{"id": n, "name": f"n{n}"} for n in range(3)])
    service = Service(lake, port=0)
    with httpx.Client(base_url=service.start(), timeout=600, trust_env=False) as http:
        yield Served(lake, http)
    service.stop()
    worker = lake._opened_worker
    lake.close()
    assert worker is not None and worker.pid is not None and not members(worker.pid)


def test_a_query_runs_in_the_worker_as_it_would_in_the_service(served: Served, spark: Any) -> None:
    assert served.http.get("/ready").json()["query_worker"] in ("not started", "ready")
    answer = served.query("SELECT id, name FROM worker_events ORDER BY id").json()
    assert answer["rows"] == [[n, f"n{n}"] for n in range(3)]  # from the log's tail
    assert (answer["plan"]["engine"], answer["plan"]["reason"]) == ("spark", "asked for")
    assert answer["plan"]["scans"][0]["tail"] == [0, 3]
    assert served.http.get("/ready").json()["query_worker"] == "ready"
    jvm = spark.sparkContext._gateway.proc.pid
    assert jvm not in members(served.pid) and len(members(served.pid)) >= 2
    is_problem(served.query("SELECT nope FROM worker_events"), 400, "invalid_statement")
    is_problem(served.query("SELECT 1 / id FROM worker_events"), 400, "query_failed")
    is_problem(served.query("SELECT reflect('java.lang.Runtime', 'getRuntime')"), 403, "statement_not_allowed")
    assert served.lake.sql("EXPLAIN ANALYZE SELECT count(*) FROM worker_events", engine="spark").rows()[-1]["plan"]
    tail = served.lake.tail("worker_events", 0, where="levenshtein(name, 'n1') = 0", follow=False)
    assert [row["id"] for row in tail] == [1]  # the log's rows go to the worker with the query
    assert not served.restarts


def test_limits_hold_while_rows_are_written(served: Served) -> None:
    is_problem(served.query("SELECT id FROM range(2000000000)", max_rows=10), 413, "result_too_large")
    lines = served.http.post(
        "/api/v1/query",
        json={"sql": "SELECT repeat(id, 100) AS x FROM range(2000000000)", "engine": "spark", "max_rows": 20_000},
        headers={"Accept": "application/x-ndjson"},
    )
    assert lines.status_code == 413, lines.text
    assert (
        sum(batch.num_rows for batch in served.lake.sql("SELECT id FROM range(50000)", engine="spark").batches())
        == 50_000
    )
    assert not served.restarts


def test_an_ordinary_query_is_cancelled_without_a_restart(served: Served) -> None:
    before = served.pid
    id = served.begin(LONG)
    assert served.http.delete(f"/api/v1/query/{id}").status_code == 200
    until(lambda: not served.running)
    is_problem(served.read(id), 409, "query_cancelled")
    is_problem(served.query(LONG, timeout=0.5), 408, "query_timeout")
    assert (served.pid, served.restarts) == (before, {})


def test_stuck_queries_are_killed_at_their_deadline_and_neighbours_may_try_again(served: Served) -> None:
    neighbour = served.begin(LONG)
    with ThreadPoolExecutor(4) as pool:
        stuck = [pool.submit(served.query, STUCK, timeout=3) for _ in range(4)]
        until(lambda: served.running > 1 or all(each.done() for each in stuck))
        for text in TOO_LARGE:  # whoever else asks is answered meanwhile
            is_problem(served.query(text), 400, "invalid_statement")
        added = served.http.post("/api/v1/topics/worker_events/records", json=[{"id": 8, "name": "meanwhile"}])
        assert added.status_code in (200, 201), added.text
        assert served.http.get("/ready").status_code == 200
        outcomes = [each.result() for each in stuck]
    assert 408 in {each.status_code for each in outcomes}
    assert {each.json()["code"] for each in outcomes} <= {"query_timeout", "query_interrupted"}
    interrupted = served.read(neighbour)
    problem = is_problem(interrupted, 503, "query_interrupted")
    assert int(interrupted.headers["retry-after"]) == problem["retry_after"] > 0
    served.works()
    assert served.restarts.keys() == {"timeout"}  # more than once if a query waited for a slot in between
    assert 'headwater_query_worker_restarts_total{reason="timeout"}' in served.http.get("/metrics").text


def test_a_stuck_query_that_is_cancelled_is_killed(served: Served) -> None:
    id = served.begin(STUCK)
    time.sleep(1)  # let it reach the optimizer; cancelled earlier, it may stop by itself
    assert served.http.delete(f"/api/v1/query/{id}").status_code == 200
    is_problem(served.read(id), 409, "query_cancelled")
    served.works()
    assert served.restarts.get("cancelled") == 1


def test_huge_values_end_the_worker_and_nothing_else(served: Served, spark: Any) -> None:
    with ThreadPoolExecutor(len(HUGE)) as pool:
        answers = list(pool.map(served.query, HUGE))
    assert {each.json()["code"] for each in answers} <= {"query_failed", "query_interrupted"}, answers
    assert served.restarts["memory"] >= 1
    assert spark.range(3).count() == 3  # the pipeline's
    served.works()
    problem = is_problem(served.query(HUGE[0]), 400, "query_failed")  # alone, it is to blame
    assert "query_worker_memory" in problem["hint"]


def test_temporary_files_are_limited(served: Served) -> None:
    shuffle = "SELECT count(DISTINCT x) AS n FROM (SELECT id, uuid() AS x FROM range(200000000) DISTRIBUTE BY id)"
    problem = is_problem(served.query(shuffle), 413, "result_too_large")
    assert "query_max_scratch_bytes" in problem["hint"]
    assert served.restarts["scratch"] == 1
    served.works()


def test_a_worker_that_died_is_replaced_and_leaves_nothing(served: Served) -> None:
    served.works()
    group, scratch = served.pid, served.lake.paths.scratch
    folders = {each.name for each in scratch.glob(f"spark-*-{group}*")}
    assert folders
    running = served.begin(LONG)
    os.kill(group, signal.SIGTERM)  # the worker alone, not its JVM
    is_problem(served.read(running), 503, "query_interrupted")
    until(lambda: not members(group))
    until(lambda: not folders & {each.name for each in scratch.iterdir()})
    served.works()
    assert served.restarts["died"] == 1


def test_a_query_for_which_the_kernel_kills_the_jvm_is_not_to_be_run_again(served: Served) -> None:
    before = served.restarts.get("memory", 0)
    running = served.begin(LONG)
    (jvm,) = (pid for pid in members(served.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == "java")
    os.kill(jvm, signal.SIGKILL)  # as the kernel does when memory runs out
    problem = is_problem(served.read(running), 400, "query_failed")
    assert "query_worker_memory" in problem["hint"] and "retry_after" not in problem
    assert served.restarts["memory"] == before + 1


PARENT = """
import sys, time
from headwater.engine import Lake
lake = Lake.open(sys.argv[1], query_worker="always", query_worker_memory="512m")
lake.sql("SELECT 1", engine="spark").rows()
print(lake._opened_worker.pid, flush=True)
lake.sql(sys.argv[2], engine="spark").rows()
"""


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    Lake.init(tmp_path / "lake").close()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "lake"), STUCK], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert len(members(group)) >= 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not members(group))
