"""Durations and sizes as people write them: '5 minutes', '10s', '128 MB', and back to such text without loss.

Sizes count in powers of 1024 however they are spelled: KB and KiB are both 1024 bytes, MB and MiB 1024², and so on,
as in Spark's and Parquet's own settings. A number without a unit is seconds or bytes.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from headwater.errors import InvalidInput
from headwater.sql.positions import printable

_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)\s*([A-Za-zµ]*)")

_DURATIONS: dict[str, Fraction] = {
    name: seconds
    for seconds, names in (
        (Fraction(1, 1_000_000), "us µs microsecond microseconds"),
        (Fraction(1, 1000), "ms milli millis millisecond milliseconds"),
        (Fraction(1), "s sec secs second seconds"),
        (Fraction(60), "m min mins minute minutes"),
        (Fraction(3600), "h hr hrs hour hours"),
        (Fraction(86_400), "d day days"),
        (Fraction(604_800), "w week weeks"),
    )
    for name in names.split()
}
_SIZES: dict[str, Fraction] = {
    name: Fraction(1024**power)
    for power, names in enumerate(
        ("b byte bytes", "k kb kib", "m mb mib", "g gb gib", "t tb tib", "p pb pib"),
    )
    for name in names.split()
}
_SHOWN_DURATIONS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_SHOWN_SIZES = (("TB", 1024**4), ("GB", 1024**3), ("MB", 1024**2), ("KB", 1024))

_LONGEST = 64
_MOST_BITS = 128


def parse_duration(value: object) -> float:
    """Seconds from a number of seconds or a text such as '5 minutes', '1h 30m' or '500 ms'; never negative."""
    exact = _amount(value, _DURATIONS, "duration", "Durations look like '5 minutes', '10s' or '500 ms'.")
    try:
        return float(exact)
    except OverflowError:
        raise _refused(value, "duration", "The number is too large.") from None


def parse_size(value: object) -> int:
    """Bytes from a number of bytes or a text such as '128 MB', where MB is 1024² bytes; whole and never negative."""
    exact = _amount(value, _SIZES, "size", "Sizes look like '128 MB', '50 GB' or a number of bytes.")
    if exact.denominator != 1:
        raise _refused(value, "size", "Sizes come to whole bytes.")
    return int(exact)


def render_duration(seconds: float) -> str:
    """Text that `parse_duration` reads back to the very same number, in the largest unit that fits."""
    exact = Fraction(seconds)
    if seconds and exact < 10**15:
        for unit, factor in _SHOWN_DURATIONS:
            if exact % factor == 0:
                return counted(int(exact / factor), unit)
        thousandths = round(seconds * 1000, 9)
        if thousandths == int(thousandths) and int(thousandths) / 1000 == seconds:
            return f"{int(thousandths)} ms"
    return "0 seconds" if not seconds else f"{seconds!r} seconds"


def render_size(size: int) -> str:
    """Text that `parse_size` reads back to the very same number, in the largest unit that fits."""
    for unit, factor in _SHOWN_SIZES:
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return counted(size, "byte")


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _amount(value: object, units: dict[str, Fraction], kind: str, taken: str) -> Fraction:
    """The exact amount that a number or a text stands for, in base units."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise _refused(value, kind, taken)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value < 0:
            raise _refused(value, kind, taken)
        return Fraction(value)
    if not isinstance(value, str) or len(value) > _LONGEST or not value.strip():
        raise _refused(value, kind, taken)
    parts, position = [], 0
    while position < len(value.rstrip()):
        found = _PART.match(value, position)
        if found is None:
            raise _refused(value, kind, taken)
        parts.append((found.group(1), found.group(2).lower()))
        position = found.end()
    known = all(unit in units or (not unit and len(parts) == 1) for _, unit in parts)
    if not known or len({unit for _, unit in parts}) != len(parts):
        raise _refused(value, kind, taken)
    return sum((Fraction(number) * units.get(unit, 1) for number, unit in parts), Fraction(0))


def _refused(value: object, kind: str, detail: str) -> InvalidInput:
    return InvalidInput(f'{kind} "{shown(value)}" is not understood', detail=detail)


def shown(value: object) -> str:
    """How an error shows a value that it refuses: short, printable, and without writing out a huge number."""
    if value is None:
        return "NULL"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "a huge number"
    return printable(str(value)[:_LONGEST])
