"""An Avro file is read whole or refused: PyIceberg's decoder would read what lies behind it in memory."""

from __future__ import annotations

import io
from pathlib import Path

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import load_file_io

from headwater.catalog.avro_frames import check_frames
from headwater.catalog.durable_files import FILES

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
ROWS = [{"n": n, "s": "x" * (n % 50)} for n in range(200)]


def avro(marker: bytes, *, codec: str = "deflate", interval: int = 500) -> bytes:
    made = io.BytesIO()
    fastavro.writer(made, fastavro.parse_schema(SCHEMA), ROWS, codec, interval, sync_marker=marker)
    return made.getvalue()


MARKERS = [bytes(16), bytes(15) + b"\x01", b"\x01" * 15 + b"\x00", bytes(range(16))]


@pytest.mark.parametrize("codec", ["deflate", "null"])
@pytest.mark.parametrize("marker", MARKERS)
def test_whole_files_pass_and_cut_ones_do_not(marker: bytes, codec: str) -> None:
    body = avro(marker, codec=codec)
    check_frames(body)
    ends = {end for end in range(len(body)) if _passes(body[:end])}
    # A file that is cut behind a block is a whole file with fewer blocks: totals tell, see read_manifest_list.
    assert all(body[:end].endswith(marker) for end in ends)
    assert len(body) - 1 not in ends


@given(marker=st.sampled_from(MARKERS), place=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_changed_bytes_raise_nothing_else(marker: bytes, place: int, byte: int) -> None:
    body = bytearray(avro(marker))
    body[place % len(body)] = byte
    _passes(bytes(body))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(body: bytes) -> None:
    assert not _passes(body)
    _passes(b"Obj\x01" + body)


def test_a_list_whose_last_byte_is_gone_is_not_read(tmp_path: Path) -> None:
    """The byte behind a Python buffer is zero, as the missing one is."""
    path = tmp_path / "snap.avro"
    path.write_bytes(avro(b"\x01" * 15 + b"\x00")[:-1])
    files = load_file_io(FILES, f"file://{path}")
    with pytest.raises(ValueError, match="a block does not end where it should"):
        files.new_input(f"file://{path}").open()


def _passes(body: bytes) -> bool:
    try:
        check_frames(body)
    except ValueError:
        return False
    return True
