"""Connections to a real server that are slow, idle, too many, or send too much."""

from __future__ import annotations

import json
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import headwater
from headwater.api import record_routes
from headwater.api.admission import Reservation
from headwater.api.connections import open_connections
from headwater.api.serve import Service
from headwater.storage.decode import Account

PATIENCE = 120.0
"""Seconds after which a test gives up on a connection that should have been closed."""
QUICK = {"header_timeout": 0.3, "body_timeout": 0.3, "max_connections": 4, "idle_timeout": 1}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with headwater.init(tmp_path_factory.mktemp("lake"), **QUICK, max_request_bytes=64 * 1024) as lake:
        lake.sql("CREATE TOPIC t (id BIGINT)")
        service = Service(lake, port=0)
        yield service.start()
        service.stop()


def opened(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname or "", address.port or 0), PATIENCE)


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and problem of what is received until the server closes; 0 if it closes without a word."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)) if head else (0, {})


def request(method: str, path: str, length: int) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.fixture(autouse=True)
def _settled(url: str) -> Iterator[None]:
    """Every test begins with a service that answers, and leaves one."""
    yield
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        while http.get("/health", headers={"Connection": "close"}).status_code != 200:
            pass


def test_a_connection_that_sends_nothing_is_closed(url: str) -> None:
    with opened(url) as connection:
        assert answer(connection) == (0, {})


@pytest.mark.parametrize("part", [b"GET", b"GET /health HTTP/1.1\r\nHost: loc"])
def test_half_of_the_headers_is_a_timeout(url: str, part: bytes) -> None:
    with opened(url) as connection:
        connection.sendall(part)
        status, problem = answer(connection)
        assert (status, problem["code"]) == (408, "request_timeout")


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000,
        b"POST /api/v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["line", "headers", "chunk"],
)
def test_what_is_not_http_is_a_problem(url: str, sent: bytes) -> None:
    with opened(url) as connection:
        with suppress(ConnectionError):  # it may be closed before all is sent
            connection.sendall(sent)
        status, problem = answer(connection)
        assert (status, problem.get("code")) in ((400, "invalid_input"), (0, None))
    if b"x" * 200_000 not in sent:
        assert status == 400


def test_an_idle_connection_is_closed_after_its_response(url: str) -> None:
    with opened(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(connection)[0] == 200
    with opened(url) as connection:  # and so is one that goes on with half of a request
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        assert answer(connection)[0] == 200


@pytest.mark.parametrize("path", ["/api/v1/topics/t/records", "/api/v1/query"])
def test_half_of_a_body_is_a_timeout(url: str, path: str) -> None:
    with opened(url) as connection:
        connection.sendall(request("POST", path, 1000) + b'{"id": 1}\n')
        status, problem = answer(connection)
        assert (status, problem["code"]) == (408, "request_timeout")
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        found = http.post("/api/v1/query", json={"sql": "SELECT count(*) FROM t", "engine": "duckdb"}).json()
    assert found["rows"] == [[0]]


@pytest.mark.parametrize("path", ["/api/v1/query", "/api/v1/topics", "/api/v1/explain/view", "/nowhere"])
def test_a_body_without_records_is_limited(url: str, path: str) -> None:
    declared = request("POST", path, 10**12)
    with opened(url) as connection:
        connection.sendall(declared)
        status, problem = answer(connection)
        assert (status, problem["code"]) == (413, "body_too_large")
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        sent = http.post(path, content=iter([b" " * 1024] * 100), headers={"Content-Type": "application/json"})
        assert (sent.status_code, sent.json()["code"]) == (413, "body_too_large")


def test_every_route_with_a_body_is_limited(url: str) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        described = http.get("/openapi.json").json()["paths"]
        for path, methods in described.items():
            for method, operation in methods.items():
                if "requestBody" in operation and not path.endswith("/records"):
                    sent = http.request(method, path.replace("{", "").replace("}", ""), content=b" " * 70_000)
                    assert (sent.status_code, sent.json()["code"]) == (413, "body_too_large"), (method, path)


def test_too_many_connections_are_told_and_room_comes_back(url: str) -> None:
    held = [opened(url) for _ in range(4)]
    try:
        with opened(url) as one_more:
            status, problem = answer(one_more)
            assert (status, problem["code"]) == (503, "unavailable")
            assert "max_connections" in problem["hint"]
    finally:
        for connection in held:
            connection.close()


def test_connections_leave_files_to_the_rest_of_the_service() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert open_connections(10**9) <= max(16, files // 2)
    assert open_connections(20) == min(20, max(16, files // 2))


def test_a_client_that_leaves_ends_the_decoding_of_its_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding, left = threading.Event(), threading.Event()
    account_of = record_routes.account_of

    def held_account(limit: int, reservation: Reservation) -> Account:
        account, calls = account_of(limit, reservation), count(1)

        def hold(size: int) -> None:
            account(size)
            if next(calls) == 2:  # the body has been read: from here on it is decoded
                decoding.set()
                assert left.wait(PATIENCE)

        return hold

    monkeypatch.setattr(record_routes, "account_of", held_account)
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (id BIGINT)")
        service = Service(lake, port=0)
        url = service.start()
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            body = b'{"id": 1}\n' * 5000
            with opened(url) as connection:
                connection.sendall(request("POST", "/api/v1/topics/t/records", len(body)) + body)
                assert decoding.wait(PATIENCE)
            connections = service._server.server_state.connections
            while any(each.cycle is not None and each.cycle.disconnected is False for each in connections):
                http.get("/health", headers={"Connection": "close"})
            http.get("/health")
            left.set()
            budget = service.app.state.headwater.budget
            while budget.held:
                http.get("/health")
        service.stop()
        assert lake.sql("SELECT count(*) AS n FROM t").rows() == [{"n": 0}]


def test_hosts_are_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_ALLOWED_HOSTS", "lake.internal, other.internal")
    with headwater.init(tmp_path / "lake") as lake:
        assert lake.settings.allowed_hosts == ("lake.internal", "other.internal")
        service = Service(lake, "0.0.0.0", 0)
        with httpx.Client(base_url=service.start(), timeout=PATIENCE, trust_env=False) as http:
            for host, status in (("lake.internal", 200), ("127.0.0.1", 200), ("192.0.2.1", 200), ("evil.example", 421)):
                found = http.get("/health", headers={"Host": host})
                assert found.status_code == status, host
            assert found.json()["code"] == "host_not_allowed"
        service.stop()


def test_references_in_the_description_can_be_resolved(url: str) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        description = http.get("/openapi.json").json()
    for reference in references(description):
        assert reference.startswith("#/")
        found: Any = description
        for step in reference.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]


def references(value: Any) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key == "$ref":
            yield item
        else:
            yield from references(item)
