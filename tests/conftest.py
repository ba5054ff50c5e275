"""Fixtures that every suite may use. Spark starts once per run, on the first test that asks for it.

Generated cases are the same in every run, so that a change passes or fails by its own merit; `make fuzz` searches on.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HEADWATER_HYPOTHESIS", "same"))


@pytest.fixture(scope="session")
def spark_jars() -> tuple[Path, ...]:
    """The JVM packages, fetched on the first run on a machine."""
    from headwater.config import default_cache
    from headwater.spark.java import find_java
    from headwater.spark.packages import ensure_packages

    return ensure_packages(default_cache(), lambda line: None, find_java())


@pytest.fixture(scope="session")
def spark_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the lake that the shared session is bound to: catalog.db, data and scratch."""
    return tmp_path_factory.mktemp("spark lake")


@pytest.fixture(scope="session")
def spark_engine(spark_jars: tuple[Path, ...], spark_lake: Path) -> Iterator[Any]:
    """The holder of the shared session. Tests that end JVMs start their own in a process of their own."""
    from headwater.config import default_cache
    from headwater.spark.archive import archive_file, reading
    from headwater.spark.java import find_java
    from headwater.spark.session import SparkEngine, SparkSettings, start

    settings = SparkSettings(
        warehouse=str(spark_lake / "data"),
        catalog_uri=f"jdbc:sqlite:file:{spark_lake / 'catalog.db'}?busy_timeout=30000&journal_mode=WAL",
        scratch=spark_lake / "scratch",
        master="local[2]",
        jvm=reading(archive_file(default_cache(), find_java(), spark_jars)),
    )
    engine = SparkEngine(lambda: start(settings, spark_jars))
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def spark(spark_engine: Any) -> Any:
    """The shared Spark session."""
    return spark_engine.session


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running Kafka broker (`tests/kafka_broker.py`), shared: a test that ends it starts it again."""
    spec = importlib.util.spec_from_file_location("kafka_broker", Path(__file__).with_name("kafka_broker.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    broker = module.Broker(tmp_path_factory.mktemp("kafka")).start()
    with pytest.MonkeyPatch.context() as patient:  # a machine that is busy with tests is not a broker that is away
        patient.setattr("headwater.topics.log_kafka_journal.ASKING", 120.0)
        yield broker
    broker.stop()
