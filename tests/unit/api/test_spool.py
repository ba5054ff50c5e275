"""Results on disk, read in pages."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headwater.api.spool import Spool
from headwater.errors import QueryNotFound, ResultTooLarge
from headwater.serving.result import Result


def spooled(folder: Path, table: pa.Table, max_rows: int = 10**9, max_bytes: int = 10**12) -> Spool:
    spool = Spool(folder, max_rows, max_bytes)
    spool.open(Result(table.schema, iter(())))
    for batch in table.to_batches(max_chunksize=10_000):
        spool.write(batch)
    spool.finish()
    return spool


def test_pages_are_the_table(tmp_path: Path) -> None:
    table = pa.table({"id": range(25_000), "name": [None if n % 3 else f"n{n}" for n in range(25_000)]})
    spool = spooled(tmp_path, table)
    assert spool.rows == 25_000
    for offset, limit in ((0, 10), (8190, 5), (9_999, 10_000), (24_999, 10), (25_000, 10), (99_999, 1)):
        page = pa.Table.from_batches(spool.page(offset, limit), schema=table.schema)
        assert page == table.slice(offset, limit)
    spool.close()


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    spool = spooled(tmp_path, pa.table({"id": range(10)}))
    assert list(tmp_path.iterdir()) == []
    spool.close()
    spool.close()
    with pytest.raises(QueryNotFound):
        spool.page(0, 1)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_only_a_large_result_occupies_a_file_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    small = [spooled(tmp_path, pa.table({"id": range(100)})) for _ in range(20)]
    assert descriptors() == before
    large = spooled(tmp_path, pa.table({"id": range(100_000)}))
    assert descriptors() > before
    assert [spool.is_on_disk for spool in (*small[:1], large)] == [False, True]
    assert small[0].page(98, 5)[0].to_pydict() == {"id": [98, 99]}
    large.close()
    assert not large.is_on_disk
    assert descriptors() == before


def test_a_page_is_bounded_in_bytes_but_has_a_row(tmp_path: Path) -> None:
    spool = spooled(tmp_path, pa.table({"text": ["x" * 1000] * 100}))
    small = spool.page(0, 100, max_bytes=10_000)
    assert 1 <= sum(batch.num_rows for batch in small) <= 10
    assert sum(batch.num_rows for batch in spool.page(0, 100, max_bytes=1)) == 1


def test_limits(tmp_path: Path) -> None:
    with pytest.raises(ResultTooLarge, match="more than 9 rows"):
        spooled(tmp_path, pa.table({"id": range(10)}), max_rows=9)
    with pytest.raises(ResultTooLarge, match="more than 100 bytes"):
        spooled(tmp_path, pa.table({"text": ["x" * 100]}), max_bytes=100)


def test_an_empty_result_has_an_empty_page(tmp_path: Path) -> None:
    spool = spooled(tmp_path, pa.table({"id": pa.array([], pa.int64())}))
    assert spool.page(0, 10) == []
