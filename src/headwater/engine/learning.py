"""A short life of a lake, for the file of classes that later starts of Spark are quicker with."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from headwater.engine.lake import Lake
from headwater.engine.spark_start import start_spark
from headwater.spark.archive import writing
from headwater.spark.session import SparkEngine, stop

PATIENCE = 300.0
"""Seconds that a JVM may take to end: that is when it writes the file."""
VIEWS = {
    "v": "CREATE MATERIALIZED VIEW v AS SELECT n % 3 AS k, count(*) AS c, max(text) AS m FROM t GROUP BY n % 3",
    "w": "CREATE MATERIALIZED VIEW w AS SELECT TUMBLE_START(at, INTERVAL '1 minute') AS minute, count(*) AS c FROM t "
    "GROUP BY TUMBLE(at, INTERVAL '1 minute') WITH (refresh = 'continuous')",
}


def learn(file: Path) -> None:
    """Commit, keep views and query, in a lake that is gone afterwards; the JVM leaves what it has loaded in `file`."""
    with (
        tempfile.TemporaryDirectory(prefix="headwater-setup-") as folder,
        Lake.init(Path(folder) / "lake", maintenance=False, spark_master="local[2]") as lake,
    ):
        begin = partial(start_spark, lake.paths, lake.settings, writing(file))
        lake._spark = SparkEngine(begin, stop=partial(stop, timeout=PATIENCE))
        lake.sql("CREATE STREAM t (n BIGINT, text STRING, at TIMESTAMP) WITH (timestamp_field = 'at')")
        _fill(lake)
        for statement in VIEWS.values():
            lake.sql(statement)
        _fill(lake)
        for name in VIEWS:
            lake.sql(f"REFRESH MATERIALIZED VIEW {name}")
        lake.sql("SELECT k, count(*) AS n FROM v JOIN t ON t.n = v.k GROUP BY k ORDER BY k", engine="spark")
        lake.sql("OPTIMIZE t")


def _fill(lake: Lake) -> None:
    lake.topic("t").append([{"n": n, "text": str(n), "at": "2026-01-01T00:00:00Z"} for n in range(100)])
    lake.flush()
