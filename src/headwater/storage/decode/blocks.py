"""Cutting byte streams into blocks of whole records, so that a body of any size is decoded in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater.errors import BodyTooLarge


def ndjson_blocks(chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int) -> Iterator[bytes]:
    """The stream in blocks of about `target_bytes` that end where lines do; BodyTooLarge for a longer line."""
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


def csv_blocks(chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int) -> Iterator[bytes]:
    """The same for CSV, where quoted cells may hold newlines; every block begins with the stream's header."""
    header = None
    for block in _quoted_blocks(chunks, target_bytes, max_line_bytes):
        if header is None:
            header = block[: block.find(b"\n") + 1]
            yield block
        else:
            yield header + block


def _quoted_blocks(chunks: Iterable[bytes], target_bytes: int, max_line_bytes: int) -> Iterator[bytes]:
    held = bytearray()
    ended = scanned = 0  # where the last whole record ends, and how far quotes were counted
    quoted = False
    for piece in _pieces(chunks, target_bytes):
        held += piece
        while (newline := held.find(b"\n", scanned)) >= 0:
            quoted ^= held.count(b'"', scanned, newline) % 2 == 1
            scanned = newline + 1
            if not quoted:
                _check_length(scanned - ended - 1, max_line_bytes)
                ended = scanned
        _check_length(len(held) - ended, max_line_bytes)
        if ended and len(held) >= target_bytes:
            yield bytes(held[:ended])
            del held[:ended]
            scanned, ended = scanned - ended, 0
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
