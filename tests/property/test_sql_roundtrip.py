"""What is rendered is read back equal, and no text makes the parser fail in a way that is not an error of its own."""

from __future__ import annotations

import json
import string

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.errors import HeadwaterError
from headwater.sql.definition import checked_definition, notices
from headwater.sql.names import normalise_topics
from headwater.sql.option_pairs import COMPRESSION_LEVELS, KINDS
from headwater.sql.options import OPTIONS, parse_options, render_options
from headwater.sql.parse import parse, parse_script
from headwater.sql.partitioning import check_partitioning
from headwater.sql.render import render_create, render_create_stream
from headwater.sql.schema_files import SchemaFile, definition_from_dict, definition_to_dict, read_schema
from headwater.sql.schema_rules import checked_schema
from headwater.sql.schema_text import parse_columns, render_columns
from headwater.sql.statements import CreateStream, CreateTopic, Query
from headwater.sql.stream_definition import checked_stream, topic_of
from headwater.sql.stream_json import stream_from_dict, stream_to_dict
from headwater.sql.stream_options import PART_FIELDS, parse_stream_options, render_stream_options
from headwater.sql.tokens import quote, tokenise
from headwater.sql.units import parse_duration, parse_size, render_duration, render_size
from headwater.types import Pairs, Partition, SortKey, StreamDefinition, StreamOptions, TopicDefinition, TopicOptions

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)
NASTY = st.sampled_from(
    ["'", "''", "\\", "\\'", "'; DROP TOPIC x; --", "/*", "*/", "`", '"', "日本", "a\nb", "\\u0041", "$$"]
)
COMMENTS = st.none() | TEXTS | NASTY
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True) | st.sampled_from(
    ["select", "from", "comment", "not", "null", "date", "map", "primary", "key", "with", "constraint", "x" * 128]
)
RESERVED = ("__dead", "__late", "__corrections")
PRIMITIVES: st.SearchStrategy[IcebergType] = st.one_of(
    st.sampled_from(
        (
            *(BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DateType(), TimeType()),
            *(TimestampType(), TimestamptzType(), StringType(), UUIDType(), BinaryType()),
        )
    ),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s))),
    st.integers(1, 1024**2).map(FixedType),
)


def fields(of: st.SearchStrategy[IcebergType], most: int) -> st.SearchStrategy[list[NestedField]]:
    field = st.builds(NestedField, st.just(0), NAMES, of, required=st.booleans(), doc=COMMENTS)
    return st.lists(field, min_size=1, max_size=most, unique_by=lambda each: each.name)


TYPES: st.SearchStrategy[IcebergType] = st.recursive(
    PRIMITIVES,
    lambda inner: st.one_of(
        st.builds(ListType, st.just(0), inner, element_required=st.booleans()),
        st.builds(MapType, st.just(0), PRIMITIVES, st.just(0), inner, value_required=st.booleans()),
        fields(inner, 3).map(lambda each: StructType(*each)),
    ),
    max_leaves=6,
)
PARTITIONS = st.one_of(
    st.builds(Partition, st.sampled_from(["identity", "year", "month", "day", "hour"]), NAMES),
    st.builds(Partition, st.sampled_from(["bucket", "truncate"]), NAMES, st.integers(1, 2**31 - 1)),
)
DURATIONS = st.floats(min_value=0.1, max_value=86_400, allow_nan=False)


@st.composite
def topic_options(draw: st.DrawFn, columns: tuple[str, ...] = ()) -> TopicOptions:
    codec = draw(st.sampled_from(["none", "snappy", "gzip", "lz4", "zstd", "brotli"]))
    level = draw(st.none() | st.integers(*COMPRESSION_LEVELS[codec])) if codec in COMPRESSION_LEVELS else None
    keys = st.lists(st.sampled_from(columns), unique=True, max_size=3) if columns else st.just([])
    switched = draw(by_column(columns, st.sampled_from(["on", "off"])))
    return TopicOptions(
        compression=codec,  # type: ignore[arg-type]
        compression_level=level,
        target_file_size=draw(st.integers(1024**2, 50 * 1024**3)),
        rotation_timeout=draw(DURATIONS),
        batch_size=draw(st.integers(1, 10_000_000)),
        commit_interval=draw(DURATIONS),
        on_invalid=draw(st.sampled_from(["reject", "dead_letter"])),
        dedup_key=tuple(draw(keys)),
        dedup_horizon=draw(DURATIONS),
        compression_kinds=tuple(draw(st.dictionaries(st.sampled_from(KINDS), CODEC_TEXTS)).items()),
        compression_columns=draw(by_column(columns, CODEC_TEXTS)),
        dictionary=draw(st.sampled_from(["auto", "on", "off"])),
        dictionary_columns=switched,
        encoding_columns=draw(by_column(tuple(sorted(set(columns) - dict(switched).keys())), st.just("plain"))),
        page_size=draw(st.integers(4096, 64 * 1024**2)),
        row_group_rows=draw(st.integers(1000, 16 * 1024**2)),
        retention=draw(st.just(0.0) | DURATIONS),
        retention_size=draw(st.integers(0, 1024**5)),
        min_snapshots=draw(st.integers(1, 1000)),
        evolution=draw(st.sampled_from(["strict", "merge"])),
        description=draw(TEXTS | NASTY),
    )


CODEC_TEXTS = st.sampled_from(["none", "snappy", "lz4", "zstd", "zstd:22", "gzip:9", "brotli:0"])


def by_column(columns: tuple[str, ...], values: st.SearchStrategy[str]) -> st.SearchStrategy[Pairs]:
    if not columns:
        return st.just(())
    return st.dictionaries(st.sampled_from(columns), values, max_size=3).map(lambda each: tuple(each.items()))


@st.composite
def definitions(draw: st.DrawFn) -> TopicDefinition:
    columns = draw(fields(TYPES, 5))
    schema = checked_schema(columns)
    keys = tuple(
        column.name
        for column in columns
        if column.field_type.is_primitive and not isinstance(column.field_type, FloatType | DoubleType)
    )
    parts: tuple[Partition, ...] = ()
    for column in columns:
        part = draw(st.none() | PARTITIONS)
        if part is not None:
            try:
                parts = check_partitioning(schema, (*parts, Partition(part.transform, column.name, part.parameter)))
            except HeadwaterError:
                continue  # not every transform takes every column
    name = draw(NAMES.filter(lambda each: len(each) <= 122 and not each.endswith(RESERVED)))
    ordered = st.lists(st.sampled_from(keys), unique=True, max_size=3) if keys else st.just([])
    ordering = [SortKey(each, draw(st.booleans()), draw(st.booleans())) for each in draw(ordered)]
    flat = [key for key in keys if not isinstance(schema.find_field(key).field_type, BooleanType)]
    clustering = flat[:8] if len(flat) > 1 and not ordering and draw(st.booleans()) else []
    return checked_definition(name, schema, parts, draw(topic_options(keys)), ordering, clustering)


@given(definitions())
@settings(max_examples=200, deadline=None)
def test_a_rendered_statement_makes_an_equal_definition(definition: TopicDefinition) -> None:
    text = render_create(definition)
    statement = parse(text)
    assert isinstance(statement, CreateTopic)
    assert statement.definition == definition
    assert render_create(statement.definition) == text
    assert parse_script(f"{text};\n{text}") == (statement, statement)
    assert all(notice.endswith(".") for notice in notices(definition))
    assert as_file(definition) == read_schema(text, "sql")


@given(definitions(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_json_form_makes_an_equal_definition(definition: TopicDefinition, all_options: bool) -> None:
    body = json.loads(json.dumps(definition_to_dict(definition, all_options=all_options)))
    assert definition_from_dict(body) == definition
    assert as_file(definition) == read_schema(json.dumps(body), "json")


PARTS = {
    "key_field": BinaryType(),
    "headers_field": MapType(0, StringType(), 0, StringType(), value_required=False),
    "record_time_field": TimestamptzType(),
    "partition_field": IntegerType(),
    "offset_field": LongType(),
}


@st.composite
def streams(draw: st.DrawFn) -> StreamDefinition:
    topic = draw(definitions())
    taken = {column.name for column in topic.schema.fields}
    parts = draw(st.sets(st.sampled_from(PART_FIELDS))) if draw(st.booleans()) else set()
    fields = [NestedField(0, name, PARTS[name], required=False) for name in sorted(parts) if name not in taken]
    times = [each.name for each in topic.schema.fields if isinstance(each.field_type, TimestampType | TimestamptzType)]
    connector = {
        "connector": "kafka",
        "connection": draw(st.sampled_from(["orders", "A-b_1", "a.b-c:9092, [::1]:65535"])),
        "kafka_topic": draw(st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)),
        "kafka_start": draw(st.sampled_from(["earliest", "latest"])),
        "kafka_options": draw(st.sampled_from([(), (("client.id", "Ä=b"), ("linger.ms", "5"))])),
        **draw(st.sampled_from([{}, {"format": "avro", "avro_schema": '["null", "it\'s"]'}, {"format": "csv"}])),
        **{each.name: each.name for each in fields},
    }
    options = StreamOptions(
        topic=draw(st.sampled_from(["", "x", topic.name])),
        timestamp_field=draw(st.sampled_from(["", "_timestamp", *times])),
        max_out_of_orderness=draw(st.just(0.0) | DURATIONS),
        description=draw(TEXTS | NASTY),
        **(connector if fields or draw(st.booleans()) else {}),  # type: ignore[arg-type]
    )
    if not fields and draw(st.booleans()):
        return checked_stream(topic.name, None, options)
    of_topic = {k: v for k, v in render_options(topic.options, changed_only=True).items() if k != "description"}
    return checked_stream(topic.name, [*topic.schema.fields, *fields], options, topic.partitioning, of_topic)


@given(streams(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_streams_survive_statements_json_and_options(stream: StreamDefinition, all_options: bool) -> None:
    text = render_create_stream(stream)
    assert parse(text) == CreateStream(stream)
    assert parse(text.replace("STREAM", "OR REPLACE STREAM", 1)) == CreateStream(stream, or_replace=True)
    body = json.loads(json.dumps(stream_to_dict(stream, all_options=all_options)))
    assert stream_from_dict(body) == stream
    assert parse_stream_options(render_stream_options(stream.options)) == stream.options
    if stream.schema is not None:
        made = topic_of(stream)
        assert (made.name, made.schema, made.partitioning) == (stream.topic, stream.schema, stream.partitioning)
        kept = render_options(made.options, changed_only=True)
        assert stream.topic_options.items() <= {**render_options(made.options), **kept}.items()


def as_file(of: TopicDefinition) -> SchemaFile:
    return SchemaFile(of.schema, of.partitioning, of.options, of.ordering, of.clustering)


@given(fields(TYPES, 5))
@settings(max_examples=150, deadline=None)
def test_schemas_survive_text_and_iceberg_json(columns: list[NestedField]) -> None:
    schema = checked_schema(columns)
    assert parse_columns(render_columns(schema)) == schema
    spread = render_columns(schema, separator=" /* , */\n,")
    assert parse_columns(f"({spread})") == schema
    assert read_schema(schema.model_dump_json(), "json").schema == schema


@given(topic_options())
@settings(deadline=None)
def test_options_survive_text(options: TopicOptions) -> None:
    assert parse_options(render_options(options)) == options
    assert parse_options(render_options(options, changed_only=True)) == options
    assert all(OPTIONS[place].name == name for place, name in enumerate(render_options(options)))


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_durations_survive_text(seconds: float) -> None:
    assert parse_duration(render_duration(seconds)) == seconds


@given(st.integers(0, 2**62))
def test_sizes_survive_text(size: int) -> None:
    assert parse_size(render_size(size)) == size


@given(TEXTS | NASTY)
def test_literals_survive(text: str) -> None:
    assert [token.value for token in tokenise(quote(text))][:-1] == [text]


WORDS = """
    CREATE TOPIC IF NOT EXISTS DROP SHOW TOPICS DESCRIBE FLUSH EXPLAIN ANALYZE SELECT FROM WITH TAIL OFF ( ) < > , ;
    INT STRING ARRAY MAP STRUCT DECIMAL FIXED NULL COMMENT PARTITIONED BY days bucket compression batch_size dedup_key x
    : . = - y 'a' 'zstd' 12 1.5 `q` /* */ -- ' ` topic topics JOIN TABLE * STREAM STREAMS STATUS START STOP RESTART FOR
    connector kafka timestamp_field max_out_of_orderness SET ALTER
"""
PIECES = st.sampled_from(WORDS.split())


@given(st.lists(PIECES, max_size=25).map(" ".join) | st.text(string.printable, max_size=60) | TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_is_parsed_or_refused_with_a_place(text: str) -> None:
    try:
        statements = parse_script(text)
    except HeadwaterError as error:
        assert error.status in (400, 403)
        assert error.message and not error.message.endswith(".")
        assert error.data["line"] >= 1 and error.data["column"] >= 1
        return
    for statement in statements:
        if isinstance(statement, Query):
            assert statement.text in text
            assert parse(statement.text) == Query(statement.text)


@given(st.lists(PIECES, max_size=25).map(" ".join) | TEXTS)
@settings(max_examples=400, deadline=None)
def test_rewriting_keeps_every_line_and_column(text: str) -> None:
    try:
        rewritten = normalise_topics(text)
    except HeadwaterError as error:
        assert error.status == 400
        return
    assert [len(line) for line in rewritten.split("\n")] == [len(line) for line in text.split("\n")]
    assert normalise_topics(rewritten) == rewritten


@given(NAMES, st.sampled_from(["topic('{}')", 'TOPIC( "{}" )', "topics.{}", "`topics` . `{}`", "topic(\n'{}'\n)"]))
def test_every_spelling_of_a_topic_becomes_its_name(name: str, spelling: str) -> None:
    text = f"SELECT a, 'topics.x' FROM {spelling.format(name)} AS t, b WHERE topics.c = 1"
    words = [token.value for token in tokenise(normalise_topics(text))]
    plain = [token.value for token in tokenise(f"SELECT a, 'topics.x' FROM {name} AS t, b WHERE topics.c = 1")]
    assert words == plain
