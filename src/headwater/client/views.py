"""Statements about materialized views to routes, answers to results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, assert_never
from urllib.parse import quote

from headwater.serving import view_answers
from headwater.serving.result import Result
from headwater.sql.statements import (
    AlterView,
    CompactView,
    CreateView,
    DescribeView,
    DropView,
    ExplainCreateView,
    ExplainRefresh,
    RefreshView,
    ShowRefreshes,
    ShowViews,
    VerifyView,
    ViewStatement,
)
from headwater.sql.view_definition import view_to_dict

Progress = Callable[[Mapping[str, Any]], None]
Json = Callable[..., dict[str, Any]]
"""A method, a path and what httpx takes, to the answer; `slow` waits for as long as it takes."""
Lines = Callable[..., Iterator[dict[str, Any]]]
"""The same for an answer that comes line by line."""


class RemoteViews:
    """Answers statements about the views of the lake behind a service."""

    def __init__(self, json: Json, lines: Lines) -> None:
        self._json = json
        self._lines = lines

    def run(self, statement: ViewStatement) -> Result:
        json = self._json
        match statement:
            case CreateView(definition, or_replace, if_not_exists):
                asked = {"or_replace": or_replace, "if_not_exists": if_not_exists}
                return _done(json("POST", "/views", slow=True, params=asked, json=view_to_dict(definition)))
            case ExplainCreateView(definition):
                return _explained(json("POST", "/explain/view", slow=True, json=view_to_dict(definition)))
            case DropView(name, if_exists):
                return Result.done(json("DELETE", _view(name), params={"if_exists": if_exists})["status"])
            case AlterView(name, options):
                return _done(json("PATCH", _view(name), json={"options": dict(options)}))
            case ShowViews():
                return view_answers.listed(json("GET", "/views")["views"])
            case DescribeView(name):
                return view_answers.described(json("GET", _view(name)))
            case RefreshView():
                return self.refresh(statement)
            case VerifyView(name, sample):
                return view_answers.verified(json("POST", _view(name, "verify"), slow=True, json={"sample": sample}))
            case ExplainRefresh(name, full):
                return _explained(json("GET", _view(name, "explain"), params={"full": full}))
            case ShowRefreshes(only, limit):
                path = "/refreshes" if only is None else _view(only, "history")
                return view_answers.recorded(json("GET", path, params={"limit": limit})["refreshes"])
            case CompactView(name):
                return view_answers.compacted(json("POST", _view(name, "compact"), slow=True))
            case _:
                assert_never(statement)

    def refresh(self, statement: RefreshView, progress: Progress = lambda _: None) -> Result:
        """Refresh; `progress` hears of each plan when the service begins to run it."""
        verify = statement.verify
        body = {
            "full": statement.full,
            "verify": verify is not None,
            "sample": verify.sample if verify is not None else None,
        }
        answer: dict[str, Any] = {}
        for line in self._lines("POST", _view(statement.name, "refresh"), json=body):
            if "planned" in line:
                progress(line["planned"])
            answer = line.get("answer", answer)
        return view_answers.refreshed(answer["refreshed"], answer["verified"])


def _done(changed: Mapping[str, Any]) -> Result:
    return Result.done(changed["status"], changed["notices"])


def _explained(answer: Mapping[str, Any]) -> Result:
    return view_answers.explained(answer["lines"], answer["plan"], answer["notices"])


def _view(name: str, *below: str) -> str:
    return "/".join(("/views", quote(name, safe=""), *below))
