"""The log's tail plus the table is everything that was acknowledged, in offset order, whatever happened in between.

Two lakes are open on one folder, as in two processes. Only Spark's part, running a task, is replaced in most runs.
"""

from __future__ import annotations

import datetime as dt
import random
import shutil
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.errors import IdempotencyMismatch, TopicNotFound
from headwater.serving.tail import read_at_once
from headwater.topics import ingest
from headwater.topics.log import Entry

Row = dict[str, Any]
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "i INT": st.integers(-(2**31), 2**31 - 1),
    "s STRING": st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    "f DOUBLE": st.floats(allow_nan=False),
    "d DECIMAL(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents).scaleb(-2)),
    "b BOOLEAN": st.booleans(),
    "day DATE": st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    "at TIMESTAMP": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC)),
    "local TIMESTAMP_NTZ": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),
    "raw BINARY": st.binary(max_size=4),
    "many ARRAY<INT>": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "place STRUCT<x: INT, y: STRING>": st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.just("ü")}),
}
PARTITIONINGS = ["", "PARTITIONED BY (bucket(2, n))", "PARTITIONED BY (n)", "PARTITIONED BY (truncate(4, n))"]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, st.SearchStrategy[Row]]:
    """The body of a CREATE TOPIC, and rows for it."""
    chosen = draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True, max_size=4))
    body = f"({', '.join(['n BIGINT NOT NULL', *chosen])}) {draw(st.sampled_from(PARTITIONINGS))}"
    fields = {column.split()[0]: st.none() | COLUMNS[column] for column in chosen}
    return body, st.fixed_dictionaries({"n": st.integers(-5, 5), **fields})


class World:
    """A lake opened twice, and what it acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        Lake.init(folder).close()
        self.lakes = [self.opened(), self.opened()]
        self.acknowledged: list[Row] = []
        self.sent: list[tuple[int, list[Row], Any]] = []
        self.sequence = 0

    def opened(self) -> Lake:
        return Lake.open(self.folder)

    def create(self, at: int, body: str) -> None:
        self.lakes[at].sql(f"CREATE TOPIC t {body}")
        self.acknowledged, self.sent = [], []

    def append(self, at: int, rows: list[Row]) -> None:
        self.sequence += 1
        ack = self.lakes[at].topic("t").append(rows, producer="p", sequence=self.sequence)
        assert (ack.offsets.start, ack.rows, ack.repeated) == (len(self.acknowledged), len(rows), False)
        self.acknowledged += rows
        self.sent.append((self.sequence, rows, ack))

    def retry(self, at: int, which: int) -> None:
        if self.sent:
            sequence, rows, ack = self.sent[which % len(self.sent)]
            again = self.lakes[at].topic("t").append(rows, producer="p", sequence=sequence)
            assert again.repeated
            assert again.offsets == ack.offsets
            with pytest.raises(IdempotencyMismatch):
                self.lakes[at].topic("t").append([*rows, *rows], producer="p", sequence=sequence)

    def flush(self, at: int) -> None:
        done = self.lakes[at].flush("t")
        assert all(each.files >= 1 for each in done)
        topic = self.lakes[at].topics.load("t")
        assert topic.committed == len(self.acknowledged)
        assert self.lakes[at].log.stats(ingest.log_topic(topic)).bytes == 0

    def reopen(self, at: int) -> None:
        self.lakes[at].close()
        self.lakes[at] = self.opened()

    def drop(self, at: int) -> None:
        self.lakes[at].sql("DROP TOPIC t")
        for lake in self.lakes:
            with pytest.raises(TopicNotFound):
                read_at_once(lake.topics, lake.log, "t")

    def check(self) -> None:
        """Both lakes answer with everything acknowledged; a reader of committed data with a prefix of it."""
        for lake in self.lakes:
            at = read_at_once(lake.topics, lake.log, "t")
            table = at.topic.table.scan().to_arrow().sort_by("_offset")
            rows = table.to_pylist() + at.rows.to_pylist()
            assert [row.pop("_offset") for row in rows] == list(range(len(self.acknowledged)))
            stamps = [row.pop("_timestamp") for row in rows]
            assert stamps == sorted(stamps)
            assert rows == self.acknowledged
            assert at.offsets.start == at.topic.committed == table.num_rows
            self.check_queries(lake, at.topic.committed)

    def check_queries(self, lake: Lake, committed: int) -> None:
        numbers = [row["n"] for row in self.acknowledged]
        query = "SELECT n, _offset FROM t ORDER BY _offset"
        assert [row["n"] for row in lake.sql(query)] == numbers
        assert [row["_offset"] for row in lake.sql(query)] == list(range(len(numbers)))
        assert [row["n"] for row in lake.sql(query, tail=False)] == numbers[:committed]
        assert lake.sql("SELECT count(*) AS c, min(n) AS lo FROM t").rows() == [
            {"c": len(numbers), "lo": min(numbers, default=None)}
        ]

    def close(self) -> None:
        for lake in self.lakes:
            lake.close()


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[Entry]) -> list[DataFile]:
    return ingest.write_entries(log_path, into, entries)


class InProcess(World):
    """The same, without Spark."""

    def opened(self) -> Lake:
        lake = super().opened()
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        return lake


LAKES = st.integers(0, 1)


class TailAndTable(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ingest, "write_files", write_in_process)
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-"))
        self.world = InProcess(self.folder / "lake")

    @initialize(at=LAKES, shape=shapes())
    def create(self, at: int, shape: tuple[str, st.SearchStrategy[Row]]) -> None:
        self.world.create(at, shape[0])
        self.rows = st.lists(shape[1], min_size=1, max_size=4)

    @rule(at=LAKES, data=st.data())
    def append(self, at: int, data: st.DataObject) -> None:
        self.world.append(at, data.draw(self.rows))

    @rule(at=LAKES, data=st.data(), times=st.integers(2, 5))
    def append_often(self, at: int, data: st.DataObject, times: int) -> None:
        rows = data.draw(self.rows)
        for _ in range(times):
            self.world.append(at, rows)

    @rule(at=LAKES, which=st.integers(0, 100))
    def retry(self, at: int, which: int) -> None:
        self.world.retry(at, which)

    @rule(at=LAKES)
    def flush(self, at: int) -> None:
        self.world.flush(at)

    @rule(at=LAKES)
    def reopen(self, at: int) -> None:
        self.world.reopen(at)

    @rule(dropper=LAKES, creator=LAKES, shape=shapes())
    def replace(self, dropper: int, creator: int, shape: tuple[str, st.SearchStrategy[Row]]) -> None:
        self.world.drop(dropper)
        self.create(creator, shape)

    @invariant()
    def everything_acknowledged_is_there(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.close()
        self.patch.undo()
        shutil.rmtree(self.folder)


TailAndTable.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would run thousands of steps more
)
test_tail_plus_table_is_everything_acknowledged = TailAndTable.TestCase


@pytest.mark.spark
def test_tail_plus_table_with_spark(tmp_path: Path, spark: Any) -> None:
    """The same steps, drawn by a seed, with the real job."""
    chance = random.Random(7)

    class OnSpark(World):
        def opened(self) -> Lake:
            lake = super().opened()
            lake._ingester._spark = lambda: spark
            return lake

    world = OnSpark(tmp_path / "lake")
    body = "(n BIGINT NOT NULL, s STRING, place STRUCT<x: INT>) PARTITIONED BY (bucket(2, n))"
    world.create(0, body)
    for _ in range(60):
        at, which = chance.randrange(2), chance.randrange(100)
        match chance.choice(["append", "append", "append", "retry", "flush", "reopen", "replace"]):
            case "append":
                world.append(at, [{"n": n, "s": str(n), "place": {"x": n}} for n in range(which % 7 + 1)])
            case "retry":
                world.retry(at, which)
            case "flush":
                world.flush(at)
            case "reopen":
                world.reopen(at)
            case _ if which < 30:
                world.drop(at)
                world.create(1 - at, body)
        world.check()
    world.close()
