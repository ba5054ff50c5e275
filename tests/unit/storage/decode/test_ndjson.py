"""Lines, rejects and limits of newline-delimited JSON, and the bodies on which Arrow's reader crashes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from headwater.storage.decode import Decoded, RecordDecoder
from headwater.storage.decode.lines import SEGMENT
from headwater.storage.decode.outcome import RAW_LIMIT

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "inner", StructType(NestedField(4, "x", IntegerType()))),
)
DECODER = RecordDecoder(SCHEMA)


def faults(decoded: Decoded) -> list[tuple[int, str | None, str]]:
    return [(reject.row, reject.field, reject.reason) for reject in decoded.rejects]


def ids(decoded: Decoded) -> list[int]:
    return decoded.table.column("id").to_pylist()


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n \n", b"\xef\xbb\xbf"])
def test_nothing(body: bytes) -> None:
    decoded = DECODER.ndjson(body)
    assert (decoded.rows, decoded.rejects, decoded.table.num_rows) == (0, (), 0)
    assert decoded.table.schema == DECODER.arrow_schema


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":1}\n{"id":2}',
        b'{"id":1}\n{"id":2}\n',
        b'{"id":1}\r\n{"id":2}\r\n',
        b'\n\n  {"id":1}\t\n\n{"id":2} \n\n',
        b'\xef\xbb\xbf{"id":1}\n{ "id" : 2 }',
    ],
)
def test_line_endings_and_space(body: bytes) -> None:
    decoded = DECODER.ndjson(body)
    assert (ids(decoded), decoded.rejects, decoded.rows) == ([1, 2], (), 2)


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        (b"null", None, "expected an object, got null"),
        (b"[1]", None, "expected an object, got array"),
        (b'"x"', None, 'expected an object, got string "x"'),
        (b"nonsense", None, "not JSON at column 1: expecting value"),
        (b'{"id":1', None, "not JSON at column 8: expecting ',' delimiter"),
        (b'{"id":"', None, "not JSON at column 7: unterminated string"),
        (b'{"id":1} {"id":2}', None, "more than one value on the line"),
        (b'{"id":1}{"id":2}', None, "more than one value on the line"),
        (b'{"id":1} null', None, "more than one value on the line"),
        (b'{"id":1} null {"id":2}', None, "more than one value on the line"),
        (b'{"id":1},', None, "more than one value on the line"),
        (b'{"id":1}\x00', None, "more than one value on the line"),
        (b'{"id":1,"name":"\xff"}', None, "not valid UTF-8 at byte 16"),
        (b'{"id":1,"name":"\xed\xa0\x80"}', None, "not valid UTF-8 at byte 16"),
        (b'{"id":1,"name":"a\tb"}', None, "not JSON at column 18: invalid control character at"),
        (b'{"id":1,"nmae":"x"}', "nmae", 'unknown field, did you mean "name"?'),
        (b'{"id":1,"zzz":"x"}', "zzz", "unknown field"),
        (b'{"id":1,"_offset":7}', "_offset", "unknown field, Headwater assigns it"),
        (b'{"id":1,"id":1}', "id", "field appears more than once"),
        (b'{"id":1,"name":null,"name":"x"}', "name", "field appears more than once"),
        (b'{"id":1,"inner":' + b"[" * 100_000 + b"}", None, "nested too deeply"),
        (b'{"id":1,"inner":{"x":' + b"[" * 500 + b"]" * 500 + b"}}", "inner.x", "expected int, got array"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_bad_lines(line: bytes, field: str | None, reason: str) -> None:
    decoded = DECODER.ndjson(b'{"id":1}\n' + line + b'\n{"id":3}\n')
    assert faults(decoded) == [(1, field, reason)]
    assert decoded.rejects[0].raw == line[:RAW_LIMIT]
    assert ids(decoded) == [1, 3]


def test_an_object_over_two_lines_is_two_bad_lines() -> None:
    decoded = DECODER.ndjson(b'{"id":1}\n{"id":\n2}\n{"id":3}')
    assert [reject.row for reject in decoded.rejects] == [1, 2]
    assert ids(decoded) == [1, 3]


def test_two_lines_with_one_record_do_not_make_up_for_one_line_with_two() -> None:
    decoded = DECODER.ndjson(b'{"id":1,"inner":\n{"x":1}}\n{"id":2}{"id":3}\n{"id":4}')
    assert [reject.row for reject in decoded.rejects] == [0, 1, 2]
    assert ids(decoded) == [4]


def test_the_order_of_good_rows_is_kept_around_bad_ones() -> None:
    lines = [b'{"id":%d}' % row if row % 3 else b'{"id":"%d"}' % row for row in range(1000)]
    decoded = DECODER.ndjson(b"\n".join(lines))
    assert [reject.row for reject in decoded.rejects] == list(range(0, 1000, 3))
    assert ids(decoded) == [row for row in range(1000) if row % 3]
    assert (decoded.rows, decoded.truncated) == (1000, False)


def test_one_bad_row_among_many_in_several_segments() -> None:
    name = b"x" * 1000
    lines = [b'{"id":%d,"name":"%s"}' % (row, name) for row in range(SEGMENT // 400)]
    lines[-2] = b'{"id":null}'
    decoded = DECODER.ndjson(b"\n".join(lines), max_rejects=10)
    assert faults(decoded) == [(len(lines) - 2, "id", "required field is null")]
    assert decoded.table.num_rows == len(lines) - 1
    assert ids(decoded)[-1] == len(lines) - 1


def test_a_record_longer_than_a_block_is_read() -> None:
    name = "y" * (3 * 1024 * 1024)
    body = b"\n".join([b'{"id":1}', b'{"id":2,"name":"%s"}' % name.encode(), b'{"id":3}'] * 2)
    decoded = DECODER.ndjson(body)
    assert decoded.rejects == ()
    assert decoded.table.column("name").to_pylist() == [None, name, None] * 2


def test_decoding_stops_after_enough_bad_rows() -> None:
    lines = [b'{"id":%d}' % row if row % 10 else b'{"id":[]}' for row in range(1000)]
    decoded = DECODER.ndjson(b"\n".join(lines), max_rejects=3)
    assert [reject.row for reject in decoded.rejects] == [0, 10, 20]
    assert decoded.truncated
    assert decoded.rows == 21
    assert decoded.table.num_rows == 0


def test_it_is_not_truncated_when_the_last_row_is_the_last_straw() -> None:
    decoded = DECODER.ndjson(b'{"id":1}\n{}', max_rejects=1)
    assert (decoded.rows, decoded.truncated, ids(decoded)) == (2, False, [1])


def test_rows_are_numbered_from_the_first_row() -> None:
    decoded = DECODER.ndjson(b'{"id":1}\n{}', first_row=100)
    assert [reject.row for reject in decoded.rejects] == [101]
    assert decoded.rows == 2


def test_raw_records_are_cut() -> None:
    decoded = DECODER.ndjson(b'{"id":"%s"}' % (b"z" * 100_000))
    assert len(decoded.rejects[0].raw) == RAW_LIMIT


MAPS = RecordDecoder(
    Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "tags", MapType(3, StringType(), 4, IntegerType(), value_required=True)),
        NestedField(5, "by_day", MapType(6, IntegerType(), 7, ListType(8, StringType()), value_required=False)),
    )
)


def test_maps_are_objects_or_arrays_of_pairs() -> None:
    decoded = MAPS.ndjson(
        b'{"id":1,"tags":{"a":1,"b":2}}\n{"id":2,"by_day":{"7":["x"],"-1":null}}\n'
        b'{"id":3,"tags":[{"key":"a","value":1}],"by_day":[{"key":7,"value":[]}]}\n{"id":4,"tags":{}}'
    )
    assert decoded.rejects == ()
    assert decoded.table.to_pylist() == [
        {"id": 1, "tags": [("a", 1), ("b", 2)], "by_day": None},
        {"id": 2, "tags": None, "by_day": [(7, ["x"]), (-1, None)]},
        {"id": 3, "tags": [("a", 1)], "by_day": [(7, [])]},
        {"id": 4, "tags": [], "by_day": None},
    ]


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        (b'"tags":{"a":"x"}', 'tags["a"]', 'expected int, got string "x"'),
        (b'"tags":{"a":null}', 'tags["a"]', "required field is null"),
        (b'"tags":{"a":1,"a":2}', 'tags["a"]', "key appears more than once"),
        (b'"tags":[{"key":"a","value":1},{"key":"a","value":2}]', 'tags["a"]', "key appears more than once"),
        (b'"tags":[1]', "tags[0]", 'expected an object with "key" and "value"'),
        (b'"tags":1', "tags", "expected map, got number 1"),
        (b'"by_day":{"x":[]}', 'by_day["x"]', 'expected int, got string "x"'),
        (b'"by_day":{"01":[]}', 'by_day["01"]', 'expected int, got string "01"'),
        (b'"by_day":{"1":["a",2]}', 'by_day["1"][1]', "expected string, got number 2"),
    ],
)
def test_bad_maps(value: bytes, field: str, reason: str) -> None:
    decoded = MAPS.ndjson(b'{"id":1}\n{"id":2,' + value + b'}\nnull\n{"id":4}', max_rejects=5)
    assert faults(decoded) == [(1, field, reason), (2, None, "expected an object, got null")]
    assert ids(decoded) == [1, 4]


CRASHES = [
    b"null",
    b'null\n{"v":1}',
    b'  null\n{"v":1}',
    b'{"v":"0e-2000000000"}',
    b'{"v":"1e-2000000000"}',
    b'{"v":0e-2000000000}',
    b'{"v":"0\\u0065-2000000000"}',
    b'{"v":"0e\\u002D2000000000"}',
    b'{"v":"0e-\\u0032000000000"}',
    b'{"v":1}\n{"v":"0E-2000000000"}',
]


def test_bodies_that_crash_arrow_do_not_reach_it() -> None:
    """In a process of its own, so that a crash is a failure and not the end of the tests."""
    script = f"""
        from pyiceberg.schema import Schema
        from pyiceberg.types import DecimalType, NestedField
        from headwater.storage.decode import RecordDecoder
        decoder = RecordDecoder(Schema(NestedField(1, "v", DecimalType(38, 2))))
        for body in {CRASHES!r}:
            print(body, flush=True)
            assert len(decoder.ndjson(body).rejects) == 1
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr.decode())


def test_what_only_looks_like_a_far_exponent_is_read() -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "v", DecimalType(38, 2)), NestedField(2, "s", StringType())))
    decoded = decoder.ndjson(b'{"v":1,"s":"0e-2000000000"}\n{"v":"100e-\\u0032"}\n{"v":0e-40}')
    assert decoded.rejects == ()
    assert decoded.table.column("s").to_pylist() == ["0e-2000000000", None, None]
