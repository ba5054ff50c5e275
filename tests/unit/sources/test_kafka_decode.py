"""Messages become rows: every format, every part of a message, and a reason for each message that does not fit."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headwater.errors import InvalidOption, InvalidSchema
from headwater.sources.kafka_decode import MessageDecoder
from headwater.storage.decode import Decoded
from headwater.types import StreamDefinition, StreamOptions

ID, TEXT = ("id", LongType(), True), ("text", StringType(), False)


def columns(*fields: tuple[str, IcebergType, bool]) -> Schema:
    return Schema(*(NestedField(n, name, kind, required) for n, (name, kind, required) in enumerate(fields, 1)))


def message(value: bytes | None, offset: int = 0, **parts: Any) -> Message:
    parts = {"topic": "k", "partition": 0, "timestamp": (1, 0), "headers": None, "key": None, **parts}
    return Message(value=value, offset=offset, **parts)


def decoder(topic: Schema, stream: Schema | None = None, **options: Any) -> MessageDecoder:
    return MessageDecoder(StreamDefinition("s", stream, StreamOptions(connector="kafka", **options)), topic)


def decode(topic: Schema, values: list[bytes | None], **options: Any) -> Decoded:
    return decoder(topic, **options).decode([message(value, n) for n, value in enumerate(values)])


def reasons(decoded: Decoded) -> dict[int, str]:
    return {reject.row: reject.reason for reject in decoded.rejects}


# -- json -------------------------------------------------------------------------------------------------------


def test_json_messages_are_rows_in_order() -> None:
    decoded = decode(columns(ID, TEXT), [b'{"id": 1, "text": "a"}', b'{"text": null, "id": 2}', b'{"id": 3}'])
    assert decoded.table.to_pylist() == [{"id": 1, "text": "a"}, {"id": 2, "text": None}, {"id": 3, "text": None}]
    assert (decoded.rejects, decoded.rows) == ((), 3)


def test_a_json_message_may_span_lines_and_have_space_or_a_mark_around_it() -> None:
    values = [b'\n{\n"id": 1,\r\n "text": "a\\nb"}\n', b'  {"id": 2}\r\n', b'\xef\xbb\xbf{"id": 3}', b'{"id":\n4}']
    assert decode(columns(ID, TEXT), values).table.to_pylist() == [
        {"id": 1, "text": "a\nb"},
        {"id": 2, "text": None},
        {"id": 3, "text": None},
        {"id": 4, "text": None},
    ]


def test_bad_json_messages_have_a_reason_and_stay_in_step() -> None:
    values = [
        b'{"id": 1}',
        b'{"id": "x"}',
        None,
        b"",
        b" \n",
        b'{"id": 2}',
        b'{"id": 3}\n{"id": 4}',
        b'{"id": 5, "text": "a\nb"}',
        b'[{"id": 6}]',
        b'{"id": 7}{"id": 8}',
        b"\xff",
        b'{"id": 9}',
    ]
    decoded = decode(columns(ID, TEXT), list(values))
    assert decoded.table.column("id").to_pylist() == [1, 2, 9]
    assert list(reasons(decoded)) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert reasons(decoded)[1] == 'expected long, got string "x"'
    assert reasons(decoded)[2] == "the message has no value"
    assert reasons(decoded)[3] == reasons(decoded)[4] == "the message is empty"
    assert "neither one array of objects nor one object" in reasons(decoded)[6]
    assert "Invalid control character" in reasons(decoded)[7]
    assert [reject.raw for reject in decoded.rejects] == [values[row] or b"" for row in reasons(decoded)]


json_value = st.one_of(
    st.integers(-(2**70), 2**70).map(lambda n: {"id": n}),
    st.builds(lambda n, text: {"id": n, "text": text}, st.integers(-9, 9), st.text(max_size=5)),
    st.builds(lambda name: {"id": 1, name: 2}, st.sampled_from(["text", "other", "id"])),
).map(lambda record: json.dumps(record).encode())
any_value = st.one_of(
    json_value,
    json_value.map(lambda text: text.replace(b" ", b"\n")),
    st.none(),
    st.binary(max_size=6),
    st.sampled_from([b"{}", b"\n", b"null", b"{\n", b'{"id": 1}\n{"id": 2}', b'{"id": 1}, {"id": 2}', b"\xef\xbb\xbf"]),
)


@given(st.lists(any_value, max_size=12))
def test_a_json_message_is_judged_without_its_neighbours(values: list[bytes | None]) -> None:
    schema = columns(ID, TEXT)
    alone = [decode(schema, [value]) for value in values]
    together = decode(schema, values)
    assert together.table.to_pylist() == [row for one in alone for row in one.table.to_pylist()]
    assert [reject.row for reject in together.rejects] == [row for row, one in enumerate(alone) if one.rejects]
    assert together.rows == len(values)


# -- csv --------------------------------------------------------------------------------------------------------


def test_csv_messages_are_lines_in_the_order_of_the_stream() -> None:
    topic = columns(TEXT, ID, ("price", DecimalType(9, 2), False))
    of_stream = columns(ID, ("price", DecimalType(9, 2), False), TEXT)
    decoded = decoder(topic, of_stream, format="csv").decode(
        [message(b"1,2.50,a"), message(b'2,,"x, ""y"""\r\n'), message(b'3,1,"two\nlines"')]
    )
    assert decoded.table.to_pylist() == [
        {"text": "a", "id": 1, "price": Decimal("2.50")},
        {"text": 'x, "y"', "id": 2, "price": None},
        {"text": "two\nlines", "id": 3, "price": Decimal("1.00")},
    ]


def test_bad_csv_messages_have_a_reason_and_stay_in_step() -> None:
    values = [b"1,a", b'2,"open', b"3,c", None, b"", b"4", b"x,d", b"5,e\n6,f", b'7,a"b,"c', b"8,h"]
    decoded = decode(columns(ID, TEXT), list(values), format="csv")
    assert decoded.table.to_pylist() == [{"id": 1, "text": "a"}, {"id": 3, "text": "c"}, {"id": 8, "text": "h"}]
    assert reasons(decoded) == {
        1: "csv body has a quote that is never closed",
        3: "the message has no value",
        4: "the message is empty",
        5: "expected 2 cells, got 1",
        6: 'expected long, got string "x"',
        7: "expected one line, got 2",
        8: "expected 2 cells, got 3",
    }
    assert [reject.raw for reject in decoded.rejects] == [values[row] or b"" for row in reasons(decoded)]


@given(st.lists(st.one_of(st.none(), st.text('1,"\r\nx', max_size=6).map(str.encode)), max_size=10))
def test_a_csv_message_is_judged_without_its_neighbours(values: list[bytes | None]) -> None:
    schema = columns(("id", LongType(), False), TEXT)
    alone = [decode(schema, [value], format="csv") for value in values]
    together = decode(schema, values, format="csv")
    assert together.table.to_pylist() == [row for one in alone for row in one.table.to_pylist()]
    assert reasons(together) == {row: one.rejects[0].reason for row, one in enumerate(alone) if one.rejects}


# -- avro -------------------------------------------------------------------------------------------------------

AVRO = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "marks", "type": {"type": "map", "values": "double"}},
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["NEW", "PAID"]}},
    ],
}
AVRO_COLUMNS = columns(
    ID,
    TEXT,
    ("price", DecimalType(9, 2), True),
    ("at", TimestamptzType(), True),
    ("day", DateType(), False),
    ("tags", ListType(20, StringType(), True), False),
    ("marks", MapType(21, StringType(), 22, DoubleType(), False), False),
    ("state", StringType(), False),
)


def order(id: int, **changed: Any) -> dict[str, Any]:
    at = datetime(2026, 5, 1, 10, 30, 0, 123456, tzinfo=UTC)
    record = {"id": id, "text": "é", "price": Decimal("2.50"), "at": at, "day": at.date(), "tags": ["a", "b"]}
    return {**record, "marks": {"x": 1.5}, "state": "PAID", **changed}


def avro(record: dict[str, Any], schema: Any = AVRO) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), record)
    return into.getvalue()


def test_avro_messages_with_and_without_the_frame_of_a_registry() -> None:
    options = {"format": "avro", "avro_schema": json.dumps(AVRO)}
    framed = b"\x00\x00\x00\x00\x07" + avro(order(0, text=None))
    decoded = decode(AVRO_COLUMNS, [avro(order(1)), framed, avro(order(0, price=Decimal("-0.01")))], **options)
    assert decoded.rejects == ()
    plain = [order(1), order(0, text=None), order(0, price=Decimal("-0.01"))]
    assert [{**row, "marks": dict(row["marks"])} for row in decoded.table.to_pylist()] == plain


def test_bad_avro_messages_have_a_reason() -> None:
    good = avro(order(1))
    options = {"format": "avro", "avro_schema": json.dumps(AVRO)}
    decoded = decode(AVRO_COLUMNS, [good[:-2], good + b"x", None, b"", good, b"\x00\x00\x00\x00\x01"], **options)
    assert decoded.table.num_rows == 1
    told = reasons(decoded)
    assert list(told) == [0, 1, 2, 3, 5]
    assert all(told[row].startswith("not a record of avro_schema: ") for row in (0, 1, 3, 5)), told
    assert told[1] == f"not a record of avro_schema: 1 of {len(good) + 1} bytes are left over"
    assert told[2] == "the message has no value"
    assert decoded.rejects[1].raw == good + b"x"


def test_an_avro_value_that_the_column_does_not_take() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}
    decoded = decode(columns(ID), [avro({"id": "x"}, schema)], format="avro", avro_schema=json.dumps(schema))
    assert reasons(decoded) == {0: 'expected long, got string "x"'}
    assert decoded.rejects[0].field == "id"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("{", "It is not an Avro schema: "),
        ('{"type": "what"}', "It is not an Avro schema: "),
        ('"string"', "It is not the schema of a record."),
        (json.dumps({"type": "record", "name": "r", "fields": []}), 'It has no field "id", which the stream requires.'),
        (
            json.dumps(
                {"type": "record", "name": "r", "fields": [{"name": n, "type": "long"} for n in ("id", "more")]}
            ),
            'The stream has no column for its field "more".',
        ),
        *(
            (
                json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": inner}]}),
                "It has an array or map whose items take no bytes, such as nulls.",
            )
            for inner in (
                {"type": "array", "items": "null"},
                ["null", {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}],
                {"type": "map", "values": {"type": "array", "items": {"type": "record", "name": "e", "fields": []}}},
            )
        ),
    ],
)
def test_an_avro_schema_that_cannot_be_used(text: str, detail: str) -> None:
    with pytest.raises(InvalidOption, match='stream "s" has an avro_schema that cannot be used') as refused:
        decoder(columns(ID, TEXT), format="avro", avro_schema=text)
    assert (refused.value.detail or "").startswith(detail)


# -- raw --------------------------------------------------------------------------------------------------------


def test_raw_messages() -> None:
    values = ["é".encode(), None, b"", b"\xff", b"x"]
    decoded = decode(columns(TEXT), values, format="raw")
    assert decoded.table.column("text").to_pylist() == ["é", None, "", "x"]
    assert reasons(decoded) == {3: "not valid UTF-8"}
    decoded = decode(columns(("body", BinaryType(), True)), values, format="raw")
    assert decoded.table.column("body").to_pylist() == ["é".encode(), b"", b"\xff", b"x"]
    assert reasons(decoded) == {1: "required field is null"}


@pytest.mark.parametrize("fields", [(ID,), (TEXT, ("more", StringType(), False))])
def test_raw_needs_one_column_of_text_or_bytes(fields: Any) -> None:
    with pytest.raises(InvalidOption, match='stream "s" cannot have the format raw'):
        decoder(columns(*fields), format="raw")


# -- the other parts of a message -------------------------------------------------------------------------------

HEADERS = MapType(30, StringType(), 31, StringType(), False)
PARTS = columns(
    ("key", StringType(), False),
    ID,
    ("headers", HEADERS, False),
    ("at", TimestamptzType(), False),
    ("part", IntegerType(), True),
    ("place", LongType(), True),
)
ALL = {
    "key_field": "key",
    "headers_field": "headers",
    "record_time_field": "at",
    "partition_field": "part",
    "offset_field": "place",
}


def test_all_parts_of_a_message() -> None:
    headers = [("a", b"1"), ("b", None), ("a", "ü".encode())]
    decoded = decoder(PARTS, **ALL).decode(
        [
            message(b'{"id": 1}', 7, key=b"k", headers=headers, timestamp=(1, 1_777_777_777_777), partition=3),
            message(b'{"id": 2}', 9, timestamp=(0, -1), partition=3),
        ]
    )
    assert decoded.rejects == ()
    assert decoded.table.to_pylist() == [
        {
            "key": "k",
            "id": 1,
            "headers": [("a", "ü"), ("b", None)],
            "at": datetime(2026, 5, 3, 3, 9, 37, 777000, tzinfo=UTC),
            "part": 3,
            "place": 7,
        },
        {"key": None, "id": 2, "headers": [], "at": None, "part": 3, "place": 9},
    ]


def test_parts_that_do_not_fit_reject_their_message_only() -> None:
    decoded = decoder(PARTS, **ALL).decode(
        [
            message(b'{"id": 1}', 0, key=b"\xff"),
            message(b'{"id": "x"}', 1),
            message(b'{"id": 2}', 2),
            message(b'{"id": 3}', 3, headers=[("h", b"\xff")]),
            message(b'{"id": 4}', 4, timestamp=(1, 2**62)),
            message(b'{"id": "y"}', 5, key=b"\xff"),
            message(b'{"id": 5}', 6, key=b"k"),
        ]
    )
    assert [(row["id"], row["place"], row["key"]) for row in decoded.table.to_pylist()] == [(2, 2, None), (5, 6, "k")]
    assert [(reject.row, reject.field, reject.reason) for reject in decoded.rejects] == [
        (0, "key", "not valid UTF-8"),
        (1, "id", 'expected long, got string "x"'),
        (3, "headers.h", "not valid UTF-8"),
        (4, "at", f"{2**62} milliseconds are outside of the years 0001 to 9999"),
        (5, "id", 'expected long, got string "y"'),
    ]
    assert decoded.rejects[0].raw == b'{"id": 1}'


def test_bytes_and_a_time_without_zone() -> None:
    schema = columns(
        ("key", BinaryType(), False),
        ("headers", MapType(30, StringType(), 31, BinaryType(), False), True),
        ("at", TimestampType(), True),
    )
    options = {"key_field": "key", "headers_field": "headers", "record_time_field": "at"}
    decoded = decoder(schema, **options).decode(
        [
            message(None, key=b"\xff", headers=[("h", b"\xff")], timestamp=(2, 1)),
            message(b"not looked at", timestamp=(0, -1)),
        ]
    )
    at = datetime(1970, 1, 1, 0, 0, 0, 1000)
    assert decoded.table.to_pylist() == [{"key": b"\xff", "headers": [("h", b"\xff")], "at": at}]
    assert reasons(decoded) == {1: "required field is null"}


@pytest.mark.parametrize("option", ALL)
def test_options_that_name_no_such_column_or_one_of_another_type(option: str) -> None:
    for name in ("nothing", "wrong"):
        with pytest.raises(InvalidOption, match=f'stream "s" cannot have the option {option}'):
            decoder(columns(ID, ("wrong", DoubleType(), False)), **{option: name})


def test_a_column_takes_one_part() -> None:
    with pytest.raises(InvalidOption, match="offset_field") as refused:
        decoder(columns(ID, ("n", LongType(), False)), partition_field="n", offset_field="n")
    assert refused.value.detail == 'Its column "n" is taken by partition_field already.'


# -- the stream and its topic -----------------------------------------------------------------------------------


def test_columns_of_the_topic_that_the_stream_lacks_are_null_and_unknown_to_messages() -> None:
    topic = columns(ID, TEXT, ("more", LongType(), False))
    decoded = decoder(topic, columns(TEXT, ID)).decode([message(b'{"id": 1}'), message(b'{"id": 1, "more": 2}')])
    assert decoded.table.to_pylist() == [{"id": 1, "text": None, "more": None}]
    assert reasons(decoded) == {1: "unknown field"}


def test_the_stream_may_require_what_the_topic_does_not() -> None:
    of_stream = columns(("text", StringType(), True), ID)
    decoded = decoder(columns(ID, TEXT), of_stream).decode([message(b'{"id": 1}'), message(b'{"id": 1, "text": "x"}')])
    assert decoded.table.num_rows == 1
    assert reasons(decoded) == {0: "required field is missing"}


@pytest.mark.parametrize(
    ("of_stream", "detail"),
    [
        (columns(ID, ("gone", LongType(), False)), 'The topic has no column "gone".'),
        (columns(TEXT), 'The topic requires the column "id", which the stream does not have.'),
    ],
)
def test_a_stream_that_does_not_fit_its_topic(of_stream: Schema, detail: str) -> None:
    with pytest.raises(InvalidSchema, match='stream "s" does not fit its topic "s"') as refused:
        decoder(columns(ID, TEXT), of_stream)
    assert refused.value.detail == detail


def test_no_messages() -> None:
    for options in ({}, {"format": "csv"}):
        assert decode(columns(ID, TEXT), [], **options).table.num_rows == 0


def test_a_header_whose_name_is_not_text_is_a_reject() -> None:
    """Kafka's protocol says that names are text; the client raises when one is not."""

    class Misnamed:
        def value(self) -> bytes:
            return b'{"id": 1}'

        def headers(self) -> list[tuple[str, bytes | None]]:
            return [(b"caf\xe9".decode(), b"v")]

    topic = columns(("id", LongType(), True), ("headers", HEADERS, False))
    messages: Any = [Misnamed(), message(b'{"id": 2}')]
    decoded = decoder(topic, headers_field="headers").decode(messages)
    assert decoded.table.to_pylist() == [{"id": 2, "headers": []}]
    assert [(each.row, each.field, each.reason) for each in decoded.rejects] == [
        (0, "headers", "the name of a header is not valid UTF-8")
    ]
