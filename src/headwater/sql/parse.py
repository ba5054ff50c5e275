"""SQL text to statements. Headwater's own statements are parsed here; a reading query is recognised and kept verbatim.

Whether a query is valid, and whether it may run, is decided by the engines on their own parsed plans, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from threading import TIMEOUT_MAX
from typing import Any, get_args

from headwater.errors import HeadwaterError, InvalidOption, InvalidStatement, StatementNotAllowed
from headwater.sql.alter import read_alter, read_show_schemas
from headwater.sql.care_statements import read_maintain, read_optimize, read_show_maintenance
from headwater.sql.create import read_create
from headwater.sql.cursor import Cursor, closest
from headwater.sql.parquet_statements import read_recommend, read_show_parquet
from headwater.sql.query_text import QUERY_WORDS, at_query, read_query
from headwater.sql.refusals import INSTEAD, OBJECTS, STATEMENTS, VIEW_INSTEAD
from headwater.sql.row_statements import read_delete, read_update
from headwater.sql.snapshot_statements import (
    read_cherry_pick,
    read_create_branch,
    read_create_tag,
    read_diff,
    read_drop_branch,
    read_drop_tag,
    read_rollback,
    read_show_branches,
    read_show_snapshots,
    read_show_tags,
)
from headwater.sql.statements import (
    DescribeTopic,
    DropTopic,
    Engine,
    Explain,
    FlushTopic,
    Query,
    ShowTopics,
    Statement,
)
from headwater.sql.stream_statements import (
    read_alter_stream,
    read_create_stream,
    read_describe_stream,
    read_drop_stream,
    read_restart,
    read_show_status,
    read_show_streams,
    read_start,
    read_stop,
)
from headwater.sql.tokens import Token, tokenise, tokens_of
from headwater.sql.view_statements import (
    read_alter_view,
    read_compact,
    read_create_view,
    read_describe_view,
    read_drop_view,
    read_explain_create_view,
    read_explain_refresh,
    read_refresh,
    read_show_refreshes,
    read_show_views,
    read_verify,
)

_OPTIONS = tuple(each.name for each in fields(Query) if each.name != "text")
STATEMENT_WORDS = (
    *("CREATE", "DROP", "ALTER", "SHOW", "DESCRIBE", "DESC", "FLUSH", "REFRESH", "VERIFY", "COMPACT"),
    *("OPTIMIZE", "MAINTAIN", "RECOMMEND", "START", "STOP", "RESTART"),
    *("DELETE", "UPDATE", "ROLLBACK", "CHERRY", "DIFF", "EXPLAIN"),
)
_REPLACED = "MATERIALIZED VIEW or STREAM"
_SPARK_EXPLAIN = ("EXTENDED", "FORMATTED", "CODEGEN", "COST", "LOGICAL")


def parse(text: str, **options: Any) -> Statement:
    """The one statement that a text holds; a semicolon may end it. `options` (engine, tail, max_rows, timeout) are a
    query's."""
    if not isinstance(text, str):
        raise InvalidStatement("statement is not text", detail=f"It is of the Python type {type(text).__name__}.")
    statements = _split(text)
    first, second = next(statements, None), next(statements, None)
    if first is None:
        raise InvalidStatement("statement is empty", hint=f"Start with one of {_starts()}.")
    if second is not None:
        raise Cursor(text, second).located(
            InvalidStatement(
                f"expected one statement, found {2 + sum(1 for _ in statements)}",
                hint="Run them one by one, or as a script with `headwater sql`.",
            )
        )
    return _with_options(_statement(Cursor(text, first)), options)


def _with_options(statement: Statement, options: Mapping[str, Any]) -> Statement:
    if not options:
        return statement
    for name in options:
        if name not in _OPTIONS:
            near = closest(name, _OPTIONS)
            hint = f'Did you mean "{near}"?' if near else f"A query has {_one_of(_OPTIONS)}."
            raise InvalidOption(f'query option "{name}" does not exist', hint=hint)
        _check_option(name, options[name])
    match statement:
        case Query():
            return replace(statement, **options)
        case Explain(query):
            return replace(statement, query=replace(query, **options))
    raise InvalidOption(f'option "{next(iter(options))}" is a query\'s', detail="This statement takes no options.")


def _check_option(name: str, value: Any) -> None:
    """InvalidOption if a query's option has a value that means nothing."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match name:
        case "engine":
            valid, expected = isinstance(value, str) and value in get_args(Engine), _one_of(get_args(Engine))
        case "tail":
            valid, expected = isinstance(value, bool), "true or false"
        case "max_rows":
            valid = value is None or (isinstance(value, int) and is_number and value >= 1)
            expected = "a whole number of at least 1"
        case _:
            valid, expected = value is None or (is_number and 0 < value <= TIMEOUT_MAX), "a number of seconds"
    if not valid:
        raise InvalidOption(f'query option "{name}" cannot be {value!r}', detail=f"Expected {expected}.")


def parse_script(text: str) -> tuple[Statement, ...]:
    """All statements of a text, separated by semicolons; none of them is returned if one cannot be parsed."""
    return tuple(_statement(Cursor(text, tokens)) for tokens in _split(text))


def is_complete(text: str) -> bool:
    """Whether a shell can run what was typed: it is empty, or ends with a semicolon outside quotes and comments."""
    try:
        tokens = tokenise(text)
    except InvalidStatement as error:
        return not error.message.endswith("is not closed")
    return len(tokens) == 1 or tokens[-2].text == ";"


def _split(text: str) -> Iterator[tuple[Token, ...]]:
    """The tokens of each statement that is not empty, each row with an end of its own."""
    row: list[Token] = []
    for token in tokens_of(text):
        if token.kind != "end" and not (token.kind == "symbol" and token.text == ";"):
            row.append(token)
        elif row:
            yield (*row, Token("end", "", row[-1].end, row[-1].end))
            row = []


def _statement(cursor: Cursor) -> Statement:
    if at_query(cursor):
        return read_query(cursor)
    word = "DESCRIBE" if cursor.at("DESC") else cursor.token.keyword
    match word:
        case "EXPLAIN":
            return _explain(cursor)
        case "FLUSH":
            return _flush(cursor)
        case "UPDATE":
            cursor.advance()
            cursor.context = "UPDATE"
            return read_update(cursor)
        case "OPTIMIZE" | "MAINTAIN":
            cursor.advance()
            cursor.context = word
            return read_optimize(cursor) if word == "OPTIMIZE" else read_maintain(cursor)
        case _ if word in _READERS:
            cursor.advance()
            return _behind(cursor, word)
    raise _refused_statement(cursor)


def _behind(cursor: Cursor, verb: str) -> Statement:
    """The statement whose verb was read: the words behind it say which."""
    for words, read in _READERS[verb].items():
        first, *more = words.split()
        if cursor.accept(first):
            cursor.context = f"{verb} {words}"
            cursor.expect(*more)
            return read(cursor)
    raise _refused_object(cursor, verb)


def _refused_statement(cursor: Cursor) -> HeadwaterError:
    token = cursor.token
    if token.keyword in STATEMENTS:
        hint = STATEMENTS[token.keyword]
        return cursor.located(StatementNotAllowed(f'statement "{token.keyword}" is not run by headwater', hint=hint))
    guess = closest(token.text, (*STATEMENT_WORDS, *QUERY_WORDS)) if token.kind == "word" else None
    return cursor.located(
        InvalidStatement(
            f"statement {token.shown} is not known",
            detail=f"Statements start with {_starts()}.",
            hint=f"Did you mean {guess}?" if guess else None,
        )
    )


def _starts() -> str:
    return _one_of((*STATEMENT_WORDS, *QUERY_WORDS, '"("'))


def _one_of(words: Sequence[str]) -> str:
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _refused_object(cursor: Cursor, verb: str) -> HeadwaterError:
    """Refuse what follows a verb when it is none of the things that the verb is for."""
    token = cursor.token
    wanted = tuple(words for words in _READERS[verb] if words != "OR REPLACE")
    hint = VIEW_INSTEAD[verb] if token.keyword in ("VIEW", "VIEWS") and verb in VIEW_INSTEAD else INSTEAD[verb]
    if token.keyword in OBJECTS:
        return cursor.located(
            StatementNotAllowed(f'statement "{verb} {token.keyword}" is not run by headwater', hint=hint)
        )
    near = closest(token.text, wanted) if token.kind == "word" else None
    cursor.context = verb
    return cursor.unexpected(_one_of(wanted), hint=f"Did you mean {verb} {near}?" if near else hint)


def _create_or_replace(cursor: Cursor) -> Statement:
    for word, read in (("TAG", read_create_tag), ("BRANCH", read_create_branch)):
        if cursor.accept(word):
            cursor.context = f"CREATE OR REPLACE {word}"
            return read(cursor, or_replace=True)
    if cursor.accept("STREAM"):
        cursor.context = "CREATE OR REPLACE STREAM"
        return read_create_stream(cursor, or_replace=True)
    if cursor.at("TOPIC"):
        raise cursor.unexpected(_REPLACED, hint="Use CREATE TOPIC IF NOT EXISTS, or DROP TOPIC first.")
    if not cursor.at("MATERIALIZED"):
        raise cursor.unexpected(_REPLACED, hint="Use CREATE OR REPLACE MATERIALIZED VIEW name AS query.")
    cursor.expect("MATERIALIZED", "VIEW")
    cursor.context = "CREATE OR REPLACE MATERIALIZED VIEW"
    return read_create_view(cursor, or_replace=True)


def _drop(cursor: Cursor) -> DropTopic:
    if_exists = cursor.at("IF") and cursor.ahead(1).kind != "end"
    if if_exists:
        cursor.expect("IF", "EXISTS")
    name = cursor.topic()
    cursor.expect_end()
    return DropTopic(name, if_exists)


def _show(cursor: Cursor) -> ShowTopics:
    cursor.expect_end()
    return ShowTopics()


def _describe(cursor: Cursor) -> DescribeTopic:
    name = cursor.topic()
    cursor.expect_end()
    return DescribeTopic(name)


def _flush(cursor: Cursor) -> FlushTopic:
    cursor.advance()
    cursor.context = "FLUSH"
    if cursor.at("TOPICS") and cursor.ahead(1).kind == "end":
        raise cursor.unexpected(
            "a topic name or nothing", hint="Use FLUSH for all topics, or FLUSH TOPIC topics for this one."
        )
    named = cursor.accept("TOPIC") or cursor.token.kind != "end"
    name = cursor.topic() if named else None
    cursor.expect_end()
    return FlushTopic(name)


def _explain(cursor: Cursor) -> Statement:
    cursor.advance()
    cursor.context = "EXPLAIN"
    if cursor.accept("REFRESH"):
        return read_explain_refresh(cursor)
    if cursor.accept("CREATE"):
        return read_explain_create_view(cursor)
    analyze = cursor.accept("ANALYZE")
    if at_query(cursor):
        return Explain(read_query(cursor), analyze)
    if cursor.token.keyword in _SPARK_EXPLAIN:
        raise cursor.unexpected("a query", hint="Use EXPLAIN, or EXPLAIN ANALYZE, and the query.")
    if analyze:
        raise cursor.unexpected("a query", known=QUERY_WORDS)
    raise cursor.unexpected(
        "a query, REFRESH or CREATE MATERIALIZED VIEW", known=(*QUERY_WORDS, "ANALYZE", "REFRESH", "CREATE")
    )


_READERS: Mapping[str, Mapping[str, Callable[[Cursor], Statement]]] = {
    "CREATE": {
        "TOPIC": read_create,
        "MATERIALIZED VIEW": read_create_view,
        "STREAM": read_create_stream,
        "TAG": read_create_tag,
        "BRANCH": read_create_branch,
        "OR REPLACE": _create_or_replace,
    },
    "DROP": {
        "TOPIC": _drop,
        "MATERIALIZED VIEW": read_drop_view,
        "STREAM": read_drop_stream,
        "TAG": read_drop_tag,
        "BRANCH": read_drop_branch,
    },
    "ALTER": {"TOPIC": read_alter, "MATERIALIZED VIEW": read_alter_view, "STREAM": read_alter_stream},
    "SHOW": {
        "TOPICS": _show,
        "MATERIALIZED VIEWS": read_show_views,
        "STREAMS": read_show_streams,
        "STREAM STATUS": read_show_status,
        "REFRESHES": read_show_refreshes,
        "MAINTENANCE": read_show_maintenance,
        "SCHEMAS OF": read_show_schemas,
        "PARQUET": read_show_parquet,
        "SNAPSHOTS OF": read_show_snapshots,
        "TAGS OF": read_show_tags,
        "BRANCHES OF": read_show_branches,
    },
    "DESCRIBE": {"TOPIC": _describe, "MATERIALIZED VIEW": read_describe_view, "STREAM": read_describe_stream},
    "REFRESH": {"MATERIALIZED VIEW": read_refresh},
    "VERIFY": {"MATERIALIZED VIEW": read_verify},
    "COMPACT": {"MATERIALIZED VIEW": read_compact},
    "DELETE": {"FROM": read_delete},
    "ROLLBACK": {"TOPIC": read_rollback},
    "CHERRY": {"PICK VERSION": read_cherry_pick},
    "DIFF": {"TOPIC": read_diff},
    "RECOMMEND": {"FOR": read_recommend},
    "START": {"STREAM": read_start},
    "STOP": {"STREAM": read_stop},
    "RESTART": {"STREAM": read_restart},
}
"""What reads the rest of a statement, by its verb and the words behind it."""
