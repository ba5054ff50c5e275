"""The statistics of a finished file in its Iceberg entry: counts of values, nulls and NaN, and bounds.

PyIceberg has them of top-level columns. Fields of structs get bounds too, as Iceberg's own writers do it; elements of
lists and maps do not.
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
BOUND_LENGTH = 16
"""To how many characters or bytes a bound is cut; Iceberg's default."""


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
    found = data_file_statistics_from_parquet_metadata(footer, plan, ids).to_serialized_dict()
    # Where the footer has no statistics, PyIceberg has no counts.
    return found | {
        "nan_value_counts": {ids[name]: count for name, count in nans.items()},
        "null_value_counts": found["null_value_counts"] | {ids[name]: count for name, count in nulls.items()},
        "value_counts": found["value_counts"] | {ids[name]: footer.num_rows for name in nulls},
    }


def _mode(planned: StatisticsCollector) -> MetricsMode:
    if isinstance(planned.iceberg_type, StringType | BinaryType):
        return MetricsMode(MetricModeTypes.TRUNCATE, BOUND_LENGTH)
    return MetricsMode(MetricModeTypes.FULL)
