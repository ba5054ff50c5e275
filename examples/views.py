"""Materialized views from top to bottom: hourly sales, days on top of them, and a customer whose rows are erased.

Run it with `python examples/views.py`. It works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta

import headwater
from headwater.engine import Lake

ORDERS = """
CREATE TOPIC orders (
    order_id  BIGINT NOT NULL,
    customer  STRING NOT NULL,
    city      STRING,
    amount    DECIMAL(12,2) NOT NULL,
    placed_at TIMESTAMP NOT NULL
) PARTITIONED BY (days(placed_at))"""

# A count and a sum take rows back; a maximum cannot, so hours that lose rows are computed anew.
HOURLY = """
SELECT TUMBLE_START(placed_at, INTERVAL '1 hour') AS hour, city,
       count(*) AS orders, sum(amount) AS total, max(amount) AS largest
FROM orders
GROUP BY TUMBLE(placed_at, INTERVAL '1 hour'), city"""

# A view on a view: it reads the hours that changed, not the orders.
DAILY = """
SELECT CAST(hour AS DATE) AS day, city, sum(orders) AS orders, sum(total) AS total
FROM hourly
GROUP BY CAST(hour AS DATE), city"""


def place(lake: Lake, first: int, number: int) -> None:
    """Place orders, one every ten minutes, by five customers in three cities."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    lake.topic("orders").append(
        {
            "order_id": n,
            "customer": ("ada", "grace", "lin", "mary", "joan")[n % 5],
            "city": ("oslo", "rome", "bonn")[n % 3],
            "amount": f"{5 + n * 7 % 90}.50",
            "placed_at": start + timedelta(minutes=10 * n),
        }
        for n in range(first, first + number)
    )


def refresh(lake: Lake, name: str) -> None:
    """Refresh a view and those below it, and print what was done."""
    for done in lake.view(name).refresh():
        print(f"  {done['view']}: {done['method']}, read {done['rows_read']} rows, wrote {done['rows_written']}")
        print(f"    because {done['reason']}")


def run(lake: Lake) -> None:
    lake.sql(ORDERS)
    place(lake, 0, 300)
    lake.create_view("hourly", HOURLY, refresh="manual")
    lake.create_view("daily", DAILY, refresh="manual")
    print("two views:", *(f"{row['view']} ({row['rows']} rows)" for row in lake.sql("SHOW MATERIALIZED VIEWS").rows()))

    print("\nten more orders: their hours follow, then the days of those hours")
    place(lake, 300, 10)
    fresh = lake.view("daily").query("day = DATE '2026-03-03'", fresh=True).rows()
    print(f"  before the refresh a fresh read has all {sum(row['orders'] for row in fresh)} orders of that day")
    refresh(lake, "daily")

    print("\nada wants to be forgotten")
    gone = lake.sql("DELETE FROM orders WHERE customer = 'ada'").rows()[0]["rows"]
    print(f"  {gone} rows deleted; the next refresh of the hours:")
    print(*(f"    {line[:110]}" for line in lake.view("hourly").explain().splitlines()), sep="\n")
    refresh(lake, "daily")

    for name in ("hourly", "daily"):
        outcome = lake.view(name).verify()
        assert outcome["equal"], outcome
        print(f"  {name} is what its query gives: {outcome['rows']} rows compared")
    (left,) = lake.sql("SELECT sum(orders) AS orders FROM daily").rows()
    assert left["orders"] == 310 - gone, left
    print(f"  {left['orders']} orders are left in daily")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headwater-views-") as folder, headwater.init(f"{folder}/shop") as shop:
        run(shop)
