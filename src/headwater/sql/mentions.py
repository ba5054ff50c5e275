"""Where a query names relations, and which of them may be topics or views of the lake.

Relations stand behind FROM, JOIN, TABLE and commas between relations; elsewhere `topics.orders` may be a column of
something called topics. The scan knows brackets, clauses and the scopes of common table expressions, and nothing else
of SQL: whether the query is valid is for the engines to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.aliases import alias_place
from headwater.sql.cursor import Cursor
from headwater.sql.moments import AsOf, read_as_of, read_changes
from headwater.sql.tokens import Token
from headwater.types import MAX_NAME, NAME, TOPICS, VIEWS

Kind = Literal["topic", "view", "any"]

FUNCTIONS: dict[str, Kind] = {"topic": "topic", "mv": "view"}
_NAMESPACES: dict[str, Kind] = {TOPICS: "topic", VIEWS: "view"}
_SHOWN: dict[Kind, str] = {"topic": "topic", "view": "materialized view", "any": "topic or view"}

_QUERY_STARTS = ("SELECT", "WITH", "FROM", "TABLE", "VALUES")
_SET_OPERATIONS = ("UNION", "INTERSECT", "EXCEPT", "MINUS", "ALL", "DISTINCT")
_AFTER_FROM = frozenset(
    (
        *("SELECT", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "MINUS"),
        *("ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "VIEW", "INSERT"),
    )
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A relation named at `[start, end)` of the text, with its AS OF or CHANGES clause at `[start, stop)`.

    An alias would stand at `alias_at`, which is None where the query gives one.
    """

    name: str
    kind: Kind
    written: str  # the name as it was written
    token: Token
    start: int
    end: int
    stop: int
    alias_at: int | None
    fresh: bool = False
    as_of: AsOf | None = None
    changes: tuple[AsOf, AsOf] | None = None


@dataclass(slots=True)
class _Level:
    """What is known about the innermost open bracket: whether it holds a query, and where in that query we are."""

    query: bool = False
    relation: bool = False  # the next token starts a relation
    in_from: bool = False  # a comma separates relations
    in_with: bool = False  # a comma separates common table expressions
    names_cte: bool = False  # the next word names a common table expression
    recursive: bool = False
    empty: bool = True
    defined: str | None = None  # the common table expression whose body comes next: not visible in it
    ctes: set[str] = field(default_factory=set)  # visible here and in the brackets inside


def scan(cursor: Cursor) -> tuple[list[Mention], set[str]]:
    """The relations of a query that no common table expression makes, and the names of all such expressions."""
    tokens = cursor.tokens
    mentions: list[Mention] = []
    ctes: set[str] = set()
    levels = [_Level(query=True)]
    skip_to = 0
    for place, token in enumerate(tokens):
        if place < skip_to:
            continue
        level = levels[-1]
        if level.relation and (found := _mention(cursor, place, levels)):
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
            _step(level, tokens, place)
            ctes |= {level.defined} if level.defined else set()
    return mentions, ctes


def _step(level: _Level, tokens: Sequence[Token], place: int) -> None:
    """Take one token that is neither a bracket nor a relation of the lake."""
    token = tokens[place]
    word = "" if place and tokens[place - 1].text == "." else token.keyword
    first, level.empty = level.empty, False
    if level.names_cte and token.kind in ("word", "quoted"):
        _define(level, token)
        return
    if level.defined and word != "AS":
        level.ctes.add(level.defined)
        level.defined = None
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
    elif word == "JOIN" or (word == "TABLE" and _is_table(level, tokens, place, first)):
        level.relation = True
        level.in_with = False
    elif word in _AFTER_FROM and not (word == "VIEW" and tokens[place - 1].keyword != "LATERAL"):
        level.in_from = level.in_with = False
    elif token.text == ">" and place and tokens[place - 1].text == "|":
        level.in_from = False


def _is_table(level: _Level, tokens: Sequence[Token], place: int, first: bool) -> bool:
    """Whether this TABLE is followed by a relation, and is not a column of that name."""
    before = tokens[place - 1]
    behind = level.in_with and before.text == ")"
    return first or behind or not level.query or before.keyword in _SET_OPERATIONS or tokens[place + 1].text == "("


def _define(level: _Level, token: Token) -> None:
    """Take the name of a common table expression, or the RECURSIVE before the first one."""
    if token.keyword == "RECURSIVE":
        level.recursive = True
        return
    level.defined, level.names_cte = token.value.lower(), False
    if level.recursive:
        level.ctes.add(level.defined)


def _is_distinct_from(tokens: Sequence[Token], place: int) -> bool:
    """Whether this FROM belongs to `IS [NOT] DISTINCT FROM`."""
    before = [token.keyword for token in tokens[max(0, place - 2) : place]]
    return before[-1:] == ["DISTINCT"] and before[0] in ("IS", "NOT")


def _mention(tokens_of: Cursor, place: int, levels: Sequence[_Level]) -> tuple[Mention, int] | None:
    """The relation that is named at this place, and the place behind it and its AS OF or CHANGES clause."""
    cursor = Cursor(tokens_of.text, tokens_of.tokens, tokens_of.context, place)
    start = cursor.token.start
    named = _called(cursor) or _qualified(cursor) or _plain(cursor)
    if named is None:
        return None
    end = cursor.tokens[cursor.place - 1].end
    as_of = read_as_of(cursor)
    changes = read_changes(cursor) if as_of is None else None
    name = named.token.value.lower()
    if named.kind == "any" and any(name in level.ctes for level in levels):
        if as_of is not None or changes is not None:
            message = f'common table expression "{named.token.value}" has no past'
            detail = "AS OF stands behind topics and views, CHANGES BETWEEN behind topics."
            raise cursor.located(InvalidStatement(message, detail=detail), named.token)
        return None
    if named.fresh and as_of is not None:
        raise cursor.located(InvalidStatement("a view is read fresh or AS OF, not both"), named.token)
    if named.kind == "view" and changes is not None:
        raise cursor.located(no_changes(name), named.token)
    stop = cursor.tokens[cursor.place - 1].end
    aliased = alias_place(cursor.tokens, cursor.place)
    about = (named.kind, named.written, named.token, start, end, stop, aliased, named.fresh, as_of, changes)
    return Mention(name, *about), cursor.place


def no_changes(view: str) -> HeadwaterError:
    """The error of who asks for the changes of a view."""
    return InvalidStatement(
        f'changes of materialized view "{view}" cannot be read',
        detail="CHANGES BETWEEN stands behind topics: a view's table holds states, not its rows.",
        hint="Ask the topics that it reads, or compare the view with itself AS OF another snapshot.",
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """A relation's name: what is known of its kind, its token, and how it is written in plain SQL."""

    kind: Kind
    token: Token
    written: str
    fresh: bool = False


def _called(cursor: Cursor) -> _Named | None:
    """`topic('x')`, `mv('v')` or `mv('v', fresh => true)`."""
    function = cursor.token.value.lower()
    if cursor.token.kind not in ("word", "quoted") or function not in FUNCTIONS or cursor.ahead(1).text != "(":
        return None
    kind, called = FUNCTIONS[function], cursor.token
    cursor.skip(2)
    token = cursor.token
    if token.kind != "string":
        raise _refused_call(cursor, function, called)
    cursor.advance()
    fresh = kind == "view" and cursor.accept_symbol(",") and _read_fresh(cursor, called)
    if not cursor.accept_symbol(")"):
        raise _refused_call(cursor, function, called)
    return _Named(kind, token, cursor.checked(token.value, _SHOWN[kind], token), fresh)


def _read_fresh(cursor: Cursor, called: Token) -> bool:
    """`fresh => true` or `fresh => false`."""
    words = [cursor.ahead(place).text.lower() for place in range(4)]
    if words[:3] != ["fresh", "=", ">"] or words[3] not in ("true", "false"):
        raise _refused_call(cursor, "mv", called)
    cursor.skip(4)
    return words[3] == "true"


def _refused_call(cursor: Cursor, function: str, called: Token) -> HeadwaterError:
    if function == "mv":
        hint = "Write mv('daily_sales') or mv('daily_sales', fresh => true)."
        return cursor.located(InvalidStatement("mv() takes one name in quotes, and fresh", hint=hint), called)
    hint = "Write topic('orders')."
    return cursor.located(InvalidStatement(f"{function}() takes one name in quotes", hint=hint), called)


def _qualified(cursor: Cursor) -> _Named | None:
    """`topics.x` or `views.v`."""
    first, dot, name, behind = (cursor.ahead(place) for place in range(4))
    kind = _NAMESPACES.get(first.value.lower()) if first.kind in ("word", "quoted") else None
    if kind is None or dot.text != "." or name.kind not in ("word", "quoted"):
        return None
    if behind.text == ".":  # a table inside the topic's table, which is not the topic
        return None
    cursor.checked(name.value.lower(), _SHOWN[kind], name)
    cursor.skip(3)
    return _Named(kind, name, name.text)


def _plain(cursor: Cursor) -> _Named | None:
    """A name alone, if a topic or a view can have it."""
    token, following = cursor.token, cursor.ahead(1)
    if token.kind not in ("word", "quoted") or token.keyword in (*_QUERY_STARTS, "LATERAL"):
        return None
    if (following.kind == "symbol" and following.text in "(.") or not _is_name(token.value.lower()):
        return None
    cursor.advance()
    return _Named("any", token, token.text)


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and NAME.match(name) is not None
