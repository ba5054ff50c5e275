"""The page checksums of a Parquet file: what a file of another writer can be verified by.

They cover the bodies of pages. Page headers are checked against the footer as far as that goes; the footer itself has
no checksum. It is read here, and not by Arrow, because Arrow's accessors end the process on some damaged footers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headwater.storage.seal import KEY, read_range
from headwater.storage.thrift import Struct, read_struct

MAX_HEADER = 64 * 1024
# PageHeader's fields; its type (0 data, 1 index, 2 dictionary, 3 data v2) says which struct goes with it.
_TYPE, _BYTES, _CRC = 1, 3, 4
_DETAILS = {0: 5, 1: 6, 2: 7, 3: 8}
_ENCODING = {0: 2, 2: 2, 3: 4}
_DATA = (0, 3)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column's part of a row group: where it is, and what its pages should add up to."""

    column: str
    start: int
    end: int
    values: int
    encodings: frozenset[tuple[bool, int]]
    """Of data pages (True) and of dictionaries; empty if the footer does not list them."""

    def verify(self, handle: int) -> None:
        """ValueError if a page does not match its checksum or the chunk's metadata; pages without one pass."""
        pages = list(read_pages(read_range(handle, self.start, self.end)))
        if all(page.crc is None for page in pages):
            return
        for page in pages:
            if page.crc is None:
                raise ValueError("a page has no checksum, others have")
            if zlib.crc32(page.body) != page.crc:
                raise ValueError("a page does not match its checksum")
        if sum(page.values for page in pages) != self.values:
            raise ValueError("its pages do not have as many values as its footer says")
        if self.encodings and not self.encodings >= {(page.kind in _DATA, page.encoding) for page in pages}:
            raise ValueError("a page has an encoding that its footer does not list")


@dataclass(frozen=True, slots=True)
class Page:
    """A page's header, as far as it matters, and its body."""

    kind: int
    values: int
    encoding: int
    crc: int | None
    body: memoryview


def read_footer(footer: bytes) -> tuple[int, list[Chunk]]:
    """The number of rows, and the chunks of all row groups; ValueError if the footer contradicts itself."""
    metadata, _ = read_struct(footer)
    groups = _get(metadata, 4, list)
    rows = sum(_get(group, 3, int) for group in groups)
    if rows != _get(metadata, 3, int):
        raise ValueError("its row groups do not have as many rows as its footer says")
    if KEY.encode() in (_get(pair, 1, bytes) for pair in _get(metadata, 5, list, [])):
        raise ValueError("its checksums cannot be read")
    return rows, [_chunk(_get(chunk, 3, dict)) for group in groups for chunk in _get(group, 1, list)]


def _chunk(of: Struct) -> Chunk:
    start = min(filter(None, (_get(of, 11, int, 0), _get(of, 9, int))), default=0)
    # Not every writer tells version 2 of data pages from version 1 there.
    encodings = frozenset((_get(each, 1, int) in _DATA, _get(each, 2, int)) for each in _get(of, 13, list, []))
    name = b".".join(_get(of, 3, list)).decode()
    return Chunk(name, start, start + _get(of, 7, int), _get(of, 5, int), encodings)


def read_pages(data: bytes) -> Iterator[Page]:
    """The pages, which fill the chunk; ValueError if they do not."""
    whole, at = memoryview(data), 0
    while at < len(data):
        header, length = read_struct(data[at : at + MAX_HEADER])
        at += length
        page = _page(header, whole[at:])
        yield page
        at += len(page.body)


def _page(header: Struct, rest: memoryview) -> Page:
    kind, size = _get(header, _TYPE, int), _get(header, _BYTES, int)
    details = _get(header, _DETAILS.get(kind, 0), dict)
    if not 0 <= size <= len(rest):
        raise ValueError("a page ends outside of its chunk")
    values = _get(details, 1, int) if kind in _DATA else 0
    encoding = _get(details, _ENCODING[kind], int) if kind in _ENCODING else 0
    crc = _get(header, _CRC, int) & 0xFFFFFFFF if _CRC in header else None
    return Page(kind, values, encoding, crc, rest[:size])


def _get(of: Any, field: int, kind: type, default: Any = None) -> Any:
    """A field of a struct; ValueError if it is not there or is something else."""
    value = of.get(field, default) if isinstance(of, dict) else None
    if type(value) is not kind:
        raise ValueError("a header cannot be read")
    return value
