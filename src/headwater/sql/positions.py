"""Where in a text an error is: line, column and an excerpt with carets, the same on every surface."""

from __future__ import annotations

import unicodedata

EXCERPT = 100
"""The longest piece of a line that an error shows."""


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """The line and the column of an offset, both counted from 1."""
    start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - start + 1


def excerpt(text: str, start: int, end: int) -> str:
    """`Line l, column c:` and the line around `[start, end)` with carets below it, safe to print on a terminal."""
    line, column = line_and_column(text, start)
    first = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", start)
    whole = text[first : len(text) if stop < 0 else stop].rstrip("\r")
    cut = max(0, column - 1 - EXCERPT // 2) if len(whole) > EXCERPT else 0
    shown = whole[cut : cut + EXCERPT]
    before = ("… " if cut else "") + printable(shown[: column - 1 - cut])
    marked = printable(shown[column - 1 - cut : column - 1 - cut + max(1, end - start)])
    after = printable(shown[column - 1 - cut + max(1, end - start) :]) + (" …" if len(whole) > cut + EXCERPT else "")
    carets = " " * _width(before) + "^" * max(1, _width(marked))
    return f"Line {line}, column {column}:\n  {before}{marked}{after}\n  {carets}"


def printable(text: str) -> str:
    """The text with control characters replaced, so that an error cannot steer a terminal."""
    return "".join(char if char.isprintable() else " " if char == "\t" else "·" for char in text)


def _width(text: str) -> int:
    """The number of terminal cells that a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
