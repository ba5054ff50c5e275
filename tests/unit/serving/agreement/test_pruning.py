"""Filters for skipping files: what they say, and that no file with a row of the result is ever skipped."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, PrimitiveType

from headwater.serving.agreement import Agreed, Folded, Unproven, agree, scan_needs


def _integration(name: str) -> Any:
    path = Path(__file__).parents[3] / "integration" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


corpus = _integration("engines_corpus")
tables = _integration("engines_tables")


def filter_of(text: str, topic: str = "events") -> BooleanExpression:
    return scan_needs(text, tables.SCHEMAS)[topic].filter


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("i = 5", EqualTo("i", 5)),
        ("5 > i", LessThan("i", 5)),
        ("i <> 5", NotEqualTo("i", 5)),
        ("not i < 5", GreaterThanOrEqual("i", 5)),
        ("i between 1 and 2", And(GreaterThanOrEqual("i", 1), LessThanOrEqual("i", 2))),
        ("i not between 1 and 2", Or(LessThan("i", 1), GreaterThan("i", 2))),
        ("i in (1, 2)", In("i", [1, 2])),
        ("s is null", IsNull("s")),
        ("s is not null", NotNull("s")),
        ("s like 'ab%'", StartsWith("s", "ab")),
        ("s not like 'ab%'", NotStartsWith("s", "ab")),
        ("s like 'ab%c'", StartsWith("s", "ab")),
        ("s not like 'ab%c'", AlwaysTrue()),
        ("s like '%b'", AlwaysTrue()),
        ("s like 'a_%'", AlwaysTrue()),
        ("i = 5 and rand() > 0.5", EqualTo("i", 5)),
        ("i = 5 or rand() > 0.5", AlwaysTrue()),
        ("not (i = 5 or rand() > 0.5)", NotEqualTo("i", 5)),
        ("not (i = 5 and rand() > 0.5)", AlwaysTrue()),
        ("d > 5", Or(GreaterThan("d", 5.0), IsNaN("d"))),
        ("d < 5", LessThan("d", 5.0)),
        ("not d < 5", Or(GreaterThanOrEqual("d", 5.0), IsNaN("d"))),
        ("f > 0.1", AlwaysTrue()),
        ("f > 0.5", Or(GreaterThan("f", 0.5), IsNaN("f"))),
        ("i = 1.5", AlwaysTrue()),
        ("i = k", AlwaysTrue()),
        ("i = '5'", AlwaysTrue()),
        ("i + 1 = 5", AlwaysTrue()),
        ("i = 3000000000", AlwaysTrue()),
        ("st.a = 5", EqualTo("st.a", 5)),
        ("events.ST.A is null", IsNull("st.a")),
        ("st.missing = 5", AlwaysTrue()),
        ("startswith(s, 'ab')", StartsWith("s", "ab")),
        ("not startswith(s, 'ab')", NotStartsWith("s", "ab")),
        ("startswith(s, '')", AlwaysTrue()),
        ("startswith(s, c)", AlwaysTrue()),
        ("startswith(s, null)", AlwaysTrue()),
        ("i <=> 5", EqualTo("i", 5)),
        ("5 <=> i", EqualTo("i", 5)),
        ("not i <=> 5", Or(IsNull("i"), NotEqualTo("i", 5))),
        ("i is distinct from 5", Or(IsNull("i"), NotEqualTo("i", 5))),
        ("i is not distinct from null", IsNull("i")),
        ("null <=> i", IsNull("i")),
        ("not d <=> 5", Or(IsNull("d"), Or(NotEqualTo("d", 5.0), IsNaN("d")))),
        ("i <=> k", AlwaysTrue()),
        ("i in (1, null)", In("i", [1])),
        ("i in (1, 2, null)", In("i", [1, 2])),
        ("i not in (1, null)", AlwaysFalse()),
        ("i in (null)", AlwaysFalse()),
        ("b", EqualTo("b", True)),
        ("not b", EqualTo("b", False)),
        ("b is true", EqualTo("b", True)),
        ("b is not true", Or(IsNull("b"), EqualTo("b", False))),
        ("b = false", EqualTo("b", False)),
        ("not (b or i = 5)", And(EqualTo("b", False), NotEqualTo("i", 5))),
        ("not (s is null and i >= 5)", Or(NotNull("s"), LessThan("i", 5))),
        ("p = 1.005", AlwaysTrue()),
        ("ts >= '2026-01-01'", GreaterThanOrEqual("ts", "2026-01-01T00:00:00.000000+00:00")),
        ("ts < timestamp'2026-01-01 10:00:00+02:00'", LessThan("ts", "2026-01-01T08:00:00.000000+00:00")),
        ("dt = '2026-01-01'", EqualTo("dt", "2026-01-01")),
        (
            "cast(ts as date) = date'2026-01-01'",
            And(GreaterThanOrEqual("ts", "2026-01-01T00:00:00+00:00"), LessThan("ts", "2026-01-02T00:00:00+00:00")),
        ),
        ("ts < cast('2026-01-01' as timestamp)", LessThan("ts", "2026-01-01T00:00:00.000000+00:00")),
        ("i = 5L", AlwaysTrue()),
        ("date(ts) <= '2026-01-01'", LessThan("ts", "2026-01-02T00:00:00+00:00")),
        ("i in (select k from people)", AlwaysTrue()),
        (f"u = '{UUID(int=255)}'", EqualTo("u", str(UUID(int=255)))),
        (f"u < '{UUID(int=255)}'", LessThan("u", str(UUID(int=255)))),
        (f"u = '{str(UUID(int=255)).upper()}'", AlwaysTrue()),
        (f"u = '{UUID(int=255).hex}'", AlwaysTrue()),
        ("u = 'x'", AlwaysTrue()),
        ("p = 12345678901234567890123456789012345678901234567890", AlwaysTrue()),
        ("w = 12345678901234567890123456789012.5", EqualTo("w", Decimal("12345678901234567890123456789012.500000"))),
    ],
)
def test_a_condition_becomes_a_filter(condition: str, expected: BooleanExpression) -> None:
    assert filter_of(f"select id from events where {condition}") == expected


ONE, TWO = EqualTo("i", 1), EqualTo("k", 2)


@pytest.mark.parametrize(
    ("text", "events", "people"),
    [
        ("select 1 from events e join people p on e.k = p.k and e.i = 1 and p.k = 2", And(ONE, TWO), TWO),
        ("select 1 from events e join people p on e.k = p.k where e.i = 1 and p.k = 2", And(ONE, TWO), TWO),
        ("select 1 from events e join people p on p.k <=> e.k where e.k = 2", TWO, TWO),
        ("select 1 from events e left join people p on e.k = p.k where e.k = 2", TWO, TWO),
        ("select 1 from events e left semi join people p on e.i = 1 and e.k <=> p.k where e.k = 2", And(ONE, TWO), TWO),
        ("select 1 from events e left anti join people p on e.k <=> p.k where e.k = 2", TWO, TWO),
        ("select 1 from events e right join people p on e.k = p.k where e.k = 2", AlwaysTrue(), AlwaysTrue()),
        ("select 1 from events e left anti join people p on e.k = p.k or e.i = 1 where e.k = 2", TWO, AlwaysTrue()),
        ("select 1 from events e, people p where e.i = 1 and p.k = 2", ONE, TWO),
        ("select 1 from events e left join people p on e.i = 1 and p.k = 2", AlwaysTrue(), TWO),
        ("select 1 from events e left join people p on e.k = p.k where e.i = 1 and p.k is null", ONE, AlwaysTrue()),
        ("select 1 from events e right join people p on e.i = 1 and p.k = 2", ONE, AlwaysTrue()),
        ("select 1 from events e right join people p on true where e.i = 1 and p.k = 2", AlwaysTrue(), TWO),
        ("select 1 from events e full join people p on e.i = 1 and p.k = 2 where e.i = 1", AlwaysTrue(), AlwaysTrue()),
        ("select 1 from events e left semi join people p on e.i = 1 and p.k = 2", ONE, TWO),
        ("select 1 from events e left anti join people p on e.i = 1 and p.k = 2", AlwaysTrue(), TWO),
        ("select 1 from events e left anti join people p on e.k = p.k where e.i = 1", ONE, AlwaysTrue()),
    ],
)
def test_joins_let_through_what_they_can(text: str, events: BooleanExpression, people: BooleanExpression) -> None:
    assert filter_of(text) == events
    assert filter_of(text, "people") == people


def test_a_table_after_an_outer_join_is_not_filtered_by_a_later_one() -> None:
    text = "select 1 from people q left join events e on q.k = e.k join people p on e.i is null"
    assert filter_of(text) == AlwaysTrue()


def test_several_references_are_kept_by_any() -> None:
    text = "select id from events where i = 1 union all select id from events where k = 2"
    assert filter_of(text) == Or(ONE, TWO)
    assert filter_of("select (select max(i) from events) from events where i = 1") == AlwaysTrue()


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("select * from (select i from events where k = 2) where i = 1", And(TWO, ONE)),
        ("select * from (select * from events) e where e.i = 1", ONE),
        ("select * from (select k as a, i as b from events) where b = 1", ONE),
        ("select * from (select cast(i as int) as a from events) where a = 1", ONE),
        ("select * from (select i, count(*) as n from events group by i) where i = 1 and n = 2", ONE),
        ("select * from (select i, count(*) as n from events group by 1) where i = 1 and n = 2", ONE),
        ("select * from (select i, k, rand() from events group by all) where i = 1", ONE),
        ("select * from (select distinct i from events) where i = 1", ONE),
        ("with c as (select i, k from events) select * from c where i = 1", ONE),
        ("with c (a, b) as (select i, k from events) select * from c where a = 1", ONE),
        ("with c as (select i, k from events) select 1 from c x join c y on x.i = 1 and y.k = 2", Or(ONE, TWO)),
        ("select * from (select i, k from events union all select i, k from events) where i = 1", ONE),
        ("select id from events lateral view explode(tags) x as tag where i = 1", ONE),
        ("select * from (select i from events limit 5) where i = 1", AlwaysTrue()),
        ("select * from (select i from events tablesample (5 rows)) where i = 1", AlwaysTrue()),
        ("select * from (select cast(i as bigint) as a from events) where a = 1", AlwaysTrue()),
        ("select * from (select i + 0 as a from events) where a = 1", AlwaysTrue()),
        ("select * from (select i, count(*) from events group by i with rollup) where i is null", AlwaysTrue()),
        ("select * from (select i, count(*) from events group by cube (i, k)) where i is null", AlwaysTrue()),
        ("select * from (select i, k from events group by grouping sets ((i), (k))) where i is null", AlwaysTrue()),
        ("select * from (select i, rank() over (order by k) as r from events) where i = 1", AlwaysTrue()),
        ("select * from (select i from events qualify rank() over (order by k) = 1) where i = 1", AlwaysTrue()),
        ("select * from (select e.i from people p left join events e on p.k = e.k) where i is null", AlwaysTrue()),
        ("select * from (select i from events union all select 'a') where i = 1", AlwaysTrue()),
        ("select * from (select k from events union all select s from events) where k = '9'", AlwaysTrue()),
        ("select * from (select * from events join people using (k)) where i = 1", AlwaysTrue()),
        (
            "with recursive c as (select i from events union select i from c) select * from c where i = 1",
            AlwaysTrue(),
        ),
        ("select i from events where exists (select 1 from people where people.k = events.k and i = 1)", AlwaysTrue()),
    ],
)
def test_conditions_reach_through_queries_that_let_them(text: str, events: BooleanExpression) -> None:
    assert filter_of(text) == events


def test_a_condition_in_a_subquery_is_about_its_own_tables() -> None:
    text = "select i from events where exists (select 1 from people p where p.k = events.k and p.k = 2 and i = 1)"
    assert (filter_of(text), filter_of(text, "people")) == (AlwaysTrue(), TWO)


VIEW = Folded(
    "SELECT `v.i` AS `i`, CAST(`v.n` AS BIGINT) AS `n` FROM (SELECT `v.i` AS `v.i`, SUM(`v.n`) AS `v.n` FROM "
    "(SELECT `k` AS `v.i`, `__n` AS `v.n` FROM `__states`) GROUP BY 1) WHERE `v.n` > 0",
    "views.v",
    Schema(NestedField(1, "k", IntegerType()), NestedField(2, "__n", LongType())),
)


@pytest.mark.parametrize(
    "text",
    [
        "select * from v where i = 2 and n = 7",
        "select * from (select i as a from v) where a = 2",
        "with c as (select * from v) select 1 from c join events e on c.i = e.i where c.i = 2",
        "select hll_sketch_estimate(hll_sketch_agg(n)) from v where i = 2",
    ],
)
def test_a_condition_on_a_views_key_reaches_its_states(text: str) -> None:
    needs = scan_needs(text, {**tables.SCHEMAS, "v": VIEW})["views.v"]
    assert needs.filter == TWO
    assert needs.columns == {"k", "__n"}


def test_a_view_that_only_spark_makes_is_skipped_by_its_keys_too() -> None:
    view = replace(VIEW, sql=VIEW.sql.replace("SUM(`v.n`)", "HLL_UNION_AGG(`v.n`)"))
    verdict = agree("select * from v where i = 2", {"v": view})
    assert verdict == Unproven(
        'view "v" is made of its states by Spark alone: function "hll_union_agg" is not proven to agree'
    )
    assert scan_needs("select * from v where i = 2", {"v": view})["views.v"].filter == TWO


def test_tables_that_are_read_in_too_many_ways_are_not_filtered() -> None:
    steps = [f"c{n + 1} as (select x.i from c{n} x join c{n} y on x.i = y.i)" for n in range(12)]
    text = f"with c0 as (select i from events), {', '.join(steps)} select * from c12 where i = 1"
    assert filter_of(text) == AlwaysTrue()


def test_conditions_on_groups_stay_outside() -> None:
    assert filter_of("select i, count(*) from events group by i having i = 1") == AlwaysTrue()


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, table in tables.tables().items():
            connection.register(name, table)
        yield connection


def _file(rows: list[dict[str, Any]]) -> DataFile:
    """A data file's metrics as a writer records them: bounds without nulls and NaN, which are counted instead."""
    lower, upper, nulls, nans = {}, {}, {}, {}
    for field in tables.EVENTS.fields:
        if not isinstance(field.field_type, PrimitiveType):
            continue
        values = [row[field.name] for row in rows]
        known = [value for value in values if value is not None]
        nulls[field.field_id] = len(values) - len(known)
        if isinstance(field.field_type, FloatType | DoubleType):
            nans[field.field_id] = sum(map(math.isnan, known))
            known = [value for value in known if not math.isnan(value)]
        if known:
            lower[field.field_id] = to_bytes(field.field_type, min(known))
            upper[field.field_id] = to_bytes(field.field_type, max(known))
    counts = {field.field_id: len(rows) for field in tables.EVENTS.fields}
    return DataFile.from_args(
        record_count=len(rows),
        value_counts=counts,
        null_value_counts=nulls,
        nan_value_counts=nans,
        lower_bounds=lower,
        upper_bounds=upper,
    )


SELECTIVE = [text for text in corpus.queries(corpus.PREDICATES) if text.startswith("select id from events")]


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("text", SELECTIVE)
def test_no_file_with_a_row_of_the_result_is_skipped(duck: duckdb.DuckDBPyConnection, text: str, size: int) -> None:
    verdict = agree(text, tables.SCHEMAS)
    assert isinstance(verdict, Agreed)
    matching = {row[0] for row in duck.sql(verdict.sql).fetchall()}
    evaluator = _InclusiveMetricsEvaluator(tables.EVENTS, verdict.tables["events"].filter)
    rows = tables.tables()["events"].to_pylist()
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        if matching & {row["id"] for row in part}:
            assert evaluator.eval(_file(part)), part


def test_files_are_skipped_at_all() -> None:
    evaluator = _InclusiveMetricsEvaluator(tables.EVENTS, filter_of("select id from events where ts >= '2026-01-01'"))
    rows = tables.tables()["events"].to_pylist()
    assert [evaluator.eval(_file([row])) for row in rows[:6]] == [False, False, False, True, True, False]
