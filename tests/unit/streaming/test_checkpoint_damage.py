"""Every damaged file of a checkpoint is named; the files are laid out as Spark lays them out."""

from __future__ import annotations

import json
import random
import struct
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.errors import Corrupt
from headwater.streaming.checkpoint_damage import check_checkpoint, xxhash32
from headwater.streaming.offsets import Place

HASH_SEED = 0x9747B28C


def blocks(*pieces: bytes) -> bytes:
    """Pieces as Java's LZ4 stream writes them: packed, then one as it is, then the empty block."""
    made = b""
    for number, piece in enumerate(pieces):
        packed = piece if number % 2 else pa.compress(piece, codec="lz4_raw").to_pybytes()
        hashed = xxhash32(piece, HASH_SEED) & 0x0FFFFFFF
        made += struct.pack("<8sBiiI", b"LZ4Block", 0x15 if number % 2 else 0x25, len(packed), len(piece), hashed)
        made += packed
    return made + struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    top = tmp_path / "checkpoint"
    partition = top / "state" / "0" / "1"
    (partition / "SSTs").mkdir(parents=True)
    for name in ("offsets", "commits"):
        (top / name).mkdir()
    (top / "metadata").write_text('{"id":"0999b9ae-61c6-443c-9748-4e1a2eb9e69d"}')
    for number in (9, 10):
        place = Place("t", 8275459636575265686, 40).to_json()
        (top / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":5,"conf":{{}}}}\n{place}\n-')
        (top / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":1767225824000}')
    table = random.Random(1).randbytes(1353)
    (partition / "SSTs" / "000008-a.sst").write_bytes(table)
    sums = b"".join(struct.pack(">I", zlib.crc32(table[at : at + 512])) for at in range(0, len(table), 512))
    (partition / "SSTs" / ".000008-a.sst.crc").write_bytes(b"crc\0" + struct.pack(">I", 512) + sums)
    with zipfile.ZipFile(partition / "9.zip", "w", zipfile.ZIP_DEFLATED) as version:
        version.writestr("CURRENT", "MANIFEST-000005\n" * 20)
        listed = {"sstFiles": [{"localFileName": "000008.sst", "dfsSstFileName": "000008-a.sst", "sizeBytes": 1353}]}
        version.writestr("metadata", "v1\n" + json.dumps(listed))
    (partition / "10.changelog").write_bytes(blocks(b"key and value" * 90, random.Random(2).randbytes(300)))
    return top


def files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def test_a_whole_one_is_found_whole(checkpoint: Path) -> None:
    check_checkpoint("v", checkpoint, deep=True)


def test_every_truncated_file_is_named(checkpoint: Path) -> None:
    for path in files(checkpoint):
        body = path.read_bytes()
        for end in {0, 1, len(body) // 3, len(body) // 2, len(body) - 1}:
            path.write_bytes(body[:end])
            if path.parent.name == "offsets" and end == len(body) - 1:
                continue  # the topic that ended there was not read: another file with as much sense
            with pytest.raises(Corrupt) as found:
                check_checkpoint("v", checkpoint, deep=True)
            assert str(path).removesuffix(".crc").replace("/.", "/") in str(found.value), (path, end)
            assert "CREATE OR REPLACE MATERIALIZED VIEW v" in (found.value.hint or "")
        path.write_bytes(body)
    check_checkpoint("v", checkpoint, deep=True)


def test_flipped_bits_of_state_are_named(checkpoint: Path) -> None:
    chance = random.Random(3)
    for path in (path for path in files(checkpoint) if path.suffix in (".sst", ".changelog")):
        body = path.read_bytes()
        for _ in range(200):
            changed = bytearray(body)
            bit = chance.randrange(len(body) * 8)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            try:
                check_checkpoint("v", checkpoint, deep=True)
            except Corrupt as found:
                assert path.name in str(found)
            else:  # in the bits of a block that no reader looks at: its level of compression
                assert path.suffix == ".changelog" and body[: bit // 8].endswith(b"LZ4Block"), bit
        path.write_bytes(body)


def test_garbage_raises_nothing_else(checkpoint: Path) -> None:
    chance = random.Random(4)
    for path in files(checkpoint):
        body = path.read_bytes()
        for size in (1, 30, len(body)):
            path.write_bytes(chance.randbytes(size))
            with pytest.raises(Corrupt):
                check_checkpoint("v", checkpoint, deep=True)
        path.write_bytes(body)


def test_a_missing_table_is_named_and_a_version_that_goes_meanwhile_is_not(checkpoint: Path) -> None:
    (table,) = checkpoint.rglob("*.sst")
    table.unlink()
    with pytest.raises(Corrupt, match=r'000008-a\.sst" is damaged \(It is missing'):
        check_checkpoint("v", checkpoint, deep=True)
    (version,) = checkpoint.rglob("*.zip")
    version.unlink()
    check_checkpoint("v", checkpoint, deep=True)


def test_the_hash_is_xxhash32() -> None:
    assert xxhash32(b"", 0) == 0x02CC5D05
    assert xxhash32(b"abc", 0) == 0x32D153FF
    assert xxhash32(b"Nobody inspects the spammish repetition", 0) == 0xE2293B2F
