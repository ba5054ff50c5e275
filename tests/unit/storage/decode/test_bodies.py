"""JSON arrays and CSV."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from headwater.errors import RecordsRejected
from headwater.storage.decode import Decoded, RecordDecoder

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))
DECODER = RecordDecoder(SCHEMA)
UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"


def faults(decoded: Decoded) -> list[tuple[int, str | None, str]]:
    return [(reject.row, reject.field, reject.reason) for reject in decoded.rejects]


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b"[]", []),
        (b" [ ] \n", []),
        (b'{"id":1}', [1]),
        (b'[{"id":1},{"id":2}]', [1, 2]),
        (b'[\n  {\n    "id": 1\n  },\r\n  {"id": 2}\n]\n', [1, 2]),
        (b'\xef\xbb\xbf[{"id":1}]', [1]),
    ],
)
def test_json_bodies(body: bytes, ids: list[int]) -> None:
    decoded = DECODER.json(body)
    assert (decoded.table.column("id").to_pylist(), decoded.rejects) == (ids, ())


def test_bad_json_elements_are_rejected_one_by_one() -> None:
    decoded = DECODER.json(b'[{"id":1}, null, {"id":"x"}, {"id":\n2, "id": 3}, [{"id":1}], {"id":5}]')
    assert faults(decoded) == [
        (1, None, "expected an object, got null"),
        (2, "id", 'expected long, got string "x"'),
        (3, "id", "field appears more than once"),
        (4, None, "expected an object, got array"),
    ]
    assert decoded.table.column("id").to_pylist() == [1, 5]
    assert decoded.rejects[1].raw == b'{"id":"x"}'


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "0 characters: it is empty."),
        (b'[{"id":1}', "9 characters: the array is not closed."),
        (b'[{"id":1},\n]', "11 characters: Expecting value."),
        (b'[{"id":1} {"id":2}]', "10 characters: Expecting ',' delimiter."),
        (
            b'[{"id":1}]x',
            "10 characters: there is more after the array; one record per line is another format, ndjson.",
        ),
        (
            b'{"id":1}\n{"id":2}',
            "9 characters: it is neither one array of objects nor one object; one record per line is another format, "
            "ndjson.",
        ),
        (b'["\xff"]', "0 characters: it is not valid UTF-8 (invalid start byte)."),
        (b"[" * 100_000, "1 characters: it is nested too deeply."),
    ],
    ids=lambda part: str(part)[:40],
)
def test_bodies_that_are_not_json(body: bytes, detail: str) -> None:
    with pytest.raises(RecordsRejected) as raised:
        DECODER.json(body)
    assert raised.value.message == "input is not a JSON array of records"
    assert raised.value.detail == f"After {detail}"


WIDE = RecordDecoder(
    Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "ok", BooleanType()),
        NestedField(3, "f", FloatType()),
        NestedField(4, "d", DoubleType()),
        NestedField(5, "total", DecimalType(5, 2)),
        NestedField(6, "day", DateType()),
        NestedField(7, "at", TimestamptzType()),
        NestedField(8, "name", StringType()),
        NestedField(9, "key", UUIDType()),
        NestedField(10, "blob", BinaryType()),
        NestedField(11, "tags", MapType(12, StringType(), 13, IntegerType(), value_required=False)),
        NestedField(14, "item", StructType(NestedField(15, "days", ListType(16, DateType()), required=True))),
    )
)


def test_csv_values() -> None:
    decoded = WIDE.csv(
        b"item,id,ok,f,d,total,day,at,name,key,blob,tags\r\n"
        b'"{""days"":[""2024-05-01""]}",1,TRUE,1.5,NaN,12.50,2024-05-01,2024-05-01T10:00:00+02:00,"a ""b"", c",'
        + UUID_TEXT.encode()
        + b',AAEC,"{""x"":1}"\r\n'
        b',-2,false,1e3,1e-3,1e2,2024-05-02,2024-05-01,"",,,\r\n'
    )
    assert decoded.rejects == ()
    first, second = decoded.table.to_pylist()
    assert str(first.pop("d")) == "nan"
    assert first == {
        "id": 1,
        "ok": True,
        "f": 1.5,
        "total": Decimal("12.50"),
        "day": date(2024, 5, 1),
        "at": datetime(2024, 5, 1, 8, tzinfo=UTC),
        "name": 'a "b", c',
        "key": UUID(UUID_TEXT),
        "blob": b"\0\1\2",
        "tags": [("x", 1)],
        "item": {"days": [date(2024, 5, 1)]},
    }
    assert second == {
        "id": -2,
        "ok": False,
        "f": 1000.0,
        "d": 0.001,
        "total": Decimal("100.00"),
        "day": date(2024, 5, 2),
        "at": datetime(2024, 5, 1, tzinfo=UTC),
        "name": "",
        "key": None,
        "blob": None,
        "tags": None,
        "item": None,
    }


@pytest.mark.parametrize(
    ("column", "cell", "field", "reason"),
    [
        ("ok", b"1", "ok", 'expected boolean, got string "1"'),
        ("ok", b"yes", "ok", 'expected boolean, got string "yes"'),
        ("id", b"", "id", "required field is null"),
        ("id", b"1.0", "id", "expected int, got number 1.0"),
        ("id", b"0x1F", "id", 'expected int, got string "0x1F"'),
        ("id", b" 1", "id", 'expected int, got string " 1"'),
        ("id", b"2147483648", "id", "number 2147483648 does not fit int"),
        ("f", b"1e39", "f", "number 1e39 does not fit float"),
        ("d", b"inf", "d", 'expected double, got string "inf"'),
        ("total", b"1.234", "total", 'string "1.234" does not fit decimal(5,2)'),
        ("total", b"0e-2000000000", "total", 'string "0e-2000000000" does not fit decimal(5,2)'),
        ("day", b"01.05.2024", "day", 'expected date as text "YYYY-MM-DD", got string "01.05.2024"'),
        ("key", b"x", "key", 'expected uuid as text with hyphens, got string "x"'),
        ("name", b"\xff", "name", "not valid UTF-8"),
        ("tags", b'"{""x"":""y""}"', 'tags["x"]', 'expected int, got string "y"'),
        ("tags", b"{x", "tags", "not JSON at column 2: expecting property name enclosed in double quotes"),
        ("item", b'"{""days"":[1]}"', "item.days[0]", "expected date, got number 1"),
        ("item", b'"{""days"":[]} {}"', "item", "more than one value on the line"),
    ],
)
def test_bad_csv_cells(column: str, cell: bytes, field: str, reason: str) -> None:
    name = column.encode()
    header, good = (b"id", b"7") if column == "id" else (b"id," + name, b"7,")
    bad = cell if column == "id" else b"7," + cell
    decoded = WIDE.csv(
        header + b"\n" + good + b"\n" + (b'"' + bad + b'"' if bad == b"" else bad) + b"\n" + good + b"\n"
    )
    if bad == b"":
        assert [reject.row for reject in decoded.rejects] == [1]
        return
    assert faults(decoded) == [(1, field, reason)]
    assert decoded.table.column("id").to_pylist() == [7, 7]


def test_csv_rows_with_another_number_of_cells() -> None:
    decoded = DECODER.csv(b'id,name\n1,a\n2\n"3","b\nb"\n4,c,d\n\n5,e\nx,\n', first_row=10)
    assert faults(decoded) == [
        (11, None, "expected 2 cells, got 1"),
        (13, None, "expected 2 cells, got 3"),
        (15, "id", 'expected long, got string "x"'),
    ]
    assert [reject.raw for reject in decoded.rejects] == [b"2", b"4,c,d", b'{"id":"x","name":null}']
    assert decoded.table.to_pylist() == [{"id": 1, "name": "a"}, {"id": 3, "name": "b\nb"}, {"id": 5, "name": "e"}]
    assert decoded.rows == 6


@pytest.mark.parametrize("body", [b"id,name", b"id,name\n", b"id\r\n\r\n"])
def test_csv_without_rows(body: bytes) -> None:
    assert DECODER.csv(body).rows == 0


@pytest.mark.parametrize(
    ("body", "message", "detail"),
    [
        (b"", "csv header is missing", None),
        (b"id,nmae\n1,2\n", "csv columns do not match the schema", 'Column "nmae": unknown field.'),
        (b"name\nx\n", "csv columns do not match the schema", 'Column "id": required field is missing.'),
        (b"id,id\n1,2\n", "csv columns do not match the schema", 'Column "id": field appears more than once.'),
        (b'id,name\n1,"x\n', "csv body has a quote that is never closed", None),
    ],
)
def test_csv_bodies_that_cannot_be_read(body: bytes, message: str, detail: str | None) -> None:
    with pytest.raises(RecordsRejected) as raised:
        DECODER.csv(body)
    assert (raised.value.message, raised.value.detail) == (message, detail)


def test_csv_rejects_system_columns_with_a_hint() -> None:
    with pytest.raises(RecordsRejected) as raised:
        DECODER.csv(b"id,_offset\n1,2\n")
    assert raised.value.hint == "Headwater assigns this column; leave it out."
