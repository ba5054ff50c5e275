"""The one way to a view definition: every surface ends here, so that no surface can define what another refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.errors import InvalidInput, InvalidName, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.definition import check_reserved
from headwater.sql.query_text import QUERY_WORDS, at_query, check_brackets, ends_with_tail
from headwater.sql.tokens import Token
from headwater.sql.view_options import check_view_options, parse_view_options, render_view_options
from headwater.types import CORRECTIONS_SUFFIX, MAX_NAME, ViewDefinition, ViewOptions, checked_name

_MEMBERS = ("name", "query", "options")


def checked_view(name: str, query: str, options: ViewOptions | Mapping[str, object] | None = None) -> ViewDefinition:
    """A view whose parts are what they should be; whether the query can be run is decided when the view is made."""
    values = check_view_options(options) if isinstance(options, ViewOptions) else parse_view_options(options or {})
    definition = ViewDefinition(checked_view_name(name), _checked_query(query), values)
    check_room_for_late(definition)
    return definition


def checked_view_name(name: str) -> str:
    """`name`, if a user may create a view of this name."""
    check_reserved(checked_name(name, "materialized view"), "materialized view")
    return name


def check_room_for_late(definition: ViewDefinition) -> None:
    """InvalidName if the tables of the view's late rows would have names that are too long."""
    most = MAX_NAME - len(CORRECTIONS_SUFFIX)
    if definition.options.late != "drop" and len(definition.name) > most:
        raise InvalidName(
            f'materialized view name "{definition.name}" is too long',
            detail=f"Names of views that keep late rows have at most {most} characters.",
        )


def view_to_dict(definition: ViewDefinition, *, all_options: bool = False) -> dict[str, Any]:
    """The JSON form of a definition, which `view_from_dict` reads back to an equal one."""
    options = render_view_options(definition.options, changed_only=not all_options)
    return {"name": definition.name, "query": definition.query, "options": options}


def view_from_dict(body: Mapping[str, object]) -> ViewDefinition:
    """A definition from its JSON form."""
    if unknown := [member for member in body if member not in _MEMBERS]:
        raise InvalidInput(f'member "{str(unknown[0])[:64]}" is not known', detail=f"A view has {', '.join(_MEMBERS)}.")
    name, query, options = body.get("name"), body.get("query"), body.get("options")
    if not isinstance(name, str) or not isinstance(query, str):
        raise InvalidInput("a view has a name and a query, both texts")
    if not isinstance(options, Mapping | None):
        raise InvalidInput(f'options of materialized view "{name[:MAX_NAME]}" are not an object')
    return checked_view(name, query, options)


def read_view_query(cursor: Cursor) -> tuple[str, Cursor]:
    """The query that the rest of a statement starts with, and what follows it: EMIT, INTO and WITH, or nothing."""
    if not at_query(cursor):
        raise cursor.unexpected("a query", known=QUERY_WORDS)
    start = cursor.tokens[cursor.place - 1].end
    tokens = cursor.rest()
    place = _options_place(cursor, tokens)
    _check_query(cursor, tokens[:place])
    return _text(cursor, start, tokens[:place]), Cursor(cursor.text, (*tokens[place:], cursor.token), cursor.context)


def _checked_query(text: str) -> str:
    """The query of a text that holds nothing else; a semicolon may end it."""
    cursor = Cursor(text, context="the query of a view")
    tokens = cursor.tokens[:-1]
    while tokens and tokens[-1].text == ";":
        tokens = tokens[:-1]
    if more := next((token for token in tokens if token.kind == "symbol" and token.text == ";"), None):
        raise cursor.located(InvalidStatement("a view has one query"), more)
    if not at_query(cursor):
        raise cursor.unexpected("a query", known=QUERY_WORDS)
    place = _options_place(cursor, tokens)
    if place < len(tokens):
        found = tokens[place].keyword
        what = "options stand" if found == "WITH" else f"{found} stands"
        hint = "Set them as options of the view, not in its query."
        raise cursor.located(InvalidStatement(f"{what} in the query of a view", hint=hint), tokens[-1])
    _check_query(cursor, tokens)
    return _text(cursor, 0, tokens)


def _text(cursor: Cursor, start: int, tokens: Sequence[Token]) -> str:
    """The query as it was written, with comments before and in it; one behind it could hide what is put there."""
    return cursor.text[start : tokens[-1].end].lstrip()


def _check_query(cursor: Cursor, tokens: Sequence[Token]) -> None:
    check_brackets(cursor, tokens)
    if ends_with_tail(tokens):
        raise cursor.located(
            InvalidStatement(
                "a view's query has no WITH TAIL",
                detail="A view reads what is committed, and remembers up to where.",
                hint="Leave the clause out. To read a view with the newest records, use mv('name', fresh => true).",
            ),
            tokens[-3],
        )


def _options_place(cursor: Cursor, tokens: Sequence[Token]) -> int:
    """Where the clauses start that end a statement: EMIT, INTO and WITH, each outside brackets and up to the end."""
    depth, place = 0, len(tokens)
    misplaced: Token | None = None
    for index, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth or not index or not _clause_end(tokens, index):
            continue
        if _ends_statement(tokens, index):
            place = index
            break
        misplaced = token
    if misplaced is not None:
        what = "the options" if misplaced.keyword == "WITH" else "it"
        hint = f"Put {what} at the end of the statement{', or before AS' if misplaced.keyword == 'WITH' else ''}."
        raise cursor.located(InvalidStatement(f"{misplaced.keyword} is misplaced", hint=hint), misplaced)
    return place


def _ends_statement(tokens: Sequence[Token], place: int) -> bool:
    while place < len(tokens):
        end = _clause_end(tokens, place)
        if not end:
            return False
        place = end
    return True


def _clause_end(tokens: Sequence[Token], place: int) -> int:
    """The place behind the clause that starts here, or 0; a column or a table may be called emit or into."""
    words = [token.keyword for token in tokens[place : place + 4]]
    if words[:2] == ["EMIT", "CHANGES"]:
        return place + 2
    if words == ["EMIT", "ON", "WINDOW", "CLOSE"]:
        return place + 4
    behind = tokens[place + 1 : place + 3]
    if words[:2] in (["INTO", "TOPIC"], ["INTO", "KAFKA"]) and behind[-1].kind == "string":
        return place + 3
    if words[:1] == ["WITH"] and behind and behind[0].text == "(":
        return _closed_at(tokens, place + 1)
    return 0


def _closed_at(tokens: Sequence[Token], place: int) -> int:
    """The place behind the bracket that closes the one at this place, or behind all if nothing does."""
    depth = 0
    for index in range(place, len(tokens)):
        depth += (tokens[index].text == "(") - (tokens[index].text == ")")
        if depth == 0:
            return index + 1
    return len(tokens)  # reported where the options are read
