"""SHOW PARQUET and RECOMMEND on every surface: SQL, Python, HTTP, RemoteLake and the command line say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.unit.storage.committed import commit_rows

import headwater
from headwater.cli.main import main
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import Corrupt, InvalidOption, TopicNotFound
from headwater.sql.parse import parse
from headwater.storage.parquet_stats import live_files
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import local_path

STATEMENTS = ("SHOW PARQUET STATS OF t", "SHOW PARQUET STATS OF t WITHOUT DISTINCT", "SHOW PARQUET SCHEMA OF t")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with headwater.init(tmp_path_factory.mktemp("lake")) as lake:
        lake.sql("CREATE TOPIC t (id BIGINT, who STRING, path STRING, mark STRING) WITH (row_group_rows = 1000)")
        lake.sql("CREATE TOPIC empty (id BIGINT)")
        lake.sql("CREATE TOPIC altered (id BIGINT, who STRING, path STRING, mark STRING) WITH (row_group_rows = 1000)")
        ids = [n * 7919 % 5003 for n in range(5003)]
        rows = pa.table(
            {
                "id": ids,
                "who": [f"w{n % 7}" for n in ids],
                "path": [f"/a/{n // 9:09}/{n % 9}" for n in range(5003)],
                "mark": [sha256(str(n).encode()).hexdigest() for n in ids],
            }
        )
        commit_rows(lake, "t", rows)
        commit_rows(lake, "altered", rows)
        for number in range(6):
            lake.sql(f"SELECT who FROM t WHERE id = {number}").rows()
        yield lake


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def run(lake: Lake, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["-C", str(lake.paths.root), *words]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_service_answers_as_the_lake_does(lake: Lake, remote: RemoteLake, text: str) -> None:
    ours, theirs = lake.sql(text), remote.execute(parse(text))
    assert ours.arrow() == theirs.arrow() and plain(ours.info) == plain(theirs.info)
    assert ours.arrow().num_rows == 6


def test_statistics_and_schema(lake: Lake, http: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    stats = lake.topic("t").parquet_stats()
    assert (
        plain(stats)
        == http.get("/topics/t/parquet/stats").json()
        == json.loads(run(lake, capsys, "parquet", "stats", "t", "--json"))
    )
    assert (stats["rows"], stats["row_groups"], stats["columns"][1]["distinct"]) == (5003, 6, 7)
    shown = run(lake, capsys, "parquet", "stats", "t")
    assert "5,003" in shown and "1 (below 75% of 128.0 MB)" in shown and "delta" in shown
    schema = lake.topic("t").parquet_schema()
    assert (
        plain(schema)
        == http.get("/topics/t/parquet/schema").json()
        == json.loads(run(lake, capsys, "parquet", "schema", "t", "--json"))
    )
    assert "newest of 1 file: " in run(lake, capsys, "parquet", "schema", "t")
    assert main(["-C", str(lake.paths.root), "parquet", "stats", "empty"]) == 0
    assert "no committed files yet" in capsys.readouterr().err


def test_recommendations(
    lake: Lake, http: httpx.Client, remote: RemoteLake, capsys: pytest.CaptureFixture[str]
) -> None:
    about = lake.topic("t").recommend(sample_rows=5000)
    kinds = {(each["kind"], tuple(each["columns"])): each for each in about["recommendations"]}
    assert kinds["bloom_filter", ("id",)]["statement"] == "ALTER TOPIC t SET (bloom_columns = 'id=0.01')"
    assert ("encoding", ("path",)) in kinds and about["queries"] == 6 and not about["applied"]
    for other in (
        http.get("/topics/t/parquet/recommendations", params={"sample_rows": 5000}).json(),
        plain(remote.execute(parse("RECOMMEND FOR t SAMPLE 5000 ROWS")).info),
        json.loads(run(lake, capsys, "parquet", "recommend", "t", "--sample-rows", "5000", "--json")),
    ):
        found = {(each["kind"], tuple(each["columns"])) for each in other["recommendations"]}
        assert {("bloom_filter", ("id",)), ("encoding", ("path",))} <= found
    shown = run(lake, capsys, "parquet", "recommend", "t")
    assert "bloom filter id: none → false positives 0.01" in shown and "queries read " in shown
    assert run(lake, capsys, "parquet", "recommend", "empty") == "nothing to recommend\n"


def test_applying_alters_the_topic(lake: Lake, http: httpx.Client) -> None:
    answer = http.post("/topics/altered/parquet/recommendations").json()
    assert answer["applied"] and answer["statement"].startswith("ALTER TOPIC altered SET (")
    options = lake.topic("altered").describe()["options"]
    assert "path=delta_strings" in options["encoding_columns"]
    assert any("OPTIMIZE altered FULL" in notice for notice in answer["notices"])
    again = lake.sql("RECOMMEND FOR altered APPLY").info
    assert not {"encoding"} & {each["kind"] for each in again["recommendations"]}


def test_compact_is_optimize(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    (step,) = json.loads(run(lake, capsys, "parquet", "compact", "t", "--full", "--dry-run", "--json"))["steps"]
    told = lake.sql("OPTIMIZE t FULL DRY RUN").info["steps"][0]
    assert (step["step"], step["outcome"], step["table"]) == ("compact", "planned", told["table"])


def test_what_is_wrong_is_told(lake: Lake, http: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("SHOW PARQUET STATS OF tt", "SHOW PARQUET SCHEMA OF tt", "RECOMMEND FOR tt"):
        with pytest.raises(TopicNotFound):
            lake.sql(text)
    for path in ("stats", "schema", "recommendations"):
        assert http.get(f"/topics/tt/parquet/{path}").json()["code"] == "topic_not_found"
    assert http.get("/topics/t/parquet/recommendations", params={"sample_rows": 1}).status_code == 400
    with pytest.raises(InvalidOption, match="sample of"):
        lake.topic("t").recommend(sample_rows=1)
    assert main(["--url", "http://127.0.0.1:9", "parquet", "convert", "t", "x.csv"]) == 2
    capsys.readouterr()


def test_a_damaged_file_is_named(lake: Lake, http: httpx.Client) -> None:
    lake.sql("CREATE TOPIC damaged (id BIGINT)")
    topic = commit_rows(lake, "damaged", pa.table({"id": range(1000)}))
    (file,) = (local_path(each.file_path) for each in live_files(topic, ManifestCache()))
    whole = file.read_bytes()
    file.write_bytes(whole[:-50] + b"\0\0" + whole[-48:])
    with pytest.raises(Corrupt, match=file.name):
        lake.sql("SHOW PARQUET STATS OF damaged")
    assert http.get("/topics/damaged/parquet/schema").json()["code"] == "corrupt"
    file.write_bytes(whole)


def test_files_come_in_from_the_command_line(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake.sql("CREATE TOPIC files (id BIGINT, who STRING)")
    (tmp_path / "a.csv").write_text("id,who\n1,a\n2,b\n")
    assert "checked" in run(lake, capsys, "parquet", "convert", "files", str(tmp_path / "a.csv"), "--dry-run")
    done = json.loads(run(lake, capsys, "parquet", "convert", "files", str(tmp_path), "--json"))
    assert done["topic"] == "files" and done["files"][0]["rows"] == 2
    assert "already converted" in run(lake, capsys, "parquet", "convert", "files", str(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("id,who\nx,a\n")
    assert main(["-C", str(lake.paths.root), "parquet", "convert", "files", str(tmp_path / "b.csv")]) == 1
    assert "line 2" in capsys.readouterr().err
