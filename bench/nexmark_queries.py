"""Nexmark's queries in Headwater's SQL, one text each: a continuous view's, and, asked once, the answer to compare.

Three streams, `person`, `auction` and `bid`, and one table, `side_input`. Queries that Structured Streaming cannot keep
(aggregates over aggregates that change, several distinct counts, rows numbered by rank) follow every commit by
incremental refresh; `engine` says which is expected. Event times are distinct, so that no rank is left to chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Engine = Literal["streaming", "incremental"]
SIDE_INPUT = "key BIGINT NOT NULL, value STRING"
SIDE_ROWS = 10_000
SIZE = "INTERVAL '10 seconds'"
HOP = "date_time, INTERVAL '2 seconds', INTERVAL '10 seconds'"


@dataclass(frozen=True, slots=True)
class Query:
    """One of Nexmark's: what it asks, of which inputs, and how it is kept."""

    name: str
    asks: str
    sql: str
    inputs: tuple[str, ...] = ("bid",)
    engine: Engine = "streaming"
    closes: bool = False
    """Each window once, when it is over. The answer has a column window_start."""

    def view(self, name: str, options: str = "") -> str:
        """The statement that makes a continuous view of the query."""
        emit = " EMIT ON WINDOW CLOSE" if self.closes else ""
        more = f", {options}" if options else ""
        return f"CREATE MATERIALIZED VIEW {name} AS {self.sql}{emit} WITH (refresh = 'continuous'{more})"

    def batch(self, closed_before: str) -> str:
        """The query over the finished input; where windows close, of those that do before the moment."""
        if not self.closes:
            return self.sql
        return f"SELECT * FROM ({self.sql}) AS answer WHERE window_start < TIMESTAMP '{closed_before}'"


_RANKS = {"rank1": "< 10000", "rank2": ">= 10000 AND price < 1000000", "rank3": ">= 1000000"}


def _counted(what: str, plural: str) -> str:
    """A count, and the same count for each of three ranks of price."""
    ranked = (f"{what} FILTER (WHERE price {rank}) AS {name}_{plural}" for name, rank in _RANKS.items())
    return ", ".join((f"{what} AS total_{plural}", *ranked))


_STATISTICS = ", ".join(
    (
        _counted("COUNT(*)", "bids"),
        _counted("COUNT(DISTINCT bidder)", "bidders"),
        _counted("COUNT(DISTINCT auction)", "auctions"),
    )
)
_WINNING = (
    "SELECT a.id, a.category, a.seller, a.expires, MAX(b.price) AS final FROM auction a JOIN bid b ON a.id = b.auction "
    "WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category, a.seller, a.expires"
)
_EUROS = "CAST(0.908 AS DECIMAL(4, 3)) * price"

QUERIES = {
    query.name: query
    for query in (
        Query("q0", "pass through", "SELECT auction, bidder, price, date_time, extra FROM bid"),
        Query("q1", "currency conversion", f"SELECT auction, bidder, {_EUROS} AS price, date_time, extra FROM bid"),
        Query("q2", "selection", "SELECT auction, price FROM bid WHERE auction % 123 = 0"),
        Query(
            "q3",
            "local item suggestion",
            "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id "
            "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
            ("person", "auction"),
        ),
        Query(
            "q4",
            "average price for a category",
            f"SELECT category, AVG(final) AS average FROM ({_WINNING}) AS won GROUP BY category",
            ("auction", "bid"),
            "incremental",
        ),
        Query(
            "q5",
            "hot items",
            # The counts of a window come all at once when it closes, so that one list of them is enough to find the
            # largest ones, and no second look at the bids.
            "SELECT window_start, window_end, hot.auction, hot.num FROM (SELECT window_start, window_end, "
            "collect_list(named_struct('auction', auction, 'num', num)) AS counts, MAX(num) AS most "
            f"FROM (SELECT auction, HOP_START({HOP}) AS window_start, HOP_END({HOP}) AS window_end, COUNT(*) AS num "
            f"FROM bid GROUP BY auction, HOP({HOP})) AS counted GROUP BY window_start, window_end) AS listed "
            "LATERAL VIEW explode(filter(counts, c -> c.num = most)) hottest AS hot",
            closes=True,
        ),
        Query(
            "q6",
            "average selling price by seller, of the last ten auctions",
            "SELECT seller, id, expires, AVG(final) OVER (PARTITION BY seller ORDER BY expires, id "
            f"ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average FROM ({_WINNING}) AS won",
            ("auction", "bid"),
            "incremental",
        ),
        Query(
            "q7",
            "highest bid",
            f"SELECT TUMBLE_START(date_time, {SIZE}) AS window_start, MAX(price) AS price, "
            "MAX_BY(named_struct('auction', auction, 'bidder', bidder, 'date_time', date_time, 'extra', extra), "
            f"named_struct('price', price, 'date_time', date_time)) AS bid FROM bid "
            f"GROUP BY TUMBLE(date_time, {SIZE})",
            closes=True,
        ),
        Query(
            "q8",
            "monitor new users",
            "SELECT p.id, p.name, p.window_start FROM "
            f"(SELECT id, name, TUMBLE_START(date_time, {SIZE}) AS window_start FROM person "
            f"GROUP BY id, name, TUMBLE(date_time, {SIZE})) AS p JOIN "
            f"(SELECT seller, TUMBLE_START(date_time, {SIZE}) AS window_start FROM auction "
            f"GROUP BY seller, TUMBLE(date_time, {SIZE})) AS a ON p.id = a.seller AND p.window_start = a.window_start",
            ("person", "auction"),
            closes=True,
        ),
        Query(
            "q11",
            "user sessions",
            f"SELECT bidder, COUNT(*) AS bid_count, SESSION_START(date_time, {SIZE}) AS window_start, "
            f"SESSION_END(date_time, {SIZE}) AS window_end FROM bid GROUP BY bidder, SESSION(date_time, {SIZE})",
            closes=True,
        ),
        Query(
            "q12",
            "bids by arrival",
            f"SELECT bidder, COUNT(*) AS bid_count, TUMBLE_START(_timestamp, {SIZE}) AS window_start, "
            f"TUMBLE_END(_timestamp, {SIZE}) AS window_end FROM bid GROUP BY bidder, TUMBLE(_timestamp, {SIZE})",
        ),
        Query(
            "q13",
            "join with a table",
            "SELECT b.auction, b.bidder, b.price, b.date_time, s.value FROM bid b "
            f"JOIN side_input s ON b.auction % {SIDE_ROWS} = s.key",
            ("bid", "side_input"),
        ),
        Query(
            "q14",
            "calculation",
            f"SELECT auction, bidder, {_EUROS} AS price, CASE WHEN HOUR(date_time) BETWEEN 8 AND 18 THEN 'dayTime' "
            "WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,"
            " date_time, extra, LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS c_counts FROM bid "
            f"WHERE {_EUROS} > 1000000 AND {_EUROS} < 50000000",
        ),
        Query(
            "q15",
            "bidding statistics by day",
            f"SELECT CAST(date_time AS DATE) AS day, {_STATISTICS} FROM bid GROUP BY CAST(date_time AS DATE)",
            engine="incremental",
        ),
        Query(
            "q16",
            "channel statistics by day",
            f"SELECT channel, CAST(date_time AS DATE) AS day, MAX(DATE_FORMAT(date_time, 'HH:mm')) AS minute, "
            f"{_STATISTICS} FROM bid GROUP BY channel, CAST(date_time AS DATE)",
            engine="incremental",
        ),
        Query(
            "q17",
            "auction statistics by day",
            f"SELECT auction, CAST(date_time AS DATE) AS day, {_counted('COUNT(*)', 'bids')}, MIN(price) AS min_price, "
            "MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price FROM bid "
            "GROUP BY auction, CAST(date_time AS DATE)",
        ),
        Query(
            "q18",
            "each bidder's last bid in an auction",
            "SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT auction, bidder, price, "
            "channel, url, date_time, extra, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) "
            "AS place FROM bid) AS ranked WHERE place <= 1",
            engine="incremental",
        ),
        Query(
            "q19",
            "each auction's ten highest bids",
            "SELECT auction, bidder, price, channel, url, date_time, extra, place FROM (SELECT auction, bidder, price, "
            "channel, url, date_time, extra, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, date_time) "
            "AS place FROM bid) AS ranked WHERE place <= 10",
            engine="incremental",
        ),
        Query(
            "q20",
            "bids with their auctions",
            "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.item_name, a.description, "
            "a.initial_bid, a.reserve, a.date_time AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra"
            " FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
            ("bid", "auction"),
        ),
    )
}
