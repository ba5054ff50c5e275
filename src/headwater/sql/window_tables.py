"""The table-valued forms: `TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR))`, and without TABLE( ).

They stand in FROM, for the table's rows with the columns window_start and window_end; a row of a hopping window is
there for each of its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.aliases import alias_place
from headwater.sql.cursor import Cursor
from headwater.sql.mentions import FUNCTIONS as _CALLED
from headwater.sql.query_text import split_items
from headwater.sql.tokens import Token

_WRITTEN = {
    "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 hour')",
    "HOP": "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5 minutes', INTERVAL '1 hour')",
    "SESSION": "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5 minutes')",
}


@dataclass(frozen=True, slots=True)
class TableCall:
    """One call in FROM: the table, the keys of sessions, the column of the time, the sizes, and where it stands."""

    token: Token
    relation: tuple[Token, ...]
    keys: tuple[tuple[Token, ...], ...]
    moment: tuple[Token, ...]
    sizes: tuple[tuple[Token, ...], ...]
    start: int
    end: int
    alias: str  # under which the query knows its rows; empty if it has none of its own
    alias_at: int | None  # where an alias would stand, if the query gives none

    @property
    def name(self) -> str:
        """What its rows are called: their alias, or the name of the table, or nothing for a query."""
        return self.alias or relation_name(self.relation)


def relation_name(tokens: Sequence[Token]) -> str:
    """The name by which a relation is known, its alias or its own; empty for a query without one."""
    first, last = tokens[0], tokens[-1]
    before = _before_brackets(tokens) if last.text == ")" else tokens  # names of columns stand behind the alias
    if len(before) > 1 and before[-1].kind in ("word", "quoted") and before[-2].text != ".":
        return before[-1].text
    if first.kind not in ("word", "quoted"):
        return ""
    if len(tokens) > 2 and tokens[1].text == "(":
        return tokens[2].value if first.value.lower() in _CALLED and tokens[2].kind == "string" else first.text
    place = 0
    while place + 2 < len(tokens) and tokens[place + 1].text == ".":
        place += 2
    return tokens[place].text


def _before_brackets(tokens: Sequence[Token]) -> Sequence[Token]:
    """What stands before the brackets that end the tokens."""
    depth = 0
    for place in range(len(tokens) - 1, -1, -1):
        depth += (tokens[place].text == ")") - (tokens[place].text == "(")
        if depth == 0:
            return tokens[:place]
    return ()


def read_table_call(cursor: Cursor, place: int, clause: str) -> TableCall:
    """The call at this place of the tokens."""
    tokens = cursor.tokens
    call = tokens[place]
    if clause != "FROM":
        hint = f"Write FROM {_WRITTEN[call.keyword.partition('_')[0]]}."
        raise cursor.located(InvalidStatement(f"{call.keyword}(TABLE ...) stands outside FROM", hint=hint), call)
    if call.keyword not in _WRITTEN:
        hint = f"Select window_{call.keyword.partition('_')[2].lower()} of its rows."
        raise cursor.located(InvalidStatement(f"{call.keyword} takes no table", hint=hint), call)
    end = _close(tokens, place + 1)
    parts = split_items(tokens[place + 3 : end])
    described = next((n for n, part in enumerate(parts) if n and part and part[0].keyword == "DESCRIPTOR"), 0)
    relation, keys = _relation(parts[: described or 1])
    wanted = 2 if call.keyword == "HOP" else 1
    moment = _described(parts[described]) if described else ()
    if not moment or not relation or len(parts) != described + 1 + wanted or not all((*parts, *keys)):
        raise _refused(cursor, call)
    if keys and call.keyword != "SESSION":
        hint = "Leave it out: windows of time are the same for every key."
        raise cursor.located(InvalidStatement(f"{call.keyword} has no PARTITION BY", hint=hint), keys[0][0])
    wrapped = place > 1 and tokens[place - 2].keyword == "TABLE" and tokens[place - 1].text == "("
    first, last = (place - 2, end + 1) if wrapped and tokens[end + 1].text == ")" else (place, end)
    alias_at = alias_place(tokens, last + 1)
    named = tokens[last + 2] if tokens[last + 1].keyword == "AS" else tokens[last + 1]
    alias = named.text if alias_at is None else ""
    where = (tokens[first].start, tokens[last].end, alias, alias_at)
    return TableCall(call, relation, keys, moment, tuple(parts[described + 1 :]), *where)


def _relation(parts: Sequence[tuple[Token, ...]]) -> tuple[tuple[Token, ...], tuple[tuple[Token, ...], ...]]:
    """`orders [PARTITION BY a, b]`, whose keys may stand in brackets: the relation, and its keys."""
    first = parts[0] if parts else ()
    depth = 0
    for place, token in enumerate(first[:-1]):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.keyword == "PARTITION" and first[place + 1].keyword == "BY":
            keys = (first[place + 2 :], *parts[1:])
            if len(keys) == 1 and keys[0][:1] and keys[0][0].text == "(" and keys[0][-1].text == ")":
                keys = tuple(split_items(keys[0][1:-1]))
            return first[:place], keys
    return ((), ()) if len(parts) > 1 else (first, ())


def _described(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The column of `DESCRIPTOR(ts)`, or nothing if it is not one."""
    inside = tokens[2:-1]
    column = len(inside) % 2 == 1 and all(token.kind in ("word", "quoted") for token in inside[::2])
    dotted = all(token.text == "." for token in inside[1::2])
    closed = len(tokens) > 3 and tokens[1].text == "(" and tokens[-1].text == ")"
    return tuple(inside) if closed and column and dotted else ()


def _close(tokens: Sequence[Token], place: int) -> int:
    """The place of the bracket that closes the one at this place."""
    depth = 0
    for index in range(place, len(tokens)):
        depth += (tokens[index].text == "(") - (tokens[index].text == ")")
        if depth == 0:
            return index
    raise AssertionError("brackets were checked")


def _refused(cursor: Cursor, call: Token) -> HeadwaterError:
    takes = "a table, a DESCRIPTOR and " + ("two intervals" if call.keyword == "HOP" else "an interval")
    hint = f"Write {_WRITTEN[call.keyword]}."
    return cursor.located(InvalidStatement(f"{call.keyword}(TABLE ...) takes {takes}", hint=hint), call)
