"""A lake on a standalone cluster: executors are processes of their own, with their own class path and Python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import json, os, sys
import headwater
from headwater.errors import HeadwaterError

sys.path.insert(0, sys.argv[2])
from listening import listening

out = {}
try:
    with headwater.init(sys.argv[1], maintenance=False, spark_memory="1g") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT, s STRING) WITH (compression = 'brotli')")
        lake.topic("t").append([{"n": n, "s": "x" * (n % 50)} for n in range(3000)])
        lake.flush()
        read = "SELECT count(*) AS c, sum(n) AS s, max(length(s)) AS m FROM t"
        out["query"] = lake.sql(read, engine="spark").rows()
        lake.sql("CREATE MATERIALIZED VIEW v AS SELECT n % 3 AS k, count(*) AS c FROM t GROUP BY n % 3")
        lake.topic("t").append([{"n": 0, "s": "y"}])
        lake.flush()
        lake.sql("REFRESH MATERIALIZED VIEW v")
        out["view"] = lake.sql("SELECT * FROM v ORDER BY k", engine="spark").rows()
        out["query_worker"] = lake.query_worker_state
        out["executors"] = lake.spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        out["addresses"] = sorted({address for address, _ in listening(os.getpid())})
        out["modes"] = sorted({oct(p.stat().st_mode & 0o777) for p in lake.paths.warehouse.rglob("*.parquet")})
except HeadwaterError as error:
    out["error"] = [type(error).__name__, error.message, error.detail, error.hint]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def start_cluster() -> Any:
    spec = importlib.util.spec_from_file_location("spark_cluster", Path(__file__).parent.parent / "spark_cluster.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.cluster


@pytest.fixture(scope="module")
def master(start_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), secret="secret-of-the-test") as url:
        yield url


def run(lake: Path, master: str, **environment: str) -> tuple[dict[str, Any], str]:
    """What the program printed, and what it wrote to stderr."""
    secret = {"CLUSTER_SECRET": "secret-of-the-test", "HEADWATER_SPARK_SECRET": "env:CLUSTER_SECRET"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(lake), str(Path(__file__).parent.parent)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**inherited, **secret, "HEADWATER_SPARK_MASTER": master, **environment},
    )
    assert ran.stdout, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found, ran.stderr


def test_ingest_queries_and_refreshes_on_executors(master: str, tmp_path: Path) -> None:
    # The cluster has two cores and 1 GB: without the limits, the first application would have all of them.
    limits = {"spark.cores.max": "1", "spark.executor.memory": "512m"}
    found, _ = run(
        tmp_path / "lake",
        master,
        HEADWATER_SPARK_CONF=json.dumps(limits),
        HEADWATER_QUERY_WORKER="always",
        HEADWATER_QUERY_WORKER_MEMORY="512m",
    )
    assert found == {
        "query": [{"c": 3000, "s": 4_498_500, "m": 49}],  # through Brotli, decompressed in an executor
        "view": [{"k": 0, "c": 1001}, {"k": 1, "c": 1000}, {"k": 2, "c": 1000}],
        "query_worker": "ready",
        "executors": 1,
        "addresses": ["127.0.0.1"],
        "modes": ["0o600"],
    }


def test_executors_without_headwater(master: str, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    venv.create(bare, symlinks=True)
    found, said = run(tmp_path / "lake", master, PYSPARK_PYTHON=str(bare / "bin" / "python"))
    kind, message, detail, hint = found["error"]
    assert (kind, message) == ("Unavailable", "spark cluster cannot run Headwater's tasks")
    assert detail == f'The executors\' Python ("{bare}/bin/python") has no module "headwater".'
    assert "PYSPARK_PYTHON" in hint
    assert "Traceback" not in said


def test_a_cluster_that_does_not_know_the_secret(master: str, tmp_path: Path) -> None:
    found, said = run(tmp_path / "lake", master, CLUSTER_SECRET="another")
    assert found["error"][:2] == ["Unavailable", "spark did not start"]
    assert found["error"][2] not in ("", "None.") and "\n" not in found["error"][2]
    assert "another" not in json.dumps(found) and "Traceback" not in said


def test_a_master_that_is_not_there(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "lake", "spark://127.0.0.1:1")
    assert found["error"][:2] == ["Unavailable", 'spark master "spark://127.0.0.1:1" cannot be reached']
