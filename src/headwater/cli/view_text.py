"""What a person reads about a view beside its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.cli.screen import counted, sized, timed


def facts(about: Mapping[str, Any]) -> list[str]:
    """The view's description as lines, each a name and a fact."""
    said = [
        ("description", about["description"]),
        ("query", " ".join(about["query"].split())),
        *(("source", _source(each)) for each in about["sources"]),
        ("status", f"{about['status']}, refreshed last {about['last_refresh'] or 'never'}"),
        ("next refresh", about["next_due"]),
        ("last error", about["error"]),
        ("kept", about["kept"]),
        ("keys", ", ".join(about["keys"])),
        ("on read", "; ".join(about["on_read"])),
        ("files", f"{counted(about['files'], 'file')}, {counted(about['rows'], 'row')}, {sized(about['bytes'])}"),
        ("options", ", ".join(f"{name} = {value}" for name, value in about["options"].items() if value != "")),
        ("read by", ", ".join(about["readers"])),
        ("snapshot", about["snapshot"]),
        ("location", about["location"]),
    ]
    return [f"{name + ':':<16}{fact}" for name, fact in said if fact not in (None, "")]


def _source(source: Mapping[str, Any]) -> str:
    name = f"{source['kind']} {source['source']}"
    if not source["exists"]:
        return f"{name}, which does not exist any more"
    at = "before its first snapshot" if source["snapshot"] is None else f"at snapshot {source['snapshot']}"
    if not source["lag_rows"]:
        return f"{name} {at}, nothing behind"
    behind = f"{counted(source['lag_rows'], 'row')}, {sized(source['lag_bytes'])}, {timed(source['lag_seconds'])}"
    return f"{name} {at}, behind by {behind}"
