"""What a request's body may be, whichever route it is for: its size, and how slowly it comes.

Only the route for records reads its body as it arrives, under a limit of its own. Any other body is small and is read
here as a whole, so that no route can forget to limit it.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.api.problems import respond
from headwater.errors import BodyTooLarge, HeadwaterError, RequestTimeout

BYTES_PER_SECOND = 1000
"""A client that sends faster than this is never too slow."""


class RequestLimits:
    """Bodies of up to `max_bytes`, within `body_seconds` of waiting and one more for each BYTES_PER_SECOND."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, body_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "content-length" not in headers and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        timed = self._timed(receive)
        if scope["method"] == "POST" and scope["path"].endswith("/records"):
            await self._app(scope, timed, send)
            return
        try:
            body = await self._whole(headers.get("content-length", ""), timed)
        except ClientDisconnect:
            return
        except HeadwaterError as refused:
            # The rest of the body is not read: the connection ends with the response.
            await respond(refused, {"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _whole(self, length: str, receive: Receive) -> bytes:
        if length.isascii() and length.isdigit() and int(length[:20]) > self._max_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self._max_bytes:
                raise self._too_large()
        return b"".join(parts)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            "request body is too large",
            detail=f"It has more than {self._max_bytes} bytes.",
            hint="The setting max_request_bytes limits the bodies of all requests but those that carry records.",
        )

    def _timed(self, receive: Receive) -> Receive:
        """The same messages; RequestTimeout when a body makes the service wait too long."""
        waited, received, more = 0.0, 0, True

        async def timed() -> Message:
            nonlocal waited, received, more
            if not more:  # what comes now is that the client leaves
                return await receive()
            begun = time.monotonic()
            try:
                # Only the time that is spent here counts: a service that is busy is not the client's fault.
                async with asyncio.timeout(self._body_seconds + received / BYTES_PER_SECOND - waited):
                    message = await receive()
            except TimeoutError:
                more = False
                raise RequestTimeout(
                    "request body did not arrive",
                    detail=f"The service waited {waited + time.monotonic() - begun:.0f} s for it and has {received} "
                    "bytes. Nothing was written.",
                    hint="Send it faster or in smaller requests, or raise the setting body_timeout.",
                ) from None
            waited += time.monotonic() - begun
            received += len(message.get("body", b""))
            more = message.get("more_body", False)
            return message

        return timed


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
