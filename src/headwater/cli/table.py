"""Rows as a table of text that fits a terminal. Pure: cells in, lines out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwater.sql.positions import printable

NULL = "NULL"
ELLIPSIS = "…"
NARROW = 6
"""No column is cut below this many cells; rather are columns left out."""

Cell = str | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and cells (None: null), all safe to print; numbers stand to the right."""

    name: str
    cells: tuple[Cell, ...]
    right: bool = False

    @property
    def width(self) -> int:
        return max([cell_width(self.name), *(cell_width(NULL if cell is None else cell) for cell in self.cells)])


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown, their widths, and how many are not shown."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    left_out: int


def column(name: str, values: Sequence[Cell], *, right: bool = False) -> Column:
    """A column whose texts cannot steer the terminal."""
    return Column(one_line(name), tuple(None if value is None else one_line(value) for value in values), right)


def one_line(text: str) -> str:
    """The text on one line, without control characters."""
    return printable(text.replace("\r\n", "⏎").replace("\n", "⏎"))


def cell_width(text: str) -> int:
    """The number of terminal cells that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def lay_out(columns: Sequence[Column], width: int | None) -> Layout:
    """Which columns fit into `width` cells, and how wide; everything fits without a width."""
    natural = [each.width for each in columns]
    if width is None or _total(natural) <= width:
        return Layout(tuple(columns), tuple(natural), 0)
    shown = len(columns)
    while shown > 1 and _total([min(NARROW, wide) for wide in natural[:shown]]) > width:
        shown -= 1
    widths = _shrunk(natural[:shown], width)
    return Layout(tuple(columns[:shown]), tuple(widths), len(columns) - shown)


def _total(widths: Sequence[int]) -> int:
    return sum(wide + 3 for wide in widths) - 1


def _shrunk(widths: list[int], width: int) -> list[int]:
    """The widths made to fit by cutting the widest ones, all to the same measure."""
    if _total(widths) <= width:
        return widths
    low, high = min(NARROW, max(1, width - 2)), max(widths)
    while low < high:
        middle = (low + high + 1) // 2
        if _total([min(middle, wide) for wide in widths]) <= width:
            low = middle
        else:
            high = middle - 1
    return [min(low, wide) for wide in widths]


def render(layout: Layout, dim: Callable[[str], str] = str, bold: Callable[[str], str] = str) -> list[str]:
    """The table's lines: a heading, a rule, one line per row."""
    pairs = list(zip(layout.columns, layout.widths, strict=True))
    heading = [bold(_padded(each.name, wide, each.right)) for each, wide in pairs]
    cells = [[_cell(cell, wide, each.right, dim) for cell in each.cells] for each, wide in pairs]
    rule = dim("┼").join(dim("─" * (wide + 2)) for _, wide in pairs)
    return [_line(heading, dim), rule, *(_line(list(row), dim) for row in zip(*cells, strict=True))]


def _line(cells: Sequence[str], dim: Callable[[str], str]) -> str:
    return (" " + f" {dim('│')} ".join(cells)).rstrip()


def _cell(cell: Cell, wide: int, right: bool, dim: Callable[[str], str]) -> str:
    if cell is None:
        text = _padded(NULL, wide, right)
        return text.replace(NULL, dim(NULL))
    return _padded(cell, wide, right)


def _padded(text: str, wide: int, right: bool) -> str:
    gap = wide - cell_width(text)
    if gap < 0:
        return _cut(text, wide)
    return " " * gap + text if right else text + " " * gap


def _cut(text: str, wide: int) -> str:
    kept, used = "", 0
    for char in text:
        used += cell_width(char)
        if used > wide - 1:
            break
        kept += char
    return kept + ELLIPSIS + " " * (wide - 1 - cell_width(kept))
