"""The shapes of requests and answers about the care of tables."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwater.api.models import Answer
from headwater.sql.statements import MaintenanceStep
from headwater.state.care import Outcome

DryRun = Field(False, description="Only say what would be done.")


class MaintainBody(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"only": ["compact"], "dry_run": True}})

    only: list[MaintenanceStep] = Field(
        default_factory=list, max_length=100, description="The steps to do; all when there are none."
    )
    dry_run: bool = DryRun


class MaintainAllBody(MaintainBody):
    name: str | None = Field(None, description="A topic or a materialized view; all tables unless it is said.")


class CompactBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    full: bool = Field(False, description="Rewrite all files, not only where that pays.")
    dry_run: bool = DryRun


class CareStep(Answer):
    """One step of the care of one table."""

    id: str
    table: str = Field(description="`topics.<name>`, `views.<name>`, or `warehouse` for what belongs to no table.")
    step: MaintenanceStep
    trigger: Literal["manual", "schedule"]
    started_at: str
    outcome: Outcome
    reason: str | None = Field(description="Why there is something to do, or nothing.")
    seconds: float | None
    numbers: dict[str, Any] = Field(
        description="What it did, would do, or has done so far: files, bytes, rows, snapshots and more, by step."
    )
    code: str | None = Field(description="The code of the error that ended it.")
    error: str | None


class CareAnswer(Answer):
    steps: list[CareStep]
    notices: list[str]


class PendingDeletions(Answer):
    """Files that wait to be deleted because a read that began earlier may still use them."""

    files: int
    bytes: int


class MaintenanceList(Answer):
    steps: list[CareStep] = Field(description="The newest first.")
    running: list[CareStep]
    pending_deletions: PendingDeletions
