"""A damaged file is told once and passed over until it changes; the files beside it are rewritten."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.engine.care_loop import CareLoop
from headwater.errors import Corrupt
from headwater.sql.statements import Maintain, Optimize
from headwater.state.care import Step
from headwater.storage.maintenance import compact_spark
from headwater.storage.maintenance.compact import Means, Outcome, Rewrite, run_rewrites
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import Target, local_path
from headwater.topics import ingest

pytestmark = pytest.mark.leaves_damage

INTERVAL = 600.0


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    def write(_: object, log_path: Path, into: Target, entries: Sequence[Any]) -> list[Any]:
        return ingest.write_entries(log_path, into, entries)

    def job(_: object, rewrites: Sequence[Rewrite], into: Target, memory: int, *rest: Any) -> list[Outcome]:
        return list(run_rewrites(rewrites, into, Means(memory, tmp_path, 2), 0))

    monkeypatch.setattr(ingest, "write_files", write)
    monkeypatch.setattr(compact_spark, "run_job", job)
    with Lake.init(tmp_path / "lake") as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.care.steps._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.sql("CREATE TOPIC t (n BIGINT) WITH (compact_after = '1 second')")
        for n in range(6):
            produce(lake, n)
        yield lake


def produce(lake: Lake, n: int) -> None:
    lake.topic("t").append([{"n": n}])
    lake.flush()


def files(lake: Lake) -> list[Path]:
    return [local_path(task.file.file_path) for task in lake.topics.load("t").table.scan().plan_files()]


def flip(path: Path) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    return whole


def compacted(lake: Lake, loop: CareLoop) -> list[Step]:
    return [step for step in loop.tick() if step.step == "compact"]


def test_it_is_told_once_and_the_rest_goes_on(lake: Lake) -> None:
    first, second = files(lake)[1], files(lake)[4]
    whole = flip(first), flip(second)
    moment = [time.time() + 60]
    lake.care.now = lambda: moment[0]
    loop = CareLoop(lake.care, interval=INTERVAL)
    (told,) = compacted(lake, loop)
    assert (told.outcome, told.code) == ("failed", "corrupt") and "is damaged" in str(told.error)
    assert len(files(lake)) == 3 and {first, second} < set(files(lake)), "the other four are one file"

    for n in range(6, 10):
        produce(lake, n)
    moment[0] += 2 * INTERVAL + 1
    (done,) = compacted(lake, loop)
    assert done.outcome == "done" and str(done.reason).endswith(", 2 damaged files passed over")
    assert len(files(lake)) == 3 and {first, second} < set(files(lake))
    assert compacted(lake, loop) == []

    (answer,) = lake.care.run(Maintain("t", ("compact",))).info["steps"]
    assert answer["outcome"] == "nothing" and answer["reason"].endswith("2 damaged files passed over")
    assert any(
        str(first) in note and str(second) in note for note in lake.care.run(Maintain("t", ("compact",))).notices
    )
    check = next(each for each in check_lake(lake.paths.root) if each.name == "damage in t")
    assert check.status == "fail" and "compaction passes over 2 damaged files" in check.message

    first.write_bytes(whole[0])
    (done,) = compacted(lake, loop)
    assert done.outcome == "done" and len(files(lake)) == 2 and second in files(lake)
    second.write_bytes(whole[1])
    (done,) = compacted(lake, loop)
    assert done.outcome == "done" and len(files(lake)) == 1
    assert not [each for each in check_lake(lake.paths.root) if each.name == "damage in t"]
    rows = lake.sql("SELECT n FROM t ORDER BY n", engine="duckdb").rows()
    assert [row["n"] for row in rows] == list(range(10))


def test_who_asks_by_name_is_told_again(lake: Lake) -> None:
    flip(files(lake)[0])
    for _ in range(2):
        with pytest.raises(Corrupt, match="is damaged"):
            lake.care.run(Optimize("t"))
        assert len(files(lake)) == 2


def test_a_file_without_checksums_that_cannot_be_decoded(lake: Lake) -> None:
    topic = lake.topics.load("t")
    known = files(lake)
    rows = pa.Table.from_pylist(
        [{"n": 9, "_offset": 9, "_timestamp": datetime(2026, 1, 1, tzinfo=UTC)}], schema=arrow_schema(topic.schema)
    )
    lake.topics.tables.load_for_commit(topic.table_name).append(rows)  # as another tool would write it
    (victim,) = set(files(lake)) - set(known)
    body = bytearray(victim.read_bytes())
    body[body.index(b"\x28\xb5\x2f\xfd")] ^= 1  # how Zstandard begins
    victim.write_bytes(body)
    lake.care.now = lambda: time.time() + 60
    (step,) = lake.care.run(Maintain("t", ("compact",))).info["steps"]
    assert (step["outcome"], step["code"]) == ("failed", "corrupt") and "cannot be decoded" in step["error"]
    assert len(files(lake)) == 2 and victim in files(lake)
