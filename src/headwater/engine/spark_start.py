"""Spark for a lake: its settings, and its JVM packages, which are fetched once on a machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headwater.catalog.iceberg import file_location
from headwater.config import LakePaths, Settings
from headwater.spark.archive import archive_file, reading
from headwater.spark.session import PRELOAD, SparkSettings, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(paths: LakePaths, settings: Settings, jvm: tuple[str, ...] | None = None) -> SparkSession:
    """A session whose catalog `lake` is the lake's; `jvm` options are in place of those that start it quickly."""
    from headwater.spark.java import find_java
    from headwater.spark.packages import ensure_packages

    java = find_java()
    jars = ensure_packages(settings.cache, _say, java)
    wanted = SparkSettings(
        warehouse=file_location(paths.warehouse),
        catalog_uri=f"jdbc:sqlite:file:{paths.catalog}?busy_timeout=30000&journal_mode=WAL",
        scratch=paths.scratch,
        master=settings.spark_master,
        driver_memory=settings.spark_memory,
        preload=(*PRELOAD, "headwater.topics.ingest", "headwater.topics.log_entries", "headwater.state.sqlite"),
        jvm=reading(archive_file(settings.cache, java, jars)) if jvm is None else jvm,
        extra=settings.spark_conf,
    )
    return start(wanted, jars)


def _say(line: str) -> None:
    """A line of progress for work that happens once on a machine: fetching JVM packages."""
    sys.stderr.write(f"headwater: {line}\n")
