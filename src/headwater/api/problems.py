"""Every error over HTTP is an RFC 9457 problem, and this file alone makes them."""

from __future__ import annotations

import asyncio
import http
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from headwater.errors import (
    HeadwaterError,
    InvalidInput,
    MethodNotAllowed,
    RouteNotFound,
    Unavailable,
    system_error,
)

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:headwater:error:"
MAX_FAULTS = 100
"""Places of an invalid request that its answer names: a body of a megabyte can have a hundred thousand."""
RESERVED = frozenset({"type", "title", "status", "detail", "instance", "code", "hint"})


def problem(error: HeadwaterError) -> dict[str, Any]:
    """The members of an error's problem document; what is not known is left out."""
    members: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": error.message,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "hint": error.hint,
        **{key: value for key, value in error.data.items() if key not in RESERVED},
    }
    return {key: value for key, value in members.items() if value is not None}


def respond(error: HeadwaterError, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error, with Retry-After where waiting helps."""
    more = {"Retry-After": str(error.data["retry_after"])} if "retry_after" in error.data else {}
    body = json.dumps(problem(error), ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
    return Response(body, error.status, {**(headers or {}), **more}, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of the app's routes a problem."""
    app.add_exception_handler(HeadwaterError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    return respond(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return respond(invalid_request(error.errors()))


def invalid_request(found: Sequence[Mapping[str, Any]]) -> InvalidInput:
    """What a request that does not match its description did wrong, place by place, up to MAX_FAULTS of them."""
    faults = [{"where": _place(each["loc"]), "reason": str(each["msg"])} for each in found[:MAX_FAULTS]]
    lines = "; ".join(f"{fault['where']}: {fault['reason']}" for fault in faults[:10])
    return InvalidInput(
        "request is not valid", detail=f"{lines}.", hint="/openapi.json describes every request.", errors=faults
    )


def _place(location: Sequence[str | int]) -> str:
    """`body.limit`, `query.offset`: the part of the request, then the path in it."""
    return ".".join(str(step) for step in location)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return respond(_http_error(request, error), error.headers)


def _http_error(request: Request, error: HTTPException) -> HeadwaterError:
    match error.status_code:
        case 404:
            return RouteNotFound(f'route "{request.url.path}" does not exist', hint="/openapi.json lists the routes.")
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            return MethodNotAllowed(
                f'route "{request.url.path}" does not take {request.method}',
                detail=f"It takes {allowed}." if allowed else None,
            )
        case status if status < 500:
            return InvalidInput("request is not valid", detail=f"{str(error.detail).rstrip('.')}.")
    return HeadwaterError(http.HTTPStatus(error.status_code).phrase.lower())


class CatchAll:
    """Turns what nobody expected into a problem whose id is in the log, and never shows its stack trace.

    An error after the response began cannot be told any more: the connection is cut, so that a client does not take
    the part that it has for the whole.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, tracked)
        except asyncio.CancelledError:  # the server stops, and the time for running requests is over
            if not started:
                await respond(Unavailable("the service is stopping", hint="Try again."))(scope, receive, send)
        except Exception as failed:
            error = named_error(failed, str(scope["path"]))
            if not started:
                await respond(error)(scope, receive, send)


def named_error(failed: Exception, where: str) -> HeadwaterError:
    """The error itself if it was raised on purpose; otherwise a bug, logged under an id that the client sees."""
    if isinstance(failed, HeadwaterError):
        log.info("response was cut", extra={"where": where, "error": str(failed)})
        return failed
    return unexpected_error(failed, where)


def unexpected_error(failed: Exception, where: str) -> HeadwaterError:
    """What a client is told about a bug; the log has the rest under the same id. A full disk is no bug."""
    if (known := system_error(failed)) is not None:
        log.warning("%s failed: %s", where, known)
        return known
    incident = str(ULID())
    log.error("%s failed, incident %s", where, incident, exc_info=failed, extra={"incident": incident})
    return HeadwaterError(
        "request failed unexpectedly",
        detail=f"This is a bug. The service's log has it under {incident}.",
        incident=incident,
    )
