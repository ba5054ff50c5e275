"""DuckDB never answers from damaged bytes: bits flipped all over a data file, through a real lake, without Spark."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.errors import Corrupt, HeadwaterError
from headwater.storage.bloom_columns import ENABLED
from headwater.storage.seal import read_end
from headwater.topics import ingest
from headwater.topics.log import Entry

pytestmark = pytest.mark.leaves_damage

CREATE = """
    CREATE TOPIC t (
        n BIGINT NOT NULL, s STRING, d DECIMAL(10, 2), at TIMESTAMP, f DOUBLE, tags ARRAY<STRING>,
        place STRUCT<x: DOUBLE, city: STRING>
    ) WITH (compression = '{codec}')
"""
QUERIES = [
    "SELECT * FROM t ORDER BY n",
    "SELECT sum(d) AS d, count(s) AS s, max(at) AS at FROM t WHERE s = 'user3'",
    "SELECT n, tags, place FROM t WHERE n BETWEEN 300 AND 420 ORDER BY n",
    "SELECT count(n) AS c FROM t WHERE n = 333 OR d = 2.50",
]
NANOS = itertools.count(1)


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[Entry]) -> list[DataFile]:
    return ingest.write_entries(log_path, into, entries)


def rows(count: int) -> list[dict[str, Any]]:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        {
            "n": n * 3,
            "s": None if n % 5 == 0 else f"user{n % 4}",
            "d": Decimal(n) / 4,
            "at": start + dt.timedelta(hours=n),
            "f": n * 1.5,
            "tags": None if n % 7 == 0 else [f"x{n % 3}"] * (n % 3),
            "place": None if n % 6 == 0 else {"x": float(n), "city": f"c{n % 2}"},
        }
        for n in range(count)
    ]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lake]]:
    """Makes a lake with one file of 200 rows; what is not answered without Spark fails with RuntimeError."""

    def no_spark(_: Lake) -> None:
        raise RuntimeError("spark was asked")

    monkeypatch.setattr(ingest, "write_files", write_in_process)
    lakes: list[Lake] = []

    def make(codec: str = "zstd", blooms: Sequence[str] = (), **settings: Any) -> Lake:
        lake = Lake.init(tmp_path / f"lake{len(lakes)}", **settings)
        lakes.append(lake)
        lake.sql(CREATE.format(codec=codec))
        with lake._tables.load_for_commit(lake.topics.load("t").table_name).transaction() as transaction:
            transaction.set_properties({ENABLED + name: "true" for name in blooms})
        lake.topic("t").append(rows(200))
        with monkeypatch.context() as patched:
            patched.setattr(Lake, "spark", None)
            lake.flush()
        return lake

    monkeypatch.setattr(Lake, "spark", property(no_spark))
    yield make
    for lake in lakes:
        lake.close()


def data_file(lake: Lake) -> Path:
    (found,) = lake.paths.warehouse.rglob("*.parquet")
    return found


def rewrite(path: Path, body: bytes) -> None:
    path.write_bytes(body)
    os.utime(path, ns=(next(NANOS), next(NANOS)))  # the clock of file systems is too coarse to tell two writes apart


def outcomes(lake: Lake, bits: Sequence[int]) -> Counter[str]:
    """What each query says while each bit is flipped: right, wrong, or the error's code."""
    path, found = data_file(lake), Counter[str]()
    good = path.read_bytes()
    right = [lake.sql(query).rows() for query in QUERIES]
    for bit in bits:
        body = bytearray(good)
        body[bit // 8] ^= 1 << bit % 8
        rewrite(path, bytes(body))
        for query, expected in zip(QUERIES, right, strict=True):
            try:
                found["right" if lake.sql(query).rows() == expected else "wrong"] += 1
            except HeadwaterError as failed:
                found[failed.code] += 1
            except RuntimeError:
                found["spark"] += 1
    rewrite(path, good)
    assert [lake.sql(query).rows() for query in QUERIES] == right
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("blooms", [(), ("n", "s", "place.city")], ids=["plain", "blooms"])
def test_a_flipped_bit_never_changes_an_answer(opened: Callable[..., Lake], codec: str, blooms: Sequence[str]) -> None:
    lake = opened(codec, blooms)
    size = data_file(lake).stat().st_size
    with data_file(lake).open("rb") as file:
        _, footer = read_end(file.fileno(), size)
    chance = random.Random(codec)
    data, rest = chance.sample(range(footer * 8), 150), chance.sample(range(footer * 8, size * 8), 100)
    found = outcomes(lake, [*data, *rest])
    assert set(found) == {"right", "corrupt"}  # right where a query does not read the damaged column
    assert found["corrupt"] > len(data) + len(rest)


def test_without_verifying_answers_do_change(opened: Callable[..., Lake]) -> None:
    """The test above could not fail otherwise."""
    lake = opened("none", verify_checksums=False)
    found = outcomes(lake, random.Random(1).sample(range(data_file(lake).stat().st_size * 8), 60))
    assert found["wrong"] > 20
    assert not found["corrupt"]


def damage(lake: Lake, column: str) -> None:
    path = data_file(lake)
    group = pq.read_metadata(path).row_group(0)
    chunk = next(found for at in range(group.num_columns) if (found := group.column(at)).path_in_schema == column)
    body = bytearray(path.read_bytes())
    body[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 1] ^= 1
    rewrite(path, bytes(body))


def test_the_error_says_which_file_and_column_and_no_other_engine_is_asked(opened: Callable[..., Lake]) -> None:
    lake = opened()
    assert lake.sql("SELECT sum(d) AS d FROM t").rows() == [{"d": Decimal("4975.00")}]
    damage(lake, "d")
    for engine in ("auto", "duckdb"):
        with pytest.raises(Corrupt) as found:
            lake.sql("SELECT sum(d) AS d FROM t", engine=engine).rows()
        assert found.value.message == f'data file "{data_file(lake)}" is damaged'
        assert found.value.detail == 'Column "d": it does not match its checksum.'
        assert found.value.data == {"file": str(data_file(lake)), "column": "d"}
        assert "headwater doctor --deep" in str(found.value.hint)


def test_what_is_not_read_is_not_verified(opened: Callable[..., Lake]) -> None:
    lake = opened()
    damage(lake, "d")
    assert lake.sql("SELECT sum(n) AS n FROM t").rows() == [{"n": 59_700}]
    counted = lake.sql("SELECT count(*) AS c, max(d) AS d FROM t")
    assert counted.info["plan"]["engine"] == "metadata"
    assert counted.rows() == [{"c": 200, "d": Decimal("49.75")}]
    assert lake.sql("SELECT count(d) AS c FROM t WHERE n > 1000000").rows() == [{"c": 0}]  # the file is skipped
    lake.topic("t").append(rows(1))
    assert lake.sql("SELECT d FROM t WHERE n = 0 AND _offset >= 200").rows() == [{"d": Decimal("0.00")}]


def test_a_file_that_is_cut_is_damaged(opened: Callable[..., Lake]) -> None:
    lake = opened()
    path = data_file(lake)
    rewrite(path, path.read_bytes()[:-100])
    with pytest.raises(Corrupt, match=r"bytes instead of"):
        lake.sql("SELECT sum(d) AS d FROM t").rows()


def test_explain_says_what_bloom_filters_skip(opened: Callable[..., Lake]) -> None:
    lake = opened(blooms=("n", "s"))
    for query, skipped in (("SELECT d FROM t WHERE n = 301", 1), ("SELECT d FROM t WHERE n IN (300, 301)", 0)):
        shown = lake.sql(f"EXPLAIN {query}")
        assert [row["plan"] for row in shown][2].startswith(
            "  files: 0 of 1 file, 1 skipped by bloom filter; 0 rows" if skipped else "  files: 1 of 1 file; 200 rows"
        )
        scan = lake.sql(f"EXPLAIN {query}").info["plan"]["scans"][0]
        assert (scan["files"], scan["skipped_by_bloom_filter"]) == (1 - skipped, skipped)
    assert lake.sql("SELECT d FROM t WHERE n = 301").rows() == []
    assert lake.sql("SELECT d FROM t WHERE n = 300").rows() == [{"d": Decimal("25.00")}]
    assert lake.sql("SELECT count(*) AS c FROM t WHERE s = 'user2'").rows() == [{"c": 40}]
