"""How many bytes records take once they are decoded, known before they are.

A body of a few kilobytes can become gigabytes: empty objects in a topic of many columns, one long text that an Arrow
dictionary repeats, lists of nothing. So rows are counted and weighed first, decoded in pieces of about PIECE_BYTES, and
an `Account` hears of every piece before it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from headwater.storage.decode.shapes import plain_field

if TYPE_CHECKING:
    import numpy.typing as npt

Account = Callable[[int], None]
"""Called with the bytes that a request's records have so far, before they are decoded; raises if these are too many."""

PIECE_BYTES = 16 * 1024**2
RECORD_BYTES = 128 * 1024**2
"""A record that may take more once it is decoded is refused."""

MAX_ROWS = 64 * 1024
REJECT_BYTES = 512
"""What a refused row takes in memory besides its text, about."""

_PYTHON_VALUE, _PYTHON_STRING = 72, 36
"""What a value takes as an object of Python, in a dict or a list, and half of what a string takes more."""

_SHORT = 4096
"""Bytes of a text that is not worth counting in."""

_MOST = 2 * RECORD_BYTES
"""Sizes of single values end here, so that sums of them stay within 64 bits."""
_VIEW_WORDS = 4
"""A view of a text has four words of 32 bits, and the first is its length."""


def ignore_size(size: int) -> None:
    """The account of rows that their caller already holds in memory."""


def row_bytes(schema: pa.Schema) -> int:
    """The bytes that a decoded row takes at least, whatever is in it."""
    return max(1, sum(value_bytes(field.type) for field in schema))


def rows_at_once(schema: pa.Schema) -> int:
    """How many rows a source hands over in one go, so that they do not take more than RECORD_BYTES by their number."""
    return max(1, min(MAX_ROWS, RECORD_BYTES // row_bytes(schema)))


def value_bytes(of: pa.DataType) -> int:
    """The bytes that a value takes at least, a null too; the bit that marks a null counts as a byte."""
    if isinstance(of, pa.BaseExtensionType):
        return value_bytes(of.storage_type)
    if pa.types.is_struct(of):
        return 1 + sum(value_bytes(field.type) for field in of)
    if _is_list(of) or pa.types.is_map(of) or _is_text(of):
        return 5
    return 1 + (0 if pa.types.is_null(of) else max(1, of.bit_width // 8))


# -- JSON -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JsonWeight:
    """A bound on what JSON text becomes, by counting its punctuation.

    Every struct that repeats within a record has a brace of its own, and every other element of a list or map has a
    comma, bracket or brace before it.
    """

    row: int
    element: int
    struct: int

    @classmethod
    def of(cls, schema: Schema) -> JsonWeight:
        types = [plain_field(field).type for field in schema.fields]
        inner = [each for of in types for each in _repeated(of)]
        structs = [value_bytes(each) for each in inner if pa.types.is_struct(each)]
        others = [value_bytes(each) for each in inner if not pa.types.is_struct(each)]
        return cls(max(1, sum(map(value_bytes, types))), max(others, default=0), max(structs, default=0))

    def weigh(self, rows: int, text: bytes, start: int = 0, stop: int | None = None) -> int:
        """The bytes that `rows` records in this part of the text take at the most, but for their texts."""
        weight = rows * self.row
        if self.element or self.struct:
            stop = len(text) if stop is None else stop
            braces = text.count(b"{", start, stop)
            elements = braces + text.count(b",", start, stop) + text.count(b"[", start, stop)
            weight += elements * self.element + braces * self.struct
        return weight


def python_bytes(text: bytes) -> int:
    """A bound on what JSON text becomes as Python values, but for the letters of its strings."""
    if len(text) < _SHORT:
        return len(text) * _PYTHON_VALUE
    values = text.count(b"{") + text.count(b"[") + text.count(b",")
    return values * _PYTHON_VALUE + text.count(b'"') * _PYTHON_STRING


def _repeated(of: pa.DataType) -> list[pa.DataType]:
    """The types of which a value may hold any number."""
    if pa.types.is_struct(of):
        return [each for field in of for each in _repeated(field.type)]
    if _is_list(of):
        return [of.value_type, *_repeated(of.value_type)]
    if pa.types.is_map(of):
        return [of.key_type, of.item_type, *_repeated(of.key_type), *_repeated(of.item_type)]
    return []


# -- Arrow ------------------------------------------------------------------------------------------------------


def weigh_rows(batch: pa.RecordBatch, schema: pa.Schema, account: Account) -> npt.NDArray[np.int64] | None:
    """What each row takes once it is decoded to `schema`, summed up from the first; None if no value can grow.

    The account hears of the elements of lists before they are looked at: there may be billions in a few bytes.
    """
    if not any(_may_grow(field.type) for field in batch.schema):
        return None
    sizes = np.zeros(batch.num_rows, np.int64)
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        sizes += value_bytes(field.type) if place < 0 else _sizes(batch.column(place), field.type, account)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _may_grow(of: pa.DataType) -> bool:
    """Whether values take less memory now than each of them would alone."""
    return bool(pa.types.is_dictionary(of) or pa.types.is_nested(of) or _is_view(of)) or isinstance(
        of, pa.BaseExtensionType
    )


def _sizes(column: pa.Array, target: pa.DataType, account: Account) -> npt.NDArray[np.int64]:
    if isinstance(column, pa.ExtensionArray):
        return _sizes(column.storage, target, account)
    if isinstance(target, pa.BaseExtensionType):
        return _sizes(column, target.storage_type, account)
    source = column.type
    account(len(column) * value_bytes(target))
    if pa.types.is_dictionary(source):
        return _dictionary_sizes(column, target, account)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _struct_sizes(column, target, account)
    if pa.types.is_map(source) and pa.types.is_map(target):
        offsets = column.offsets.to_numpy()
        entries = _sizes(column.keys, target.key_type, account) + _sizes(column.items, target.item_type, account)
        return value_bytes(target) + _between(entries, offsets[:-1], offsets[1:])
    if _is_list(source) and _is_list(target):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        ends = np.cumsum(lengths)
        # flatten() cannot make an empty array of a type that holds UUIDs, so it is not asked to.
        flat = column.flatten() if lengths.any() else column.values.slice(0, 0)
        return value_bytes(target) + _between(_sizes(flat, target.value_type, account), ends - lengths, ends)
    sizes = np.full(len(column), value_bytes(target), np.int64)
    if _is_view(source):
        words = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, _VIEW_WORDS)
        sizes += words[column.offset : column.offset + len(column), 0]
    elif _is_text(source):
        sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


def _dictionary_sizes(column: pa.Array, target: pa.DataType, account: Account) -> npt.NDArray[np.int64]:
    sizes = np.append(_sizes(column.dictionary, target, account), value_bytes(target))  # the last one for nulls
    indices = pc.fill_null(column.indices.cast(pa.int64()), len(sizes) - 1)
    found: npt.NDArray[np.int64] = sizes[indices.to_numpy()]
    return found


def _struct_sizes(column: pa.Array, target: pa.DataType, account: Account) -> npt.NDArray[np.int64]:
    sizes = np.ones(len(column), np.int64)
    for field in target:
        place = column.type.get_field_index(field.name)
        sizes += value_bytes(field.type) if place < 0 else _sizes(column.field(place), field.type, account)
    return np.minimum(sizes, _MOST)


def _between(
    sizes: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The sums of the sizes from each start to its end."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    found: npt.NDArray[np.int64] = np.minimum(sums[ends] - sums[starts], _MOST)
    return found


def _is_list(of: pa.DataType) -> bool:
    return bool(pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of))


def _is_text(of: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(kind(of) for kind in kinds) or _is_view(of)


def _is_view(of: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(of) or pa.types.is_binary_view(of))
