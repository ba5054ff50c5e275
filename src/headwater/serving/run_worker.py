"""A query in the query worker: the request goes out, the result comes back batch by batch, and it can be stopped.

The worker reads the tables at a moment of its own, so the plan that it sends back is the one that ran. A query that
does not stop soon after its deadline or a cancel takes the worker with it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headwater.errors import HeadwaterError, QueryCancelled
from headwater.serving.moment import Given
from headwater.serving.running import timed_out
from headwater.spark.query_worker import (
    EndReason,
    QueryWorker,
    read_error,
    receive_frame,
    send_frame,
)
from headwater.sql.statements import Query


class WorkerRun:
    """A query that the worker runs. `begin` it before anything else; `cancel` may be called from any thread."""

    def __init__(self, worker: QueryWorker, query: Query, given: Given | None, timeout: float, grace: float) -> None:
        self.schema = pa.schema([])
        self.plan: Mapping[str, Any] = {}
        """The plan that ran, as `describe` tells it."""
        self._worker = worker
        self._query = query
        self._given = given
        self._timeout = timeout
        self._grace = grace
        self._lock = threading.Lock()
        self._stopped: tuple[HeadwaterError, EndReason] | None = None
        self._ended = True
        self._accepted = False
        self._receiving = False
        self._draining = False
        self._timers: list[threading.Timer] = []

    def begin(self, check: Callable[[], None]) -> None:
        """Send the query, and wait until Spark has accepted it; `check` is called while the worker starts."""
        self._connect(check)
        try:
            self._send()
        except BaseException:
            self._process.close_query()
            self._connection.close()
            raise
        with self._lock:  # only now may a stop be sent: it must not come between the parts of the request
            self._ended = False
            stopped = self._stopped
        if stopped is not None:
            self._request_stop(stopped[1])
        self._set_timer(self._timeout, self._time_out)
        try:
            kind, content = self._receive()
            assert kind == b"P"
            self.plan = json.loads(content)
            kind, content = self._receive()
            assert kind == b"S"
            self.schema = pa.ipc.read_schema(pa.py_buffer(content))
            self._accepted = True
        except BaseException:
            self.close()
            raise

    def _connect(self, check: Callable[[], None]) -> None:
        while True:
            self._process = self._worker.process(check)
            try:
                self._connection = self._process.open_query()
                return
            except EOFError:  # it ended in this moment, and the query has not run: the next one runs it
                self._process.ended.wait(0.1)

    def _send(self) -> None:
        tables = self._given.tables if self._given is not None else {}
        request = {
            "text": self._query.text,
            "tail": self._query.tail,
            "max_rows": self._query.max_rows,
            "timeout": self._timeout,
            "given": [
                {
                    "name": name,
                    "topic": at.topic.name,
                    "schema": at.schema.model_dump_json(),
                    "offsets": None if at.offsets is None else [at.offsets.start, at.offsets.end],
                }
                for name, at in tables.items()
            ],
        }
        with suppress(OSError):  # a worker that is gone is noticed when its answer is read
            send_frame(self._connection, b"Q", json.dumps(request).encode())
            for at in tables.values():
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, at.rows.schema) as writer:
                    writer.write_table(at.rows)
                send_frame(self._connection, b"T", memoryview(sink.getvalue()))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The result. Once its first batch is there, read or not, Spark has done its work, and the deadline is met."""
        try:
            while True:
                kind, content = self._receive()
                self._cancel_timers()
                if kind == b"D":
                    self._end()
                    return
                if self._stopped is not None:
                    raise self._stopped[0]
                yield pa.ipc.read_record_batch(pa.py_buffer(content), self.schema)
        finally:
            self.close()

    def _receive(self) -> tuple[bytes, bytearray]:
        with self._lock:
            if self._ended or self._draining:
                raise QueryCancelled("query was cancelled", detail="Its result was closed before it was read.")
            self._receiving = True
        try:
            kind, content = receive_frame(self._connection)
        except EOFError:
            lost = self._worker.lost(self._process)
            self._end()
            raise self._stopped[0] if self._stopped is not None else lost from None
        finally:
            with self._lock:
                self._receiving = False
        if kind != b"E":
            return kind, content
        self._end()
        error = read_error(content)
        if type(error) is HeadwaterError:  # not raised on purpose: a bug, which the caller reports as one
            raise RuntimeError(error.detail)
        raise self._stopped[0] if self._stopped is not None else error

    def cancel(self) -> None:
        """Stop the query; its reader gets QueryCancelled."""
        self._stop(QueryCancelled("query was cancelled"), "cancelled")

    def _time_out(self) -> None:
        if self._has_result():
            return
        error = timed_out(self._timeout)
        self._stop(error, "timeout")

    def _stop(self, error: HeadwaterError, reason: EndReason) -> None:
        with self._lock:
            if self._stopped is not None:
                return
            self._stopped = (error, reason)
            if self._ended:  # it has not begun: `begin` stops it
                return
        self._request_stop(reason)

    def _request_stop(self, reason: EndReason) -> None:
        with suppress(OSError):
            self._connection.sendall(b"X")
        self._set_timer(self._grace, lambda: self._kill(reason))

    def _kill(self, reason: EndReason) -> None:
        with self._lock:
            if self._ended:
                return
        if not self._has_result():
            self._process.kill(reason)

    def _has_result(self) -> bool:
        """Whether the result waits for its reader. The worker may be waiting too, for room in the connection: it cannot
        hear a stop then, and there is nothing left to stop."""
        try:
            return self._accepted and bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # nothing is there, or the connection is closed
            return False

    def close(self) -> None:
        """Give the connection back; a query that still runs is stopped first, without waiting for it."""
        with self._lock:
            if self._ended or self._draining:
                return
            # Two readers would tear each other's frames: one in another thread notices the stop, and closes.
            drains = self._draining = not self._receiving
        self.cancel()
        if drains:
            threading.Thread(target=self._drain, name="headwater-query-drain", daemon=True).start()

    def _drain(self) -> None:
        try:
            while receive_frame(self._connection)[0] not in (b"D", b"E"):
                pass
        except EOFError:
            # Until the worker's end is known, this query counts among those that ran: nobody else ran alone.
            self._process.ended.wait(10)
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._cancel_timers()
        self._process.close_query()
        self._connection.close()

    def _set_timer(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
