"""A file's own checksums, kept in its Parquet footer under `headwater.crc32`.

Parquet has checksums for the bodies of pages. A flipped bit in a page header, a bound, a decimal's scale or a bloom
filter gives wrong rows as well. So the writer leaves room in the footer and then fills in, as hexadecimal digits:

- where the tail begins, which is everything after the last row group (bloom filters, page index, footer): 16 digits;
- the CRC-32 of the tail, computed with these 8 digits as zeros;
- for each column the CRC-32 of its chunks, one after the other, page headers included: 8 digits.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

KEY = "headwater.crc32"
MAGIC = b"PAR1"
PIECE = 256 * 1024
END = 32 * 1024

_START, _CRC = 16, 8
_VALUE = re.compile(KEY.replace(".", r"\.").encode() + rb"\x18[\x80-\xff]*[\x00-\x7f]((?:[0-9a-f]{8}){3,})\x00")
"""The key, Thrift's head of the next field, its length, and the value up to the struct's end."""


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A Parquet column of a sealed file."""

    column: str
    metadata: pq.FileMetaData
    index: int
    crc: int

    def verify(self, handle: int) -> None:
        """ValueError if the column's bytes do not match."""
        if _column_crc(handle, self.metadata, self.index) != self.crc:
            raise ValueError("it does not match its checksum")


def blank(columns: int) -> dict[str, str]:
    """Footer metadata with room for the checksums of a file with this many Parquet columns."""
    return {KEY: "0" * (_START + _CRC + _CRC * columns)}


def seal(path: Path) -> None:
    """Fill in the checksums of a file that was written with `blank` ones."""
    metadata = pq.read_metadata(path)
    indexes = range(metadata.num_columns)
    with path.open("r+b", buffering=0) as file:
        handle, size = file.fileno(), path.stat().st_size
        footer, begin = read_end(handle, size)
        value = _last_value(footer)
        assert value is not None
        at = begin + value.start(1)
        start = max((end for index in indexes for _, end in _chunks(metadata, index)), default=len(MAGIC))
        columns = "".join(f"{_column_crc(handle, metadata, index):08x}" for index in indexes)
        os.pwrite(handle, f"{start:016x}{'0' * _CRC}{columns}".encode(), at)
        os.pwrite(handle, f"{crc_of(handle, start, size):08x}".encode(), at + _START)


def read_seal(path: Path, handle: int, size: int) -> tuple[pq.FileMetaData, list[SealedColumn]] | None:
    """The footer and the columns of a sealed file; None if it is not sealed, ValueError if its tail does not match."""
    # Nothing of the footer is interpreted before it has been verified.
    crcs = _verified_tail(handle, size)
    if crcs is None:
        return None
    metadata = pq.read_metadata(path)
    return metadata, [
        SealedColumn(metadata.schema.column(index).path, metadata, index, crc) for index, crc in enumerate(crcs)
    ]


def _verified_tail(handle: int, size: int) -> tuple[int, ...] | None:
    """The checksums of the columns, once the tail has matched its own."""
    footer, begin = read_end(handle, size)
    value = _last_value(footer)
    if value is None:
        return None
    start, stored, *columns = (int(part, 16) for part in (value[1][:_START], *_eights(value[1][_START:])))
    at = begin + value.start(1) + _START
    crc = zlib.crc32(b"0" * _CRC, crc_of(handle, start, at))
    if start > begin or crc_of(handle, at + _CRC, size, crc) != stored:
        raise ValueError("its footer does not match its checksum")
    return tuple(columns)


def _eights(digits: bytes) -> Iterator[bytes]:
    return (digits[at : at + _CRC] for at in range(0, len(digits), _CRC))


def _last_value(footer: bytes) -> re.Match[bytes] | None:
    # The last one: a string column's bounds, which come before, may read like a key and its value.
    return next(reversed(list(_VALUE.finditer(footer))), None)


def _column_crc(handle: int, metadata: pq.FileMetaData, index: int) -> int:
    crc = 0
    for start, end in _chunks(metadata, index):
        crc = crc_of(handle, start, end, crc)
    return crc


def _chunks(metadata: pq.FileMetaData, index: int) -> Iterator[tuple[int, int]]:
    """Where a column's chunks begin and end: a chunk's dictionary, if it has one, comes first."""
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(index)
        start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
        yield start, start + chunk.total_compressed_size


def read_end(handle: int, size: int) -> tuple[bytes, int]:
    """A Parquet file's footer up to the file's end, and where it begins; ValueError if there is none."""
    end = os.pread(handle, END, max(0, size - END))
    begin = size - 8 - int.from_bytes(end[-8:-4], "little")
    if end[-4:] != MAGIC or begin < len(MAGIC):
        raise ValueError("it does not end with a Parquet footer")
    return end[begin - size :] if size - begin <= len(end) else read_range(handle, begin, size), begin


def read_range(handle: int, start: int, end: int) -> bytes:
    """The bytes of a range of a file; ValueError if it has no such range."""
    return b"".join(_pieces(handle, start, end))


def crc_of(handle: int, start: int, end: int, crc: int = 0) -> int:
    """The CRC-32 of a range of a file, going on from `crc`; ValueError if it has no such range."""
    for piece in _pieces(handle, start, end):
        crc = zlib.crc32(piece, crc)
    return crc


def _pieces(handle: int, start: int, end: int) -> Iterator[bytes]:
    # Not mapped into memory: a bad block would then end the process instead of the query.
    if not 0 <= start <= end:
        raise ValueError("its footer points outside of it")
    for at in range(start, end, PIECE):
        piece = os.pread(handle, min(PIECE, end - at), at)
        if len(piece) != min(PIECE, end - at):
            raise ValueError("it ends early")
        yield piece
