"""The reader of small bodies: what it reads, what it leaves to Arrow's, and that nobody can tell which it was."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
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
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.storage.decode import Decoded, RecordDecoder
from headwater.storage.decode.ndjson import decode_ndjson
from headwater.storage.decode.sift import Sieve
from headwater.storage.decode.smallbody import SMALL, SmallReader

EVENTS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "price", DoubleType()),
    NestedField(4, "inner", StructType(NestedField(5, "x", IntegerType(), required=True))),
    NestedField(6, "list", ListType(7, StringType(), element_required=False)),
)
TYPES: list[IcebergType] = [
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(5, 2),
    DecimalType(38, 0),
    DecimalType(38, 19),
    DecimalType(3, 3),
    DateType(),
    TimeType(),
    TimestampType(),
    TimestamptzType(),
    StringType(),
    UUIDType(),
    BinaryType(),
    FixedType(2),
    ListType(2, LongType(), element_required=True),
    ListType(2, DoubleType(), element_required=False),
    StructType(NestedField(2, "x", LongType(), required=True)),
]
PLAIN_NUMBERS = """
    0 -0 1 -1 00 01 -01 +1 1. .5 -.5 1.0 1.5 -1.5 0.0 -0.0 -0.00 0e0 -0e0 -0E5 1e2 1E+2 1e-2 1e99 1e100 1e307 1e308
    1e309 1e400 -1e400 0e99 0e100 0e308 0e309 0e999 1e-99 1e-100 1e-308 4.9e-324 1e-400 0e-999 1e38 1e39 3.4028235e38
    3.4028236e38 123.45 123.456 123.450 999.99 1000.00 999.995 0.001 0.0010 0.999 1.000 -999.99 0.1234 12345 1e1 1.2e2
    12.345e1 2147483647 2147483648 -2147483648 -2147483649 9223372036854775807 9223372036854775808
    -9223372036854775808 -9223372036854775809 9007199254740993 18446744073709551616 0x10 1_000 1f NaN -NaN +NaN nan
    -nan Inf -Inf Infinity -Infinity +Infinity infinity 0.1 0.30000000000000004
"""
LONG_NUMBERS = ["9" * 18, "9" * 19, "9" * 20, "9" * 38, "9" * 39, "1" + "0" * 400, "9" * 5000, "0." + "0" * 400 + "1"]
LONG_NUMBERS += [f"{'9' * whole}.{'9' * part}" for whole in (1, 18, 19, 20) for part in (1, 18, 19, 20)]
WORDS = """
    null true false True None undefined [] {} [null] [1,2] [1.5] [-0] [true] [[]] {"x":1} {"x":null} {"x":1.0}
    {"x":1,"x":2} {"y":1} 'a' "a 1}{ 1},{"v":1 1,
"""
TEXTS = """
    a 1 1.5 -0 true 12.34 1e2 .5 5. +5 007 NaN 2024-05-01 2024-02-30 0000-01-01 0001-01-01 9999-12-31 10000-01-01
    2024-5-1 10:30 10:30:00 10:30:00.123456 10:30:00.1234567 24:00 10:60 10:30:60 10 10:30Z 2024-05-01T10:30:00
    2024-05-01T10:30:00Z 2024-05-01T10:30:00.5Z 2024-05-01T10:30:00.1234567Z 2024-05-01T10:30Z 2024-05-01T10Z
    2024-05-01T10:30:00+02:00 2024-05-01T10:30:00+0200 2024-05-01T10:30:00+02 2024-05-01T10:30:00-00:00
    2024-05-01T10:30:00+23:59 2024-05-01T10:30:00+24:00 2024-05-01T10:30:00+01:75 2024-05-01T24:00:00Z
    2024-05-01T23:59:60Z 2024-02-30T00:00:00Z 0001-01-01T00:00:00Z 0001-01-01T00:00:00+01:00 0000-01-01T00:00:00Z
    0999-01-01T00:00:00Z 1000-01-01T00:00:00+23:59 9998-12-31T23:59:59-23:59 9999-12-31T23:59:59Z
    9999-12-31T23:59:59-01:00 2024-05-01t10:30:00z 2024-05-01T10:30:00z 2024-05-01T1:30:00Z 2024-05-01T10:30:00.Z
    2024-05-01T10:30:00,5Z \u0662\u0660\u0662\u0664-05-01 \u0661 550e8400-e29b-41d4-a716-446655440000
    550E8400-E29B-41D4-A716-446655440000 550e8400e29b41d4a716446655440000 AA== AAA= AAAA AA AA=A A=== AA-_ \\ud800
    \\udc00\\ud800 \\ud83d\\ude00 \\u0000 \\u00e9 \u00e9 \x7f \x00 \\/ \\x \\u12 \\n
"""
SPACED = [
    "",
    " 1",
    "1 ",
    "2024-05-01 10:30:00",
    "2024-05-01 10:30:00 Z",
    " 2024-05-01T10:30:00Z",
    "2024-05-01T10:30:00 Z",
]
LITERALS = [*PLAIN_NUMBERS.split(), *LONG_NUMBERS, *WORDS.split(), "", "1 2"]
LITERALS += [f'"{text}"' for text in (*TEXTS.split(), *SPACED)]


def seen(decoded: Decoded) -> object:
    return (decoded.rows, decoded.truncated, decoded.rejects, repr(decoded.table.to_pylist()), decoded.table.schema)


def by_arrow(decoder: RecordDecoder, body: bytes) -> Decoded:
    assert decoder._ndjson is not None
    return decode_ndjson(decoder._ndjson, body, Sieve(decoder.arrow_schema, None, 1), small=0)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_literal_is_decoded_as_arrow_decodes_it(kind: IcebergType, required: bool) -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "v", kind, required=required)))
    for literal in LITERALS:
        body = b'{"v":%s}' % literal.encode()
        assert seen(decoder.ndjson(body)) == seen(by_arrow(decoder, body)), literal


PLAIN = [
    b'{"id":1}',
    b'{"id":1}\n{"id":2}\n',
    b'{ "id" : 1 , "name" : null }\n',
    b'{"name":"\\u00e9\\ud83d\\ude00","id":-5,"price":0}',
    '{"id":1,"name":"é{}\\n","price":-1.5e-7}'.encode(),
    b'{"id":1,"inner":null,"list":null}\n{"id":2,"inner":{"x":1},"list":["a",null]}\n{"id":3,"list":[]}',
]


@pytest.mark.parametrize("body", PLAIN)
def test_plain_bodies_are_read(body: bytes) -> None:
    table = SmallReader(EVENTS).table(body)
    assert table is not None
    table.validate(full=True)
    assert table.equals(by_arrow(RecordDecoder(EVENTS), body).table)


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        (FloatType(), b"1.5"),
        (DecimalType(5, 2), b"123.45"),
        (DecimalType(5, 2), b"-7"),
        (DecimalType(5, 2), b'"123.4"'),
        (DecimalType(3, 3), b"0.125"),
        (DateType(), b'"2024-05-01"'),
        (TimeType(), b'"10:30"'),
        (TimestampType(), b'"2024-05-01T10:30:00"'),
        (TimestamptzType(), b'"2024-05-01T10:30:00.123Z"'),
        (TimestamptzType(), b'"2024-05-01 10:30"'),
        (TimestamptzType(), b'"2024-05-01T10:30:00+02:00"'),
        (UUIDType(), b'"550e8400-e29b-41d4-a716-446655440000"'),
        (BinaryType(), b'"AA=="'),
        (FixedType(1), b'"AA=="'),
    ],
    ids=str,
)
def test_every_type_has_a_form_that_is_read(kind: IcebergType, literal: bytes) -> None:
    schema = Schema(NestedField(1, "v", kind))
    body = b'{"v":%s}\n{"v":null}\n' % literal
    table = SmallReader(schema).table(body)
    assert table is not None
    assert table.equals(by_arrow(RecordDecoder(schema), body).table)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        b'\xef\xbb\xbf{"id":1}',
        b'{"id":1}\r\n',
        b' {"id":1}',
        b'{"id":1}\n\n{"id":2}',
        b'{"id":1}{"id":2}',
        b'{"id":\n1}',
        b'{"id":1,"list":[\n"a"]}\n{"id":2}{"id":3}',
        b'{"id":1}\n[]',
        b'{"id":1,"price":-0}',
        b'{"id":1,"price":1e300}',
        b'{"id":1,"price":NaN}',
        b'{"id":true}',
        b'{"id":1.0}',
        b'{"name":"no id"}',
        b'{"id":1,"inner":{"x":null}}',
        b'{"id":1,"id":1}',
        b'{"id":1,"other":1}',
        b'{"id":1,"name":"\\ud800"}',
        b'{"id":1,"name":"\xff"}',
        b'{"id":1,"list":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_is_not_plain_is_left_to_arrow(body: bytes) -> None:
    assert SmallReader(EVENTS).table(body) is None


def test_a_body_of_the_limit_and_one_above_it_give_the_same() -> None:
    decoder = RecordDecoder(EVENTS)
    line = b'{"id":1,"name":"%s"}'
    for size in (SMALL - 1, SMALL, SMALL + 1):
        body = line % (b"x" * (size - len(line) + 2))
        assert len(body) == size
        assert seen(decoder.ndjson(body)) == seen(by_arrow(decoder, body))


def test_minus_nan_is_no_number() -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "v", ListType(2, DoubleType())), NestedField(3, "s", StringType())))
    body = b'{"v":[NaN]}\n{"v":[1,-NaN]}\n{"s":"-NaN"}'
    for decoded in (decoder.ndjson(body), by_arrow(decoder, body)):
        assert [str(reject) for reject in decoded.rejects] == ["row 1: not JSON at column 9: expecting value"]
        assert repr(decoded.table.to_pylist()) == "[{'v': [nan], 's': None}, {'v': None, 's': '-NaN'}]"
