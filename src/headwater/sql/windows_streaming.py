"""TUMBLE, HOP and SESSION as Structured Streaming keeps them: `window(...)` and `session_window(...)`.

A stream drops the state of a window that is behind the watermark only if the window itself is the key of a GROUP BY or
of a join. So bounds become fields of it (`window.start`), who groups by the bounds of a source groups by its window
instead, and who joins by the starts of equal windows joins by the windows. The answers are those of `rewrite_windows`,
with the same names and types of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import check_brackets, split_items, text_of
from headwater.sql.tokens import Token, tokenise
from headwater.sql.window_calls import Block, all_blocks
from headwater.sql.window_rules import Tokens, Window, grouped, named_item, session_keys, table_window
from headwater.sql.window_sessions import Edit
from headwater.sql.window_sizes import Size
from headwater.sql.window_sources import (
    BOUNDS,
    Produced,
    Source,
    StreamWindow,
    bounds_selected,
    derived_sources,
    is_nameless,
    mentions,
    own_places,
    reads_one,
)
from headwater.sql.window_tables import TableCall
from headwater.sql.windows import around, as_named, calls_windows, edited, free_name, table_edits

__all__ = ["StreamWindow", "StreamingText", "streaming_windows"]

_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))


@dataclass(frozen=True, slots=True)
class StreamingText:
    """A query for Structured Streaming, and its windows, one for each SELECT that groups by one, in their order."""

    text: str
    windows: tuple[StreamWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of GROUP BY that is a bound of a window: the item, and the bound that it means."""

    item: Tokens
    bound: Tokens


@dataclass(slots=True)
class _Made:
    """What has been found so far, from the innermost SELECT outwards."""

    edits: list[Edit] = field(default_factory=list)
    windows: list[StreamWindow] = field(default_factory=list)
    produced: list[Produced] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the column in which each would show its window
    shown: set[str] = field(default_factory=set)  # of those that do
    plain: int = 0  # tables whose windows nobody groups by


def streaming_windows(text: str) -> StreamingText:
    """The query with Spark's own windows in the place of TUMBLE, HOP, SESSION and their bounds."""
    if not calls_windows(text):
        return StreamingText(text)
    cursor = Cursor(text, tokenise(text), context="query")
    check_brackets(cursor, cursor.tokens)
    blocks = all_blocks(cursor)
    made = _Made()
    for number, block in reversed(list(enumerate(blocks, 1))):
        _check_reached(cursor, block, blocks)
        _take(cursor, block, number, made)
    for each, name in zip(made.produced, made.names, strict=True):
        if name in made.shown:
            end = each.block.inside("SELECT", cursor.tokens)[-1].end
            made.edits.append((end, end, f", {each.column} AS {name}"))
    return StreamingText(edited(text, iter(made.edits)), tuple(reversed(made.windows)))


def _take(cursor: Cursor, block: Block, number: int, made: _Made) -> None:
    """What changes in one SELECT, and what it gives the one around it."""
    sources = derived_sources(cursor, block, made.produced, made.names)
    new = [_by_calls(cursor, block, made)] if block.calls else []
    for table in block.tables:
        source = _table_source(cursor, block, table)
        if _window_keys(cursor, block, source):
            sources.append(source)
        else:  # a row's windows are told by the row
            _check_ungrouped(cursor, block, table)
            made.plain += 1
            made.edits += table_edits(cursor, table, made.plain)
    new += [_by_source(cursor, block, each, made) for each in sources if _window_keys(cursor, block, each)]
    made.edits += _joined_edits(cursor, block, sources, made)
    made.windows += [each.window for each in reversed(new)]
    if len(new) == 1:
        made.produced.append(new[0])
        made.names.append(free_name(cursor, f"_window{number}"))


def _by_calls(cursor: Cursor, block: Block, made: _Made) -> Produced:
    """A SELECT that groups by a window."""
    window, call = grouped(cursor, block)
    if window.function == "SESSION":
        session_keys(cursor, block, call)  # what the batch form refuses
    moment, column = text_of(cursor, call.arguments[0]), _column(window)
    bounds = {}
    for each in block.calls:
        bound = f"{column}.{each.bound.lower()}" if each.bound else _native(window, moment)
        made.edits.append((each.token.start, each.end, bound + as_named(each)))
        if each.bound:
            bounds[each.token.start] = (each.end, each.bound.lower(), f"window_{each.bound.lower()}")
    shown = _shown(window, moment, block.inside("FROM", cursor.tokens))
    return Produced(block, shown, column, bounds_selected(cursor, block, bounds))


def _table_source(cursor: Cursor, block: Block, table: TableCall) -> Source:
    window = _shown(table_window(cursor, table), text_of(cursor, table.moment), table.relation)
    return Source(table.name, "window", BOUNDS, window, reads_one(cursor, block), table=table)


def _by_source(cursor: Cursor, block: Block, source: Source, made: _Made) -> Produced:
    """A SELECT that groups by bounds of a source: by the window in their place, whose fields they are elsewhere."""
    if source.table is not None:
        if source.window.function == "SESSION":
            _check_session_keys(cursor, block, source)
        native = _native(table_window(cursor, source.table), source.window.moment)
        before = f"SELECT *, {native} AS window FROM "  # noqa: S608  of the query's parts
        made.edits += around(source.table, before, "", free_name(cursor, "_window"))
    made.shown.add(source.column)
    keys = _window_keys(cursor, block, source)
    column = f"{_qualifier(cursor, keys[0].bound)}{source.column}"
    made.edits.append((keys[0].item[0].start, keys[0].item[-1].end, column))
    for key in keys[1:]:
        made.edits.append((_before(cursor, key.item[0]).start, key.item[-1].end, ""))  # from the comma on
    inside = {token.start for key in keys for token in key.item}
    bounds = {}
    for mention in mentions(cursor, block, source):
        name = mention[-1].value.lower()
        bounds[mention[0].start] = (mention[-1].end, source.bounds[name], name)
        if mention[0].start not in inside:
            made.edits.append(_field(cursor, block, source, mention))
    return Produced(block, source.window, column, bounds_selected(cursor, block, bounds))


def _field(cursor: Cursor, block: Block, source: Source, mention: Tokens) -> Edit:
    named = f" AS {mention[-1].text}" if is_nameless(cursor, block, mention) else ""
    bound = source.bounds[mention[-1].value.lower()]
    text = f"{_qualifier(cursor, mention)}{source.column}.{bound}{named}"
    return mention[0].start, mention[-1].end, text


def _joined_edits(cursor: Cursor, block: Block, sources: Sequence[Source], made: _Made) -> Iterator[Edit]:
    """The windows of two inner queries in the place of their starts, or ends, where a SELECT compares these.

    Not where it selects `*`, which would show the windows, nor where it groups by one, whose bounds are fields then.
    """
    inner = {each.name.lower(): each for each in sources if each.inner is not None and each.column not in made.shown}
    if any(token.text == "*" for token in block.inside("SELECT", cursor.tokens)):
        return
    tokens = cursor.tokens
    for place in own_places(cursor, block):
        left, dot, one, equal, right, _, other = tokens[place : place + 7] if place + 7 < len(tokens) else (None,) * 7
        if not (left and dot and one and equal and right and other) or (dot.text, equal.text) != (".", "="):
            continue
        a, b = inner.get(left.value.lower()), inner.get(right.value.lower())
        if a is None or b is None or a is b or not a.window.cuts_like(b.window):
            continue
        bound = a.bounds.get(one.value.lower())
        if bound is not None and bound == b.bounds.get(other.value.lower()) and _is_condition(tokens, place):
            made.shown |= {a.column, b.column}
            yield left.start, other.end, f"{left.text}.{a.column} = {right.text}.{b.column}"


def _is_condition(tokens: Sequence[Token], place: int) -> bool:
    """Whether seven tokens from here are a whole condition."""
    before, behind = tokens[place - 1], tokens[place + 7]
    starts = before.keyword in ("ON", "AND", "OR", "WHERE") or before.text == "("
    return starts and (behind.kind in ("word", "end") or behind.text == ")")


def _qualifier(cursor: Cursor, mention: Tokens) -> str:
    return text_of(cursor, mention[:-1]) if len(mention) > 1 else ""


def _window_keys(cursor: Cursor, block: Block, source: Source) -> list[_Key]:
    """The keys of GROUP BY that are bounds of a source, by an ordinal or a name of the select list too."""
    found = {mention[0].start: mention for mention in mentions(cursor, block, source)}
    keys = []
    for item in (each for each in split_items(block.inside("GROUP", cursor.tokens)) if each):
        meant = next((tokens for tokens in _meant(cursor, block, source, item) if tokens), item)
        mention = found.get(meant[0].start)
        if mention is not None and len(mention) == len(meant):
            keys.append(_Key(item, mention))
    return keys


def _meant(cursor: Cursor, block: Block, source: Source, item: Tokens) -> Iterator[Tokens]:
    """The item of SELECT that a key stands for, if it is an ordinal or a name that SELECT gives."""
    selected = [named_item(each) for each in split_items(block.inside("SELECT", cursor.tokens))]
    if len(item) == 1 and item[0].text.isdigit() and 1 <= int(item[0].text) <= len(selected):
        yield selected[int(item[0].text) - 1][0]
    if len(item) == 1 and item[0].value.lower() not in source.bounds:
        yield from (tokens for tokens, name in selected if name == item[0].value.lower())


def _before(cursor: Cursor, token: Token) -> Token:
    return cursor.tokens[cursor.tokens.index(token) - 1]


def _check_ungrouped(cursor: Cursor, block: Block, table: TableCall) -> None:
    if [token.keyword for token in block.inside("GROUP", cursor.tokens)] == ["ALL"]:
        error = InvalidStatement("GROUP BY ALL does not name its window", hint="Name window_start and window_end.")
        raise cursor.located(error, table.token)
    if table.token.keyword == "SESSION":
        hint = "Group by its keys, window_start and window_end in the SELECT that reads it."
        raise cursor.located(InvalidStatement("sessions of a stream are groups", hint=hint), table.token)


def _check_session_keys(cursor: Cursor, block: Block, source: Source) -> None:
    """A stream cuts sessions by the keys of GROUP BY, so they must be those of the table."""
    assert source.table is not None
    window = {key.item[0].start for key in _window_keys(cursor, block, source)}
    group = [item for item in split_items(block.inside("GROUP", cursor.tokens)) if item]
    others = {item[-1].value.lower() if len(item) in (1, 3) else "" for item in group if item[0].start not in window}
    if others != {key[-1].value.lower() for key in source.table.keys}:
        message = "sessions of a stream are grouped by the keys that cut them"
        hint = "Group by window_start, window_end and exactly the keys of PARTITION BY."
        raise cursor.located(InvalidStatement(message, hint=hint), source.table.token)


def _check_reached(cursor: Cursor, block: Block, blocks: Sequence[Block]) -> None:
    """Refuse a GROUP BY of bounds that an inner SELECT only passes on: its state would never be dropped."""
    group = split_items(block.inside("GROUP", cursor.tokens))
    keys = [item[-1] for item in group if len(item) in (1, 3) and item[-1].value.lower() in BOUNDS]
    if not keys or block.tables or not block.clauses:
        return
    start, end = block.clauses[0][1], block.end
    inner = [each for each in blocks if each.clauses and start < each.clauses[0][1] and each.end < end]
    passed = any(each.tables and each.place_of("GROUP") is None for each in inner)
    if passed and not any(each.calls or each.place_of("GROUP") is not None for each in inner):
        raise _unreached(cursor, keys[0])


def _unreached(cursor: Cursor, key: Token) -> HeadwaterError:
    hint = "Group by window_start and window_end in the SELECT that reads the table with windows."
    return cursor.located(InvalidStatement("windows of a stream are grouped where they are made", hint=hint), key)


def _native(window: Window, moment: str) -> str:
    match window.function:
        case "SESSION":
            return f"session_window({moment}, '{_interval(window.size)}')"
        case "HOP":
            return f"window({moment}, '{_interval(window.size)}', '{_interval(window.slide)}')"
        case _:
            return f"window({moment}, '{_interval(window.size)}')"


def _column(window: Window) -> str:
    """What Spark calls the column of a window."""
    return "session_window" if window.function == "SESSION" else "window"


def _interval(size: Size) -> str:
    for unit, micros in _UNITS:
        if size.micros % micros == 0:
            return f"{size.micros // micros} {unit}"
    return f"{size.micros} microsecond"


def _shown(window: Window, moment: str, source: Sequence[Token]) -> StreamWindow:
    words = frozenset(token.value.lower() for token in source if token.kind in ("word", "quoted"))
    return StreamWindow(window.function, moment, window.slide.micros, window.size.micros, words)
