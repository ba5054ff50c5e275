"""Time in a stream, batch by batch: a window that closes once, a late record, and the window put right.

The records are those of the picture in docs/guides/time-and-lateness.md. Run it with `python examples/streaming.py`. It
works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import tempfile

import headwater
from headwater.engine import Lake

ORDERS = """
CREATE STREAM orders (customer STRING, placed_at TIMESTAMP)
WITH (timestamp_field = 'placed_at', max_out_of_orderness = '10 seconds')"""

PER_MINUTE = """
SELECT TUMBLE_START(placed_at, INTERVAL '1 minute') AS minute, count(*) AS orders
FROM orders GROUP BY TUMBLE(placed_at, INTERVAL '1 minute')"""

VIEWS = {
    # Each window once, when it is over; the rows go to a topic as well, and late records correct what was closed.
    "per_minute": f"{PER_MINUTE} EMIT ON WINDOW CLOSE INTO TOPIC 'minutes' "
    "WITH (refresh = 'continuous', late = 'correct')",
    # The newest row of every customer, from the first order on.
    "customers": "SELECT customer, count(*) AS orders, max(placed_at) AS last FROM orders GROUP BY customer "
    "EMIT CHANGES WITH (refresh = 'continuous')",
}

BATCHES = (
    ("ada 00:05", "lin 00:40", "ada 00:30"),
    ("lin 00:55", "ada 01:05"),
    ("ada 00:58", "lin 01:20"),
    ("lin 00:50", "ada 01:40"),
)


def arrive(lake: Lake, batch: tuple[str, ...]) -> None:
    """Append some orders, and let the view read them; in a service, it would by itself."""
    orders = (order.split() for order in batch)
    lake.topic("orders").append({"customer": customer, "placed_at": f"2026-03-01T09:{at}Z"} for customer, at in orders)
    lake.sql("REFRESH MATERIALIZED VIEW per_minute")


def tell(lake: Lake) -> None:
    status = lake.streams.status("per_minute")[0]
    closed = lake.sql("SELECT minute, orders FROM per_minute ORDER BY minute").rows()
    shown = ", ".join(f"{row['minute']:%H:%M} has {row['orders']}" for row in closed) or "none"
    late = f"; late so far: {status.late_rows}" if status.late_rows else ""
    print(f"  watermark {status.watermark:%H:%M:%S}; closed minutes: {shown}{late}")


def run(lake: Lake) -> None:
    lake.sql(ORDERS)
    print("two views of a stream that is empty yet:")
    for name, query in VIEWS.items():
        print(f"  {name}: {lake.sql(f'CREATE MATERIALIZED VIEW {name} AS {query}').notices[0]}")

    for number, batch in enumerate(BATCHES, 1):
        print(f"\nbatch {number}: {', '.join(batch)}")
        arrive(lake, batch)
        tell(lake)

    print("\nwhat the late order changed:")
    for row in lake.sql("SELECT op, minute, orders FROM per_minute__corrections ORDER BY op DESC").rows():
        print(f"  {row['op']} {row['minute']:%H:%M} {row['orders']}")
    sent = lake.sql("SELECT minute, orders FROM minutes ORDER BY _offset").rows()
    got = ", ".join(f"{row['minute']:%H:%M} {row['orders']}" for row in sent)
    print(f"  the topic minutes got: {got}")

    print("\ncustomers, which read all of it at once:")
    lake.sql("REFRESH MATERIALIZED VIEW customers")
    for row in lake.sql("SELECT customer, orders, last FROM customers ORDER BY customer").rows():
        print(f"  {row['customer']}: {row['orders']} orders, the last at {row['last']:%H:%M:%S}")

    closed = lake.sql("SELECT minute, orders FROM per_minute ORDER BY minute").rows()
    batch_answer = lake.sql(f"SELECT * FROM ({PER_MINUTE}) AS b WHERE minute < '2026-03-01 09:01:00'").rows()  # noqa: S608
    assert closed == batch_answer, (closed, batch_answer)
    print("\nof minutes that are closed, the view holds what its query gives over the whole topic")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headwater-streaming-") as folder, headwater.init(f"{folder}/shop") as shop:
        run(shop)
