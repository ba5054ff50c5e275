"""How long a connection may wait for its client, and how many there are: what uvicorn does not limit by itself.

Uvicorn closes a connection that is idle after a response. One that never sends a request, or half of one, or never
reads the response, it would keep for ever, and with enough of them the process can open no more files.
"""

from __future__ import annotations

import asyncio
import json
import resource
from dataclasses import dataclass
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from headwater.api.problems import MEDIA_TYPE, problem
from headwater.errors import HeadwaterError, InvalidInput, RequestTimeout, Unavailable
from headwater.observability.logs import seldom

log = seldom(__name__)

_HEADERS = "Its first line, a header or a part of its body is not as HTTP has it, or its headers have more than 16 KiB."


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be at once, and the seconds that a client has: for the headers of a request, and
    to take what waits to be sent to it."""

    connections: int
    header_seconds: float
    send_seconds: float


def open_connections(wanted: int) -> int:
    """So many of the wanted connections as leave half of the files that the process may open to everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, max(16, files // 2))


class LimitedProtocol(H11Protocol):
    """Uvicorn's protocol within limits, which a subclass has."""

    limits: ClassVar[ConnectionLimits]
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _begun = False
    """Whether a part of a request has come that is not answered yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            log.warning("connection refused: too many are open", extra={"limit": self.limits.connections})
            self._refuse(_too_many(self.limits.connections))
            return
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_waiting() and not self._begun:
            self._begun = True
            self._expect_request()
        super().data_received(data)
        if not self._is_waiting():
            self._begun = False
            self._cancel_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.send_seconds, self._drop)

    def resume_writing(self) -> None:
        self._cancel_stalled()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # in the midst of a response there is nothing that could be said
        else:
            self._refuse(InvalidInput("request is not valid HTTP", detail=_HEADERS))

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_stalled()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Whether no request is being answered. The rest of a body that was not wanted counts as waiting."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.limits.header_seconds, self._give_up)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _drop(self) -> None:
        """Close the connection of a client that does not read: what is queued for it would never be sent."""
        log.warning("connection closed: its client does not read", extra={"seconds": self.limits.send_seconds})
        self.transport.abort()

    def _give_up(self) -> None:
        if self.transport.is_closing() or not self._is_waiting():
            return
        if self._begun and self.cycle is None:
            self._refuse(_too_slow(self.limits.header_seconds))
        else:
            self.transport.close()

    def _refuse(self, error: HeadwaterError) -> None:
        self.transport.write(_response(error))
        self.transport.close()


def limited_protocol(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """The protocol with these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


def _too_many(limit: int) -> Unavailable:
    return Unavailable(
        "too many connections are open",
        detail=f"The service holds {limit} at once.",
        hint="Close some, try again, or raise the setting max_connections and the limit of open files.",
    )


def _too_slow(seconds: float) -> RequestTimeout:
    return RequestTimeout(
        "headers of the request did not arrive", detail=f"A client has {seconds:g} s for them (setting header_timeout)."
    )


def _response(error: HeadwaterError) -> bytes:
    body = json.dumps(problem(error)).encode()
    head = (
        f"HTTP/1.1 {error.status} {error.code}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
