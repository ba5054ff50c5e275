"""The order of rows in files: by sort keys, or along a Z-order curve. Rows that are equal stay as they came."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.storage.comparable import comparable
from headwater.storage.layout import Layout
from headwater.storage.zorder import Boundaries, boundaries, z_values
from headwater.types import SortKey

CURVE = "__curve"
"""The column that holds a row's place on the curve while it is being sorted; no user's column has such a name."""
CURVE_KEYS = (SortKey(CURVE),)


def sort_rows(table: pa.Table, layout: Layout, along: Boundaries | None = None) -> pa.Table:
    """The rows in the layout's order; a Z-order goes by `along`, or else by the quantiles of these rows."""
    if not layout.ordered:
        return table
    table = table.combine_chunks()
    if not layout.clustering:
        return sorted_by(table, layout.ordering)
    return sorted_by(with_curve(table, along or boundaries(table, layout.clustering)), CURVE_KEYS).drop_columns(CURVE)


def with_curve(table: pa.Table, along: Boundaries) -> pa.Table:
    """The table with each row's place on the curve."""
    return table.append_column(CURVE, z_values(table, along))


def sorted_by(table: pa.Table, keys: Sequence[SortKey]) -> pa.Table:
    """The rows in the order of the keys."""
    order = sorted_indices(table, keys)
    places = order.to_numpy()
    return table if (places[1:] > places[:-1]).all() else table.take(order)


def sorted_indices(table: pa.Table, keys: Sequence[SortKey]) -> pa.Array:
    """The places of the rows in the order of the keys."""
    columns = {str(place): comparable(table.column(key.column)) for place, key in enumerate(keys)}
    options = [
        (str(place), "descending" if key.descending else "ascending", "at_start" if key.nulls_first else "at_end")
        for place, key in enumerate(keys)
    ]
    return pc.sort_indices(pa.table(columns), sort_keys=options)
