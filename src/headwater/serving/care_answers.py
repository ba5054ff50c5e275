"""The small results that statements about the care of tables give, the same from an open lake and from a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headwater.serving.result import Result

_MOMENT = pa.timestamp("us", tz="UTC")
_NUMBERS = {"files": pa.int64(), "bytes": pa.int64(), "rows": pa.int64(), "seconds": pa.float64()}
STEPS = pa.schema(
    {
        "table": pa.string(),
        "step": pa.string(),
        "outcome": pa.string(),
        "reason": pa.string(),
        **_NUMBERS,
        "error": pa.string(),
    }
)
HISTORY = pa.schema(
    {
        "started_at": _MOMENT,
        "table": pa.string(),
        "step": pa.string(),
        "outcome": pa.string(),
        "trigger": pa.string(),
        "reason": pa.string(),
        **_NUMBERS,
        "code": pa.string(),
        "error": pa.string(),
        "id": pa.string(),
    }
)


def maintained(steps: Sequence[Mapping[str, Any]], notices: Sequence[str] = ()) -> Result:
    """What MAINTAIN and OPTIMIZE answer: a row for each step; all that it says of itself is in `info`."""
    return _result(STEPS, steps, info={"steps": list(steps), "notices": list(notices)}, notices=notices)


def remembered(steps: Sequence[Mapping[str, Any]], pending: Mapping[str, Any]) -> Result:
    """What SHOW MAINTENANCE answers, the newest first."""
    running = [step for step in steps if step["outcome"] == "running"]
    return _result(HISTORY, steps, info={"steps": list(steps), "running": running, "pending_deletions": dict(pending)})


def _result(schema: pa.Schema, steps: Sequence[Mapping[str, Any]], **more: Any) -> Result:
    rows = [{name: _value(step, name) for name in schema.names} for step in steps]
    return Result.of_rows(schema, rows, **more)


def _value(step: Mapping[str, Any], name: str) -> Any:
    """A column of a step; the seconds of one that was only planned are those that it will take, as far as it knows."""
    if name in ("files", "bytes", "rows"):
        numbers = step["numbers"]
        return numbers.get(name, numbers.get(f"{name}_before"))
    if name == "seconds" and step["outcome"] == "planned":
        return step["numbers"].get(name)
    value = step.get(name)
    return datetime.fromisoformat(value) if name == "started_at" and isinstance(value, str) else value
