"""DELETE and UPDATE of a topic's rows. Conditions and values are kept as they were written; the engine reads them.

Both need a WHERE: a statement that was sent half typed must not change every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.errors import HeadwaterError, InvalidStatement, StatementNotAllowed
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import check_brackets, text_of
from headwater.sql.statements import DeleteRows, UpdateRows
from headwater.sql.tokens import Token
from headwater.types import SYSTEM_COLUMNS, VIEWS

_TOPIC_FUNCTION = "topic"
_VIEW_FUNCTION = "mv"
_EVERY_ROW = "End the statement with WHERE TRUE if every row is meant."


def read_delete(cursor: Cursor) -> DeleteRows:
    """DELETE FROM topic WHERE condition."""
    topic = _read_topic(cursor)
    if not cursor.at("WHERE"):
        raise _missing_where(cursor)
    return DeleteRows(topic, _read_condition(cursor))


def read_update(cursor: Cursor) -> UpdateRows:
    """UPDATE topic SET column = value, ... WHERE condition."""
    topic = _read_topic(cursor)
    if not cursor.accept("SET"):
        raise cursor.unexpected("SET", known=("SET",), hint=_alias_hint(cursor))
    assignments: dict[str, str] = {}
    while True:
        column = _read_column(cursor, assignments)
        cursor.expect_symbol("=", f'column "{column}"')
        assignments[column] = _read_value(cursor, column)
        if not cursor.accept_symbol(","):
            break
    if not cursor.at("WHERE"):
        raise _missing_where(cursor)
    return UpdateRows(topic, tuple(assignments.items()), _read_condition(cursor))


def _read_topic(cursor: Cursor) -> str:
    """`orders`, `topics.orders` or `topic('orders')`; a view is not changed by statements."""
    word, following = cursor.token.value.lower(), cursor.ahead(1).text
    if (word == VIEWS and following == ".") or (word == _VIEW_FUNCTION and following == "("):
        raise cursor.located(
            StatementNotAllowed(
                "a materialized view's rows are not changed", hint="Change the topics that it reads; it follows them."
            )
        )
    if word != _TOPIC_FUNCTION or following != "(":
        return cursor.topic()
    cursor.skip(2)
    place = cursor.token
    name = cursor.string("a topic name")
    cursor.expect_symbol(")", "the topic name")
    return cursor.checked(name, "topic", place)


def _read_column(cursor: Cursor, assigned: dict[str, str]) -> str:
    token = cursor.token
    if token.kind not in ("word", "quoted") or (cursor.at("WHERE") and cursor.ahead(1).text != "="):
        raise cursor.unexpected("a column")
    column = token.value.lower()
    if column in SYSTEM_COLUMNS:
        detail = "It says where and when the record was acknowledged."
        raise cursor.located(InvalidStatement(f'system column "{column}" cannot be assigned', detail=detail))
    if column in assigned:
        raise cursor.located(InvalidStatement(f'column "{column}" is assigned twice'))
    cursor.advance()
    return cursor.checked(column, "column", token)


def _read_value(cursor: Cursor, column: str) -> str:
    """The expression up to a comma or WHERE outside brackets."""
    tokens = tuple(_until_clause(cursor))
    if not tokens:
        raise cursor.unexpected(f'a value for column "{column}"')
    check_brackets(cursor, tokens)
    return text_of(cursor, tokens)


def _until_clause(cursor: Cursor) -> Iterator[Token]:
    depth, after_dot = 0, False
    while cursor.token.kind != "end":
        if depth <= 0 and (cursor.at_symbol(",") or (cursor.at("WHERE") and not after_dot)):
            return
        token = cursor.advance()
        depth += (token.text == "(") - (token.text == ")")
        after_dot = token.text == "."
        yield token


def _read_condition(cursor: Cursor) -> str:
    cursor.expect("WHERE")
    tokens: Sequence[Token] = cursor.rest()
    if not tokens:
        raise cursor.unexpected("a condition", hint=_EVERY_ROW)
    check_brackets(cursor, tokens)
    return text_of(cursor, tokens)


def _missing_where(cursor: Cursor) -> HeadwaterError:
    hint = _EVERY_ROW if cursor.token.kind == "end" else _alias_hint(cursor)
    return cursor.unexpected("WHERE and a condition", hint=hint, known=("WHERE",))


def _alias_hint(cursor: Cursor) -> str | None:
    aliased = cursor.at("AS") or cursor.ahead(1).keyword in ("SET", "WHERE")
    return "A topic has no alias here; name its columns alone." if aliased else None
