"""TUMBLE, HOP and SESSION become arithmetic that every engine and every incremental view understands.

A tumbling window's start is the timestamp less its distance from the last multiple of the size since 1970, which is how
Spark's `window` cuts time, before 1970 too. A row of a hopping window belongs to several windows: a LATERAL VIEW makes
one row for each. A session goes on while no more than its gap lies between a row and the next of the same keys, and
ends one gap behind its last row, as those of Spark's `session_window` do (`window_sessions.py`). Rows without a
timestamp belong to no window and are left out, as Spark leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.sql.cursor import Cursor
from headwater.sql.query_text import check_brackets, text_of
from headwater.sql.tokens import Token, tokenise
from headwater.sql.window_calls import FUNCTIONS, Block, Call, blocks_of
from headwater.sql.window_rules import Window, grouped, operand, table_window
from headwater.sql.window_sessions import Edit, session_edits, session_table
from headwater.sql.window_sizes import Size
from headwater.sql.window_tables import TableCall


def rewrite_windows(text: str) -> str:
    """The query in plain Spark SQL, without TUMBLE, HOP, SESSION and their bounds."""
    if not calls_windows(text):
        return text
    cursor = Cursor(text, tokenise(text), context="query")
    check_brackets(cursor, cursor.tokens)
    return edited(text, _all_edits(cursor))


def calls_windows(text: str) -> bool:
    """Whether a text may call any of the functions."""
    lowered = text.lower()
    return any(name.lower() in lowered for name in FUNCTIONS)


def edited(text: str, edits: Iterator[Edit]) -> str:
    """The text with pieces replaced that do not overlap."""
    pieces, position = [], 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[position:start], replacement]
        position = end
    return "".join((*pieces, text[position:]))


def table_edits(cursor: Cursor, table: TableCall, number: int) -> Iterator[Edit]:
    """What puts a query into FROM that gives the rows of a table their windows."""
    window, moment = table_window(cursor, table), text_of(cursor, table.moment)
    if window.function == "SESSION":
        before, behind = session_table(cursor, table, window, free_name(cursor, f"_session{number}"))
    elif window.function == "TUMBLE":
        start = f"({moment} - {_before(moment, window.slide)})"
        bounds = f"{start} AS window_start, ({start} + {window.size.sql}) AS window_end"
        before = f"SELECT *, {bounds} FROM "  # noqa: S608  of the query's parts
        behind = f" WHERE {moment} IS NOT NULL"
    else:
        view = free_name(cursor, f"_hop{number}")
        end = f"({view}.window_start + {window.size.sql}) AS window_end"
        before = f"SELECT *, {end} FROM "  # noqa: S608  of the query's parts
        behind = f" {_hopping(moment, window, view)}"
    yield from around(table, before, behind, free_name(cursor, f"_window{number}"))


def around(table: TableCall, before: str, behind: str, otherwise: str) -> Iterator[Edit]:
    """The query in brackets around a table, called by the table's name if it has none, or else `otherwise`."""
    yield table.start, table.relation[0].start, f"({before}"
    yield table.relation[-1].end, table.end, f"{behind})"
    if table.alias_at is not None:
        yield table.alias_at, table.alias_at, f" AS {table.name or otherwise}"


def free_name(cursor: Cursor, name: str) -> str:
    """The name, or a longer one that nothing in the query has."""
    taken = {token.value.lower() for token in cursor.tokens if token.kind in ("word", "quoted")}
    while any(each.startswith(name) for each in taken):
        name += "_"
    return name


def _all_edits(cursor: Cursor) -> Iterator[Edit]:
    blocks = blocks_of(cursor)
    number = 0
    for block in blocks:
        if block.calls:
            number += 1
            yield from _edits(cursor, block, number)
    for table in (table for block in blocks for table in block.tables):
        number += 1
        yield from table_edits(cursor, table, number)


def _edits(cursor: Cursor, block: Block, number: int) -> Iterator[Edit]:
    """What changes in one SELECT."""
    window, call = grouped(cursor, block)
    if window.function == "SESSION":
        yield from session_edits(cursor, block, window, call, free_name(cursor, f"_session{number}"))
        return
    moment = operand(cursor, call.arguments[0])
    if window.function == "TUMBLE":
        start = f"({moment} - {_before(moment, window.slide)})"
        yield from _without_nulls(cursor, block, moment)
    else:
        view = free_name(cursor, f"_hop{number}")
        start = f"{view}.window_start"
        place = (_where(cursor, block) or _group(cursor, block)).start
        yield place, place, f"{_hopping(moment, window, view)} "
    for each in block.calls:
        bound = f"({start} + {window.size.sql})" if each.bound == "END" else start
        yield each.token.start, each.end, bound + as_named(each)


def as_named(call: Call) -> str:
    """The name of a bound that the query gives none."""
    return f" AS window_{call.bound.lower()}" if call.nameless and call.bound else ""


def _before(moment: str, slide: Size) -> str:
    """The interval between a timestamp and the last multiple of `slide` before it."""
    return f"INTERVAL '0.000001' SECOND * {_remainder(moment, slide)}"


def _remainder(moment: str, slide: Size) -> str:
    # A timestamp without zone is counted as if in UTC, as Spark's `window` counts it; the difference keeps its type.
    return f"pmod(unix_micros(CAST({moment} AS TIMESTAMP)), {slide.micros})"


def _hopping(moment: str, window: Window, view: str) -> str:
    """A row for each start of a window that a timestamp falls into."""
    slide, remainder = window.slide, _remainder(moment, window.slide)
    earlier = f"{slide.micros} * (({window.size.micros - 1} - {remainder}) DIV {slide.micros})"
    first = f"{moment} - INTERVAL '0.000001' SECOND * ({remainder} + {earlier})"
    starts = f"sequence({first}, {moment} - {_before(moment, slide)}, {slide.sql})"
    return f"LATERAL VIEW explode({starts}) {view} AS window_start"


def _without_nulls(cursor: Cursor, block: Block, moment: str) -> Iterator[Edit]:
    where, group = _where(cursor, block), _group(cursor, block)
    if where is None:
        yield group.start, group.start, f"WHERE {moment} IS NOT NULL "
        return
    yield where.end, where.end, " ("
    yield group.start, group.start, f") AND {moment} IS NOT NULL "


def _where(cursor: Cursor, block: Block) -> Token | None:
    """WHERE before GROUP BY; behind it, it is a mistake, which Spark tells."""
    where, group = block.place_of("WHERE"), block.place_of("GROUP")
    return cursor.tokens[where] if where is not None and group is not None and where < group else None


def _group(cursor: Cursor, block: Block) -> Token:
    place = block.place_of("GROUP")
    assert place is not None  # the window stands in it
    return cursor.tokens[place]
