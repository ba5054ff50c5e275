"""Every kind of damage to every kind of file, in a real lake: each statement answers rightly or names the file, the
doctor does too, and other tables are not affected. Nothing but Headwater's own errors is accepted."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.errors import Corrupt, HeadwaterError
from headwater.storage.writer import local_path
from headwater.topics import ingest

pytestmark = pytest.mark.leaves_damage

COMMITS, ROWS = 3, 200
TOTAL = {"c": COMMITS * ROWS, "n": sum(range(COMMITS * ROWS))}
QUERY = "SELECT count(*) AS c, sum(n) AS n FROM t"


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lake with the topic `t` of three commits, and `o` beside it, which has records in the log, too."""
    folder = tmp_path_factory.mktemp("damage") / "lake"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "write_files", write_in_process)
        with opened(folder, init=True) as lake:
            lake.sql("CREATE TOPIC t (n BIGINT, s STRING)")
            lake.sql("CREATE TOPIC o (n BIGINT)")
            for commit in range(COMMITS):
                rows = range(commit * ROWS, (commit + 1) * ROWS)
                lake.topic("t").append([{"n": n, "s": f"k{n % 7}"} for n in rows])
                lake.topic("o").append([{"n": n} for n in range(5)])
                lake.flush()
            lake.topic("o").append([{"n": 5}])
        yield folder


def opened(folder: Path, *, init: bool = False) -> Lake:
    lake = Lake.init(folder) if init else Lake.open(folder)
    lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
    return lake


def truncate(body: bytes) -> bytes:
    return body[: len(body) // 2]


def cut(body: bytes) -> bytes:
    return body[:-1]


def empty(_: bytes) -> bytes:
    return b""


def garbage(body: bytes) -> bytes:
    return random.Random(7).randbytes(len(body))


def zeros(body: bytes) -> bytes:
    return bytes(len(body))


def flip(seed: int) -> Callable[[bytes], bytes]:
    def flipped(body: bytes) -> bytes:
        changed = bytearray(body)
        bit = random.Random(seed).randrange(len(body) * 8)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    flipped.__name__ = f"flip {seed}"
    return flipped


DAMAGES: list[Callable[[bytes], bytes] | None] = [None, truncate, cut, empty, garbage, zeros, *map(flip, range(4))]


def name_of(damage: Callable[[bytes], bytes] | None) -> str:
    return "delete" if damage is None else damage.__name__


def apply(path: Path, damage: Callable[[bytes], bytes] | None) -> None:
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))


def table_files(lake: Lake) -> dict[str, Path]:
    table = lake.topics.load("t").table
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    file = manifests[0].fetch_manifest_entry(table.io)[0].data_file
    found = (table.metadata_location, snapshot.manifest_list, manifests[0].manifest_path, file.file_path)
    return dict(zip(("metadata file", "manifest list", "manifest", "data file"), map(local_path, found), strict=True))


STATEMENTS: dict[str, Callable[[Lake], Any]] = {
    "query": lambda lake: lake.sql(QUERY).rows(),
    "skipping": lambda lake: lake.sql("SELECT n FROM t WHERE n = 3").rows(),
    "describe": lambda lake: lake.sql("DESCRIBE TOPIC t").rows(),
    "explain": lambda lake: lake.sql(f"EXPLAIN {QUERY}").rows(),
    "snapshots": lambda lake: lake.sql("SHOW SNAPSHOTS OF t").rows(),
    "append": lambda lake: lake.topic("t").append([{"n": 10**6, "s": "new"}]),
    "flush": lambda lake: lake.flush("t"),
    "flush all": lambda lake: lake.flush(),
    "maintain": lambda lake: lake.maintain("t", dry_run=True),
    "files": lambda lake: lake.sql("SHOW PARQUET STATS OF t").rows(),
}


@pytest.mark.parametrize("kind", ["metadata file", "manifest list", "manifest", "data file"])
@pytest.mark.parametrize("damage", DAMAGES, ids=name_of)
def test_each_statement_answers_rightly_or_names_the_file(
    folder: Path, tmp_path: Path, kind: str, damage: Callable[[bytes], bytes] | None
) -> None:
    with opened(folder) as lake:
        path = table_files(lake)[kind]
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    try:
        apply(path, damage)
        told = 0
        for label, statement in STATEMENTS.items():
            with opened(folder) as lake:  # nothing is remembered
                try:
                    found = statement(lake)
                except HeadwaterError as error:
                    told += 1
                    assert isinstance(error, Corrupt), (label, error)
                    assert str(path) in str(error), (label, error)
                    assert error.hint, (label, error)
                else:
                    if label == "query":
                        assert found == [TOTAL], "a wrong answer"
                    if label == "maintain":
                        wrong = [step["error"] for step in found if step["outcome"] == "failed"]
                        told += len(wrong)
                        assert all(str(path) in each for each in wrong), wrong
        with opened(folder) as lake:
            listed = {row["topic"]: row for row in lake.sql("SHOW TOPICS").rows()}
            assert listed["o"]["records"] == 16 and listed["o"]["damage"] is None
            assert listed["t"]["damage"] is None or str(path) in listed["t"]["damage"]
            assert lake.sql("SELECT count(*) AS c FROM o").rows() == [{"c": 16}]
        checks = list(check_lake(folder, deep=True))
        assert all(check.action for check in checks if check.status != "ok"), checks
        wrong = [check for check in checks if check.status == "fail"]
        if told:
            assert any(str(path) in check.message for check in wrong), wrong
        elif name_of(damage).startswith("flip"):
            return  # a bit that nobody reads, or that changes nothing
        assert wrong, "the doctor must see it"
        with opened(folder) as lake:
            assert lake.sql("DROP TOPIC t").info is not None
            assert [row["topic"] for row in lake.sql("SHOW TOPICS").rows()] == ["o"]
            assert lake.sql("SELECT count(*) AS c FROM o").rows() == [{"c": 16}]
        assert not [check for check in check_lake(folder, deep=True) if check.status != "ok"]
    finally:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)


def zero_page(number: int, size: int) -> Callable[[bytes], bytes]:
    def zeroed(body: bytes) -> bytes:
        start = min(number, len(body) // size - 1) * size
        return body[:start] + bytes(size) + body[start + size :]

    zeroed.__name__ = f"zero page {number}"
    return zeroed


DATABASE_DAMAGES = [truncate, garbage, *(zero_page(number, 4096) for number in range(8))]


@pytest.mark.parametrize("name", ["catalog.db", "state.db"])
@pytest.mark.parametrize("damage", DATABASE_DAMAGES, ids=name_of)
def test_a_damaged_database_is_named(folder: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = folder / name
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    statements = {**STATEMENTS, "show": lambda lake: lake.sql("SHOW TOPICS").rows()}
    try:
        for label, statement in statements.items():
            for beside in folder.glob(f"{name}-*"):
                beside.unlink()
            path.write_bytes(damage((kept / name).read_bytes()))
            try:
                with opened(folder) as lake:
                    found = statement(lake)
            except HeadwaterError as error:
                assert error.hint, (label, error)
                assert name in str(error) or "log" in error.message, (label, error)
            else:
                if label == "query":
                    assert found == [TOTAL], "a wrong answer"
        path.write_bytes(damage((kept / name).read_bytes()))
        wrong = [check for check in check_lake(folder, deep=True) if check.status == "fail"]
        assert any(name in check.message for check in wrong), wrong
        assert all(check.action for check in wrong)
    finally:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
