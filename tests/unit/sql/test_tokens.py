"""The expected values are those of Spark's own parser for the same literals."""

from __future__ import annotations

import pytest

from headwater.errors import InvalidStatement
from headwater.sql.parse import is_complete, parse
from headwater.sql.positions import excerpt
from headwater.sql.statements import Query
from headwater.sql.tokens import quote, tokenise


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        (r"r'a\n'", r"a\n"),
        ('R"a\'b"', "a'b"),
        (r"'a\nb'", "a\nb"),
        ('"d""q"', 'd"q'),
        (r"'\u0041\101\U0001F600'", "AA😀"),
        (r"'\%\_\x\0'", "\\%\\_x\0"),
        (r"'\''''", "''"),
        (r"'\\'", "\\"),
        ("'a' /* c ' */", "a"),
        ("'a' /* x /* y */ ' */", "a"),
        ("'a' -- it's", "a"),
        ("'a' -- it's \\\n still 'a comment'", "a"),
        ("'\ufeff'", "\ufeff"),
        ("`a``b`", "a`b"),
        ("'a\nb'", "a\nb"),
    ],
)
def test_one_literal(literal: str, value: str) -> None:
    assert [token.value for token in tokenise(literal)] == [value, ""]


@pytest.mark.parametrize(
    "text", ["", "plain", "it's", "back\\slash", "new\nline\r\n\ttab", "'; DROP TOPIC x; --", "日本 '\\'"]
)
def test_quoted_text_is_one_token_on_one_line(text: str) -> None:
    literal = quote(text)
    assert "\n" not in literal and "\r" not in literal
    (token, end) = tokenise(literal)
    assert (token.kind, token.value, end.kind) == ("string", text, "end")


@pytest.mark.parametrize("text", ["SELECT '\0'", "SELECT '\ud800'"])
def test_characters_that_no_engine_takes(text: str) -> None:
    with pytest.raises(InvalidStatement, match="is not allowed in a statement"):
        parse(text)


def test_a_byte_order_mark_is_not_part_of_a_query() -> None:
    assert parse("\ufeffSELECT 1") == Query("SELECT 1")


def test_windows_line_ends() -> None:
    assert parse("SELECT 1 -- one\r\n, 2\r\n;\r\n") == Query("SELECT 1 -- one\r\n, 2")


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("-- x", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- x", True),
        ("SELECT 1; SELECT", False),
        ("SELECT ';", False),
        ("SELECT /* ;", False),
        ("SELECT ';'", False),
        ("SELECT `;", False),
    ],
)
def test_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


def test_an_excerpt_cannot_steer_a_terminal() -> None:
    shown = excerpt("SELECT \x1b[31m\x07\u202e x", 7, 8)
    assert shown.isprintable() or all(char == "\n" or char.isprintable() for char in shown)


def test_long_input_takes_linear_time() -> None:
    text = "SELECT " + "'a''ba''ba''ba''ba''ba''ba''b', " * 24_000 + "((((" * 25 + "1" + "))))" * 25
    assert parse(text) == Query(text)
