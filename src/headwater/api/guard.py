"""Keeps web pages away from a service that has no passwords because only this machine reaches it.

A page can make a browser call any address, also under a name that it has pointed at 127.0.0.1 (DNS rebinding). Such
calls carry the page's name in Host, or its origin in Origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.api.problems import respond
from headwater.errors import HostNotAllowed, RequestRefused

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class HostRule:
    """Under which hosts a service answers: names, and any IP address if it is bound to all interfaces.

    An address cannot be rebound: only a name can be made to mean another machine.
    """

    names: frozenset[str]
    any_address: bool = False
    any_name: bool = False

    @classmethod
    def of(cls, bound: str, configured: Iterable[str] = ()) -> HostRule:
        """The rule for a service that is bound to an address, and the setting allowed_hosts."""
        names = {name.strip().strip("[]").lower() for name in configured}
        address = _address(bound)
        return cls(
            LOOPBACK | {bound.lower()} | names,
            any_address=address is not None and address.is_unspecified,
            any_name="*" in names,
        )

    def allows(self, host: str) -> bool:
        """Whether the header Host names the service."""
        name = _name(host)
        return bool(name) and (self.any_name or name in self.names or (self.any_address and _address(name) is not None))


def refusal(method: str, headers: Headers, hosts: HostRule) -> HostNotAllowed | RequestRefused | None:
    """Why a request is not let in, or None."""
    host = headers.get("host", "")
    if not hosts.allows(host):
        return HostNotAllowed(
            f'host "{host[:128]}" is not served here',
            detail="The service answers under localhost, the address that it is bound to, and its allowed hosts.",
            hint="Call it by one of these, or add the name to the setting allowed_hosts.",
        )
    origin = headers.get("origin")
    if origin is not None and method not in SAFE_METHODS and _authority(origin) != host.lower():
        return RequestRefused(
            f'origin "{origin[:128]}" may not change anything here',
            detail="A web page of another origin made this request.",
        )
    return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
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

    def __init__(self, app: ASGIApp, hosts: HostRule) -> None:
        self._app = app
        self._hosts = hosts

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
