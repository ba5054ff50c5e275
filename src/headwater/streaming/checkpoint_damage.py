"""Which file of a checkpoint is damaged: Spark tells it in the words of whichever part of it failed, or not at all.

A checkpoint has the offsets and the end of every batch as lines of JSON. For each partition of the state it has the
changes of every version in blocks of LZ4, and for some versions a ZIP file, which lists the RocksDB tables beside it. A
stream may run meanwhile: files that go are not missed.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headwater.errors import Corrupt
from headwater.streaming.offsets import Place

_VERSION = "v1"


def check_checkpoint(view: str, checkpoint: Path, *, deep: bool = False) -> None:
    """Raise Corrupt for the first damaged file; with `deep` the contents of state are verified, too."""
    for path, reason in _damages(checkpoint, deep):
        raise Corrupt(
            f'checkpoint file "{path}" is damaged',
            detail=f'{reason} The stream of materialized view "{view}" cannot go on without it; no other is affected.',
            hint=f"Build the view again from its topics: CREATE OR REPLACE MATERIALIZED VIEW {view} AS ...",
            file=str(path),
        )


def _damages(checkpoint: Path, deep: bool) -> Iterator[tuple[Path, str]]:
    for path in (checkpoint / "metadata", *_numbered(checkpoint / "offsets"), *_numbered(checkpoint / "commits")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            _check_lines(path, lines)
        except FileNotFoundError:
            if path.name == "metadata":
                yield path, "It is missing."
        except (ValueError, KeyError, TypeError, AttributeError):
            yield path, "It is not what Spark wrote."
    for path in sorted(checkpoint.glob("state/*/*/*")) if deep else ():
        check = _CHECKS.get(path.suffix)
        if check is not None and (found := check(path)) is not None and path.exists():
            yield found


def _numbered(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if path.name.isdigit()), key=lambda path: int(path.name))


def _check_lines(path: Path, lines: list[str]) -> None:
    """ValueError, KeyError or TypeError unless the lines are those of the file."""
    if path.name == "metadata":
        str(json.loads("\n".join(lines))["id"])
        return
    version, first, *places = lines
    if version != _VERSION:
        raise ValueError(version)
    content = json.loads(first)
    if path.parent.name == "offsets":
        int(content["batchWatermarkMs"])
        for place in places:
            if place != "-":
                Place.from_json(place)


def _damage_of_version(path: Path) -> tuple[Path, str] | None:
    try:
        with zipfile.ZipFile(path) as version:
            if (name := version.testzip()) is not None:
                return path, f'Its part "{name}" does not match its checksum.'
            _, listed = version.read("metadata").decode().split("\n", 1)
            tables = [(str(each["dfsSstFileName"]), int(each["sizeBytes"])) for each in json.loads(listed)["sstFiles"]]
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return path, "It is not a ZIP file with a version of the state."
    for name, size in tables:
        table = path.parent / "SSTs" / name
        try:
            body = table.read_bytes()
        except FileNotFoundError:
            return table, "It is missing."
        if len(body) != size:
            return table, f"It has {len(body):,} bytes instead of {size:,}."
        if not _matches_sidecar(table, body):
            return table, "It does not match its checksum."
    return None


def _matches_sidecar(path: Path, body: bytes) -> bool:
    """Whether the bytes match the file of checksums that Hadoop keeps beside a file: a CRC-32 for each piece."""
    try:
        sums = (path.parent / f".{path.name}.crc").read_bytes()
    except FileNotFoundError:
        return True
    if sums[:4] != b"crc\0" or len(sums) < 8:
        return False
    (size,) = struct.unpack(">I", sums[4:8])
    pieces = [body[start : start + size] for start in range(0, len(body), size)] if size else []
    return sums[8:] == b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)


_BLOCK = struct.Struct("<8sBiiI")
"""Magic, how it is packed, its bytes packed and unpacked, and a hash of the latter; an empty block ends the file."""
_MAGIC = b"LZ4Block"
_PACKED = 0x20
_HASH_SEED, _HASH_BITS = 0x9747B28C, 0x0FFFFFFF


def _damage_of_changes(path: Path) -> tuple[Path, str] | None:
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return None
    place = 0
    try:
        while True:
            magic, token, packed, size, stored = _BLOCK.unpack_from(body, place)
            place += _BLOCK.size
            block = body[place : place + packed]
            if magic != _MAGIC or packed < 0 or size < 0 or len(block) != packed:
                break
            place += packed
            if size == 0:
                return None if not stored and place == len(body) else (path, "Its end is not what Spark wrote.")
            if token & 0xF0 == _PACKED:
                block = pa.decompress(block, size, codec="lz4_raw").to_pybytes()
            if len(block) != size or xxhash32(block, _HASH_SEED) & _HASH_BITS != stored:
                return path, "It does not match its checksum."
    except (struct.error, OSError, pa.ArrowInvalid):
        pass
    return path, "It ends too early, or is not what Spark wrote."


_CHECKS = {".zip": _damage_of_version, ".changelog": _damage_of_changes}

_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_WORD = 0xFFFFFFFF


def xxhash32(data: bytes, seed: int) -> int:
    """The hash that LZ4 blocks of Java have."""

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & _WORD

    rounds = len(data) // 16
    if rounds:
        lanes = [(seed + _P1 + _P2) & _WORD, (seed + _P2) & _WORD, seed, (seed - _P1) & _WORD]
        for words in struct.iter_unpack("<4I", data[: rounds * 16]):
            lanes = [
                rotate((lane + word * _P2) & _WORD, 13) * _P1 & _WORD for lane, word in zip(lanes, words, strict=True)
            ]
        found = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        found = seed + _P5
    found = (found + len(data)) & _WORD
    place = rounds * 16
    while place + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, place)
        found = rotate((found + word * _P3) & _WORD, 17) * _P4 & _WORD
        place += 4
    for byte in data[place:]:
        found = rotate((found + byte * _P5) & _WORD, 11) * _P1 & _WORD
    found = (found ^ found >> 15) * _P2 & _WORD
    found = (found ^ found >> 13) * _P3 & _WORD
    return found ^ found >> 16
