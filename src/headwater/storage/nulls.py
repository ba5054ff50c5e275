"""Whether a field that is to be required is null anywhere: in rows, and as a condition for those that are stored."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, StructType


def holds_null(values: pa.Array, path: Sequence[str]) -> bool:
    """Whether the field at the path inside these values is null where what holds it is not."""
    if not path:
        return bool(values.null_count)
    if pa.types.is_struct(values.type):
        there = pc.drop_null(values)
        return holds_null(there.field(values.type.get_field_index(path[0])), path[1:])
    inside = values.flatten()  # null lists have no elements
    if pa.types.is_map(values.type):
        inside = inside.field(0 if path[0] == "key" else 1)
    return holds_null(inside, path[1:])


def null_condition(of: IcebergType, path: Sequence[str], inside: str) -> str:
    """Spark SQL that is true where the field at the path inside the value `inside` breaks the requirement."""
    if not path:
        return f"{inside} IS NULL"
    each, rest = f"x{len(path)}", path[1:]
    match of:
        case StructType():
            field = next(field for field in of.fields if field.name == path[0])
            return f"({inside} IS NOT NULL AND {null_condition(field.field_type, rest, f'{inside}.`{path[0]}`')})"
        case ListType():
            return f"exists({inside}, {each} -> {null_condition(of.element_type, rest, each)})"
        case MapType():
            return f"exists(map_values({inside}), {each} -> {null_condition(of.value_type, rest, each)})"
    raise AssertionError(f"no path leads into {of}")
