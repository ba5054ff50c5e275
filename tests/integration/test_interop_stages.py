"""A topic's life as other engines see it: after every step of it, PyIceberg, Spark, Polars and Daft read the same rows,
and its metadata files are as the Iceberg specification requires."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.integration.iceberg_spec import check_table

from headwater.engine import Lake
from headwater.storage.writer import local_path

pytestmark = pytest.mark.spark

NAME = "stages"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Readers that neither call home nor look for plugins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAFT_ANALYTICS_ENABLED", "0")
        patch.setenv("DAFT_PROGRESS_BAR", "0")
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        yield


def record(n: int) -> dict[str, Any]:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=9 * n)
    return {
        "n": n,
        "small": n % 100,
        "share": n / 4,
        "price": Decimal(n) / 100,
        "customer": None if n % 11 == 0 else f"c{n % 7}",
        "at": at,
        "place": {"city": f"x{n % 3}", "zip": n % 1000},
        "tags": [f"t{n % 2}"] if n % 5 else None,
    }


def append(lake: Lake, start: int, stop: int, more: Callable[[int], dict[str, Any]] = lambda _: {}) -> None:
    """Two commits of the records in a range."""
    for part in (range(start, (start + stop) // 2), range((start + stop) // 2, stop)):
        lake.topic(NAME).append([record(n) | more(n) for n in part])
        lake.flush(NAME)


def in_order(table: pa.Table) -> Rows:
    return sorted(table.to_pylist(), key=lambda row: row["_offset"])


def by_pyiceberg(lake: Lake) -> Rows:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{lake.paths.catalog}")
    try:
        return in_order(catalog.load_table(("topics", NAME)).scan().to_arrow())
    finally:
        catalog.close()


def by_polars(lake: Lake) -> Rows:
    return in_order(pl.scan_iceberg(lake.topics.load(NAME).table, reader_override="native").collect().to_arrow())


def by_daft(lake: Lake) -> Rows:
    import daft

    return in_order(daft.read_iceberg(lake.topics.load(NAME).table).to_arrow())


def by_spark(lake: Lake) -> Rows:
    """Iceberg's own reader, from the metadata file alone."""
    location = lake.topics.load(NAME).table.metadata_location
    return in_order(lake.spark.read.format("iceberg").load(location).toArrow())


def by_us(lake: Lake) -> Rows:
    return in_order(lake.sql(f"SELECT * FROM {NAME}", tail=False).arrow())


RENAMED = ("client", "place")
READERS = (by_spark, by_polars, by_daft, by_us)


def same_everywhere(lake: Lake, stage: str, *, renamed: tuple[str, ...] = ()) -> Rows:
    """The rows, about which all readers agree; the metadata is checked.

    Daft reads columns and fields that were `renamed` since a file was written as null, whoever wrote it.
    """
    rows = by_pyiceberg(lake)
    for reader in READERS:
        found, expected = reader(lake), rows
        assert list(found[0]) == list(rows[0]), f"{stage}: columns by {reader.__name__}"
        if renamed and reader is by_daft:
            found, expected = ([row | dict.fromkeys(renamed) for row in each] for each in (found, rows))
        assert found == expected, f"{stage}: rows by {reader.__name__}"
    check_table(local_path(lake.topics.load(NAME).table.metadata_location))
    return rows


def test_every_reader_agrees_at_every_stage(lake: Lake) -> None:
    lake.sql(
        f"""CREATE TOPIC {NAME} (n BIGINT NOT NULL, small INT, share FLOAT, price DECIMAL(9, 2), customer STRING,
            at TIMESTAMP, place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>)
            PARTITIONED BY (days(at)) ORDERED BY (customer ASC NULLS LAST, n DESC)
            WITH (compression_columns = 'customer=zstd:9, n=lz4', bloom_columns = 'customer',
                  encoding_columns = 'n=delta', min_snapshots = 1, snapshot_retention = '1 minute')"""
    )
    append(lake, 0, 40)
    rows = same_everywhere(lake, "ingested")
    assert [row["n"] for row in rows] == list(range(40))

    lake.sql(f"DELETE FROM {NAME} WHERE n % 10 = 3")
    lake.sql(f"UPDATE {NAME} SET small = -1 WHERE n = 8")
    rows = same_everywhere(lake, "deleted and updated")
    assert len(rows) == 36
    assert [row["small"] for row in rows if row["n"] == 8] == [-1]

    lake.sql(f"OPTIMIZE {NAME}")
    assert same_everywhere(lake, "compacted") == rows

    lake.sql(
        f"""ALTER TOPIC {NAME} RENAME COLUMN customer TO client, ADD COLUMN note STRING AFTER n,
            ALTER COLUMN small TYPE BIGINT, ALTER COLUMN share TYPE DOUBLE, ALTER COLUMN price TYPE DECIMAL(18, 2),
            RENAME COLUMN place.city TO town, ADD COLUMN place.street STRING, DROP COLUMN tags"""
    )
    evolved = same_everywhere(lake, "evolved, nothing rewritten", renamed=RENAMED)
    assert list(evolved[0])[:3] == ["n", "note", "small"]
    assert [row["client"] for row in evolved] == [row["customer"] for row in rows]
    assert evolved[1]["place"] == {"town": "x1", "zip": 1, "street": None}

    def newer(n: int) -> dict[str, Any]:
        old = record(n)
        place = {"town": old["place"]["city"], "zip": old["place"]["zip"], "street": "s"}
        return {"note": f"n{n}", "client": old["customer"], "place": place, "small": 2**40 + n}

    def as_newer(n: int) -> dict[str, Any]:
        return {key: value for key, value in (record(n) | newer(n)).items() if key not in ("customer", "tags")}

    lake.topic(NAME).append([as_newer(n) for n in range(40, 50)])
    lake.flush(NAME)
    mixed = same_everywhere(lake, "evolved, old and new files", renamed=RENAMED)
    assert mixed[-1]["small"] == 2**40 + 49

    lake.sql(f"ALTER TOPIC {NAME} SET PARTITIONED BY (bucket(4, n)), SET CLUSTERED BY ZORDER (client, n)")
    lake.topic(NAME).append([as_newer(n) for n in range(50, 60)])
    lake.flush(NAME)
    respecced = same_everywhere(lake, "partition and order evolved", renamed=RENAMED)
    assert len(respecced) == len(mixed) + 10
    lake.sql(f"CREATE TAG before ON {NAME}")

    lake.sql(f"OPTIMIZE {NAME} FULL")
    assert same_everywhere(lake, "rewritten to the new layout") == respecced

    lake.sql(f"DELETE FROM {NAME} WHERE n < 30")
    assert len(same_everywhere(lake, "deleted again")) < len(respecced)
    lake.sql(f"ROLLBACK TOPIC {NAME} TO TAG 'before'")
    assert same_everywhere(lake, "rolled back", renamed=RENAMED) == respecced
    lake.topic(NAME).append([as_newer(60)])
    lake.flush(NAME)
    assert len(same_everywhere(lake, "appended after the rollback", renamed=RENAMED)) == len(respecced) + 1

    lake.sql(f"MAINTAIN {NAME}")
    assert len(same_everywhere(lake, "maintained", renamed=RENAMED)) == len(respecced) + 1
