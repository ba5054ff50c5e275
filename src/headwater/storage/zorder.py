"""Z-order: rows that are close in several columns lie close together, so that filters on any of them skip files.

Every column is cut at quantiles of a sample, so that a skewed one is divided as evenly as an even one. A value's digit
is the number of cuts that are not above it; the bits of the digits, taken in turns from the highest, are the place on
the curve. A column with few different values has few bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.storage.comparable import comparable

MAX_BITS = 10
SAMPLE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where the columns are cut: for each the values, ascending and different, in a comparable form."""

    columns: tuple[str, ...]
    cuts: tuple[pa.Array, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """How many bits the digits of each column have."""
        return tuple(len(cut).bit_length() for cut in self.cuts)


def boundaries(sample: pa.Table, columns: Sequence[str]) -> Boundaries:
    """Cuts at quantiles of the columns of `sample`, of which a part is looked at if it is large."""
    if sample.num_rows > SAMPLE:
        sample = sample.select(columns).take(_indices(np.linspace(0, sample.num_rows - 1, SAMPLE)))
    pieces = 1 << min(MAX_BITS, 64 // len(columns))
    return Boundaries(tuple(columns), tuple(_cuts(sample.column(column), pieces) for column in columns))


def _cuts(column: pa.ChunkedArray, pieces: int) -> pa.Array:
    """Fewer values than `pieces`. The smallest value is one of them only if there are nulls, which are below it."""
    values = comparable(column).combine_chunks().drop_null()
    if not len(values):
        return values
    values = values.take(pc.sort_indices(values))
    places = np.arange(pieces - 1 if column.null_count else pieces) * len(values) // pieces
    cuts = pc.unique(values.take(_indices(places)))
    return cuts if column.null_count else cuts.slice(1)


def _indices(places: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places.astype(np.int64))])


def z_values(table: pa.Table, along: Boundaries) -> pa.Array:
    """Each row's place on the curve, as unsigned whole numbers of 64 bits."""
    places = np.zeros(table.num_rows, np.uint64)
    for name, cut, bits in zip(along.columns, along.cuts, _places(along.widths), strict=True):
        spread = np.zeros(1 << len(bits), np.uint64)
        for height, place in enumerate(bits):
            spread |= (np.arange(len(spread), dtype=np.uint64) >> np.uint64(height) & np.uint64(1)) << np.uint64(place)
        places |= spread[_digits(table.column(name), cut)]
    return pa.Array.from_buffers(pa.uint64(), len(places), [None, pa.py_buffer(places)])


def _places(widths: Sequence[int]) -> list[list[int]]:
    """Where the bits of each column's digits go, the lowest first: the columns take turns from the top."""
    found: list[list[int]] = [[] for _ in widths]
    place = sum(widths)
    for turn in range(max(widths, default=0)):
        for bits, width in zip(found, widths, strict=True):
            if turn < width:
                place -= 1
                bits.insert(0, place)
    return found


def _digits(column: pa.ChunkedArray, cuts: pa.Array) -> np.ndarray:
    """How many cuts are not above each value; none for null."""
    found: np.ndarray
    values = comparable(column).combine_chunks()
    if pa.types.is_integer(values.type) or pa.types.is_temporal(values.type):
        found = np.searchsorted(_numbers(cuts), _numbers(values), side="right")
        found[_nulls(values)] = 0
        return found
    encoded = values.dictionary_encode()
    ranks = np.append(_ranked(encoded.dictionary, cuts), 0)  # the last one is for nulls
    found = ranks[pc.fill_null(encoded.indices, len(ranks) - 1).to_numpy(zero_copy_only=False)]
    return found


def _numbers(values: pa.Array) -> np.ndarray:
    whole = values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    numbers: np.ndarray = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False)
    return numbers


def _nulls(values: pa.Array) -> np.ndarray:
    nulls: np.ndarray = values.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _ranked(values: pa.Array, cuts: pa.Array) -> np.ndarray:
    """The same for types that NumPy does not compare: by sorting values and cuts together, equal cuts first."""
    together = pa.concat_arrays([cuts, values])
    order = pc.sort_indices(together).to_numpy()
    found = np.empty(len(together), np.int64)
    found[order] = np.cumsum(order < len(cuts))
    return found[len(cuts) :]
