"""Whether an Avro file is whole: its header can be read and every block is as long as it says.

PyIceberg's decoder does not look where its buffer ends. Of a file that was cut it reads bytes of whatever lies behind
in memory, and sometimes takes them for the missing ones; so the frame is checked before it sees a file.
"""

from __future__ import annotations

_MAGIC = b"Obj\x01"
_MARKER = 16
"""Length of the random bytes that the header ends with, and every block."""


def check_frames(body: bytes) -> None:
    """Raise ValueError unless the bytes are an Avro file from the first to the last."""
    if body[:4] != _MAGIC:
        raise ValueError("it is not an Avro file")
    place = _skip_header(body, len(_MAGIC))
    marker = body[place : place + _MARKER]
    place += _MARKER
    if place > len(body):
        raise ValueError("it ends in its header")
    while place < len(body):
        _, place = _read_long(body, place)
        size, place = _read_long(body, place)
        place += size
        if size < 0 or body[place : place + _MARKER] != marker:
            raise ValueError("a block does not end where it should")
        place += _MARKER


def _skip_header(body: bytes, place: int) -> int:
    """Where the map behind the magic bytes ends: groups of keys and values, the last one empty."""
    while True:
        count, place = _read_long(body, place)
        if count == 0:
            return place
        if count < 0:  # then the group's size in bytes follows
            _, place = _read_long(body, place)
        for _ in range(2 * abs(count)):
            size, place = _read_long(body, place)
            place += size
            if size < 0 or place > len(body):
                raise ValueError("it ends in its header")


def _read_long(body: bytes, place: int) -> tuple[int, int]:
    """A number in Avro's zigzag form, and the place behind it."""
    value = shift = 0
    while True:
        if place >= len(body) or shift > 63:
            raise ValueError("it ends in a number")
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place
        shift += 7
