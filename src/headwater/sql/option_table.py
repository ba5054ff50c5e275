"""One row of a table of options: what an option takes, how it is read, shown and refused.

Values arrive as SQL literals, JSON values, CLI texts or Python objects; the kind of a row says what is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from headwater.errors import HeadwaterError, InvalidInput, InvalidOption
from headwater.sql.cursor import closest
from headwater.sql.option_pairs import COMPRESSION_LEVELS, PairValues, check_codec_level
from headwater.sql.tokens import UNSENDABLE, quote
from headwater.sql.units import parse_duration, parse_size, render_duration, render_size, shown
from headwater.types import (
    SYSTEM_COLUMNS,
    Pairs,
    RefreshMethod,
    RefreshMode,
    StreamOptions,
    TopicOptions,
    ViewOptions,
    checked_name,
)

Kind = Literal[
    "choice", "level", "integer", "size", "duration", "columns", "column", "pairs", "text", "refresh", "topic", "json"
]

DEFAULT_LEVEL = "default"
MAX_TEXT = 4096
MAX_JSON = 256 * 1024
MODES: tuple[str, ...] = get_args(RefreshMode)
METHODS: tuple[str, ...] = get_args(RefreshMethod)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: what it takes and what it is for. Numbers are in base units: rows, bytes, seconds."""

    name: str
    kind: Kind
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = 0
    of: type[TopicOptions] | type[ViewOptions] | type[StreamOptions] = TopicOptions
    pairs: PairValues | None = None
    pattern: str = ""  # what a text looks like,
    example: str = ""  # and how an error says that

    @property
    def default(self) -> object:
        """The value where the option is not set."""
        return getattr(self.of(), self.name)

    @property
    def taken(self) -> str:
        """What the option takes, as a whole sentence."""
        match self.kind:
            case "choice":
                return f"It takes one of {', '.join(self.choices)}."
            case "level":
                levels = ", ".join(f"{codec} {low} to {high}" for codec, (low, high) in COMPRESSION_LEVELS.items())
                return f"It takes '{DEFAULT_LEVEL}' or a whole number: {levels}."
            case "integer":
                return f"It takes a whole number from {int(self.minimum)} to {int(self.maximum)}."
            case "size" | "duration":
                low, high = (self.render(limit) for limit in (self.minimum, self.maximum))
                return f"It takes a {self.kind} from '{low}' to '{high}'."
            case "columns":
                return "It takes names of columns: 'a, b' or a list."
            case "column":
                return "It takes the name of a column."
            case "pairs":
                assert self.pairs is not None
                return self.pairs.taken
            case "topic":
                return "It takes the name of a topic."
            case "json":
                return f"It takes a JSON text of at most {MAX_JSON} characters."
            case "text" if self.example:
                return f"It takes {self.example}."
            case "text":
                return f"It takes a text of at most {MAX_TEXT} characters."
            case "refresh":
                return f"It takes one of {', '.join(MODES)}, or one of {', '.join(METHODS)}, or one of each."

    def render(self, value: object) -> str:
        """A value as text that `read` takes back."""
        match self.kind:
            case "level":
                return DEFAULT_LEVEL if value is None else str(value)
            case "size":
                return render_size(int(cast(float, value)))
            case "duration":
                return render_duration(float(cast(float, value)))
            case "columns":
                return ", ".join(cast(tuple[str, ...], value))
            case "pairs":
                return ", ".join(f"{name}={setting}" for name, setting in cast(Pairs, value))
            case "refresh":
                mode, method = cast(tuple[str, str], value)
                return mode if method == METHODS[0] else f"{mode}, {method}"
            case _:
                return str(value)

    def literal(self, text: str) -> str:
        """What `render` gave, as SQL writes it."""
        return text if self.kind in ("integer", "level") else quote(text)

    def read(self, value: object) -> object:
        """The value in base units; InvalidOption if the option does not take it."""
        if value == "" == self.default:
            return ""  # not set
        try:
            result = self.pairs.read(value) if self.pairs is not None else _READERS[self.kind](value)
        except InvalidOption:
            raise
        except InvalidInput as error:
            raise self.refused(value, error) from None
        if self.choices and result not in self.choices:
            guess = closest(str(value), self.choices)
            raise self.refused(value, InvalidInput("", hint=f"Did you mean '{guess}'?" if guess else None))
        if self.pattern and not re.fullmatch(self.pattern, str(result)):
            raise self.refused(value)
        if self.maximum and not self.minimum <= cast(float, result) <= self.maximum:
            raise self.refused(value)
        return result

    def refused(self, value: object, why: HeadwaterError | None = None) -> InvalidOption:
        """The error for a value that the option does not take."""
        detail = self.taken if why is None or why.detail is None else f"{self.taken} {why.detail}"
        return InvalidOption(
            f'option "{self.name}" does not take "{shown(value)}"',
            detail=detail,
            hint=why.hint if why else None,
            option=self.name,
        )


def find_option(name: str, table: Sequence[Option], owners: str) -> Option:
    """The option of this name in a table, or InvalidOption with a suggestion; `owners` are what the table is for."""
    names = tuple(each.name for each in table)
    if name in names:
        return table[names.index(name)]
    guess = closest(name, names)
    raise InvalidOption(
        f'option "{name[:64]}" is not known',
        detail=f"{owners} have the options {', '.join(names)}.",
        hint=f'Did you mean "{guess}"?' if guess else None,
        option=name,
    )


def check_level(options: TopicOptions | ViewOptions) -> None:
    """Refuse a compression level that the codec does not have."""
    level = options.compression_level
    if level is None:
        return
    try:
        check_codec_level(options.compression, level)
    except InvalidInput as wrong:
        message = f'option "compression_level" does not take "{level}"'
        raise InvalidOption(message, detail=wrong.detail, hint=wrong.hint, option="compression_level") from None


def _read_choice(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput("")
    return value.strip().lower()


def _read_integer(value: object) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    if isinstance(text, int) and not isinstance(text, bool) and text.bit_length() < 64:
        return text
    raise InvalidInput("")


def _read_level(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == DEFAULT_LEVEL):
        return None
    return _read_integer(value)


def _read_columns(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        names: list[object] = [part.strip() for part in value.split(",")] if value.strip() else []
    elif isinstance(value, list | tuple):
        names = list(value)
    else:
        raise InvalidInput("")
    result = tuple(checked_name(name, "column") if isinstance(name, str) else _not_a_name() for name in names)
    if len(set(result)) != len(result):
        raise InvalidInput("", detail="A column is named twice.")
    return result


def _read_column(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput("")
    return value if value in SYSTEM_COLUMNS else checked_name(value, "column")


def _not_a_name() -> str:
    raise InvalidInput("")


def _read_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or UNSENDABLE.search(value):
        raise InvalidInput("")
    return value


def _read_topic(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput("")
    return checked_name(value, "topic")


def _read_json(value: object) -> str:
    """A JSON text as it was written; objects of a request become one."""
    text = json.dumps(value) if isinstance(value, Mapping | list) else value
    if not isinstance(text, str) or len(text) > MAX_JSON or UNSENDABLE.search(text):
        raise InvalidInput("")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("", detail=f"It is not valid JSON: {error}.") from None
    return text


def _read_refresh(value: object) -> tuple[str | None, str | None]:
    """A mode and a method, each None if it is not named: 'immediate', 'full', 'immediate, incremental'."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words:
        raise InvalidInput("")
    found = [_read_choice(word) for word in words]
    modes, methods = ([word for word in found if word in known] for known in (MODES, METHODS))
    if len(modes) + len(methods) < len(found):
        wrong = next(word for word in found if word not in (*MODES, *METHODS))
        guess = closest(wrong, (*MODES, *METHODS))
        raise InvalidInput("", hint=f"Did you mean '{guess}'?" if guess else None)
    if len(modes) > 1 or len(methods) > 1:
        raise InvalidInput("", detail="Two of a kind contradict each other.")
    return modes[0] if modes else None, methods[0] if methods else None


_READERS = {
    "choice": _read_choice,
    "level": _read_level,
    "integer": _read_integer,
    "size": parse_size,
    "duration": parse_duration,
    "columns": _read_columns,
    "column": _read_column,
    "text": _read_text,
    "refresh": _read_refresh,
    "topic": _read_topic,
    "json": _read_json,
}
