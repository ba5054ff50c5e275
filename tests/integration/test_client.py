"""RemoteLake against a real service: it answers as the lake itself does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pyarrow as pa
import pytest

import headwater
from headwater.api.serve import Service
from headwater.client import LakeLike, RemoteLake
from headwater.engine import Lake
from headwater.errors import (
    Backpressure,
    InvalidOption,
    InvalidSetting,
    QueryCancelled,
    QueryFailed,
    RecordsRejected,
    ResultTooLarge,
    ServiceUnreachable,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from headwater.serving.query import Cancel
from headwater.sql.parse import parse
from headwater.sql.statements import Query
from headwater.topics.produce import Source

CLI = Source("cli")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with headwater.init(tmp_path_factory.mktemp("lake")) as lake:
        lake.sql("CREATE TOPIC numbers (id BIGINT NOT NULL, v DOUBLE)")
        lake.topic("numbers").append(
            pa.table({"id": range(50_000), "v": [n * 7919 % 50_021 / 2 for n in range(50_000)]})
        )
        yield lake


@pytest.fixture(scope="module")
def remote(lake: Lake) -> Iterator[RemoteLake]:
    service = Service(lake, port=0)
    with RemoteLake(service.start()) as remote:
        yield remote
    service.stop()


def test_both_are_lakes(lake: Lake, remote: RemoteLake) -> None:
    both: list[LakeLike] = [lake, remote]  # checked by mypy
    assert len(both) == 2


@pytest.mark.parametrize(
    "text",
    [
        "SHOW TOPICS",
        "DESCRIBE TOPIC numbers",
        "SELECT count(*) AS n, max(v) FROM numbers",
        "SELECT id, v, _timestamp FROM numbers WHERE id < 10 ORDER BY id",
        "SELECT id FROM numbers WHERE id < 0",
        "EXPLAIN SELECT id FROM numbers WHERE id < 10",
        "SELECT count(*) FROM numbers WITH TAIL OFF",
    ],
)
def test_statements_answer_as_the_lake_does(lake: Lake, remote: RemoteLake, text: str) -> None:
    here, there = lake.execute(parse(text)), remote.execute(parse(text))
    assert there.schema == here.schema
    assert there.arrow() == here.arrow()
    assert there.notices == here.notices
    assert dict(there.info) == dict(here.info)


def test_definitions_answer_as_the_lake_does(lake: Lake, remote: RemoteLake) -> None:
    text = "CREATE TOPIC {} (at TIME, k STRING) PARTITIONED BY (bucket(4, k)) WITH (batch_size = 7, dedup_key = 'k')"
    here, there = lake.execute(parse(text.format("here"))), remote.execute(parse(text.format("there")))
    assert there.schema == here.schema
    assert there.notices == here.notices != ()
    assert lake.topics.load("there").definition.options == lake.topics.load("here").definition.options
    assert lake.topics.load("there").definition.partitioning == lake.topics.load("here").definition.partitioning
    dropped = remote.execute(parse("DROP TOPIC there"))
    assert dropped.rows() == [{"status": 'topic "there" dropped'}]
    assert dropped.schema == lake.execute(parse("DROP TOPIC here")).schema
    assert remote.execute(parse("DROP TOPIC IF EXISTS there")).rows() == [{"status": 'topic "there" does not exist'}]


def test_flushing_nothing_answers_as_the_lake_does(tmp_path: Path) -> None:
    with headwater.init(tmp_path) as lake:
        service = Service(lake, port=0)
        with RemoteLake(service.start()) as remote:
            assert remote.flush() == []
            assert remote.execute(parse("FLUSH")).schema == lake.execute(parse("FLUSH")).schema
            with pytest.raises(TopicNotFound):
                remote.flush("none")
        service.stop()


def test_errors_are_the_same_errors(remote: RemoteLake) -> None:
    for text, kind in (
        ("CREATE TOPIC numbers (id INT)", TopicExists),
        ("DROP TOPIC number", TopicNotFound),
        ("DESCRIBE TOPIC none", TopicNotFound),
    ):
        with pytest.raises(kind):
            remote.execute(parse(text))
    with pytest.raises(TopicNotFound) as missing:
        remote.describe("number")
    assert missing.value.hint == 'Did you mean "numbers"?'
    with pytest.raises(QueryFailed, match="cannot run on DuckDB"):
        remote.execute(Query("SELECT no_such_function(id) FROM numbers", engine="duckdb"))
    with pytest.raises(ResultTooLarge):
        remote.execute(Query("SELECT id FROM numbers", max_rows=10)).arrow()
    with pytest.raises(InvalidOption):
        remote._json(
            "POST", "/topics", json={"name": "x", "columns": [{"name": "a", "type": "INT"}], "options": {"b": 1}}
        )


FORMATS: list[tuple[Any, list[Any]]] = [
    ("ndjson", [b'{"id": 1, "v": 0.5}', b'{"id": 2}\n']),
    ("json", [b'[{"id": 1, "v": 0.5}]', b'{"id": 2}']),
    ("csv", [b"id,v\n1,0.5\n", b"id,v\n2,\n"]),
    ("rows", [[{"id": 1, "v": 0.5}], [{"id": 2, "v": None}]]),
    ("arrow", [pa.table({"id": [1, 2], "v": [0.5, None]})]),
    ("parquet", [pa.RecordBatch.from_pydict({"id": [1, 2], "v": [0.5, None]})]),
    ("pandas", [pd.DataFrame({"id": [1, 2], "v": [0.5, None]})]),
]


@pytest.mark.parametrize(("format", "blocks"), FORMATS, ids=[each[0] for each in FORMATS])
def test_every_format_is_sent(remote: RemoteLake, format: Any, blocks: list[Any]) -> None:
    name = f"as_{format}"
    remote.execute(parse(f"CREATE TOPIC {name} (id BIGINT NOT NULL, v DOUBLE)"))
    ack = remote.append(name, iter(blocks), format, CLI)
    assert (ack.topic, ack.rows, ack.offsets.start, ack.repeated) == (name, 2, 0, False)
    rows = remote.execute(parse(f"SELECT id, v FROM {name} ORDER BY id")).rows()
    assert rows == [{"id": 1, "v": 0.5}, {"id": 2, "v": None}]


def test_a_producer_is_stored_once_and_rejections_carry_their_rows(remote: RemoteLake) -> None:
    remote.execute(parse("CREATE TOPIC once (id BIGINT NOT NULL)"))
    source = Source("cli", "p", 1)
    first = remote.append("once", [b'{"id": 1}'], "ndjson", source)
    again = remote.append("once", [b'{"id": 1}'], "ndjson", source)
    assert (again.offsets, again.repeated) == (first.offsets, True)
    with pytest.raises(RecordsRejected) as rejected:
        remote.append("once", [b'{"id": 1}\n', b'{"id": "x"}'], "ndjson", CLI)
    assert rejected.value.data["rejects"][0]["row"] == 1


def test_cancelling_stops_the_query_on_the_service(remote: RemoteLake) -> None:
    cancel = Cancel()
    result = remote.execute(Query("SELECT a.id FROM numbers a JOIN numbers b ON a.v < b.v", timeout=60), cancel)
    batches = result.batches()
    next(batches)
    cancel()
    with pytest.raises(QueryCancelled):
        for _ in batches:
            pass


def test_cancelling_stops_a_query_that_has_not_answered(remote: RemoteLake) -> None:
    cancel = Cancel()
    threading.Timer(0.5, cancel).start()
    started = time.monotonic()
    with pytest.raises(QueryCancelled):
        remote.execute(Query("SELECT count(*) FROM numbers a JOIN numbers b ON a.v < b.v", timeout=60), cancel).arrow()
    assert time.monotonic() - started < 40
    with pytest.raises(QueryCancelled):
        remote.execute(Query("SELECT 1"), cancel)


def test_closing_a_result_stops_the_query(remote: RemoteLake) -> None:
    result = remote.execute(Query("SELECT a.id FROM numbers a JOIN numbers b ON a.v < b.v", timeout=60))
    next(result.batches())
    result.close()
    deadline = time.monotonic() + 60
    while running(remote) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(remote) == []


def running(remote: RemoteLake) -> list[str]:
    return [each["sql"] for each in remote._json("GET", "/queries")["queries"] if each["status"] == "running"]


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_nothing_listens() -> None:
    with RemoteLake(f"http://127.0.0.1:{unused_port()}") as nowhere:
        started = time.monotonic()
        with pytest.raises(ServiceUnreachable) as unreachable:
            nowhere.append("t", [b"{}"], "ndjson", Source("cli", "p", 1))
        assert time.monotonic() - started < 40
        assert "headwater serve" in (unreachable.value.hint or "")
        with pytest.raises(ServiceUnreachable):
            nowhere.execute(parse("SELECT 1"))
    with pytest.raises(InvalidSetting):
        RemoteLake("localhost:8420")


def test_a_busy_service_is_waited_for(tmp_path: Path) -> None:
    with headwater.init(tmp_path, max_tail_bytes=1024**2) as lake:
        service = Service(lake, port=0)
        with RemoteLake(service.start(), retry_seconds=15) as remote:
            remote.execute(parse("CREATE TOPIC t (id BIGINT NOT NULL)"))
            full = b"".join(b'{"id": %d}\n' % number for number in range(120_000))
            remote.append("t", [full], "ndjson", CLI)
            with RemoteLake(service.url, retry_seconds=0) as hasty, pytest.raises(Backpressure):
                hasty.append("t", [full], "ndjson", CLI)
            # Dropping the topic makes room, as a commit of the log would.
            remote.execute(parse("CREATE TOPIC other (id BIGINT NOT NULL)"))
            threading.Timer(1.5, lambda: lake.sql("DROP TOPIC t")).start()
            assert remote.append("other", [full], "ndjson", CLI).rows == 120_000
        service.stop()


class Flaky(threading.Thread):
    """A proxy that forwards whole requests but breaks the connection instead of the first answers."""

    def __init__(self, target: str, breaks: int) -> None:
        super().__init__(daemon=True)
        self._target = httpx.URL(target)
        self._breaks = breaks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection((self._target.host, self._target.port)) as server:
            client.settimeout(0.3)
            while True:
                try:
                    while data := client.recv(65_536):
                        server.sendall(data)
                    return
                except TimeoutError:
                    pass
                answer = server.recv(65_536)
                if b"offsets" in answer and self._breaks > 0:
                    self._breaks -= 1
                    return
                client.sendall(answer)


def test_a_lost_acknowledgement_is_asked_for_again_if_a_producer_is_named(lake: Lake, remote: RemoteLake) -> None:
    remote.execute(parse("CREATE TOPIC lossy (id BIGINT NOT NULL)"))
    with RemoteLake(Flaky(remote.url, breaks=2).url) as unlucky:
        assert unlucky.version()
        ack = unlucky.append("lossy", [b'{"id": 1}'], "ndjson", Source("cli", "p", 1))
        assert (ack.rows, ack.repeated) == (1, True)
    with RemoteLake(Flaky(remote.url, breaks=1).url) as unlucky:
        assert unlucky.version()
        with pytest.raises(Unavailable):
            unlucky.append("lossy", [b'{"id": 2}'], "ndjson", CLI)
    assert lake.sql("SELECT id FROM lossy ORDER BY id").rows() == [{"id": 1}, {"id": 2}]
