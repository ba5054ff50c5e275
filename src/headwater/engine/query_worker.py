"""What the query worker runs: it opens the lake, starts Spark, and answers queries until its parent is gone.

It reads and never writes: refreshing views before a query, and accounting for what queries use, is its parent's work.
See `headwater.spark.query_worker` for the other side.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyiceberg.schema import Schema

from headwater.config import LakePaths, Settings
from headwater.engine.lake import Lake
from headwater.engine.spark_start import start_spark
from headwater.errors import HeadwaterError, ResultTooLarge, Unavailable, system_error
from headwater.serving.moment import Given
from headwater.serving.query import Cancel, Queries
from headwater.serving.tail import TopicAtOnce
from headwater.spark.query_worker import (
    EXIT_MEMORY,
    JVM_OUT_OF_MEMORY,
    receive_frame,
    send_error,
    send_frame,
)
from headwater.sql.statements import Query
from headwater.storage.scan import ManifestCache
from headwater.storage.schemas import arrow_schema
from headwater.types import Offsets

BATCH_BYTES = 8 * 1024**2
"""A batch is sent in pieces of about this size, so that neither side holds more."""
ROW_BYTES = 128 * 1024**2
"""A larger row is refused: the service would have to hold it whole."""
JVM_END_SECONDS = 2.0
"""How long an error that a dying JVM may have caused is held back: when the JVM ends, so does the worker, and its exit
code tells the reason."""
OOM_SCORE = "500"
"""The kernel, when it runs out of memory, prefers processes with a higher score."""


def worker_config(paths: LakePaths, settings: Settings) -> dict[str, Any]:
    """What a worker has to know to start: the lake, and settings with the worker's own memory."""
    values = settings.model_dump(mode="json", exclude_unset=True)
    own = {"query_worker": "never", "spark_memory": settings.query_worker_memory, "record_usage": False}
    return {"lake": str(paths.root), "settings": values | own}


def main() -> None:
    """Run the worker whose control socket is the file descriptor in the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    _, content = receive_frame(control)
    config = json.loads(content)
    started = threading.Event()
    try:
        logging.disable()  # py4j logs every call that a dying JVM breaks; the parent logs how the worker ended
        worker = _Worker(Lake.open(config["lake"], **config["settings"]))
        threading.Thread(target=worker.serve, args=(control, started), daemon=True).start()
        folder = worker.start_spark()
    except HeadwaterError as failed:
        send_error(control, failed)
        _end(1)
    except Exception as failed:
        traceback.print_exc()
        send_error(control, HeadwaterError("the query worker did not start", detail=f"{failed}."))
        _end(1)
    send_frame(control, b"R", json.dumps({"scratch": folder}).encode())
    started.set()
    worker.wait_for_jvm()


class _Worker:
    """Answers queries over one lake, each in a thread of its own."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        # Not the lake's own: what that does beside reading is done by the parent.
        self._queries = Queries(
            lake.topics,
            lake.views,
            lake.log,
            _no_duck,
            lambda: self._spark,
            lake.metrics,
            ManifestCache(),
            duckdb_max_bytes=0,
            max_rows=lake.settings.query_max_rows,
            max_result_bytes=lake.settings.query_max_result_bytes,
            timeout=lake.settings.query_timeout,
            fresh_frame=lambda session, name: lake.view_room.fresh(session, name),
        )

    def start_spark(self) -> str:
        """Start Spark; the folder of its temporary files."""
        self._spark = start_spark(self._lake.paths, self._lake.settings, own_group=False)
        return str(self._spark.sparkContext.getConf().get("spark.local.dir"))

    def serve(self, control: socket.socket, started: threading.Event) -> NoReturn:
        """Take queries until the parent is gone, and then end, whatever runs."""
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except OSError:
                message, descriptors = b"", []
            if not message:
                _end(0)
            started.wait()
            connection = socket.socket(fileno=descriptors[0])
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def wait_for_jvm(self) -> NoReturn:
        """End as soon as the JVM has ended; the exit code says whether it, or the machine, ran out of memory."""
        code = self._spark.sparkContext._gateway.proc.wait()
        _end(EXIT_MEMORY if code in (JVM_OUT_OF_MEMORY, -signal.SIGKILL) else 1)

    def _answer(self, connection: socket.socket) -> None:
        cancel = Cancel()
        with connection, suppress(EOFError, OSError):  # the parent may not listen any more
            try:
                query, given = self._request(connection)
                threading.Thread(target=_watch_for_stop, args=(connection, cancel), daemon=True).start()
                self._send_result(connection, query, given, cancel)
            except HeadwaterError as failed:
                if isinstance(failed, Unavailable):
                    time.sleep(JVM_END_SECONDS)
                send_error(connection, failed)
            except Exception as failed:
                if isinstance(failed, (EOFError, OSError)) or type(failed).__module__.startswith("py4j"):
                    time.sleep(JVM_END_SECONDS)
                unexpected = HeadwaterError("query failed unexpectedly", detail=traceback.format_exc())
                send_error(connection, system_error(failed) or unexpected)
            finally:
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that watches it

    def _request(self, connection: socket.socket) -> tuple[Query, Given]:
        _, content = receive_frame(connection)
        request = json.loads(content)
        tables = {}
        for each in request["given"]:
            _, content = receive_frame(connection)
            topic = self._lake.topics.load(each["topic"])
            schema = Schema.model_validate_json(each["schema"])  # not the topic's: it may have been altered since
            rows = pa.ipc.open_stream(pa.py_buffer(content)).read_all().cast(arrow_schema(schema))
            offsets = None if each["offsets"] is None else Offsets(*each["offsets"])
            tables[each["name"]] = TopicAtOnce(topic, None, offsets, rows, schema)
        query = Query(request["text"], "spark", request["tail"], request["max_rows"], request["timeout"])
        return query, Given(tables)

    def _send_result(self, connection: socket.socket, query: Query, given: Given, cancel: Cancel) -> None:
        result = self._queries.run(query, cancel, given)
        try:
            send_frame(connection, b"P", json.dumps(result.info["plan"], default=str).encode())
            send_frame(connection, b"S", memoryview(result.schema.serialize()))
            for batch in result.batches():
                for piece in _pieces(batch):
                    cancel.check()
                    send_frame(connection, b"B", memoryview(piece.serialize()))
            send_frame(connection, b"D")
        finally:
            result.close()


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in pieces of about BATCH_BYTES; ResultTooLarge for a single row that is much larger."""
    if batch.nbytes <= BATCH_BYTES:
        return [batch]
    if batch.num_rows <= 1:
        if batch.nbytes > ROW_BYTES:
            raise ResultTooLarge(f"a row of the result has more than {ROW_BYTES} bytes", hint="Select less of it.")
        return [batch]
    half = batch.num_rows // 2
    return [*_pieces(batch.slice(0, half)), *_pieces(batch.slice(half))]


def _watch_for_stop(connection: socket.socket, cancel: Cancel) -> None:
    """Stop the query when its parent says so, or is gone."""
    with suppress(OSError):
        connection.recv(1)
    with suppress(Exception):  # the engine may have finished in the same moment
        cancel()


def _no_duck() -> NoReturn:
    raise AssertionError("the query worker runs on Spark alone")


def _end(code: int) -> NoReturn:
    """End at once, JVM included; whoever started the worker sweeps what it leaves."""
    if code:
        os._exit(code)
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("unreachable")
