"""Statements about snapshots to routes, answers to results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, assert_never
from urllib.parse import quote

from headwater.errors import TopicNotFound, ViewNotFound
from headwater.serving import snapshot_answers as answers
from headwater.serving.result import Result
from headwater.sql.moments import AsOf
from headwater.sql.statements import (
    CherryPick,
    CreateRef,
    DiffTopic,
    DropRef,
    RollbackTopic,
    ShowRefs,
    ShowSnapshots,
    SnapshotStatement,
)

Json = Callable[..., dict[str, Any]]
"""A method, a path and what httpx takes, to the answer; `slow` waits for as long as it takes."""

_PATHS = {"tag": "tags", "branch": "branches"}


class RemoteSnapshots:
    """Answers statements about the snapshots of the lake behind a service."""

    def __init__(self, json: Json) -> None:
        self._json = json

    def run(self, statement: SnapshotStatement) -> Result:
        json = self._json
        match statement:
            case ShowSnapshots():
                return answers.listed(_timed(self._listed(statement), "snapshots"))
            case ShowRefs(topic, kind):
                path = _topic(topic, _PATHS[kind] if kind is not None else "refs")
                return answers.named(_timed(json("GET", path), "refs"))
            case CreateRef(kind, name, topic, at, retain, or_replace, if_not_exists):
                asked = {"replace": or_replace, "if_not_exists": if_not_exists}
                body = {**_moment(at), "retain": retain}
                path = _topic(topic, _PATHS[kind], name)
                return Result.done(json("PUT", path, params=asked, json=body)["status"])
            case DropRef(kind, name, topic, if_exists):
                path = _topic(topic, _PATHS[kind], name)
                return Result.done(json("DELETE", path, params={"if_exists": if_exists})["status"])
            case RollbackTopic(topic, to, base, dry_run):
                body = {**_moment(to), "base": base, "dry_run": dry_run}
                return answers.rolled_back(json("POST", _topic(topic, "snapshots", "rollback"), slow=True, json=body))
            case CherryPick(topic, version, dry_run):
                body = {"version": version, "dry_run": dry_run}
                return answers.picked(json("POST", _topic(topic, "snapshots", "cherry-pick"), slow=True, json=body))
            case DiffTopic(topic, start, end):
                between = {"from": _text(start), "to": _text(end)}
                return answers.different(json("GET", _topic(topic, "diff"), slow=True, params=between))
            case _:
                assert_never(statement)

    def _listed(self, asked: ShowSnapshots) -> dict[str, Any]:
        limit = {"limit": asked.limit}
        view = f"/views/{quote(asked.name, safe='')}/snapshots"
        if asked.kind == "view":
            return self._json("GET", view, params=limit)
        try:
            return self._json("GET", _topic(asked.name, "snapshots"), params=limit)
        except TopicNotFound:
            if asked.kind == "topic":
                raise
            try:
                return self._json("GET", view, params=limit)
            except ViewNotFound:
                pass
            raise


def _timed(answer: dict[str, Any], rows: str) -> dict[str, Any]:
    """The answer with times as an open lake has them."""
    found = [{**row, "at": datetime.fromisoformat(row["at"]) if row["at"] else None} for row in answer[rows]]
    return {**answer, rows: found}


def _moment(at: AsOf) -> dict[str, Any]:
    return {"version": at.version, "timestamp": at.timestamp, "tag": at.ref}


def _text(at: AsOf) -> str:
    return str(at.version) if at.version is not None else at.timestamp or at.ref or ""


def _topic(name: str, *below: str) -> str:
    return "/".join(("/topics", quote(name, safe=""), *(quote(each, safe="") for each in below)))
