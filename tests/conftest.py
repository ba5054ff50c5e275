"""Fixtures that every suite may use. Spark starts once per run, on the first test that asks for it.

Generated cases are the same in every run, so that a change passes or fails by its own merit; `make fuzz` searches on.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell ignores it for what runs in its background, and what tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(PROFILE := os.environ.get("HEADWATER_HYPOTHESIS", "same"))
if PROFILE == "same":
    # Hypothesis also draws constants from the local modules that are loaded, which depend on the tests that ran before.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session")
def spark_jars() -> tuple[Path, ...]:
    """The JVM packages, fetched on the first run on a machine."""
    from headwater.config import default_cache
    from headwater.spark.compiled import ensure_class_path
    from headwater.spark.java import find_java

    return ensure_class_path(default_cache(), lambda line: None, find_java())


@pytest.fixture(scope="module", autouse=True)
def healthy_lakes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """When a module ends, `doctor --deep` finds nothing wrong in the lakes that its tests left.

    A test that damages lakes, or leaves one as a killed process did, has the mark `leaves_damage`."""
    top = tmp_path_factory.getbasetemp()
    before, failed = set(top.iterdir()), request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        return
    inside = [item for item in request.session.items if item.path == request.node.path]
    damaged = [item for item in inside if item.get_closest_marker("leaves_damage")]
    skipped = (SPARK_LAKE, *(re.sub(r"\W", "_", item.name)[:30] for item in damaged))  # as pytest names folders
    left = [each for each in set(top.iterdir()) - before if not each.name.startswith(skipped)]
    found = [wrong for folder in left for lake in _lakes_in(folder) for wrong in _wrong_with(lake)]
    assert not found, "\n".join(found)


def _lakes_in(folder: Path, depth: int = 3) -> Iterator[Path]:
    if folder.is_symlink():
        return
    if (folder / "headwater.toml").exists() and (folder / "catalog.db").exists():
        yield folder
    elif depth:
        try:
            inner = [Path(each) for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for each in inner:
            yield from _lakes_in(each, depth - 1)


def _wrong_with(lake: Path) -> list[str]:
    from headwater.cli.checks_lake import check_lake

    checks = check_lake(lake, deep=True)
    return [f"{lake}: {check.name}: {check.status}: {check.message}" for check in checks if check.status != "ok"]


SPARK_LAKE = "spark lake"


@pytest.fixture(scope="session")
def spark_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the lake that the shared session is bound to."""
    folder = tmp_path_factory.mktemp(SPARK_LAKE)
    yield folder


@pytest.fixture(scope="session")
def spark_engine(spark_jars: tuple[Path, ...], spark_lake: Path) -> Iterator[Any]:
    """The holder of the shared session. Tests that end JVMs start their own in a process of their own."""
    from headwater.config import default_cache
    from headwater.spark.archive import archive_file, reading
    from headwater.spark.java import find_java
    from headwater.spark.session import SparkEngine, SparkSettings, start

    settings = SparkSettings(
        warehouse=str(spark_lake / "warehouse"),
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
