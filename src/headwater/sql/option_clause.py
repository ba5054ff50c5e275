"""`(option = value, ...)` behind WITH and SET: every option is known, takes its value and is set once.

An error points at the option or the value that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headwater.errors import InvalidOption
from headwater.sql.cursor import Cursor
from headwater.sql.option_table import Option
from headwater.sql.tokens import Token


@dataclass(slots=True)
class OptionClause:
    """The options that a statement has set so far, and the token of each value."""

    find: Callable[[str], Option]
    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, Token] = field(default_factory=dict)

    def read(self, cursor: Cursor, after: str) -> None:
        """Read the options in brackets behind the word `after`."""
        cursor.expect_symbol("(", after)
        while not cursor.accept_symbol(")"):
            key = cursor.token
            if key.kind not in ("word", "quoted", "string"):
                raise cursor.unexpected("an option, as in compression = 'zstd'")
            name = cursor.advance().value
            with cursor.locating(key):
                self.find(name)
            cursor.expect_symbol("=", f'option "{name}"')
            place = cursor.token
            self.set(cursor, name, place, _read_value(cursor))
            if not cursor.accept_symbol(","):
                cursor.expect_symbol(")", "the options")
                return

    def set(self, cursor: Cursor, name: str, place: Token, value: object) -> None:
        """Keep an option's value if it is the first one and is taken."""
        if name in self.values:
            raise cursor.located(InvalidOption(f'option "{name}" is set twice', option=name), place)
        with cursor.locating(place):
            self.find(name).read(value)
        self.values[name] = value
        self.places[name] = place

    def check(self, cursor: Cursor, parse: Callable[[Mapping[str, object]], object]) -> None:
        """Check the options against each other, pointing at the one that the error is about."""
        try:
            parse(self.values)
        except InvalidOption as error:
            raise cursor.located(error, self.places[error.data["option"]]) from None


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
