from __future__ import annotations

from dataclasses import fields, replace

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestampType, TimestamptzType

from headwater.errors import HeadwaterError, InvalidInput, InvalidOption, InvalidStatement
from headwater.sql.kafka_texts import split_target
from headwater.sql.option_table import Option
from headwater.sql.options import OPTIONS
from headwater.sql.parse import parse
from headwater.sql.statements import AlterStream, CreateStream
from headwater.sql.stream_definition import change_stream, check_stream_columns, checked_stream, topic_of
from headwater.sql.stream_json import stream_from_dict, stream_to_dict
from headwater.sql.stream_options import STREAM_OPTIONS, check_stream_options, parse_stream_options, stream_option
from headwater.types import Partition, StreamDefinition, StreamOptions

COLUMNS = (
    NestedField(0, "id", StringType(), required=True),
    NestedField(0, "at", TimestamptzType(), required=False),
    NestedField(0, "local", TimestampType(), required=False),
    NestedField(0, "n", LongType(), required=False),
)
KAFKA = {"connector": "kafka", "connection": "local", "kafka_topic": "t"}


def test_the_table_has_every_option_once_and_in_order() -> None:
    assert [each.name for each in STREAM_OPTIONS] == [each.name for each in fields(StreamOptions)]


def test_a_name_is_an_option_of_streams_or_of_topics() -> None:
    shared = {each.name for each in STREAM_OPTIONS} & {each.name for each in OPTIONS}
    assert shared == {"description"}


@pytest.mark.parametrize("each", STREAM_OPTIONS, ids=lambda each: each.name)
def test_every_option_is_documented_and_takes_its_default(each: Option) -> None:
    assert each.doc.endswith(".") and each.taken.endswith(".")
    assert each.read(each.render(each.default)) == each.default
    assert each.read(each.default) == each.default


def test_the_statement_the_value_and_the_json_form_make_equal_definitions() -> None:
    statement = parse(
        "CREATE STREAM s (id STRING NOT NULL, at TIMESTAMP, local TIMESTAMP_NTZ, n BIGINT) COMMENT 'why' "
        "PARTITIONED BY (days(at)) WITH (timestamp_field = at, max_out_of_orderness = '1 min', batch_size = 5)"
    )
    assert isinstance(statement, CreateStream)
    options = {"timestamp_field": "at", "max_out_of_orderness": 60, "description": "why"}
    built = checked_stream("s", COLUMNS, options, [Partition("day", "at")], {"batch_size": "5"})
    assert statement.definition == built
    assert (built.topic, built.event_time) == ("s", "at")
    body = stream_to_dict(built)
    assert body["options"] == {
        "timestamp_field": "at",
        "max_out_of_orderness": "1 minute",
        "description": "why",
        "batch_size": "5",
    }
    assert body["partitioned_by"] == ["days(at)"]
    assert stream_from_dict(body) == stream_from_dict(stream_to_dict(built, all_options=True)) == built
    made = topic_of(built)
    assert (made.name, made.options.batch_size, made.options.description) == ("s", 5, "why")


def test_a_stream_without_columns_has_those_of_its_topic() -> None:
    definition = checked_stream("fast", options={"topic": "orders", "timestamp_field": "at"})
    assert definition == StreamDefinition("fast", None, StreamOptions(topic="orders", timestamp_field="at"))
    assert (definition.topic, definition.event_time) == ("orders", "at")
    assert checked_stream("slow").event_time == "_timestamp"
    assert stream_from_dict({"name": "slow"}) == checked_stream("slow")
    check_stream_columns(Schema(*COLUMNS), definition.options)
    with pytest.raises(InvalidOption, match='names the unknown column "when"'):
        check_stream_columns(Schema(*COLUMNS), StreamOptions(timestamp_field="when"))
    with pytest.raises(InvalidOption, match="has no effect on a stream without columns"):
        checked_stream("fast", topic_options={"compression": "gzip"})
    with pytest.raises(InvalidStatement, match="has no partitioning"):
        checked_stream("fast", partitioning=[Partition("identity", "id")])


@pytest.mark.parametrize("column", ["at", "local", "_timestamp", ""])
def test_what_can_be_an_event_time(column: str) -> None:
    assert checked_stream("s", COLUMNS, {"timestamp_field": column}).options.timestamp_field == column


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp_field": "n"}, 'option "timestamp_field" does not take column "n" of type "BIGINT"'),
        ({"timestamp_field": "_offset"}, 'option "timestamp_field" names the system column'),
        ({"max_out_of_orderness": -1}, 'option "max_out_of_orderness" does not take "-1"'),
        ({"connector": "kafka"}, 'connector "kafka" needs the option "connection"'),
        ({"connector": "kafka", "connection": "local"}, 'connector "kafka" needs the option "kafka_topic"'),
        ({"kafka_start": "latest"}, 'option "kafka_start" has no effect without a connector'),
        ({"offset_field": "n"}, 'option "offset_field" has no effect without a connector'),
        ({**KAFKA, "offset_field": "id"}, 'option "offset_field" does not take column "id"'),
        ({**KAFKA, "record_time_field": "local"}, 'option "record_time_field" does not take column "local"'),
        ({**KAFKA, "format": "avro"}, 'format "avro" needs the option "avro_schema"'),
        ({"avro_schema": "{}"}, 'option "avro_schema" has no effect'),
        ({"format": "avro", "avro_schema": "{"}, 'option "avro_schema" does not take'),
        ({"format": "raw"}, 'format "raw" needs one STRING or BINARY column'),
        ({**KAFKA, "connection": "a;b"}, 'option "connection" does not take'),
        ({**KAFKA, "bootstrap_servers": "a:1"}, 'option "bootstrap_servers" is not known'),
        ({**KAFKA, "kafka_topic": ".."}, 'option "kafka_topic" does not take'),
        ({**KAFKA, "kafka_topic": "x" * 250}, 'option "kafka_topic" does not take'),
        ({"topic": "a__dead"}, 'topic name "a__dead" is reserved'),
        ({"topic": "x" * 123}, 'topic name "x+" is too long'),
    ],
)
def test_what_does_not_go_together(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        checked_stream("s", COLUMNS, options)


def test_raw_messages_fill_one_column() -> None:
    text = NestedField(0, "value", StringType(), required=False)
    assert checked_stream("s", [text], {"format": "raw"}).options.format == "raw"
    keyed = [text, NestedField(0, "k", StringType(), required=False)]
    assert checked_stream("s", keyed, {**KAFKA, "format": "raw", "key_field": "k"})
    with pytest.raises(InvalidOption, match="needs one STRING"):
        checked_stream("s", keyed, {"format": "raw"})


@pytest.mark.parametrize(
    "given",
    [
        "client.id=Me, group.id=G",
        ["client.id=Me", "group.id=G"],
        {"client.id": "Me", "group.id": "G"},
    ],
)
def test_settings_of_the_client_keep_their_case(given: object) -> None:
    read = parse_stream_options({**KAFKA, "kafka_options": given})
    assert read.kafka_options == (("client.id", "Me"), ("group.id", "G"))
    assert check_stream_options(read) == read
    assert parse_stream_options({**KAFKA, "kafka_options": "auto.offset.reset=earliest"}).kafka_options


@pytest.mark.parametrize(
    "given",
    [
        "sasl.password=hunter2",
        "ssl.key.password=env",
        "sasl.oauthbearer.client.secret=x",
        "ssl.key.pem=x",
        "plugin.library.paths=/tmp/x.so",
        "sasl.kerberos.kinit.cmd=rm",
        "enable.auto.commit=true",
        "bootstrap.servers=b:2",
        "sasl.password=env:AWS_SECRET_ACCESS_KEY",
        "sasl.username=env:KAFKA_USER",
        "sasl.oauthbearer.token.endpoint.url=http://evil",
        "no.such=1",
        "client.id=a\tb",
        "Client.Id=x",
        "client.id=x, client.id=y",
        {"client.id": "a,b"},
        "client.id",
        5,
    ],
)
def test_settings_that_are_refused(given: object) -> None:
    with pytest.raises(InvalidOption, match='option "kafka_options" does not take'):
        parse_stream_options({**KAFKA, "kafka_options": given})


def test_an_altered_stream_is_checked_as_a_new_one() -> None:
    stream = checked_stream("s", COLUMNS, {**KAFKA, "timestamp_field": "at"}, (), {"batch_size": "5"})
    statement = parse("ALTER STREAM s SET (max_out_of_orderness = '5 s', kafka_topic = 'u')")
    assert isinstance(statement, AlterStream)
    changed = change_stream(stream, statement.values)
    assert changed == replace(stream, options=replace(stream.options, max_out_of_orderness=5.0, kafka_topic="u"))
    for values in ({"topic": "x"}, {"connector": "none"}, {"timestamp_field": "local"}, {"batch_size": 3}):
        with pytest.raises(InvalidOption):
            change_stream(stream, values)
    with pytest.raises(InvalidOption, match='needs the option "kafka_topic"'):
        change_stream(stream, {"kafka_topic": ""})
    with pytest.raises(InvalidOption, match="needs one STRING"):
        change_stream(stream, {"format": "raw"})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": 3},
        {"name": "S"},
        {"name": "s", "columns": {}},
        {"name": "s", "columns": [{"name": "a"}]},
        {"name": "s", "options": "x"},
        {"name": "s", "options": {"tpoic": "x"}},
        {"name": "s", "query": "SELECT 1"},
        {"name": "s", "columns": [{"name": "a", "type": "INT"}], "partitioned_by": ["days(a)"]},
    ],
)
def test_bodies_that_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(HeadwaterError) as caught:
        stream_from_dict(body)
    assert caught.value.status == 400


@pytest.mark.parametrize("name", ["", "S", "a b", "x__dead", "x__late", "x__corrections", "a" * 129])
def test_names_that_cannot_be_streams(name: str) -> None:
    with pytest.raises(HeadwaterError, match=r"^stream name"):
        checked_stream(name)


def test_a_target_is_brokers_and_a_topic() -> None:
    assert split_target("a:1,[::1]:2/t.x") == ("a:1,[::1]:2", "t.x")
    assert stream_option("kafka_topic").read("a.b-c_1") == "a.b-c_1"
