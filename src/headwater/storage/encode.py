"""Rows as JSON: the one encoding that the HTTP API, the command line and what is sent on share.

Every value is valid JSON and loses nothing: decimals and binary values are texts, because JSON numbers are read as
doubles; NaN and the infinities are texts, because JSON has no such numbers. Lines are put together column by column
in Arrow; only strings that need escapes and nested values are touched one by one.
"""

from __future__ import annotations

import json
import math
import uuid
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SLICE_BYTES = 64 * 1024**2
"""Lines are made from slices of about this size, far below what one Arrow string array can hold."""

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
_LITERALS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
_TEXTS = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_decimal)


def unique_names(names: Sequence[str]) -> list[str]:
    """The names as keys of an object: a repeated one gets a number, so that no column is lost."""
    taken, unique = set(names), list[str]()
    for name in names:
        key, number = name, 2
        while key in unique or (key != name and key in taken):
            key, number = f"{name}_{number}", number + 1
        unique.append(key)
    return unique


def json_rows(batch: pa.RecordBatch) -> list[list[Any]]:
    """The rows as lists of values, in column order, that `json.dumps` writes as valid JSON."""
    if batch.num_columns == 0:
        return [[] for _ in range(batch.num_rows)]
    return [list(row) for row in zip(*(json_values(column) for column in batch.columns), strict=True)]


def to_json_lines(batch: pa.RecordBatch) -> bytes:
    """The rows as NDJSON: one object per line, each line ended."""
    if batch.nbytes > SLICE_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        return to_json_lines(batch.slice(0, half)) + to_json_lines(batch.slice(half))
    if batch.num_columns == 0:
        return b"{}\n" * int(batch.num_rows)
    keys = [encode_basestring(name) + ":" for name in unique_names(batch.schema.names)]
    pieces: list[Any] = []
    for place, (key, column) in enumerate(zip(keys, batch.columns, strict=True)):
        pieces += [("," if place else "{") + key, json_texts(column)]
    return joined_bytes([*pieces, "}\n"])


def json_lines(rows: pa.Table) -> Iterator[bytes]:
    """Each row as one JSON object."""
    for batch in rows.to_batches(max_chunksize=10_000):
        yield from to_json_lines(batch).splitlines()


def joined_bytes(pieces: Sequence[pa.Array | str]) -> bytes:
    """The pieces of every row one after the other, all rows as one; no array may have nulls."""
    scalars = [pa.scalar(piece, pa.string()) if isinstance(piece, str) else piece for piece in pieces]
    lines = pc.binary_join_element_wise(*scalars, "")
    _, offsets, data = lines.buffers()
    if data is None:
        return b""
    end = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, offsets])[-1].as_py()
    return bytes(memoryview(data)[:end])


def json_texts(array: pa.Array) -> pa.Array:
    """Each value as JSON text; a null as `null`."""
    array = _normal(array)
    if any(test(array.type) for test in _LITERALS):
        texts = array.cast(pa.string())
    elif any(test(array.type) for test in _TEXTS):
        texts = _quoted(plain_texts(array))
    elif pa.types.is_string(array.type):
        texts = _escaped(array)
    elif pa.types.is_floating(array.type):
        texts = pa.array([_number_text(value) for value in _doubles(array).to_pylist()], pa.string())
    else:
        encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
        return pa.array(map(encode, json_values(array)), pa.string())
    return texts.fill_null("null")


def plain_texts(array: pa.Array) -> pa.Array:
    """Numbers, dates, times, timestamps (without a zone or in UTC) and decimals as bare text; nulls stay nulls."""
    of = array.type
    if pa.types.is_decimal(of) and of.scale > 6:  # Arrow would write 1E-7
        return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())
    if pa.types.is_timestamp(of):
        naive = array.view(pa.int64()).view(pa.timestamp(of.unit))  # to text many times faster than with a zone
        texts = _with_far_years(naive, pc.replace_substring(naive.cast(pa.string()), " ", "T", max_replacements=1))
        texts = pc.replace_substring_regex(texts, r"\.0+$", "")
        return pc.binary_join_element_wise(texts, "Z", "") if of.tz else texts
    if pa.types.is_time(of):
        return pc.replace_substring_regex(array.cast(pa.string()), r"\.0+$", "")
    texts = array.cast(pa.string())
    return _with_far_years(array, texts) if pa.types.is_date(of) else texts


def _with_far_years(array: pa.Array, texts: pa.Array) -> pa.Array:
    """Dates and times that Arrow writes as "<value out of range: …>", beyond the years -32767 to 32767, as the rest."""
    far = pc.fill_null(pc.starts_with(texts, "<"), False)
    if not pc.any(far).as_py():
        return texts
    per_day = _PER_DAY["d" if pa.types.is_date32(array.type) else array.type.unit]
    numbers = array.filter(far).view(pa.int32() if pa.types.is_date32(array.type) else pa.int64()).to_pylist()
    return pc.replace_with_mask(texts, far, pa.array([_far_text(number, per_day) for number in numbers], pa.string()))


_PER_DAY = {"d": 1, "s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def _far_text(number: int, per_day: int) -> str:
    """A moment counted from 1970, in the Gregorian calendar: a cycle of it has 400 years and 146,097 days."""
    days, rest = divmod(number, per_day)
    cycles, days = divmod(days, 146_097)
    near = date(1970, 1, 1) + timedelta(days)
    text = f"{near.year + 400 * cycles}-{near:%m-%d}"
    if per_day == 1:
        return text
    seconds, fraction = divmod(rest, per_day // 86_400)
    digits = len(str(per_day // 86_400)) - 1
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}T{clock}.{fraction:0{digits}}" if digits else f"{text}T{clock}"


def json_values(array: pa.Array) -> list[Any]:
    """Each value as Python data that `json.dumps` writes as valid JSON."""
    array = _normal(array)
    of = array.type
    if any(test(of) for test in _LITERALS) or pa.types.is_string(of):
        return list(array.to_pylist())
    if any(test(of) for test in _TEXTS):
        return list(plain_texts(array).to_pylist())
    if pa.types.is_floating(of):
        return [_number(value) for value in _doubles(array).to_pylist()]
    if pa.types.is_struct(of):
        return _objects(array)
    if pa.types.is_map(of):
        return list(_maps(array))
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return list(_lists(array))
    return [_other(value) for value in array.to_pylist()]


def _normal(array: pa.Array) -> pa.Array:
    """The same values in the plainest type: no dictionaries, views, foreign zones or broken UTF-8."""
    of = array.type
    if pa.types.is_dictionary(of):
        return _normal(array.dictionary_decode())
    if pa.types.is_timestamp(of) and of.tz not in (None, "UTC"):
        return array.cast(pa.timestamp(of.unit, "UTC"))
    if pa.types.is_fixed_size_list(of):
        return array.cast(pa.list_(of.value_field))
    if pa.types.is_large_string(of) or pa.types.is_string_view(of):
        array = array.cast(pa.string())
    if pa.types.is_string(array.type):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:  # an engine may make such strings out of bytes; JSON cannot carry them
            return pa.array(
                [None if value is None else value.decode(errors="replace") for value in _as_bytes(array).to_pylist()],
                pa.string(),
            )
    return array


def _as_bytes(array: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), offset=array.offset)


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, _NEEDS_ESCAPE)).as_py():
        return pa.array([None if text is None else encode_basestring(text) for text in array.to_pylist()], pa.string())
    return _quoted(array)


def _doubles(array: pa.Array) -> pa.Array:
    """Single precision by way of its shortest text: 0.1, not 0.10000000149011612."""
    return array if pa.types.is_float64(array.type) else array.cast(pa.string()).cast(pa.float64())


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number_text(value: float | None) -> str | None:
    number = _number(value)
    return f'"{number}"' if isinstance(number, str) else None if number is None else repr(number)


def _objects(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    fields = [json_values(child) for child in array.flatten()]
    rows = zip(*fields, strict=True) if fields else (() for _ in range(len(array)))
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]


def _lists(array: pa.Array) -> Iterator[list[Any] | None]:
    offsets = array.offsets.to_pylist()
    values = json_values(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    for start, end, there in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False):
        yield values[start - offsets[0] : end - offsets[0]] if there else None


def _maps(array: pa.Array) -> Iterator[dict[str, Any] | list[list[Any]] | None]:
    as_object = pa.types.is_string(array.type.key_type)
    offsets = array.offsets.to_pylist()
    span = (offsets[0], offsets[-1] - offsets[0])
    pairs = list(zip(json_values(array.keys.slice(*span)), json_values(array.items.slice(*span)), strict=True))
    for start, end, there in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False):
        entries = pairs[start - offsets[0] : end - offsets[0]]
        yield None if not there else dict(entries) if as_object else [list(pair) for pair in entries]


def _other(value: Any) -> Any:
    """What is left: binary as base64, a UUID as text, a duration in ISO 8601 seconds."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        return str(value)
    if hasattr(value, "total_seconds"):
        return f"PT{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "S"
    return str(value)
