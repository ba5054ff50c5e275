"""Nexmark by hand: the queries as a careful engineer writes them in PySpark Structured Streaming, over the same files.

Each stream is a folder of Parquet files, one for each micro-batch. Results go to Iceberg tables of the session's
catalog: appended by Iceberg's own streaming sink, or, where a query changes rows that it gave before, merged by their
keys in `foreachBatch`. State is in RocksDB with changelog checkpoints. Queries that Structured Streaming cannot run are
not here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bench.nexmark_queries import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TYPES = {
    "person": "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP, extra STRING",
    "auction": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP, extra STRING",
    "side_input": "key BIGINT, value STRING",
}
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
TUNED = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows costs a read for each write.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # The usual one starts a process for each rename in a local folder.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    # A second file for every file of a checkpoint.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""What a careful engineer sets, having profiled it on one machine."""


@dataclass(frozen=True, slots=True)
class Written:
    """A query in Spark's words; with keys, its rows are merged by them."""

    sql: str
    keys: tuple[str, ...] = ()


_SAME = ("q0", "q1", "q2", "q3", "q13", "q14", "q20")

BY_HAND = {name: Written(QUERIES[name].sql) for name in _SAME} | {
    "q5": Written(
        "SELECT window.start AS window_start, hot.auction, hot.num FROM (SELECT window, "
        "collect_list(named_struct('auction', auction, 'num', num)) AS counts, MAX(num) AS most FROM "
        "(SELECT auction, window(date_time, '10 seconds', '2 seconds') AS window, COUNT(*) AS num FROM bid "
        "GROUP BY auction, window(date_time, '10 seconds', '2 seconds')) GROUP BY window) "
        "LATERAL VIEW explode(filter(counts, c -> c.num = most)) hottest AS hot"
    ),
    "q7": Written(
        "SELECT window.start AS window_start, best.* FROM (SELECT window(date_time, '10 seconds') AS window, "
        "MAX(named_struct('price', price, 'date_time', date_time, 'auction', auction, 'bidder', bidder, "
        "'extra', extra)) AS best FROM bid GROUP BY window(date_time, '10 seconds'))"
    ),
    "q8": Written(
        "SELECT p.id, p.name, p.window.start AS window_start FROM "
        "(SELECT id, name, window(date_time, '10 seconds') AS window FROM person "
        "GROUP BY id, name, window(date_time, '10 seconds')) p JOIN "
        "(SELECT seller, window(date_time, '10 seconds') AS window FROM auction "
        "GROUP BY seller, window(date_time, '10 seconds')) a ON p.id = a.seller AND p.window = a.window"
    ),
    "q11": Written(
        "SELECT bidder, bid_count, session.start AS window_start, session.end AS window_end FROM "
        "(SELECT bidder, session_window(date_time, '10 seconds') AS session, COUNT(*) AS bid_count FROM bid "
        "GROUP BY bidder, session_window(date_time, '10 seconds'))"
    ),
    "q12": Written(
        "SELECT bidder, window.start AS window_start, window.end AS window_end, bid_count FROM "
        "(SELECT bidder, window(arrived, '10 seconds') AS window, COUNT(*) AS bid_count FROM "
        "(SELECT bidder, CAST(current_timestamp() AS TIMESTAMP) AS arrived FROM bid) "
        "GROUP BY bidder, window(arrived, '10 seconds'))",
        ("bidder", "window_start"),
    ),
    "q17": Written(QUERIES["q17"].sql, ("auction", "day")),
}


class ByHand:
    """Runs the queries over the files of one folder: `<folder>/<stream>/<number>.parquet`."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoints: Path, disorder: float) -> None:
        self._spark = spark.newSession()
        self._folder, self._checkpoints, self._disorder = folder, checkpoints, disorder
        self._spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.by_hand")
        cores = str(spark.sparkContext.defaultParallelism)
        for name, value in {**TUNED, "spark.sql.shuffle.partitions": cores}.items():
            self._spark.conf.set(name, value)

    def run(self, name: str, files_a_batch: int) -> tuple[float, str, list[dict[str, Any]]]:
        """Seconds from the first line of the program to its last commit, its table, and what Spark says of batches."""
        started = time.perf_counter()
        table, query = self._start(name, files_a_batch, availableNow=True)
        query.awaitTermination()
        return time.perf_counter() - started, table, [dict(each) for each in query.recentProgress]

    def follow(self, name: str) -> StreamingQuery:
        """The query running on, for files that are still to come; each batch takes all that there are."""
        return self._start(name, 1000, processingTime="0 seconds")[1]

    def _start(self, name: str, files_a_batch: int, **trigger: Any) -> tuple[str, StreamingQuery]:
        table, written = f"lake.by_hand.{name}_{uuid4().hex[:8]}", BY_HAND[name]
        for stream in QUERIES[name].inputs:
            self._stream(stream, files_a_batch).createOrReplaceTempView(stream)
        rows = self._spark.sql(written.sql)
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema)
        self._spark.sql(f"CREATE TABLE {table} ({columns}) USING iceberg")
        writer = rows.writeStream.option("checkpointLocation", str(self._checkpoints / uuid4().hex)).trigger(**trigger)
        if not written.keys:
            return table, writer.outputMode("append").toTable(table)
        return table, writer.outputMode("update").foreachBatch(_merge(table, written.keys)).start()

    def _stream(self, name: str, files_a_batch: int) -> DataFrame:
        folder = str(self._folder / name)
        if name == "side_input":
            return self._spark.read.schema(TYPES[name]).parquet(folder)
        reader = self._spark.readStream.schema(TYPES[name]).option("maxFilesPerTrigger", files_a_batch)
        return reader.parquet(folder).withWatermark("date_time", f"{int(self._disorder * 1000)} milliseconds")


def _merge(table: str, keys: tuple[str, ...]) -> Any:
    matched = " AND ".join(f"old.{key} = new.{key}" for key in keys)

    def write(rows: DataFrame, _: int) -> None:
        rows.createOrReplaceTempView("new_rows")
        rows.sparkSession.sql(
            f"MERGE INTO {table} old USING new_rows new ON {matched} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return write
