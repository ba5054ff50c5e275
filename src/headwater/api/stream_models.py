"""The shapes of requests and answers about streams."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwater.api.models import NAME, Answer, ColumnBody
from headwater.types import MAX_NAME

ORDERS: dict[str, Any] = {
    "name": "orders",
    "columns": [
        {"name": "order_id", "type": "STRING"},
        {"name": "amount", "type": "DECIMAL(12,2)"},
        {"name": "event_time", "type": "TIMESTAMP"},
    ],
    "options": {"timestamp_field": "event_time", "max_out_of_orderness": "10 seconds"},
}


class StreamBody(BaseModel):
    """A stream as its creator describes it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": ORDERS})

    name: str = Field(pattern=NAME, max_length=MAX_NAME)
    columns: list[ColumnBody] | None = Field(None, description="Those of its topic unless they are said.", min_length=1)
    partitioned_by: list[str] | None = Field(None, description="Of the topic, if it is made.")
    options: dict[str, Any] | None = Field(None, description="See docs/reference/options.md; the topic's among them.")


class StreamOptionsBody(BaseModel):
    """The options to change; others stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"options": {"description": "orders"}}})

    options: dict[str, Any] = Field(min_length=1, description="See docs/reference/options.md.")


class StreamSummary(Answer):
    stream: str
    topic: str
    event_time: str = Field(description="The column that says when something happened.")
    max_out_of_orderness: str = Field(description="How far behind the newest event the watermark stays.")
    connector: Literal["none", "kafka"]
    description: str


class StreamList(Answer):
    streams: list[StreamSummary]


class StreamColumn(Answer):
    name: str
    type: str
    nullable: bool
    comment: str | None


class StreamDescription(Answer):
    name: str
    topic: str
    event_time: str
    columns: list[StreamColumn]
    partitioned_by: list[str]
    options: dict[str, str]


class StreamChanged(Answer):
    status: str = Field(examples=['stream "orders" created'])
    notices: list[str] = Field(description="What the creator should know.")
    stream: StreamDescription


class StreamState(Answer):
    """A continuous view or a connector; what nobody knows is null."""

    name: str
    kind: Literal["view", "connector"]
    state: Literal["running", "starting", "backfilling", "waiting", "stopped", "failed", "idle"] = Field(
        description="`waiting`: it failed, and starts again at `next_start`. `idle`: no service runs it."
    )
    query: str | None
    sources: list[str]
    into: str | None
    engine: Literal["streaming", "incremental", "kafka"] | None
    generation: int | None
    epoch: int | None
    started_at: datetime | None
    last_batch_at: datetime | None
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_seconds: float | None
    watermark: datetime | None
    lag_rows: int | None
    rows_in: int
    rows_out: int
    late_rows: int
    skipped_changes: int = Field(description="Changes of rows that had been read, which a stream does not take back.")
    state_rows: int | None
    state_bytes: int | None
    restarts: int
    last_error: str | None
    last_error_at: datetime | None
    next_start: datetime | None
    waits_for: str | None = Field(
        description="What has to come first: Spark's start, the start of its query, records to catch up with, a time.",
        examples=["Spark, which is starting"],
    )


class StreamStates(Answer):
    streams: list[StreamState]
