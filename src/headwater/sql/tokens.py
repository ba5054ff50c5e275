"""SQL text to tokens, by Spark's lexical rules: strings, comments, hints and backquotes are what Spark says they are.

A query is never rebuilt from tokens: tokens say where things are, so that the text itself can be kept verbatim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headwater.errors import InvalidStatement
from headwater.sql.limits import (
    MAX_LENGTH,
    MAX_NESTING,
    MAX_TOKENS,
    check_nesting,
    too_deep,
    too_long,
    too_many_parts,
)
from headwater.sql.positions import excerpt, line_and_column, printable

Kind = Literal["word", "quoted", "string", "number", "symbol", "end"]

_TOKEN = re.compile(
    r"""
      (?P<space>[\s\ufeff]+)
    | (?P<comment>--(?:\\\n|[^\r\n])*)
    | (?P<bracket>/\*)
    | (?P<string>
          [rR]'[^']*' | [rR]"[^"]*"
        | '[^'\\]*(?:(?:\\.|'')[^'\\]*)*'
        | "[^"\\]*(?:(?:\\.|"")[^"\\]*)*"
      )
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:[bB][dD]|[lLsSyYdDfF])?(?!\w))
    | (?P<word>\w+)
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
UNSENDABLE = re.compile("[\0\ud800-\udfff]")
"""What no engine can be handed: NUL ends a text in C, and lone surrogates have no UTF-8."""

_BRACKETS = re.compile(r"/\*(?!\+)|\*/")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL text and where it is: `text[start:end]` of what was tokenised."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def keyword(self) -> str:
        """The upper-cased word, or an empty text for anything that cannot be a keyword."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def value(self) -> str:
        """What the token stands for: a string without quotes and escapes, a name without backquotes."""
        match self.kind:
            case "string":
                return _unquote(self.text)
            case "quoted":
                return self.text[1:-1].replace("``", "`")
            case _:
                return self.text

    @property
    def shown(self) -> str:
        """How an error message names the token."""
        if self.kind == "end":
            return "end of statement"
        text = printable(self.text if len(self.text) <= 40 else self.text[:39] + "…")
        return text if self.kind == "string" else f'"{text}"'


def tokenise(text: str) -> tuple[Token, ...]:
    """The tokens of a text without spaces and comments, then one `end` token.

    InvalidStatement for an open quote, and for a statement that is too large for any parser.
    """
    return tuple(tokens_of(text))


def tokens_of(text: str) -> Iterator[Token]:
    """The same one by one, so that a text of very many statements is never held as tokens as a whole.

    A statement's `;`, or the `end`, follows only once its size was checked. The words of hints are Spark's alone: they
    count for the size and are not among the tokens.
    """
    _check_characters(text)
    statement: list[Token] = []
    position = start = 0
    hint: int | None = None
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None and found.lastgroup is not None  # `symbol` matches anything
        kind, end = found.lastgroup, found.end()
        if kind == "bracket" and text.startswith("+", end):
            hint, end = position if hint is None else hint, end + 1
        elif kind == "bracket":
            end = _end_of_comment(text, position)
        elif hint is not None and text.startswith("*/", position):
            hint, end = None, position + 2
        elif kind == "symbol" and found.group() in "'\"`":
            raise _unclosed(text, position, "name" if found.group() == "`" else "string")
        elif kind not in ("space", "comment"):
            token = Token(kind, found.group(), position, end)  # type: ignore[arg-type]
            if kind == "symbol" and token.text == ";" and hint is None:
                check_nesting(statement)
                statement, start = [], end
            else:
                statement.append(token)
            if hint is None:
                yield token
        position = end
        if position - start > MAX_LENGTH:
            raise too_long()
        if len(statement) > MAX_TOKENS:
            raise too_many_parts()
    if hint is not None:
        raise _unclosed(text, hint, "hint")
    check_nesting(statement)
    yield Token("end", "", len(text), len(text))


def quote(text: str) -> str:
    """A text as one SQL string literal on one line, for Headwater's parser and for Spark's."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + "'"


def _check_characters(text: str) -> None:
    if bad := UNSENDABLE.search(text):
        line, column = line_and_column(text, bad.start())
        raise InvalidStatement(
            f"character U+{ord(bad.group()):04X} is not allowed in a statement",
            detail=excerpt(text, *bad.span()),
            line=line,
            column=column,
        )


def _end_of_comment(text: str, start: int) -> int:
    """The end of the `/* ... */` that starts here; comments nest, hints (`/*+`) do not."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, start):
        depth += 1 if bracket.group() == "/*" else -1
        if depth > MAX_NESTING:
            raise too_deep()
        if depth == 0:
            return bracket.end()
    raise _unclosed(text, start, "comment")


def _unclosed(text: str, start: int, what: str) -> InvalidStatement:
    line, column = line_and_column(text, start)
    return InvalidStatement(f"{what} is not closed", detail=excerpt(text, start, start + 1), line=line, column=column)


def _unquote(text: str) -> str:
    if text[0] in "rR":
        return text[2:-1]
    quote_mark = text[0]
    # A doubled quote must not be undone inside an escape: `\''` is an escaped quote followed by the end of the string.
    pieces = re.split(r"(\\.)", text[1:-1], flags=re.DOTALL)
    joined = "".join(piece if piece.startswith("\\") else piece.replace(quote_mark * 2, quote_mark) for piece in pieces)
    return _ESCAPE.sub(_unescape, joined)


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1)
    if code[0] in "uU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else "�"
    if len(code) == 3:
        return chr(int(code, 8))
    return _ESCAPES.get(code, code)
