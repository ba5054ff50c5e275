"""What records weigh is known before they are decoded, and is not less than what they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from headwater.errors import BodyTooLarge
from headwater.storage.decode import RecordDecoder
from headwater.storage.decode.shapes import plain_field
from headwater.storage.decode.sizes import RECORD_BYTES, JsonWeight, row_bytes, value_bytes, weigh_rows

LEAVES: tuple[IcebergType, ...] = (BooleanType(), LongType(), StringType(), DecimalType(38, 9))


def types(depth: int = 2) -> st.SearchStrategy[IcebergType]:
    leaf = st.sampled_from(LEAVES)
    if not depth:
        return leaf
    inner = types(depth - 1)
    structs = st.lists(inner, min_size=1, max_size=4).map(
        lambda each: StructType(*(NestedField(0, f"f{n}", of, required=False) for n, of in enumerate(each)))
    )
    lists = inner.map(lambda of: ListType(0, of, element_required=False))
    maps = inner.map(lambda of: MapType(0, StringType(), 0, of, value_required=False))
    return st.one_of(leaf, structs, lists, maps)


schemas = st.lists(types(), min_size=1, max_size=3).map(
    lambda each: Schema(*(NestedField(n + 1, f"c{n}", of, required=False) for n, of in enumerate(each)))
)


def values(of: IcebergType, draw: Any) -> Any:
    """A value that is small on the wire: mostly nulls, empty objects and short lists."""
    if draw(st.integers(0, 3)) == 0:
        return None
    match of:
        case StructType():
            kept = [field for field in of.fields if draw(st.booleans())]
            return {field.name: values(field.field_type, draw) for field in kept}
        case ListType():
            return [values(of.element_type, draw) for _ in range(draw(st.integers(0, 4)))]
        case MapType():
            return {str(n): values(of.value_type, draw) for n in range(draw(st.integers(0, 4)))}
        case BooleanType():
            return True
        case StringType():
            return "x" * draw(st.integers(0, 5))
    return 1


@settings(max_examples=150)
@given(schemas, st.data())
def test_the_weight_of_json_is_not_less_than_its_values(schema: Schema, data: st.DataObject) -> None:
    records = [values(schema.as_struct(), data.draw) or {} for _ in range(data.draw(st.integers(1, 8)))]
    body = b"\n".join(json.dumps(record, separators=(",", ":")).encode() for record in records)
    decoder = RecordDecoder(schema)
    told: list[int] = []
    decoded = decoder.ndjson(body, account=told.append)
    assert not decoded.rejects
    assert decoded.table.num_rows == len(records)
    assert max(told) >= len(records) * row_bytes(decoder.arrow_schema)
    fixed = sum(
        taken(column, field.type) for column, field in zip(decoded.table.columns, decoder.arrow_schema, strict=True)
    )
    assert JsonWeight.of(schema).weigh(len(records), body) >= fixed


def taken(column: pa.ChunkedArray, of: pa.DataType) -> int:
    """What the values take by the widths of their types, counted one by one."""
    return sum(_taken(value, of) for value in column.to_pylist())


def _taken(value: Any, of: pa.DataType) -> int:
    if pa.types.is_struct(of):
        return 1 + sum(_taken(None if value is None else value[field.name], field.type) for field in of)
    if pa.types.is_list(of):
        return value_bytes(of) + sum(_taken(item, of.value_type) for item in value or ())
    if pa.types.is_map(of):
        return value_bytes(of) + sum(_taken(k, of.key_type) + _taken(v, of.item_type) for k, v in value or ())
    return value_bytes(of)


@settings(max_examples=150)
@given(schemas, st.data())
def test_the_weight_of_arrow_rows_is_what_their_values_take(schema: Schema, data: st.DataObject) -> None:
    target = pa.schema([plain_field(field) for field in schema.fields])
    records = [values(schema.as_struct(), data.draw) or {} for _ in range(data.draw(st.integers(1, 8)))]
    records = [{field.name: _entries(record.get(field.name), field.type) for field in target} for record in records]
    table = pa.Table.from_pylist(records, schema=target)
    start = data.draw(st.integers(0, len(records) - 1))
    batch = table.slice(start).combine_chunks().to_batches()[0] if data.draw(st.booleans()) else table.to_batches()[0]
    sums = weigh_rows(batch, target, lambda size: None)
    nested = any(pa.types.is_nested(field.type) for field in target)
    assert (sums is not None) == nested
    if sums is not None:
        exact = [sum(_weight(row[field.name], field.type) for field in target) for row in batch.to_pylist()]
        assert np.diff(sums).tolist() == exact


def _entries(value: Any, of: pa.DataType) -> Any:
    """The value with maps as Arrow builds them."""
    if value is None:
        return None
    if pa.types.is_struct(of):
        return {field.name: _entries(value.get(field.name), field.type) for field in of}
    if pa.types.is_list(of):
        return [_entries(item, of.value_type) for item in value]
    if pa.types.is_map(of):
        return [(key, _entries(item, of.item_type)) for key, item in value.items()]
    return value


def _weight(value: Any, of: pa.DataType) -> int:
    extra = len(value) if isinstance(value, str) else 0
    if pa.types.is_struct(of):
        return 1 + sum(_weight(None if value is None else value[field.name], field.type) for field in of)
    if pa.types.is_list(of):
        return value_bytes(of) + sum(_weight(item, of.value_type) for item in value or ())
    if pa.types.is_map(of):
        return value_bytes(of) + sum(_weight(k, of.key_type) + _weight(v, of.item_type) for k, v in value or ())
    return value_bytes(of) + extra


def limited(limit: int) -> Callable[[int], None]:
    def account(size: int) -> None:
        if size > limit:
            raise BodyTooLarge("too large")

    return account


ONE_TEXT = Schema(NestedField(1, "v", StringType(), required=False))


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_dictionary_counts_as_often_as_it_is_used(rows: int) -> None:
    table = pa.table({"v": pa.DictionaryArray.from_arrays(pa.array([0, None] * rows), pa.array(["x" * 1000]))})
    decoder = RecordDecoder(ONE_TEXT)
    assert decoder.arrow(table, account=limited(3000 * rows)).table.num_rows == 2 * rows
    with pytest.raises(BodyTooLarge):
        decoder.arrow(table, account=limited(1000 * rows))


def test_rows_are_decoded_in_pieces_that_come_out_whole() -> None:
    table = pa.table(
        {"v": pa.DictionaryArray.from_arrays(pa.array([0, 1] * 20_000), pa.array(["x" * 1000, "y" * 3000]))}
    )
    told: list[int] = []
    decoded = RecordDecoder(ONE_TEXT).arrow(table, account=told.append)
    assert decoded.table.column("v").combine_chunks().equals(table.column("v").combine_chunks().dictionary_decode())
    pieces = [size for size in np.diff(sorted(set(told))).tolist() if size]
    assert max(pieces) < 20 * 1024**2
    assert decoded.size >= 80_000_000


def test_a_record_that_is_too_heavy_is_refused_and_its_neighbours_are_not() -> None:
    wide = StructType(*(NestedField(0, f"f{n}", LongType(), required=False) for n in range(500)))
    decoder = RecordDecoder(Schema(NestedField(1, "v", ListType(0, wide, element_required=False), required=False)))
    count = RECORD_BYTES // 4000
    body = b'{"v":[{}]}\n{"v":[' + b",".join([b"{}"] * count) + b"]}\n" + b'{"v":null}\n'
    decoded = decoder.ndjson(body)
    assert decoded.table.num_rows == 2
    assert [reject.row for reject in decoded.rejects] == [1]
    assert "once it is decoded" in decoded.rejects[0].reason


def test_refused_rows_count() -> None:
    decoder = RecordDecoder(Schema(NestedField(1, "id", LongType(), required=True)))
    for refused in (
        lambda account: decoder.ndjson(b"x\n" * 1000, account=account),
        lambda account: decoder.csv(b"id\n" + b"1,1\n" * 1000, account=account),
    ):
        assert len(refused(limited(10**6)).rejects) == 1000
        with pytest.raises(BodyTooLarge):
            refused(limited(100_000))
