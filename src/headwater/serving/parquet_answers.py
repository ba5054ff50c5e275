"""What statements about a topic's files answer, the same from an open lake and from a service: rows, and all of it
as plain data in the result's `info`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from headwater.serving.result import Result
from headwater.storage.advice.values import Recommendation
from headwater.storage.parquet_stats import ColumnStats, FilesSchema, TableStats

STATS = pa.schema(
    {
        "column": pa.string(),
        "type": pa.string(),
        "compressed": pa.int64(),
        "uncompressed": pa.int64(),
        "ratio": pa.float64(),
        "share": pa.float64(),
        "codecs": pa.string(),
        "encodings": pa.string(),
        "nulls": pa.int64(),
        "distinct": pa.int64(),
        "min": pa.string(),
        "max": pa.string(),
        "data_pages": pa.int64(),
        "dictionary_pages": pa.int64(),
        "bloom_bytes": pa.int64(),
        "files": pa.int64(),
    }
)
SCHEMA = pa.schema(
    {
        "column": pa.string(),
        "path": pa.string(),
        "physical": pa.string(),
        "logical": pa.string(),
        "repetition": pa.string(),
        "field_id": pa.int64(),
        "files": pa.int64(),
        "others": pa.string(),
    }
)
ADVICE = pa.schema(
    {
        "kind": pa.string(),
        "columns": pa.string(),
        "current": pa.string(),
        "proposed": pa.string(),
        "bytes_before": pa.int64(),
        "bytes_after": pa.int64(),
        "read_before": pa.float64(),
        "read_after": pa.float64(),
        "confidence": pa.string(),
        "why": pa.string(),
        "statement": pa.string(),
    }
)


def stats_info(stats: TableStats) -> dict[str, Any]:
    """The statistics as plain data."""
    return {**asdict(stats), "columns": [_column(each) for each in stats.columns]}


def _column(of: ColumnStats) -> dict[str, Any]:
    ratio = round(of.ratio, 3) if of.ratio is not None else None
    return {**asdict(of), "ratio": ratio, "share": round(of.share, 6)}


def shown_stats(about: Mapping[str, Any]) -> Result:
    """What SHOW PARQUET STATS answers, from `stats_info`."""
    return Result.of_rows(STATS, [_row(STATS, each) for each in about["columns"]], info=about)


def schema_info(schema: FilesSchema) -> dict[str, Any]:
    """The schema as plain data."""
    columns = [
        {"column": each.column, **asdict(each.type), "files": each.files, "others": list(each.others)}
        for each in schema.columns
    ]
    return {"topic": schema.topic, "file": schema.file, "files": schema.files, "columns": columns}


def shown_schema(about: Mapping[str, Any]) -> Result:
    """What SHOW PARQUET SCHEMA answers, from `schema_info`."""
    return Result.of_rows(SCHEMA, [_row(SCHEMA, each) for each in about["columns"]], info=about)


def advice_info(of: Recommendation, topic: str) -> dict[str, Any]:
    """A recommendation as plain data, with the statement that follows it."""
    return {
        "kind": of.kind,
        "columns": list(of.columns),
        "current": of.current,
        "proposed": of.proposed,
        **{name: _rounded(value) for name, value in asdict(of.effect).items()},
        "confidence": of.confidence,
        "why": of.why,
        "statement": f"ALTER TOPIC {topic} {of.change}",
    }


def recommended(about: Mapping[str, Any]) -> Result:
    """What RECOMMEND answers: a row for each recommendation, none if there is nothing to gain."""
    rows = [_row(ADVICE, each) for each in about["recommendations"]]
    return Result.of_rows(ADVICE, rows, info=about, notices=about["notices"])


def _row(schema: pa.Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a table shows; several in one cell are separated by commas."""
    cells = {name: values[name] for name in schema.names}
    return {name: ", ".join(cell) if isinstance(cell, list | tuple) else cell for name, cell in cells.items()}


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value
