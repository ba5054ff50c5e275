"""DELETE and UPDATE of a topic's rows. Conditions and values are kept as they were written; the engine reads them.

Both need a WHERE: a statement that was sent half typed must not change every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headwater.errors import HeadwaterError, InvalidStatement, StatementNotAllowed
from headwater.sql.cursor import Cursor
from headwater.sql.query_text import check_brackets, text_of
from headwater.sql.statements import DeleteRows, UpdateRows
from headwater.sql.tokens import Token, tokenise
from headwater.types import SYSTEM_COLUMNS, VIEWS, checked_name

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


def delete_of(topic: str, condition: str) -> DeleteRows:
    """The same statement from its parts."""
    return DeleteRows(checked_name(topic, "topic"), checked_expression(condition, "condition"))


def update_of(topic: str, assignments: Mapping[str, str], condition: str) -> UpdateRows:
    """The same statement from its parts: columns with the text of their new values."""
    if not assignments:
        raise InvalidStatement("update assigns no column", hint="Name at least one column with its new value.")
    values: dict[str, str] = {}
    for name, value in assignments.items():
        cursor = Cursor(name, tokenise(name), context="column")
        column = _read_column(cursor, values)
        if cursor.token.kind != "end":
            raise cursor.unexpected("nothing behind the column")
        values[column] = checked_expression(value, f'value of column "{column}"')
    return UpdateRows(checked_name(topic, "topic"), tuple(values.items()), checked_expression(condition, "condition"))


def checked_expression(text: str, context: str) -> str:
    """One expression, such as a condition, that cannot escape from where it is put."""
    cursor = Cursor(text, tokenise(text), context=context)
    tokens = cursor.rest()
    if not tokens:
        raise cursor.unexpected("an expression")
    check_brackets(cursor, tokens)
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")")
        if token.kind == "symbol" and (token.text == ";" or (token.text == "," and not depth)):
            raise cursor.located(InvalidStatement(f"{context} is more than one expression"), token)
    return text_of(cursor, tokens)


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
