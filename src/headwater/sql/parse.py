"""SQL text to statements. Headwater's own statements are parsed here; a reading query is recognised and kept verbatim.

Whether a query is valid, and whether it may run, is decided by the engines on their own parsed plans, not here.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.errors import HeadwaterError, InvalidStatement, StatementNotAllowed
from headwater.sql.create import read_create
from headwater.sql.cursor import Cursor, closest
from headwater.sql.refusals import INSTEAD, OBJECTS, STATEMENTS
from headwater.sql.statements import (
    CreateTopic,
    DescribeTopic,
    DropTopic,
    Explain,
    FlushTopic,
    Query,
    ShowTopics,
    Statement,
)
from headwater.sql.tokens import Token, tokenise

QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
STATEMENT_WORDS = ("CREATE", "DROP", "SHOW", "DESCRIBE", "DESC", "FLUSH", "EXPLAIN")

_SPARK_EXPLAIN = ("EXTENDED", "FORMATTED", "CODEGEN", "COST", "LOGICAL")


def parse(text: str) -> Statement:
    """The one statement that a text holds; a semicolon may end it."""
    statements = list(_split(text))
    if not statements:
        raise InvalidStatement("statement is empty", hint=f"Start with one of {_starts()}.")
    if len(statements) > 1:
        raise Cursor(text).located(
            InvalidStatement(
                f"expected one statement, found {len(statements)}",
                hint="Run them one by one, or as a script with `headwater sql`.",
            ),
            statements[1][0],
        )
    return _statement(Cursor(text, statements[0]))


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
    for token in tokenise(text):
        if token.kind != "end" and not (token.kind == "symbol" and token.text == ";"):
            row.append(token)
        elif row:
            yield (*row, Token("end", "", row[-1].end, row[-1].end))
            row = []


def _statement(cursor: Cursor) -> Statement:
    word = cursor.token.keyword
    if word in QUERY_WORDS or cursor.at_symbol("("):
        return _query(cursor)
    match "DESCRIBE" if word == "DESC" else word:
        case "CREATE":
            return _create(cursor)
        case "DROP":
            return _drop(cursor)
        case "SHOW":
            return _show(cursor)
        case "DESCRIBE":
            return _describe(cursor)
        case "FLUSH":
            return _flush(cursor)
        case "EXPLAIN":
            return _explain(cursor)
    raise _refused_statement(cursor)


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
    return ", ".join((*STATEMENT_WORDS, *QUERY_WORDS)) + ' or "("'


def _refused_object(cursor: Cursor, verb: str, wanted: str) -> HeadwaterError:
    """Refuse what follows CREATE, DROP, SHOW or DESCRIBE when it is not a topic."""
    token = cursor.token
    if token.keyword in OBJECTS:
        return cursor.located(
            StatementNotAllowed(f'statement "{verb} {token.keyword}" is not run by headwater', hint=INSTEAD[verb])
        )
    near = closest(token.text, (wanted,)) if token.kind == "word" else None
    cursor.context = verb
    return cursor.unexpected(wanted, hint=f"Did you mean {verb} {near}?" if near else INSTEAD[verb])


def _create(cursor: Cursor) -> CreateTopic:
    cursor.advance()
    if cursor.at("OR", "REPLACE"):
        cursor.context = "CREATE"
        raise cursor.unexpected("TOPIC", hint="Use CREATE TOPIC IF NOT EXISTS, or DROP TOPIC first.")
    if not cursor.accept("TOPIC"):
        raise _refused_object(cursor, "CREATE", "TOPIC")
    return read_create(cursor)


def _drop(cursor: Cursor) -> DropTopic:
    cursor.advance()
    if not cursor.accept("TOPIC"):
        raise _refused_object(cursor, "DROP", "TOPIC")
    cursor.context = "DROP TOPIC"
    if_exists = cursor.at("IF") and cursor.ahead(1).kind != "end"
    if if_exists:
        cursor.expect("IF", "EXISTS")
    name = cursor.topic()
    cursor.expect_end()
    return DropTopic(name, if_exists)


def _show(cursor: Cursor) -> ShowTopics:
    cursor.advance()
    if not cursor.accept("TOPICS"):
        raise _refused_object(cursor, "SHOW", "TOPICS")
    cursor.context = "SHOW TOPICS"
    cursor.expect_end()
    return ShowTopics()


def _describe(cursor: Cursor) -> DescribeTopic:
    cursor.advance()
    if not cursor.accept("TOPIC"):
        raise _refused_object(cursor, "DESCRIBE", "TOPIC")
    cursor.context = "DESCRIBE TOPIC"
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


def _explain(cursor: Cursor) -> Explain:
    cursor.advance()
    cursor.context = "EXPLAIN"
    analyze = cursor.accept("ANALYZE")
    if cursor.token.keyword in QUERY_WORDS or cursor.at_symbol("("):
        return Explain(_query(cursor), analyze)
    if cursor.token.keyword in _SPARK_EXPLAIN:
        raise cursor.unexpected("a query", hint="Use EXPLAIN, or EXPLAIN ANALYZE, and the query.")
    raise cursor.unexpected("a query", known=(*QUERY_WORDS, "ANALYZE"))


def _query(cursor: Cursor) -> Query:
    """The rest of the statement as a query, its text as it was written, without the clause about the tail."""
    start = cursor.token
    tokens = cursor.rest()
    query, tail = _without_tail(cursor, tokens)
    if not query:
        raise cursor.located(InvalidStatement("WITH TAIL stands alone", hint="Put it at the end of a query."), start)
    _check_brackets(cursor, query)
    return Query(cursor.text[start.start : query[-1].end], tail=tail)


def _without_tail(cursor: Cursor, tokens: tuple[Token, ...]) -> tuple[tuple[Token, ...], bool]:
    """The tokens before a trailing WITH TAIL ON or OFF, and whether the tail is read."""
    words = [token.keyword for token in tokens]
    trailing = words[-3:] in (["WITH", "TAIL", "ON"], ["WITH", "TAIL", "OFF"])
    end = len(tokens) - 3 if trailing else len(tokens)
    for place in range(end):
        following = words[place : min(place + 3, end)]
        # A common table expression may be called tail, but then more than one word follows its name.
        unfinished = len(following) < 3 or (place + 3 == end and following[2] != "")
        if following[:2] == ["WITH", "TAIL"] and (unfinished or following[2] in ("ON", "OFF")):
            hint = "End the query with WITH TAIL ON or WITH TAIL OFF, once."
            raise cursor.located(InvalidStatement("WITH TAIL is misplaced", hint=hint), tokens[place])
    return tokens[:end], not trailing or words[-1] == "ON"


def _check_brackets(cursor: Cursor, tokens: tuple[Token, ...]) -> None:
    """Refuse a query whose brackets do not match: put inside another query, it could escape from its own."""
    opened: list[Token] = []
    for token in tokens:
        if token.text == "(":
            opened.append(token)
        elif token.text == ")":
            if not opened:
                raise cursor.located(InvalidStatement('bracket ")" was not opened'), token)
            opened.pop()
    if opened:
        raise cursor.located(InvalidStatement('bracket "(" is not closed'), opened[-1])
