"""Streams over HTTP, through a remote lake and on the command line, without Spark: definitions and their ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api.serve import Service
from headwater.cli.main import main
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import InvalidStatement, StreamNotFound
from headwater.sql.parse import parse

ORDERS = {
    "name": "orders",
    "columns": [{"name": "id", "type": "BIGINT"}, {"name": "at", "type": "TIMESTAMP", "comment": "when"}],
    "options": {"timestamp_field": "at", "max_out_of_orderness": "10 seconds"},
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.init(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def url(lake: Lake) -> Iterator[str]:
    service = Service(lake, port=0)
    yield service.start()
    service.stop()


def test_a_stream_over_http_from_creation_to_its_end(url: str, lake: Lake) -> None:
    with httpx.Client(base_url=f"{url}/api/v1", timeout=30, trust_env=False) as http:
        made = http.post("/streams", json=ORDERS)
        assert (made.status_code, made.headers["location"]) == (201, "/api/v1/streams/orders")
        assert made.json()["status"] == 'stream "orders" created'
        assert made.json()["notices"] == ['Topic "orders" was created.']
        assert lake.topic("orders").describe()["columns"][1]["comment"] == "when"
        again = http.post("/streams", json=ORDERS, params={"if_not_exists": True})
        assert (again.status_code, again.json()["status"]) == (200, 'stream "orders" exists already')
        assert http.post("/streams", json=ORDERS).json()["code"] == "stream_exists"
        (listed,) = http.get("/streams").json()["streams"]
        assert (listed["stream"], listed["event_time"], listed["connector"]) == ("orders", "at", "none")
        about = http.get("/streams/orders").json()
        assert about == made.json()["stream"]
        assert [column["type"] for column in about["columns"]] == ["BIGINT", "TIMESTAMP"]
        changed = http.patch("/streams/orders", json={"options": {"max_out_of_orderness": "1 min"}}).json()
        assert changed["stream"]["options"]["max_out_of_orderness"] == "1 minute"
        assert http.get("/status/streams").json() == {"streams": []}
        assert http.get("/streams/orders/status").status_code == 400
        for verb in ("start", "stop", "restart"):
            assert http.post(f"/streams/nope/{verb}").json()["code"] == "stream_not_found"
        refused = http.post("/query", json={"sql": "STOP STREAM orders"}).json()
        assert refused["hint"] == "Use POST /api/v1/streams/{stream}/stop."
        assert http.delete("/streams/orders").json() == {"status": 'stream "orders" dropped'}
        assert http.get("/streams/orders").status_code == 404
        assert lake.topics.exists("orders")
        for wrong, code in (
            ({**ORDERS, "name": "Orders"}, "invalid_name"),
            ({**ORDERS, "options": {"timestamp_field": "id"}}, "invalid_option"),
            ({"name": "x", "sizes": 1}, "invalid_schema"),
            ({"name": "lost"}, "topic_not_found"),
        ):
            assert http.post("/streams", json=wrong).json()["code"] == code


def test_statements_answer_as_the_lake_does(url: str, lake: Lake) -> None:
    texts = (
        "CREATE STREAM orders (id BIGINT, at TIMESTAMP) WITH (timestamp_field = 'at', compression = 'zstd')",
        "CREATE STREAM late WITH (topic = 'orders', max_out_of_orderness = '1 hour')",
        "SHOW STREAMS",
        "DESCRIBE STREAM late",
        "ALTER STREAM late SET (description = 'those who wait')",
        "SHOW STREAM STATUS",
        "DROP STREAM IF EXISTS never",
    )
    with RemoteLake(url) as remote:
        for text in texts:
            theirs = remote.execute(parse(text))
            ours = theirs if text.startswith("CREATE") else lake.execute(parse(text))
            assert (theirs.rows(), theirs.notices, dict(theirs.info)) == (ours.rows(), ours.notices, dict(ours.info))
        assert [each.name for each in remote.streams.list()] == ["late", "orders"]
        assert remote.streams.list()[1] == lake.streams.list()[1]
        assert remote.streams.describe("late") == lake.streams.describe("late")
        assert remote.streams.status() == lake.streams.status() == []
        for streams in (remote.streams, lake.streams):
            with pytest.raises(StreamNotFound, match='there is no continuous view or stream "nope"'):
                streams.start("nope")
            with pytest.raises(InvalidStatement, match='"late" does not run'):
                streams.status("late")


def test_the_command_line(url: str, lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["--url", url, "stream", *arguments]) == code, capsys.readouterr()
        return capsys.readouterr()

    columns = "id BIGINT, at TIMESTAMP"
    made = run("create", "orders", columns, "--timestamp-field", "at", "--option", "compression=zstd")
    assert (made.out, made.err) == ('stream "orders" created\n', 'note: Topic "orders" was created.\n')
    run("create", "late", "--topic", "orders", "--max-out-of-orderness", "1 h", "--partition-by", "id", code=1)
    run("create", "late", "--topic", "orders", "--max-out-of-orderness", "1 h")
    assert [each["stream"] for each in json.loads(run("list", "--json").out)] == ["late", "orders"]
    assert "max_out_of_orderness = 1 hour" in run("describe", "late").out
    assert run("alter", "late", "max_out_of_orderness=2 h").out == 'stream "late" altered\n'
    assert json.loads(run("describe", "late", "--json").out)["options"]["max_out_of_orderness"] == "2 hours"
    assert run("status").err == "no continuous views or connectors yet\n"
    assert json.loads(run("status", "--json").out) == []
    assert 'error: "late" does not run' in run("start", "late", code=1).err
    assert run("drop", "late", "--yes").out == 'stream "late" dropped\n'
    assert "add --yes" in run("drop", "orders", code=2).err
    assert run("create", "x", columns, "--replace", "--if-not-exists", code=2).err.endswith("--if-not-exists.\n")
