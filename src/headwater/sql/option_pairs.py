"""Options that set something by column or by kind of column: `compression_columns = 'note=zstd:9, id=lz4'`.

They arrive as such a text, as a list of its parts, or as a JSON object or a Python dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from headwater.errors import InvalidInput
from headwater.sql.cursor import closest
from headwater.types import Codec, ColumnKind, Encoding, Pairs, checked_name

COMPRESSION_LEVELS: Mapping[str, tuple[int, int]] = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
"""The levels of the codecs that have any."""

CODECS: tuple[str, ...] = get_args(Codec)
ENCODINGS: tuple[str, ...] = get_args(Encoding)
KINDS: tuple[str, ...] = get_args(ColumnKind)
SWITCH = ("on", "off")
FALSE_POSITIVES = "0.01"


@dataclass(frozen=True, slots=True)
class PairValues:
    """What the pairs of an option are: names of columns or of kinds, and a value each."""

    value: Callable[[str], str]
    taken: str
    kinds: bool = False
    default: str | None = None
    name: Callable[[str], str] | None = None  # for what are names of neither columns nor kinds; values keep their case

    def read(self, given: object) -> Pairs:
        """The pairs, each name once; InvalidInput if one is not taken."""
        pairs = tuple((self._name(name), self.value(value)) for name, value in self._split(given))
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidInput("", detail=f'"{twice}" is named twice.')
        return pairs

    def _split(self, given: object) -> Iterator[tuple[str, str]]:
        if isinstance(given, Mapping):
            given = list(given.items())
        if isinstance(given, str):
            given = [part for part in given.split(",") if part.strip()]
        if not isinstance(given, list | tuple):
            raise InvalidInput("")
        for part in given:
            if isinstance(part, str):
                name, equals, value = part.partition("=")
                part = (name, value if equals else None)
            yield self._pair(part)

    def _pair(self, part: object) -> tuple[str, str]:
        if not isinstance(part, list | tuple) or len(part) != 2 or not isinstance(part[0], str):
            raise InvalidInput("")
        name, value = part
        if value is None or value is True:
            value = self.default
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise InvalidInput("", detail=f'"{name.strip()[:64]}" has no value.')
        text = str(value).strip()
        return name.strip(), text if self.name is not None else text.lower()

    def _name(self, name: str) -> str:
        if self.name is not None:
            return self.name(name)
        if not self.kinds:
            return ".".join(checked_name(part, "column") for part in name.split("."))
        return _choice(name.lower(), KINDS, "kind of column")


def _choice(value: str, choices: tuple[str, ...], what: str) -> str:
    if value in choices:
        return value
    guess = closest(value, choices)
    raise InvalidInput("", detail=f'"{value[:64]}" is no {what}.', hint=f"Did you mean '{guess}'?" if guess else None)


def check_codec_level(codec: str, level: int) -> None:
    """InvalidInput if the codec does not have this level."""
    allowed = COMPRESSION_LEVELS.get(codec)
    if allowed is None:
        hint = f"Leave the level out, or use one of {', '.join(COMPRESSION_LEVELS)}."
        raise InvalidInput("", detail=f"The codec {codec} has no levels.", hint=hint)
    if not allowed[0] <= level <= allowed[1]:
        raise InvalidInput("", detail=f"The levels of {codec} are {allowed[0]} to {allowed[1]}.")


def codec_and_level(value: str) -> tuple[Codec, int | None]:
    """`zstd:9` as a codec and a level; without a level, None."""
    codec, colon, level = value.partition(":")
    found: Codec = _choice(codec.strip(), CODECS, "codec")  # type: ignore[assignment]
    if not colon:
        return found, None
    if not (level.strip().isascii() and level.strip().isdigit()):
        raise InvalidInput("", detail=f'"{level.strip()[:64]}" is no level.')
    check_codec_level(found, int(level))
    return found, int(level)


def _codec(value: str) -> str:
    codec, level = codec_and_level(value)
    return codec if level is None else f"{codec}:{level}"


def _false_positives(value: str) -> str:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 1e-6 <= share <= 0.5:
        raise InvalidInput("", detail="A share of false positives is between 0.000001 and 0.5.")
    return f"{share:g}"


CODEC_BY_COLUMN = PairValues(_codec, "It takes codecs by column: 'note=zstd:9, id=lz4'.")
CODEC_BY_KIND = PairValues(
    _codec, f"It takes codecs by kind of column ({', '.join(KINDS)}): 'text=zstd:9, numeric=lz4'.", kinds=True
)
SWITCH_BY_COLUMN = PairValues(
    lambda value: _choice(value, SWITCH, "switch"), "It takes on or off by column: 'note=off'."
)
ENCODING_BY_COLUMN = PairValues(
    lambda value: _choice(value, ENCODINGS, "encoding"),
    f"It takes encodings ({', '.join(ENCODINGS)}) by column: 'id=delta, price=byte_stream_split'.",
)
BLOOM_BY_COLUMN = PairValues(
    _false_positives,
    f"It takes columns, with a share of false positives unless {FALSE_POSITIVES} will do: 'order_id, user=0.001'.",
    default=FALSE_POSITIVES,
)
