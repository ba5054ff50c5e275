"""A continuous view's plan in words: the very value that is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headwater.sql.units import render_duration
from headwater.streaming.lateness import LateRule, late_rules
from headwater.streaming.plan import Continuous, Input, NotStreamed
from headwater.types import LATE_SUFFIX, ViewOptions

_LATE = {
    "drop": "are counted, and left out",
    "keep": "are counted, left out, and kept in {late}",
    "correct": "are counted, and folded into their windows by a correction",
}


def describe_plan(plan: Continuous | NotStreamed) -> dict[str, Any]:
    """The plan as plain data."""
    if isinstance(plan, NotStreamed):
        return {"engine": "incremental", "reason": plan.reason}
    rules = late_rules(plan)
    return {
        "engine": "streaming",
        "mode": plan.mode,
        "kind": plan.layout.kind,
        "keys": list(plan.layout.keys),
        "sql": plan.outline.text,
        "sources": [_source(each, rules.get(each.table.name)) for each in plan.outline.inputs],
        "windows": [
            {
                "function": each.function,
                "of": each.moment,
                "slide": _length(each.slide_micros),
                "size": _length(each.size_micros),
            }
            for each in plan.outline.windows
        ],
    }


def _source(source: Input, rule: LateRule | None) -> dict[str, Any]:
    about: dict[str, Any] = {"name": source.name, "columns": list(source.columns)}
    if source.stream is None:
        return about | {"read_as": "table"}
    return about | {
        "read_as": "stream",
        "event_time": source.stream.event_time,
        "max_out_of_orderness": render_duration(source.stream.options.max_out_of_orderness),
        "late": None if rule is None else rule.kind,
    }


def render_plan(plan: Continuous | NotStreamed, options: ViewOptions, name: str) -> Iterator[str]:
    """The plan as lines."""
    said = describe_plan(plan)
    if isinstance(plan, NotStreamed):
        yield f"kept by: an incremental refresh after every commit, because {plan.reason}"
        return
    groups = f"groups as they change, by {', '.join(plan.layout.keys) or 'all rows'}"
    yield f"kept by: a streaming query that emits {'every row once' if plan.mode == 'append' else groups}"
    for source in said["sources"]:
        yield from _source_lines(source, options, name)
    for window in said["windows"]:
        slide = f" every {window['slide']}" if window["function"] == "HOP" else ""
        yield f"window: {window['function']} of {window['of']}, {window['size']}{slide}"
    if options.into_topic or options.into_kafka:
        yield f"into: {f'topic {options.into_topic}' if options.into_topic else f'Kafka {options.into_kafka}'}"
    yield f"sql: {' '.join(plan.outline.text.split())}"


def _source_lines(source: dict[str, Any], options: ViewOptions, name: str) -> Iterator[str]:
    if source["read_as"] == "table":
        yield f"table {source['name']}: as it is when a batch begins; columns {', '.join(source['columns'])}"
        return
    bound = source["max_out_of_orderness"]
    yield f"stream {source['name']}: event time {source['event_time']}, up to {bound} out of order"
    yield f"  columns: {', '.join(source['columns'])}"
    late = _LATE[options.late].format(late=name + LATE_SUFFIX)
    yield f"  late records {late}" if source["late"] else "  no record is late: nothing of the answer closes"


def _length(micros: int) -> str:
    return render_duration(micros / 1_000_000)
