"""The topics beside a view that tell of late records: those that came too late, and what corrections changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from headwater.storage.encode import json_lines
from headwater.storage.view_tables import stored_type
from headwater.streaming.late_rows import Late
from headwater.types import CORRECTIONS_SUFFIX, LATE_SUFFIX, OFFSET, SYSTEM_COLUMNS, TopicDefinition, TopicOptions

_EPOCH, _AT, _OP = "epoch", "corrected_at", "op"


def late_definition(view: str) -> TopicDefinition:
    """The topic of a view's late records: where each is in its own topic, when it happened, and itself as JSON."""
    fields = (
        NestedField(1, "topic", StringType(), required=True),
        NestedField(2, "record_offset", LongType(), required=True),
        NestedField(3, "event_time", TimestamptzType(), required=True),
        NestedField(4, "watermark", TimestamptzType(), required=True),
        NestedField(5, "epoch", LongType(), required=True),
        NestedField(6, "record", StringType(), required=True),
    )
    about = f'Records that came too late for materialized view "{view}"'
    return TopicDefinition(view + LATE_SUFFIX, Schema(*fields), options=TopicOptions(description=about))


def late_table(late: Late, epoch: int, watermark_ms: int) -> pa.Table:
    """Late records as rows of that topic."""
    count = late.rows.num_rows
    moment = pa.timestamp("us", "UTC")
    own = late.rows.select([name for name in late.rows.column_names if name not in SYSTEM_COLUMNS])
    records = [line.decode() for line in json_lines(own)]
    return pa.table(
        {
            "topic": pa.array([late.topic] * count, pa.string()),
            "record_offset": late.rows.column(OFFSET),
            "event_time": pa.array(late.moments, pa.int64()).cast(moment),
            "watermark": pa.array([watermark_ms * 1000] * count, pa.int64()).cast(moment),
            "epoch": pa.array([epoch] * count, pa.int64()),
            "record": pa.array(records, pa.string()),
        }
    )


def corrections_definition(view: str, outputs: Sequence[tuple[str, str]]) -> TopicDefinition:
    """The topic of a view's corrections: `-` and `+` before the columns of rows that went and came."""
    own = [
        NestedField(1, _EPOCH, LongType(), required=True),
        NestedField(2, _AT, TimestamptzType(), required=True),
        NestedField(3, _OP, StringType(), required=True),
    ]
    shown = [NestedField(number, name, stored_type(of)) for number, (name, of) in enumerate(outputs, start=4)]
    about = f'Rows of materialized view "{view}" that late records changed'
    return TopicDefinition(view + CORRECTIONS_SUFFIX, Schema(*own, *shown), options=TopicOptions(description=about))


def corrections_table(changed: pa.Table, epoch: int) -> pa.Table:
    """Changed rows, each with its sign in the last column, as rows of that topic."""
    *names, sign = changed.column_names
    count, now = changed.num_rows, datetime.now(UTC)
    own = {
        _EPOCH: pa.array([epoch] * count, pa.int64()),
        _AT: pa.array([now] * count, pa.timestamp("us", "UTC")),
        _OP: pa.array(["+" if each > 0 else "-" for each in changed.column(sign).to_pylist()], pa.string()),
    }
    return pa.table(own | {name: changed.column(name) for name in names})
