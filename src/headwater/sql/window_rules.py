"""The window that a SELECT groups by, or that a table is given, and what is refused about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import split_items, text_of
from headwater.sql.tokens import Token
from headwater.sql.window_calls import Block, Call, Function
from headwater.sql.window_sizes import Size, read_size
from headwater.sql.window_tables import TableCall

MAX_WINDOWS = 10_000
"""The hopping windows that one row may belong to."""

_WRITTEN: dict[Function, str] = {
    "TUMBLE": "TUMBLE(ts, INTERVAL '1 hour')",
    "HOP": "HOP(ts, INTERVAL '5 minutes', INTERVAL '1 hour')",
    "SESSION": "SESSION(ts, INTERVAL '5 minutes')",
}
_SETS = ("GROUPING", "ROLLUP", "CUBE", "WITH")
Tokens = tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """How time is cut: every `slide` a window of `size` starts; of the other functions both are equal.

    A session ends when nothing happened for longer than its size.
    """

    function: Function
    moment: tuple[str, ...]  # the tokens of the timestamp, by which windows are compared
    slide: Size
    size: Size


def grouped(cursor: Cursor, block: Block) -> tuple[Window, Call]:
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


def table_window(cursor: Cursor, table: TableCall) -> Window:
    """The window that a call in FROM gives every row."""
    sizes = _sizes(cursor, table.sizes)
    function: Function = table.token.keyword  # type: ignore[assignment]
    window = Window(function, _compared(table.moment), sizes[0], sizes[-1])
    _check_slide(cursor, table.sizes[0][0], window)
    return window


def session_keys(cursor: Cursor, block: Block, call: Call) -> list[Tokens]:
    """By what sessions are cut, beside time: the other keys of GROUP BY, ordinals as the items that they stand for."""
    tokens = block.inside("GROUP", cursor.tokens)
    if sets := next((token for token in tokens if token.keyword in _SETS), None):
        hint = "Group by SESSION and keys in an inner query."
        raise cursor.located(InvalidStatement(f"SESSION has no {sets.keyword} beside it", hint=hint), sets)
    selected = [named_item(item) for item in split_items(block.inside("SELECT", cursor.tokens))]
    calls = {each.token.start for each in block.calls}
    keys = [_key(cursor, item, selected) for item in split_items(tokens) if item]
    return [key for key in keys if not any(token.start in calls for token in key)]


def operand(cursor: Cursor, tokens: Sequence[Token]) -> str:
    """An expression that can stand beside an operator."""
    text = text_of(cursor, tokens)
    return text if len(tokens) == 1 or all(token.text == "." for token in tokens[1::2]) else f"({text})"


def _key(cursor: Cursor, item: Tokens, selected: Sequence[tuple[Tokens, str]]) -> Tokens:
    first = item[0]
    if len(item) > 1:
        return item
    if first.kind == "number" and first.text.isdigit() and 1 <= int(first.text) <= len(selected):
        return selected[int(first.text) - 1][0]
    meant = next((tokens for tokens, name in selected if name == first.value.lower()), None)
    if meant is not None and first.value.lower() not in [token.value.lower() for token in meant]:
        hint = f"Group by the expression: {text_of(cursor, meant)}."
        message = f'key "{first.value}" beside SESSION is a name of the select list'
        raise cursor.located(InvalidStatement(message, hint=hint), first)
    return item


def named_item(item: Tokens) -> tuple[Tokens, str]:
    """An item of SELECT: its expression, and the name that it is given, if it is given one."""
    tokens = item[1:] if item and item[0].keyword in ("DISTINCT", "ALL") else item
    if len(tokens) > 2 and tokens[-2].keyword == "AS":
        return tokens[:-2], tokens[-1].value.lower()
    aliased = len(tokens) > 1 and tokens[-1].kind in ("word", "quoted") and tokens[-1].keyword != "END"
    if aliased and (tokens[-2].kind in ("word", "quoted", "string", "number") or tokens[-2].text in (")", "]")):
        return tokens[:-1], tokens[-1].value.lower()
    return tokens, ""


def _read(cursor: Cursor, call: Call) -> Window:
    """The window that a call names."""
    expected = 3 if call.function == "HOP" else 2
    if len(call.arguments) != expected or not all(call.arguments):
        hint = f"Write {_WRITTEN[call.function].replace(call.function, call.token.keyword, 1)}."
        error = InvalidStatement(
            f"{call.token.keyword} takes {'two' if expected == 2 else 'three'} arguments", hint=hint
        )
        raise cursor.located(error, call.token)
    sizes = _sizes(cursor, call.arguments[1:])
    window = Window(call.function, _compared(call.arguments[0]), sizes[0], sizes[-1])
    _check_slide(cursor, call.arguments[1][0], window)
    return window


def _sizes(cursor: Cursor, arguments: Sequence[Tokens]) -> list[Size]:
    sizes = []
    for argument in arguments:
        with cursor.locating(argument[0]):
            sizes.append(read_size(argument))
    return sizes


def _compared(tokens: Tokens) -> tuple[str, ...]:
    return tuple(token.text.lower() if token.kind == "word" else token.text for token in tokens)


def _check_slide(cursor: Cursor, place: Token, window: Window) -> None:
    if window.slide > window.size:
        hint = "The slide comes first: HOP(ts, INTERVAL '5 minutes', INTERVAL '1 hour')."
        raise cursor.located(InvalidStatement("windows slide by more than their size", hint=hint), place)
    if window.size.micros > window.slide.micros * MAX_WINDOWS:
        detail = f"A row belongs to at most {MAX_WINDOWS} windows."
        raise cursor.located(InvalidStatement("windows overlap too much", detail=detail), place)


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
