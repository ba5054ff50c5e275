"""When a lake has a query worker, and what the frames between the two processes carry."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headwater.engine import Lake
from headwater.engine.query_worker import worker_config
from headwater.errors import InvalidSetting, InvalidStatement, QueryInterrupted
from headwater.spark.query_worker import read_error, receive_frame, send_error, send_frame


@pytest.mark.parametrize(
    ("setting", "embedded", "service"),
    [("service", "off", "not started"), ("always", "not started", "not started"), ("never", "off", "off")],
)
def test_the_setting_decides_where_queries_run(tmp_path: Path, setting: str, embedded: str, service: str) -> None:
    with Lake.init(tmp_path / "lake", query_worker=setting, maintenance=False) as lake:
        assert lake.query_worker_state == embedded
        lake.start_background()
        assert lake.query_worker_state == service


def test_a_standalone_cluster_is_shared_only_by_applications_with_a_limit(tmp_path: Path) -> None:
    cluster = {"spark_master": "spark://127.0.0.1:1", "maintenance": False}
    with Lake.init(tmp_path / "lake", **cluster) as lake:
        with pytest.raises(InvalidSetting, match=r"spark\.cores\.max") as refused:
            lake.start_background()
        assert "query_worker" in str(refused.value.hint)
        assert lake.query_worker_state == "off"
        with pytest.raises(InvalidSetting, match=r"spark\.cores\.max"):
            Lake.open(tmp_path / "lake", query_worker="always", **cluster)
        limited = {"spark_conf": {"spark.cores.max": "1"}}
        with Lake.open(tmp_path / "lake", query_worker="always", **limited, **cluster) as shared:
            assert shared.query_worker_state == "not started"
            config = worker_config(shared.paths, shared.settings)
            assert config["settings"]["spark_conf"] == {"spark.cores.max": "1"}
    for more in ({"spark_master": "yarn"}, {"query_worker": "never"}):
        with Lake.open(tmp_path / "lake", **{**cluster, **more}) as lake:
            lake.start_background()


def test_a_worker_has_the_settings_of_its_lake_and_no_worker_of_its_own(tmp_path: Path) -> None:
    with Lake.init(tmp_path / "lake", query_worker_memory="700m", spark_memory="3g", query_timeout=7) as lake:
        config = worker_config(lake.paths, lake.settings)
    assert config["lake"] == str(tmp_path / "lake")
    found = config["settings"]
    assert (found["query_worker"], found["spark_memory"], found["query_timeout"]) == ("never", "700m", 7)
    assert not found["record_usage"]


def test_errors_cross_the_processes_as_they_are() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for error in (
            InvalidStatement("statement is not valid", detail="It is not.", hint="Write it.", line=1, position=7),
            QueryInterrupted("query was interrupted", retry_after=5),
        ):
            send_error(theirs, error)
            kind, content = receive_frame(ours)
            found = read_error(content)
            assert kind == b"E" and type(found) is type(error)
            assert (found.message, found.detail, found.hint, found.data) == (
                error.message,
                error.detail,
                error.hint,
                error.data,
            )


def test_a_broken_connection_is_the_end_of_it() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            send_frame(theirs, b"B", b"whole")
            theirs.sendall(b"B\0\0\0\7half")
        assert receive_frame(ours) == (b"B", bytearray(b"whole"))
        with pytest.raises(EOFError):
            receive_frame(ours)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"B\xff\xff\xff\xff")
        with pytest.raises(EOFError):
            receive_frame(ours)
