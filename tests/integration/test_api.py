"""The HTTP API against a real server on a real lake. Nothing here needs Spark, unless it is marked."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import headwater
from headwater.api.serve import Service
from headwater.engine import Lake

NDJSON = {"Content-Type": "application/x-ndjson"}
ARROW = "application/vnd.apache.arrow.stream"
COLUMNS = [{"name": "id", "type": "BIGINT", "nullable": False}, {"name": "v", "type": "DOUBLE"}]
MB = 1024**2

SLOW = "SELECT a.id, b.id FROM slow a JOIN slow b ON a.v < b.v"
"""Streams far more rows than anybody reads."""
SLOW_TOTAL = "SELECT count(*) FROM slow a JOIN slow b ON a.v < b.v"
"""Gives nothing for a long time."""


@contextmanager
def served(path: Path, **settings: Any) -> Iterator[tuple[Lake, httpx.Client]]:
    with headwater.init(path, **settings) as lake:
        service = Service(lake, port=0)
        with httpx.Client(base_url=service.start(), timeout=60, trust_env=False) as http:
            yield lake, http
        service.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, httpx.Client]]:
    with served(tmp_path_factory.mktemp("lake")) as pair:
        http = pair[1]
        create(http, "slow")
        lines = b"".join(b'{"id": %d, "v": %d}\n' % (n, n * 7919 % 100_003) for n in range(100_000))
        append(http, "slow", lines)
        yield pair


@pytest.fixture
def http(shared: tuple[Lake, httpx.Client]) -> httpx.Client:
    return shared[1]


@pytest.fixture
def topic(http: httpx.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "t" + "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[-60:]
    create(http, name)
    yield name
    http.delete(f"/api/v1/topics/{name}", params={"if_exists": True})


def create(http: httpx.Client, name: str, **more: Any) -> httpx.Response:
    return http.post("/api/v1/topics", json={"name": name, "columns": COLUMNS, **more})


def append(http: httpx.Client, topic: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    return http.post(f"/api/v1/topics/{topic}/records", content=body, headers={**NDJSON, **(headers or {})})


def query(http: httpx.Client, sql: str, **more: Any) -> httpx.Response:
    return http.post("/api/v1/query", json={"sql": sql, "engine": "duckdb", **more})


def rows_of(http: httpx.Client, sql: str) -> list[list[Any]]:
    rows: list[list[Any]] = query(http, sql).json()["rows"]
    return rows


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert problem["type"] == f"urn:headwater:error:{code}"
    assert problem["title"]
    assert "Traceback" not in response.text
    return problem


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(b'{"id": %d, "v": 0.5}\n' % number for number in range(start, start + count))


# -- topics ---------------------------------------------------------------------------------------------------------


def test_a_topic_from_creation_to_its_end(http: httpx.Client) -> None:
    made = create(http, "orders", partitioned_by=["bucket(4, id)"], options={"description": "what was sold"})
    assert made.status_code == 201
    assert made.headers["location"] == "/api/v1/topics/orders"
    assert made.json()["status"] == 'topic "orders" created'
    assert made.json()["partitioned_by"] == ["bucket(4, id)"]
    again = http.post("/api/v1/topics", params={"if_not_exists": True}, json={"name": "orders", "columns": COLUMNS})
    assert (again.status_code, again.json()["status"]) == (200, 'topic "orders" exists already')
    about = http.get("/api/v1/topics/orders").json()
    assert [column["name"] for column in about["columns"]] == ["id", "v", "_offset", "_timestamp"]
    listed = {each["topic"]: each for each in http.get("/api/v1/topics").json()["topics"]}
    assert listed["orders"]["description"] == "what was sold"
    assert http.delete("/api/v1/topics/orders").json() == {"status": 'topic "orders" dropped'}
    assert http.delete("/api/v1/topics/orders", params={"if_exists": True}).status_code == 200
    is_problem(http.get("/api/v1/topics/orders"), 404, "topic_not_found")


def test_creation_carries_notices(http: httpx.Client) -> None:
    columns = [{"name": "at", "type": "TIME"}]
    made = http.post("/api/v1/topics", json={"name": "with_time", "columns": columns})
    assert "TIME" in made.json()["notices"][0]
    http.delete("/api/v1/topics/with_time")


# -- records --------------------------------------------------------------------------------------------------------


def arrow_body(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


TWO = [{"id": 1, "v": 0.5}, {"id": 2, "v": None}]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/x-ndjson", b'{"id": 1, "v": 0.5}\n{"id": 2}'),
        ("application/jsonl; charset=utf-8", b'{"id": 1, "v": 0.5}\n{"id": 2}\n'),
        ("application/json", json.dumps(TWO).encode()),
        ("text/csv", b"id,v\n1,0.5\n2,\n"),
        (ARROW, arrow_body(pa.Table.from_pylist(TWO))),
    ],
)
@pytest.mark.parametrize("coding", [None, "gzip", "zstd"])
def test_formats_and_codings(
    http: httpx.Client, topic: str, content_type: str, body: bytes, coding: str | None
) -> None:
    packed = {"gzip": gzip.compress, "zstd": lambda data: pa.compress(data, "zstd", asbytes=True)}
    sent = packed[coding](body) if coding else body
    headers = {"Content-Type": content_type, **({"Content-Encoding": coding} if coding else {})}
    answer = append(http, topic, sent, headers)
    assert answer.json() == {
        "topic": topic, "offsets": [0, 2], "rows": 2, "duplicates": 0, "dead": 0, "repeated": False,
    }  # fmt: skip
    assert rows_of(http, f"SELECT id, v, _offset FROM {topic} ORDER BY id") == [[1, 0.5, 0], [2, None, 1]]


def test_one_object_is_a_record_too(http: httpx.Client, topic: str) -> None:
    answer = http.post(f"/api/v1/topics/{topic}/records", json={"id": 1})
    assert answer.json()["rows"] == 1


def test_a_streamed_body_is_stored_whole_and_in_order(http: httpx.Client, topic: str) -> None:
    whole = lines(400_000)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(whole), 100_003):
            yield whole[start : start + 100_003]

    answer = append(http, topic, pieces())
    assert answer.json()["offsets"] == [0, 400_000]
    assert rows_of(http, f"SELECT count(*), count(DISTINCT id), max(abs(id - _offset)) FROM {topic}") == [
        [400_000, 400_000, 0]
    ]


def test_a_bad_row_at_the_end_of_a_large_body_leaves_nothing(http: httpx.Client, topic: str) -> None:
    problem = is_problem(append(http, topic, lines(300_000) + b'{"id": "x"}\n'), 422, "records_rejected")
    assert problem["rejects"] == [{"row": 300_000, "field": "id", "reason": 'expected long, got string "x"'}]
    assert rows_of(http, f"SELECT count(*) FROM {topic}") == [[0]]
    assert append(http, topic, lines(1)).json()["offsets"] == [0, 1]


def test_a_body_that_breaks_off_leaves_nothing(http: httpx.Client, topic: str) -> None:
    host, port = http.base_url.host, http.base_url.port
    with socket.create_connection((host, port)) as raw:
        raw.sendall(
            f"POST /api/v1/topics/{topic}/records HTTP/1.1\r\nHost: {host}\r\n"
            "Content-Type: application/x-ndjson\r\nContent-Length: 5000000\r\n\r\n".encode()
            + lines(100_000)
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and http.get("/health").status_code != 200:
        time.sleep(0.05)
    time.sleep(0.3)
    assert rows_of(http, f"SELECT count(*) FROM {topic}") == [[0]]


def test_dead_letters(http: httpx.Client) -> None:
    create(http, "lenient", options={"on_invalid": "dead_letter"})
    answer = append(http, "lenient", b'{"id": 1}\n{"id": "x"}\n{"id": 2}\n', {"Idempotency-Key": "d"})
    assert (answer.json()["rows"], answer.json()["dead"]) == (2, 1)
    assert rows_of(http, "SELECT origin, producer, row FROM lenient__dead") == [["http", "http:d", 1]]
    http.delete("/api/v1/topics/lenient")


@pytest.mark.parametrize(
    "identity", [{"Idempotency-Key": "k-1"}, {"Headwater-Producer": "p", "Headwater-Sequence": "3"}]
)
def test_a_retry_is_stored_once(http: httpx.Client, topic: str, identity: dict[str, str]) -> None:
    body = lines(200_000)
    first = append(http, topic, body, identity).json()
    # Cut differently by the network, the request is still the same one.
    again = append(http, topic, (body[at : at + 77_777] for at in range(0, len(body), 77_777)), identity).json()
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert again["offsets"] == first["offsets"] == [0, 200_000]
    is_problem(append(http, topic, lines(1, 5), identity), 409, "idempotency_mismatch")
    assert rows_of(http, f"SELECT count(*) FROM {topic}") == [[200_000]]


def test_concurrent_producers_get_dense_offsets(http: httpx.Client, topic: str) -> None:
    def produce(worker: int) -> list[list[int]]:
        with httpx.Client(base_url=http.base_url, trust_env=False, timeout=60) as own:
            return [append(own, topic, lines(10, worker * 1000 + n * 10)).json()["offsets"] for n in range(25)]

    with ThreadPoolExecutor(8) as pool:
        ranges = sorted(pair for pairs in pool.map(produce, range(8)) for pair in pairs)
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == 8 * 25 * 10
    assert rows_of(http, f"SELECT count(*), count(DISTINCT id) FROM {topic}") == [[2000, 2000]]


def test_bodies_above_the_limit_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with served(tmp_path, max_body_bytes=MB, max_record_bytes=2048) as (_, http):
        create(http, "t")
        large = lines(100_000)
        assert len(large) > 2 * MB
        is_problem(append(http, "t", large), 413, "body_too_large")
        is_problem(append(http, "t", iter([large])), 413, "body_too_large")
        is_problem(append(http, "t", gzip.compress(large), {"Content-Encoding": "gzip"}), 413, "body_too_large")
        long = b'{"id": 1, "x": "' + b"y" * 3000 + b'"}\n'
        is_problem(append(http, "t", long), 413, "body_too_large")
        assert append(http, "t", lines(3)).json()["offsets"] == [0, 3]


def test_a_client_that_asks_first_is_refused_before_it_sends(tmp_path: Path) -> None:
    with served(tmp_path, max_body_bytes=MB) as (_, http):
        create(http, "t")
        with socket.create_connection((http.base_url.host, http.base_url.port), timeout=10) as raw:
            raw.sendall(
                b"POST /api/v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                b"Content-Type: application/x-ndjson\r\nContent-Length: 99000000\r\n\r\n"
            )
            assert raw.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_full_log_is_429_with_retry_after(tmp_path: Path) -> None:
    with served(tmp_path, max_tail_bytes=MB) as (lake, http):
        create(http, "t")
        assert append(http, "t", lines(50_000)).status_code == 200
        full = append(http, "t", lines(50_000))
        is_problem(full, 429, "backpressure")
        assert int(full.headers["retry-after"]) >= 1
        assert lake.metrics.registry.get_sample_value("headwater_backpressure_total") == 1


def test_too_many_bytes_in_flight_are_429(tmp_path: Path) -> None:
    with headwater.init(tmp_path, memory_limit=256 * MB, max_body_bytes=128 * MB) as lake:
        service = Service(lake, port=0)
        with httpx.Client(base_url=service.start(), timeout=60, trust_env=False) as http:
            create(http, "t")
            with socket.create_connection((http.base_url.host, http.base_url.port), timeout=10) as raw:
                raw.sendall(
                    b"POST /api/v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/x-ndjson\r\nContent-Length: 67000000\r\n\r\n"
                )
                assert until(lambda: service.app.state.headwater.budget.held == 67_000_000)
                busy = append(http, "t", lines(10_000))
                is_problem(busy, 429, "backpressure")
                assert busy.headers["retry-after"] == "1"
                is_problem(append(http, "t", iter([lines(10_000)])), 429, "backpressure")
            assert until(lambda: service.app.state.headwater.budget.held == 0)
            assert append(http, "t", lines(10_000)).status_code == 200
        service.stop()


# -- queries --------------------------------------------------------------------------------------------------------


def test_pages_are_the_whole_result(http: httpx.Client) -> None:
    page = query(http, "SELECT id FROM slow ORDER BY id", limit=7_000).json()
    assert (page["status"], page["row_count"], page["offset"]) == ("finished", 100_000, 0)
    assert page["columns"] == [{"name": "id", "type": "int64"}]
    assert page["plan"]["engine"] == "duckdb"
    found = list(page["rows"])
    while page["next"]:
        page = http.get(page["next"]).json()
        found += page["rows"]
    assert found == [[number] for number in range(100_000)]
    beyond = http.get(f"/api/v1/query/{page['id']}", params={"offset": 100_000}).json()
    assert (beyond["rows"], beyond["next"]) == ([], None)
    listed = {each["id"]: each for each in http.get("/api/v1/queries").json()["queries"]}
    assert listed[page["id"]]["status"] == "finished"
    assert http.delete(f"/api/v1/query/{page['id']}").status_code == 200
    is_problem(http.get(f"/api/v1/query/{page['id']}"), 404, "query_not_found")


def test_values_are_written_as_documented(http: httpx.Client) -> None:
    columns = [
        ("d", "DECIMAL(10, 2)"), ("t", "TIMESTAMP"), ("n", "TIMESTAMP_NTZ"), ("day", "DATE"), ("b", "BINARY"),
        ("u", "UUID"), ("f", "DOUBLE"), ("l", "ARRAY<INT>"), ("big", "BIGINT"),
    ]  # fmt: skip
    made = http.post(
        "/api/v1/topics", json={"name": "kinds", "columns": [{"name": name, "type": of} for name, of in columns]}
    )
    assert made.status_code == 201, made.text
    record = {
        "d": "9.90", "t": "2024-05-01T10:00:00+02:00", "n": "2024-05-01T10:00:00", "day": "2024-05-01", "b": "/w==",
        "u": "00000000-0000-0000-0000-000000000001", "f": "NaN", "l": [1, None], "big": 2**62,
    }  # fmt: skip
    body = json.dumps(record).replace('"NaN"', "NaN").encode()
    assert append(http, "kinds", body).status_code == 200
    names = ", ".join(name for name, _ in columns)
    answer = query(http, f"SELECT {names} FROM kinds", engine="duckdb")
    expected = {**record, "t": "2024-05-01T08:00:00Z"}
    assert answer.json()["rows"] == [[expected[name] for name, _ in columns]]
    http.delete("/api/v1/topics/kinds")


def test_explain_and_tail(http: httpx.Client) -> None:
    explained = query(http, "EXPLAIN SELECT count(*) FROM slow").json()
    assert explained["columns"] == [{"name": "plan", "type": "string"}]
    assert explained["rows"][0][0].startswith("engine: ")
    assert query(http, "SELECT count(*) FROM slow", tail=False).json()["rows"] == [[0]]


@pytest.mark.parametrize("accept", ["application/x-ndjson", ARROW])
def test_results_stream(http: httpx.Client, accept: str) -> None:
    sql = "SELECT id, v FROM slow ORDER BY id"
    with http.stream("POST", "/api/v1/query", json={"sql": sql}, headers={"Accept": accept}) as answer:
        assert answer.headers["content-type"] == accept
        body = answer.read()
    if accept == ARROW:
        found = pa.ipc.open_stream(body).read_all().to_pylist()
    else:
        found = [json.loads(line) for line in body.splitlines()]
    assert len(found) == 100_000
    assert found[5] == {"id": 5, "v": 5 * 7919 % 100_003}
    streamed = answer.headers["headwater-query"]
    is_problem(http.get(f"/api/v1/query/{streamed}"), 404, "query_not_found")


@pytest.mark.parametrize("accept", ["application/x-ndjson", ARROW])
def test_an_empty_result_streams_too(http: httpx.Client, accept: str) -> None:
    answer = http.post("/api/v1/query", json={"sql": "SELECT id FROM slow WHERE id < 0"}, headers={"Accept": accept})
    assert answer.status_code == 200
    if accept == ARROW:
        assert pa.ipc.open_stream(answer.content).read_all().schema.names == ["id"]
    else:
        assert answer.content == b""


def status_of(http: httpx.Client, id: str) -> str:
    return {each["id"]: each["status"] for each in http.get("/api/v1/queries").json()["queries"]}[id]


def until(reached: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.05)
    return reached()


def test_a_client_that_goes_away_stops_its_stream(http: httpx.Client) -> None:
    with http.stream("POST", "/api/v1/query", json={"sql": SLOW}, headers={"Accept": ARROW}) as answer:
        received = answer.iter_raw()  # kept: when it goes, the connection goes
        next(received)
        running = answer.headers["headwater-query"]
        assert status_of(http, running) == "running"
    assert until(lambda: status_of(http, running) == "cancelled")


def test_a_stream_that_is_cancelled_does_not_look_complete(http: httpx.Client) -> None:
    with http.stream("POST", "/api/v1/query", json={"sql": SLOW}, headers={"Accept": "application/x-ndjson"}) as answer:
        received = answer.iter_raw()
        next(received)
        running = answer.headers["headwater-query"]
        assert http.delete(f"/api/v1/query/{running}").status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in received:
                pass
    is_problem(http.get(f"/api/v1/query/{running}"), 409, "query_cancelled")


def test_a_slow_query_answers_with_an_id_and_stops_when_asked(http: httpx.Client) -> None:
    pending = query(http, SLOW_TOTAL, wait=0.1, timeout=60)
    assert pending.status_code == 202
    id = pending.json()["id"]
    assert pending.headers["location"] == f"/api/v1/query/{id}"
    assert http.get(f"/api/v1/query/{id}").status_code == 202
    started = time.monotonic()
    assert http.delete(f"/api/v1/query/{id}").json()["status"] == "cancelled"
    assert time.monotonic() - started < 40
    is_problem(http.get(f"/api/v1/query/{id}"), 409, "query_cancelled")


def test_a_client_that_goes_away_stops_what_it_waits_for(http: httpx.Client) -> None:
    id = "gone-away-0123456789"
    with pytest.raises(httpx.ReadTimeout):
        http.post("/api/v1/query", json={"sql": SLOW_TOTAL, "id": id, "wait": 60, "timeout": 60}, timeout=0.5)
    assert until(lambda: status_of(http, id) == "cancelled")


def test_a_query_that_takes_too_long_times_out(http: httpx.Client) -> None:
    is_problem(query(http, SLOW_TOTAL, timeout=0.3), 408, "query_timeout")


def test_a_result_that_is_too_large_is_refused(http: httpx.Client) -> None:
    is_problem(query(http, "SELECT id FROM slow", max_rows=99_999), 413, "result_too_large")
    assert query(http, "SELECT id FROM slow", max_rows=100_000).status_code == 200


def test_queries_beyond_the_queue_are_429(tmp_path: Path) -> None:
    with served(tmp_path, query_concurrency=1) as (_, http):
        create(http, "slow")
        append(http, "slow", lines(1) * 30_000)
        sql = "SELECT a.id FROM slow a JOIN slow b ON a.id = b.id"
        answers = [query(http, sql, wait=0, timeout=60) for _ in range(10)]
        assert [answer.status_code for answer in answers] == [202] * 9 + [429]
        is_problem(answers[-1], 429, "backpressure")
        assert answers[-1].headers["retry-after"]
        for answer in answers[8::-1]:  # those that wait first
            http.delete(f"/api/v1/query/{answer.json()['id']}")
        assert until(lambda: query(http, "SELECT 1").status_code == 200)


# -- errors and safety ------------------------------------------------------------------------------------------------

RECORDS = "/api/v1/topics/slow/records"
MISTAKES: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/nothing", {}, 404, "route_not_found"),
    ("GET", "/api/v1/nothing", {}, 404, "route_not_found"),
    ("PUT", "/api/v1/topics", {}, 405, "method_not_allowed"),
    ("GET", "/api/v1/topics/none", {}, 404, "topic_not_found"),
    ("GET", "/api/v1/topics/No-Name", {}, 400, "invalid_name"),
    ("DELETE", "/api/v1/topics/none", {}, 404, "topic_not_found"),
    ("POST", "/api/v1/topics/none/flush", {}, 404, "topic_not_found"),
    ("POST", "/api/v1/topics", {"content": b"{"}, 400, "invalid_input"),
    ("POST", "/api/v1/topics", {"json": []}, 400, "invalid_input"),
    ("POST", "/api/v1/topics", {"json": {"name": "x"}}, 400, "invalid_schema"),
    ("POST", "/api/v1/topics", {"json": {"name": "X y", "columns": COLUMNS}}, 400, "invalid_name"),
    ("POST", "/api/v1/topics", {"json": {"name": "x", "columns": COLUMNS, "option": {}}}, 400, "invalid_schema"),
    ("POST", "/api/v1/topics", {"json": {"name": "x", "columns": COLUMNS, "options": {"a": 1}}}, 400, "invalid_option"),
    ("POST", "/api/v1/topics", {"json": {"name": "slow", "columns": COLUMNS}}, 409, "topic_exists"),
    ("POST", "/api/v1/topics?if_not_exists=perhaps", {"json": {}}, 400, "invalid_input"),
    ("POST", RECORDS, {"content": b"{}"}, 415, "unsupported_media_type"),
    ("POST", RECORDS, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "unsupported_media_type"),
    ("POST", RECORDS, {"json": {}, "headers": {"Content-Encoding": "br"}}, 415, "unsupported_media_type"),
    ("POST", RECORDS, {"json": {}, "headers": {"Content-Encoding": "gzip"}}, 400, "invalid_input"),
    ("POST", RECORDS, {"json": {"id": 1, "nope": 2}}, 422, "records_rejected"),
    ("POST", RECORDS, {"content": b"", "headers": NDJSON}, 400, "invalid_input"),
    ("POST", RECORDS, {"content": b"[", "headers": {"Content-Type": "application/json"}}, 422, "records_rejected"),
    ("POST", RECORDS, {"content": b"x", "headers": {"Content-Type": ARROW}}, 422, "records_rejected"),
    ("POST", RECORDS, {"content": b"x\n1\n", "headers": {"Content-Type": "text/csv"}}, 422, "records_rejected"),
    ("POST", RECORDS, {"json": {"id": 1}, "headers": {"Headwater-Producer": "p"}}, 400, "invalid_input"),
    ("POST", RECORDS, {"json": {"id": 1}, "headers": {"Headwater-Sequence": "-1"}}, 400, "invalid_input"),
    ("POST", RECORDS, {"json": {"id": 1}, "headers": {"Idempotency-Key": "k" * 300}}, 400, "invalid_input"),
    ("POST", "/api/v1/topics/none/records", {"json": {}}, 404, "topic_not_found"),
    ("POST", "/api/v1/query", {"json": {"sql": "SELEC 1"}}, 400, "invalid_statement"),
    ("POST", "/api/v1/query", {"json": {"sql": ""}}, 400, "invalid_input"),
    ("POST", "/api/v1/query", {"json": {"sql": "SELECT 1", "engine": "mysql"}}, 400, "invalid_input"),
    ("POST", "/api/v1/query", {"json": {"sql": "SELECT 1", "more": 1}}, 400, "invalid_input"),
    ("POST", "/api/v1/query", {"json": {"sql": "DROP TOPIC slow"}}, 403, "statement_not_allowed"),
    ("POST", "/api/v1/query", {"json": {"sql": "INSERT INTO slow VALUES (1)"}}, 403, "statement_not_allowed"),
    ("POST", "/api/v1/query", {"json": {"sql": "SELECT x(1)", "engine": "duckdb"}}, 400, "query_failed"),
    ("POST", "/api/v1/query", {"json": {"sql": "SELECT 1"}, "headers": {"Accept": "text/html"}}, 406, "not_acceptable"),
    ("GET", "/api/v1/query/none", {}, 404, "query_not_found"),
    ("GET", "/api/v1/query/none?limit=0", {}, 400, "invalid_input"),
    ("DELETE", "/api/v1/query/none", {}, 404, "query_not_found"),
    ("GET", "/health", {"headers": {"Host": "evil.example"}}, 421, "host_not_allowed"),
    ("POST", "/api/v1/flush", {"headers": {"Origin": "http://evil.example"}}, 403, "request_refused"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    MISTAKES,
    ids=[f"{each[0]} {each[4]} {n}" for n, each in enumerate(MISTAKES)],
)
def test_every_error_is_a_problem(
    http: httpx.Client, method: str, path: str, sent: dict[str, Any], status: int, code: str
) -> None:
    answer = http.request(method, path, **sent)
    is_problem(answer, status, code)
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("accept", ["application/json", ARROW])
def test_an_unknown_topic_is_found_out_without_spark(tmp_path: Path, accept: str) -> None:
    with served(tmp_path) as (lake, http):
        answer = http.post("/api/v1/query", json={"sql": "SELECT * FROM none"}, headers={"Accept": accept})
        is_problem(answer, 404, "topic_not_found")
        assert lake.spark_state == "not started"


def test_a_bug_is_a_problem_with_an_id_that_the_log_has(
    shared: tuple[Lake, httpx.Client], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake, http = shared

    def broken() -> bytes:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(lake.metrics, "exposition", broken)
    answer = http.get("/metrics")
    problem = is_problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert problem["incident"] in caplog.text


# -- service ----------------------------------------------------------------------------------------------------------


def test_what_a_supervisor_asks(tmp_path: Path) -> None:
    with served(tmp_path) as (_, http):
        _check_what_a_supervisor_asks(http)


def _check_what_a_supervisor_asks(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "alive"}
    assert http.get("/ready").json() == {
        "status": "ready",
        "catalog": "ok",
        "log": "ok",
        "disk": "ok",
        "spark": "not started",
        "query_worker": "off",
    }
    assert http.get("/api/v1/version").json() == {"version": headwater.__version__, "api": "v1"}
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "headwater_produced_records_total" in metrics.text
    assert http.get("/openapi.json").json()["openapi"].startswith("3.")
    assert http.get("/docs").status_code == 404


@pytest.mark.leaves_damage
def test_a_service_whose_catalog_is_gone_is_not_ready(tmp_path: Path) -> None:
    with served(tmp_path) as (lake, http):
        lake.paths.catalog.write_bytes(b"no database" * 1000)
        answer = http.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["catalog"] != "ok"
        assert answer.json()["status"] == "not ready"


SERVE = """
import sys, headwater
from headwater.api.serve import serve
serve(headwater.open(sys.argv[1]), port=0, on_ready=lambda url: print(url, flush=True))
print("closed", flush=True)
"""


@contextmanager
def in_a_process(path: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    headwater.init(path).close()
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with httpx.Client(base_url=process.stdout.readline().strip(), timeout=300, trust_env=False) as http:
            yield process, http
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish_and_closes_the_lake(tmp_path: Path, number: signal.Signals) -> None:
    with in_a_process(tmp_path / "lake") as (process, http):
        create(http, "t")
        whole = lines(20_000)

        def pieces() -> Iterator[bytes]:
            yield whole[: len(whole) // 2]
            os.kill(process.pid, number)
            time.sleep(0.8)
            yield whole[len(whole) // 2 :]

        assert append(http, "t", pieces()).json()["rows"] == 20_000
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "closed\n"
    with headwater.open(tmp_path / "lake") as lake:
        assert lake.sql("SELECT count(*) AS n FROM t").rows() == [{"n": 20_000}]


def test_stopping_does_not_wait_for_a_long_stream(tmp_path: Path) -> None:
    with headwater.init(tmp_path) as lake:
        service = Service(lake, port=0)
        with httpx.Client(base_url=service.start(), timeout=60, trust_env=False) as http:
            create(http, "slow")
            append(http, "slow", lines(1) * 30_000)
            sql = "SELECT a.id FROM slow a JOIN slow b ON a.id = b.id"
            with http.stream("POST", "/api/v1/query", json={"sql": sql}, headers={"Accept": ARROW}) as answer:
                received = answer.iter_raw()
                next(received)
                started = time.monotonic()
                service.stop()
                assert time.monotonic() - started < 40


@pytest.mark.spark
def test_flush_commits_what_waits(tmp_path: Path) -> None:
    # In a process of its own, because a process has one Spark session.
    with in_a_process(tmp_path / "lake") as (process, http):
        create(http, "t")
        append(http, "t", lines(1000))
        commits = http.post("/api/v1/topics/t/flush").json()["commits"]
        assert [(each["topic"], each["offsets"]) for each in commits] == [("t", [0, 1000])]
        assert http.post("/api/v1/flush").json() == {"commits": []}
        assert http.get("/ready").json()["spark"] == "ready"
        assert query(http, "SELECT count(*) FROM t", tail=False).json()["rows"] == [[1000]]
        about = http.get("/api/v1/topics/t").json()
        assert (about["tail"], about["committed_offset"]) == (0, 1000)
        process.terminate()
        assert process.wait(60) == 0
