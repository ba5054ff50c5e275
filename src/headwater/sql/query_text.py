"""A query inside a statement: where it starts and ends, and that it cannot escape from what it is put into.

Its text is kept as it was written. What it means is for the engines to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.statements import Query
from headwater.sql.tokens import Token

QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")


def at_query(cursor: Cursor) -> bool:
    """Whether a query starts here."""
    return cursor.token.keyword in QUERY_WORDS or cursor.at_symbol("(")


def read_query(cursor: Cursor) -> Query:
    """The rest of the statement as a query, its text as it was written, without the clause about the tail."""
    start = cursor.token
    tokens = cursor.rest()
    query, tail = _without_tail(cursor, tokens)
    if not query:
        raise cursor.located(InvalidStatement("WITH TAIL stands alone", hint="Put it at the end of a query."), start)
    check_brackets(cursor, query)
    return Query(text_of(cursor, query), tail=tail)


def text_of(cursor: Cursor, tokens: Sequence[Token]) -> str:
    """The text from the first token to the last, as it was written."""
    return cursor.text[tokens[0].start : tokens[-1].end]


def split_items(tokens: Sequence[Token]) -> list[tuple[Token, ...]]:
    """What commas outside brackets separate; a part may be empty."""
    depth = 0
    parts: list[list[Token]] = [[]]
    for token in tokens:
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if depth == 0 and token.text == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts]


def ends_with_tail(tokens: Sequence[Token]) -> bool:
    """Whether the clause about the tail ends a query."""
    return [token.keyword for token in tokens[-3:]] in (["WITH", "TAIL", "ON"], ["WITH", "TAIL", "OFF"])


def check_brackets(cursor: Cursor, tokens: Sequence[Token]) -> None:
    """Refuse text whose brackets do not match: put inside a query, it could escape from its own."""
    opened: list[Token] = []
    for token in tokens:
        if token.text == "(":
            opened.append(token)
        elif token.text == ")":
            if not opened:
                raise cursor.located(InvalidStatement('bracket ")" was not opened'), token)
            opened.pop()
    if opened:
        raise cursor.located(InvalidStatement('bracket "(" is not closed'), opened[-1])


def _without_tail(cursor: Cursor, tokens: tuple[Token, ...]) -> tuple[tuple[Token, ...], bool]:
    """The tokens before a trailing WITH TAIL ON or OFF, and whether the tail is read."""
    words = [token.keyword for token in tokens]
    trailing = ends_with_tail(tokens)
    end = len(tokens) - 3 if trailing else len(tokens)
    for place in range(end):
        following = words[place : min(place + 3, end)]
        # A common table expression may be called tail, but then more than one word follows its name.
        unfinished = len(following) < 3 or (place + 3 == end and following[2] != "")
        if following[:2] == ["WITH", "TAIL"] and (unfinished or following[2] in ("ON", "OFF")):
            hint = "End the query with WITH TAIL ON or WITH TAIL OFF, once."
            raise cursor.located(InvalidStatement("WITH TAIL is misplaced", hint=hint), tokens[place])
    return tokens[:end], not trailing or words[-1] == "ON"
