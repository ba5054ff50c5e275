"""A flush over HTTP tells of each commit when it is done, and of an error wherever it happens.

Spark's part of a flush runs in this process: the plan, the files, the commit and the service are the real ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater
from headwater.api.serve import Service
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import StorageBusy, TopicNotFound
from headwater.topics import ingest
from headwater.topics.ingest import Ingested

NDJSON = "application/x-ndjson"
WAIT = 20.0


class Gate:
    """Lets the files of a topic be written when the test says so, or fail."""

    def __init__(self) -> None:
        self.open: dict[str, threading.Event] = {}
        self.failing: dict[str, Exception] = {}

    def write(self, _: object, log: Path, into: Any, entries: Any) -> Any:
        if into.table in self.open:
            assert self.open[into.table].wait(WAIT)
        if into.table in self.failing:
            raise self.failing[into.table]
        return ingest.write_entries(log, into, entries)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    found = Gate()
    monkeypatch.setattr(ingest, "write_files", found.write)
    return found


@pytest.fixture
def lake(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with headwater.init(tmp_path / "lake") as opened:
        monkeypatch.setattr(opened._ingester, "_spark", lambda: None)
        for name in ("a", "b", "c"):
            opened.sql(f"CREATE TOPIC {name} (n INT) WITH (rotation_timeout = '1 hour')")
            opened.topic(name).append([{"n": n} for n in range(10)])
        yield opened


@pytest.fixture
def url(lake: Lake) -> Iterator[str]:
    service = Service(lake, port=0)
    yield service.start()
    service.stop()


def test_each_commit_is_told_before_the_next_is_made(url: str, gate: Gate) -> None:
    gate.open = {"b": threading.Event(), "c": threading.Event()}
    told: list[str] = []

    def progress(done: Ingested) -> None:
        told.append(done.topic)
        following = {"a": "b", "b": "c"}.get(done.topic)
        if following:
            gate.open[following].set()  # nothing else opens it: a commit told late would never be followed

    with RemoteLake(url) as remote:
        committed = remote.flush(progress=progress)
    assert told == ["a", "b", "c"] == [done.topic for done in committed]
    assert [len(done.offsets) for done in committed] == [10, 10, 10]


def test_an_error_after_the_first_commit_is_raised_as_itself(url: str, gate: Gate) -> None:
    gate.failing["b"] = StorageBusy("disk is full", hint="Make room.")
    told: list[str] = []
    with RemoteLake(url) as remote, pytest.raises(StorageBusy, match="disk is full") as failed:
        remote.flush(progress=lambda done: told.append(done.topic))
    assert told == ["a"]
    assert failed.value.hint == "Make room."


def test_an_error_before_the_first_commit_is_the_answer(url: str, gate: Gate) -> None:
    gate.failing["a"] = StorageBusy("disk is full")
    answer = httpx.post(f"{url}/api/v1/flush", headers={"Accept": NDJSON}, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_busy")
    with RemoteLake(url) as remote, pytest.raises(TopicNotFound):
        remote.flush("none")


def test_a_bug_is_told_as_one_and_not_shown(url: str, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    gate.failing["b"] = ZeroDivisionError("secret")
    answer = httpx.post(f"{url}/api/v1/flush", headers={"Accept": NDJSON}, trust_env=False)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line.get("topic") for line in lines] == ["a", None]
    assert lines[-1]["problem"]["code"] == "internal"
    assert "secret" not in answer.text
    assert lines[-1]["problem"]["incident"] in caplog.text


def test_without_asking_for_lines_the_answer_is_one_document(url: str) -> None:
    answer = httpx.post(f"{url}/api/v1/topics/a/flush", trust_env=False)
    assert answer.headers["content-type"] == "application/json"
    assert [(each["topic"], each["offsets"]) for each in answer.json()["commits"]] == [("a", [0, 10])]


def test_a_flush_goes_on_when_its_client_goes_away(url: str, gate: Gate, lake: Lake) -> None:
    gate.open = {"b": threading.Event()}
    with httpx.stream("POST", f"{url}/api/v1/flush", headers={"Accept": NDJSON}, trust_env=False) as answer:
        assert json.loads(next(answer.iter_lines()))["topic"] == "a"
    gate.open["b"].set()
    assert _committed(lake, "c")


def _committed(lake: Lake, topic: str) -> bool:
    for _ in range(200):
        if lake.topics.load(topic).committed == 10:
            return True
        threading.Event().wait(0.1)
    return False


def test_a_topic_dropped_meanwhile_does_not_end_the_flush_of_all(lake: Lake, gate: Gate) -> None:
    def drop(done: Ingested) -> None:
        if done.topic == "a":
            lake.sql("DROP TOPIC b")

    assert [done.topic for done in lake.flush(progress=drop)] == ["a", "c"]
