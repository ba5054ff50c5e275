"""Bloom filters of Parquet files, asked before a file is read: which values it surely does not hold.

A table without filters pays nothing. A filter is trusted only in a file whose tail has matched its own checksum
(`seal.py`), because a bit that was lost there would hide rows; so files of other writers are not asked.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, BoundEqualTo, BoundIn, BoundPredicate, Or
from pyiceberg.expressions.visitors import bind, rewrite_not
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headwater.storage.bloom_columns import Physical, bloom_columns, physical, plain
from headwater.storage.schemas import FIELD_ID
from headwater.storage.seal import read_seal
from headwater.storage.thrift import read_struct
from headwater.storage.writer import local_path
from headwater.storage.xxhash64 import xxh64

MAX_PROBED = 1_000
"""Files that one query asks; further ones are read."""
MAX_VALUES = 64
MAX_CACHED = 50_000

_BLOCK = 32
_HEADER = 64
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)

Test = Callable[[DataFile], bool]


@dataclass(frozen=True, slots=True)
class Hashed:
    """A value as a filter sees it: which block of 256 bits, relative to their number, and which bits there."""

    block: int
    bits: int

    @classmethod
    def of(cls, value: bytes) -> Hashed:
        found = xxh64(value)
        key = found & 0xFFFFFFFF
        bits = sum(1 << 32 * word + ((key * salt & 0xFFFFFFFF) >> 27) for word, salt in enumerate(_SALTS))
        return cls(found >> 32, bits)


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """A split-block bloom filter of a column chunk, where it is in the file."""

    start: int
    blocks: int

    def may_hold(self, handle: int, value: Hashed) -> bool:
        at = self.start + (value.block * self.blocks >> 32) * _BLOCK
        return int.from_bytes(os.pread(handle, _BLOCK, at), "little") & value.bits == value.bits


class BloomCache:
    """Where the filters of a file's column are, the least recently used leaving first."""

    def __init__(self, max_entries: int = MAX_CACHED) -> None:
        self._max_entries = max_entries
        self._held: OrderedDict[tuple[str, int, int], tuple[BloomFilter, ...] | None] = OrderedDict()
        self._lock = Lock()

    def filters(self, file: DataFile, column: int, stored: Physical) -> tuple[BloomFilter, ...] | None:
        """The filters of the file's row groups for the column of this id; None if they are not all there, or cannot be
        trusted."""
        path = local_path(file.file_path)
        key = (file.file_path, column, path.stat().st_mtime_ns)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        with path.open("rb", buffering=0) as opened:
            try:
                sealed = read_seal(path, opened.fileno(), file.file_size_in_bytes)
                found = _filters(opened.fileno(), sealed[0], column, stored) if sealed else None
            except ValueError:
                found = None  # whoever reads the file is told that it is damaged
        with self._lock:
            self._held[key] = found
            while len(self._held) > self._max_entries:
                self._held.popitem(last=False)
        return found


def _filters(handle: int, footer: pq.FileMetaData, column: int, stored: Physical) -> tuple[BloomFilter, ...] | None:
    # By id: the file may be older than the column's name, and its name may have been another column's.
    path = next((path for path, id_ in _leaf_ids(footer.schema.to_arrow_schema()) if id_ == column), None)
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    if path not in paths:
        return None
    index = paths.index(path)
    of = footer.schema.column(index)
    if (of.physical_type, of.length if stored[1] else 0) != stored:
        return None  # written before the column's type was widened
    found = []
    for group in range(footer.num_row_groups):
        at = footer.row_group(group).column(index).bloom_filter_offset
        each = None if at is None else _filter(handle, at)
        if each is None:
            return None
        found.append(each)
    return tuple(found)


def _leaf_ids(fields: Iterable[pa.Field], inside: str = "") -> Iterator[tuple[str, int]]:
    """The paths of the columns that are not inside lists or maps, and their ids."""
    for field in fields:
        path = f"{inside}{field.name}"
        if pa.types.is_struct(field.type):
            yield from _leaf_ids(field.type, f"{path}.")
        elif field.metadata is not None and FIELD_ID in field.metadata:
            yield path, int(field.metadata[FIELD_ID])


def _filter(handle: int, at: int) -> BloomFilter | None:
    header, length = read_struct(os.pread(handle, _HEADER, at))
    known = all(set(header.get(field, {})) == {1} for field in (2, 3, 4))  # blocks, XXH64, not compressed
    return BloomFilter(at + length, header[1] // _BLOCK) if known else None


def plan_probe(
    schema: Schema, properties: Mapping[str, str], row_filter: BooleanExpression, cache: BloomCache
) -> Test | None:
    """Whether a file may hold a row that matches, by its filters; None if no filter can say."""
    columns = bloom_columns(schema, properties)
    if not columns:
        return None
    ids = frozenset(schema.find_field(name).field_id for name in columns)
    test = _test(bind(schema, rewrite_not(row_filter), case_sensitive=True), ids, cache)
    if test is None:
        return None
    asked = count()
    return lambda file: next(asked) >= MAX_PROBED or test(file)


def _test(of: BooleanExpression, ids: Collection[int], cache: BloomCache) -> Test | None:
    match of:
        case And(left=left, right=right):
            both = [test for test in (_test(left, ids, cache), _test(right, ids, cache)) if test is not None]
            return (lambda file: all(test(file) for test in both)) if both else None
        case Or(left=left, right=right):
            first, second = _test(left, ids, cache), _test(right, ids, cache)
            return (lambda file: first(file) or second(file)) if first and second else None
        case BoundEqualTo():
            return _equality(of, (of.literal.value,), ids, cache)
        case BoundIn() if len(of.literals) <= MAX_VALUES:
            return _equality(of, (literal.value for literal in of.literals), ids, cache)
        case _:
            return None


def _equality(of: BoundPredicate, values: Iterable[Any], ids: Collection[int], cache: BloomCache) -> Test | None:
    field = of.term.ref().field
    column, stored = field.field_id, physical(field.field_type)
    if column not in ids or stored is None:
        return None
    hashed = [Hashed.of(plain(value, field.field_type)) for value in values]

    def test(file: DataFile) -> bool:
        try:
            filters = cache.filters(file, column, stored)
            return filters is None or _any_may_hold(file, filters, hashed)
        except OSError:  # whoever reads the file is told so
            return True

    return test


def _any_may_hold(file: DataFile, filters: Iterable[BloomFilter], values: Sequence[Hashed]) -> bool:
    with local_path(file.file_path).open("rb", buffering=0) as opened:
        return any(each.may_hold(opened.fileno(), value) for each in filters for value in values)
