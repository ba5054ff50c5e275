"""The small results that statements about snapshots give, the same from an open lake and from a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.serving.result import Result
from headwater.sql.units import counted, render_duration

_MOMENT = pa.timestamp("us", tz="UTC")
SNAPSHOTS = pa.schema(
    {
        "snapshot": pa.string(),
        "parent": pa.string(),
        "at": _MOMENT,
        "made_by": pa.string(),
        "operation": pa.string(),
        "rows_added": pa.int64(),
        "rows_removed": pa.int64(),
        "rows": pa.int64(),
        "files_added": pa.int64(),
        "files_removed": pa.int64(),
        "files": pa.int64(),
        "bytes_added": pa.int64(),
        "bytes_removed": pa.int64(),
        "bytes": pa.int64(),
        "offset_from": pa.int64(),
        "offset_to": pa.int64(),
        "schema": pa.int64(),
        "current": pa.bool_(),
        "on_main": pa.bool_(),
        "refs": pa.list_(pa.string()),
    }
)
REFS = pa.schema(
    {
        "name": pa.string(),
        "kind": pa.string(),
        "snapshot": pa.string(),
        "at": _MOMENT,
        "rows": pa.int64(),
        "retain": pa.string(),
        "owner": pa.string(),
    }
)
DIFFERENCE = pa.schema(
    {
        "topic": pa.string(),
        "from": pa.string(),
        "to": pa.string(),
        "inserted": pa.int64(),
        "deleted": pa.int64(),
        "updated": pa.int64(),
        "files_added": pa.int64(),
        "files_removed": pa.int64(),
        "bytes_added": pa.int64(),
        "bytes_removed": pa.int64(),
        "schema_changes": pa.list_(pa.string()),
        "partitioning": pa.string(),
        "ordering": pa.string(),
    }
)
PLAN = pa.schema({"plan": pa.string()})


def listed(about: Mapping[str, Any]) -> Result:
    """What SHOW SNAPSHOTS answers; `about` has the snapshots and what they are of, and is the result's `info`."""
    return Result.of_rows(SNAPSHOTS, about["snapshots"], info=about)


def named(about: Mapping[str, Any]) -> Result:
    """What SHOW TAGS and SHOW BRANCHES answer."""
    return Result.of_rows(REFS, about["refs"], info=about)


def different(about: Mapping[str, Any]) -> Result:
    """What DIFF TOPIC answers."""
    return Result.of_rows(DIFFERENCE, [about], info={"diff": about})


def rolled_back(about: Mapping[str, Any]) -> Result:
    """What ROLLBACK answers, or would: a line for each thing that is told."""
    return _lines([*_head(about, "roll back", "rolled back"), *_effects(about), *_views(about)], {"rollback": about})


def picked(about: Mapping[str, Any]) -> Result:
    """What CHERRY PICK answers, or would."""
    made = f", as snapshot {about['snapshot']}" if about["snapshot"] is not None else ""
    begun = "pick" if about["dry_run"] else "picked"
    head = f'{begun} snapshot {about["source"]} into topic "{about["topic"]}"{made}'
    return _lines([head, *_effects(about), *_views(about)], {"cherry_pick": about})


def retained(seconds: float | None) -> str:
    """How long a tag or branch is kept, for people."""
    return "for ever" if seconds is None else render_duration(seconds)


def _lines(lines: Sequence[str], info: Mapping[str, Any]) -> Result:
    return Result.of_rows(PLAN, [{"plan": line} for line in lines], info=info)


def _head(about: Mapping[str, Any], would: str, did: str) -> list[str]:
    if about["from"] == about["to"]:
        return [f'topic "{about["topic"]}" is at snapshot {about["to"]} already']
    begun = would if about["dry_run"] else did
    return [f'{begun} topic "{about["topic"]}" from snapshot {about["from"]} to {about["to"]} of {about["to_at"]}']


def _effects(about: Mapping[str, Any]) -> list[str]:
    lines = [f"rows: {about['rows_before']} before, {about['rows_after']} after"]
    for word, way in (("removed", "go"), ("added", "come")):
        if about[f"files_{word}"]:
            rows, size = counted(about[f"rows_{word}"], "row"), counted(about[f"bytes_{word}"], "byte")
            lines.append(f"files that {way}: {about[f'files_{word}']} with {rows}, {size}")
    if about["files_removed"] and about["files_added"]:
        lines.append("  rows that are in both stay as they are")
    for word, way in (("lost", "leave the topic"), ("regained", "come back")):
        if about[f"offsets_{word}"]:
            shown = ", ".join(f"[{start}, {end})" for start, end in about[f"offsets_{word}"])
            lines.append(f"offsets that {way}: {shown}")
    if about["waiting"]:
        lines.append(f"log: {counted(about['waiting'], 'waiting record')}, committed later as usual")
    for word, way in (("left", "not part of the topic any more"), ("regained", "part of the topic again")):
        if found := about.get(f"snapshots_{word}"):
            lines.append(f"snapshots {way}: {', '.join(map(str, found))}")
    return lines


def _views(about: Mapping[str, Any]) -> list[str]:
    return [f"view {view['view']} ({view['refresh']}): {_follows(view)}" for view in about["views"]]


def _follows(view: Mapping[str, Any]) -> str:
    if view["through"] is not None:
        return f"follows view {view['through']}"
    if view["method"] is None:
        return view["reason"] or "follows at its next refresh"
    rows = f", reads {counted(view['rows'], 'row')}" if view["rows"] else ""
    return f"{view['method']}{rows}, because {view['reason']}"
