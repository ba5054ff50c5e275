"""How a stream's job is doing, as every surface tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

Kind = Literal["view", "connector"]
State = Literal["running", "starting", "waiting", "stopped", "idle"]
"""`waiting`: it failed, and starts again at `next_start`. `idle`: it is to run, but no service runs it."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One continuous view, or one connector. Rates and state are None where nothing runs or has no such thing."""

    name: str
    kind: Kind
    state: State
    query: str | None = None
    sources: tuple[str, ...] = ()
    into: str | None = None
    engine: Literal["streaming", "incremental", "kafka"] | None = None
    generation: int | None = None
    epoch: int | None = None
    started_at: datetime | None = None
    last_batch_at: datetime | None = None
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    batch_seconds: float | None = None
    watermark: datetime | None = None
    lag_rows: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    skipped_changes: int = 0
    state_rows: int | None = None
    state_bytes: int | None = None
    restarts: int = 0
    last_error: str | None = None
    last_error_at: datetime | None = None
    next_start: datetime | None = None
    waits_for: str | None = None

    def describe(self) -> dict[str, Any]:
        """As JSON has it, times as datetimes."""
        return asdict(self) | {"sources": list(self.sources)}
