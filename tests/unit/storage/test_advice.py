from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.committed import commit_rows

import headwater
from headwater.catalog.topics import Topic
from headwater.engine import Lake
from headwater.sql.definition import checked_definition
from headwater.sql.options import render_options
from headwater.sql.parse import parse
from headwater.sql.statements import Query
from headwater.state.usage import Pattern, TopicUsage
from headwater.storage.advice import Recommendation, change_of, read_sample, recommend, settings_of
from headwater.storage.advice.measure import written
from headwater.storage.advice.order import Setting, advise_partitioning
from headwater.storage.advice.skipping import PARTS, Skipping, parts_of, questions_of
from headwater.storage.layout import layout_of
from headwater.storage.scan import ManifestCache
from headwater.storage.schemas import arrow_schema

ROWS = 6_000
BASE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
AGENTS = [f"Mozilla/5.0 (X{n}; rv:{n}.0) Gecko/2010010{n} Firefox/{n}.0" for n in range(60)]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with headwater.init(tmp_path / "lake") as lake:
        yield lake


def rows(count: int = ROWS) -> pa.Table:
    """Events in no order of `id` and `at`: ids differ all, texts are long, prices are smooth, states are few."""
    chance = random.Random(5)
    ids = list(range(count))
    chance.shuffle(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": [BASE + dt.timedelta(seconds=chance.randrange(60 * 86_400)) for _ in ids],
            "state": [chance.choice(["new", "paid", "sent"]) for _ in ids],
            "note": [_line(chance) for _ in ids],
            "path": [f"/shop/items/{n // 8:08}/page/{n % 8}" for n in range(count)],
            "price": np.round(np.cumsum(np.random.default_rng(3).normal(size=count)), 2),
            "noise": pa.array(np.random.default_rng(4).integers(0, 2**62, count)),
        }
    )


def _line(chance: random.Random) -> str:
    number = chance.randrange(10**6)
    said = f"GET /api/v1/items/{number} took {chance.randrange(900)} ms"
    return json.dumps({"user": f"u{number % 5000}", "said": said, "agent": chance.choice(AGENTS), "trace": hex(number)})


CREATE = "CREATE TOPIC t (id BIGINT, at TIMESTAMP, state STRING, note STRING, path STRING, price DOUBLE, noise BIGINT)"


def micros(day: int) -> int:
    return int((BASE + dt.timedelta(days=day)).timestamp() * 1_000_000)


def lookup(value: int) -> str:
    return f'{{"type": "eq", "term": "id", "value": {value}}}'


def between(start: int, end: int) -> str:
    low, high = (f'{{"type": "{op}", "term": "at", "value": {at}}}' for op, at in (("gt-eq", start), ("lt", end)))
    return f'{{"type": "and", "left": {low}, "right": {high}}}'


LOOKUPS = Pattern(("id", "note"), (("id", "equal"),), 60, tuple(lookup(n * 700 + 7) for n in range(8)))
RANGES = Pattern(
    ("at", "price"), (("at", "range"),), 60, tuple(between(micros(d), micros(d + 1)) for d in range(0, 56, 7))
)


def kinds(found: tuple[Recommendation, ...]) -> dict[tuple[str, tuple[str, ...]], Recommendation]:
    return {(each.kind, each.columns): each for each in found}


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with headwater.init(tmp_path_factory.mktemp("events") / "lake") as lake:
        lake.sql(f"{CREATE} WITH (row_group_rows = 1000)")
        yield commit_rows(lake, "t", rows())


@pytest.fixture(scope="module")
def sample(topic: Topic) -> pa.Table:
    return read_sample(topic, ManifestCache(), ROWS)


def applied(topic: Topic, found: tuple[Recommendation, ...]) -> Topic:
    """The topic with the options that were recommended, as ALTER TOPIC would check them."""
    options: dict[str, object] = {**render_options(topic.definition.options), **settings_of(found)}
    definition = checked_definition("t", topic.definition.schema, (), options)
    return replace(topic, definition=definition)


def test_space_is_saved_as_predicted(lake: Lake) -> None:
    lake.sql(CREATE)
    topic = commit_rows(lake, "t", rows())
    sample = read_sample(topic, ManifestCache(), ROWS)
    found = recommend(topic, sample, TopicUsage())
    assert {each.kind for each in found} <= {"encoding", "compression"}
    note, path = kinds(found)["compression", ("note",)], kinds(found)["encoding", ("path",)]
    assert note.current == "zstd" and note.proposed.startswith("zstd:") and path.proposed == "delta_strings"
    assert ("compression", ("noise",)) not in kinds(found) or kinds(found)["compression", ("noise",)].proposed == "none"
    before, after = written(sample, layout_of(topic)), written(sample, layout_of(applied(topic, found)))
    saved = sum((each.effect.bytes_before or 0) - (each.effect.bytes_after or 0) for each in found)
    assert before.bytes - after.bytes == pytest.approx(saved, rel=0.05)
    assert after.bytes < 0.95 * before.bytes
    again = recommend(applied(topic, found), sample, TopicUsage())
    assert not {each.columns for each in again if each.kind == "encoding"} & {each.columns for each in found}


def test_lookups_get_bloom_filters_where_min_and_max_do_not_tell(topic: Topic, sample: pa.Table) -> None:
    few = replace(LOOKUPS, queries=2)
    assert "bloom_filter" not in {each.kind for each in recommend(topic, sample, TopicUsage((few,)))}
    states = Pattern(("id",), (("state", "equal"),), 60, ('{"type": "eq", "term": "state", "value": "paid"}',))
    found = recommend(topic, sample, TopicUsage((LOOKUPS, RANGES, states)))
    assert any("at" in each.columns for each in found if each.kind == "ordering")
    bloom = kinds(found)["bloom_filter", ("id",)]
    assert ("bloom_filter", ("state",)) not in kinds(found)
    assert bloom.effect.read_before is not None and bloom.effect.read_before > 0.9
    assert bloom.effect.read_after is not None and bloom.effect.read_after < 0.1
    assert (bloom.effect.bytes_after or 0) > (bloom.effect.bytes_before or 0)  # what it costs is told
    assert settings_of(found)["bloom_columns"] == "id=0.01"


def test_an_order_is_recommended_if_the_recorded_queries_skip_by_it(topic: Topic, sample: pa.Table) -> None:
    found = recommend(topic, sample, TopicUsage((RANGES,)))
    order = kinds(found)["ordering", ("at",)]
    assert order.clause == "SET ORDERED BY (at ASC NULLS FIRST)" and order.confidence == "high"
    assert order.effect.read_before == pytest.approx(1, abs=0.02)
    assert order.effect.read_after == pytest.approx(0.05, abs=0.05)
    (both,) = (each for each in recommend(topic, sample, TopicUsage((RANGES, _id_ranges()))) if each.clause)
    assert set(both.columns) == {"at", "id"} and both.proposed.startswith("CLUSTERED BY ZORDER")


def _id_ranges() -> Pattern:
    def one(start: int) -> str:
        parts = (f'{{"type": "{op}", "term": "id", "value": {n}}}' for op, n in (("gt", start), ("lt", start + 270)))
        return '{{"type": "and", "left": {}, "right": {}}}'.format(*parts)

    return Pattern(("id",), (("id", "range"),), 60, tuple(one(n) for n in range(300, 5_700, 750)))


def test_rows_that_are_in_order_already_need_none(lake: Lake) -> None:
    lake.sql(f"{CREATE} WITH (row_group_rows = 1000)")
    topic = commit_rows(lake, "t", rows().sort_by("at"))
    found = recommend(topic, read_sample(topic, ManifestCache(), ROWS), TopicUsage((RANGES,)))
    assert {each.kind for each in found} <= {"encoding", "compression"}
    lake.sql(f"{CREATE.replace(' t ', ' s ')} ORDERED BY (at) WITH (row_group_rows = 1000)")
    topic = commit_rows(lake, "s", rows())
    found = recommend(topic, read_sample(topic, ManifestCache(), ROWS), TopicUsage((RANGES,)))
    assert {each.kind for each in found} <= {"encoding", "compression"}


def test_partitions_are_recommended_only_if_they_are_large_enough(topic: Topic, sample: pa.Table) -> None:
    questions = questions_of(topic.schema, TopicUsage((RANGES,)))

    def advised(size: int) -> list[str | None]:
        setting = Setting(topic, sample, layout_of(topic), TopicUsage((RANGES,)), questions, size)
        return [each.clause for each in advise_partitioning(setting)]

    assert advised(10 * 1024**2) == []
    assert advised(10 * 1024**3) == ["SET PARTITIONED BY (days(at))"]
    assert advised(100 * 1024**2) == ["SET PARTITIONED BY (months(at))"]


def test_what_it_would_run_is_a_statement(topic: Topic, sample: pa.Table) -> None:
    found = recommend(topic, sample, TopicUsage((RANGES, LOOKUPS)))
    change = change_of(found)
    assert change is not None
    parse(f"ALTER TOPIC t {change}")
    for each in found:
        parse(f"ALTER TOPIC t {each.change}")
    assert change_of(()) is None


def test_a_small_or_empty_topic_gets_no_advice(lake: Lake) -> None:
    lake.sql(CREATE)
    topic = lake.topics.load("t")
    sample = read_sample(topic, ManifestCache(), 1000)
    assert sample.num_rows == 0 and recommend(topic, sample, TopicUsage((RANGES,))) == ()
    topic = commit_rows(lake, "t", rows(3000))  # one row group: there is nothing to skip
    found = recommend(topic, read_sample(topic, ManifestCache(), 3000), TopicUsage((RANGES, LOOKUPS)))
    assert {each.kind for each in found} <= {"encoding", "compression"}


def test_filters_of_columns_that_are_gone_are_left_out(topic: Topic) -> None:
    odd = ('{"type": "eq", "term": "gone", "value": 1}', '{"type": "eq", "term": "id", "value": "x"}', "true", "{")
    assert questions_of(topic.schema, TopicUsage((Pattern(("id",), (), 9, odd),))) == ()


def test_wide_rows_want_small_row_groups(lake: Lake) -> None:
    lake.sql("CREATE TOPIC w (id BIGINT, body STRING)")
    topic = commit_rows(lake, "w", pa.table({"id": range(200), "body": ["x" * 50_000] * 200}))
    found = recommend(topic, read_sample(topic, ManifestCache(), 200), TopicUsage())
    assert settings_of(found)["row_group_rows"] == "2048"


def test_a_sample_comes_from_everywhere_and_keeps_neighbours(lake: Lake) -> None:
    lake.sql("CREATE TOPIC t (id BIGINT, note STRING)")
    tables = [pa.table({"id": range(n * 100, n * 100 + 100), "note": ["a"] * 100}) for n in range(20)]
    topic = commit_rows(lake, "t", *tables)
    sample = read_sample(topic, ManifestCache(), 800)
    offsets = sample.column("_offset").to_pylist()
    assert len(offsets) == 800 and len(set(offsets)) == 800
    assert min(offsets) < 200 and max(offsets) > 1800
    assert sum(after == before + 1 for before, after in pairwise(offsets)) > 750
    assert read_sample(topic, ManifestCache(), 10_000).num_rows == 2000


ALL = """b BOOLEAN, i INT, n BIGINT, f FLOAT, d DOUBLE, p DECIMAL(9, 2), q DECIMAL(38, 5), day DATE, t TIME,
at TIMESTAMP, local TIMESTAMP_NTZ, s STRING, u UUID, x BINARY, fx FIXED(4), gone STRING, a ARRAY<STRING>,
st STRUCT<y: BIGINT, z: STRUCT<w: DOUBLE>>, m MAP<STRING, BIGINT>"""


def test_every_type_can_be_advised_on(lake: Lake) -> None:
    lake.sql(f"CREATE TOPIC t ({ALL}) WITH (row_group_rows = 1000)")
    chance = random.Random(1)
    records = [_record(chance, n) for n in range(3000)]
    batch = pa.Table.from_pylist(records, schema=arrow_schema(lake.topics.load("t").columns))
    topic = commit_rows(lake, "t", batch)
    asked = [
        "b", "i = 5", "n < 40", "f > 1.5", "d BETWEEN 1 AND 2", "p = 3.25", "q > 7", "day = DATE '2024-01-05'",
        "at < TIMESTAMP '2024-01-05 00:00:00'", "local > TIMESTAMP_NTZ '2024-01-05 00:00:00'", "s LIKE 'ab%'",
        "s IN ('abc', 'x')", "u = '00000000-0000-0000-0000-000000000005'", "x = X'05'", "gone IS NULL", "st.y = 5",
        "NOT (i = 5 OR n > 7)", "_offset > 5", "_timestamp > TIMESTAMP '2024-01-05 00:00:00'", "i <> 4",
    ]  # fmt: skip
    for condition in asked * 4:
        plan, _ = lake._queries._plan(Query(f"SELECT count(*) AS n FROM t WHERE {condition}"), None)
        lake.usage.record(plan.scans)  # as if it had run: some of these would need Spark
    usage = lake.usage.of(topic.id)
    assert usage.queries == len(asked) * 4
    found = recommend(topic, read_sample(topic, ManifestCache(), 3000), usage)
    change = change_of(found)
    assert change is not None
    lake.sql(f"ALTER TOPIC t {change}")
    again = commit_rows(lake, "t", batch)
    assert layout_of(again) != layout_of(topic)
    expected = 2 * sum((record["s"] or "").startswith("ab") for record in records)
    assert lake.sql("SELECT count(*) AS n FROM t WHERE s LIKE 'ab%'", engine="duckdb").rows() == [{"n": expected}]


def _record(chance: random.Random, n: int) -> dict[str, Any]:
    moment = BASE + dt.timedelta(minutes=chance.randrange(50_000))
    values = {
        "b": chance.random() < 0.5,
        "i": chance.randrange(100),
        "n": chance.randrange(10**9),
        "f": chance.choice([1.5, float("nan"), float("inf"), chance.random()]),
        "d": chance.gauss(0, 1),
        "p": Decimal(chance.randrange(10**6)) / 100,
        "q": Decimal(chance.randrange(10**12)),
        "day": moment.date(),
        "t": moment.time(),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "s": chance.choice(["abc", "abd", f"x{n}", ""]),
        "u": chance.randrange(2**100).to_bytes(16, "big"),
        "x": bytes([chance.randrange(256)]),
        "fx": chance.randbytes(4),
        "a": [f"t{chance.randrange(5)}"] * chance.randrange(3),
        "st": {"y": n, "z": {"w": chance.random()}},
        "m": {f"k{chance.randrange(3)}": n},
    }
    kept: dict[str, Any] = {name: None if chance.random() < 0.1 else value for name, value in values.items()}
    return {**kept, "gone": None}


@settings(max_examples=25)
@given(st.lists(st.integers(-50, 50) | st.none(), min_size=1, max_size=200), st.integers(-60, 60))
def test_no_part_that_a_filter_needs_counts_as_skipped(values: list[int | None], value: int) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    schema = Schema(NestedField(1, "id", LongType()))
    usage = TopicUsage((Pattern(("id",), (("id", "equal"),), 4, (lookup(value),)),))
    table: Any = pa.table({"id": pa.array(values, pa.int64())})
    parts = parts_of(table)
    assert len(parts) <= PARTS and sum(part.num_rows for part in parts) == len(values)
    needed = sum(part.num_rows for part in parts if value in part.column("id").to_pylist())
    assert needed / len(values) <= Skipping(schema, questions_of(schema, usage)).share(parts) <= 1
