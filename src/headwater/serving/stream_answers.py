"""The small results that statements about streams give, the same from an open lake and from a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headwater.serving.result import Result

STREAMS = pa.schema(
    {
        "stream": pa.string(),
        "topic": pa.string(),
        "event_time": pa.string(),
        "max_out_of_orderness": pa.string(),
        "connector": pa.string(),
        "description": pa.string(),
    }
)
COLUMNS = pa.schema({"column": pa.string(), "type": pa.string(), "nullable": pa.bool_(), "comment": pa.string()})
_MOMENT = pa.timestamp("us", tz="UTC")
STATUS = pa.schema(
    {
        "name": pa.string(),
        "kind": pa.string(),
        "state": pa.string(),
        "engine": pa.string(),
        "sources": pa.list_(pa.string()),
        "into": pa.string(),
        "generation": pa.int64(),
        "epoch": pa.int64(),
        "started_at": _MOMENT,
        "last_batch_at": _MOMENT,
        "input_rows_per_s": pa.float64(),
        "processed_rows_per_s": pa.float64(),
        "batch_seconds": pa.float64(),
        "watermark": _MOMENT,
        "lag_rows": pa.int64(),
        "rows_in": pa.int64(),
        "rows_out": pa.int64(),
        "late_rows": pa.int64(),
        "skipped_changes": pa.int64(),
        "state_rows": pa.int64(),
        "state_bytes": pa.int64(),
        "restarts": pa.int64(),
        "last_error": pa.string(),
        "last_error_at": _MOMENT,
        "next_start": _MOMENT,
        "waits_for": pa.string(),
    }
)


def listed(summaries: Sequence[Mapping[str, Any]]) -> Result:
    """What SHOW STREAMS answers."""
    return _result(STREAMS, summaries, info={"streams": list(summaries)})


def described(about: Mapping[str, Any]) -> Result:
    """What DESCRIBE STREAM answers: its columns; the whole description is the result's `info`."""
    rows = [{**column, "column": column["name"]} for column in about["columns"]]
    return _result(COLUMNS, rows, info=about)


def statuses(found: Sequence[Mapping[str, Any]]) -> Result:
    """What SHOW STREAM STATUS answers, and START, STOP and RESTART."""
    return _result(STATUS, found, info={"streams": list(found)})


def _result(schema: pa.Schema, rows: Sequence[Mapping[str, Any]], **more: Any) -> Result:
    typed = [{name: _value(row.get(name), schema.field(name)) for name in schema.names} for row in rows]
    return Result.of_rows(schema, typed, **more)


def _value(value: Any, of: pa.Field) -> Any:
    """A value of plain data as the column's: moments from text."""
    return datetime.fromisoformat(value) if of.type == _MOMENT and isinstance(value, str) else value
