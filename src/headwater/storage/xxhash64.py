"""XXH64 with seed 0, the hash of Parquet's bloom filters. Only a query's few literals are hashed with it."""

from __future__ import annotations

_BITS = 0xFFFF_FFFF_FFFF_FFFF
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh64(data: bytes) -> int:
    """The hash of `data`, as an unsigned number."""
    whole = len(data) - len(data) % 32
    found = _lanes(data, whole) if whole else _P5
    found = _rest(found + len(data) & _BITS, data[whole:])
    for shift, prime in ((33, _P2), (29, _P3)):
        found = (found ^ found >> shift) * prime & _BITS
    return found ^ found >> 32


def _lanes(data: bytes, end: int) -> int:
    lanes = [_P1 + _P2 & _BITS, _P2, 0, -_P1 & _BITS]
    for at in range(0, end, 32):
        lanes = [_round(lane, _word(data, at + 8 * n, 8)) for n, lane in enumerate(lanes)]
    found = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _BITS
    for lane in lanes:
        found = (found ^ _round(0, lane)) * _P1 + _P4 & _BITS
    return found


def _rest(found: int, data: bytes) -> int:
    at = 0
    for at in range(8, len(data) + 1, 8):
        found = _rotated(found ^ _round(0, _word(data, at - 8, 8)), 27) * _P1 + _P4 & _BITS
    if len(data) - at >= 4:
        found = _rotated(found ^ _word(data, at, 4) * _P1 & _BITS, 23) * _P2 + _P3 & _BITS
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ byte * _P5 & _BITS, 11) * _P1 & _BITS
    return found


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * _P2 & _BITS, 31) * _P1 & _BITS


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _BITS


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
