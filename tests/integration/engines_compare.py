"""Compares two results as bags: names, types and values, doubles within a hair of each other."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

RELATIVE = 1e-9


def difference(spark: pa.Table, duck: pa.Table, ordered: bool) -> str | None:
    """What differs between two results, None when they are one."""
    if spark.column_names != duck.column_names:
        return f"names {spark.column_names} and {duck.column_names}"
    if [f.type for f in spark.schema] != [f.type for f in duck.schema]:
        return f"types {[str(f.type) for f in spark.schema]} and {[str(f.type) for f in duck.schema]}"
    left, right = rows(spark), rows(duck)
    if not ordered:
        left, right = sorted(left, key=_order), sorted(right, key=_order)
    if len(left) != len(right):
        return f"{len(left)} rows and {len(right)}: {_only(left, right)} and {_only(right, left)}"
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        if not same(a, b):
            return f"row {number}: {a} and {b}"
    return None


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """A table's rows; columns may share a name."""
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def same(a: Any, b: Any) -> bool:
    """Whether two values are one: NaN is NaN, -0.0 is not 0.0, sums of doubles may differ in the last digits."""
    if isinstance(a, float) and isinstance(b, float):
        if a == 0 == b:
            return math.copysign(1, a) == math.copysign(1, b)
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-12)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def _order(row: Any) -> Any:
    return tuple(_key(value) for value in row)


def _key(value: Any) -> str:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"{value:.6e}"
    if isinstance(value, list | tuple):
        return str([_key(item) for item in value])
    if isinstance(value, dict):
        return str({name: _key(item) for name, item in value.items()})
    return repr(value)


def _only(these: list[Any], others: list[Any]) -> list[Any]:
    known = {_order(row) for row in others}
    return [row for row in these if _order(row) not in known][:3]
