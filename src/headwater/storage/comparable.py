"""Values that Arrow sorts as Iceberg sorts those of a column.

Text is compared by its UTF-8 bytes, UUIDs by theirs, and floats as -infinity < -0.0 < 0.0 < infinity < NaN.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column's values in a form that compares as they do; nulls stay null."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_floating(column.type):
        return pa.chunked_array([_total_order(chunk) for chunk in column.chunks], _bits(column.type))
    return column


def _bits(of: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_float32(of) else pa.int64()


def _total_order(values: pa.Array) -> pa.Array:
    """Whole numbers in the order of floats: those of a negative sign run backwards, and every NaN is the largest."""
    floats = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    floats = np.where(np.isnan(floats), floats.dtype.type(np.nan), floats)
    bits = floats.view(np.int32 if floats.itemsize == 4 else np.int64)
    ordered = bits ^ ((bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max)
    found = pa.Array.from_buffers(_bits(values.type), len(ordered), [None, pa.py_buffer(ordered)])
    return pc.if_else(values.is_valid(), found, None) if values.null_count else found
