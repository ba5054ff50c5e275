"""How many different values a column has, without keeping them: HyperLogLog, whose registers of files merge.

A value's hash chooses a register by its first bits; the register keeps the longest run of zeros seen behind them. The
estimate is within 1.6 % in two of three cases, and equal values count once however many files they are in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BITS = 12
REGISTERS = 1 << BITS
_REST = 64 - BITS

Sketch = npt.NDArray[np.uint8]
"""The registers."""


def empty() -> Sketch:
    return np.zeros(REGISTERS, np.uint8)


def sketch(hashes: Iterable[npt.NDArray[np.uint64]]) -> Sketch:
    """The registers of values with these hashes."""
    found = empty()
    for part in hashes:
        np.maximum(found, _registers(part), out=found)
    return found


def _registers(hashes: npt.NDArray[np.uint64]) -> Sketch:
    if not len(hashes):
        return empty()
    rest = hashes & np.uint64((1 << _REST) - 1)
    # The exponent of a float is the place of the highest bit: exact, as no more than 53 bits are left.
    ranks = _REST - np.frexp(rest.astype(np.float64))[1] + 1
    seen = np.bincount((hashes >> np.uint64(_REST)).astype(np.int64) * 64 + ranks, minlength=REGISTERS * 64)
    present = seen.reshape(REGISTERS, 64) > 0
    highest: Sketch = (63 - np.argmax(present[:, ::-1], axis=1)).astype(np.uint8) * present.any(axis=1)
    return highest


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """The registers of all values of several sketches."""
    found = empty()
    for each in sketches:
        np.maximum(found, each, out=found)
    return found


def estimate(of: Sketch) -> int:
    """About how many different values were seen; exactly none for none.

    By Ertl's estimator (arXiv:1702.01284), which is as good for few values as for many, without a table of corrections.
    """
    counts = np.bincount(of, minlength=_REST + 2).astype(float)
    if counts[0] == REGISTERS:
        return 0
    z = REGISTERS * _tau(1 - counts[_REST + 1] / REGISTERS)
    for count in counts[_REST:0:-1]:
        z = 0.5 * (z + count)
    z += REGISTERS * _sigma(counts[0] / REGISTERS)
    return round(REGISTERS * REGISTERS / (2 * math.log(2) * z))


def _sigma(x: float) -> float:
    """The sum of x^(2^k) 2^(k-1), which stands for registers that nothing reached; x is below 1."""
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, y + y
    return z


def _tau(x: float) -> float:
    """The same for registers that are full."""
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, y, before = math.sqrt(x), 0.5 * y, z
        z -= (1 - x) ** 2 * y
    return z / 3


class Hashes:
    """Hashes of Arrow values of any type: DuckDB's, by which equal values have equal ones."""

    def __init__(self) -> None:
        import duckdb

        self._db = duckdb.connect(config={"threads": 1})

    def of(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint64]:
        """The hashes of the values that are not null."""
        values = self._db.from_arrow(pa.table({"v": column}))
        found: npt.NDArray[np.uint64] = np.ma.getdata(
            values.filter("v IS NOT NULL").project("hash(v) AS h").fetchnumpy()["h"]
        )
        return found

    def close(self) -> None:
        self._db.close()
