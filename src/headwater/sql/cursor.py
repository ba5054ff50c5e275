"""A position in a row of tokens, and the errors that a parser raises there."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headwater.errors import HeadwaterError, InvalidInput, InvalidStatement
from headwater.sql.positions import excerpt, line_and_column
from headwater.sql.tokens import Token, tokenise
from headwater.types import TOPICS, VIEWS, checked_name


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known word that a user most likely meant."""
    found = difflib.get_close_matches(word.lower(), [each.lower() for each in known], n=1, cutoff=0.6)
    return next((each for each in known if each.lower() == found[0]), None) if found else None


def located(error: HeadwaterError, text: str, start: int, end: int) -> HeadwaterError:
    """The same error with line, column and excerpt of `text[start:end]`, unless it has them."""
    if "line" in error.data:
        return error
    line, column = line_and_column(text, start)
    place = excerpt(text, start, end)
    detail = f"{error.detail}\n{place}" if error.detail else place
    return type(error)(error.message, detail=detail, hint=error.hint, **{**error.data, "line": line, "column": column})


class Cursor:
    """Reads tokens from left to right; every refusal carries the place where it happened."""

    def __init__(
        self, text: str, tokens: Sequence[Token] | None = None, context: str = "statement", place: int = 0
    ) -> None:
        self.text = text
        self.tokens = tokenise(text) if tokens is None else tokens
        self.context = context
        self._index = place

    @property
    def place(self) -> int:
        """How many tokens were read."""
        return self._index

    @property
    def token(self) -> Token:
        return self.tokens[self._index]

    def ahead(self, count: int) -> Token:
        """The token `count` places further on, or the end."""
        return self.tokens[min(self._index + count, len(self.tokens) - 1)]

    def advance(self) -> Token:
        """The current token, after stepping over it; the end is never passed."""
        token = self.token
        self.skip(1)
        return token

    def skip(self, count: int) -> None:
        """Step over tokens that were looked at."""
        self._index = min(self._index + count, len(self.tokens) - 1)

    def rest(self) -> tuple[Token, ...]:
        """The tokens from here to the end, without the end, after stepping over them."""
        rest = tuple(self.tokens[self._index : -1])
        self._index = len(self.tokens) - 1
        return rest

    def at(self, *keywords: str) -> bool:
        """Whether the next tokens are these keywords."""
        return all(self.ahead(place).keyword == keyword for place, keyword in enumerate(keywords))

    def at_symbol(self, symbol: str) -> bool:
        return self.token.kind == "symbol" and self.token.text == symbol

    def accept(self, *keywords: str) -> bool:
        """Step over these keywords if they are next."""
        if found := self.at(*keywords):
            self._index += len(keywords)
        return found

    def accept_symbol(self, symbol: str) -> bool:
        if found := self.at_symbol(symbol):
            self.advance()
        return found

    def expect(self, *keywords: str) -> None:
        """Step over these keywords, or say that they were expected."""
        for keyword in keywords:
            if not self.accept(keyword):
                raise self.unexpected(keyword, known=(keyword,))

    def expect_symbol(self, symbol: str, after: str) -> None:
        if not self.accept_symbol(symbol):
            raise self.unexpected(f'"{symbol}" after {after}')

    def expect_end(self, known: Sequence[str] = ()) -> None:
        if self.token.kind != "end":
            raise self.unexpected("nothing more", known=known)

    def string(self, what: str) -> str:
        if self.token.kind != "string":
            raise self.unexpected(f"{what} in single quotes")
        return self.advance().value

    def integer(self, what: str) -> int:
        if self.token.kind != "number" or not self.token.text.isascii() or not self.token.text.isdigit():
            raise self.unexpected(f"{what}, a whole number")
        if len(self.token.text) > 18:
            raise self.unexpected(f"{what}, a smaller number")
        return int(self.advance().text)

    def name(self, kind: str) -> str:
        """A checked name, bare or in backquotes."""
        if self.token.kind not in ("word", "quoted"):
            quoted = self.token.kind == "string"
            raise self.unexpected(f"a {kind} name", hint="Write names without quotes." if quoted else None)
        token = self.advance()
        return self.checked(token.value, kind, token)

    def checked(self, name: str, kind: str, token: Token) -> str:
        """A name that was read from a token, if it is one."""
        with self.locating(token):
            return checked_name(name, kind)

    def topic(self) -> str:
        """A topic's name, alone or behind `topics.`."""
        return self._name_in(TOPICS, "topic")

    def view(self) -> str:
        """A materialized view's name, alone or behind `views.`."""
        return self._name_in(VIEWS, "materialized view")

    def _name_in(self, namespace: str, kind: str) -> str:
        dot = self.ahead(1)
        if self.token.value.lower() == namespace and dot.kind == "symbol" and dot.text == ".":
            self.advance()
            self.advance()
        return self.name(kind)

    def unexpected(self, expected: str, *, hint: str | None = None, known: Sequence[str] = ()) -> HeadwaterError:
        """The error for the current token; `known` are the words from which a suggestion is made."""
        suggestion = closest(self.token.text, known) if self.token.kind == "word" else None
        if suggestion == self.token.keyword:  # the right word in the wrong place
            suggestion = None
        return self.located(
            InvalidStatement(
                f"unexpected {self.token.shown} in {self.context}",
                detail=f"Expected {expected}.",
                hint=hint or (f"Did you mean {suggestion}?" if suggestion else None),
            )
        )

    def located(self, error: HeadwaterError, token: Token | None = None) -> HeadwaterError:
        """The same error with line, column and excerpt of a token, or of the current one, unless it has them."""
        token = token or self.token
        return located(error, self.text, token.start, token.end)

    @contextmanager
    def locating(self, token: Token) -> Iterator[None]:
        """Give errors that are raised inside the place of a token."""
        try:
            yield
        except InvalidInput as error:
            raise self.located(error, token) from None
