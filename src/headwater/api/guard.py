"""Keeps web pages away from a service that has no passwords because only this machine reaches it.

A page can make a browser call any address, also under a name that it has pointed at 127.0.0.1 (DNS rebinding). Such
calls carry the page's name in Host, or its origin in Origin.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.api.problems import respond
from headwater.errors import RequestRefused

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def allowed_hosts(bound: str) -> frozenset[str] | None:
    """The names under which a service bound to `bound` may be called; None: any, since all interfaces have many."""
    try:
        if ipaddress.ip_address(bound).is_unspecified:
            return None
    except ValueError:
        pass
    return LOOPBACK | {bound.lower()}


def refusal(method: str, headers: Headers, hosts: frozenset[str] | None) -> RequestRefused | None:
    """Why a request is not let in, or None."""
    host = headers.get("host", "")
    if hosts is not None and _name(host) not in hosts:
        return RequestRefused(
            f'host "{host[:128]}" is not served here',
            detail="The service answers only under the address that it is bound to.",
            hint="Call it as localhost, or bind it to the name with `headwater serve --host`.",
        )
    origin = headers.get("origin")
    if origin is not None and method not in SAFE_METHODS and _authority(origin) != host.lower():
        return RequestRefused(
            f'origin "{origin[:128]}" may not change anything here',
            detail="A web page of another origin made this request.",
        )
    return None


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """Refuses what `refusal` names, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, bound: str) -> None:
        self._app = app
        self._hosts = allowed_hosts(bound)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if refused := refusal(scope["method"], Headers(scope=scope), self._hosts):
            await respond(refused)(scope, receive, secured)
        else:
            await self._app(scope, receive, secured)
