from __future__ import annotations

import json
import time

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, TimestampNanoType, TimeType

from headwater.errors import HeadwaterError, InvalidName, InvalidOption, InvalidSchema
from headwater.sql.definition import checked_definition, notices
from headwater.sql.parse import parse
from headwater.sql.partitioning import check_partitioning, parse_partitioning
from headwater.sql.render import render_create
from headwater.sql.schema_files import definition_from_dict, definition_to_dict, read_schema
from headwater.sql.schema_text import parse_columns, parse_type, render_columns, render_type
from headwater.sql.statements import CreateTopic
from headwater.types import Partition, TopicOptions

EVERY_TYPE = "BOOLEAN INT BIGINT FLOAT DOUBLE DECIMAL DATE TIME TIMESTAMP TIMESTAMP_NTZ STRING UUID FIXED(4) BINARY"
SCHEMA = Schema(NestedField(7, "id", LongType(), required=True), NestedField(9, "name", StringType()))


def test_field_ids_are_assigned_afresh_top_level_first() -> None:
    definition = checked_definition("t", Schema(NestedField(5, "a", ListType(9, IntegerType(), False)), *SCHEMA.fields))
    (a, first, second) = definition.schema.fields
    assert (a.field_id, first.field_id, second.field_id) == (1, 2, 3)
    assert isinstance(a.field_type, ListType) and a.field_type.element_id == 4


def test_options_may_be_values_or_texts() -> None:
    parts = (Partition("bucket", "id", 8),)
    by_value = checked_definition("t", SCHEMA, parts, TopicOptions(batch_size=5))
    by_text = checked_definition("t", SCHEMA.fields, parts, {"batch_size": "5"})
    assert by_value == by_text


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a" * 123, "x__dead", "_x", "1a", "ä", "a\n", "a;b"])
def test_names_that_cannot_be_topics(name: str) -> None:
    with pytest.raises(InvalidName, match=r"^topic name"):
        checked_definition(name, SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(NestedField(1, "a", TimestampNanoType())),
        Schema(NestedField(1, "a", IntegerType(), required=True), identifier_field_ids=[1]),
        Schema(NestedField(1, "a", IntegerType(), initial_default=1)),
        Schema(NestedField(1, "a", IntegerType(), doc="\ud800")),
        (NestedField(1, "a", IntegerType()), NestedField(2, "a", IntegerType())),
        tuple(NestedField(number, f"c{number}", IntegerType()) for number in range(5001)),
        (),
    ],
)
def test_schemas_that_cannot_be_topics(schema: Schema) -> None:
    with pytest.raises(InvalidSchema):
        checked_definition("t", schema)


@pytest.mark.parametrize("key", [("missing",), ("f",), ("l",), ("id", "missing")])
def test_keys_that_cannot_deduplicate(key: tuple[str, ...]) -> None:
    schema = parse_columns("id BIGINT, f FLOAT, l ARRAY<INT>")
    with pytest.raises(InvalidOption) as caught:
        checked_definition("t", schema, (), TopicOptions(dedup_key=key))
    assert caught.value.data["option"] == "dedup_key"


@pytest.mark.parametrize(
    "part",
    [
        Partition("bucket", "id"),
        Partition("bucket", "id", True),
        Partition("bucket", "id", -1),
        Partition("identity", "id", 3),
        Partition("day", "id"),
        Partition("identity", "nope"),
        Partition("identity", "_offset"),
    ],
)
def test_partitions_built_in_python_are_checked(part: Partition) -> None:
    with pytest.raises(InvalidSchema, match=r"^partition"):
        check_partitioning(SCHEMA, (part,))


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("identity(x)", EVERY_TYPE),
        ("bucket(4, x)", "INT BIGINT DECIMAL DATE TIME TIMESTAMP TIMESTAMP_NTZ STRING UUID FIXED(4) BINARY"),
        ("truncate(4, x)", "INT BIGINT DECIMAL STRING BINARY"),
        ("years(x)", "DATE TIMESTAMP TIMESTAMP_NTZ"),
        ("months(x)", "DATE TIMESTAMP TIMESTAMP_NTZ"),
        ("days(x)", "DATE TIMESTAMP TIMESTAMP_NTZ"),
        ("hours(x)", "TIMESTAMP TIMESTAMP_NTZ"),
    ],
)
def test_transforms_take_the_types_of_the_iceberg_spec(text: str, types: str) -> None:
    for of in EVERY_TYPE.split():
        schema, parts = parse_columns(f"x {of}"), parse_partitioning(text)
        if of in types.split():
            assert check_partitioning(schema, parts) == parts
        else:
            with pytest.raises(InvalidSchema, match="cannot be made of a column"):
                check_partitioning(schema, parts)


def test_singular_transforms_are_the_same() -> None:
    assert parse_partitioning("day(a), hour(b), month(c), YEAR(d)") == parse_partitioning(
        "days(a), hours(b), months(c), years(d)"
    )
    assert parse_partitioning("") == ()


def test_types_render_as_they_are_read() -> None:
    text = (
        "STRUCT<a: INT NOT NULL COMMENT 'it\\'s', b: MAP<STRING, ARRAY<DECIMAL(9, 2) NOT NULL> NOT NULL>, c: FIXED(4)>"
    )
    assert render_type(parse_type(text)) == text
    columns = "a TIMESTAMP NOT NULL COMMENT 'x', b TIMESTAMP_NTZ, c TIME, d UUID"
    assert render_columns(parse_columns(columns)) == columns


def test_notices_name_nested_columns() -> None:
    definition = checked_definition("t", parse_columns("a ARRAY<STRUCT<b: TIME>>, c MAP<UUID, FIXED(3)>"))
    (time_notice, uuid_notice, fixed_notice) = notices(definition)
    assert time_notice.startswith('Column "a.element.b": Spark cannot read')
    assert uuid_notice.startswith('Column "c.key": ') and fixed_notice.startswith('Column "c.value": ')
    assert notices(checked_definition("t", SCHEMA)) == ()
    assert notices(checked_definition("t", Schema(NestedField(1, "x", TimeType()))))


def test_the_statement_and_the_json_form_make_equal_definitions() -> None:
    statement = parse(
        "CREATE TOPIC t (id BIGINT NOT NULL COMMENT 'k', tags ARRAY<STRING NOT NULL>, at TIMESTAMP)"
        " COMMENT 'it''s \\\\ here' PARTITIONED BY (hours(at), bucket(4, id))"
        " WITH (dedup_key = 'id', compression = gzip)"
    )
    assert isinstance(statement, CreateTopic)
    body = definition_to_dict(statement.definition)
    assert body["options"] == {"compression": "gzip", "dedup_key": "id", "description": "it's \\ here"}
    assert definition_from_dict(body) == statement.definition
    assert definition_from_dict(definition_to_dict(statement.definition, all_options=True)) == statement.definition
    assert parse(render_create(statement.definition)) == statement


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "t"},
        {"name": 3, "columns": []},
        {"name": "t", "columns": {}},
        {"name": "t", "columns": [None]},
        {"name": "t", "columns": [{"name": "a", "type": 3}]},
        {"name": "t", "columns": [{"name": "a", "type": "INT"}], "partitioned_by": [3]},
        {"name": "t", "columns": [{"name": "a", "type": "INT"}], "partitioned_by": {"a": 1}},
        {"name": "t", "columns": [{"name": "a", "type": "INT", "comment": 3}]},
        {"name": "t", "columns": [{"name": "a", "type": "INT"}], "options": ["x"]},
        {"name": "t", "columns": [{"name": "a", "type": "INT"}], "options": {"batch_size": None}},
        {"name": "t__dead", "columns": [{"name": "a", "type": "INT"}]},
        {"name": "t", "columns": [{"name": "a", "type": "ARRAY<" * 500}]},
        {"name": "t", "columns": [{"name": "a", "type": "\0"}]},
    ],
)
def test_bodies_that_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(HeadwaterError) as caught:
        definition_from_dict(body)
    assert caught.value.status == 400


def test_a_small_avro_file_cannot_stand_for_billions_of_fields() -> None:
    inner: object = "int"
    for level in range(30):
        again = f"R{level - 1}" if level else "int"
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        inner = {"type": "record", "name": f"R{level}", "fields": fields}
    started = time.monotonic()
    with pytest.raises(InvalidSchema, match="at most 5000 fields"):
        read_schema(json.dumps(inner), "avsc")
    assert time.monotonic() - started < 40


@pytest.mark.parametrize("kind", ["json", "avsc"])
@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"type":' * 100_000, "9" * 10_000, '{"columns": ' + "9" * 10_000 + "}"]
)
def test_hostile_files_are_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidSchema):
        read_schema(text, kind)  # type: ignore[arg-type]


def test_an_unknown_kind_of_file() -> None:
    with pytest.raises(InvalidSchema, match="is not known"):
        read_schema("", "xml")  # type: ignore[arg-type]


def test_a_decimal_without_digits_holds_amounts_and_says_so() -> None:
    made = parse("CREATE TOPIC t (a DECIMAL, b STRUCT<c: NUMERIC>, d DECIMAL(12, 2), e DEC(5))")
    assert isinstance(made, CreateTopic)
    assert render_columns(made.definition.schema) == (
        "a DECIMAL(38, 9), b STRUCT<c: DECIMAL(38, 9)>, d DECIMAL(12, 2), e DECIMAL(5, 0)"
    )
    (said,) = notices(made.definition)
    assert said == 'Columns "a", "b.c": DECIMAL is DECIMAL(38, 9); write DECIMAL(p, s) for other digits.'
    assert parse_type(render_type(parse_type("DECIMAL(10, 0)"))) == parse_type("DECIMAL(10, 0)")
