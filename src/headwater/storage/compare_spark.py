"""Two frames compared as bags of rows, floats as far as they are meant to agree: to nine digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from headwater.spark.arrow_spark import collect
from headwater.storage.encode import json_lines
from headwater.storage.identity_spark import identity

EXAMPLES = 5
COMPARED = 20_000
"""Rows that differ in any digit, up to which they are compared one by one."""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows that the view has and the query lacks, and the other way round, with examples of each as JSON."""

    rows: int
    extra: int
    missing: int
    examples: tuple[str, ...]


def compare(view: DataFrame, query: DataFrame) -> Compared:
    """Compare what a view has with what its query gives; both have the same columns."""
    ours, theirs = _rounded(view), _rounded(query)
    rows = ours.count()
    extra, missing = (collect(one.exceptAll(other).limit(COMPARED)) for one, other in ((ours, theirs), (theirs, ours)))
    only_ours, only_theirs = unmatched(_rows(extra), _rows(missing))
    examples = [f"only in the view: {text}" for text in _texts(extra, only_ours)]
    examples += [f"only in the query: {text}" for text in _texts(missing, only_theirs)]
    return Compared(rows, len(only_ours), len(only_theirs), tuple(examples))


def _rounded(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(*map(_exactly, frame.schema.fields))


def _exactly(field: StructField) -> str:
    quoted, of = f"`{field.name}`", field.dataType.simpleString()
    if "map<" in of and (entries := identity(field)) is not None:  # maps cannot be compared, their entries can
        return f"{entries[0]} AS {quoted}"
    if of in ("double", "float"):
        digits = f"9 - CAST(FLOOR(LOG10(ABS({quoted}))) AS INT)"
        plain = f"{quoted} IS NULL OR {quoted} = 0 OR isnan({quoted}) OR ABS({quoted}) > 1e300"
        shifted = f"POWER(10D, {digits})"
        return f"CASE WHEN {plain} THEN {quoted} + 0D ELSE ROUND({quoted} * {shifted}) / {shifted} END AS {quoted}"
    return f"SORT_ARRAY({quoted}) AS {quoted}" if of.startswith("array") else quoted


def _rows(table: pa.Table) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _texts(table: pa.Table, places: Sequence[int]) -> list[str]:
    return [line.decode() for line in json_lines(table.take(pa.array(places[:EXAMPLES], pa.int64())))]


def unmatched(extra: Sequence[Row], missing: Sequence[Row]) -> tuple[list[int], list[int]]:
    """The places of rows that differ after all: those that only a last digit tells apart are taken as equal."""
    waiting: dict[Row, list[int]] = {}
    for place, row in enumerate(missing):
        waiting.setdefault(_exact(row), []).append(place)
    left = []
    for place, row in enumerate(extra):
        candidates = waiting.get(_exact(row), [])
        found = next((each for each in candidates if _close(row, missing[each])), None)
        if found is None:
            left.append(place)
        else:
            candidates.remove(found)
    return left, sorted(place for places in waiting.values() for place in places)


def _exact(row: Row) -> Row:
    return tuple(None if isinstance(value, float) else repr(value) for value in row)


def _close(one: Row, other: Row) -> bool:
    return all(
        not isinstance(a, float)
        or not isinstance(b, float)
        or math.isclose(a, b, rel_tol=1e-8)
        or (math.isnan(a) and math.isnan(b))
        for a, b in zip(one, other, strict=True)
    )
