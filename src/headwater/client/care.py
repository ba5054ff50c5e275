"""Statements about the care of tables to routes, answers to results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never
from urllib.parse import quote

from headwater.client.views import Json, Lines
from headwater.serving.care_answers import maintained, remembered
from headwater.serving.result import Result
from headwater.sql.statements import CareStatement, Maintain, Optimize, ShowMaintenance


class RemoteCare:
    """Answers statements about the care of the tables behind a service."""

    def __init__(self, json: Json, lines: Lines) -> None:
        self._json = json
        self._lines = lines

    def run(self, statement: CareStatement) -> Result:
        match statement:
            case ShowMaintenance(name, limit):
                asked = {"limit": limit, **({"name": name} if name is not None else {})}
                found = self._json("GET", "/maintenance", params=asked)
                return remembered(found["steps"], found["pending_deletions"])
            case Maintain() | Optimize():
                return self.take_care(statement)
            case _:
                assert_never(statement)

    def take_care(
        self, statement: Maintain | Optimize, progress: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> Result:
        """Run the statement; `progress` hears of each step when it begins and while it goes on."""
        answer: dict[str, Any] = {}
        path, body = _request(statement)
        for line in self._lines("POST", path, json=body):
            if "step" in line:
                progress(line["step"])
            answer = line.get("answer", answer)
        return maintained(answer["steps"], answer["notices"])


def _request(statement: Maintain | Optimize) -> tuple[str, dict[str, Any]]:
    if isinstance(statement, Optimize):
        path = f"/topics/{quote(statement.topic, safe='')}/parquet/compact"
        return path, {"full": statement.full, "dry_run": statement.dry_run}
    body = {"name": statement.name, "only": list(statement.only), "dry_run": statement.dry_run}
    return "/maintain", body
