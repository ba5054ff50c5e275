"""Cutting streams into blocks of whole records."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator

import pytest

from headwater.errors import BodyTooLarge
from headwater.storage.decode import csv_blocks, ndjson_blocks


def chunks(data: bytes, seed: int, most: int) -> Iterator[bytes]:
    """The bytes in chunks of random sizes, empty ones too."""
    dice = random.Random(seed)
    while data:
        size = dice.randrange(most + 1)
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_ndjson_blocks_are_whole_lines(seed: int, ending: bytes) -> None:
    lines = [b"x" * random.Random(f"{seed}{row}").randrange(40) for row in range(200)]
    data = b"\n".join(lines) + ending
    blocks = list(ndjson_blocks(chunks(data, seed, 90), 64, 40))
    assert b"".join(blocks) == data
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    assert all(len(block) <= 64 + 90 for block in blocks)
    assert len(blocks) > 20


def test_a_large_chunk_is_cut() -> None:
    blocks = list(ndjson_blocks([b"123456789\n" * 1000], 100, 10))
    assert max(len(block) for block in blocks) <= 200
    assert b"".join(blocks) == b"123456789\n" * 1000


def test_nothing_gives_no_blocks() -> None:
    assert list(ndjson_blocks([b"", b""], 10, 10)) == []
    assert list(csv_blocks([], 10, 10)) == []


@pytest.mark.parametrize("cut", [ndjson_blocks, csv_blocks])
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("target", [5, 30, 1000])
def test_a_line_of_exactly_the_maximum_passes_and_one_byte_more_does_not(cut: object, size: int, target: int) -> None:
    assert callable(cut)
    for tail in (b"", b"\n", b"\nxy\n"):
        good = b"ab\n" + b"z" * 20 + tail
        assert b"".join(cut([good[at : at + size] for at in range(0, len(good), size)], target, 20)).count(b"z") == 20
        bad = b"ab\n" + b"z" * 21 + tail
        with pytest.raises(BodyTooLarge) as raised:
            list(cut([bad[at : at + size] for at in range(0, len(bad), size)], target, 20))
        assert raised.value.message == "record is longer than 20 bytes"


@pytest.mark.parametrize("seed", range(20))
def test_csv_blocks_keep_quoted_newlines_together_and_repeat_the_header(seed: int) -> None:
    dice = random.Random(seed)
    rows = [
        b'%d,"%s"\n' % (row, dice.choice([b"a", b"b\nc", b'""', b'\n""\n', b","]) * dice.randrange(5))
        for row in range(200)
    ]
    blocks = list(csv_blocks(chunks(b"id,name\n" + b"".join(rows), seed, 90), 64, 200))
    assert len(blocks) > 10
    assert all(block.startswith(b"id,name\n") for block in blocks)
    bodies = [block.removeprefix(b"id,name\n") for block in blocks]
    assert b"".join(bodies) == b"".join(rows)
    assert all(body.count(b'"') % 2 == 0 and body.endswith(b"\n") for body in bodies)


@pytest.mark.parametrize("seed", range(10))
def test_blocks_have_no_more_lines_than_asked_for(seed: int) -> None:
    dice = random.Random(seed)
    lines = [b"x" * dice.randrange(30) for _ in range(500)]
    data = b"\n".join(lines) + b"\n" * dice.randrange(2)
    found = list(ndjson_blocks(chunks(data, seed, 90), 256, 40, 7))
    assert b"".join(found) == data
    assert max(block.count(b"\n") for block in found) == 7
    assert found == list(ndjson_blocks(chunks(data, seed, 90), 256, 40, 7))
    cells = [b'"a\nb"' if dice.randrange(3) == 0 else b"c" for _ in range(500)]
    parts = list(csv_blocks(chunks(b"name\n" + b"\n".join(cells), seed, 90), 256, 40, 7))
    assert all(part.startswith(b"name\n") for part in parts)
    rows = [list(csv.reader(io.StringIO(part.decode(), newline=""))) for part in parts]
    assert max(map(len, rows)) <= 8
    assert [row[0].encode() for part in rows for row in part[1:]] == [cell.strip(b'"') for cell in cells]
