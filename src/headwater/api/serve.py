"""Runs the app in uvicorn: binds first, so that the address is known, and stops without losing requests."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from headwater.api.app import create_app
from headwater.api.connections import ConnectionLimits, limited_protocol, open_connections
from headwater.engine import Lake
from headwater.errors import HeadwaterError, Unavailable

GRACE_SECONDS = 5
START_SECONDS = 30.0
BACKLOG = 128
"""Connections that wait to be accepted; asyncio accepts as many in one go."""


def serve(
    lake: Lake, host: str | None = None, port: int | None = None, *, on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the lake until SIGTERM or SIGINT, then close it; `on_ready` gets the URL. For the main thread.

    A HeadwaterError that `on_ready` raises stops the service, and is raised.
    """
    try:
        Service(lake, host, port, on_ready=on_ready).run()
    finally:
        lake.close()


class _Server(uvicorn.Server):
    """Uvicorn's server, except that a signal only stops it: what comes after is the caller's to finish."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the second signal does not wait for requests
        self.should_exit = True


class Service:
    """A server that is bound to its address already. The lake stays the caller's."""

    def __init__(
        self,
        lake: Lake,
        host: str | None = None,
        port: int | None = None,
        *,
        on_ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        settings = lake.settings
        host = settings.host if host is None else host
        self._socket = _bound(host, settings.port if port is None else port)
        self.url = _url(host, self._socket)
        self._ready = threading.Event()
        self._on_ready = on_ready
        self.app = create_app(lake, host, lambda: self._server.should_exit)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=settings.idle_timeout,
            backlog=BACKLOG,
            http=limited_protocol(
                ConnectionLimits(
                    open_connections(settings.max_connections), settings.header_timeout, settings.send_timeout
                )
            ),
        )
        self._server = _Server(config, self._started)
        self._thread: threading.Thread | None = None
        self._error: HeadwaterError | None = None

    def _started(self) -> None:
        self._ready.set()
        try:
            self._on_ready(self.url)
        except HeadwaterError as error:  # raised here, uvicorn would log it with its traceback
            self._error = error
            self._server.should_exit = True

    def run(self) -> None:
        """Serve until a signal or `stop`; running requests get GRACE_SECONDS to finish."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
        if self._error is not None:
            raise self._error

    def start(self) -> str:
        """Serve in a thread; the URL, once it answers."""
        self._thread = threading.Thread(target=self.run, name="headwater-http", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise Unavailable(f'service at "{self.url}" did not start')
        return self.url

    def stop(self) -> None:
        """Stop as a signal would, and wait for it when `start` was used."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()


def _bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as failed:
        raise Unavailable(
            f'address "{host}:{port}" cannot be bound',
            detail=f"{failed.strerror or failed}.",
            hint="Choose another with --host and --port; port 0 picks a free one.",
        ) from None
    return listener


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
