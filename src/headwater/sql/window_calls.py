"""Where a query calls TUMBLE, HOP, SESSION and their bounds, and the SELECT that each call belongs to.

A call groups (`GROUP BY TUMBLE(ts, '1 hour')`), names a bound of a window (`TUMBLE_START(...)`), or stands in FROM and
makes a table with windows of another (`TUMBLE(TABLE t, DESCRIPTOR(ts), '1 hour')`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from headwater.sql.cursor import Cursor
from headwater.sql.query_text import QUERY_WORDS, split_items
from headwater.sql.tokens import Token
from headwater.sql.window_tables import TableCall, read_table_call

Function = Literal["TUMBLE", "HOP", "SESSION"]

FUNCTIONS: tuple[Function, ...] = ("TUMBLE", "HOP", "SESSION")
_CALLED = tuple(f"{name}{bound}" for name in FUNCTIONS for bound in ("", "_START", "_END"))
_SET_OPERATIONS = ("UNION", "INTERSECT", "EXCEPT", "MINUS", "SETMINUS")
_BEFORE_BY = ("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE")
_CLAUSES = ("SELECT", "FROM", "WHERE", "HAVING", "LIMIT", "OFFSET", "QUALIFY", *_BEFORE_BY)
_BEHIND_ITEM = ("FROM", "WHERE", "GROUP", "LATERAL", "HAVING")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its name, the tokens of each argument, and where it stands."""

    token: Token
    arguments: tuple[tuple[Token, ...], ...]
    end: int
    clause: str
    nameless: bool  # it is a whole item of SELECT without an alias

    @property
    def function(self) -> Function:
        return cast(Function, self.token.keyword.partition("_")[0])

    @property
    def bound(self) -> str:
        """START, END, or an empty text for the window itself."""
        return self.token.keyword.partition("_")[2]


@dataclass(slots=True)
class Block:
    """One SELECT: its calls, and its clauses as far as they matter here."""

    calls: list[Call] = field(default_factory=list)
    tables: list[TableCall] = field(default_factory=list)
    clauses: list[tuple[str, int]] = field(default_factory=list)  # each with the place of its first word
    end: int = 0  # the place behind it
    piped: bool = False

    @property
    def clause(self) -> str:
        """The clause that is being read."""
        return self.clauses[-1][0] if self.clauses else ""

    def place_of(self, word: str) -> int | None:
        return next((place for clause, place in self.clauses if clause == word), None)

    def inside(self, word: str, tokens: Sequence[Token]) -> tuple[Token, ...]:
        """The tokens of a clause behind its words; none if the SELECT has no such clause."""
        start = self.place_of(word)
        if start is None:
            return ()
        stop = min((place for _, place in self.clauses if place > start), default=self.end)
        return tuple(tokens[start + (2 if word in _BEFORE_BY else 1) : stop])


@dataclass(frozen=True, slots=True)
class _Level:
    """An open bracket: the SELECT that is inside it, or around it if it holds no query of its own."""

    block: Block
    query: bool


def blocks_of(cursor: Cursor) -> list[Block]:
    """The SELECTs of a query that call any of the functions."""
    return [block for block in all_blocks(cursor) if block.calls or block.tables]


def all_blocks(cursor: Cursor) -> list[Block]:
    """Every SELECT of a query, in the order in which they start."""
    tokens = cursor.tokens
    blocks = [Block()]
    levels = [_Level(blocks[0], True)]
    place = 0
    while tokens[place].kind != "end":
        token, level = tokens[place], levels[-1]
        if token.text == "(":
            query = tokens[place + 1].keyword in QUERY_WORDS
            levels.append(_Level(Block() if query else level.block, query))
            blocks += [levels[-1].block] if query else []
        elif token.text == ")" and len(levels) > 1:
            closed = levels.pop()
            if closed.query:
                closed.block.end = place
        elif _is_call(tokens, place) and tokens[place + 2].keyword == "TABLE":
            level.block.tables.append(read_table_call(cursor, place, level.block.clause))
            levels.append(_Level(level.block, False))  # its table may be a query with windows of its own
            place += 2
        elif _is_call(tokens, place):
            call, place = _call(tokens, place, level)
            level.block.calls.append(call)
            continue
        elif level.query and _is_set_operation(tokens, place):
            level.block.end = place
            levels[-1] = _Level(Block(), True)
            blocks.append(levels[-1].block)
        elif level.query:
            _step(level.block, tokens, place)
        place += 1
    for level in levels:
        level.block.end = level.block.end or place
    return blocks


def _step(block: Block, tokens: Sequence[Token], place: int) -> None:
    """Take one token outside brackets of its SELECT: it may start a clause."""
    token, before, behind = tokens[place], tokens[place - 1], tokens[place + 1]
    word = token.keyword
    if token.text == ">" and before.text == "|":
        block.piped = True
    elif place and (before.text in (",", ".") or before.keyword == "BY"):
        return  # a column may be called like a clause
    elif word == "FROM" and before.keyword == "DISTINCT" and tokens[place - 2].keyword in ("IS", "NOT"):
        return
    elif word == "WINDOW":
        if tokens[min(place + 2, len(tokens) - 1)].keyword == "AS":
            block.clauses.append((word, place))
    elif word in _CLAUSES and (word not in _BEFORE_BY or behind.keyword == "BY"):
        block.clauses.append((word, place))


def _is_set_operation(tokens: Sequence[Token], place: int) -> bool:
    """Whether another SELECT follows; `* EXCEPT (a)` only leaves columns out."""
    return tokens[place].keyword in _SET_OPERATIONS and tokens[place - 1].text not in ("*", ".", ",")


def _is_call(tokens: Sequence[Token], place: int) -> bool:
    called = tokens[place].keyword in _CALLED and tokens[place + 1].text == "("
    return called and (place == 0 or tokens[place - 1].text != ".")


def _call(tokens: Sequence[Token], place: int, level: _Level) -> tuple[Call, int]:
    """The call at this place, and the place behind it."""
    depth, end = 1, place + 2
    while tokens[end].kind != "end":
        depth += (tokens[end].text == "(") - (tokens[end].text == ")")
        if depth == 0:
            break
        end += 1
    arguments = tuple(split_items(tokens[place + 2 : end]))
    behind = tokens[min(end + 1, len(tokens) - 1)]
    nameless = level.query and level.block.clause == "SELECT" and is_item(tokens[place - 1], behind)
    call = Call(tokens[place], arguments, tokens[end].end, level.block.clause, nameless)
    return call, min(end + 1, len(tokens) - 1)


def is_item(before: Token, behind: Token) -> bool:
    """Whether what stands between two tokens is a whole item of SELECT without an alias."""
    starts = before.text == "," or before.keyword in ("SELECT", "DISTINCT", "ALL")
    return starts and (behind.text in (",", ")") or behind.kind == "end" or behind.keyword in _BEHIND_ITEM)
