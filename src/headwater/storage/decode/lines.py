"""Finding the lines of a newline-delimited body, and those that Arrow's JSON reader must never see.

The reader crashes on a block that begins with `null` and on decimals with far negative exponents, takes `-NaN` for a
number, reads an object that spans lines and reads several objects from one line. If every line begins with `{` and
ends with `}`, a record can only end where a line does (a `}` directly before a `{` closes a record, and strings hold no
newline), so that as many records as lines means one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

SEGMENT = 8 * 1024 * 1024
"""Bodies are decoded in segments of about this size: large enough for Arrow's threads, small enough to search again."""

_NEWLINE, _OPEN, _CLOSE, _MINUS, _BACKSLASH = b"\n{}-\\"
_BOM = b"\xef\xbb\xbf"
_SMALL = 16 * 1024


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a body: line i is `data[bounds[i]:bounds[i + 1]]` with its newline; `odd` ones are not like objects."""

    data: bytes
    bounds: npt.NDArray[np.int64]
    odd: npt.NDArray[np.bool_] | None
    ascii: bool

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.bounds[row] : self.bounds[row + 1]].removesuffix(b"\n")

    def text(self, rows: Sequence[int]) -> bytes | memoryview:
        """The bytes of some lines, without a copy when they are neighbours."""
        if rows[-1] - rows[0] + 1 == len(rows):
            return memoryview(self.data)[self.bounds[rows[0]] : self.bounds[rows[-1] + 1]]
        return b"\n".join(self[row] for row in rows)

    def span(self, rows: range) -> tuple[bytes, int, int]:
        """The data, and where some lines of it begin and end."""
        return self.data, int(self.bounds[rows.start]), int(self.bounds[rows.stop])

    def has_odd(self, rows: Sequence[int]) -> bool:
        """Whether any of the lines is one that the reader must not see."""
        return (
            self.odd is not None and bool(self.odd[rows[0] : rows[-1] + 1].any()) and any(self.odd[row] for row in rows)
        )

    def at(self, positions: npt.NDArray[np.int64]) -> list[int]:
        """The lines that hold the bytes at these positions."""
        return [int(line) for line in np.unique(np.searchsorted(self.bounds, positions, side="right") - 1)]


def body_lines(data: bytes) -> Iterator[Lines]:
    """The records' lines in segments; a byte order mark, blank lines and space around records are dropped."""
    ascii = data.isascii()
    start = len(_BOM) if data.startswith(_BOM) else 0
    while start < len(data):
        stop = data.find(b"\n", start + SEGMENT) + 1 or len(data)
        lines = _bounded(data, start, stop, ascii)
        yield lines if lines.odd is None else _tidied(data[start:stop], ascii)
        start = stop


def _bounded(data: bytes, start: int, stop: int, ascii: bool) -> Lines:
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters[start:stop] == _NEWLINE) + (start + 1)
    if stop > start and letters[stop - 1] != _NEWLINE:
        ends = np.append(ends, stop + 1)  # as if there were a last newline
    bounds = np.concatenate([np.array([start], np.int64), ends])
    odd = (letters[bounds[:-1]] != _OPEN) | (letters[np.maximum(bounds[1:] - 2, 0)] != _CLOSE)
    return Lines(data, bounds, odd if odd.any() else None, ascii)


def _tidied(segment: bytes, ascii: bool) -> Lines:
    kept = [line for line in (line.strip(b" \t\r") for line in segment.split(b"\n")) if line]
    data = b"\n".join(kept)
    return _bounded(data, 0, len(data), ascii)


def suspicious_decimals(lines: Lines) -> list[int]:
    """The lines that may hold a number with a far negative exponent, plainly or behind escapes."""
    start, stop = int(lines.bounds[0]), min(int(lines.bounds[-1]), len(lines.data))
    if stop - start < _SMALL and all(lines.data.find(mark, start, stop) < 0 for mark in (b"e-", b"E-", b"\\")):
        return []  # for a few lines quicker to see than by arrays, for many slower
    letters = np.frombuffer(lines.data, np.uint8)[start:stop]
    found = _far_exponents(letters)
    if lines.data.find(b"\\", start, stop) >= 0:
        found = np.concatenate([found, _escaped_ascii(letters)])
    return lines.at(found + start)


def negative_nans(lines: Lines) -> list[int]:
    """The lines that hold `-NaN`, be it in a text."""
    start, stop = int(lines.bounds[0]), min(int(lines.bounds[-1]), len(lines.data))
    found = []
    while (start := lines.data.find(b"-NaN", start, stop)) >= 0:
        found.append(start)
        start += 1
    return lines.at(np.array(found, np.int64)) if found else []


def _far_exponents(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Where `<digit or point>e-<digit><digit>` has its minus."""
    found = np.flatnonzero(letters == _MINUS)
    found = found[(found >= 2) & (found < len(letters) - 2)]
    found = found[(letters[found - 1] | 32) == ord("e")]
    before = letters[found - 2]
    found = found[_is_digit(before) | (before == ord("."))]
    found = found[_is_digit(letters[found + 1])]
    followed: npt.NDArray[np.int64] = found[_is_digit(letters[found + 2])]
    return followed


def _escaped_ascii(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    r"""Where `\u002`, `\u003`, `\u004` or `\u006` begins: signs, digits and letters that encoders never escape."""
    found = np.flatnonzero(letters == _BACKSLASH)
    found = found[found < len(letters) - 5]
    for step, letter in enumerate(b"u00", start=1):
        found = found[letters[found + step] == letter]
    return found[np.isin(letters[found + 4], np.frombuffer(b"2346", np.uint8))]


def _is_digit(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    return (letters >= ord("0")) & (letters <= ord("9"))
