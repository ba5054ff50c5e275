"""An Arrow stream from outside, read message by message: sizes are checked before anything is decompressed.

A message declares how long its body is, and a compressed buffer how long it becomes. Arrow allocates what is declared,
so that a body of some kilobytes takes gigabytes before anything is found wrong with it. Here the declarations are read
first. A stream that ends without its end marker was cut, and is refused: Arrow takes it for a shorter one.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from headwater.errors import RecordsRejected
from headwater.storage.decode.sizes import Account

_CONTINUATION = b"\xff\xff\xff\xff"
_MAX_METADATA = 16 * 1024**2
_PIECE = 1024**2
_DICTIONARY, _BATCH = 2, 3


class Readable(Protocol):
    """A body that is read forward."""

    def read(self, size: int = -1, /) -> bytes: ...


def arrow_batches(file: Readable, account: Account) -> Iterator[pa.RecordBatch]:
    """The stream's batches, each fully validated; the account hears of each before it is decompressed."""
    try:
        with pa.ipc.open_stream(pa.PythonFile(_CheckedStream(file, account), "r")) as stream:
            if any(pa.types.is_union(field.type) for field in stream.schema):
                raise RecordsRejected("arrow stream has a union column")
            for batch in stream:
                batch.validate(full=True)
                yield batch
    except (pa.ArrowException, OSError, EOFError, MemoryError) as broken:
        reason = (str(broken).strip().splitlines() or [type(broken).__name__])[0].rstrip(".")[:300]
        raise _invalid(f"{reason}.") from None


class _CheckedStream(io.RawIOBase):
    """The stream as Arrow reads it, one whole message after the other."""

    def __init__(self, file: Readable, account: Account) -> None:
        self._file = file
        self._account = account
        self._total = 0
        self._message = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> memoryview:
        """At most `size` bytes of the message at hand; Arrow asks for no more than that."""
        if not self._message and not self._ended:
            self._message = memoryview(self._next())
        taken = self._message if size < 0 else self._message[:size]
        self._message = self._message[len(taken) :]
        return taken

    def _next(self) -> bytearray:
        message = self._exactly(4)
        modern = message == _CONTINUATION  # before Arrow 0.15 the length came first
        length = _length(self._exactly(4) if modern else message)
        if modern:
            message += length.to_bytes(4, "little")
        if length == 0:
            self._ended = True
            if self._file.read(1):
                raise _invalid("There is more after its end marker.", "Send one stream in a request.")
            return message
        if length > _MAX_METADATA:
            raise _invalid(f"The metadata of a message has {length} bytes.")
        metadata = bytes(self._exactly(length))
        try:
            size, buffers, compressed = _declared(metadata)
        except (struct.error, ValueError, IndexError):
            raise _invalid("The metadata of a message cannot be read.") from None
        self._account(self._total + size)
        body = self._exactly(size)
        self._total += _decompressed(body, buffers) if compressed else max(size, int(buffers[:, 1].sum()))
        self._account(self._total)
        return message + metadata + body

    def _exactly(self, size: int) -> bytearray:
        found = bytearray()
        while len(found) < size:
            piece = self._file.read(min(_PIECE, size - len(found)))
            if not piece:
                raise _invalid("It ends before its end marker.", "Close the writer before the body is sent.")
            found += piece
        return found


def _length(word: bytearray) -> int:
    length = int.from_bytes(word, "little", signed=True)
    if length < 0:
        raise _invalid("The length of a message is below zero.")
    return length


def _declared(metadata: bytes) -> tuple[int, np.ndarray, bool]:
    """The bytes of a message's body, the offset and length of each buffer in it, and whether they are compressed."""
    message = _Table(metadata, _u32(metadata, 0))
    size, kind, none = message.int64(3), message.byte(1), np.zeros((0, 2), np.int64)
    if size < 0:
        raise ValueError(size)
    if kind not in (_DICTIONARY, _BATCH):
        return size, none, False
    header = message.table(2)
    batch = header.table(1) if header is not None and kind == _DICTIONARY else header
    if batch is None:
        raise ValueError(kind)
    buffers = batch.pairs(2)
    if len(buffers) and (buffers.min() < 0 or (buffers[:, 1] > size).any() or (buffers[:, 0] > size).any()):
        raise ValueError("a buffer outside of the body")
    return size, buffers, batch.table(3) is not None


def _decompressed(body: bytearray, buffers: np.ndarray) -> int:
    """The bytes that compressed buffers become, by what each of them declares; -1 says that it is not compressed."""
    total = 0
    for offset, length in buffers.tolist():
        if length:
            if length < 8 or offset + length > len(body):
                raise _invalid("A compressed buffer does not say how long it is.")
            (declared,) = struct.unpack_from("<q", body, offset)
            if declared < -1:
                raise _invalid("The length of a compressed buffer is below zero.")
            total += length - 8 if declared == -1 else declared
    return total


class _Table:
    """A table of a FlatBuffer: fields by their number, found through its vtable."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise ValueError(self._fields)
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return None
        offset: int = struct.unpack_from("<H", self._data, self._fields + slot)[0]
        return self._at + offset if offset else None

    def byte(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else self._data[place]

    def int64(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from("<q", self._data, place)[0])

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, place + _u32(self._data, place))

    def pairs(self, field: int) -> np.ndarray:
        """A vector of structs, each of two numbers of 64 bits."""
        place = self._place(field)
        if place is None:
            return np.zeros((0, 2), np.int64)
        place += _u32(self._data, place)
        count = _u32(self._data, place)
        return np.frombuffer(self._data, "<i8", 2 * count, place + 4).reshape(-1, 2)


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _invalid(detail: str, hint: str | None = None) -> RecordsRejected:
    return RecordsRejected("body is not a valid Arrow stream", detail=detail, hint=hint)
