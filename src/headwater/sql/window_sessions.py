"""Sessions in plain SQL: rows of the same keys in the order of time, cut where a gap is too long.

Two queries are put around the rows. The inner one takes the distance of each row to the one before it and to the one
behind it; the outer one knows the first and the last row of each session by them, and gives every row the bounds of
its own. Rows at the same time are one session whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import split_items, text_of
from headwater.sql.tokens import Token
from headwater.sql.window_calls import Block, Call
from headwater.sql.window_rules import Window, operand, session_keys
from headwater.sql.window_tables import TableCall, relation_name

Edit = tuple[int, int, str]
"""A piece of a text, and what comes in its place."""

_NOT_ALONE = ("JOIN", "LATERAL", "PIVOT", "UNPIVOT", "TABLESAMPLE", "MATCH_RECOGNIZE")


def session_edits(cursor: Cursor, block: Block, window: Window, call: Call, name: str) -> Iterator[Edit]:
    """What changes in a SELECT that groups by sessions."""
    source, where, group = _clauses(cursor, block, call)
    keys = [text_of(cursor, key) for key in session_keys(cursor, block, call)]
    moment = operand(cursor, call.arguments[0])
    alias = _alias(cursor, block.inside("FROM", cursor.tokens), call) or name
    ends = any(each.bound == "END" for each in block.calls)
    bounds = f"{_first(moment, window, keys, name)} AS {name}_start"
    if ends:
        bounds += f", {_last(moment, window, keys, name)} AS {name}_end"
    distances = _distances(moment, keys, name, ends=ends)
    opened = f" (SELECT *, {bounds} FROM (SELECT *, {distances} FROM"  # noqa: S608  of the query's parts
    closed = f"{moment} IS NOT NULL) AS {alias}) AS {alias} "
    yield source.end, source.end, opened
    if where is not None:
        yield where.end, where.end, " ("
    yield group.start, group.start, (f") AND {closed}" if where is not None else f"WHERE {closed}")
    for each in block.calls:
        bound = f"{name}_end" if each.bound == "END" else f"{name}_start"
        if not each.bound and ends:
            bound = f"{name}_start, {name}_end"
        named = f" AS window_{each.bound.lower()}" if each.nameless and each.bound else ""
        yield each.token.start, each.end, bound + named


def session_table(cursor: Cursor, table: TableCall, window: Window, name: str) -> tuple[str, str]:
    """What stands before and behind a table so that its rows have the bounds of their sessions."""
    keys = [text_of(cursor, key) for key in table.keys]
    moment = text_of(cursor, table.moment)
    start, end = _first(moment, window, keys, name), _last(moment, window, keys, name)
    hidden = f"{name}_before, {name}_after"
    outer = f"SELECT * EXCEPT ({hidden}), {start} AS window_start, {end} AS window_end FROM "  # noqa: S608  of the query's parts
    alias = relation_name(table.relation) or name
    inner = f"(SELECT *, {_distances(moment, keys, name, ends=True)} FROM "  # noqa: S608  of the query's parts
    return outer + inner, f" WHERE {moment} IS NOT NULL) AS {alias}"


def _distances(moment: str, keys: Sequence[str], name: str, *, ends: bool) -> str:
    # A timestamp without zone is counted as if in UTC: only differences matter.
    micros = f"unix_micros(CAST({moment} AS TIMESTAMP))"
    before = f"{micros} - lag({micros}) OVER ({_over(moment, keys)}) AS {name}_before"
    after = f", lead({micros}) OVER ({_over(moment, keys)}) - {micros} AS {name}_after"
    return before + (after if ends else "")


def _first(moment: str, window: Window, keys: Sequence[str], name: str) -> str:
    """The time of a session's first row: the last one so far that is not within the gap of the row before it."""
    first = f"CASE WHEN {name}_before <= {window.size.micros} THEN NULL ELSE {_as_time(moment)} END"
    return f"max({first}) OVER ({_over(moment, keys)})"


def _last(moment: str, window: Window, keys: Sequence[str], name: str) -> str:
    """The end of a session: one gap behind the next row from which on the gap is too long."""
    last = f"CASE WHEN {name}_after <= {window.size.micros} THEN NULL ELSE {_as_time(moment)} END"
    # In the other direction, since Spark computes a frame that ends with the partition anew for every row.
    return f"min({last}) OVER ({_over(moment, keys)} DESC) + {window.size.sql}"


def _as_time(moment: str) -> str:
    """A date as the time at which it begins; a timestamp as it is, with or without a zone."""
    return f"{moment} + INTERVAL '0' SECOND"


def _over(moment: str, keys: Sequence[str]) -> str:
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    return f"{partition}ORDER BY {moment}"


def _clauses(cursor: Cursor, block: Block, call: Call) -> tuple[Token, Token | None, Token]:
    """FROM, WHERE and GROUP, which must follow each other."""
    words = [word for word, _ in block.clauses]
    start = words.index("FROM") if "FROM" in words else len(words)
    following = words[start : words.index("GROUP") + 1]
    if following not in (["FROM", "GROUP"], ["FROM", "WHERE", "GROUP"]):
        hint = "Write SELECT ... FROM ... WHERE ... GROUP BY ..., in this order."
        raise cursor.located(InvalidStatement("SESSION needs its clauses in order", hint=hint), call.token)
    places = [cursor.tokens[place] for _, place in block.clauses[start : start + len(following)]]
    return places[0], places[1] if len(places) > 2 else None, places[-1]


def _alias(cursor: Cursor, tokens: Sequence[Token], call: Call) -> str:
    """The name by which the rest of the SELECT knows the rows of FROM; empty if it has none."""
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.keyword in _NOT_ALONE:
            raise _joined(cursor, call)
    if len(split_items(tokens)) > 1 or not tokens:
        raise _joined(cursor, call)
    return relation_name(tokens)


def _joined(cursor: Cursor, call: Call) -> HeadwaterError:
    hint = "Join in an inner query: FROM (SELECT ... FROM a JOIN b ...) AS t."
    return cursor.located(InvalidStatement("SESSION reads one relation", hint=hint), call.token)
