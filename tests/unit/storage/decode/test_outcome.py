"""The error that a rejected request becomes."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, LongType, NestedField

from headwater.storage.decode import RecordDecoder, rejection

DECODER = RecordDecoder(
    Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "total", DecimalType(12, 2)))
)


def test_a_rejection_names_rows_fields_and_reasons() -> None:
    lines = [b'{"id":%d}' % row for row in range(1000)]
    lines[17] = b'{"id":17,"total":"abc"}'
    lines[20] = b"null"
    lines[30] = b"{}"
    error = rejection("orders", DECODER.ndjson(b"\n".join(lines)), limit=2)
    assert error.message == 'topic "orders" rejected 3 of 1000 records'
    assert error.detail == (
        'row 17, field "total": expected decimal(12,2), got string "abc"; '
        "row 20: expected an object, got null; and 1 more."
    )
    assert error.data["rejects"] == [
        {"row": 17, "field": "total", "reason": 'expected decimal(12,2), got string "abc"'},
        {"row": 20, "field": None, "reason": "expected an object, got null"},
    ]
    assert (error.data["rejected"], error.data["rows"], error.data["truncated"]) == (3, 1000, False)


def test_a_rejection_says_when_reading_stopped() -> None:
    error = rejection("orders", DECODER.ndjson(b"{}\n{}\n{}", max_rejects=2))
    assert error.message == 'topic "orders" rejected 2 of the first 2 records'
    assert rejection("orders", DECODER.ndjson(b"{}")).message == 'topic "orders" rejected 1 of 1 record'
