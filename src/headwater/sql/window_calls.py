"""Where a query calls TUMBLE, HOP and their bounds, and the clauses of the SELECT that each call belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from headwater.sql.cursor import Cursor
from headwater.sql.query_text import QUERY_WORDS
from headwater.sql.tokens import Token

Function = Literal["TUMBLE", "HOP"]

_FUNCTIONS = tuple(f"{name}{bound}" for name in ("TUMBLE", "HOP") for bound in ("", "_START", "_END"))
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
    clause: str = ""
    where: Token | None = None
    group: Token | None = None
    piped: bool = False


@dataclass(frozen=True, slots=True)
class _Level:
    """An open bracket: the SELECT that is inside it, or around it if it holds no query of its own."""

    block: Block
    query: bool


def blocks_of(cursor: Cursor) -> Iterator[Block]:
    """The SELECTs of a query that call any of the functions."""
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
            levels.pop()
        elif _is_call(tokens, place):
            call, place = _call(tokens, place, level)
            level.block.calls.append(call)
            continue
        elif level.query and _is_set_operation(tokens, place):
            levels[-1] = _Level(Block(), True)
            blocks.append(levels[-1].block)
        elif level.query:
            _step(level.block, tokens, place)
        place += 1
    return (block for block in blocks if block.calls)


def _step(block: Block, tokens: Sequence[Token], place: int) -> None:
    """Take one token outside brackets of its SELECT: it may start a clause."""
    token, before, behind = tokens[place], tokens[place - 1], tokens[place + 1]
    word = token.keyword
    if token.text == ">" and before.text == "|":
        block.piped = True
    elif place and (before.text in (",", ".") or before.keyword == "BY"):
        return  # a column may be called like a clause
    elif word == "WINDOW" and tokens[min(place + 2, len(tokens) - 1)].keyword == "AS":
        block.clause = word
    elif word in _CLAUSES and (word not in _BEFORE_BY or behind.keyword == "BY"):
        block.clause = word
        if word == "WHERE" and block.group is None:  # behind GROUP BY it is a mistake, which Spark tells
            block.where = block.where or token
        elif word == "GROUP":
            block.group = block.group or token


def _is_set_operation(tokens: Sequence[Token], place: int) -> bool:
    """Whether another SELECT follows; `* EXCEPT (a)` only leaves columns out."""
    return tokens[place].keyword in _SET_OPERATIONS and tokens[place - 1].text not in ("*", ".", ",")


def _is_call(tokens: Sequence[Token], place: int) -> bool:
    called = tokens[place].keyword in _FUNCTIONS and tokens[place + 1].text == "("
    return called and (place == 0 or tokens[place - 1].text != ".")


def _call(tokens: Sequence[Token], place: int, level: _Level) -> tuple[Call, int]:
    """The call at this place, and the place behind it."""
    arguments: list[list[Token]] = [[]]
    depth, end = 1, place + 2
    while tokens[end].kind != "end":
        token = tokens[end]
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            break
        if depth == 1 and token.text == ",":
            arguments.append([])
        else:
            arguments[-1].append(token)
        end += 1
    behind = tokens[min(end + 1, len(tokens) - 1)]
    nameless = level.query and level.block.clause == "SELECT" and _is_item(tokens[place - 1], behind)
    call = Call(tokens[place], tuple(map(tuple, arguments)), tokens[end].end, level.block.clause, nameless)
    return call, min(end + 1, len(tokens) - 1)


def _is_item(before: Token, behind: Token) -> bool:
    """Whether what stands between two tokens is a whole item of SELECT without an alias."""
    starts = before.text == "," or before.keyword in ("SELECT", "DISTINCT", "ALL")
    return starts and (behind.text in (",", ")") or behind.kind == "end" or behind.keyword in _BEHIND_ITEM)
