"""Spark for a lake: its settings, and its JVM packages, which are fetched once on a machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.catalog.iceberg import file_location
from headwater.config import LakePaths, Settings, is_writable, read_only_uri
from headwater.connections import resolve_reference
from headwater.errors import InvalidSetting
from headwater.spark.archive import archive_file, reading
from headwater.spark.session import PRELOAD, SparkSettings, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(
    paths: LakePaths, settings: Settings, jvm: tuple[str, ...] | None = None, *, own_group: bool = True
) -> SparkSession:
    """A session whose catalog `lake` is the lake's; `jvm` options are in place of those that start it quickly."""
    from headwater.spark.compiled import ensure_class_path
    from headwater.spark.java import find_java

    java = find_java()
    jars = ensure_class_path(settings.cache, _say, java)
    wanted = SparkSettings(
        warehouse=file_location(paths.warehouse),
        catalog_uri=_catalog_uri(paths.catalog),
        scratch=paths.scratch,
        master=settings.spark_master,
        driver_memory=settings.spark_memory,
        preload=(*PRELOAD, "headwater.topics.ingest", "headwater.topics.log_entries", "headwater.state.sqlite"),
        jvm=reading(archive_file(settings.cache, java, jars)) if jvm is None else jvm,
        host=settings.spark_host,
        secret=_secret(settings),
        umask=settings.umask,
        own_group=own_group,
        extra=settings.spark_conf,
    )
    return start(wanted, jars)


def _catalog_uri(path: Path) -> str:
    if is_writable(path):
        return f"jdbc:sqlite:file:{path}?busy_timeout=30000&journal_mode=WAL"
    # `file:` and no more: what a Java program takes for a path keeps its spaces.
    return f"jdbc:sqlite:file:{path}?{read_only_uri(path).partition('?')[2]}"


def _secret(settings: Settings) -> str:
    try:
        return resolve_reference(settings.spark_secret)
    except LookupError:
        raise InvalidSetting(
            'setting "spark_secret" is not valid', detail="What it refers to cannot be read."
        ) from None


def _say(line: str) -> None:
    """A line of progress for work that happens once on a machine: fetching JVM packages."""
    sys.stderr.write(f"headwater: {line}\n")
