"""Which log a lake's topics have, and what a lake without brokers says; without any broker."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog.identity import P_KAFKA, claim_kafka_log, load_properties
from headwater.engine import Lake
from headwater.errors import InvalidOption, InvalidSetting, Unavailable
from headwater.topics.log_sqlite import SqliteLog

NO_BROKER: dict[str, Any] = {
    "connections": {"gone": {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"}},
    "kafka_connection": "gone",
}


def test_a_lake_without_kafka_does_not_open_it(tmp_path: Path) -> None:
    with Lake.init(tmp_path, **NO_BROKER) as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": 1}])
        assert lake.sql("SELECT n FROM t").rows() == [{"n": 1}]
        assert [topic.name for topic in lake.log.waiting()] == ["t"]
        assert lake.log.position("s") is None
        assert lake.log._opened is None and isinstance(lake.log.sqlite, SqliteLog)
        assert not lake.paths.kafka_index.exists()


def test_a_topic_is_not_made_without_its_log(tmp_path: Path) -> None:
    with Lake.init(tmp_path) as lake:
        with pytest.raises(InvalidSetting, match='"kafka_connection" is not set') as told:
            lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'kafka', on_invalid = 'dead_letter')")
        assert told.value.hint is not None and "HEADWATER_KAFKA_CONNECTION" in told.value.hint
        with pytest.raises(InvalidOption, match='option "log" does not take "paper"'):
            lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'paper')")
        assert lake.topics.names() == []
    with Lake.open(tmp_path, **NO_BROKER, kafka_timeout=0.5) as lake:
        with pytest.raises(Unavailable, match="cannot be made"):
            lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'kafka')")
        assert lake.topics.names() == []


def test_all_who_ask_at_once_get_one_id(tmp_path: Path) -> None:
    with Lake.init(tmp_path) as lake:
        assert P_KAFKA not in load_properties(lake.paths.catalog, 5)
        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(lambda _: claim_kafka_log(lake.paths.catalog, 30), range(16)))
        assert P_KAFKA in load_properties(lake.paths.catalog, 5)
        assert len(made) == 1
        properties = lake.topics.tables.catalog.load_namespace_properties("topics")
        assert properties["headwater.lake-id"] in made


def test_a_log_in_a_connection_that_is_not_configured(tmp_path: Path) -> None:
    with (
        Lake.init(tmp_path, kafka_connection="nowhere") as lake,
        pytest.raises(InvalidOption, match='connection "nowhere" is not configured'),
    ):
        lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'kafka')")


def test_the_client_is_not_imported_for_nothing() -> None:
    import subprocess

    code = "import sys, headwater.engine; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
