"""Tails over HTTP without Spark: forms, marks, limits, clients that go or do not read, and the service's end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api import tails
from headwater.api.serve import Service
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import Backpressure, InvalidStatement, TopicNotFound
from headwater.serving.tailing import TopicTail

Event = dict[str, str]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.init(tmp_path / "lake", max_tails=3) as opened:
        opened.sql("CREATE TOPIC orders (n BIGINT NOT NULL, city STRING)")
        yield opened


@pytest.fixture
def service(lake: Lake) -> Iterator[Service]:
    service = Service(lake, port=0)
    service.start()
    yield service
    service.stop()


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{service.url}/api/v1", timeout=30, trust_env=False) as client:
        yield client


def put(lake: Lake, *numbers: int, city: str = "x") -> None:
    lake.topic("orders").append([{"n": number, "city": city} for number in numbers])


def running(service: Service) -> int:
    return int(service.app.state.headwater.tails.running)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def events(http: httpx.Client, after: str | None = None, **params: Any) -> Iterator[Iterator[Event]]:
    """The events of a tail, as a browser reads them; one without data only moves the last id."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after is not None else {})
    with http.stream("GET", "/topics/orders/tail", params=params, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield parsed(response.iter_lines())


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    event: Event = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            event[name] = value
        else:
            yield event
            event = {}


def rows(found: Iterator[Event]) -> Iterator[tuple[str, int]]:
    return ((event["id"], json.loads(event["data"])["n"]) for event in found if event.get("event") == "row")


def test_events_come_as_records_are_acknowledged(http: httpx.Client, lake: Lake) -> None:
    put(lake, 1, 2)
    with events(http) as found:
        assert next(found) == {"retry": "1000", "id": "1"}
        put(lake, 3)
        assert next(found) == {"id": "2", "event": "row", "data": next(iter_lines(http, 2))}
        put(lake, 4, 5)
        assert list(islice(rows(found), 2)) == [("3", 4), ("4", 5)]


def iter_lines(http: httpx.Client, start: int) -> Iterator[str]:
    headers = {"Accept": "application/x-ndjson"}
    yield from http.get("/topics/orders/tail", params={"from": start, "follow": False}, headers=headers).text.split(
        "\n"
    )


def test_the_last_id_goes_on_without_gap_or_repeat(http: httpx.Client, lake: Lake) -> None:
    with events(http) as found:
        assert next(found)["id"] == "-1"  # nothing was received, and yet nothing will be lost
    put(lake, *range(2500))
    with events(http, after="-1", **{"from": "latest"}) as found:
        assert list(islice(rows(found), 1300)) == [(str(n), n) for n in range(1300)]
    with events(http, after="1299", follow=False) as found:
        assert list(rows(found)) == [(str(n), n) for n in range(1300, 2500)]
    with events(http, after="2499", follow=False) as found:
        assert [event.get("event") for event in found] == [None, "end"]


def test_what_is_wanted_and_no_more(http: httpx.Client, lake: Lake) -> None:
    put(lake, *range(100))
    with events(http, **{"from": "earliest"}, where="n % 10 = 3", columns="n", limit=4) as found:
        read = list(found)
    assert [event["data"] for event in read[1:-1]] == ['{"n":3}', '{"n":13}', '{"n":23}', '{"n":33}']
    assert read[-1]["event"] == "end"
    assert list(iter_lines(http, 98)) == [
        *(line for line in iter_lines(http, 98) if '"n":98' in line),
        *iter_lines(http, 99),
    ]


def test_silence_is_told(http: httpx.Client, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "HEARTBEAT", 0.2)
    with events(http, where="n > 10") as found:
        assert next(found)["id"] == "-1"
        put(lake, 1, 2, 3)
        alive = next(event for event in found if event["id"] == "2")  # rows that are not wanted move the mark, too
        assert alive == {"": "alive", "id": "2"}


def test_mistakes_are_problems(http: httpx.Client) -> None:
    for path, params, code in (
        ("/topics/nope/tail", {}, "topic_not_found"),
        ("/views/orders/tail", {}, "view_not_found"),
        ("/topics/orders/tail", {"from": "soon"}, "invalid_input"),
        ("/topics/orders/tail", {"where": "nope > 1"}, "invalid_statement"),
        ("/topics/orders/tail", {"columns": "nope"}, "invalid_input"),
        ("/topics/orders/tail", {"limit": 0}, "invalid_input"),
    ):
        answer = http.get(path, params=params)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == code, answer.text
    refused = http.get("/topics/orders/tail", headers={"Accept": "image/png"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert http.get("/topics/orders/tail", headers={"Last-Event-ID": "x"}).status_code == 400


def test_an_error_on_the_way_is_the_last_event(http: httpx.Client, lake: Lake) -> None:
    with events(http) as found:
        next(found)
        lake.sql("DROP TOPIC orders")
        problem = next(found)
    assert problem["event"] == "problem"
    assert json.loads(problem["data"])["code"] == "topic_not_found"


def test_so_many_and_no_more(service: Service, http: httpx.Client, lake: Lake) -> None:
    with RemoteLake(service.url) as remote:
        held = [remote.tail("orders") for _ in range(3)]
        refused = http.get("/topics/orders/tail")
        assert (refused.status_code, refused.json()["code"]) == (429, "backpressure")
        assert int(refused.headers["retry-after"]) > 0
        with pytest.raises(Backpressure, match="too many tails run"):
            remote.tail("orders")
        held[0].close()
        wait_for(lambda: running(service) == 2)
        with pytest.raises(InvalidStatement):
            remote.tail("orders", where="nope > 1")
        assert running(service) == 2
        for tail in held:
            tail.close()
    wait_for(lambda: running(service) == 0)


def test_clients_that_go_leave_nothing_behind(service: Service, http: httpx.Client, lake: Lake) -> None:
    put(lake, *range(3000))
    before = None
    for place in range(20):
        with events(http, **{"from": "earliest"}) as found:
            list(islice(rows(found), 1 + 100 * place))
        wait_for(lambda: running(service) == 0)
        if place == 4:
            before = threading.active_count()
    assert before is not None
    assert threading.active_count() < before + 8  # the pool of the service may grow by a few, not by one for each of 15
    assert not lake.tailing.news._listeners


def test_a_client_that_does_not_read_makes_its_tail_wait(
    service: Service, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(lake, *range(40_000), city="c" * 1000)
    sent = 0
    poll = TopicTail.poll

    def counted(self: TopicTail) -> Any:
        nonlocal sent
        page = poll(self)
        sent += page.rows.nbytes if page is not None else 0
        return page

    monkeypatch.setattr(TopicTail, "poll", counted)
    host, port = service.url.removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /api/v1/topics/orders/tail?from=earliest HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        before = 0
        while sent == 0 or sent != before:  # until it does not go on,
            before = sent
            time.sleep(1)
        assert sent < 20_000_000  # and has not read everything
        assert running(service) == 1
    wait_for(lambda: running(service) == 0)


def test_a_client_that_never_reads_is_let_go(service: Service, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol: Any = service._server.config.http_protocol_class
    monkeypatch.setattr(protocol, "limits", replace(protocol.limits, send_seconds=0.5))
    put(lake, *range(40_000), city="c" * 1000)
    host, port = service.url.removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /api/v1/topics/orders/tail?from=earliest HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        wait_for(lambda: running(service) == 1)
        wait_for(lambda: running(service) == 0)
        received = 0
        with suppress(ConnectionResetError):
            while piece := slow.recv(65_536):
                received += len(piece)
        assert received < 20_000_000


def test_a_client_that_reads_slowly_is_not(service: Service, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol: Any = service._server.config.http_protocol_class
    monkeypatch.setattr(protocol, "limits", replace(protocol.limits, send_seconds=2))
    put(lake, *range(4_000), city="c" * 1000)
    with httpx.stream("GET", f"{service.url}/api/v1/topics/orders/tail?from=earliest", trust_env=False) as response:
        read = 0
        for piece in response.iter_bytes(200_000):
            read += len(piece)
            time.sleep(0.15)
            if read > 4_000_000:
                break
    assert read > 4_000_000


def test_the_service_s_end_is_a_clean_one(service: Service, http: httpx.Client, lake: Lake) -> None:
    with events(http) as found:
        next(found)
        put(lake, 1)
        assert next(found)["id"] == "0"
        stopping = threading.Thread(target=service.stop)
        started = time.monotonic()
        stopping.start()
        assert list(found) == []  # no error, and no word that the tail itself had ended
        stopping.join()
    assert time.monotonic() - started < 40


def test_a_remote_tail_is_the_lake_s(service: Service, lake: Lake) -> None:
    put(lake, *range(500))
    with RemoteLake(service.url) as remote:
        for asked in (
            {"start": "earliest"},
            {"start": 490, "columns": ["city", "n"]},
            {"start": "1 h", "where": "n > 480 AND city = 'x'", "limit": 7},
            {"after": "450"},
        ):
            ours, theirs = (list(each.tail("orders", follow=False, **asked)) for each in (lake, remote))
            assert ours == theirs
            assert ours
        tail = remote.tail("orders", "earliest", limit=3)
        assert [row["n"] for row in tail] == [0, 1, 2]
        assert [row["n"] for row in remote.tail("orders", after=tail.at, limit=2)] == [3, 4]
        assert next(remote.tail("orders", 499).batches()).schema == next(lake.tail("orders", 499).batches()).schema
        with pytest.raises(TopicNotFound, match='topic "oders" does not exist'):
            remote.tail("oders")


def test_a_remote_tail_outlives_the_service(service: Service, lake: Lake) -> None:
    found: list[int] = []
    with RemoteLake(service.url) as remote:
        tail = remote.tail("orders")
        reader = threading.Thread(target=lambda: found.extend(row["n"] for row in tail))
        reader.start()
        put(lake, *range(5))
        wait_for(lambda: len(found) == 5)
        service.stop()
        put(lake, *range(5, 10))
        again = Service(lake, port=int(service.url.rpartition(":")[2]))
        again.start()
        try:
            put(lake, *range(10, 15))
            wait_for(lambda: len(found) == 15)
            tail.close()
            reader.join(60)
        finally:
            again.stop()
    assert found == list(range(15))
    assert not reader.is_alive()
