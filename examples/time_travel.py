"""Time travel from top to bottom: an import that went wrong, what it did, the way back, and what is kept of it.

Run it with `python examples/time_travel.py`. It works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import tempfile

import headwater
from headwater import TimeTravelManager
from headwater.engine import Lake

PRICES = "CREATE TOPIC prices (item STRING NOT NULL, price DECIMAL(9,2) NOT NULL)"


def offer(lake: Lake, **prices: str) -> None:
    """Records of one commit: items with their prices."""
    lake.topic("prices").append([{"item": item, "price": price} for item, price in prices.items()])
    lake.topic("prices").flush()


def run(lake: Lake) -> None:
    lake.sql(PRICES)
    travel = TimeTravelManager(lake)
    offer(lake, apple="1.20", pear="1.50", plum="0.80")
    travel.tag("prices", "before_import", retain="30 days")

    print("an import doubles prices, and takes an item away")
    lake.sql("UPDATE prices SET price = price * 2 WHERE item <> 'plum'")
    lake.sql("DELETE FROM prices WHERE item = 'plum'")
    offer(lake, fig="2.10")
    for row in travel.changes("prices", "before_import", "main").rows():
        print(f"  {row['_change']:<12} {row['item']} {row['price']}")
    print("  in numbers:", {name: n for name, n in travel.diff("prices", "before_import", "main").items() if n})

    print("\nthe way back, first as a plan")
    for line in lake.sql("ROLLBACK TOPIC prices TO TAG before_import DRY RUN").rows():
        print(f"  {line['plan']}")
    imported = travel.list_snapshots("prices")[0]["snapshot"]
    travel.rollback("prices", "before_import")
    print("  now:", [f"{row['item']} {row['price']}" for row in lake.sql("SELECT * FROM prices ORDER BY item").rows()])

    print("\nthe new item was right: its commit is picked")
    travel.cherry_pick("prices", imported)
    now = [row["item"] for row in lake.sql("SELECT item FROM prices ORDER BY item").rows()]
    then = travel.read_at_snapshot("prices", imported).arrow().num_rows
    print(f"  now: {', '.join(now)}; and the import can still be read: {then} rows")
    assert now == ["apple", "fig", "pear", "plum"], now


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headwater-past-") as folder, headwater.init(f"{folder}/shop") as shop:
        run(shop)
