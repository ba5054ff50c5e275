"""Spark for a lake: its settings, and its JVM packages, which are fetched once on a machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headwater.catalog.iceberg import file_location
from headwater.config import LakePaths, Settings
from headwater.spark.session import PRELOAD, SparkSettings, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(paths: LakePaths, settings: Settings) -> SparkSession:
    """A session whose catalog `lake` is the lake's."""
    from headwater.spark.java import find_java
    from headwater.spark.packages import ensure_packages

    wanted = SparkSettings(
        warehouse=file_location(paths.warehouse),
        catalog_uri=f"jdbc:sqlite:file:{paths.catalog}?busy_timeout=30000&journal_mode=WAL",
        scratch=paths.scratch,
        master=settings.spark_master,
        driver_memory=settings.spark_memory,
        preload=(*PRELOAD, "headwater.topics.ingest", "headwater.topics.log_entries", "headwater.state.sqlite"),
        extra=settings.spark_conf,
    )
    return start(wanted, ensure_packages(settings.cache, _say, find_java()))


def _say(line: str) -> None:
    """A line of progress for work that happens once on a machine: fetching JVM packages."""
    sys.stderr.write(f"headwater: {line}\n")
