"""Where NaN is. It has no place between a smallest and a largest value, and engines disagree on what that means.

To Spark, NaN is larger than every number; readers of Parquet (DuckDB and Iceberg's are such) skip by bounds that leave
it out, and would lose its rows. So no file has bounds for a column in which it has NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def nan_counts(table: pa.Table) -> dict[str, int]:
    """How many NaN each column of floats has, by its path; those inside lists and maps, which have no use, left out."""
    return {path: pc.sum(pc.is_nan(values)).as_py() or 0 for path, values in _floats(table)}


def null_counts(table: pa.Table) -> dict[str, int]:
    """How many nulls the same columns have: a column without bounds has no counts in the footer either."""
    return {path: values.null_count for path, values in _floats(table)}


def _floats(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    for name in table.schema.names:
        yield from _inside(name, table.column(name))


def _inside(path: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    if pa.types.is_floating(column.type):
        yield path, column
    elif pa.types.is_struct(column.type) and _has_floats(column.type):
        for field in column.type:
            # Not a child's own values: those below a null are not rows.
            yield from _inside(f"{path}.{field.name}", pc.struct_field(column, field.name))


def _has_floats(of: pa.DataType) -> bool:
    return pa.types.is_floating(of) or (pa.types.is_struct(of) and any(_has_floats(field.type) for field in of))
