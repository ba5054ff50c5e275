"""Every option that `WITH (...)` takes, as one table: what parses, what is checked, what is rendered and documented.

Values arrive as SQL literals, JSON values, CLI texts or Python objects; one row of the table says what is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from headwater.errors import HeadwaterError, InvalidInput, InvalidOption
from headwater.sql.cursor import closest
from headwater.sql.tokens import UNSENDABLE
from headwater.sql.units import parse_duration, parse_size, render_duration, render_size, shown
from headwater.types import TopicOptions, checked_name

Kind = Literal["choice", "level", "integer", "size", "duration", "columns", "text"]

DEFAULT_LEVEL = "default"
MAX_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Option:
    """One option: what it takes and what it is for. Numbers are in base units: rows, bytes, seconds."""

    name: str
    kind: Kind
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = 0

    @property
    def default(self) -> object:
        """The value of a topic that does not set the option."""
        return getattr(TopicOptions(), self.name)

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
            case "text":
                return f"It takes a text of at most {MAX_TEXT} characters."

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
            case _:
                return str(value)

    def read(self, value: object) -> object:
        """The value in base units; InvalidOption if the option does not take it."""
        try:
            result = _READERS[self.kind](value)
        except InvalidOption:
            raise
        except InvalidInput as error:
            raise self.refused(value, error) from None
        if self.choices and result not in self.choices:
            guess = closest(str(value), self.choices)
            raise self.refused(value, InvalidInput("", hint=f"Did you mean '{guess}'?" if guess else None))
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


COMPRESSION_LEVELS: Mapping[str, tuple[int, int]] = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
"""The levels of the codecs that have any."""

OPTIONS: tuple[Option, ...] = (
    Option(
        "compression",
        "choice",
        "The codec of the topic's Parquet files.",
        choices=("none", "snappy", "gzip", "lz4", "zstd", "brotli"),
    ),
    Option("compression_level", "level", "How hard the codec tries; the codec's own default if it is not set."),
    Option(
        "target_file_size",
        "size",
        "The size at which a data file is finished. MB and MiB both mean 1024² bytes.",
        minimum=1024**2,
        maximum=50 * 1024**3,
    ),
    Option(
        "rotation_timeout",
        "duration",
        "The longest a record waits in the log before it is committed to a file, however few wait with it.",
        minimum=0.1,
        maximum=30 * 86_400,
    ),
    Option(
        "batch_size",
        "integer",
        "The rows that must wait in the log for a commit to be worth it, unless rotation_timeout passes first.",
        minimum=1,
        maximum=10_000_000,
    ),
    Option(
        "commit_interval",
        "duration",
        "The least time between two commits to the table.",
        minimum=0.01,
        maximum=86_400,
    ),
    Option(
        "on_invalid",
        "choice",
        "What happens to rows that do not fit the schema: the request is rejected, or they go to <topic>__dead.",
        choices=("reject", "dead_letter"),
    ),
    Option("dedup_key", "columns", "The columns by which repeated records are dropped; the first one is kept."),
    Option(
        "dedup_horizon",
        "duration",
        "How long a deduplication key is remembered.",
        minimum=0.001,
        maximum=365 * 86_400,
    ),
    Option("description", "text", "What the topic is for. COMMENT sets the same."),
)

_BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}


def option(name: str) -> Option:
    """The option of this name, or InvalidOption with a suggestion."""
    if found := _BY_NAME.get(name):
        return found
    guess = closest(name, tuple(_BY_NAME))
    raise InvalidOption(
        f'option "{name[:64]}" is not known',
        detail=f"Topics have the options {', '.join(_BY_NAME)}.",
        hint=f'Did you mean "{guess}"?' if guess else None,
        option=name,
    )


def parse_options(values: Mapping[str, object]) -> TopicOptions:
    """Topic options from texts, numbers and lists by name; what is not named keeps its default."""
    read: dict[str, Any] = {name: option(name).read(value) for name, value in values.items()}
    options = TopicOptions(**read)
    _check_level(options)
    return options


def check_options(options: TopicOptions) -> TopicOptions:
    """The same options if each has a value that it takes; the way in for options built in Python."""
    return parse_options({each.name: getattr(options, each.name) for each in fields(options)})


def render_options(options: TopicOptions, *, changed_only: bool = False) -> dict[str, str]:
    """Options as texts by name, which `parse_options` reads back to equal options; optionally only the non-defaults."""
    values = ((each, getattr(options, each.name)) for each in OPTIONS)
    return {each.name: each.render(value) for each, value in values if not changed_only or value != each.default}


def _check_level(options: TopicOptions) -> None:
    level = options.compression_level
    if level is None:
        return
    allowed = COMPRESSION_LEVELS.get(options.compression)
    if allowed is None:
        raise InvalidOption(
            f'option "compression_level" does not take "{level}"',
            detail=f"The codec {options.compression} has no levels.",
            hint=f"Leave compression_level out, or use one of {', '.join(COMPRESSION_LEVELS)}.",
            option="compression_level",
        )
    if not allowed[0] <= level <= allowed[1]:
        raise InvalidOption(
            f'option "compression_level" does not take "{level}"',
            detail=f"The levels of {options.compression} are {allowed[0]} to {allowed[1]}.",
            option="compression_level",
        )


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


def _not_a_name() -> str:
    raise InvalidInput("")


def _read_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or UNSENDABLE.search(value):
        raise InvalidInput("")
    return value


_READERS = {
    "choice": _read_choice,
    "level": _read_level,
    "integer": _read_integer,
    "size": parse_size,
    "duration": parse_duration,
    "columns": _read_columns,
    "text": _read_text,
}
