from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidSetting
from headwater.spark.gateway import LAUNCH
from headwater.spark.session import SparkEngine, SparkSettings, conf

SETTINGS = SparkSettings(
    warehouse="/lake/data",
    catalog_uri="jdbc:sqlite:file:/lake/catalog.db?busy_timeout=30000",
    scratch=Path("/lake/scratch"),
)
JARS = (Path("/jars/iceberg.jar"), Path("/jars/sqlite.jar"))


def test_the_catalog_and_the_class_path() -> None:
    values = conf(SETTINGS, JARS)
    assert values["spark.sql.catalog.lake.uri"] == SETTINGS.catalog_uri
    assert values["spark.sql.catalog.lake.warehouse"] == "/lake/data"
    assert values["spark.sql.catalog.lake.cache-enabled"] == "false"
    assert values["spark.sql.catalog.lake.jdbc.schema-version"] == "V1"
    assert values["spark.driver.extraClassPath"] == "/jars/iceberg.jar:/jars/sqlite.jar"
    assert values["spark.executor.extraClassPath"] == values["spark.driver.extraClassPath"]
    assert "spark.jars" not in values


def test_temporary_files_stay_in_the_scratch_folder() -> None:
    values = conf(SETTINGS, JARS)
    assert values["spark.local.dir"] == "/lake/scratch"
    assert '"-Djava.io.tmpdir=/lake/scratch/tmp"' in values["spark.driver.extraJavaOptions"]
    assert values["spark.sql.warehouse.dir"].startswith("/lake/scratch/")


def test_quotes_in_paths_are_escaped() -> None:
    options = conf(replace(SETTINGS, scratch=Path('/a "b" \\c')), JARS)["spark.driver.extraJavaOptions"]
    assert '"-Djava.io.tmpdir=/a \\"b\\" \\\\c/tmp"' in options


@pytest.mark.parametrize("settings", [replace(SETTINGS, scratch=Path("/a,b"))])
def test_paths_that_spark_would_split(settings: SparkSettings) -> None:
    with pytest.raises(InvalidSetting, match="cannot be passed to Spark"):
        conf(settings, JARS)
    with pytest.raises(InvalidSetting, match="cannot be passed to Spark"):
        conf(SETTINGS, (Path("/a:b.jar"),))


def test_a_driver_hides_on_the_loopback_unless_it_is_told_otherwise() -> None:
    cluster = replace(SETTINGS, master="spark://host:7077")
    for settings in (SETTINGS, cluster):
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            assert conf(settings, JARS)[name] == "127.0.0.1"
    open_ = replace(cluster, host="10.0.0.5", secret="s3")
    assert conf(open_, JARS)["spark.driver.bindAddress"] == "10.0.0.5"
    assert "s3" not in repr(open_)
    with pytest.raises(InvalidSetting, match='"spark_host" needs the setting "spark_secret"'):
        conf(replace(cluster, host="10.0.0.5"), JARS)
    trusted = replace(cluster, host="10.0.0.5", extra={"spark.authenticate": "false"})
    assert conf(trusted, JARS)["spark.authenticate"] == "false"


def test_ports_ask_for_a_secret_and_encrypt() -> None:
    local = conf(SETTINGS, JARS)
    assert (local["spark.authenticate"], local["spark.network.crypto.enabled"]) == ("true", "true")
    assert "spark.authenticate.secret" not in local  # Spark makes one up
    shared = conf(replace(SETTINGS, master="spark://h:1", secret="s3"), JARS)
    assert (shared["spark.authenticate"], shared["spark.authenticate.secret"]) == ("true", "s3")
    assert "spark.authenticate.secret" not in LAUNCH  # what is launched with shows in the list of processes
    assert "spark.authenticate" not in conf(replace(SETTINGS, master="spark://h:1"), JARS)


def test_files_are_for_their_owner_or_group() -> None:
    for umask, text in ((0o077, "077"), (0o007, "007")):
        found = conf(replace(SETTINGS, umask=umask), JARS)
        assert found["spark.hadoop.fs.permissions.umask-mode"] == text
        assert found["spark.executorEnv.HEADWATER_UMASK"] == text


def test_sockets_need_a_short_path_and_a_local_master() -> None:
    key = "spark.python.unix.domain.socket.dir"
    assert conf(replace(SETTINGS, sockets=Path("/tmp/s")), JARS)[key] == "/tmp/s"
    assert key not in conf(replace(SETTINGS, sockets=Path("/tmp") / ("s" * 80)), JARS)
    assert key not in conf(replace(SETTINGS, sockets=Path("/tmp/s"), master="yarn"), JARS)


def test_extra_settings_win() -> None:
    values = conf(replace(SETTINGS, extra={"spark.ui.enabled": "true", "spark.x": "1"}), JARS)
    assert (values["spark.ui.enabled"], values["spark.x"]) == ("true", "1")


class Sessions:
    """Stands for Spark in tests of who starts what when: sessions are numbers, and some are dead."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.started = 0
        self.stopped = list[Any]()
        self.dead = set[Any]()

    def start(self) -> Any:
        time.sleep(0.02)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no")
        self.started += 1
        return self.started

    def engine(self) -> SparkEngine:
        return SparkEngine(self.start, stop=self.stopped.append, alive=lambda session: session not in self.dead)


def test_nothing_starts_before_it_is_needed() -> None:
    sessions = Sessions()
    engine = sessions.engine()
    assert engine.state == "not started"
    engine.stop()
    assert (sessions.started, sessions.stopped) == (0, [])


def test_concurrent_callers_share_one_start() -> None:
    sessions = Sessions()
    engine = sessions.engine()
    found = list[Any]()
    threads = [threading.Thread(target=lambda: found.append(engine.session)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 16
    assert sessions.started == 1


def test_a_failed_start_can_be_repeated() -> None:
    engine = Sessions(failures=1).engine()
    with pytest.raises(RuntimeError):
        _ = engine.session
    assert engine.state == "not started"
    assert engine.session == 1


def test_a_dead_session_is_cleared_away_and_replaced() -> None:
    sessions = Sessions()
    engine = sessions.engine()
    assert engine.session == 1
    sessions.dead.add(1)
    assert engine.session == 2
    assert sessions.stopped == [1]


def test_a_stopped_engine_starts_again() -> None:
    sessions = Sessions()
    engine = sessions.engine()
    assert engine.session == 1
    engine.stop()
    engine.stop()
    assert (engine.state, sessions.stopped) == ("not started", [1])
    assert engine.session == 2
