"""ALTER TOPIC on every surface: SQL, Python, HTTP, RemoteLake and the command line say and do the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from headwater.api.serve import Service
from headwater.cli.main import app
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import Conflict, InvalidSchema, InvalidStatement, RecordsRejected
from headwater.sql.statements import ShowSchemas
from headwater.topics.produce import Source

CREATE = "CREATE TOPIC t (id INT NOT NULL, name STRING)"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.init(tmp_path / "lake") as opened:
        opened.sql(CREATE)
        yield opened


@pytest.fixture
def url(lake: Lake) -> Iterator[str]:
    service = Service(lake, port=0)
    yield service.start()
    service.stop()


def columns(lake: Lake) -> list[str]:
    return [field.name for field in lake.topics.load("t").columns.fields]


def test_over_http(lake: Lake, url: str) -> None:
    with httpx.Client(base_url=f"{url}/api/v1", trust_env=False) as http:
        body: dict[str, Any] = {"changes": ["ADD COLUMN a INT, ADD COLUMN b INT", "RENAME COLUMN name TO title"]}
        dry = http.patch("/topics/t", json={**body, "dry_run": True}).raise_for_status().json()
        assert (dry["dry_run"], dry["snapshot"], len(dry["changes"])) == (True, None, 3)
        assert columns(lake) == ["id", "name"]
        done = http.patch("/topics/t", json=body).raise_for_status().json()
        assert done["changes"][2] == {
            "topic": "t",
            "change": "RENAME COLUMN name TO title",
            "effect": 'column "name" is renamed to "title"',
        }
        assert columns(lake) == ["id", "title", "a", "b"]
        schemas = http.get("/topics/t/schemas").raise_for_status().json()["schemas"]
        assert [each["schema"] for each in schemas] == [0, 1]
        assert schemas[1]["changes"] == ["renamed name to title", "added a INT", "added b INT"]
        for wrong, status in (
            ({"changes": []}, 400),
            ({"changes": ["ADD COLUMN a INT"]}, 400),
            ({"changes": ["ADD COLUMN x INT; DROP TOPIC t"]}, 400),
            ({"changes": ["ADD COLUMN x INT -- and", "DROP COLUMN nope"]}, 400),
            ({"alter": "x"}, 400),
        ):
            assert http.patch("/topics/t", json=wrong).status_code == status, wrong
        assert http.patch("/topics/nope", json=body).status_code == 404
        http.post("/topics/t/records", content=b'{"id": 1}\n', headers={"Content-Type": "application/x-ndjson"})
        refused = http.patch("/topics/t", json={"changes": ["ALTER COLUMN a SET NOT NULL"]})
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert columns(lake) == ["id", "title", "a", "b"]


def test_through_the_client(lake: Lake, url: str) -> None:
    with RemoteLake(url) as remote:
        changes = ("ADD COLUMN a STRUCT<x: INT> COMMENT 'it''s' FIRST", "SET (retention = '7 days', dedup_key = 'id')")
        there = remote.alter_topic("t", *changes, dry_run=True)
        here = lake.alter_topic("t", *changes, dry_run=True)
        assert (there.rows(), dict(there.info)) == (here.rows(), dict(here.info))
        remote.alter_topic("t", *changes)
        assert remote.execute(ShowSchemas("t")).rows() == lake.execute(ShowSchemas("t")).rows()
        assert lake.topics.load("t").definition.options.dedup_key == ("id",)
        assert lake.topics.load("t").schema.find_field("a").doc == "it's"
        with pytest.raises(InvalidSchema, match="exists already"):
            remote.alter_topic("t", "ADD COLUMN a INT")
        with pytest.raises(InvalidStatement):
            remote.alter_topic("t")


def test_records_bring_columns_through_the_service(lake: Lake, url: str) -> None:
    lake.topic("t").alter("SET (evolution = 'merge')")
    with RemoteLake(url) as remote:
        remote.append("t", [b'{"id": 1, "tags": ["a"], "nothing": null}\n'], "ndjson", Source("test"))
        remote.append("t", [b"id,score\n2,1.5\n"], "csv", Source("test"))
        with pytest.raises(RecordsRejected, match="cannot become a column"):
            remote.append("t", [b'{"id": 3, "Bad": 1}\n'], "ndjson", Source("test"))
        assert columns(lake) == ["id", "name", "tags", "score"]
        assert lake.sql("SELECT tags, score FROM t ORDER BY id").rows() == [
            {"tags": ["a"], "score": None},
            {"tags": None, "score": 1.5},
        ]


def run(lake: Lake, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["-C", str(lake.paths.root), *words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_on_the_command_line(lake: Lake) -> None:
    said = run(lake, "topic", "alter", "t", "ADD COLUMN a INT", "ALTER COLUMN id TYPE BIGINT", "--dry-run")
    assert said.splitlines() == ['would be done: column "a" is added', 'would be done: column "id" gets a wider type']
    assert columns(lake) == ["id", "name"]
    done = json.loads(run(lake, "topic", "alter", "t", "ADD COLUMN a INT, ALTER COLUMN id TYPE BIGINT", "--json"))
    assert [each["effect"] for each in done["changes"]] == ['column "a" is added', 'column "id" gets a wider type']
    assert columns(lake) == ["id", "name", "a"]
    assert "nothing to do" in run(lake, "topic", "alter", "t", "ADD COLUMN IF NOT EXISTS a INT")
    assert "* id is BIGINT instead of INT" in run(lake, "topic", "schemas", "t")
    assert json.loads(run(lake, "topic", "schemas", "t", "--json"))[1]["current"] is True
    lake.topic("t").append([{"id": 1}])
    with pytest.raises(Conflict):
        lake.topic("t").alter("ALTER COLUMN a SET NOT NULL")
