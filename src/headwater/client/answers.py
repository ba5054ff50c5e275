"""The service's answers as the values and errors that an open lake gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from headwater import errors
from headwater.errors import Backpressure, HeadwaterError, InvalidInput, Unavailable
from headwater.topics.ingest import Ingested
from headwater.topics.produce import Ack
from headwater.types import Offsets


def error_of(response: httpx.Response, url: str) -> HeadwaterError:
    """The error that a response of the service is, whatever it holds."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        return Unavailable(
            f'service at "{url}" answered {response.status_code}',
            detail="The answer is not one of Headwater's.",
            hint="Check the address, and proxies on the way.",
        )
    return problem_error(problem, response.status_code, _retry_after(response))


def problem_error(problem: Mapping[str, Any], status: int, retry_after: int = 1) -> HeadwaterError:
    """The error that a problem document describes, as the class that raised it."""
    standard = {"type", "title", "status", "detail", "code", "hint"}
    data = {key: value for key, value in problem.items() if key not in standard}
    about = {"detail": problem.get("detail"), "hint": problem.get("hint"), **data}
    kind = errors.BY_CODE.get(problem["code"]) or _BY_STATUS.get(status, HeadwaterError)
    if kind in (Backpressure, errors.QueryInterrupted):
        about["retry_after"] = retry_after
    return kind(problem.get("title", ""), **about)


def _retry_after(response: httpx.Response) -> int:
    text = response.headers.get("retry-after", "1")
    return int(text) if text.isascii() and text.isdigit() else 1


_BY_STATUS: dict[int, type[HeadwaterError]] = {
    status: InvalidInput if status < 500 else Unavailable for status in (400, 403, 405, 406, 415, 502, 503, 504)
} | {404: errors.NotFound, 429: Backpressure}


def ack(answer: Mapping[str, Any]) -> Ack:
    return Ack(
        answer["topic"], Offsets(*answer["offsets"]), answer["duplicates"], answer["dead"], repeated=answer["repeated"]
    )


def ingested(commit: Mapping[str, Any]) -> Ingested:
    return Ingested(
        commit["topic"],
        Offsets(*commit["offsets"]),
        int(commit["snapshot"]),
        commit["files"],
        commit["bytes"],
        commit["seconds"],
        commit["reason"],
    )
