"""Every type: the JSON that it takes and what this becomes; the JSON that it refuses, and the exact reason."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
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

from headwater.storage.decode import RecordDecoder
from headwater.storage.schemas import arrow_schema

UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"
DATE_FORM = 'expected date as text "YYYY-MM-DD", got string'
TIME_FORM = 'expected time as text "HH:MM:SS[.ffffff]", got string'
TS_FORM = 'expected timestamp as text "YYYY-MM-DDTHH:MM:SS[.ffffff]" without a zone, got string'
TZ_FORM = 'expected timestamptz as text "YYYY-MM-DDTHH:MM:SS[.ffffff]Z" or with an offset, got string'
ITEM = StructType(
    NestedField(10, "sku", StringType(), required=True),
    NestedField(11, "qty", IntegerType()),
    NestedField(12, "id", UUIDType(), required=True),
)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


GOOD: list[tuple[IcebergType, str, object]] = [
    (BooleanType(), "true", True),
    (BooleanType(), "false", False),
    (IntegerType(), "-0", 0),
    (IntegerType(), "2147483647", 2**31 - 1),
    (IntegerType(), "-2147483648", -(2**31)),
    (LongType(), "9223372036854775807", 2**63 - 1),
    (FloatType(), "1.5", 1.5),
    (FloatType(), "3.4028235e38", 3.4028234663852886e38),
    (FloatType(), "1e-60", 0.0),
    (FloatType(), "Infinity", math.inf),
    (DoubleType(), "1", 1.0),
    (DoubleType(), "1e308", 1e308),
    (DoubleType(), "-Infinity", -math.inf),
    (DecimalType(5, 2), "1", Decimal("1.00")),
    (DecimalType(5, 2), '"999.99"', Decimal("999.99")),
    (DecimalType(5, 2), "1.5000000", Decimal("1.50")),
    (DecimalType(5, 2), "1e2", Decimal("100.00")),
    (DecimalType(5, 2), '"12e-1"', Decimal("1.20")),
    (DecimalType(38, 0), "9" * 38, Decimal("9" * 38)),
    (DecimalType(38, 10), "-0", Decimal("0E-10")),
    (DateType(), '"2024-02-29"', date(2024, 2, 29)),
    (DateType(), '"0001-01-01"', date(1, 1, 1)),
    (TimeType(), '"10:30"', time(10, 30)),
    (TimeType(), '"23:59:59.999999"', time(23, 59, 59, 999999)),
    (TimestampType(), '"2024-05-01"', datetime(2024, 5, 1)),
    (TimestampType(), '"2024-05-01 10:30:00.5"', datetime(2024, 5, 1, 10, 30, 0, 500000)),
    (TimestamptzType(), '"2024-05-01T10:30:00Z"', utc(2024, 5, 1, 10, 30)),
    (TimestamptzType(), '"2024-05-01T10:30:00+02:00"', utc(2024, 5, 1, 8, 30)),
    (TimestamptzType(), '"2024-05-01T10:30:00"', utc(2024, 5, 1, 10, 30)),
    (TimestamptzType(), '"2024-05-01"', utc(2024, 5, 1)),
    (StringType(), '"\\u00e9\\ud83d\\ude00 \\u0000"', "é😀 \0"),
    (StringType(), '"é"', "é"),
    (StringType(), '""', ""),
    (UUIDType(), f'"{UUID_TEXT}"', UUID(UUID_TEXT)),
    (UUIDType(), f'"{UUID_TEXT.upper()}"', UUID(UUID_TEXT)),
    (FixedType(4), '"AAECAw=="', b"\0\1\2\3"),
    (BinaryType(), '""', b""),
    (BinaryType(), '"AAEC"', b"\0\1\2"),
    (ListType(9, DateType(), element_required=False), '["2024-05-01", null]', [date(2024, 5, 1), None]),
    (ListType(9, IntegerType(), element_required=True), "[]", []),
    (ITEM, f'{{"sku": "a", "id": "{UUID_TEXT}"}}', {"sku": "a", "qty": None, "id": UUID(UUID_TEXT)}),
    (
        ListType(9, ITEM, element_required=False),
        f'[{{"sku": "a", "qty": 1, "id": "{UUID_TEXT}"}}, null]',
        [{"sku": "a", "qty": 1, "id": UUID(UUID_TEXT)}, None],
    ),
]

BAD: list[tuple[IcebergType, str, str, str]] = [
    (BooleanType(), "1", "v", "expected boolean, got number 1"),
    (BooleanType(), '"true"', "v", 'expected boolean, got string "true"'),
    (IntegerType(), '"1"', "v", 'expected int, got string "1"'),
    (IntegerType(), "1.0", "v", "expected int, got number 1.0"),
    (IntegerType(), "1e2", "v", "expected int, got number 1e2"),
    (IntegerType(), "true", "v", "expected int, got boolean true"),
    (IntegerType(), "2147483648", "v", "number 2147483648 does not fit int"),
    (LongType(), "9223372036854775808", "v", "number 9223372036854775808 does not fit long"),
    (LongType(), "9" * 5000, "v", f"number {'9' * 40}… does not fit long"),
    (LongType(), "[1]", "v", "expected long, got array"),
    (FloatType(), "1e39", "v", "number 1e39 does not fit float"),
    (FloatType(), '"1"', "v", 'expected float, got string "1"'),
    (DoubleType(), "1e400", "v", "number 1e400 does not fit double"),
    (DoubleType(), "99e308", "v", "number 99e308 does not fit double"),
    (DoubleType(), "9" * 400, "v", f"number {'9' * 40}… does not fit double"),
    (DecimalType(5, 2), "1.234", "v", "number 1.234 does not fit decimal(5,2)"),
    (DecimalType(5, 2), "1000", "v", "number 1000 does not fit decimal(5,2)"),
    (DecimalType(5, 2), '"abc"', "v", 'expected decimal(5,2), got string "abc"'),
    (DecimalType(5, 2), '" 1"', "v", 'expected decimal(5,2), got string " 1"'),
    (DecimalType(5, 2), "NaN", "v", "expected decimal(5,2), got number nan"),
    (DecimalType(38, 2), "9" * 38, "v", f"number {'9' * 38} does not fit decimal(38,2)"),
    (DateType(), '"2024-02-30"', "v", f'{DATE_FORM} "2024-02-30"'),
    (DateType(), '"0000-01-01"', "v", f'{DATE_FORM} "0000-01-01"'),
    (DateType(), '"2024-05-01T00:00:00"', "v", f'{DATE_FORM} "2024-05-01T00:00:00"'),
    (DateType(), "19000", "v", "expected date, got number 19000"),
    (TimeType(), '"24:00:00"', "v", f'{TIME_FORM} "24:00:00"'),
    (TimeType(), '"10:00:00Z"', "v", f'{TIME_FORM} "10:00:00Z"'),
    (TimeType(), "0", "v", "expected time, got number 0"),
    (TimestampType(), '"2024-05-01T10:30:00Z"', "v", f'{TS_FORM} "2024-05-01T10:30:00Z"'),
    (TimestampType(), '"2024-05-01T10:30:00+02:00"', "v", f'{TS_FORM} "2024-05-01T10:30:00+02:00"'),
    (TimestampType(), '"2024-05-01T10:30:00.1234567"', "v", f'{TS_FORM} "2024-05-01T10:30:00.1234567"'),
    (TimestamptzType(), '"now"', "v", f'{TZ_FORM} "now"'),
    (TimestamptzType(), "1714559400", "v", "expected timestamptz, got number 1714559400"),
    (TimestamptzType(), '"0001-01-01T00:00:00+01:00"', "v", f'{TZ_FORM} "0001-01-01T00:00:00+01:00"'),
    (StringType(), "1", "v", "expected string, got number 1"),
    (StringType(), "{}", "v", "expected string, got object"),
    (StringType(), '"\\ud800"', "v", 'string "\\ud800" has a lone surrogate and is not valid UTF-8'),
    (
        UUIDType(),
        f'"{UUID_TEXT.replace("-", "")}"',
        "v",
        f'expected uuid as text with hyphens, got string "{UUID_TEXT.replace("-", "")}"',
    ),
    (UUIDType(), f'"{UUID_TEXT}\\n"', "v", f'expected uuid as text with hyphens, got string "{UUID_TEXT}\\n"'),
    (FixedType(4), '"AAEC"', "v", "expected fixed(4), got 3 bytes"),
    (BinaryType(), '"AAE"', "v", 'expected binary as base64 text, got string "AAE"'),
    (BinaryType(), '"AA-_"', "v", 'expected binary as base64 text, got string "AA-_"'),
    (ListType(9, IntegerType(), element_required=True), "[1, null]", "v[1]", "required field is null"),
    (ListType(9, IntegerType(), element_required=True), '[1, 2, "x"]', "v[2]", 'expected int, got string "x"'),
    (ListType(9, IntegerType(), element_required=True), "{}", "v", "expected list, got object"),
    (ITEM, "[]", "v", "expected struct, got array"),
    (ITEM, '{"sku": "a"}', "v.id", "required field is missing"),
    (ITEM, '{"sku": null}', "v.sku", "required field is null"),
    (ITEM, '{"skuu": "a"}', "v.skuu", 'unknown field, did you mean "sku"?'),
    (ITEM, '{"sku": "a", "sku": "b"}', "v.sku", "field appears more than once"),
    (
        ListType(9, ITEM, element_required=False),
        f'[null, {{"sku": "a", "qty": "1", "id": "{UUID_TEXT}"}}]',
        "v[1].qty",
        'expected int, got string "1"',
    ),
]


def schema_of(kind: IcebergType, required: bool = False) -> Schema:
    return Schema(NestedField(1, "n", IntegerType(), required=True), NestedField(2, "v", kind, required=required))


@pytest.mark.parametrize(("kind", "text", "value"), GOOD, ids=lambda part: str(part)[:40])
def test_good_values(kind: IcebergType, text: str, value: object) -> None:
    schema = schema_of(kind, required=True)
    body = f'{{"n": 1, "v": {text}}}\n'.encode()
    decoded = RecordDecoder(schema).ndjson(body, max_rejects=None)
    assert decoded.rejects == ()
    assert decoded.table.column("v").to_pylist() == [value]
    assert decoded.table.schema.equals(arrow_schema(schema))
    decoded.table.validate(full=True)
    assert RecordDecoder(schema).json(b"[" + body + b"]").table.equals(decoded.table)


@pytest.mark.parametrize(("kind", "text", "field", "reason"), BAD, ids=lambda part: str(part)[:40])
def test_bad_values(kind: IcebergType, text: str, field: str, reason: str) -> None:
    bad = f'{{"n": 1, "v": {text}}}'.encode()
    body = b'{"n": 0}\n' + bad + b'\n{"n": 2, "v": null}\n'
    decoded = RecordDecoder(schema_of(kind)).ndjson(body, max_rejects=None)
    assert [(reject.row, reject.field, reject.reason, reject.raw) for reject in decoded.rejects] == [
        (1, field, reason, bad)
    ]
    assert decoded.table.to_pylist() == [{"n": 0, "v": None}, {"n": 2, "v": None}]
    assert decoded.rows == 3


@pytest.mark.parametrize("kind", [BooleanType(), DecimalType(5, 2), UUIDType(), ITEM, ListType(9, ITEM)], ids=str)
def test_required_columns(kind: IcebergType) -> None:
    decoded = RecordDecoder(schema_of(kind, required=True)).ndjson(
        b'{"n":1}\n{"n":2,"v":null}\n{"v":null}', max_rejects=None
    )
    assert [(reject.row, reject.field, reject.reason) for reject in decoded.rejects] == [
        (0, "v", "required field is missing"),
        (1, "v", "required field is null"),
        (2, "n", "required field is missing"),
    ]


def test_nan_is_kept() -> None:
    decoded = RecordDecoder(schema_of(DoubleType())).ndjson(b'{"n":1,"v":NaN}\n{"n":1,"v":Infinity}', max_rejects=None)
    values = decoded.table.column("v").to_pylist()
    assert math.isnan(values[0])
    assert values[1] == math.inf


def test_an_infinity_does_not_hide_a_number_that_is_too_large() -> None:
    body = b'{"n":1,"v":Infinity}\n{"n":2,"v":99e308}\n{"n":3,"v":-Infinity}'
    decoded = RecordDecoder(schema_of(FloatType())).ndjson(body, max_rejects=None)
    assert [reject.row for reject in decoded.rejects] == [1]
    assert decoded.table.column("v").to_pylist() == [math.inf, -math.inf]


def test_a_null_struct_with_required_fields_can_be_written_to_parquet() -> None:
    import pyarrow.parquet as pq

    nested = StructType(
        NestedField(20, "inner", ITEM, required=True), NestedField(21, "days", ListType(22, DateType()), required=True)
    )
    decoded = RecordDecoder(schema_of(nested)).ndjson(b'{"n":1}\n{"n":2,"v":null}', max_rejects=None)
    assert decoded.rejects == ()
    sink = pa.BufferOutputStream()
    pq.write_table(decoded.table, sink)
    assert pq.read_table(pa.BufferReader(sink.getvalue())).column("v").to_pylist() == [None, None]
