"""Which records come too late for a stream, and which closed windows they belong to. Pure.

A streaming engine drops a record from windows that its watermark has passed, and does not say which one it was. So it
is computed here by the same rule, from the watermark that the batch before had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sqlglot import exp

from headwater.sql.windows_streaming import StreamWindow
from headwater.streaming.plan import Continuous, Input, parsed

Micros = np.ndarray
"""Moments in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class LateRule:
    """When a record is dropped: a window of it has ended (`window`, `session`), or its own time has passed (`time`)."""

    kind: Literal["window", "session", "time"]
    slide: int = 0
    size: int = 0

    def late(self, moments: Micros, watermark: int) -> np.ndarray:
        """Which of the records are too late, for one window at least."""
        match self.kind:
            case "window":
                return self._first_start(moments) + self.size <= watermark
            case "session":
                return moments + self.size <= watermark
            case "time":
                return moments <= watermark

    def closed(self, moments: Micros, watermark: int) -> list[int]:
        """The starts of windows that had ended, and that the records belong to; only for windows."""
        found: set[int] = set()
        for step in range(-(-self.size // self.slide)):
            starts = self._first_start(moments) + step * self.slide
            ended = (starts <= moments) & (starts + self.size <= watermark)
            found.update(int(start) for start in np.unique(starts[ended]))
        return sorted(found)

    def _first_start(self, moments: Micros) -> Micros:
        """The start of the earliest window that a moment falls into."""
        starts: Micros = (np.floor_divide(moments - self.size, self.slide) + 1) * self.slide
        return starts


def late_rules(plan: Continuous) -> Mapping[str, LateRule]:
    """The rule for each topic of which records can be too late; those of others are always kept."""
    rules = {each.table.name: _rule(plan, each) for each in plan.outline.streams}
    return {topic: rule for topic, rule in rules.items() if rule is not None}


def _rule(plan: Continuous, source: Input) -> LateRule | None:
    assert source.stream is not None
    if (window := _window(plan, source, source.stream.event_time)) is not None:
        if window.function == "SESSION":
            return LateRule("session", size=window.size_micros)
        return LateRule("window", window.slide_micros, window.size_micros)
    # A time that the query does not read does not reach what would drop by it.
    read = source.stream.event_time in source.columns
    return LateRule("time") if read and _drops_by_time(plan, source.stream.event_time) else None


def _window(plan: Continuous, source: Input, event_time: str) -> StreamWindow | None:
    """The window that cuts the time of a stream, by that name: its own, or that of a SELECT that names no stream."""
    streams = {each.name.lower() for each in plan.outline.streams}
    for window in plan.outline.windows:
        moment = window.moment.rpartition(".")[2].strip("`").lower()
        if moment == event_time and source.name.lower() in (window.words & streams or streams):
            return window
    return None


def _drops_by_time(plan: Continuous, event_time: str) -> bool:
    """Whether rows are state until their own time has passed: joined with another stream, made distinct, or grouped."""
    tree = parsed(plan.outline.text)
    if tree is None:
        return False
    if any(_groups_by(select, event_time) for select in tree.find_all(exp.Select)):
        return True
    joined = len(plan.outline.streams) > 1 and tree.find(exp.Join) is not None
    distinct = tree.find(exp.Distinct) or any(each.args.get("distinct") for each in tree.find_all(exp.SetOperation))
    return plan.mode == "append" and bool(joined or distinct)


def _groups_by(select: exp.Select, column: str) -> bool:
    group = select.args.get("group")
    for key in group.expressions if group is not None else ():
        is_place = isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(select.expressions)
        item = select.expressions[int(key.name) - 1].unalias() if is_place else key
        if isinstance(item, exp.Column) and item.name.lower() == column.lower():
            return True
    return False
