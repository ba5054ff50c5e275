"""The statements about streams, each behind its first words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.schema import Schema

from headwater.errors import InvalidInput, InvalidOption, InvalidStatement
from headwater.sql.create import read_in_brackets
from headwater.sql.cursor import Cursor
from headwater.sql.option_clause import OptionClause
from headwater.sql.partitioning import check_partitioning, read_partitioning
from headwater.sql.schema_text import read_columns
from headwater.sql.statements import (
    AlterStream,
    CreateStream,
    DescribeStream,
    DropStream,
    RestartStream,
    ShowStreams,
    ShowStreamStatus,
    StartStream,
    StopStream,
)
from headwater.sql.stream_definition import checked_stream, checked_stream_name
from headwater.sql.stream_options import altered_option, created_option, parse_stream_options, split_options
from headwater.sql.tokens import Token
from headwater.types import Partition, StreamDefinition

_CLAUSES = ("COMMENT", "PARTITIONED BY", "WITH")
_INSTEAD: Mapping[str, str] = {
    "AS": "A query that is kept up to date is a view: CREATE MATERIALIZED VIEW name AS query.",
    "ORDERED": "Create the topic first, with ORDERED BY, and the stream on it.",
    "CLUSTERED": "Create the topic first, with CLUSTERED BY ZORDER, and the stream on it.",
    "PARTITION": "Use PARTITIONED BY (...).",
}


@dataclass(slots=True)
class _Clauses:
    """What follows the columns, and the token that each part came from, so that errors point at it."""

    partitioning: tuple[Partition, ...] = ()
    options: OptionClause = field(default_factory=lambda: OptionClause(created_option))
    places: dict[str, Token] = field(default_factory=dict)


def read_create_stream(cursor: Cursor, *, or_replace: bool = False) -> CreateStream:
    """CREATE [OR REPLACE] STREAM [IF NOT EXISTS] name [(columns)] [PARTITIONED BY (...)] [COMMENT ''] [WITH (...)]."""
    place = cursor.token
    if_not_exists = cursor.at("IF") and cursor.ahead(1).keyword == "NOT"
    if if_not_exists:
        cursor.expect("IF", "NOT", "EXISTS")
    if if_not_exists and or_replace:
        hint = "Use OR REPLACE to change a stream that exists, or IF NOT EXISTS to leave it as it is."
        raise cursor.located(InvalidStatement("OR REPLACE and IF NOT EXISTS contradict each other", hint=hint), place)
    return CreateStream(_read_definition(cursor), if_not_exists, or_replace)


def read_drop_stream(cursor: Cursor) -> DropStream:
    if_exists = cursor.at("IF") and cursor.ahead(1).kind != "end"
    if if_exists:
        cursor.expect("IF", "EXISTS")
    return DropStream(_read_last_name(cursor), if_exists)


def read_alter_stream(cursor: Cursor) -> AlterStream:
    """ALTER STREAM name SET (option = value, ...)."""
    name = cursor.name("stream")
    if not cursor.accept("SET"):
        changes = cursor.token.keyword in ("ADD", "DROP", "RENAME", "ALTER")
        hint = "Columns are changed by CREATE OR REPLACE STREAM, and those of the topic by ALTER TOPIC."
        raise cursor.unexpected("SET and options in brackets", known=("SET",), hint=hint if changes else None)
    clause = OptionClause(altered_option)
    clause.read(cursor, "SET")
    if not clause.values:
        raise cursor.unexpected("at least one option in SET (...)")
    cursor.expect_end()
    return AlterStream(name, clause.values)


def read_show_streams(cursor: Cursor) -> ShowStreams:
    cursor.expect_end()
    return ShowStreams()


def read_describe_stream(cursor: Cursor) -> DescribeStream:
    return DescribeStream(_read_last_name(cursor))


def read_start(cursor: Cursor) -> StartStream:
    return StartStream(_read_last_name(cursor))


def read_stop(cursor: Cursor) -> StopStream:
    return StopStream(_read_last_name(cursor))


def read_restart(cursor: Cursor) -> RestartStream:
    return RestartStream(_read_last_name(cursor))


def read_show_status(cursor: Cursor) -> ShowStreamStatus:
    """SHOW STREAM STATUS [FOR name]."""
    if cursor.token.kind == "end":
        return ShowStreamStatus()
    if not cursor.accept("FOR"):
        raise cursor.unexpected("FOR or nothing more", known=("FOR",), hint="Use SHOW STREAM STATUS FOR name.")
    return ShowStreamStatus(_read_last_name(cursor))


def _read_last_name(cursor: Cursor) -> str:
    name = cursor.name("stream")
    cursor.expect_end()
    return name


def _read_definition(cursor: Cursor) -> StreamDefinition:
    named = cursor.token
    name = cursor.name("stream")
    with cursor.locating(named):
        checked_stream_name(name)
    schema = read_in_brackets(cursor, "the name", read_columns) if cursor.at_symbol("(") else None
    clauses = _read_clauses(cursor)
    if schema is not None:
        with cursor.locating(clauses.places.get("PARTITIONED", named)):
            check_partitioning(schema, clauses.partitioning)
    return _checked(cursor, named, schema, clauses)


def _checked(cursor: Cursor, named: Token, schema: Schema | None, clauses: _Clauses) -> StreamDefinition:
    """The definition, if its parts go together; an error points at the one that it is about."""
    values, of_topic = split_options(clauses.options.values)
    try:
        return checked_stream(named.value, schema, parse_stream_options(values), clauses.partitioning, of_topic)
    except InvalidOption as error:
        raise cursor.located(error, clauses.options.places.get(error.data["option"], named)) from None
    except InvalidInput as error:
        place = clauses.options.places.get("topic", named)
        raise cursor.located(error, clauses.places.get("PARTITIONED", place)) from None


def _read_clauses(cursor: Cursor) -> _Clauses:
    clauses = _Clauses()
    while cursor.token.kind != "end":
        token = cursor.token
        if token.keyword in clauses.places:
            raise cursor.unexpected(f"{token.keyword} once")
        if cursor.accept("COMMENT"):
            clauses.options.set(cursor, "description", token, cursor.string("a comment"))
        elif cursor.accept("PARTITIONED"):
            cursor.expect("BY")
            clauses.partitioning = read_in_brackets(cursor, "PARTITIONED BY", read_partitioning)
        elif cursor.accept("WITH"):
            clauses.options.read(cursor, "WITH")
        else:
            wanted = "COMMENT, PARTITIONED BY or WITH"
            raise cursor.unexpected(wanted, hint=_INSTEAD.get(token.keyword), known=_CLAUSES)
        clauses.places[token.keyword] = token
    return clauses
