"""What in FROM has windows, for a stream: tables with windows, and inner queries that group by one.

A SELECT that groups by the bounds of such a source groups by its window. An inner query then shows its window as one
more column, under a name that nothing else has, and only to the SELECT around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headwater.sql.aliases import alias_place
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import split_items
from headwater.sql.tokens import Token
from headwater.sql.window_calls import Block, Function, is_item
from headwater.sql.window_rules import Tokens, named_item
from headwater.sql.window_tables import TableCall

BOUNDS = {"window_start": "start", "window_end": "end"}
_BEFORE_COLUMN = frozenset(
    (
        *("SELECT", "DISTINCT", "ALL", "WHERE", "BY", "HAVING", "ON", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE"),
        *("CASE", "WHEN", "THEN", "ELSE", "FROM", "IS", "DIV", "QUALIFY", "INTERVAL"),
    )
)


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """The window by which one SELECT groups: how time is cut, the text of the timestamp that is, and the words of FROM,
    among them the relations that it may be of."""

    function: Function
    moment: str
    slide_micros: int
    size_micros: int
    words: frozenset[str] = field(default=frozenset(), repr=False)

    def cuts_like(self, other: StreamWindow) -> bool:
        """Whether windows of both that start together are the same."""
        sizes = (self.slide_micros, self.size_micros) == (other.slide_micros, other.size_micros)
        return sizes and "SESSION" not in (self.function, other.function)


@dataclass(frozen=True, slots=True)
class Produced:
    """What a SELECT that groups by a window gives the one around it: which of its columns are bounds."""

    block: Block
    window: StreamWindow
    column: str  # what the window is called inside it
    bounds: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Source:
    """A relation of FROM whose rows have a window in `column`, and its bounds in others."""

    name: str
    column: str
    bounds: Mapping[str, str]
    window: StreamWindow
    alone: bool  # nothing else in FROM can be meant by a name without its own
    table: TableCall | None = None
    inner: Produced | None = field(default=None, repr=False)


def derived_sources(cursor: Cursor, block: Block, produced: Sequence[Produced], names: Sequence[str]) -> list[Source]:
    """The inner queries of a SELECT's FROM that group by a window; each shows it under a name of `names`."""
    found = []
    for each, name in zip(produced, names, strict=True):
        # Sessions that overlap become one wherever their column is a key: only their own SELECT may group by it.
        if each.window.function == "SESSION" or not _is_relation_of(cursor, block, each.block):
            continue
        behind = each.block.end + 1
        aliased = alias_place(cursor.tokens, behind) is None
        alias = cursor.tokens[behind + (cursor.tokens[behind].keyword == "AS")].value if aliased else ""
        found.append(Source(alias, name, each.bounds, each.window, reads_one(cursor, block), inner=each))
    return found


def reads_one(cursor: Cursor, block: Block) -> bool:
    """Whether FROM has one relation only."""
    depth = 0
    for token in block.inside("FROM", cursor.tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and (token.text == "," or token.keyword == "JOIN"):
            return False
    return True


def mentions(cursor: Cursor, block: Block, source: Source) -> Iterator[Tokens]:
    """Where a SELECT names bounds of a source: `window_start`, or `t.window_start`."""
    tokens = cursor.tokens
    for place in own_places(cursor, block):
        token, before = tokens[place], tokens[place - 1]
        if token.kind not in ("word", "quoted") or token.value.lower() not in source.bounds:
            continue
        if before.text == ".":
            if tokens[place - 2].value.lower() == source.name.strip("`").lower():
                yield tokens[place - 2], before, token
        elif source.alone and tokens[place + 1].text not in (".", "(") and not _names_item(before):
            yield (token,)


def bounds_selected(cursor: Cursor, block: Block, bounds: Mapping[int, tuple[int, str, str]]) -> dict[str, str]:
    """The columns of a SELECT that are bounds; `bounds` has them by where they start: end, which, and its name."""
    selected = block.inside("SELECT", cursor.tokens)
    if not selected or selected[0].keyword == "DISTINCT":
        return {}
    found = {}
    for item in split_items(selected):
        tokens, name = named_item(item)
        known = bounds.get(tokens[0].start) if tokens else None
        if known is not None and tokens[-1].end == known[0]:
            found[name or known[2]] = known[1]
    return found


def own_places(cursor: Cursor, block: Block) -> Iterator[int]:
    """The places of a SELECT's tokens, without those of the queries inside it and of FROM's tables."""
    if not block.clauses:
        return
    tokens = cursor.tokens
    skipped = [(table.start, table.end) for table in block.tables]
    depth, inner = 0, None
    for place in range(block.clauses[0][1], block.end):
        token = tokens[place]
        if token.text == "(":
            depth += 1
            if inner is None and tokens[place + 1].keyword in ("SELECT", "WITH", "FROM", "VALUES"):
                inner = depth
        elif token.text == ")":
            inner = None if inner == depth else inner
            depth -= 1
        elif inner is None and not any(start <= token.start < end for start, end in skipped):
            yield place


def is_nameless(cursor: Cursor, block: Block, mention: Tokens) -> bool:
    """Whether a mention is a whole item of SELECT, which then is called as the column was."""
    place = cursor.tokens.index(mention[0])
    listed = split_items(block.inside("SELECT", cursor.tokens))
    whole = any(item and item[-1] == mention[-1] for item in listed)
    return whole and is_item(cursor.tokens[place - 1], cursor.tokens[place + len(mention)])


def _names_item(before: Token) -> bool:
    """Whether a name behind this token is an alias, and no column."""
    ends = before.kind in ("quoted", "string", "number") or before.text in (")", "]")
    return ends or before.keyword == "AS" or (before.kind == "word" and before.keyword not in _BEFORE_COLUMN)


def _is_relation_of(cursor: Cursor, block: Block, inner: Block) -> bool:
    """Whether a SELECT stands in brackets of its own, as a relation of another's FROM."""
    tokens, start = cursor.tokens, block.place_of("FROM")
    opened = inner.clauses[0][1] - 1
    if start is None or opened <= start or opened < 1 or tokens[opened].text != "(" or tokens[inner.end].text != ")":
        return False
    stop = min((place for _, place in block.clauses if place > start), default=block.end)
    between = tokens[start + 1 : opened]
    depth = sum((token.text == "(") - (token.text == ")") for token in between)
    before = tokens[opened - 1]
    return opened < stop and depth == 0 and (before.text == "," or before.keyword in ("FROM", "JOIN"))
