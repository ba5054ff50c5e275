"""Streams as the catalog keeps them, and the statements that make, change and drop them. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.catalog.streams import P_STREAMS, Streams, streams_of
from headwater.engine import Lake
from headwater.errors import (
    Corrupt,
    HeadwaterError,
    InvalidOption,
    InvalidSchema,
    InvalidStatement,
    StreamExists,
    StreamNotFound,
    TopicExists,
    TopicNotFound,
)
from headwater.types import StreamDefinition, StreamOptions


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.init(tmp_path / "lake") as opened:
        opened.sql("CREATE TOPIC clicks (id BIGINT NOT NULL, page STRING, at TIMESTAMP)")
        yield opened


@pytest.fixture
def streams(lake: Lake) -> Streams:
    return Streams(lake.topics)


def said(lake: Lake, text: str) -> str:
    return str(lake.sql(text).rows()[0]["status"])


def test_a_stream_makes_its_topic(lake: Lake, streams: Streams) -> None:
    made = lake.sql(
        "CREATE STREAM orders (id BIGINT NOT NULL, at TIMESTAMP) PARTITIONED BY (days(at)) "
        "WITH (timestamp_field = 'at', max_out_of_orderness = '5 seconds', batch_size = 7)"
    )
    assert made.notices[0] == 'Topic "orders" was created.'
    topic = lake.topics.load("orders")
    assert [(each.name, each.required) for each in topic.columns.fields] == [("id", True), ("at", False)]
    assert topic.definition.options.batch_size == 7
    assert [each.column for each in topic.definition.partitioning] == ["at"]
    found = streams.load("orders")
    assert (found.name, found.topic.name, found.definition.event_time) == ("orders", "orders", "at")
    assert found.definition.options.max_out_of_orderness == 5
    assert [each.name for each in lake.streams.list()] == ["orders"]
    described = lake.sql("DESCRIBE STREAM orders").rows()
    assert described, "it is told"
    assert [row["stream"] for row in lake.sql("SHOW STREAMS").rows()] == ["orders"]


def test_a_stream_is_a_view_of_a_topic_that_exists(lake: Lake, streams: Streams) -> None:
    lake.sql("CREATE STREAM clicks WITH (timestamp_field = 'at')")
    lake.sql("CREATE STREAM pages (page STRING, at TIMESTAMP) WITH (topic = 'clicks', timestamp_field = 'at')")
    assert [(each.name, each.topic.name) for each in streams.all()] == [("clicks", "clicks"), ("pages", "clicks")]
    assert sorted(each.name for each in streams_of(lake.topics.load("clicks"))) == ["clicks", "pages"]
    assert [each["name"] for each in lake.streams.describe("pages")["columns"]] == ["page", "at"]
    assert [each["name"] for each in lake.streams.describe("clicks")["columns"]] == ["id", "page", "at"]
    lake.sql("DROP TOPIC clicks")
    assert streams.all() == [], "it goes with its topic"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("CREATE STREAM clicks (colour STRING)", InvalidSchema, 'topic "clicks" has no column "colour"'),
        ("CREATE STREAM clicks (id STRING)", InvalidSchema, 'column "id" of topic "clicks" is of type'),
        ("CREATE STREAM clicks WITH (timestamp_field = 'when')", HeadwaterError, '"when"'),
        ("CREATE STREAM clicks WITH (timestamp_field = 'page')", HeadwaterError, "page"),
        ("CREATE STREAM clicks WITH (batch_size = 5)", InvalidOption, "batch_size"),
        ("CREATE STREAM clicks (id BIGINT) WITH (batch_size = 5)", InvalidStatement, 'topic "clicks", which exists'),
        ("CREATE STREAM clicks WITH (max_out_of_orderness = '-1 second')", InvalidOption, "max_out_of_orderness"),
        ("CREATE STREAM s WITH (topic = 'nothing')", TopicNotFound, 'topic "nothing" does not exist'),
        ("CREATE STREAM s", TopicNotFound, 'topic "s" does not exist'),
        ("CREATE STREAM clicks (id BIGINT) WITH (topic = 'other')", TopicExists, '"clicks" is a topic'),
        ("CREATE STREAM s__late (id BIGINT)", HeadwaterError, "s__late"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    lake: Lake, streams: Streams, text: str, error: type[HeadwaterError], said: str
) -> None:
    with pytest.raises(error, match=said):
        lake.sql(text)
    assert streams.all() == []
    assert lake.topics.names() == ["clicks"]


def test_a_name_is_taken_once(lake: Lake, streams: Streams) -> None:
    lake.sql("CREATE STREAM clicks WITH (timestamp_field = 'at')")
    with pytest.raises(StreamExists, match='stream "clicks" already exists'):
        lake.sql("CREATE STREAM clicks")
    assert "exists already" in said(lake, "CREATE STREAM IF NOT EXISTS clicks")
    assert streams.load("clicks").definition.event_time == "at", "and nothing has changed"
    lake.sql("CREATE OR REPLACE STREAM clicks WITH (max_out_of_orderness = '1 minute')")
    assert streams.load("clicks").definition.options == StreamOptions(max_out_of_orderness=60)
    lake.sql("CREATE TOPIC other (id BIGINT)")
    lake.sql("CREATE STREAM s WITH (topic = 'clicks')")
    with pytest.raises(StreamExists, match='stream "s" is one of topic "clicks"'):
        lake.sql("CREATE OR REPLACE STREAM s WITH (topic = 'other')")
    with pytest.raises(StreamExists):
        streams.put(StreamDefinition("s", options=StreamOptions(topic="clicks")), new=True)


def test_a_stream_is_altered_and_dropped(lake: Lake, streams: Streams) -> None:
    lake.sql("CREATE STREAM clicks WITH (timestamp_field = 'at')")
    lake.sql("ALTER STREAM clicks SET (max_out_of_orderness = '2 seconds', description = 'of people')")
    options = streams.load("clicks").definition.options
    assert (options.timestamp_field, options.max_out_of_orderness, options.description) == ("at", 2, "of people")
    lake.sql("DROP STREAM clicks")
    assert streams.find("clicks") is None
    assert lake.topics.exists("clicks"), "its topic stays"
    with pytest.raises(StreamNotFound, match='stream "clicks" does not exist'):
        lake.sql("DROP STREAM clicks")
    assert "does not exist" in said(lake, "DROP STREAM IF EXISTS clicks")
    for text in ("ALTER STREAM clicks SET (description = 'x')", "DESCRIBE STREAM clicks", "START STREAM clicks"):
        with pytest.raises(StreamNotFound):
            lake.sql(text)


def test_a_near_name_is_suggested(lake: Lake, streams: Streams) -> None:
    lake.sql("CREATE STREAM clicks")
    with pytest.raises(StreamNotFound) as missed:
        streams.load("click")
    assert missed.value.hint == 'Did you mean "clicks"?'
    lake.sql("CREATE TOPIC plain (n BIGINT)")
    with pytest.raises(StreamNotFound) as missed:
        streams.load("plain")
    assert str(missed.value.hint).startswith('"plain" is a topic: CREATE STREAM plain WITH')


def test_what_has_no_connector_does_not_run(lake: Lake) -> None:
    lake.sql("CREATE STREAM clicks")
    with pytest.raises(InvalidStatement, match='"clicks" does not run'):
        lake.sql("STOP STREAM clicks")
    assert lake.sql("SHOW STREAM STATUS").rows() == []


def test_a_definition_that_cannot_be_read_is_told(lake: Lake, streams: Streams) -> None:
    lake.sql("CREATE STREAM clicks")
    for text in ("{", json.dumps({"name": "clicks", "options": {"colour": "red"}})):
        table = lake.topics.tables.load_for_commit(lake.topics.load("clicks").table_name)
        with table.transaction() as transaction:
            transaction.set_properties({P_STREAMS + "clicks": text})
        with pytest.raises(Corrupt, match='stream "clicks" of topic "clicks" cannot be read'):
            streams.load("clicks")
