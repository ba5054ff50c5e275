"""What verifying a file finds and what it lets pass: files of Headwater's writer and of others."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from headwater.errors import Corrupt, QueryCancelled
from headwater.storage import checksums
from headwater.storage.bloom_columns import ENABLED
from headwater.storage.checksums import Checksums, verify_file
from headwater.storage.pages import read_footer, read_pages
from headwater.storage.schemas import arrow_schema
from headwater.storage.seal import KEY, crc_of, read_end, read_range
from headwater.storage.thrift import read_struct
from headwater.storage.writer import Layout, PartitionedWriter, Target, local_path

SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=True),
    NestedField(2, "s", StringType()),
    NestedField(3, "d", DecimalType(10, 2)),
    NestedField(4, "at", TimestamptzType()),
    NestedField(5, "f", DoubleType()),
    NestedField(6, "tags", ListType(7, StringType(), element_required=False)),
    NestedField(8, "place", StructType(NestedField(9, "x", DoubleType()), NestedField(10, "city", StringType()))),
    NestedField(11, "by", MapType(12, StringType(), 13, LongType(), value_required=False)),
)
COLUMNS = [field.name for field in SCHEMA.fields]
CODECS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]
NANOS = itertools.count(1)


def rows(count: int) -> pa.Table:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return pa.Table.from_pylist(
        [
            {
                "n": n * 3,
                "s": None if n % 5 == 0 else f"user{n % 4}" * (n % 3),
                "d": Decimal(n) / 4,
                "at": start + dt.timedelta(hours=n),
                "f": n * 1.5,
                "tags": None if n % 7 == 0 else [f"x{n % 3}", None][: n % 3],
                "place": None if n % 6 == 0 else {"x": float(n), "city": f"c{n % 2}"},
                "by": [(f"k{k}", k) for k in range(n % 3)],
            }
            for n in range(count)
        ],
        schema=arrow_schema(SCHEMA),
    )


def ours(folder: Path, codec: Any = "zstd", *, count: int = 300, blooms: bool = False) -> DataFile:
    properties = {ENABLED + name: "true" for name in ("n", "s", "place.city")} if blooms else {}
    layout = Layout(codec, None, 1 << 30, 100)
    where = Target("t", folder.as_uri(), SCHEMA, UNPARTITIONED_PARTITION_SPEC, layout, properties)
    writer = PartitionedWriter(where, lambda: "id")
    writer.write(rows(count))
    (file,) = writer.close()
    return file


def flip(path: Path, bit: int) -> None:
    body = bytearray(path.read_bytes())
    body[bit // 8] ^= 1 << bit % 8
    path.write_bytes(body)
    os.utime(path, ns=(next(NANOS), next(NANOS)))  # the clock of file systems is too coarse to tell two writes apart


def flipped(path: Path, bit: int, verify: Callable[[], object]) -> Corrupt | None:
    """What verifying says while a bit is flipped."""
    flip(path, bit)
    try:
        verify()
    except Corrupt as found:
        return found
    finally:
        flip(path, bit)
    return None


# -- files of Headwater -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("blooms", [False, True], ids=["plain", "blooms"])
def test_a_sealed_file_is_whole_and_no_bit_of_it_can_change(tmp_path: Path, codec: str, blooms: bool) -> None:
    path = local_path(ours(tmp_path, codec, blooms=blooms).file_path)
    assert verify_file(path)
    assert pq.read_table(path).num_rows == 300
    key = path.read_bytes().rindex(KEY.encode())
    free = {*range(4), *range(key, key + len(KEY))}  # the magic at the start, and the key's name: see below
    bits = random.Random(codec).sample(range(path.stat().st_size * 8), 300)
    for bit in bits:
        assert bit // 8 in free or flipped(path, bit, lambda: verify_file(path)), f"byte {bit // 8}"
    assert verify_file(path)


def test_a_seal_whose_key_is_damaged_leaves_the_page_checksums(tmp_path: Path) -> None:
    path = local_path(ours(tmp_path).file_path)
    flip(path, path.read_bytes().rindex(KEY.encode()) * 8)
    assert not verify_file(path)
    assert pq.read_table(path).num_rows == 300
    assert flipped(path, page_bodies(path)[0][0] * 8, lambda: verify_file(path))


def read_range_of(path: Path, column: str) -> tuple[int, int]:
    """Where the first chunk of a column begins and ends."""
    metadata = pq.read_metadata(path)
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    chunk = metadata.row_group(0).column(names.index(column))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    path = local_path(ours(tmp_path).file_path)
    for leaf in ("n", "tags.list.element", "place.x", "place.city", "by.key_value.key"):
        top = leaf.partition(".")[0]
        bit = (read_range_of(path, leaf)[1] - 1) * 8
        found = flipped(path, bit, lambda top=top: verify_file(path, [top]))
        assert found is not None
        assert found.data == {"file": str(path), "column": leaf}
        others = [name for name in COLUMNS if name != top]
        assert flipped(path, bit, lambda others=others: verify_file(path, others)) is None


def test_the_error_names_file_and_column_and_what_to_do(tmp_path: Path) -> None:
    path = local_path(ours(tmp_path).file_path)
    found = flipped(path, (read_range_of(path, "d")[1] - 1) * 8, lambda: verify_file(path))
    assert found is not None
    assert found.message == f'data file "{path}" is damaged'
    assert found.detail == 'Column "d": it does not match its checksum.'
    assert found.hint == "Run `headwater doctor --deep` to find every damaged file, and restore them from a backup."
    footer = flipped(path, (path.stat().st_size - 40) * 8, lambda: verify_file(path))
    assert footer is not None
    assert footer.detail == "The file is not as it was written: its footer does not match its checksum."


@pytest.mark.parametrize("keep", [0, 3, 8, 500, -1, -9])
def test_a_truncated_file_is_damaged(tmp_path: Path, keep: int) -> None:
    path = local_path(ours(tmp_path).file_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Corrupt, match="is damaged"):
        verify_file(path)


def test_a_file_with_other_rows_than_recorded_is_damaged(tmp_path: Path) -> None:
    path = local_path(ours(tmp_path).file_path)
    assert verify_file(path, rows=300)
    with pytest.raises(Corrupt, match="it has 300 rows instead of 299"):
        verify_file(path, rows=299)


def test_an_empty_table_and_a_large_footer_are_sealed_too(tmp_path: Path) -> None:
    assert verify_file(local_path(ours(tmp_path / "a", count=0).file_path))
    wide = Schema(*(NestedField(n, f"c{n}", LongType()) for n in range(1, 800)))
    where = Target("t", tmp_path.as_uri(), wide, UNPARTITIONED_PARTITION_SPEC, Layout("zstd", None, 1 << 30, 10), {})
    writer = PartitionedWriter(where, lambda: "id")
    writer.write(pa.table({f"c{n}": pa.array(range(30)) for n in range(1, 800)}))
    (file,) = writer.close()
    path = local_path(file.file_path)
    with path.open("rb") as opened:
        assert len(read_end(opened.fileno(), path.stat().st_size)[0]) > 64 * 1024
    assert verify_file(path, ["c799"])


def test_text_that_reads_like_a_seal_is_not_one(tmp_path: Path) -> None:
    table = pa.table({"s": [KEY, "0" * 32, KEY + "\x18\x20" + "0" * 32 + "\x00"]})
    pq.write_table(table, tmp_path / "t.parquet", write_page_checksum=True, store_schema=False)
    with pytest.raises(Corrupt, match="footer does not match"):  # the price of looking before interpreting
        verify_file(tmp_path / "t.parquet")
    pq.write_table(table.slice(0, 2), tmp_path / "u.parquet", write_page_checksum=True, store_schema=False)
    assert not verify_file(tmp_path / "u.parquet")


# -- files of others --------------------------------------------------------------------------------------------

VERSIONS = itertools.product(CODECS, ("1.0", "2.0"))
OTHERS: dict[str, dict[str, Any]] = {
    **{f"{codec}, v{version}": {"compression": codec, "data_page_version": version} for codec, version in VERSIONS},
    "small pages": {"data_page_size": 64, "write_batch_size": 8},
    "no dictionary": {"use_dictionary": False},
    "dictionary given up": {"dictionary_pagesize_limit": 16, "data_page_size": 64, "write_batch_size": 8},
    "page index": {"write_page_index": True},
    "delta": {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY"}},
    "blooms": {"bloom_filter_options": {"n": True}},
    "no statistics": {"write_statistics": False},
    "with Arrow's schema": {"store_schema": True},
}


def other(path: Path, **options: Any) -> Path:
    pq.write_table(
        rows(300), path, **{"row_group_size": 100, "write_page_checksum": True, "store_schema": False} | options
    )
    return path


@pytest.mark.parametrize("options", OTHERS.values(), ids=list(OTHERS))
def test_pages_of_others_are_verified_by_their_checksums(tmp_path: Path, options: dict[str, Any]) -> None:
    path = other(tmp_path / "t.parquet", **options)
    assert verify_file(path) is False
    bodies = page_bodies(path)
    assert bodies
    chance = random.Random(7)
    for start, end in chance.sample(bodies, min(40, len(bodies))):
        bit = chance.randrange(start * 8, end * 8)
        found = flipped(path, bit, lambda: verify_file(path))
        assert found is not None
        assert "a page does not match its checksum" in str(found.detail)


def page_bodies(path: Path) -> list[tuple[int, int]]:
    """Where the bodies of all pages are."""
    found = []
    with path.open("rb") as file:
        handle, size = file.fileno(), path.stat().st_size
        for chunk in read_footer(read_end(handle, size)[0])[1]:
            at = chunk.start
            for page in read_pages(read_range(handle, chunk.start, chunk.end)):
                at += read_struct(read_range(handle, at, chunk.end)[:65536])[1]
                found.append((at, at + len(page.body)))
                at += len(page.body)
            assert at == chunk.end
    return [(start, end) for start, end in found if end > start]


def test_the_pages_are_those_that_arrow_counts(tmp_path: Path) -> None:
    path = other(tmp_path / "t.parquet", data_page_size=64, write_batch_size=8)
    metadata = pq.read_metadata(path)
    with path.open("rb") as file:
        count, chunks = read_footer(read_end(file.fileno(), path.stat().st_size)[0])
    assert count == metadata.num_rows
    groups, columns = range(metadata.num_row_groups), range(metadata.num_columns)
    for chunk, (group, at) in zip(chunks, itertools.product(groups, columns), strict=True):
        known = metadata.row_group(group).column(at)
        assert (chunk.column, chunk.values) == (known.path_in_schema, known.num_values)
        assert chunk.end - chunk.start == known.total_compressed_size


def test_files_without_checksums_pass(tmp_path: Path) -> None:
    path = other(tmp_path / "t.parquet", write_page_checksum=False, compression="none")
    assert verify_file(path) is False
    start, _ = page_bodies(path)[0]
    assert flipped(path, (start + 1) * 8, lambda: verify_file(path)) is None


def test_a_damaged_footer_of_another_writer_never_ends_the_process(tmp_path: Path) -> None:
    """Arrow's accessors do that on some; nothing here may."""
    path = other(tmp_path / "t.parquet", compression="none")
    with path.open("rb") as file:
        _, begin = read_end(file.fileno(), path.stat().st_size)
    for bit in range(begin * 8, path.stat().st_size * 8, 61):
        flipped(path, bit, lambda: verify_file(path, rows=300))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x1c" * 100,
        b"\x19" + b"\xff" * 20,
        b"\x18\x7f",
        b"\x15" + b"\xff" * 12,
        b"\x1b\x00",
        b"\x1d\x00",
    ],
)
def test_headers_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a header"):
        read_struct(data)


# -- remembering ------------------------------------------------------------------------------------------------


class Counting:
    """Counts what is verified."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, frozenset[str]]] = []
        real = checksums.verify_file

        def counted(path: Path, columns: frozenset[str], count: int) -> bool:
            self.calls.append((path.name, columns))
            return real(path, columns, count)

        monkeypatch.setattr(checksums, "verify_file", counted)

    def taken(self) -> list[frozenset[str]]:
        found, self.calls = [columns for _, columns in self.calls], []
        return found


def nothing() -> None:
    pass


def test_a_column_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, file, known = Counting(monkeypatch), ours(tmp_path), Checksums()
    known.verify([file], ["n", "s"], nothing)
    known.verify([file], ["s"], nothing)
    assert counting.taken() == [{"n", "s"}]
    known.verify([file], ["n", "d"], nothing)
    assert counting.taken() == [{"d"}]
    known.verify([file], [], nothing)
    known.verify([file], ["n", "s", "d"], nothing)
    assert counting.taken() == []
    Checksums().verify([file], [], nothing)
    assert counting.taken() == [frozenset()]  # not a column, but the footer


def test_a_file_that_changes_is_verified_again(tmp_path: Path) -> None:
    file, known = ours(tmp_path), Checksums()
    path = local_path(file.file_path)
    known.verify([file], ["n"], nothing)
    bit = (read_range_of(path, "n")[1] - 1) * 8
    assert flipped(path, bit, lambda: known.verify([file], ["n"], nothing))
    known.verify([file], ["n"], nothing)  # restored
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Corrupt, match=r"bytes instead of"):
        known.verify([file], ["n"], nothing)
    path.unlink()
    with pytest.raises(Corrupt, match="is missing"):
        known.verify([file], ["n"], nothing)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, known = Counting(monkeypatch), Checksums(max_files=2)
    files = [ours(tmp_path / str(n), count=3) for n in range(3)]
    for file in files:
        known.verify([file], ["n"], nothing)
    counting.taken()
    known.verify(files[1:], ["n"], nothing)
    assert counting.taken() == []
    known.verify(files[:1], ["n"], nothing)
    assert counting.taken() == [{"n"}]


def test_verifying_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    files = [ours(tmp_path / str(n), count=3) for n in range(40)]

    def stop() -> None:
        raise QueryCancelled("query was cancelled")

    with pytest.raises(QueryCancelled):
        Checksums().verify(files, ["n"], stop)
    assert len(counting.calls) < len(files)


def test_ranges_outside_of_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    with (tmp_path / "f").open("rb") as file:
        assert read_range(file.fileno(), 1, 3) == b"bc"
        for start, end in ((-1, 2), (2, 1), (0, 4)):
            with pytest.raises(ValueError, match="it"):
                crc_of(file.fileno(), start, end)
