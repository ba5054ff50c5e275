"""Rows of small files that are held: right, shared between sets, and bounded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, FileFormat

from headwater.errors import Corrupt
from headwater.serving import held_rows
from headwater.serving.held_rows import HeldRows, worth_holding


def written(folder: Path, name: str, *numbers: int) -> DataFile:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    return DataFile.from_args(
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        record_count=len(numbers),
        file_size_in_bytes=path.stat().st_size,
    )


def test_a_set_is_read_once_and_a_larger_one_opens_only_what_is_new(tmp_path: Path) -> None:
    verified: list[str] = []
    held = HeldRows(lambda files, _: verified.extend(Path(file.file_path).stem for file in files))
    one, two, three = (written(tmp_path, name, *range(n)) for n, name in enumerate("abc", 1))
    first = held.read([one, two], ["n"])
    assert first is not None and first["n"].to_pylist() == [0, 0, 1]
    assert held.read([one, two], ["n"]) is first
    Path(one.file_path.removeprefix("file://")).unlink()  # it is not opened again
    more = held.read([one, two, three], ["n"])
    assert more is not None and more["n"].to_pylist() == [0, 0, 1, 0, 1, 2]
    assert verified == ["a", "b", "c"]


def test_what_is_damaged_is_not_held(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise Corrupt("damaged")

    with pytest.raises(Corrupt):
        HeldRows(refuse).read([written(tmp_path, "a", 1)], ["n"])


def test_what_is_large_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "a", *range(100))
    assert worth_holding([file]) and not worth_holding([])
    monkeypatch.setattr(held_rows, "SMALL", file.file_size_in_bytes - 1)
    assert not worth_holding([file])
    assert HeldRows(lambda *_: None).read([file], ["n"]) is None


def test_the_oldest_go_when_it_gets_too_much(tmp_path: Path) -> None:
    held = HeldRows(lambda *_: None, max_bytes=2 * 2 * 9000)  # two files, and two sets
    files = [written(tmp_path, str(n), *range(1000)) for n in range(5)]
    for file in files:
        assert held.read([file], ["n"]) is not None
    assert len(held._files) == len(held._sets) == 2
    assert held.read([files[0]], ["n"]) is not None
