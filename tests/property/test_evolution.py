"""Random changes to a topic among appends, flushes and queries: what is read is what a model in Python holds.

The model keeps values by column, not by name: names are given, taken away and given again. DuckDB answers from files
and the log, PyIceberg reads the files by itself, and Spark, in a test of its own, reads what DuckDB leaves to it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.errors import QueryFailed
from headwater.spark.session import SparkEngine
from headwater.storage.writer import Target
from headwater.topics import ingest
from headwater.topics.log import Entry

WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(5, 2)": "DECIMAL(15, 2)"}
TYPES = (*WIDER, *WIDER.values(), "STRING", "BOOLEAN", "DATE", "TIMESTAMP")
_topics = (f"evolving{number}" for number in itertools.count())


def value(of: str, chance: random.Random) -> Any:
    """A value of the type as a producer sends it, often one that others have too; null now and then."""
    if chance.random() < 0.25:
        return None
    small = chance.randrange(4)
    match of:
        case "INT":
            return chance.choice((small, -small, 2**31 - 1, -(2**31)))
        case "BIGINT":
            return chance.choice((small, 2**31, -(2**40), 2**63 - 1))
        case "FLOAT" | "DOUBLE":
            return small / 4
        case "DECIMAL(5, 2)" | "DECIMAL(15, 2)":
            return Decimal(chance.choice((small * 25, 99999, 10**14 if "15" in of else 1))).scaleb(-2)
        case "BOOLEAN":
            return small % 2 == 0
        case "DATE":
            return f"2026-01-{small + 1:02}"
        case "TIMESTAMP":
            return f"2026-01-{small + 1:02}T00:00:00Z"
        case _:
            return f"v{small}"


@dataclass(eq=False)
class Column:
    """A column of the model: what it is called and holds now. Its identity is that of the Iceberg field."""

    name: str
    type: str
    fields: list[Column] = field(default_factory=list)

    def random(self, chance: random.Random) -> Any:
        if self.type != "STRUCT":
            return value(self.type, chance)
        return None if chance.random() < 0.2 else {each: each.random(chance) for each in self.fields}

    def sent(self, held: Any) -> Any:
        """A value as a producer sends it, by the names of now."""
        return {each.name: each.sent(held[each]) for each in self.fields} if isinstance(held, dict) else held

    def shown(self, held: Any) -> Any:
        """The same as a reader sees it: fields that came later are null."""
        if isinstance(held, dict):
            return {each.name: each.shown(held.get(each)) for each in self.fields}
        return held

    @property
    def sql(self) -> str:
        if self.type != "STRUCT":
            return f"{self.name} {self.type}"
        return f"{self.name} STRUCT<{', '.join(each.sql for each in self.fields)}>"


class Evolving:
    """A topic and its model, changed side by side."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake = lake
        self.chance = random.Random(seed)
        self.name = next(_topics)
        self.numbers = itertools.count()
        self.columns = [Column("id", "INT"), Column("s", "STRUCT", [Column("p", "INT"), Column("q", "STRING")])]
        self.columns += [Column(f"c{n}", of) for n, of in enumerate(self.chance.sample(TYPES, 3))]
        self.rows: list[dict[Column, Any]] = []
        self.pinned = {"id"}  # what partitioning and options name cannot be dropped
        blooms = ", ".join(
            each.name for each in self.columns if each.type not in ("STRUCT", "FLOAT", "DOUBLE", "BOOLEAN")
        )
        self.pinned.update(blooms.split(", "))
        self.bloomed = {each for each in self.columns if each.name in self.pinned}
        lake.sql(
            f"CREATE TOPIC {self.name} ({', '.join(each.sql for each in self.columns)}) "
            f"WITH (bloom_columns = '{blooms}')"
        )

    # -- steps ------------------------------------------------------------------------------------------------------

    def append(self) -> None:
        made = [{each: each.random(self.chance) for each in self.columns} for _ in range(self.chance.randrange(1, 6))]
        sent = [{each.name: each.sent(row[each]) for each in self.columns} for row in made]
        self.lake.topic(self.name).append(sent)
        self.rows += made

    def flush(self) -> None:
        self.lake.topic(self.name).flush()

    def add(self) -> None:
        inside = self.chance.random() < 0.3
        beside = self._struct().fields if inside else self.columns
        free = [name for name in ("a", "b", "p", "q", "c0", "c1") if all(each.name != name for each in beside)]
        name = self.chance.choice([*free, f"n{next(self.numbers)}"])
        added = Column(name, self.chance.choice(TYPES))
        place, where = len(beside), ""
        if self.chance.random() < 0.5:
            at = self.chance.randrange(len(beside))
            place, where = at, f" BEFORE {beside[at].name}"
        self._alter(f"ADD COLUMN {self._path(added.name, inside)} {added.type}{where}")
        beside.insert(place, added)

    def rename(self) -> None:
        inside, beside, column = self._any()
        free = [name for name in ("a", "b", "p", "q", "s", "c0") if all(each.name != name for each in beside)]
        name = self.chance.choice([*free, f"n{next(self.numbers)}"])
        self._alter(f"RENAME COLUMN {self._path(column.name, inside)} TO {name}")
        column.name = name

    def drop(self) -> None:
        inside, beside, column = self._any()
        if column in self.bloomed or column.type == "STRUCT" or len(beside) < 3 or column is self.columns[0]:
            return
        self._alter(f"DROP COLUMN {self._path(column.name, inside)}")
        beside.remove(column)
        _forget(self.rows, column)

    def widen(self) -> None:
        inside, _, column = self._any()
        if column.type in WIDER:
            self._alter(f"ALTER COLUMN {self._path(column.name, inside)} TYPE {WIDER[column.type]}")
            column.type = WIDER[column.type]

    def move(self) -> None:
        inside, beside, column = self._any()
        self._alter(f"ALTER COLUMN {self._path(column.name, inside)} FIRST")
        beside.remove(column)
        beside.insert(0, column)

    def partition(self) -> None:
        if self.chance.random() < 0.3:
            self._alter("SET UNPARTITIONED")
            return
        key = next(each for each in self.columns if each in self.bloomed)
        self._alter(f"SET PARTITIONED BY (bucket({self.chance.choice((2, 3))}, {key.name}))")

    def _struct(self) -> Column:
        return next(each for each in self.columns if each.type == "STRUCT")

    def _any(self) -> tuple[bool, list[Column], Column]:
        inside = self.chance.random() < 0.3
        beside = self._struct().fields if inside else self.columns
        return inside, beside, self.chance.choice(beside)

    def _path(self, name: str, inside: bool) -> str:
        return f"{self._struct().name}.{name}" if inside else name

    def _alter(self, change: str) -> None:
        self.lake.sql(f"ALTER TOPIC {self.name} {change}")

    # -- checks -----------------------------------------------------------------------------------------------------

    def check(self, run: Callable[[str], list[dict[str, Any]]], *, nested: bool) -> None:
        """That queries answer what the model holds; structs only if `nested`."""
        shown = [each for each in self.columns if nested or each.type != "STRUCT"]
        listed = ", ".join(each.name for each in shown)
        rows = run(f"SELECT {listed} FROM {self.name} ORDER BY _offset")
        expected = [{each.name: each.shown(row.get(each)) for each in shown} for row in self.rows]
        assert [_plain(row) for row in rows] == [_plain(row) for row in expected]
        plain = [each for each in self.columns if each.type != "STRUCT"]
        for column in self.chance.sample(plain, min(3, len(plain))):
            self._check_conditions(run, column)

    def _check_conditions(self, run: Callable[[str], list[dict[str, Any]]], column: Column) -> None:
        held = [_plain(row.get(column)) for row in self.rows]
        known = sorted({each for each in held if each is not None})
        wanted = [
            ("IS NULL", sum(each is None for each in held)),
            ("IS NOT NULL", sum(each is not None for each in held)),
        ]
        for each in self.chance.sample(known, min(2, len(known))):
            literal = _literal(each, column.type)
            wanted += [
                (f"= {literal}", held.count(each)),
                (f"> {literal}", sum(other > each for other in held if other is not None)),
            ]
        for condition, count in wanted:
            text = f"SELECT count(*) AS c FROM {self.name} WHERE {column.name} {condition}"
            assert run(text) == [{"c": count}], text
        low = run(f"SELECT min({column.name}) AS low, count({column.name}) AS c FROM {self.name}")
        assert [_plain(row) for row in low] == [{"low": known[0] if known else None, "c": len(held) - held.count(None)}]

    def check_inside(self, run: Callable[[str], list[dict[str, Any]]]) -> None:
        """That the struct and the fields inside it are read rightly, unless DuckDB leaves them to Spark."""
        struct = self._struct()
        held = [row.get(struct) for row in self.rows]
        inside = {each: [(row or {}).get(each) for row in held] for each in struct.fields}
        try:
            rows = run(f"SELECT {struct.name} AS s FROM {self.name} ORDER BY _offset")
            fields = {
                each: run(f"SELECT {struct.name}.{each.name} AS f FROM {self.name} ORDER BY _offset") for each in inside
            }
        except QueryFailed as left:
            assert "were altered since some files were written" in (left.detail or "")
            return
        assert [_plain(row["s"]) for row in rows] == [_plain(struct.shown(row)) for row in held]
        for each, found in fields.items():
            assert [_plain(row["f"]) for row in found] == [_plain(value) for value in inside[each]]

    def check_files(self) -> None:
        """That PyIceberg, which knows nothing of ours, finds the committed rows, whatever is nested where."""
        rows = self.lake.topics.load(self.name).table.scan().to_arrow().sort_by("_offset").to_pylist()
        expected = [{each.name: each.shown(row.get(each)) for each in self.columns} for row in self.rows[: len(rows)]]
        found = [{each.name: row[each.name] for each in self.columns} for row in rows]
        assert [_plain(row) for row in found] == [_plain(row) for row in expected]


def _forget(rows: list[dict[Column, Any]], column: Column) -> None:
    for row in rows:
        row.pop(column, None)
        for held in row.values():
            if isinstance(held, dict):
                held.pop(column, None)


def _plain(value: Any) -> Any:
    """A value in one form, whether it was sent or read."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, bool | int | str | Decimal) or value is None:
        return value[:10] if isinstance(value, str) and value.startswith("2026") else value
    return str(value)[:10] if hasattr(value, "year") else value


def _literal(value: Any, of: str) -> str:
    match of:
        case "STRING":
            return f"'{value}'"
        case "DATE":
            return f"DATE '{value}'"
        case "TIMESTAMP":
            return f"TIMESTAMP '{value} 00:00:00'"
        case "FLOAT" | "DOUBLE":
            return f"{value}D"
        case _:
            return str(value)


STEPS = (
    "append",
    "append",
    "append",
    "flush",
    "flush",
    "add",
    "add",
    "rename",
    "rename",
    "drop",
    "widen",
    "move",
    "partition",
)


def write_in_process(_: object, log_path: Path, into: Target, entries: Sequence[Entry]) -> list[DataFile]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture(scope="module")
def in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "write_files", write_in_process)
        yield


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, in_process: None) -> Iterator[Lake]:
    with Lake.init(tmp_path_factory.mktemp("evolution") / "lake") as opened:
        opened._spark = SparkEngine(lambda: None, stop=lambda _: None)
        yield opened


@given(st.integers(0, 2**32), st.lists(st.sampled_from(STEPS), min_size=6, max_size=22))
@settings(max_examples=15)
def test_duckdb_and_pyiceberg_read_what_the_model_holds(lake: Lake, seed: int, steps: list[str]) -> None:
    evolving = Evolving(lake, seed)
    evolving.append()
    for step in steps:
        getattr(evolving, step)()
    evolving.check(lambda text: lake.sql(text, engine="duckdb").rows(), nested=False)  # files and the log's tail
    evolving.flush()
    evolving.check(lambda text: lake.sql(text, engine="duckdb").rows(), nested=False)
    evolving.check_inside(lambda text: lake.sql(text, engine="duckdb").rows())
    evolving.check_files()
    lake.sql(f"DROP TOPIC {evolving.name}")


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_spark_reads_what_the_model_holds(spark: Any, spark_lake: Path, in_process: None, seed: int) -> None:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        evolving = Evolving(lake, seed)
        evolving.append()
        for step in random.Random(seed).choices(STEPS, k=30):
            getattr(evolving, step)()
        shown = evolving.columns
        evolving.columns = [each for each in shown if each.type == "STRUCT"] + evolving.chance.sample(shown, 1)
        evolving.check(lambda text: lake.sql(text, engine="spark").rows(), nested=True)
