"""The shapes of requests and answers about materialized views."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwater.api.models import NAME, Answer
from headwater.types import MAX_NAME, RefreshMethod, RefreshMode

SALES: dict[str, Any] = {
    "name": "sales_by_city",
    "query": "SELECT city, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY city",
    "options": {"refresh": "immediate", "description": "what was sold where"},
}


class ViewBody(BaseModel):
    """A materialized view as its creator describes it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": SALES})

    name: str = Field(pattern=NAME, max_length=MAX_NAME)
    query: str = Field(min_length=1, description="Spark SQL over topics and views.")
    options: dict[str, Any] | None = Field(None, description="See docs/reference/options.md.")


class OptionsBody(BaseModel):
    """The options to change; others stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"options": {"interval": "10 s"}}})

    options: dict[str, Any] = Field(min_length=1, description="See docs/reference/options.md.")


Sample = Field(None, ge=1, le=1_000_000, description="How many groups to compare; all of them unless it is said.")


class RefreshBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    full: bool = Field(False, description="Recompute the view, whatever a refresh would do by itself.")
    verify: bool = Field(False, description="Compare the view with its query afterwards.")
    sample: int | None = Sample


class VerifyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sample: int | None = Sample


class ViewColumn(Answer):
    name: str
    type: str


class ViewSource(Answer):
    source: str
    kind: Literal["topic", "view"]
    exists: bool
    snapshot: str | None = Field(description="The snapshot that the view stands for; null is before the first.")
    head: str | None = Field(description="The source's newest snapshot.")
    lag_rows: int = Field(description="Rows that came or went since, those in the log included.")
    lag_bytes: int
    lag_seconds: float = Field(description="The age of the oldest of them.")


class State(Answer):
    columns: list[str]
    value: str = Field(description="SQL over the columns that gives the aggregate's value.")
    invertible: bool = Field(description="Whether rows that leave a source can be subtracted.")


class ViewSummary(Answer):
    view: str
    mode: RefreshMode | None
    method: RefreshMethod | None
    status: Literal["fresh", "behind", "broken", "failing", "damaged"] = Field(
        description="Of a damaged view, only its name and the error are known."
    )
    rows: int | None = Field(description="Rows of the table behind the view, which may be more than the view's.")
    lag_rows: int | None
    last_refresh: str | None
    description: str
    error: str | None = Field(description="Why the last refresh failed, or why the view is damaged.")


class ViewDescription(ViewSummary):
    id: str
    query: str
    columns: list[ViewColumn]
    options: dict[str, str]
    sources: list[ViewSource]
    readers: list[str] = Field(description="Views that read this one.")
    kind: Literal["rows", "states", "latest"]
    incremental: bool
    kept: str = Field(description="How the view follows its sources.")
    keys: list[str]
    states: list[State]
    on_read: list[str] = Field(description="What is applied when the view is read.")
    files: int
    bytes: int
    snapshot: str | None
    next_due: str | None = Field(description="When a periodic view is refreshed next.")
    location: str
    metadata: str


class ViewChanged(Answer):
    status: str = Field(examples=['materialized view "sales_by_city" created'])
    notices: list[str] = Field(description="How the view is kept, and what else its creator should know.")
    view: ViewDescription


class ViewList(Answer):
    views: list[ViewSummary]


class ConsumedRange(Answer):
    source: str
    start: str | None
    end: str | None
    rows: int | None = Field(description="Rows that came or went; null where that is not known.")


class RefreshedView(Answer):
    view: str
    method: str
    reason: str
    sources: list[ConsumedRange]
    rows_read: int
    rows_written: int
    files: int | None = Field(description="Null for a view that a stream keeps, as bytes are.")
    bytes: int | None
    seconds: float
    snapshot: str | None


class VerifiedView(Answer):
    view: str
    equal: bool
    rows: int
    extra: int = Field(description="Rows that only the view has.")
    missing: int = Field(description="Rows that only its query gives.")
    examples: list[str]
    skipped: list[str] = Field(description="Columns that two runs of the query need not agree on.")
    late: int = Field(description="Records that came too late for the view, and that its query has.")
    sample: int | None
    seconds: float
    snapshot: str | None


class RefreshAnswer(Answer):
    refreshed: list[RefreshedView] = Field(description="The views below the named one first.")
    verified: VerifiedView | None


class CompactedView(Answer):
    view: str
    files_before: int
    files_after: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    snapshot: str


class Attempted(Answer):
    """A refresh as it ended. What is not known is null."""

    id: str
    view: str
    started_at: str
    outcome: Literal["ok", "failed", "skipped"]
    seconds: float | None
    trigger: Literal["manual", "schedule", "immediate", "query", "create"] | None
    method: str | None
    rule: str | None
    reason: str | None
    sources: list[ConsumedRange]
    rows_read: int | None
    rows_written: int | None
    files: int | None
    bytes: int | None
    snapshot: str | None
    code: str | None
    error: str | None
    verified: str | None


class RefreshList(Answer):
    refreshes: list[Attempted]


class Plan(Answer):
    lines: list[str]
    plan: dict[str, Any]
    notices: list[str]
