"""TUMBLE and HOP in GROUP BY become arithmetic that every engine and every incremental view understands.

A tumbling window's start is the timestamp less its distance from the last multiple of the size since 1970, which is how
Spark's `window` cuts time, before 1970 too. A row of a hopping window belongs to several windows: a LATERAL VIEW makes
one row for each. Rows without a timestamp belong to no window and are left out, as Spark leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import check_brackets, text_of
from headwater.sql.tokens import Token, tokenise
from headwater.sql.window_calls import Block, Call, Function, blocks_of
from headwater.sql.window_sizes import Size, read_size

MAX_WINDOWS = 10_000
"""The hopping windows that one row may belong to."""

_WRITTEN: dict[Function, str] = {
    "TUMBLE": "TUMBLE(ts, INTERVAL '1 hour')",
    "HOP": "HOP(ts, INTERVAL '5 minutes', INTERVAL '1 hour')",
}
_Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Window:
    """How time is cut: every `slide` a window of `size` starts; of a tumbling one both are equal."""

    function: Function
    moment: tuple[str, ...]  # the tokens of the timestamp, by which windows are compared
    slide: Size
    size: Size


def rewrite_windows(text: str) -> str:
    """The query in plain Spark SQL, without TUMBLE, HOP and their bounds."""
    lowered = text.lower()
    if "tumble" not in lowered and "hop" not in lowered:
        return text
    cursor = Cursor(text, tokenise(text), context="query")
    check_brackets(cursor, cursor.tokens)
    edits = [edit for place, block in enumerate(blocks_of(cursor)) for edit in _edits(cursor, block, place + 1)]
    pieces, position = [], 0
    for start, end, replacement in sorted(edits):
        pieces += [text[position:start], replacement]
        position = end
    return "".join((*pieces, text[position:]))


def _edits(cursor: Cursor, block: Block, number: int) -> Iterator[_Edit]:
    """What changes in one SELECT."""
    window, call = _grouped(cursor, block)
    assert block.group is not None
    moment = _operand(cursor, call.arguments[0])
    if window.function == "TUMBLE":
        start = f"({moment} - {_before(moment, window.slide)})"
        yield from _without_nulls(block, block.group, moment)
    else:
        view = _free_name(cursor, f"_hop{number}")
        start = f"{view}.window_start"
        place = (block.where or block.group).start
        yield place, place, f"LATERAL VIEW explode({_starts(moment, window)}) {view} AS window_start "
    for each in block.calls:
        named = f" AS window_{each.bound.lower()}" if each.nameless and each.bound else ""
        bound = f"({start} + {window.size.sql})" if each.bound == "END" else start
        yield each.token.start, each.end, bound + named


def _before(moment: str, slide: Size) -> str:
    """The interval between a timestamp and the last multiple of `slide` before it."""
    return f"INTERVAL '0.000001' SECOND * {_remainder(moment, slide)}"


def _remainder(moment: str, slide: Size) -> str:
    # A timestamp without zone is counted as if in UTC, as Spark's `window` counts it; the difference keeps its type.
    return f"pmod(unix_micros(CAST({moment} AS TIMESTAMP)), {slide.micros})"


def _starts(moment: str, window: _Window) -> str:
    """The starts of all windows that a timestamp falls into, as an array."""
    slide, remainder = window.slide, _remainder(moment, window.slide)
    earlier = f"{slide.micros} * (({window.size.micros - 1} - {remainder}) DIV {slide.micros})"
    first = f"{moment} - INTERVAL '0.000001' SECOND * ({remainder} + {earlier})"
    return f"sequence({first}, {moment} - {_before(moment, slide)}, {slide.sql})"


def _without_nulls(block: Block, group: Token, moment: str) -> Iterator[_Edit]:
    if block.where is None:
        yield group.start, group.start, f"WHERE {moment} IS NOT NULL "
        return
    yield block.where.end, block.where.end, " ("
    yield group.start, group.start, f") AND {moment} IS NOT NULL "


def _operand(cursor: Cursor, tokens: Sequence[Token]) -> str:
    """An expression that can stand beside an operator."""
    text = text_of(cursor, tokens)
    return text if len(tokens) == 1 or all(token.text == "." for token in tokens[1::2]) else f"({text})"


def _free_name(cursor: Cursor, name: str) -> str:
    taken = {token.value.lower() for token in cursor.tokens if token.kind in ("word", "quoted")}
    while name in taken:
        name += "_"
    return name


def _grouped(cursor: Cursor, block: Block) -> tuple[_Window, Call]:
    """The one window by which a SELECT groups, and its call; every other call must be of the same window."""
    if block.piped:
        raise cursor.located(
            InvalidStatement("windows are not read behind |>", hint="Write SELECT ... GROUP BY."), block.calls[0].token
        )
    grouping = [call for call in block.calls if not call.bound]
    for call in grouping:
        if call.clause != "GROUP":
            raise _misplaced(cursor, call)
    if not grouping:
        raise _ungrouped(cursor, block.calls[0])
    window = _read(cursor, grouping[0])
    for call in block.calls:
        if call.function != window.function or _read(cursor, call) != window:
            raise _different(cursor, call, grouping[0])
    return window, grouping[0]


def _read(cursor: Cursor, call: Call) -> _Window:
    """The window that a call names."""
    expected = 2 if call.function == "TUMBLE" else 3
    if len(call.arguments) != expected or not all(call.arguments):
        hint = f"Write {_WRITTEN[call.function].replace(call.function, call.token.keyword, 1)}."
        error = InvalidStatement(
            f"{call.token.keyword} takes {'two' if expected == 2 else 'three'} arguments", hint=hint
        )
        raise cursor.located(error, call.token)
    sizes = []
    for argument in call.arguments[1:]:
        with cursor.locating(argument[0]):
            sizes.append(read_size(argument))
    moment = tuple(token.text.lower() if token.kind == "word" else token.text for token in call.arguments[0])
    window = _Window(call.function, moment, sizes[0], sizes[-1])
    _check_slide(cursor, call, window)
    return window


def _check_slide(cursor: Cursor, call: Call, window: _Window) -> None:
    if window.slide > window.size:
        hint = "The slide comes first: HOP(ts, INTERVAL '5 minutes', INTERVAL '1 hour')."
        error = InvalidStatement("windows slide by more than their size", hint=hint)
        raise cursor.located(error, call.arguments[1][0])
    if window.size.micros > window.slide.micros * MAX_WINDOWS:
        detail = f"A row belongs to at most {MAX_WINDOWS} windows."
        raise cursor.located(InvalidStatement("windows overlap too much", detail=detail), call.arguments[1][0])


def _misplaced(cursor: Cursor, call: Call) -> HeadwaterError:
    name = call.function
    hint = f"Group by {name}(...) and select {name}_START(...) or {name}_END(...)."
    return cursor.located(InvalidStatement(f"{name} stands outside GROUP BY", hint=hint), call.token)


def _ungrouped(cursor: Cursor, call: Call) -> HeadwaterError:
    arguments = cursor.text[call.arguments[0][0].start : call.end - 1] if call.arguments[0] else "..."
    return cursor.located(
        InvalidStatement(
            f"{call.token.keyword} needs {call.function} in GROUP BY",
            hint=f"Add GROUP BY {call.function}({arguments}).",
        ),
        call.token,
    )


def _different(cursor: Cursor, call: Call, grouping: Call) -> HeadwaterError:
    written = cursor.text[grouping.token.start : grouping.end]
    if not call.bound:
        message, hint = "GROUP BY has two windows", "Group by one, and by the other in an outer query."
    else:
        message, hint = f"{call.token.keyword} is not of the window in GROUP BY", f"Use the arguments of {written}."
    return cursor.located(InvalidStatement(message, hint=hint), call.token)
