"""The session, its workers, Arrow in and out, and cancellation, all against the real Spark.

What ends JVMs or watches the terminal runs in a process of its own, so that the shared session lives on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import QueryCancelled, QueryFailed, ResultTooLarge, Unavailable
from headwater.spark.scratch import sweep

pytestmark = pytest.mark.spark

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from headwater.spark.session import SparkEngine, SparkSettings, start

def engine(folder, jars, **more):
    settings = SparkSettings(
        warehouse=str(folder / "data"), scratch=folder / "scratch", master="local[2]", driver_memory="512m",
        catalog_uri=f"jdbc:sqlite:file:{folder}/catalog.db?busy_timeout=30000&journal_mode=WAL", **more)
    return SparkEngine(lambda: start(settings, jars))

folder, jars = Path(sys.argv[1]), tuple(map(Path, sys.argv[2].split(":")))
"""


def _run(body: str, folder: Path, jars: tuple[Path, ...], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM + body, str(folder), ":".join(map(str, jars))]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_life_of_starts_deaths_and_stops(tmp_path: Path, spark_jars: tuple[Path, ...]) -> None:
    """Quiet start in a folder with an awkward name; restart after kill -9; stop; start again; prompt exit."""
    folder = tmp_path / 'it\'s a "lake" $x'
    folder.mkdir()
    ran = _run(
        """
held = engine(folder, jars)
handler = signal.getsignal(signal.SIGINT)
first = held.session
assert signal.getsignal(signal.SIGINT) is handler, "SIGINT handler replaced"
first.sql("CREATE NAMESPACE lake.topics")
first.sql("CREATE TABLE lake.topics.t AS SELECT 1 AS a")
os.kill(first.sparkContext._gateway.proc.pid, signal.SIGKILL)
time.sleep(0.5)
second = held.session
assert second is not first
assert second.table("lake.topics.t").count() == 1
assert len(list((folder / "scratch").glob("spark-*"))) == 1, "the dead JVM's folder is left"
second.stop()  # by other code
third = held.session
assert third.range(3).count() == 3
pid = third.sparkContext._gateway.proc.pid
held.stop()
held.stop()
assert list((folder / "scratch").iterdir()) == []
print("pid", pid)
""",
        folder,
        spark_jars,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    assert not _running(int(ran.stdout.split()[-1]))


@pytest.mark.slow
def test_ctrl_c_reaches_python_and_not_the_jvm(tmp_path: Path, spark_jars: tuple[Path, ...]) -> None:
    """SIGINT to the whole process group, as a terminal sends it, with standard input closed."""
    body = """
held = engine(folder, jars)
jobs = held.session.sparkContext
try:
    print("ready", flush=True)
    time.sleep(120)
except KeyboardInterrupt:
    print(held.session.range(7).count(), held.session.sparkContext is jobs, flush=True)
    held.stop()
"""
    command = [sys.executable, "-c", PROGRAM + body, str(tmp_path), ":".join(map(str, spark_jars))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: os.close(0),
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (out, err, process.returncode) == ("7 True\n", "", 0)


@pytest.mark.slow
def test_a_killed_process_takes_its_jvm_along(tmp_path: Path, spark_jars: tuple[Path, ...]) -> None:
    ran = _run(
        "print(engine(folder, jars).session.sparkContext._gateway.proc.pid, flush=True); os.kill(os.getpid(), 9)",
        tmp_path,
        spark_jars,
    )
    pid = int(ran.stdout)
    deadline = time.monotonic() + 30
    while _running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _running(pid)
    assert len(sweep(tmp_path / "scratch")) == 1


@pytest.mark.slow
def test_a_jvm_that_cannot_start_says_why(tmp_path: Path, spark_jars: tuple[Path, ...]) -> None:
    ran = _run(
        """
from headwater.errors import Unavailable
held = engine(folder, jars, extra={"spark.driver.memory": "1x"})
try:
    held.session
except Unavailable as error:
    print(error)
assert held.state == "not started"
assert list((folder / "scratch").iterdir()) == []
""",
        tmp_path,
        spark_jars,
    )
    assert ran.stdout.startswith("spark did not start (")
    assert ran.returncode == 0, ran.stderr


def test_one_process_holds_one_context(spark: Any, tmp_path: Path, spark_jars: tuple[Path, ...]) -> None:
    from headwater.spark.session import SparkSettings, start

    settings = SparkSettings(warehouse=str(tmp_path), catalog_uri="jdbc:sqlite::memory:", scratch=tmp_path / "scratch")
    with pytest.raises(Unavailable, match="already running"):
        start(settings, spark_jars)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert spark.range(2).count() == 2


def test_settings_took_effect(spark: Any, spark_lake: Path) -> None:
    from pyspark import __version__

    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.sparkContext.version == __version__
    temporary = spark.sparkContext._jvm.System.getProperty("java.io.tmpdir")
    assert temporary.startswith(str(spark_lake / "scratch"))
    assert spark._jsc.hadoopConfiguration().get("parquet.page.verify-checksum.enabled") == "true"


def test_workers_run_this_python_without_archives_on_their_path(spark: Any) -> None:
    def look(rows: Any) -> Any:
        archives = [entry for entry in sys.path if entry.endswith((".jar", "pyspark.zip"))]
        yield sys.executable, archives, "pyarrow" in sys.modules

    seen = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert seen == [(sys.executable, [], True)]


def _uuids(count: int) -> pa.Array:
    values = [uuid.UUID(int=n).bytes if n % 5 else None for n in range(count)]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


def _table(rows: int) -> pa.Table:
    odd, offsets = pa.array([n % 2 == 1 for n in range(rows)], pa.bool_()), pa.array(range(rows + 1), pa.int32())
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "flag": pa.array([n % 3 == 0 if n % 7 else None for n in range(rows)]),
            "ratio": pa.array([n / 3 for n in range(rows)], pa.float64()),
            "total": pa.array([Decimal(n).scaleb(-2) for n in range(rows)], pa.decimal128(12, 2)),
            "day": pa.array(range(rows), pa.int32()).cast(pa.date32()),
            "at": pa.array(range(rows), pa.timestamp("us")),
            "utc": pa.array(range(rows), pa.timestamp("us", "UTC")),
            "name": pa.array([f"ü{n}" if n % 4 else None for n in range(rows)]),
            "raw": pa.array([bytes([n % 256]) for n in range(rows)]),
            "fixed": pa.array([n.to_bytes(4, "big") for n in range(rows)], pa.binary(4)),
            "key": _uuids(rows),
            "tags": pa.array([["a", None] if n % 2 else [] for n in range(rows)]),
            "keys": pa.ListArray.from_arrays(offsets, _uuids(rows), mask=odd),
            "place": pa.StructArray.from_arrays(
                [_uuids(rows), pa.array([b"xy"] * rows, pa.binary(2))], names=["u", "f"], mask=odd
            ),
            "map": pa.MapArray.from_arrays(offsets, pa.array(["k"] * rows), _uuids(rows), mask=odd),
        }
    )


def _plain(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return str(value)
        case list():
            return [_plain(each) for each in value]
        case tuple():
            return tuple(_plain(each) for each in value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case _:
            return value


@pytest.mark.parametrize("limit", [0, 10**9], ids=["parquet", "in memory"])
@pytest.mark.parametrize(
    "table", [_table(1000), _table(50).slice(3, 20), _table(1).slice(1)], ids=["many", "slice", "none"]
)
def test_a_table_keeps_its_values_in_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: pa.Table, limit: int
) -> None:
    from headwater.spark import arrow_spark

    monkeypatch.setattr(arrow_spark, "IN_MEMORY", limit - 1)
    frame = arrow_spark.to_spark(spark, table, tmp_path)
    assert dict(frame.dtypes)["at"] == "timestamp_ntz"
    assert dict(frame.dtypes)["key"] == "string"
    assert dict(frame.dtypes)["place"] == "struct<u:string,f:binary>"
    expected = [_plain(row) for row in table.to_pylist()]
    assert arrow_spark.collect(frame.orderBy("id")).to_pylist() == expected


def test_collect_has_a_limit(spark: Any) -> None:
    from headwater.spark.arrow_spark import collect

    assert collect(spark.range(10), 10).num_rows == 10
    assert collect(spark.sql("SELECT 1 AS a, 2 AS a")).column_names == ["a", "a"]
    with pytest.raises(ResultTooLarge, match="more than 9 rows"):
        collect(spark.range(10), 9)
    with pytest.raises(QueryFailed, match="Division by zero"):
        collect(spark.sql("SELECT 1 / id FROM range(3)"))


def test_a_stream_keeps_the_order_and_cleans_up(spark: Any) -> None:
    from headwater.spark.arrow_spark import result_schema, stream

    scratch = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    frame = spark.range(0, 200_000, 1, 6).selectExpr("id", "id % 7 AS k").orderBy("k", "id")
    seen = pa.Table.from_batches(stream(frame), result_schema(frame))
    assert seen.equals(seen.sort_by([("k", "ascending"), ("id", "ascending")]))
    assert seen.num_rows == 200_000
    early = stream(frame)
    next(early)
    assert list(scratch.glob("query-*"))
    early.close()
    assert not list(scratch.glob("query-*"))
    assert list(stream(spark.range(0))) == []
    with pytest.raises(QueryFailed, match="Division by zero"):
        list(stream(spark.sql("SELECT 1 / (id - 5) FROM range(9)")))


@pytest.mark.slow
def test_a_stream_is_larger_than_the_driver(spark: Any) -> None:
    """Two partitions of 0.8 GB each, through a JVM of 1 GB; a partition that went to the driver would end it."""
    from headwater.spark.arrow_spark import stream

    rows = sum(batch.num_rows for batch in stream(spark.range(0, 100_000_000, 1, 2).selectExpr("id", "id AS again")))
    assert rows == 100_000_000


@pytest.mark.parametrize("after", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("how", ["collect", "stream"])
def test_a_query_is_cancelled_from_another_thread(spark: Any, how: str, after: float) -> None:
    from headwater.spark.arrow_spark import collect, stream
    from headwater.spark.jobs import RunningQuery

    query = RunningQuery(spark, uuid.uuid4().hex)
    outcome = list[Any]()

    def work() -> None:
        try:
            with query:
                frame = spark.sql("SELECT count(a.id * b.id) FROM range(200000) a JOIN range(200000) b ON a.id != b.id")
                outcome.append(collect(frame) if how == "collect" else list(stream(frame)))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(after)
    query.cancel()
    thread.join(60)
    assert [type(each) for each in outcome] == [QueryCancelled]
    assert query.cancelled
    assert collect(spark.range(3)).num_rows == 3


def test_a_query_cancelled_before_it_began_does_not_begin(spark: Any) -> None:
    from headwater.spark.jobs import RunningQuery

    query = RunningQuery(spark, uuid.uuid4().hex)
    query.cancel()
    with pytest.raises(QueryCancelled), query:
        pytest.fail("it began")
