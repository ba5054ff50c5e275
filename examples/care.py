"""The care of tables from top to bottom: files that lie as queries need them, columns that change, rows that go.

Run it with `python examples/care.py`. It works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import headwater
from headwater.engine import Lake

# Days are kept apart, so that old ones can leave whole; within a day, rows of a sensor lie together.
READINGS = """
CREATE TOPIC readings (
    reading  BIGINT NOT NULL,
    sensor   STRING NOT NULL,
    degrees  DOUBLE,
    at       TIMESTAMP NOT NULL
) PARTITIONED BY (days(at)) ORDERED BY (sensor, at)
WITH (bloom_columns = 'reading', retention = '30 days', retention_column = 'at')"""

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def measure(lake: Lake, days_ago: int, first: int, **more: Any) -> None:
    """A commit of readings of one day; their numbers tell nothing about the sensor or the day."""
    start = TODAY - timedelta(days=days_ago)
    lake.topic("readings").append(
        {
            "reading": n * 7919 % 10_007,
            "sensor": f"s{n % 20:02}",
            "degrees": n % 301 / 10,
            "at": start + timedelta(seconds=n % 86_400),
            **more,
        }
        for n in range(first, first + 500)
    )
    lake.topic("readings").flush()


def tell(steps: Iterable[dict[str, Any]]) -> None:
    for step in steps:
        if step["outcome"] != "nothing":
            print(f"  {step['step']}: {step['outcome']}, {step['reason']}")


def files_read(lake: Lake, where: str) -> str:
    plan = lake.sql(f"EXPLAIN SELECT degrees FROM readings WHERE {where}").info["plan"]  # noqa: S608
    scan = plan["scans"][0]
    return f"{scan['files']} of {scan['files_total']} files are read"


def run(lake: Lake) -> None:
    lake.sql(READINGS)
    for number, days_ago in enumerate((40, 2, 2, 2, 1, 1)):
        measure(lake, days_ago, number * 500)
    lake.create_view(
        "warmest", "SELECT sensor, max(degrees) AS warmest FROM readings GROUP BY sensor", refresh="manual"
    )

    print("six commits; what should be done, and what is done:")
    tell(lake.maintain("readings", dry_run=True))
    tell(lake.maintain("readings", only=["retention"]))
    tell([lake.topic("readings").optimize()])

    print("\nwhat a query leaves unread:")
    for where in (f"at >= '{TODAY - timedelta(days=1):%Y-%m-%d}'", f"reading = {600 * 7919 % 10_007}"):
        print(f"  {where}: {files_read(lake, where)}")

    print("\nthe columns change, and nothing is rewritten:")
    altered = lake.topic("readings").alter("ADD COLUMN room STRING AFTER sensor", "SET (snapshot_retention = '7 days')")
    print(*(f"  {each['effect']}" for each in altered["changes"]), sep="\n")
    measure(lake, 0, 3000, room="attic")
    print("  ", lake.sql("SELECT room, count(*) AS n FROM readings GROUP BY room ORDER BY room NULLS FIRST").rows())

    print("\na mistake, and the way back:")
    lake.topic("readings").tag("good")
    gone = lake.sql("DELETE FROM readings WHERE sensor LIKE 's0%'").rows()[0]["rows"]
    back = lake.topic("readings").rollback("good")
    print(f"  {gone} rows deleted; rolled back, {back['rows_before']} rows became {back['rows_after']}")

    refreshed = lake.sql("REFRESH MATERIALIZED VIEW warmest VERIFY").info
    assert refreshed["verified"]["equal"], refreshed
    (left,) = lake.sql("SELECT count(*) AS n FROM readings").rows()
    assert left["n"] == 3000, left
    print(f"  {left['n']} rows are left, and the view is what its query gives")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headwater-care-") as folder, headwater.init(f"{folder}/plant") as plant:
        run(plant)
