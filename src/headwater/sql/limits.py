"""How large a statement may be, checked on its tokens before any parser sees it.

Parsers and planners take time and memory that grow faster than the text: a kilobyte of brackets can take a minute. The
limits hold for every statement, view definitions, conditions of DELETE, UPDATE and streams, and hints included.

Keywords may be names in Spark, so the depth of CASE cannot be known from tokens alone. Where a word may be either, it
counts as what nests deeper: a limit that is too strict for a column called `case` is better than one that a column
called `end` evades.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import InvalidStatement

if TYPE_CHECKING:
    from headwater.sql.tokens import Token

MAX_LENGTH = 1_000_000
"""Characters of a statement."""
MAX_TOKENS = 50_000
"""Words, names, literals and symbols of a statement."""
MAX_NESTING = 100
"""Brackets, CASE, lambdas, types and prefix operators inside each other."""

_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_OPENING.values())
_TYPES = frozenset({"ARRAY", "MAP", "STRUCT"})
_PREFIXES = frozenset({"-", "+", "~", "!"})
_END = "END"
_ARROW = "->"
_UNBRACKETED = (_END, _ARROW)
"""What no comma continues: in a list of expressions, CASE and lambdas end with their element."""
_AFTER_A_NAME = frozenset(")]},;.=<>*/%&|^")
"""Symbols before which `case` is a column: no expression begins with one of them."""
_BEFORE_AN_OPERAND = frozenset(
    (
        *("CASE", "WHEN", "THEN", "ELSE", "AND", "OR", "NOT", "IS", "DISTINCT", "FROM", "IN", "BETWEEN", "DIV"),
        *("LIKE", "ILIKE", "RLIKE", "REGEXP", "ESCAPE", "ANY", "SOME", "ALL", "COLLATE", "OVER"),
    )
)
"""Words after which `end` is a column: an expression cannot end with one of them."""


def check_nesting(statement: Sequence[Token]) -> None:
    """InvalidStatement if a statement is nested too deeply."""
    if nesting(statement) > MAX_NESTING:
        raise too_deep()


def too_long() -> InvalidStatement:
    return InvalidStatement("statement is too long", detail=f"At most {MAX_LENGTH:,} characters are accepted.")


def too_many_parts() -> InvalidStatement:
    return InvalidStatement(
        "statement has too many parts",
        detail=f"At most {MAX_TOKENS:,} words, literals and symbols are accepted.",
        hint="Put long lists of values into a topic, and join it.",
    )


def too_deep() -> InvalidStatement:
    return InvalidStatement("statement is nested too deeply", hint="Split it with WITH.")


def nesting(tokens: Sequence[Token]) -> int:
    """How many brackets, CASEs, lambdas, types and prefix operators may be open at once, at the most.

    The count ends above MAX_NESTING: neither time nor memory grows with what a text leaves open.
    """
    open_ends: list[str] = []
    deepest = prefixes = 0
    for place, token in enumerate(tokens):
        word = token.keyword
        is_arrow = _is_arrow(tokens, place)
        is_prefix = (token.kind == "symbol" and token.text in _PREFIXES and not is_arrow) or word == "NOT"
        prefixes = prefixes + 1 if is_prefix else 0
        if is_arrow:
            open_ends.append(_ARROW)
        elif token.kind == "symbol":
            _follow_symbol(open_ends, tokens, place)
        elif word == "CASE" and not _is_name(tokens, place):
            open_ends.append(_END)
        elif word == _END and open_ends and open_ends[-1] == _END and _ends_case(tokens, place):
            open_ends.pop()
        deepest = max(deepest, len(open_ends) + prefixes)
        if deepest > MAX_NESTING:
            break
    return deepest


def _follow_symbol(open_ends: list[str], tokens: Sequence[Token], place: int) -> None:
    symbol = tokens[place].text
    if symbol in _OPENING:
        open_ends.append(_OPENING[symbol])
    elif symbol == "<" and place and tokens[place - 1].keyword in _TYPES:
        open_ends.append(">")
    elif symbol in _CLOSING and symbol in open_ends:
        while open_ends.pop() != symbol:  # what is left open inside of a bracket ends with it
            pass
    elif symbol == ">" and open_ends and open_ends[-1] == ">" and not (place and _is_arrow(tokens, place - 1)):
        open_ends.pop()
    elif symbol == ",":
        while open_ends and open_ends[-1] in _UNBRACKETED:
            open_ends.pop()


def _is_arrow(tokens: Sequence[Token], place: int) -> bool:
    """Whether `->` begins here, which the tokens have as two symbols."""
    token, following = tokens[place], tokens[place + 1] if place + 1 < len(tokens) else None
    return (
        token.kind == "symbol"
        and token.text == "-"
        and following is not None
        and (following.text, following.start) == (">", token.end)
    )


def _is_name(tokens: Sequence[Token], place: int) -> bool:
    """Whether CASE can only be the name of a column here, which Spark allows."""
    following = tokens[place + 1] if place + 1 < len(tokens) else None
    if following is None or (place and tokens[place - 1].text == "."):
        return True
    return following.kind == "symbol" and following.text in _AFTER_A_NAME


def _ends_case(tokens: Sequence[Token], place: int) -> bool:
    """Whether END cannot be the name of a column here: an operand precedes it."""
    before = tokens[place - 1]
    if before.kind == "symbol":
        return before.text in _CLOSING or before.text == ">"
    return before.keyword not in _BEFORE_AN_OPERAND
