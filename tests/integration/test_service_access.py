"""A running service: nobody else reads its files, and nothing but loopback reaches its ports."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.client import RemoteLake

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _listening(pid: int) -> set[tuple[str, int]]:
    spec = importlib.util.spec_from_file_location("listening", Path(__file__).parent.parent / "listening.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: set[tuple[str, int]] = module.listening(pid)
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, RemoteLake]]:
    """`headwater serve` on a lake, started with the umask that most machines have."""
    lake = tmp_path_factory.mktemp("service") / "lake"
    command = [sys.executable, "-m", "headwater", "-C", str(lake)]
    environment = {**os.environ, "HEADWATER_SPARK_MEMORY": "1g", "HEADWATER_INGEST_POLL": "0.1"}
    subprocess.run([*command, "init", str(lake)], check=True, umask=0o022, env=environment, capture_output=True)
    process = subprocess.Popen(
        [*command, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, umask=0o022, env=environment, text=True
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with RemoteLake(url) as remote:
            yield lake, process.pid, remote
    finally:
        process.terminate()
        process.wait(120)


def test_files_are_their_owners_and_ports_are_on_loopback(service: tuple[Path, int, RemoteLake]) -> None:
    folder, pid, remote = service
    remote.sql(
        "CREATE STREAM t (n BIGINT, s STRING, at TIMESTAMP) WITH (timestamp_field = 'at', compression = 'brotli')"
    )
    rows = [{"n": n, "s": str(n), "at": "2026-01-01T00:00:00Z"} for n in range(1000)]
    remote.topic("t").append(rows)
    remote.flush()
    remote.sql("CREATE MATERIALIZED VIEW v AS SELECT n % 3 AS k, count(*) AS c FROM t GROUP BY n % 3")
    remote.sql(
        "CREATE MATERIALIZED VIEW w AS SELECT n % 2 AS k, count(*) AS c FROM t GROUP BY n % 2 "
        "WITH (refresh = 'continuous')"
    )
    remote.topic("t").append(rows)
    remote.flush()
    remote.sql("REFRESH MATERIALIZED VIEW v")
    remote.sql("DELETE FROM t WHERE n = 7")
    answer = remote.sql("SELECT count(*) AS c, sum(n) AS s FROM t", engine="spark").rows()
    assert answer == [{"c": 1998, "s": 2 * (499500 - 7)}]
    deadline = time.monotonic() + 120
    while not list((folder / "streams").rglob("*")) and time.monotonic() < deadline:
        time.sleep(0.2)

    open_files, seen = [], 0
    for path in (folder, *folder.rglob("*")):
        try:
            found = path.lstat()
        except FileNotFoundError:  # a temporary file
            continue
        seen += 1
        if found.st_mode & 0o077 and not stat.S_ISLNK(found.st_mode) and path != folder:
            open_files.append(f"{stat.filemode(found.st_mode)} {path.relative_to(folder)}")
    assert open_files == []
    assert seen > 30
    written = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert {".db", ".parquet", ".json", ".avro", ".toml", ".log"} <= written  # of Python, its workers and the JVM

    ports = _listening(pid)
    assert len(ports) >= 3  # HTTP, py4j's gateway, Spark's driver and its blocks
    assert [each for each in ports if not ipaddress.ip_address(each[0]).is_loopback] == []


def test_a_port_of_spark_answers_nobody_without_the_secret(spark: Any) -> None:
    conf = spark.sparkContext.getConf()
    assert (conf.get("spark.authenticate"), conf.get("spark.network.crypto.enabled")) == ("true", "true")
    gateway = spark.sparkContext._gateway
    assert len(gateway.gateway_parameters.auth_token) >= 32
    with socket.create_connection(("127.0.0.1", gateway.gateway_parameters.port), 30) as stranger:
        stranger.sendall(b"c\nt\ncurrentTimeMillis\ne\n")
        assert not stranger.recv(1024).startswith(b"!y")  # py4j's answer to a call that was made
