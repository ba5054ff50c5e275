"""No JSON answer has a 64-bit id as a number: readers that keep 53 bits would ask for a snapshot that there is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headwater.cli.formats import json_objects
from headwater.cli.main import main
from headwater.engine import Lake

pytestmark = pytest.mark.spark

TOPIC, VIEW = "ji_orders", "ji_totals"
SAFE = 2**53
STATEMENTS = (
    f"SHOW SNAPSHOTS OF {TOPIC}",
    f"SHOW SNAPSHOTS OF {VIEW}",
    f"SHOW TAGS OF {TOPIC}",
    f"SHOW SCHEMAS OF {TOPIC}",
    f"DESCRIBE TOPIC {TOPIC}",
    f"DESCRIBE MATERIALIZED VIEW {VIEW}",
    f"SHOW REFRESHES FOR {VIEW}",
    f"EXPLAIN REFRESH MATERIALIZED VIEW {VIEW}",
    f"EXPLAIN SELECT * FROM {VIEW}",
    f"EXPLAIN SELECT city FROM {TOPIC} CHANGES BETWEEN TAG 'ji_first' AND 'main'",
    f"DIFF TOPIC {TOPIC} BETWEEN TAG 'ji_first' AND 'main'",
    f"ROLLBACK TOPIC {TOPIC} TO TAG 'ji_first' DRY RUN",
    f"VERIFY MATERIALIZED VIEW {VIEW}",
    f"REFRESH MATERIALIZED VIEW {VIEW}",
    f"COMPACT MATERIALIZED VIEW {VIEW}",
    f"DELETE FROM {TOPIC} WHERE amount = 2",
    f"OPTIMIZE TOPIC {TOPIC}",
    f"MAINTAIN {TOPIC}",
    f"SHOW MAINTENANCE OF {TOPIC}",
    f"FLUSH {TOPIC}",
    f"SHOW PARQUET STATS OF {TOPIC}",
)
COMMANDS = (
    f"topic describe {TOPIC}",
    f"snapshots list {TOPIC}",
    f"snapshots refs {TOPIC}",
    f"snapshots diff {TOPIC} ji_first main",
    f"snapshots rollback {TOPIC} ji_first --dry-run",
    f"mv describe {VIEW}",
    f"mv history {VIEW}",
    f"mv refresh {VIEW}",
    f"mv explain {VIEW}",
    f"flush {TOPIC}",
    f"parquet stats {TOPIC}",
    f"maintain {TOPIC}",
)


@pytest.fixture(scope="module", autouse=True)
def tables(lake: Lake) -> Iterator[None]:
    lake.sql(f"CREATE TOPIC {TOPIC} (city STRING, amount BIGINT)")
    add(lake, "rome", 1)
    lake.sql(f"CREATE TAG ji_first ON {TOPIC}")
    lake.sql(
        f"CREATE MATERIALIZED VIEW {VIEW} WITH (refresh = 'manual') AS "
        f"SELECT city, sum(amount) AS total FROM {TOPIC} GROUP BY city"
    )
    add(lake, "oslo", 2)
    yield
    lake.sql(f"DROP MATERIALIZED VIEW {VIEW}")
    lake.sql(f"DROP TOPIC {TOPIC}")


def add(lake: Lake, city: str, amount: int) -> None:
    lake.topic(TOPIC).append([{"city": city, "amount": amount}])
    lake.flush(TOPIC)


def numbers(document: Any, path: str = "") -> Iterator[str]:
    """Where the document has a number that a double does not hold."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from numbers(value, f"{path}.{key}")
    elif isinstance(document, list):
        for value in document:
            yield from numbers(value, f"{path}[]")
    elif isinstance(document, int) and abs(document) > SAFE:
        yield f"{path}: {document}"


def ids(document: Any) -> list[str]:
    """The snapshot ids that the document names."""
    if isinstance(document, dict):
        own = [value for key, value in document.items() if key in ("snapshot", "parent") and value is not None]
        return [*own, *(each for value in document.values() for each in ids(value))]
    return [each for value in document for each in ids(value)] if isinstance(document, list) else []


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements(lake: Lake, statement: str) -> None:
    result = lake.sql(statement)
    document = json.loads(json.dumps({"rows": json_objects(result), "info": result.info}, default=str))
    assert list(numbers(document)) == []
    assert all(isinstance(each, str) for each in ids(document))


def test_every_path_that_can_be_read(http: httpx.Client) -> None:
    paths = http.get(http.base_url.join("/openapi.json")).json()["paths"]
    seen = 0
    for path, methods in paths.items():
        filled = path.replace("{topic}", TOPIC).replace("{view}", VIEW).replace("{name}", TOPIC)
        if "get" not in methods or "{" in filled or filled.endswith(("/tail", "/records", "/changes")):
            continue
        answer = http.get(filled.removeprefix("/api/v1"), params={"from": "ji_first", "to": "main"})
        if answer.status_code == 200 and "json" in answer.headers["content-type"]:
            document = answer.json()
            assert list(numbers(document)) == [], path
            assert all(isinstance(each, str) for each in ids(document)), path
            seen += bool(ids(document))
    assert seen >= 5


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
@pytest.mark.parametrize("path", [f"topics/{TOPIC}", f"views/{VIEW}"])
def test_rows_that_are_streamed(http: httpx.Client, path: str, accept: str) -> None:
    answer = http.get(f"/{path}/tail?from=earliest&follow=false", headers={"Accept": accept})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    documents = [json.loads(line) for line in lines if line.startswith("{")]
    assert documents
    assert list(numbers(documents)) == []


def test_rows_of_changes(lake: Lake) -> None:
    rows = lake.sql(f"SELECT * FROM {TOPIC} CHANGES BETWEEN TAG 'ji_first' AND 'main'")
    assert list(numbers(json.loads(json.dumps(json_objects(rows), default=str)))) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(url: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", url, *command.split(), "--json"]) == 0
    said = capsys.readouterr().out
    for line in said.splitlines():
        assert list(numbers(json.loads(line))) == []


def test_an_id_is_accepted_as_text_and_as_a_number(lake: Lake, http: httpx.Client) -> None:
    snapshot = http.get(f"/topics/{TOPIC}/snapshots").json()["snapshots"][-1]["snapshot"]
    assert isinstance(snapshot, str)
    count = "SELECT count(*) AS n FROM {topic} VERSION AS OF {at}"
    texts = [count.format(topic=TOPIC, at=at) for at in (snapshot, f"'{snapshot}'")]
    assert [lake.sql(text).rows() for text in texts] == [[{"n": 1}], [{"n": 1}]]
    assert lake.topic(TOPIC).read_at(snapshot).rows() == lake.topic(TOPIC).read_at(int(snapshot)).rows()
    for version in (snapshot, int(snapshot)):
        body = {"version": version, "dry_run": True}
        assert http.post(f"/topics/{TOPIC}/snapshots/rollback", json=body).json()["to"] == snapshot
    base = lake.topic(TOPIC).rollback(snapshot, dry_run=True)["from"]
    assert lake.topic(TOPIC).rollback(snapshot, dry_run=True, base=base)["to"] == snapshot
