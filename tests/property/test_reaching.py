"""Conditions that reach a stored table never drop a row that matters: every query is run over all rows and over those
that its filters keep, row by row, and gives one answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, StringType

from headwater.serving.agreement import Agreed, Folded, agree

T = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", IntegerType()), NestedField(3, "s", StringType()))
U = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "d", IntegerType()))
STATES = Schema(
    NestedField(1, "a", IntegerType()), NestedField(2, "s", StringType()), NestedField(3, "__n", IntegerType())
)
V = Folded(
    "SELECT `v.a` AS `a`, CAST(`v.s` AS STRING) AS `s`, CAST(`v.n` AS INT) AS `b` FROM (SELECT * FROM (SELECT `v.a` AS "
    "`v.a`, `v.s` AS `v.s`, SUM(`v.__n`) AS `v.n` FROM (SELECT `a` AS `v.a`, `s` AS `v.s`, `__n` AS `v.__n` FROM "
    "`__states`) GROUP BY 1, 2) WHERE `v.n` > 0)",
    "views.v",
    STATES,
)
TABLES: dict[str, Schema | Folded] = {"t": T, "u": U, "v": V}
STORED = {"t": T, "u": U, "views.v": STATES}

Query = tuple[str, tuple[str, ...]]
"""A query and the names of its columns; `a` and `b` are numbers, `s` is a string."""

NUMBERS = st.integers(-1, 3)
LEAVES: Sequence[Query] = (
    ("SELECT a, b, s FROM t", ("a", "b", "s")),
    ("SELECT a, CAST(b AS INT) AS b, s FROM t", ("a", "b", "s")),
    ("SELECT b AS a, a AS b, s FROM t", ("a", "b", "s")),
    ("SELECT a, d AS b FROM u", ("a", "b")),
    ("SELECT * FROM v", ("a", "s", "b")),
    ("SELECT s, a FROM v", ("s", "a")),
)


@st.composite
def conditions(draw: st.DrawFn, columns: Sequence[str], qualifier: str = "") -> str:
    name = draw(st.sampled_from(columns))
    column, number = qualifier + name, draw(NUMBERS)
    if name == "s":
        forms = [f"{column} = 's{number}'", f"{column} LIKE 's%'", f"{column} IS NULL", f"{column} <> 's{number}'"]
    else:
        forms = [f"{column} {sign} {number}" for sign in ("=", "<", ">=", "<>")]
        forms += [
            f"{column} IS NULL",
            f"{column} IS NOT NULL",
            f"{column} IN ({number}, 7)",
            f"NOT ({column} < {number})",
        ]
    found = draw(st.sampled_from(forms))
    if draw(st.integers(0, 3)) == 0:
        word = draw(st.sampled_from(["AND", "OR"]))
        found = f"({found}) {word} ({draw(conditions(columns, qualifier))})"
    return found


def listed(columns: Sequence[str], qualifier: str = "") -> str:
    return ", ".join(f"{qualifier}{name} AS {name}" for name in columns)


STEPS = ("where", "where", "group", "union", "join", "join", "distinct", "cut", "rank")
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


@st.composite
def wrapped(draw: st.DrawFn, inner: st.SearchStrategy[Query]) -> Query:
    """One more step around a query."""
    text, columns = draw(inner)
    shown = listed(columns)
    match draw(
        st.sampled_from(["where", "where", "where", "group", "all", "union", "join", "distinct", "cut", "rank"])
    ):
        case "where":
            return f"SELECT {shown} FROM ({text}) WHERE {draw(conditions(columns))}", columns
        case "group":
            by = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique=True))
            numbers = ", ".join(str(number + 1) for number in range(len(by)))
            count = [] if "b" in by else ["b"]
            more = "".join(f", CAST(count(*) AS INT) AS {name}" for name in count)
            return f"SELECT {listed(by)}{more} FROM ({text}) GROUP BY {numbers}", (*by, *count)
        case "union":
            word = draw(st.sampled_from(["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"]))
            other, others = draw(wrapped(LEAF) if draw(st.booleans()) else LEAF)
            shared = [name for name in columns if name in others]
            if not shared:
                return text, columns
            left, right = (f"(SELECT {listed(shared)} FROM ({each}))" for each in (text, other))
            return f"SELECT {listed(shared)} FROM ({left} {word} {right})", tuple(shared)
        case "join":
            kind = draw(st.sampled_from(JOINS))
            on = f"l.{columns[0]} = u.{'d' if columns[0] == 'b' else 'a'}" if columns[0] != "s" else "u.d = 1"
            extra = f" AND {draw(conditions(('a', 'd'), 'u.'))}" if draw(st.booleans()) else ""
            where = f" WHERE {draw(conditions(columns, 'l.'))}" if draw(st.booleans()) else ""
            both = kind.endswith(("T JOIN", "L JOIN")) or kind == "JOIN"
            names = tuple(name for name in columns if name != "b") if both else columns
            more = ", u.d AS b" if both else ""
            return (
                f"SELECT {listed(names, 'l.')}{more} FROM ({text}) AS l {kind} u ON {on}{extra}{where}",
                (*names, "b") if both else names,
            )
        case "distinct":
            return f"SELECT DISTINCT {shown} FROM ({text})", columns
        case "cut":
            order = ", ".join(str(number + 1) for number in range(len(columns)))
            return f"SELECT {shown} FROM ({text}) ORDER BY {order} LIMIT {draw(st.integers(1, 9))}", columns
        case _:
            order = ", ".join(columns)
            rank = f"rank() OVER (ORDER BY {order})"
            names = tuple(name for name in columns if name != "b")
            if not names:
                return text, columns
            return f"SELECT {listed(names)}, {rank} AS b FROM ({text})", (*names, "b")


LEAF: st.SearchStrategy[Query] = st.sampled_from(LEAVES)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    """Some steps around a leaf, then a condition on what came of them."""
    query = draw(LEAF)
    for _ in range(draw(st.integers(1, 4))):
        query = draw(wrapped(st.just(query)))
    return f"SELECT {listed(query[1])} FROM ({query[0]}) WHERE {draw(conditions(query[1]))}", query[1]


# All there is to tell apart, so that a row that is missed is missed by nearly every query; few of them in the joined u.
NUMBER, TEXT = (None, 0, 1, 2), (None, "s0", "s1")
ROWS: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "t": list(product(NUMBER, (None, 0, 1), TEXT)),
    "u": [(None, 1), (0, None), (0, 1), (1, 2), (1, 0)],
    "views.v": list(product((None, 0, 1, 2), TEXT, (1, -1, 2)))[:-7],
}


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def answer(
    duck: duckdb.DuckDBPyConnection,
    sql: str,
    rows: Mapping[str, Sequence[tuple[Any, ...]]],
    filters: Mapping[str, BooleanExpression],
) -> list[tuple[Any, ...]]:
    """The query's rows over those that the filters keep."""
    for name, schema in STORED.items():
        keeps = expression_evaluator(schema, filters.get(name, AlwaysTrue()), case_sensitive=True)
        kept = [row for row in rows[name] if keeps(Record(*row))]
        types = pa.schema([(of.name, pa.string() if of.name == "s" else pa.int32()) for of in schema.fields])
        columns = list(zip(*kept, strict=True)) if kept else [()] * len(schema.fields)
        table = pa.Table.from_arrays([pa.array(c, of.type) for c, of in zip(columns, types, strict=True)], schema=types)
        duck.register(name, table)
    return sorted(duck.sql(sql).fetchall(), key=repr)


TRAPS = (
    "SELECT a, b FROM (SELECT l.a AS a, u.d AS b FROM t AS l LEFT JOIN u ON l.a = u.a) WHERE b IS NULL",
    "SELECT a, b FROM (SELECT t.a AS a, u.d AS b FROM u RIGHT JOIN t ON t.a = u.a) WHERE b IS NULL",
    "SELECT a, b FROM (SELECT t.a AS a, u.d AS b FROM u FULL JOIN t ON t.a = u.a) WHERE b IS NULL OR a IS NULL",
    "SELECT t.a FROM t LEFT JOIN u ON t.a = u.a WHERE u.a IS NULL",
    "SELECT t.a FROM t LEFT JOIN u ON t.a <=> u.a WHERE t.a IS NULL AND u.d IS NULL",
    "SELECT t.a FROM t LEFT JOIN u ON t.a <=> u.a LEFT ANTI JOIN v ON u.d <=> v.a WHERE t.b = 1 AND u.d IS NULL",
    "SELECT t.a FROM t LEFT JOIN u ON t.a <=> u.a AND u.d = 1 LEFT ANTI JOIN v ON u.d <=> v.a",
    "SELECT t.a FROM t LEFT JOIN u ON t.a <=> u.a AND u.d = 1 JOIN v ON u.d <=> v.a WHERE v.a IS NULL",
    "SELECT t.a, t.b FROM t LEFT ANTI JOIN u ON t.a <=> u.a AND t.b = u.d WHERE t.a = 1",
    "SELECT a FROM (SELECT t.a FROM t LEFT SEMI JOIN u ON t.a <=> u.a) WHERE a IS NULL OR a = 1",
    "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a WHERE u.a = 1 AND t.a < 2",
    "SELECT a FROM (SELECT a, b FROM t ORDER BY a DESC, b LIMIT 3) WHERE a = 1",
    "SELECT a FROM (SELECT a, rank() OVER (ORDER BY a) AS r FROM t) WHERE a = 1 AND r = 1",
    "SELECT a FROM (SELECT a FROM t WHERE b = 1 UNION ALL SELECT d AS a FROM u WHERE a = 0) WHERE a = 1",
    "WITH c AS (SELECT a, b FROM t) SELECT x.a FROM c AS x JOIN c AS y ON x.a = y.b WHERE x.a = 1 AND y.b < 2",
    "SELECT x.a, y.b FROM v AS x JOIN v AS y ON x.a = y.b WHERE x.s = 's0' AND y.a = 1",
)


@pytest.mark.parametrize("text", TRAPS)
def test_nor_in_queries_that_tempt_to_drop_too_much(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    assert_nothing_is_missed(duck, text)


@given(queries())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_that_a_filter_drops_do_not_matter(duck: duckdb.DuckDBPyConnection, query: Query) -> None:
    assert_nothing_is_missed(duck, query[0])


def assert_nothing_is_missed(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    verdict = agree(text, TABLES)
    assert isinstance(verdict, Agreed), verdict
    filters = {name: needs.filter for name, needs in verdict.tables.items()}
    assert answer(duck, verdict.sql, ROWS, filters) == answer(duck, verdict.sql, ROWS, {})


def test_a_filter_that_says_too_much_is_noticed(duck: duckdb.DuckDBPyConnection) -> None:
    """The property above could not fail if rows were never dropped."""
    text = "SELECT a, n FROM (SELECT a, count(*) AS n FROM t GROUP BY 1) WHERE a = 1"
    verdict = agree(text, TABLES)
    assert isinstance(verdict, Agreed)
    rows: dict[str, list[tuple[Any, ...]]] = {"t": [(1, 1, "s"), (2, 1, "s")], "u": [], "views.v": []}
    wrong = agree("SELECT a FROM t WHERE a = 2", TABLES)
    assert isinstance(wrong, Agreed)
    assert answer(duck, verdict.sql, rows, {}) == [(1, 1)]
    assert answer(duck, verdict.sql, rows, {"t": wrong.tables["t"].filter}) == []
