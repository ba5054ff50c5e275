"""No request may keep the event loop busy: everybody else is served by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater
from headwater.api.problems import MAX_FAULTS
from headwater.api.serve import Service
from headwater.sql import tokens

BAD = "SELECT '"
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/query", {"sql": BAD}),
    ("POST", "/topics", {"name": "x", "columns": [{"name": "a", "type": BAD}]}),
    ("PATCH", "/topics/t", {"changes": [BAD]}),
    ("POST", "/topics/t/delete", {"where": BAD}),
    ("POST", "/topics/t/update", {"set": {"n": BAD}, "where": "true"}),
    ("POST", "/views", {"name": "v", "query": BAD}),
    ("POST", "/explain/view", {"name": "v", "query": BAD}),
    ("POST", "/streams", {"name": "s", "columns": [{"name": "a", "type": BAD}], "options": {}}),
]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with headwater.init(Path(tmp_path_factory.mktemp("loop")) / "lake") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        service = Service(lake, port=0)
        with httpx.Client(base_url=service.start() + "/api/v1", timeout=60, trust_env=False) as client:
            yield client
        service.stop()


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=[f"{each[0]} {each[1]}" for each in REQUESTS])
def test_statements_are_parsed_in_threads(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: dict[str, Any]
) -> None:
    """A text of a megabyte takes a while to read, even if it is refused."""
    threads: set[str] = set()
    check = tokens._check_characters

    def watched(text: str) -> None:
        threads.add(threading.current_thread().name)
        check(text)

    monkeypatch.setattr(tokens, "_check_characters", watched)
    answer = http.request(method, path, json=body)
    assert answer.status_code == 400, answer.text
    assert threads and "headwater-http" not in threads


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/maintain", {"only": ["x"] * 100_000}),
        ("/query", {f"k{number}": 1 for number in range(50_000)}),
        ("/topics/t/update", {"set": {f"k{number}": 1 for number in range(50_000)}, "where": "true"}),
    ],
    ids=["list", "members", "map"],
)
def test_the_answer_to_a_bad_request_is_small(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text[:200]
    assert 1 <= len(answer.json()["errors"]) <= MAX_FAULTS
