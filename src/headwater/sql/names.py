"""`topic('orders')` and `topics.orders` in a query become `orders`; nothing else in the text changes.

Only relations are rewritten (behind FROM, JOIN, TABLE, and commas between relations), since elsewhere `topics.orders`
may be a column of something called topics. The rewritten name is padded to the old length, so that the line and column
of an error are those of the text that the user wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.tokens import Token, tokenise
from headwater.types import TOPICS, checked_name

_FUNCTION = "topic"
_QUERY_STARTS = ("SELECT", "WITH", "FROM", "TABLE", "VALUES")
_AFTER_FROM = frozenset(
    (
        *("SELECT", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "MINUS"),
        *("ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "VIEW", "INSERT"),
    )
)


@dataclass(slots=True)
class _Level:
    """What is known about the innermost open bracket: whether it holds a query, and where in that query we are."""

    query: bool = False
    relation: bool = False  # the next token starts a relation
    in_from: bool = False  # a comma separates relations
    in_with: bool = False  # a comma separates common table expressions
    names_cte: bool = False  # the next word names a common table expression
    empty: bool = True


@dataclass(frozen=True, slots=True)
class _Mention:
    """A topic that the text names as a relation, at `[start, end)`."""

    name: str
    start: int
    end: int
    token: Token


def normalise_topics(text: str) -> str:
    """The query with every relation `topic('x')` and `topics.x` as plain `x`, at unchanged lines and columns."""
    if _FUNCTION not in text.lower():
        return text
    cursor = Cursor(text, tokenise(text), context="query")
    mentions, ctes = _scan(cursor)
    result, position = [], 0
    for mention in mentions:
        if mention.token.value.lower() in ctes:
            raise _refused_shadowed(cursor, mention)
        result += [text[position : mention.start], _padded(mention.name, text[mention.start : mention.end])]
        position = mention.end
    return "".join((*result, text[position:]))


def _padded(name: str, replaced: str) -> str:
    """The name, then as much space as keeps everything behind it where it was."""
    lines = replaced.split("\n")
    if len(lines) == 1:
        return name.ljust(len(replaced))
    return name + "\n" * (len(lines) - 1) + " " * len(lines[-1])


def _refused_shadowed(cursor: Cursor, mention: _Mention) -> HeadwaterError:
    """A plain name would mean the common table expression, and silently read something else."""
    return cursor.located(
        InvalidStatement(
            f'name "{mention.token.value}" is both a topic and a common table expression in this query',
            hint=f"Rename the expression in WITH {mention.name} AS (...).",
        ),
        mention.token,
    )


def _scan(cursor: Cursor) -> tuple[list[_Mention], set[str]]:
    """The topics that are named as relations, and the lower-cased names of the common table expressions."""
    tokens = cursor.tokens
    mentions: list[_Mention] = []
    ctes: set[str] = set()
    levels = [_Level(query=True)]
    skip_to = 0
    for place, token in enumerate(tokens):
        if place < skip_to:
            continue
        level = levels[-1]
        if level.relation and (found := _mention(cursor, place)):
            mention, skip_to = found
            mentions.append(mention)
            level.relation = level.empty = False
        elif token.text == "(":
            levels.append(_Level(relation=level.relation, in_from=level.relation))
            level.relation = level.names_cte = level.empty = False
        elif token.text == ")":
            if len(levels) > 1:
                levels.pop()
        else:
            _step(level, tokens, place, ctes)
    return mentions, ctes


def _step(level: _Level, tokens: Sequence[Token], place: int, ctes: set[str]) -> None:
    """Take one token that is neither a bracket nor a topic."""
    token = tokens[place]
    word = "" if place and tokens[place - 1].text == "." else token.keyword
    first, level.empty = level.empty, False
    if level.names_cte and token.kind in ("word", "quoted") and word != "RECURSIVE":
        ctes.add(token.value.lower())
        level.names_cte = False
        return
    if token.text == ",":
        level.relation, level.names_cte = level.in_from, level.in_with
        return
    level.relation = False
    if first and word in _QUERY_STARTS:
        level.query = True
    if word == "WITH" and first:
        level.in_with, level.names_cte, level.in_from = True, True, False
    elif word == "FROM" and level.query and not _is_distinct_from(tokens, place):
        level.relation, level.in_from, level.in_with = True, True, False
    elif word in ("JOIN", "TABLE"):
        level.relation = True
        level.in_with = False
    elif word in _AFTER_FROM and not (word == "VIEW" and tokens[place - 1].keyword != "LATERAL"):
        level.in_from = level.in_with = False
    elif token.text == ">" and place and tokens[place - 1].text == "|":
        level.in_from = False


def _is_distinct_from(tokens: Sequence[Token], place: int) -> bool:
    """Whether this FROM belongs to `IS [NOT] DISTINCT FROM`."""
    before = [token.keyword for token in tokens[max(0, place - 2) : place]]
    return before[-1:] == ["DISTINCT"] and before[0] in ("IS", "NOT")


def _mention(cursor: Cursor, place: int) -> tuple[_Mention, int] | None:
    """The topic that is named at this place, and the place behind it."""
    tokens = cursor.tokens
    token, following = tokens[place], tokens[min(place + 1, len(tokens) - 1)]
    if token.kind not in ("word", "quoted") or following.kind != "symbol":
        return None
    if token.value.lower() == _FUNCTION and following.text == "(":
        return _call(cursor, place)
    if token.value.lower() == TOPICS and following.text == "." and tokens[place + 2].kind in ("word", "quoted"):
        name = tokens[place + 2]
        if tokens[place + 3].text == ".":  # a table inside the topic's table, which is not the topic
            return None
        with cursor.locating(name):
            checked_name(name.value.lower(), "topic")
        return _Mention(name.text, token.start, name.end, name), place + 3
    return None


def _call(cursor: Cursor, place: int) -> tuple[_Mention, int]:
    """`topic('x')`, which takes one name in quotes and nothing else."""
    tokens = cursor.tokens
    name = tokens[min(place + 2, len(tokens) - 1)]
    close = tokens[min(place + 3, len(tokens) - 1)]
    if name.kind != "string" or close.text != ")":
        raise cursor.located(
            InvalidStatement("topic() takes one name in quotes", hint="Write topic('orders')."), tokens[place]
        )
    with cursor.locating(name):
        checked_name(name.value, "topic")
    return _Mention(name.value, tokens[place].start, close.end, name), place + 4
