"""What tests of a whole lake share: one in the folder of the run's Spark session, and a service of it.

Each module opens them anew; what one leaves in the lake the next one finds, so names of topics are a module's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api.serve import Service
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.spark.session import SparkEngine


@pytest.fixture(scope="module")
def lake(spark: Any, spark_lake: Path) -> Iterator[Lake]:
    """A lake in the folder that the shared session's catalog is bound to."""
    made = (spark_lake / "headwater.toml").exists()
    opened = Lake.open(spark_lake) if made else Lake.init(spark_lake)
    opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def url(lake: Lake) -> Iterator[str]:
    service = Service(lake, port=0)
    yield service.start()
    service.stop()


@pytest.fixture(scope="module")
def remote(url: str) -> Iterator[RemoteLake]:
    with RemoteLake(url) as remote:
        yield remote


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{url}/api/v1", timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture
def kafka_service(spark: Any, spark_lake: Path, kafka: Any) -> Iterator[Lake]:
    """A lake whose loops run, and whose topics may have their log in Kafka."""
    open_lake = Lake.open if (spark_lake / "headwater.toml").exists() else Lake.init
    local = {"type": "kafka", "bootstrap_servers": kafka.bootstrap}
    kafka_settings = {"connections": {"local": local}, "kafka_connection": "local"}
    with open_lake(spark_lake, maintenance=False, query_worker="never", **kafka_settings) as running:
        running._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        running.start_background()
        yield running
