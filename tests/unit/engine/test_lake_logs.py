"""Which log a lake's topics have, and what a lake without brokers says; without any broker."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.catalog.lake_id import find_lake_id, make_lake_id
from headwater.engine import Lake
from headwater.engine.logs import _value
from headwater.errors import InvalidOption, InvalidSetting, Unavailable
from headwater.topics.log_sqlite import SqliteLog


def test_a_lake_without_kafka_does_not_open_it(tmp_path: Path) -> None:
    with Lake.init(tmp_path, kafka_bootstrap_servers="127.0.0.1:1") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": 1}])
        assert lake.sql("SELECT n FROM t").rows() == [{"n": 1}]
        assert [topic.name for topic in lake.log.waiting()] == ["t"]
        assert lake.log.position("s") is None
        assert lake.log._opened is None and isinstance(lake.log.sqlite, SqliteLog)
        assert not lake.paths.kafka_index.exists()


def test_a_topic_is_not_made_without_its_log(tmp_path: Path) -> None:
    with Lake.init(tmp_path) as lake:
        with pytest.raises(InvalidSetting, match='"kafka_bootstrap_servers" is not set') as told:
            lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'kafka', on_invalid = 'dead_letter')")
        assert told.value.hint is not None and "HEADWATER_KAFKA_BOOTSTRAP_SERVERS" in told.value.hint
        with pytest.raises(InvalidOption, match='option "log" does not take "paper"'):
            lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'paper')")
        assert lake.topics.names() == []
    with Lake.open(tmp_path, kafka_bootstrap_servers="127.0.0.1:1", kafka_timeout=0.5) as lake:
        with pytest.raises(Unavailable, match="cannot be made"):
            lake.sql("CREATE TOPIC t (n BIGINT) WITH (log = 'kafka')")
        assert lake.topics.names() == []


def test_all_who_ask_at_once_get_one_id(tmp_path: Path) -> None:
    with Lake.init(tmp_path) as lake:
        assert find_lake_id(lake.paths.catalog, 5) is None
        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(lambda _: make_lake_id(lake.paths.catalog, 30), range(16)))
        assert made == {find_lake_id(lake.paths.catalog, 5)}
        assert len(made) == 1
        properties = lake.topics.tables.catalog.load_namespace_properties("topics")
        assert properties["headwater.lake-id"] in made


def test_options_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "secret")
    assert _value("sasl.password", "env:BROKER_PASSWORD") == "secret"
    assert _value("sasl.mechanism", "PLAIN") == "PLAIN"
    monkeypatch.delenv("BROKER_PASSWORD")
    with pytest.raises(InvalidSetting, match="kafka_options") as told:
        _value("sasl.password", "env:BROKER_PASSWORD")
    assert told.value.detail is not None and "BROKER_PASSWORD" in told.value.detail


def test_the_client_is_not_imported_for_nothing() -> None:
    import subprocess

    code = "import sys, headwater.engine; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
