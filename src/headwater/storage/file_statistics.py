"""The statistics of a finished file in its Iceberg entry: counts of values, nulls and NaN, and bounds.

PyIceberg has them of top-level columns. Fields of structs get bounds too, as Iceberg's own writers do it; elements of
lists and maps do not. Long bounds are cut here, not by PyIceberg: it increments U+D7FF to a surrogate, which is not a
character and cannot be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, StringType

from headwater.storage.layout import leaves
from headwater.storage.schemas import arrow_schema

NONE = MetricsMode(MetricModeTypes.NONE)
FULL = MetricsMode(MetricModeTypes.FULL)
BOUND_LENGTH = 16
"""To how many characters or bytes a bound is cut; Iceberg's default."""
LAST_CHARACTER = "\U0010ffff"
SURROGATES, AFTER_SURROGATES = 0xD800, 0xE000
"""Code points from here on are no characters; the first one that is again."""


def file_statistics(
    path: Path, schema: Schema, properties: Mapping[str, str], nans: Mapping[str, int], nulls: Mapping[str, int]
) -> dict[str, Any]:
    """What an entry says of the columns; `nans` and `nulls` are numbers by Parquet path, of columns of floats.

    With any NaN there are no bounds.
    """
    ids = parquet_path_to_id_mapping(schema)
    plan = dict(compute_statistics_plan(schema, dict(properties)))
    for leaf in leaves(arrow_schema(schema)):
        planned = plan[ids[leaf.path]]
        if nans.get(leaf.path):
            plan[ids[leaf.path]] = replace(planned, mode=NONE)
        elif "." in leaf.path and leaf.path == leaf.column and planned.mode.type == MetricModeTypes.COUNTS:
            plan[ids[leaf.path]] = replace(planned, mode=_mode(planned))
    footer = pq.read_metadata(path)
    found = footer_statistics(footer, plan, ids)
    # Where the footer has no statistics, PyIceberg has no counts.
    return found | {
        "nan_value_counts": {ids[name]: count for name, count in nans.items()},
        "null_value_counts": found["null_value_counts"] | {ids[name]: count for name, count in nulls.items()},
        "value_counts": found["value_counts"] | {ids[name]: footer.num_rows for name in nulls},
    }


def footer_statistics(
    footer: pq.FileMetaData, plan: Mapping[int, StatisticsCollector], ids: dict[str, int]
) -> dict[str, Any]:
    """What a footer says of the columns, with bounds cut as `plan` says; an upper bound that cannot be cut is left out.

    Bounds still enclose every value: a cut lower bound is a prefix, a cut upper bound is larger than the largest value.
    """
    lengths = {of: each.mode.length for of, each in plan.items() if each.mode.length is not None}
    whole = {of: replace(each, mode=FULL) if of in lengths else each for of, each in plan.items()}
    found = data_file_statistics_from_parquet_metadata(footer, whole, ids).to_serialized_dict()
    lower, upper = found["lower_bounds"], found["upper_bounds"]
    for of, length in lengths.items():
        is_text = isinstance(plan[of].iceberg_type, StringType)
        if of in lower:
            lower[of] = _prefix(lower[of], length, is_text)
        if of in upper and (larger := _upper_bound(upper.pop(of), length, is_text)) is not None:
            upper[of] = larger
    return found


def _prefix(value: bytes, length: int, is_text: bool) -> bytes:
    return value.decode()[:length].encode() if is_text else value[:length]


def _upper_bound(value: bytes, length: int, is_text: bool) -> bytes | None:
    """The prefix of `value` if that is all of it, otherwise the next larger one; None if there is none."""
    prefix = _prefix(value, length, is_text)
    if prefix == value:
        return value
    if not is_text:
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    characters = prefix.decode().rstrip(LAST_CHARACTER)
    if not characters:
        return None
    following = ord(characters[-1]) + 1
    return (characters[:-1] + chr(AFTER_SURROGATES if following == SURROGATES else following)).encode()


def _mode(planned: StatisticsCollector) -> MetricsMode:
    if isinstance(planned.iceberg_type, StringType | BinaryType):
        return MetricsMode(MetricModeTypes.TRUNCATE, BOUND_LENGTH)
    return FULL
