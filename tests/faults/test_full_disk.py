"""A disk that is full, and one that cannot be written: real file systems, mounted for the test."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api.serve import Service
from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.errors import StorageBusy
from headwater.topics import ingest

SIZE = 48 * 1024**2
ROWS = 5000
MANY = [{"n": n, "s": random.Random(n).randbytes(2000).hex()} for n in range(2000)]
"""More than the log has room for before its file has to grow."""


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


def mount(*command: str) -> None:
    done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def lake(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(disk / "lake") as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.sql("CREATE TOPIC t (n BIGINT, s STRING)")
        lake.topic("t").append([{"n": n, "s": f"{n:0200}"} for n in range(ROWS)])
        lake.flush()
        lake.topic("t").append([{"n": ROWS, "s": "in the log"}])
        yield lake


def fill(disk: Path) -> Path:
    """A file that takes all the space there is."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1024**2, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def query(http: httpx.Client, sql: str) -> httpx.Response:
    return http.post("/api/v1/query", json={"sql": sql})


def test_a_full_disk_answers_small_queries_and_tells_the_reason_of_all_else(lake: Lake, disk: Path) -> None:
    service = Service(lake, port=0)
    try:
        with httpx.Client(base_url=service.start(), timeout=60, trust_env=False) as http:
            assert http.get("/ready").json() == {
                "status": "ready", "catalog": "ok", "log": "ok", "disk": "ok", "spark": "not started",
                    "query_worker": "off",
            }  # fmt: skip
            filler = fill(disk)
            ready = http.get("/ready")
            assert ready.status_code == 503
            assert "is full" in ready.json()["disk"]
            assert http.get("/health").status_code == 200
            for sql, rows in (
                ("SELECT count(*) AS c FROM t", [[ROWS + 1]]),
                ("SELECT sum(n) AS n FROM t WHERE n < 3", [[3]]),
                ("SELECT s FROM t WHERE n = 5000", [["in the log"]]),
            ):
                found = query(http, sql)
                assert found.status_code == 200, found.text
                assert found.json()["rows"] == rows
            assert http.get("/api/v1/topics").status_code == 200
            large = query(http, "SELECT * FROM t")
            produced = http.post(
                "/api/v1/topics/t/records",
                content="".join(json.dumps(row) + "\n" for row in MANY),
                headers={"Content-Type": "application/x-ndjson"},
            )
            created = http.post("/api/v1/topics", json={"name": "u", "columns": [{"name": "n", "type": "BIGINT"}]})
            for refused in (large, produced, created):
                assert refused.status_code == 503, refused.text
                assert refused.json()["code"] == "storage_busy"
                assert "is full" in refused.json()["title"]
                assert int(refused.headers["Retry-After"]) > 0
            filler.unlink()
            assert http.get("/ready").status_code == 200
            assert query(http, "SELECT * FROM t").json()["row_count"] == ROWS + 1
            assert query(http, "SELECT count(*) AS c FROM t").json()["rows"] == [[ROWS + 1]], "nothing came or went"
            assert lake.topic("t").append([{"n": ROWS + 1, "s": "again"}]).rows == 1
            lake.flush()
            assert query(http, "SELECT count(*) AS c FROM t").json()["rows"] == [[ROWS + 2]]
    finally:
        service.stop()


def test_what_a_full_disk_refuses_in_process_is_storage_busy(lake: Lake, disk: Path) -> None:
    filler = fill(disk)
    refused = [
        lambda: lake.topic("t").append(MANY),
        lambda: lake.flush("t"),
        lambda: lake.sql("CREATE TOPIC u (n BIGINT)"),
        lambda: lake.sql("ALTER TOPIC t ADD COLUMN more INT"),
    ]
    for attempt in refused:
        with pytest.raises(StorageBusy, match="is full"):
            attempt()
    assert all(step["outcome"] != "done" for step in lake.maintain("t", only=("compact",)))
    filler.unlink()
    for attempt in refused:
        attempt()
    assert lake.sql("SELECT count(*) AS c FROM t").rows() == [{"c": ROWS + 1 + len(MANY)}]


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake that this process may read and not write: mounted so for root, by its permissions for anybody else."""
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "lake"
    with Lake.init(folder) as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": n} for n in range(10)])
        lake.flush()
        lake.topic("t").append([{"n": 10}])
    parts = [folder, *folder.rglob("*")]
    if os.geteuid() == 0:
        mount("--bind", str(folder), str(folder))
        mount("-o", "remount,ro,bind", str(folder))
    else:
        for part in parts:
            part.chmod(0o555 if part.is_dir() else 0o444)
    yield folder
    if os.geteuid() == 0:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    else:
        for part in parts:
            part.chmod(0o755)


def test_a_lake_that_cannot_be_written_is_queried(read_only: Path) -> None:
    before = sorted(path for path in read_only.rglob("*"))
    with Lake.open(read_only) as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        assert lake.sql("SELECT count(*) AS c, max(n) AS n FROM t").rows() == [{"c": 11, "n": 10}]
        assert lake.sql("SELECT n FROM t WHERE n > 8", timeout=10**6).rows() == [{"n": 9}, {"n": 10}]
        assert lake.sql("SHOW TOPICS").rows()[0]["records"] == 11
        for text in ("DESCRIBE TOPIC t", "SHOW SNAPSHOTS OF t", "EXPLAIN SELECT * FROM t", "SHOW PARQUET STATS OF t"):
            assert lake.sql(text).rows()
        for text in (
            "SHOW MATERIALIZED VIEWS",
            "SHOW REFRESHES",
            "SHOW STREAMS",
            "SHOW STREAM STATUS",
            "SHOW MAINTENANCE",
        ):
            assert lake.sql(text).rows() == []
        for change in (
            lambda: lake.topic("t").append([{"n": 11}]),
            lambda: lake.flush(),
            lambda: lake.sql("CREATE TOPIC u (n BIGINT)"),
            lambda: lake.sql("ALTER TOPIC t ADD COLUMN more INT"),
            lambda: lake.sql("DROP TOPIC t"),
        ):
            with pytest.raises(StorageBusy, match=r"cannot be (written|accessed)") as refused:
                change()
            assert refused.value.hint
        assert all(step["outcome"] != "done" for step in lake.maintain())
        assert lake.sql("SELECT count(*) AS c FROM t").rows() == [{"c": 11}]
    assert sorted(path for path in read_only.rglob("*")) == before
    assert {check.status for check in check_lake(read_only, deep=True)} == {"ok"}
