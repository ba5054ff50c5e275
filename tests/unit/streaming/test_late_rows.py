"""Late records are found in the files of a batch, and told as rows of a topic."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import TimestamptzType

from headwater.catalog.view_layout import Layout
from headwater.engine import Lake
from headwater.storage.scan import ManifestCache
from headwater.streaming.checkpoint import Batch
from headwater.streaming.late_rows import Late, LateFinder
from headwater.streaming.late_topics import corrections_definition, corrections_table, late_definition, late_table
from headwater.streaming.lateness import LateRule
from headwater.streaming.offsets import Place, head_of
from headwater.streaming.plan import Continuous, Input, Outline
from headwater.streaming.reading import TopicFiles
from headwater.types import StreamDefinition, StreamOptions, TableName, ViewDefinition

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = LateRule("window", 60_000_000, 60_000_000)


def put(lake: Lake, *seconds: float | None) -> Place:
    """A commit of records that happened so many seconds after ZERO, each told by that."""
    zone = lake.topics.load("t").columns.find_type("at") == TimestamptzType()
    moments = [None if each is None else ZERO + timedelta(seconds=each) for each in seconds]
    texts = [at and (at if zone else at.replace(tzinfo=None)).isoformat() for at in moments]
    lake.topic("t").append([{"n": n, "at": at} for n, at in enumerate(texts)])
    lake.flush("t")
    return head_of(lake.topics.load("t"))


def finder(lake: Lake, folder: Path, rule: LateRule = MINUTE, event_time: str = "at") -> LateFinder:
    stream = StreamDefinition("t", options=StreamOptions(timestamp_field=event_time))
    inputs = (Input("t", TableName.topic("t"), ("n", "at"), stream),)
    outline = Outline(ViewDefinition("v", "SELECT 1"), "SELECT 1", "SELECT 1", (), inputs)
    read = TopicFiles(lake.topics, {}, ManifestCache(), folder)
    return LateFinder(Continuous(outline, "append", Layout("rows", ()), grouped=False), {"t": rule}, lake.topics, read)


def found(each: LateFinder, start: Place, end: Place, watermark: float) -> list[Late]:
    below = int((ZERO + timedelta(seconds=watermark)).timestamp() * 1000)
    return each.find(Batch(1, {"t": start}, {"t": end}, below, below))


@pytest.mark.parametrize("of", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_records_of_windows_that_have_ended(lake: Lake, tmp_path: Path, of: str) -> None:
    lake.sql(f"CREATE TOPIC t (n BIGINT, at {of})")
    first = put(lake, 0, 1, 2)
    second = put(lake, 130, 59.999, 60, None, 30)
    third = put(lake, 200, 201)
    find = finder(lake, tmp_path / "cut")
    (late,) = found(find, first, third, 60)
    assert late.topic == "t"
    assert late.rows.column("_offset").to_pylist() == [4, 7], "in the order in which they came"
    assert late.rows.column("n").to_pylist() == [1, 4]
    assert [each - int(ZERO.timestamp() * 1e6) for each in late.moments.tolist()] == [59_999_000, 30_000_000]
    assert found(find, first, third, 59.999) == [], "the window is open up to its last moment"
    (more,) = found(find, first, second, 121)
    assert more.rows.num_rows == 3
    assert found(find, second, third, 150) == []
    assert find.find(Batch(1, {"t": first}, {"t": third}, 0, 0)) == [], "there is no watermark yet"


def test_only_topics_that_have_a_rule_are_looked_at(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC t (n BIGINT, at TIMESTAMP)")
    place = put(lake, 0)
    assert finder(lake, tmp_path).find(Batch(1, {}, {"other": place}, 10**15, 10**15)) == []


def test_a_column_is_found_under_the_name_that_it_has_now(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC t (n BIGINT, moment TIMESTAMP)")
    lake.topic("t").append([{"n": 0, "moment": (ZERO + timedelta(seconds=5)).isoformat()}])
    lake.flush("t")
    lake.sql("ALTER TOPIC t RENAME COLUMN moment TO at")
    end = put(lake, 70)
    (late,) = found(finder(lake, tmp_path), Place("t"), end, 65)
    assert late.rows.column("_offset").to_pylist() == [0]
    (late,) = found(finder(lake, tmp_path, LateRule("time")), Place("t"), end, 70)
    assert late.rows.column("_offset").to_pylist() == [0, 1]


def test_by_the_time_of_arrival(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC t (n BIGINT, at TIMESTAMP)")
    end = put(lake, 0, 1)
    (late,) = found(finder(lake, tmp_path, event_time="_timestamp"), Place("t"), end, 10**9)
    assert late.rows.num_rows == 2


def test_a_late_record_is_told_whole(lake: Lake) -> None:
    """Of every type; what is told fits the topic that it goes to."""
    lake.sql(
        "CREATE TOPIC t (n BIGINT, d DECIMAL(9,2), b BINARY, day DATE, tags ARRAY<STRING>, "
        "s STRUCT<a: INT, at: TIMESTAMP>, m MAP<STRING, DOUBLE>, f BOOLEAN)"
    )
    record: dict[str, Any] = {
        "n": 1, "d": "1.50", "b": "AQI=", "day": "2026-01-02", "tags": ["x", None], "f": True,
        "s": {"a": 1, "at": "2026-01-01T00:00:00Z"}, "m": {"k": 0.5},
    }  # fmt: skip
    lake.topic("t").append([record])
    lake.flush("t")
    rows = lake.topics.load("t").table.scan().to_arrow()
    moments = pa.array([1_000_000]).to_numpy()
    told = late_table(Late("t", rows, moments), 7, 2_000)
    definition = late_definition("v")
    assert told.column_names == [field.name for field in definition.schema.fields]
    row = told.to_pylist()[0]
    assert (row["topic"], row["record_offset"], row["epoch"]) == ("t", 0, 7)
    assert (row["event_time"].timestamp(), row["watermark"].timestamp()) == (1, 2)
    said = json.loads(row["record"])
    assert list(said) == ["n", "d", "b", "day", "tags", "s", "m", "f"], "without what the lake added"
    assert (said["n"], said["d"], said["day"], said["tags"]) == (1, "1.50", "2026-01-02", ["x", None])


def test_a_correction_says_what_went_and_what_came() -> None:
    changed = pa.table({"m": [1, 1], "n": [5, 4], "__weight": pa.array([1, -1], pa.int32())})
    told = corrections_table(changed, 3)
    definition = corrections_definition("v", [("m", "bigint"), ("n", "bigint")])
    assert told.column_names == [field.name for field in definition.schema.fields]
    assert sorted((row["epoch"], row["op"], row["m"], row["n"]) for row in told.to_pylist()) == [
        (3, "+", 1, 5),
        (3, "-", 1, 4),
    ]
