"""Cutting byte streams into blocks of whole records, so that a body of any size is decoded in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from headwater.errors import BodyTooLarge
from headwater.storage.decode.json_records import json_records

_NEWLINE = ord("\n")
_LINE_BYTES = 40
"""What a line takes as an object of its own."""


def ndjson_blocks(
    chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int, max_lines: int = 0
) -> Iterator[bytes]:
    """The stream in blocks of about `target_bytes` that end where lines do; BodyTooLarge for a longer line.

    With `max_lines`, a block has no more lines than that.
    """
    for block in _line_blocks(chunks, target_bytes, max_line_bytes):
        if not max_lines or block.count(b"\n") <= max_lines:
            yield block
            continue
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)[max_lines - 1 :: max_lines] + 1
        for start, stop in pairwise([0, *ends.tolist(), len(block)]):
            if start < stop:
                yield block[start:stop]


def _line_blocks(chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int) -> Iterator[bytes]:
    held: list[bytes] = []
    size = line = 0  # bytes held, and bytes since the last newline
    for piece in _pieces(chunks, target_bytes):
        _check_lines(piece, line, max_line_bytes)
        cut = piece.rfind(b"\n") + 1
        line = len(piece) - cut if cut else line + len(piece)
        size += len(piece)
        if cut and size >= target_bytes:
            yield b"".join([*held, piece[:cut]])
            held, size = [piece[cut:]], line
        else:
            held.append(piece)
    if size:
        yield b"".join(held)


def json_blocks(chunks: Iterable[bytes], target_bytes: int, max_record_bytes: int) -> Iterator[bytes]:
    """A JSON array's records in blocks of lines, one record on each; an array without any is an empty block.

    A body of nothing, or of nothing but space, has no block.
    """
    lines: list[bytes] = []
    size, found, blank = 0, False, True

    def watched() -> Iterator[bytes]:
        nonlocal blank
        for chunk in chunks:
            blank = blank and not chunk.strip()
            yield chunk

    for record in json_records(watched(), max_record_bytes):
        found = True
        lines.append(record.encode())
        size += len(lines[-1]) + _LINE_BYTES
        if size >= target_bytes:
            yield b"\n".join(lines)
            lines, size = [], 0
    if lines or not (found or blank):
        yield b"\n".join(lines)


def csv_blocks(chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int, max_lines: int = 0) -> Iterator[bytes]:
    """The same for CSV, where quoted cells may hold newlines; every block begins with the stream's header."""
    header = None
    for block in _quoted_blocks(chunks, target_bytes, max_line_bytes, max_lines):
        if header is None:
            header = block[: block.find(b"\n") + 1]
            yield block
        else:
            yield header + block


def _quoted_blocks(chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int, max_lines: int) -> Iterator[bytes]:
    held = bytearray()
    ended = scanned = lines = 0  # where the last whole record ends, how far quotes were counted, and records so far
    quoted = False
    for piece in _pieces(chunks, target_bytes):
        held += piece
        while (newline := held.find(b"\n", scanned)) >= 0:
            quoted ^= held.count(b'"', scanned, newline) % 2 == 1
            scanned = newline + 1
            if not quoted:
                _check_length(scanned - ended - 1, max_line_bytes)
                ended, lines = scanned, lines + 1
                if lines == max_lines:
                    yield bytes(held[:ended])
                    del held[:ended]
                    scanned = ended = lines = 0
        _check_length(len(held) - ended, max_line_bytes)
        if ended and len(held) >= target_bytes:
            yield bytes(held[:ended])
            del held[:ended]
            scanned, ended, lines = scanned - ended, 0, 0
    if held:
        yield bytes(held)


def _pieces(chunks: Iterable[bytes], target_bytes: int) -> Iterator[bytes]:
    """The chunks, those above the target cut into pieces of its size."""
    for chunk in chunks:
        if len(chunk) <= target_bytes:
            if chunk:
                yield chunk
            continue
        for start in range(0, len(chunk), target_bytes):
            yield chunk[start : start + target_bytes]


def _check_lines(piece: bytes, before: int, most: int) -> None:
    """BodyTooLarge if a line of the piece is longer than `most`; the first one has `before` bytes already."""
    start = -before
    while len(piece) - start > most:
        # The last newline within reach is enough: the lines before it are shorter still.
        newline = piece.rfind(b"\n", max(start, 0), start + most + 1) if start + most >= 0 else -1
        if newline < 0:
            _check_length(most + 1, most)
        start = newline + 1


def _check_length(length: int, most: int) -> None:
    if length > most:
        raise BodyTooLarge(
            f"record is longer than {most} bytes", hint="Send smaller records, or raise the limit for one record."
        )
