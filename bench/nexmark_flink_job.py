"""Nexmark in Flink's SQL, run by PyFlink in an environment of its own: this file imports nothing of ours.

Reads one JSON object from stdin: `data` (folder of the streams' Parquet files), `out` (folder of answers), `jars`,
`queries`, `disorder` (seconds). Runs each query once and prints a JSON line for it: its seconds, or why it failed.
Two slots, mini-batches and object reuse. Answers go to Parquet files; those that change rows that they gave before,
which files cannot take, go to `blackhole`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

SIZE = "INTERVAL '10' SECOND"
BID = "auction, bidder, price, channel, url, date_time, extra"
TABLES = {
    "person": "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP_LTZ(6), extra STRING",
    "auction": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP_LTZ(6), expires TIMESTAMP_LTZ(6), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP_LTZ(6), "
    "extra STRING",
    "side_input": "`key` BIGINT, `value` STRING",
}
CONFIGURATION = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "execution.checkpointing.interval": "10 s",
    "restart-strategy.type": "none",  # a job that cannot run would be tried again for ever
    "taskmanager.memory.network.fraction": "0.1",
}


def counted(what: str, plural: str) -> str:
    """A count, and the same count for each of three ranks of price."""
    ranks = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
    ranked = (f"{what} FILTER (WHERE {rank}) AS {name}_{plural}" for name, rank in ranks.items())
    return ", ".join((f"{what} AS total_{plural}", *ranked))


STATISTICS = ", ".join(
    (
        counted("COUNT(*)", "bids"),
        counted("COUNT(DISTINCT bidder)", "bidders"),
        counted("COUNT(DISTINCT auction)", "auctions"),
    )
)
COUNTS = (
    "SELECT auction, COUNT(*) AS num, window_start, window_end FROM TABLE(HOP(TABLE bid, DESCRIPTOR(moment), "
    f"INTERVAL '2' SECOND, {SIZE})) GROUP BY auction, window_start, window_end"
)
TUMBLED = f"TABLE(TUMBLE(TABLE {{}}, DESCRIPTOR(moment), {SIZE}))"

QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    "q4": "SELECT category, AVG(final) AS average FROM (SELECT a.id, a.category, MAX(b.price) AS final FROM auction a "
    "JOIN bid b ON a.id = b.auction WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category) "
    "GROUP BY category",
    "q5": f"SELECT c.auction, c.num, c.window_start FROM ({COUNTS}) c JOIN (SELECT MAX(num) AS most, window_start, "
    f"window_end FROM ({COUNTS}) GROUP BY window_start, window_end) m ON c.window_start = m.window_start "
    "AND c.window_end = m.window_end AND c.num >= m.most",
    "q7": "SELECT window_start, price, date_time, auction, bidder, extra FROM (SELECT window_start, price, date_time, "
    "auction, bidder, extra, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place "
    f"FROM {TUMBLED.format('bid')}) WHERE place <= 1",
    "q8": f"SELECT p.id, p.name, p.window_start FROM (SELECT id, name, window_start, window_end FROM "
    f"{TUMBLED.format('person')} GROUP BY id, name, window_start, window_end) p JOIN (SELECT seller, window_start, "
    f"window_end FROM {TUMBLED.format('auction')} GROUP BY seller, window_start, window_end) a ON p.id = a.seller "
    "AND p.window_start = a.window_start AND p.window_end = a.window_end",
    "q11": "SELECT bidder, COUNT(*) AS bid_count, window_start, window_end FROM TABLE(SESSION(TABLE bid PARTITION BY "
    f"bidder, DESCRIPTOR(moment), {SIZE})) GROUP BY bidder, window_start, window_end",
    "q12": "SELECT bidder, COUNT(*) AS bid_count, window_start, window_end FROM TABLE(TUMBLE(TABLE bid, "
    f"DESCRIPTOR(arrived), {SIZE})) GROUP BY bidder, window_start, window_end",
    "q13": "SELECT b.auction, b.bidder, b.price, b.date_time, s.`value` FROM bid b JOIN side_input s "
    "ON MOD(b.auction, 10000) = s.`key`",
    "q14": "SELECT auction, bidder, 0.908 * price AS price, CASE WHEN HOUR(date_time) BETWEEN 8 AND 18 THEN 'dayTime' "
    "WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type, "
    "date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts FROM bid "
    "WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000",
    "q15": f"SELECT CAST(date_time AS DATE) AS `day`, {STATISTICS} FROM bid GROUP BY CAST(date_time AS DATE)",
    "q16": f"SELECT channel, CAST(date_time AS DATE) AS `day`, MAX(DATE_FORMAT(date_time, 'HH:mm')) AS `minute`, "
    f"{STATISTICS} FROM bid GROUP BY channel, CAST(date_time AS DATE)",
    "q17": f"SELECT auction, CAST(date_time AS DATE) AS `day`, {counted('COUNT(*)', 'bids')}, MIN(price) AS min_price, "
    "MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price FROM bid "
    "GROUP BY auction, CAST(date_time AS DATE)",
    "q18": f"SELECT {BID} FROM (SELECT {BID}, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) "
    "AS place FROM bid) WHERE place <= 1",
    "q19": f"SELECT {BID}, place FROM (SELECT {BID}, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, "
    "date_time) AS place FROM bid) WHERE place <= 10",
    "q20": "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.item_name, a.description, "
    "a.initial_bid, a.reserve, a.date_time AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra "
    "FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
}
CHANGING = ("q4", "q15", "q16", "q17", "q18", "q19")


def environment(asked: dict[str, Any]) -> Any:
    """A table environment with the streams."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    jars = ";".join(Path(jar).as_uri() for jar in asked["jars"])
    placed = {
        "pipeline.classpaths": jars,
        "pipeline.jars": jars,
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": Path(asked["out"], "checkpoints").as_uri(),
    }
    for name, value in {**CONFIGURATION, **placed}.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = TableEnvironment.create(settings)
    for name, columns in TABLES.items():
        folder = Path(asked["data"], name).as_uri()
        timed = (
            ", moment AS CAST(date_time AS TIMESTAMP_LTZ(3)), arrived AS PROCTIME(), "
            f"WATERMARK FOR moment AS moment - INTERVAL '{asked['disorder']}' SECOND"
        )
        columns += timed if "date_time" in columns else ""
        tables.execute_sql(
            f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'filesystem', 'path' = '{folder}', "
            "'format' = 'parquet')"
        )
    return tables


def run(tables: Any, name: str, out: Path) -> float:
    """Seconds from handing the query over until all of its answer is written."""
    sink = "'connector' = 'blackhole'"
    if name not in CHANGING:
        sink = f"'connector' = 'filesystem', 'path' = '{out.as_uri()}', 'format' = 'parquet'"
    tables.execute_sql(f"CREATE TABLE into_{name} ({columns_of(tables, name)}) WITH ({sink})")
    started = time.perf_counter()
    tables.execute_sql(f"INSERT INTO into_{name} {QUERIES[name]}").wait()
    return time.perf_counter() - started


def columns_of(tables: Any, name: str) -> str:
    """The answer's columns as CREATE TABLE takes them."""
    columns = tables.sql_query(QUERIES[name])._j_table.getResolvedSchema().getColumns()
    types = ((each.getName(), each.getDataType().getLogicalType().asSerializableString()) for each in columns)
    return ", ".join(f"`{column}` {of}" for column, of in types)


def reason(error: Exception) -> str:
    """The last of the causes that Java gives."""
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by: ")]
    return (causes or str(error).splitlines()[:1])[-1].removeprefix("Caused by: ")


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    tables = environment(asked)
    for turn, name in enumerate(asked["queries"]):
        try:
            seconds = run(tables, name, Path(asked["out"], f"{turn}_{name}"))
            print(json.dumps({"query": name, "seconds": seconds}), flush=True)
        except Exception as error:
            print(json.dumps({"query": name, "error": reason(error)}), flush=True)
        tables.execute_sql(f"DROP TABLE IF EXISTS into_{name}")


if __name__ == "__main__":
    main()
