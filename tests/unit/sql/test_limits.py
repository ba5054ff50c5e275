"""Statements that are too large are refused by their tokens, before any parser sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidStatement
from headwater.sql.limits import MAX_LENGTH, MAX_NESTING, MAX_TOKENS, nesting
from headwater.sql.parse import parse, parse_script
from headwater.sql.tokens import Token, tokenise, tokens_of

KINDS: dict[str, Callable[[str], str]] = {
    "parentheses": lambda inside: f"({inside})",
    "function calls": lambda inside: f"abs({inside})",
    "CASE": lambda inside: f"CASE WHEN a THEN {inside} END",
    "CASE with an operand": lambda inside: f"CASE a WHEN 1 THEN 2 ELSE {inside} END",
    "subqueries": lambda inside: f"(SELECT {inside})",
    "arrays": lambda inside: f"a[{inside}]",
    "lambdas": lambda inside: f"x -> {inside}",
    "NOT": lambda inside: f"NOT {inside}",
    "minus": lambda inside: f"- {inside}",
    # Spark allows keywords as names of columns; none of these makes the CASE around it end.
    "CASE of a column desc": lambda inside: f"CASE desc WHEN 1 THEN {inside} END",
    "CASE of a field of desc": lambda inside: f"CASE desc.a WHEN 1 THEN {inside} END",
    "CASE of a column in": lambda inside: f"CASE in WHEN 1 THEN {inside} END",
    "CASE of a column end": lambda inside: f"CASE end WHEN 1 THEN {inside} END",
    "CASE WHEN a column end": lambda inside: f"CASE WHEN end THEN {inside} END",
    "CASE WHEN divided by end": lambda inside: f"CASE WHEN 1 DIV end = 1 THEN {inside} END",
    "CASE WHEN a field end": lambda inside: f"CASE WHEN t.end THEN {inside} END",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_nesting_is_limited(kind: str) -> None:
    text = "1"
    for _ in range(MAX_NESTING):
        text = KINDS[kind](text)
    parse(f"SELECT {text}")
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        parse(f"SELECT {KINDS[kind](text)}")


def test_types_and_comments_nest_too() -> None:
    def cast(depth: int) -> str:
        return "SELECT CAST(x AS " + "ARRAY<" * depth + "INT" + ">" * depth + ")"

    parse(cast(MAX_NESTING - 1))
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        parse(cast(MAX_NESTING))
    parse("SELECT " + "/*" * MAX_NESTING + "*/" * MAX_NESTING + " 1")
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        parse("SELECT " + "/*" * 101 + "*/" * 101 + " 1")


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=30))
def test_kinds_add_up(kinds: list[str]) -> None:
    """Every bracket and CASE counts; of operators before brackets, those that stand next to each other."""
    text = "1"
    for kind in kinds:
        text = KINDS[kind](text)
    brackets = sum(kind not in ("NOT", "minus") for kind in kinds)
    assert brackets <= nesting(tokenise(f"SELECT {text}")) <= len(kinds)


@pytest.mark.parametrize("kind", KINDS)
def test_hints_are_part_of_the_statement(kind: str) -> None:
    """Spark parses any expression in a hint."""
    text = "1"
    for _ in range(MAX_NESTING):
        text = KINDS[kind](text)
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        parse(f"SELECT /*+ COALESCE({text}) */ a FROM t")
    with pytest.raises(InvalidStatement, match="too many parts"):
        parse(f"SELECT /*+ COALESCE({', '.join(['1'] * (MAX_TOKENS // 2))}) */ a FROM t")


@pytest.mark.parametrize("hint", ["/*+ COALESCE('*/') */", "/*+ COALESCE(1 -- */ '\n) */", "/*+ COALESCE(/* */ 1) */"])
def test_a_hint_ends_where_spark_says(hint: str) -> None:
    """Strings and comments in a hint hide its end; if ours came earlier, a string could hide brackets from us."""
    assert [token.text for token in tokenise(f"SELECT {hint} a, 'b'")] == ["SELECT", "a", ",", "'b'", ""]
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        parse(f"SELECT {hint} {'(' * 200}1{')' * 200} -- '")


@pytest.mark.parametrize("hint", ["/*+ COALESCE(1)", "/*+ COALESCE(1) -- */", "/*+ '*/'"])
def test_a_hint_that_does_not_end_is_refused(hint: str) -> None:
    with pytest.raises(InvalidStatement, match="hint is not closed"):
        parse(f"SELECT {hint}")


def test_what_only_looks_nested_is_not() -> None:
    names = ["case", "t.case", "case = 1", "case + 1", "case IS NULL", "a < 1", "b > 2", "'((('", "`((`", "x -> x"]
    parse("SELECT " + ", ".join(names * 300) + " FROM t")
    parse("SELECT " + " + ".join(["CASE WHEN a THEN 1 END", "CASE WHEN (end) THEN b[end] END"] * 1000))
    parse("SELECT " + " + ".join(["CASE CASE WHEN a THEN b END WHEN c THEN CAST(d AS ARRAY<INT>) END"] * 500))
    parse("SELECT " + ", ".join(["-1", "NOT a"] * 1000))


class Watched(Sequence[Token]):
    """Tokens that remember the last one that was looked at."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self.furthest = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, place: Any) -> Any:
        self.furthest = max(self.furthest, place)
        return self._tokens[place]


def test_work_ends_where_a_limit_is_passed() -> None:
    """A statement that is refused must not take longer than one that is accepted."""
    tokens = Watched(
        [Token("symbol", each, place, place + 1) for place, each in enumerate("(" * 20_000 + "]" * 20_000)]
    )
    assert nesting(tokens) == MAX_NESTING + 1
    assert tokens.furthest <= MAX_NESTING + 2
    found = 0
    with pytest.raises(InvalidStatement, match="too many parts"):
        for _ in tokens_of("(" * 500_000):
            found += 1
    assert found <= MAX_TOKENS + 1
    with pytest.raises(InvalidStatement, match="too long"):
        for _ in tokens_of("SELECT " + "/**/ " * MAX_LENGTH):
            found += 1
    assert found <= MAX_TOKENS + 2


def test_statements_are_read_one_by_one() -> None:
    with pytest.raises(InvalidStatement, match="found 20001"):
        parse("SELECT 1" + ";;SELECT 1" * 20_000)


def test_length_and_parts_are_limited_for_each_statement() -> None:
    values = ", ".join(["1"] * (MAX_TOKENS // 2 - 10))
    parse(f"SELECT 1 IN ({values})")
    assert len(parse_script(f"SELECT 1 IN ({values}); SELECT 2 IN ({values})")) == 2
    with pytest.raises(InvalidStatement, match="too many parts"):
        parse(f"SELECT 1 IN ({values}, {values})")
    parse("SELECT '" + "x" * (MAX_LENGTH - 20) + "'")
    with pytest.raises(InvalidStatement, match="too long"):
        parse("SELECT '" + "x" * MAX_LENGTH + "'")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MATERIALIZED VIEW v AS SELECT {} AS x FROM t",
        "DELETE FROM t WHERE {} = 1",
        "UPDATE t SET a = {} WHERE b = 1",
        "EXPLAIN SELECT {}",
        "CREATE TOPIC t (a {})",
    ],
)
def test_every_statement_is_limited(statement: str) -> None:
    deep = "ARRAY<" * 200 + "INT" + ">" * 200 if "TOPIC" in statement else "(" * 200 + "1" + ")" * 200
    with pytest.raises(InvalidStatement, match="nested too deeply"):
        parse(statement.format(deep))
