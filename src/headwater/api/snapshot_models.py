"""The shapes of requests and answers about snapshots."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from headwater.api.models import Answer, OffsetPair

AT_EXAMPLES = ["8744736658442914487", "before_import", "2026-01-01T10:05:00Z"]


class Snapshot(Answer):
    snapshot: str
    parent: str | None
    at: datetime
    made_by: str = Field(description="What made it.", examples=["ingest", "delete", "update", "compaction"])
    operation: str | None = Field(examples=["append", "overwrite", "replace"])
    rows_added: int
    rows_removed: int
    rows: int = Field(description="Rows of the table at this snapshot.")
    files_added: int
    files_removed: int
    files: int
    bytes_added: int
    bytes_removed: int
    bytes: int
    offset_from: int | None = Field(description="The first offset of the records that it brought.")
    offset_to: int | None = Field(description="The offset behind the last of them.")
    schema_: int | None = Field(alias="schema", description="The id of the columns that the table had.")
    current: bool
    on_main: bool = Field(description="Whether the current snapshot was made from it.")
    refs: list[str] = Field(description="Tags and branches that stand for it.")


class Gap(Answer):
    """Offsets that a rollback took away, and that were not given back since."""

    from_: int = Field(alias="from")
    to: int
    why: str
    at: str


class SnapshotList(Answer):
    topic: str
    current: str | None
    snapshots: list[Snapshot]
    gaps: list[Gap]


class ViewSnapshotList(Answer):
    view: str
    current: str | None
    snapshots: list[Snapshot]
    gaps: list[Gap]


class Ref(Answer):
    name: str
    kind: Literal["tag", "branch"]
    snapshot: str
    at: datetime | None
    rows: int | None
    retain: str = Field(description="How long it is kept.", examples=["30 days", "for ever"])
    retain_seconds: float | None
    owner: Literal["user", "view", "headwater"] = Field(description="Who made it; only users' can be dropped.")


class RefList(Answer):
    topic: str
    refs: list[Ref]


class MomentBody(BaseModel):
    """One of the three at the most; without any, the newest snapshot."""

    model_config = ConfigDict(extra="forbid")

    version: int | None = Field(None, ge=0, lt=2**63, description="A snapshot's id.")
    timestamp: str | None = Field(None, min_length=1, max_length=64, description="A time, in UTC unless it says.")
    tag: str | None = Field(None, min_length=1, max_length=256, description="A tag or branch.")


class RefBody(MomentBody):
    retain: str | float | None = Field(None, description="A duration or seconds; for ever unless it is said.")


class RollbackBody(MomentBody):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"tag": "before_import", "dry_run": True}})

    base: int | None = Field(None, ge=0, lt=2**63, description="Refuse if this is not the topic's snapshot any more.")
    dry_run: bool = Field(False, description="Only tell what would be done.")


class PickBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: int = Field(ge=0, lt=2**63, description="The snapshot to apply.")
    dry_run: bool = Field(False, description="Only tell what would be done.")


class Follower(Answer):
    """A view that follows the topic, and what its next refresh does."""

    view: str
    refresh: str = Field(description="When it is refreshed.", examples=["periodic"])
    through: str | None = Field(description="The view that it reads, if it does not read the topic itself.")
    method: Literal["skip", "append", "keys", "full"] | None
    reason: str | None
    rows: int | None = Field(description="Rows that it is estimated to read.")


class _Effects(Answer):
    topic: str
    dry_run: bool
    rows_before: int
    rows_after: int
    rows_removed: int = Field(description="Rows of the files that go; those that are in both are copies.")
    files_removed: int
    bytes_removed: int
    rows_added: int
    files_added: int
    bytes_added: int
    offsets_lost: list[OffsetPair]
    offsets_regained: list[OffsetPair]
    waiting: int = Field(description="Records in the log, which stay there.")
    views: list[Follower]


class RollbackAnswer(_Effects):
    from_: str = Field(alias="from")
    to: str
    to_at: str
    snapshots_left: list[str] = Field(description="Snapshots that are not part of the topic any more.")
    snapshots_regained: list[str]


class PickAnswer(_Effects):
    source: str
    base: str | None
    snapshot: str | None = Field(description="The snapshot that it made; null for a dry run.")


class DiffAnswer(Answer):
    topic: str
    from_: str = Field(alias="from")
    to: str
    inserted: int
    deleted: int
    updated: int
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int
    schema_changes: list[str] = Field(examples=[["added note STRING"]])
    partitioning: str | None = Field(description="How it changed; null if it did not.")
    ordering: str | None = Field(description="How it changed; null if it did not.")
