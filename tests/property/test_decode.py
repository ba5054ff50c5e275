"""Generated schemas and rows: good rows come back exactly, only bad ones are rejected, and all ways in agree."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.errors import RecordsRejected
from headwater.storage.decode import Decoded, RecordDecoder, csv_blocks, json_records, ndjson_blocks
from headwater.storage.decode.ndjson import check_ndjson, decode_ndjson
from headwater.storage.decode.sift import Sieve
from headwater.storage.schemas import arrow_schema

NAMES = st.sampled_from(["a", "b", "c", "order_id", "x1", "value", "key", "e"])
SIMPLE: list[IcebergType] = [
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DateType(),
    TimeType(),
    TimestampType(),
    TimestamptzType(),
    StringType(),
    UUIDType(),
    BinaryType(),
]


@st.composite
def decimals(draw: st.DrawFn) -> DecimalType:
    precision = draw(st.integers(1, 38))
    return DecimalType(precision, draw(st.integers(0, precision)))


SCALARS = st.one_of(st.sampled_from(SIMPLE), decimals(), st.builds(FixedType, st.integers(1, 20)))


@st.composite
def structs(draw: st.DrawFn, inner: st.SearchStrategy[IcebergType]) -> StructType:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    return StructType(*(NestedField(0, name, draw(inner), required=draw(st.booleans())) for name in names))


def nested(inner: st.SearchStrategy[IcebergType], maps: bool) -> st.SearchStrategy[IcebergType]:
    lists = st.builds(lambda kind, required: ListType(0, kind, element_required=required), inner, st.booleans())
    if not maps:
        return st.one_of(lists, structs(inner))
    entries = st.builds(
        lambda key, kind, required: MapType(0, key, 0, kind, value_required=required), SCALARS, inner, st.booleans()
    )
    return st.one_of(lists, structs(inner), entries)


def kinds(maps: bool) -> st.SearchStrategy[IcebergType]:
    return st.recursive(SCALARS, lambda inner: nested(inner, maps), max_leaves=5)


@st.composite
def schemas(draw: st.DrawFn, maps: bool = False) -> Schema:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    fields = (NestedField(i + 1, name, draw(kinds(maps)), required=draw(st.booleans())) for i, name in enumerate(names))
    return Schema(*fields)


def values(kind: IcebergType) -> st.SearchStrategy[Any]:
    """Python values of a type, as Arrow gives them back."""
    match kind:
        case BooleanType():
            return st.booleans()
        case IntegerType():
            return st.integers(-(2**31), 2**31 - 1)
        case LongType():
            return st.integers(-(2**63), 2**63 - 1)
        case FloatType():
            return st.floats(width=32, allow_nan=False)
        case DoubleType():
            return st.floats(allow_nan=False)
        case DecimalType():
            limit = 10**kind.precision - 1
            return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}E-{kind.scale}"))
        case DateType():
            return st.dates()
        case TimeType():
            return st.times()
        case TimestampType():
            return st.datetimes()
        case TimestamptzType():
            return st.datetimes(timezones=st.just(UTC))
        case StringType():
            return st.text(st.characters(codec="utf-8"), max_size=8)
        case UUIDType():
            return st.uuids()
        case FixedType():
            return st.binary(min_size=len(kind), max_size=len(kind))
        case BinaryType():
            return st.binary(max_size=8)
        case ListType():
            return st.lists(maybe(kind.element_type, kind.element_required), max_size=3)
        case MapType():
            keys = values(kind.key_type)
            return st.dictionaries(keys, maybe(kind.value_type, kind.value_required), max_size=3).map(
                lambda entries: list(entries.items())
            )
        case StructType():
            return rows(kind)
    raise AssertionError(kind)


def maybe(kind: IcebergType, required: bool) -> st.SearchStrategy[Any]:
    return values(kind) if required else st.none() | values(kind)


def rows(kind: StructType) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({field.name: maybe(field.field_type, field.required) for field in kind.fields})


def as_json(value: Any, kind: IcebergType) -> Any:
    """The value as JSON has it."""
    if value is None:
        return None
    match kind:
        case DecimalType():
            return str(value)
        case DateType() | TimeType() | TimestampType() | TimestamptzType():
            return value.isoformat()
        case UUIDType():
            return str(value)
        case FixedType() | BinaryType():
            return base64.b64encode(value).decode()
        case ListType():
            return [as_json(item, kind.element_type) for item in value]
        case MapType():
            return [
                {"key": as_json(key, kind.key_type), "value": as_json(item, kind.value_type)} for key, item in value
            ]
        case StructType():
            return {field.name: as_json(value[field.name], field.field_type) for field in kind.fields}
    return value


def line(row: dict[str, Any], schema: Schema) -> bytes:
    return json.dumps(as_json(row, schema.as_struct()), ensure_ascii=False).encode()


def checked(decoder: RecordDecoder, body: bytes) -> Decoded:
    """The body by Python alone."""
    return check_ndjson(decoder._records, body, Sieve(decoder.arrow_schema, None, 1))


def by_arrow(decoder: RecordDecoder, body: bytes, limit: int | None = None) -> Decoded:
    """The body by Arrow's reader, however small it is."""
    assert decoder._ndjson is not None
    return decode_ndjson(decoder._ndjson, body, Sieve(decoder.arrow_schema, limit, 1), small=0)


def outcome(decoded: Decoded) -> object:
    """All that a caller sees; as text, so that 0.0 and -0.0 differ and NaN is itself."""
    return (decoded.rows, decoded.truncated, decoded.rejects, repr(decoded.table.to_pylist()), decoded.table.schema)


def rejected(decoded: Decoded) -> list[int]:
    return [reject.row for reject in decoded.rejects]


CASES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@CASES
@given(st.data())
def test_good_rows_come_back_exactly_in_every_way(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    sent = data.draw(st.lists(rows(schema.as_struct()), max_size=5))
    decoder = RecordDecoder(schema)
    body = b"\n".join(line(row, schema) for row in sent)
    decoded = decoder.ndjson(body)
    assert decoded.rejects == ()
    assert decoded.table.to_pylist() == sent
    assert decoded.table.schema.equals(arrow_schema(schema))
    decoded.table.validate(full=True)
    assert decoder.json(b"[" + b",".join(body.split(b"\n") if sent else []) + b"]").table.equals(decoded.table)
    assert decoder.rows(sent).table.equals(decoded.table)
    assert decoder.arrow(decoded.table).table.equals(decoded.table)
    assert by_arrow(decoder, body).table.equals(decoded.table)
    assert checked(decoder, body).table.equals(decoded.table)


@CASES
@given(st.data())
def test_good_rows_with_maps_come_back_exactly(data: st.DataObject) -> None:
    schema = data.draw(schemas(maps=True))
    sent = data.draw(st.lists(rows(schema.as_struct()), max_size=5))
    decoder = RecordDecoder(schema)
    decoded = decoder.ndjson(b"\n".join(line(row, schema) for row in sent))
    assert decoded.rejects == ()
    assert decoded.table.to_pylist() == sent
    decoded.table.validate(full=True)
    assert decoder.rows(sent).table.equals(decoded.table)
    assert decoder.arrow(decoded.table).table.equals(decoded.table)


WRONG: dict[type[IcebergType], list[Any]] = {
    BooleanType: [1, "true", []],
    IntegerType: [2**31, 1.5, "1", True, {}],
    LongType: [2**63, -(2**63) - 1, 1.0, "1", 10**400],
    FloatType: [1e39, "1", True, 10**400],
    DoubleType: ["1", False, 10**400, []],
    DecimalType: ["abc", "", True, "1e50", "0." + "0" * 60, 10**60, {}],
    DateType: ["2024-02-30", "", 1, "2024-05-01T00:00:00", "0000-01-01"],
    TimeType: ["24:00", "", 1, "10:00:00Z"],
    TimestampType: ["2024-05-01T00:00:00Z", "", 1, "2024-05-01T00:00:00.1234567"],
    TimestamptzType: ["soon", "", 1, "2024-05-01T00:00:00+25:00"],
    StringType: [1, [], "\ud800"],
    UUIDType: ["", "550e8400e29b41d4a716446655440000", 1],
    FixedType: ["AA", 1, "A===", "A" * 400],
    BinaryType: ["AAA", 1, "AA-_"],
    ListType: ["", {}, 1],
    StructType: ["", [], 1, {"no such field": 1}],
}


@st.composite
def spoiled(draw: st.DrawFn, row: dict[str, Any], schema: Schema) -> bytes:
    """A row's line with one fault."""
    field = draw(st.sampled_from(schema.fields))
    record = as_json(row, schema.as_struct())
    fault = draw(st.sampled_from(["wrong", "missing", "unknown", "cut", "twice", "repeated"]))
    text = json.dumps(record)
    if fault == "missing" and field.required:
        del record[field.name]
    elif fault == "unknown":
        record["no_such_field"] = 1
    elif fault == "cut":
        return text[: draw(st.integers(1, len(text) - 1))].encode()
    elif fault == "twice":
        return f"{text} {text}".encode()
    elif fault == "repeated":
        return f'{text[:-1]},"{field.name}":null}}'.encode()
    else:
        record[field.name] = draw(st.sampled_from(WRONG[type(field.field_type)]))
    return json.dumps(record).encode()


@CASES
@given(st.data())
def test_exactly_the_spoiled_rows_are_rejected(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    sent = data.draw(st.lists(rows(schema.as_struct()), min_size=1, max_size=8))
    bad = data.draw(st.sets(st.integers(0, len(sent) - 1), min_size=1))
    lines = [data.draw(spoiled(row, schema)) if at in bad else line(row, schema) for at, row in enumerate(sent)]
    decoder = RecordDecoder(schema)
    decoded = decoder.ndjson(b"\n".join(lines))
    assert rejected(decoded) == sorted(bad)
    assert decoded.table.to_pylist() == [row for at, row in enumerate(sent) if at not in bad]
    assert [reject.raw for reject in decoded.rejects] == [lines[at].strip() for at in sorted(bad)]
    assert decoded.rows == len(sent)
    assert rejected(checked(decoder, b"\n".join(lines))) == sorted(bad)


DIGITS = st.text("0123456789", min_size=1, max_size=45)
NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.just("") | DIGITS.map(lambda digits: f".{digits}") | st.just("."),
    st.just("") | st.builds(lambda mark, power: f"{mark}{power}", st.sampled_from("eE"), st.integers(-400, 400)),
)
MOMENTS = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
    r"([T ][0-2][0-9](:[0-6][0-9](:[0-6][0-9](\.[0-9]{0,7})?)?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)
CLOCKS = st.from_regex(r"[0-2][0-9](:[0-6][0-9]?(:[0-6][0-9](\.[0-9]{0,7})?)?)?Z?", fullmatch=True)
BASE64 = st.text("AZaz09+/=-_", max_size=8)
LITERALS = st.one_of(
    NUMBERS,
    st.one_of(NUMBERS, MOMENTS, CLOCKS, BASE64, st.uuids().map(str), st.text(max_size=6)).map(json.dumps),
    st.sampled_from(
        ["null", "true", "false", "NaN", "-NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan", "0", "-0", "0e999"]
    ),
    st.sampled_from(["[]", "{}", "[null]", '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\x7f"', '"\\/"', "'x'"]),
)


def spellings(kind: IcebergType) -> st.SearchStrategy[str]:
    """JSON texts of good values, as several encoders would write them."""
    match kind:
        case ListType():
            items = st.lists(spellings(kind.element_type), max_size=3)
            return items.map(lambda texts: f"[{','.join(texts)}]")
        case StructType():
            return objects(kind)
        case FloatType() | DoubleType():
            tame = st.decimals(-100, 100, places=2).map(str) | st.integers(-9, 9).map(str)
            return tame | values(kind).map(json.dumps)
    return st.builds(
        lambda value, ascii: json.dumps(as_json(value, kind), ensure_ascii=ascii), values(kind), st.booleans()
    )


QUIRKS = ["twice", "unknown", "literal", "null", "missing", "space", "escape"]


@st.composite
def objects(draw: st.DrawFn, kind: StructType) -> str:
    """JSON objects of a struct, names in any order; now and then with one thing that is rare or wrong."""
    fields = list(draw(st.permutations(kind.fields)))
    quirk = draw(st.sampled_from([*["none"] * 14, *QUIRKS]))
    space = draw(st.sampled_from(" \t\r\n")) if quirk == "space" else ""
    if quirk == "twice":
        fields.append(draw(st.sampled_from(fields)))
    if quirk == "missing":
        fields.pop()
    pairs = [[json.dumps(field.name), draw(spellings(field.field_type))] for field in fields] or [["", ""]]
    name = json.loads(pairs[0][0] or '"x"')
    match quirk:
        case "unknown":
            pairs.append(['"no_such_field"', "1"])
        case "literal" | "null":
            pairs[0][1] = "null" if quirk == "null" else draw(LITERALS)
        case "escape":
            pairs[0][0] = f'"\\u{ord(name[0]):04x}{name[1:]}"'
    return "{" + f",{space}".join(f"{name}{space}:{text}" for name, text in pairs if name) + space + "}"


@st.composite
def bodies(draw: st.DrawFn, schema: Schema) -> bytes:
    """Bodies of good and bad lines, ended and parted as they come, rarely damaged."""
    kind = schema.as_struct()
    lines = draw(st.lists(objects(kind), min_size=1, max_size=4))
    between = draw(st.sampled_from([*["\n"] * 12, "\r\n", "\n\n", "\n ", "", ",", " "]))
    body = (between.join(lines) + draw(st.sampled_from(["", "", "\n", "\n", "\n\n", " "]))).encode(
        "utf-8", "surrogatepass"
    )
    fault = draw(st.sampled_from([*["none"] * 9, "mark", "cut", "byte"]))
    place = draw(st.integers(0, len(body)))
    match fault:
        case "mark":
            return b"\xef\xbb\xbf" + body
        case "cut":
            return body[:place]
        case "byte":
            return body[:place] + draw(st.binary(min_size=1, max_size=2)) + body[place + 1 :]
    return body


@settings(CASES, max_examples=400)
@given(SCALARS, st.lists(LITERALS, min_size=1, max_size=12))
def test_arrow_and_python_agree_on_every_literal(kind: IcebergType, literals: list[str]) -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "v", kind)))
    body = b"\n".join(b'{"v":%s}' % literal.encode("utf-8", "surrogatepass") for literal in literals)
    fast, slow = by_arrow(decoder, body), checked(decoder, body)
    assert rejected(fast) == rejected(slow)
    assert [reject.reason for reject in fast.rejects] == [reject.reason for reject in slow.rejects]
    assert repr(fast.table.to_pylist()) == repr(slow.table.to_pylist())


@settings(CASES, max_examples=400)
@given(SCALARS, st.lists(LITERALS, min_size=1, max_size=12))
def test_small_bodies_of_one_literal_are_decoded_as_arrow_decodes_them(kind: IcebergType, literals: list[str]) -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "v", kind)))
    for literal in literals:
        body = b'{"v":%s}' % literal.encode("utf-8", "surrogatepass")
        assert outcome(decoder.ndjson(body)) == outcome(by_arrow(decoder, body))


@settings(CASES, max_examples=600)
@given(st.data(), st.sampled_from([None, 1, 3]))
def test_small_bodies_are_decoded_as_arrow_decodes_them(data: st.DataObject, limit: int | None) -> None:
    schema = data.draw(schemas())
    body = data.draw(bodies(schema))
    decoder = RecordDecoder(schema)
    decoded = decoder.ndjson(body, max_rejects=limit)
    assert outcome(decoded) == outcome(by_arrow(decoder, body, limit))
    decoded.table.validate(full=True)


@CASES
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    b'{"v":1}',
                    b'{"v":{"w":1}}',
                    b"null",
                    b"{",
                    b"}",
                    b'{"v":',
                    b" ",
                    b"\r",
                    b"\0",
                    b"\xff",
                    b'{"v":1}{"v":2}',
                ]
            ),
            st.binary(max_size=4),
        ),
        max_size=12,
    ),
    st.sampled_from([b"\n", b"", b" "]),
)
def test_any_bytes_are_rows_or_rejects(parts: list[bytes], between: bytes) -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "v", LongType())))
    body = between.join(parts)
    decoded = decoder.ndjson(body)
    assert decoded.rows == len(
        [part for part in body.removeprefix(b"\xef\xbb\xbf").split(b"\n") if part.strip(b" \t\r")]
    )
    assert decoded.rows == decoded.table.num_rows + len(decoded.rejects)
    assert outcome(decoded) == outcome(by_arrow(decoder, body))
    assert rejected(decoded) == rejected(checked(decoder, body))


@CASES
@given(st.lists(st.binary(max_size=30)), st.integers(1, 50))
def test_ndjson_blocks_lose_nothing(chunks: list[bytes], target: int) -> None:
    blocks = list(ndjson_blocks(chunks, target, 10_000))
    assert b"".join(blocks) == b"".join(chunks)
    assert all(block.endswith(b"\n") for block in blocks[:-1])


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0.5, -1e99])
    | st.text('ab"\\[]{},:\n\r\té€😀', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\{}', max_size=2), inner, max_size=4),
    max_leaves=12,
)


@CASES
@given(
    st.lists(st.dictionaries(st.text("ab", max_size=2), JSON_VALUES, max_size=4) | JSON_VALUES, max_size=5),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 400), st.sampled_from(b'"\\[]{},: \n\x01\xff1e-')),
    st.integers(1, 40),
    st.sampled_from([1, 7, 64 * 1024]),
)
def test_a_json_array_is_cut_into_its_records(
    records: list[Any], indent: int | None, ascii: bool, damage: tuple[int, int] | None, piece: int, window: int
) -> None:
    """Whatever the pieces and however long a record may be; and a body that is not JSON never becomes one that is."""
    body = json.dumps(records, indent=indent, ensure_ascii=ascii).encode()
    if damage is not None:
        place = damage[0] % len(body)
        body = body[:place] + bytes([damage[1]]) + body[place + 1 :]
    try:
        expected = json.loads(body)
    except ValueError:
        expected = None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_records, "WINDOW", window)
        try:
            pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
            lines = list(json_records.json_records(pieces, 10_000))
        except RecordsRejected:
            # A long element that is no object or array is refused at once, and so is what is not an array at all.
            assert expected is None or window < 64 * 1024 or not isinstance(expected, list | dict)
            return
    assert not any("\n" in line or "\r" in line for line in lines)
    try:
        found = [json.loads(line) for line in lines]
    except ValueError:
        assert expected is None, "what is wrong inside a long record, the decoder says"
        return
    assert found == (expected if isinstance(expected, list) else [expected])


def csv_cell(text: str | None) -> str:
    return "" if text is None else '"' + text.replace('"', '""') + '"'


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)


@CASES
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | TEXTS), max_size=12), st.integers(1, 60))
def test_csv_comes_back_exactly_also_in_blocks(records: list[tuple[int, str | None]], target: int) -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType())))
    body = "id,name\n" + "".join(f"{number},{csv_cell(name)}\n" for number, name in records)
    expected = [{"id": number, "name": name} for number, name in records]
    decoded = decoder.csv(body.encode())
    assert decoded.rejects == ()
    assert decoded.table.to_pylist() == expected
    blocks = [decoder.csv(block) for block in csv_blocks([body.encode()], target, 10_000)]
    assert pa.concat_tables([block.table for block in blocks]).to_pylist() == expected


@CASES
@given(st.floats(), st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)))
def test_python_floats_and_moments(number: float, moment: datetime) -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "d", DoubleType()), NestedField(2, "t", TimestampType())))
    (row,) = decoder.rows([{"d": number, "t": moment}]).table.to_pylist()
    assert row["t"] == moment
    assert row["d"] == number or (math.isnan(number) and math.isnan(row["d"]))
