"""CREATE TOPIC behind its first two words: columns, then COMMENT, PARTITIONED BY and WITH in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import InvalidOption
from headwater.sql.cursor import Cursor
from headwater.sql.definition import checked_definition, checked_topic_name
from headwater.sql.options import option, parse_options
from headwater.sql.partitioning import check_partitioning, read_partitioning
from headwater.sql.schema_text import read_columns
from headwater.sql.statements import CreateTopic
from headwater.sql.tokens import Token
from headwater.types import Partition

_CLAUSES = ("COMMENT", "PARTITIONED BY", "WITH")
_INSTEAD: Mapping[str, str] = {
    "AS": "Create the topic with its columns, then produce into it.",
    "USING": "Topics are Iceberg tables; leave the clause out.",
    "LOCATION": "Headwater chooses the location; leave the clause out.",
    "TBLPROPERTIES": "Use WITH (option = value).",
    "OPTIONS": "Use WITH (option = value).",
    "CLUSTERED": "Use PARTITIONED BY (bucket(8, x)).",
    "CLUSTER": "Use PARTITIONED BY (...).",
    "PARTITION": "Use PARTITIONED BY (...).",
}


@dataclass(slots=True)
class _Clauses:
    """What follows the columns, and the token that each part came from, so that errors point at it."""

    partitioning: tuple[Partition, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    places: dict[str, Token] = field(default_factory=dict)


def read_create(cursor: Cursor) -> CreateTopic:
    """Read the rest of CREATE TOPIC into a definition that passed every check."""
    cursor.context = "CREATE TOPIC"
    if_not_exists = cursor.at("IF") and cursor.ahead(1).text != "("
    if if_not_exists:
        cursor.expect("IF", "NOT", "EXISTS")
    named = cursor.token
    name = cursor.topic()
    with cursor.locating(named):
        checked_topic_name(name)
    if not cursor.at_symbol("("):
        hint = _INSTEAD.get(cursor.token.keyword, "Columns are named with their types, never inferred.")
        raise cursor.unexpected(f'"(" and the columns of topic "{name}"', hint=hint)
    cursor.advance()
    schema = read_columns(cursor)
    cursor.expect_symbol(")", "the columns")
    clauses = _read_clauses(cursor)
    with cursor.locating(clauses.places.get("PARTITIONED", named)):
        check_partitioning(schema, clauses.partitioning)
    with cursor.locating(clauses.places.get("dedup_key", named)):
        return CreateTopic(checked_definition(name, schema, clauses.partitioning, clauses.options), if_not_exists)


def _read_clauses(cursor: Cursor) -> _Clauses:
    clauses = _Clauses()
    while cursor.token.kind != "end":
        token = cursor.token
        if token.keyword in clauses.places:
            raise cursor.unexpected(f"{token.keyword} once")
        if cursor.accept("COMMENT"):
            _set(cursor, clauses, "description", token, cursor.string("a comment"))
        elif cursor.accept("PARTITIONED"):
            cursor.expect("BY")
            cursor.expect_symbol("(", "PARTITIONED BY")
            clauses.partitioning = read_partitioning(cursor)
            cursor.expect_symbol(")", "the partition fields")
        elif cursor.accept("WITH"):
            _read_options(cursor, clauses)
        else:
            raise cursor.unexpected("COMMENT, PARTITIONED BY or WITH", hint=_INSTEAD.get(token.keyword), known=_CLAUSES)
        clauses.places[token.keyword] = token
    _check_options(cursor, clauses)
    return clauses


def _read_options(cursor: Cursor, clauses: _Clauses) -> None:
    cursor.expect_symbol("(", "WITH")
    while not cursor.accept_symbol(")"):
        key = cursor.token
        if key.kind not in ("word", "quoted", "string"):
            raise cursor.unexpected("an option, as in compression = 'zstd'")
        name = cursor.advance().value
        with cursor.locating(key):
            option(name)
        cursor.expect_symbol("=", f'option "{name}"')
        place = cursor.token
        _set(cursor, clauses, name, place, _read_value(cursor))
        if not cursor.accept_symbol(","):
            cursor.expect_symbol(")", "the options")
            return


def _set(cursor: Cursor, clauses: _Clauses, name: str, place: Token, value: object) -> None:
    """Keep an option's value if it is the first one and is taken."""
    if name in clauses.options:
        raise cursor.located(InvalidOption(f'option "{name}" is set twice', option=name), place)
    with cursor.locating(place):
        option(name).read(value)
    clauses.options[name] = value
    clauses.places[name] = place


def _check_options(cursor: Cursor, clauses: _Clauses) -> None:
    """Check the options against each other, pointing at the one that the error is about."""
    try:
        parse_options(clauses.options)
    except InvalidOption as error:
        raise cursor.located(error, clauses.places[error.data["option"]]) from None


def _read_value(cursor: Cursor) -> object:
    """A string, a number, a bare word, or a list of them in brackets."""
    if cursor.accept_symbol("("):
        values = [_read_scalar(cursor)]
        while cursor.accept_symbol(","):
            values.append(_read_scalar(cursor))
        cursor.expect_symbol(")", "the list")
        return values
    return _read_scalar(cursor)


def _read_scalar(cursor: Cursor) -> object:
    sign = "-" if cursor.accept_symbol("-") else ""
    token = cursor.token
    if token.kind == "string" and not sign:
        return cursor.advance().value
    if token.kind == "number":
        return sign + cursor.advance().text
    if token.kind == "word" and not sign:
        return None if cursor.advance().keyword == "NULL" else token.text
    raise cursor.unexpected("a value")
