"""The statements about materialized views, each behind its first words."""

from __future__ import annotations

from headwater.errors import HeadwaterError, InvalidOption, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.option_clause import OptionClause
from headwater.sql.statements import (
    SHOWN_REFRESHES,
    AlterView,
    CompactView,
    CreateView,
    DescribeView,
    DropView,
    ExplainCreateView,
    ExplainRefresh,
    RefreshView,
    ShowRefreshes,
    ShowViews,
    Verify,
    VerifyView,
)
from headwater.sql.view_definition import check_room_for_late, checked_view_name, read_view_query
from headwater.sql.view_options import only_continuous, parse_view_options, view_option
from headwater.types import ViewDefinition, ViewOptions

MAX_SAMPLE = 1_000_000
MAX_REFRESHES = 10_000

_CONTINUOUS = "Add WITH (refresh = 'continuous')."
_BEFORE_AS = ("COMMENT", "WITH", "AS")


def read_create_view(cursor: Cursor, *, or_replace: bool = False) -> CreateView:
    """CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [COMMENT ''] [WITH (...)] AS query [WITH (...)]."""
    place = cursor.token
    if_not_exists = cursor.at("IF") and cursor.ahead(1).keyword not in ("AS", "WITH", "COMMENT")
    if if_not_exists:
        cursor.expect("IF", "NOT", "EXISTS")
    if if_not_exists and or_replace:
        hint = "Use OR REPLACE to change a view that exists, or IF NOT EXISTS to leave it as it is."
        raise cursor.located(InvalidStatement("OR REPLACE and IF NOT EXISTS contradict each other", hint=hint), place)
    return CreateView(_read_definition(cursor), or_replace, if_not_exists)


def read_explain_create_view(cursor: Cursor) -> ExplainCreateView:
    """The rest of EXPLAIN CREATE, which takes what CREATE takes."""
    or_replace = cursor.accept("OR", "REPLACE")
    cursor.expect("MATERIALIZED", "VIEW")
    cursor.context = "EXPLAIN CREATE MATERIALIZED VIEW"
    return ExplainCreateView(read_create_view(cursor, or_replace=or_replace).definition)


def read_drop_view(cursor: Cursor) -> DropView:
    if_exists = cursor.at("IF") and cursor.ahead(1).kind != "end"
    if if_exists:
        cursor.expect("IF", "EXISTS")
    name = cursor.view()
    cursor.expect_end()
    return DropView(name, if_exists)


def read_alter_view(cursor: Cursor) -> AlterView:
    """ALTER MATERIALIZED VIEW name SET (option = value, ...)."""
    name = cursor.view()
    if not cursor.accept("SET"):
        raise cursor.unexpected(
            "SET and options in brackets",
            known=("SET",),
            hint=f"Use CREATE OR REPLACE MATERIALIZED VIEW {name} AS ... to change the query."
            if cursor.at("AS")
            else None,
        )
    clause = OptionClause(view_option)
    clause.read(cursor, "SET")
    if not clause.values:
        raise cursor.unexpected("at least one option in SET (...)")
    cursor.expect_end()
    return AlterView(name, clause.values)


def read_show_views(cursor: Cursor) -> ShowViews:
    cursor.expect_end()
    return ShowViews()


def read_describe_view(cursor: Cursor) -> DescribeView:
    name = cursor.view()
    cursor.expect_end()
    return DescribeView(name)


def read_refresh(cursor: Cursor) -> RefreshView:
    """REFRESH MATERIALIZED VIEW name [FULL] [VERIFY [SAMPLE n]]."""
    name = cursor.view()
    full = cursor.accept("FULL")
    verify = Verify(_read_sample(cursor)) if cursor.accept("VERIFY") else None
    cursor.expect_end(known=("FULL", "VERIFY"))
    return RefreshView(name, full, verify)


def read_verify(cursor: Cursor) -> VerifyView:
    """VERIFY MATERIALIZED VIEW name [SAMPLE n]."""
    name = cursor.view()
    sample = _read_sample(cursor)
    cursor.expect_end(known=("SAMPLE",))
    return VerifyView(name, sample)


def read_explain_refresh(cursor: Cursor) -> ExplainRefresh:
    """EXPLAIN REFRESH [MATERIALIZED VIEW] name [FULL]."""
    cursor.context = "EXPLAIN REFRESH"
    cursor.accept("MATERIALIZED", "VIEW")
    name = cursor.view()
    full = cursor.accept("FULL")
    cursor.expect_end(known=("FULL",))
    return ExplainRefresh(name, full)


def read_show_refreshes(cursor: Cursor) -> ShowRefreshes:
    """SHOW REFRESHES [FOR [MATERIALIZED VIEW] name] [LIMIT n]."""
    name = None
    if cursor.accept("FOR"):
        cursor.accept("MATERIALIZED", "VIEW")
        name = cursor.view()
    elif cursor.token.kind == "word" and not cursor.at("LIMIT"):
        raise cursor.unexpected("FOR or LIMIT", hint="Use SHOW REFRESHES FOR name.")
    limit = _read_count(cursor, "LIMIT", MAX_REFRESHES) if cursor.accept("LIMIT") else SHOWN_REFRESHES
    cursor.expect_end()
    return ShowRefreshes(name, limit)


def read_compact(cursor: Cursor) -> CompactView:
    name = cursor.view()
    cursor.expect_end()
    return CompactView(name)


def _read_definition(cursor: Cursor) -> ViewDefinition:
    named = cursor.token
    if cursor.at("AS") and cursor.ahead(1).keyword != "AS":
        raise cursor.unexpected("a materialized view name")
    name = cursor.view()
    with cursor.locating(named):
        checked_view_name(name)
    clause = OptionClause(view_option)
    _read_before_as(cursor, name, clause)
    query, behind = read_view_query(cursor)
    _read_behind(behind, clause)
    clause.check(cursor, parse_view_options)
    options = parse_view_options(clause.values)
    if options.mode != "continuous" and (emit := clause.places.get("EMIT")):
        raise cursor.located(_emit_alone(clause, options), emit)
    definition = ViewDefinition(name, query, options)
    with cursor.locating(named):
        check_room_for_late(definition)
    return definition


def _read_behind(cursor: Cursor, clause: OptionClause) -> None:
    """EMIT, INTO and WITH in any order, each once."""
    while cursor.token.kind != "end":
        token = cursor.token
        if token.keyword in clause.places:
            raise cursor.unexpected(f"{token.keyword} once")
        if cursor.accept("EMIT"):
            clause.set(cursor, "emit", token, "changes" if cursor.accept("CHANGES") else "close")
            cursor.accept("ON", "WINDOW", "CLOSE")
        elif cursor.accept("INTO"):
            option = "into_topic" if cursor.advance().keyword == "TOPIC" else "into_kafka"
            clause.set(cursor, option, cursor.token, cursor.string("a name"))
        else:
            cursor.expect("WITH")
            clause.read(cursor, "WITH")
        clause.places[token.keyword] = token


def _emit_alone(clause: OptionClause, options: ViewOptions) -> HeadwaterError:
    if "refresh" in clause.values:
        return only_continuous("EMIT", options, "emit")
    detail = f"The view has no option refresh, and is then refreshed in the mode '{options.mode}'."
    return InvalidOption("EMIT is for continuous views", detail=detail, hint=_CONTINUOUS, option="emit")


def _read_before_as(cursor: Cursor, name: str, clause: OptionClause) -> None:
    """COMMENT and WITH in any order, then AS."""
    while not cursor.accept("AS"):
        token = cursor.token
        if token.keyword in clause.places:
            raise cursor.unexpected(f"{token.keyword} once")
        if cursor.accept("COMMENT"):
            clause.set(cursor, "description", token, cursor.string("a comment"))
        elif cursor.at("WITH") and cursor.ahead(1).text == "(":
            cursor.advance()
            clause.read(cursor, "WITH")
        else:
            raise _missing_as(cursor, name)
        clause.places[token.keyword] = token


def _missing_as(cursor: Cursor, name: str) -> HeadwaterError:
    hint = None
    if cursor.at_symbol("("):
        hint = "Columns are named in the query: SELECT x AS name."
    elif cursor.token.keyword in ("SELECT", "FROM", "VALUES", "TABLE", "WITH"):
        hint = f"Write CREATE MATERIALIZED VIEW {name} AS {cursor.token.keyword} ..."
    elif cursor.token.keyword in ("PARTITIONED", "USING", "LOCATION", "TBLPROPERTIES", "OPTIONS"):
        hint = "Leave the clause out; options are set by WITH (option = value)."
    return cursor.unexpected("AS and the query", hint=hint, known=_BEFORE_AS)


def _read_sample(cursor: Cursor) -> int | None:
    return _read_count(cursor, "SAMPLE", MAX_SAMPLE) if cursor.accept("SAMPLE") else None


def _read_count(cursor: Cursor, word: str, most: int) -> int:
    place = cursor.token
    number = cursor.integer(f"a number behind {word}")
    if 1 <= number <= most:
        return number
    detail = f"It takes a whole number from 1 to {most}."
    raise cursor.located(InvalidStatement(f'{word} does not take "{number}"', detail=detail), place)
