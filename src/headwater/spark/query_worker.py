"""The query worker: a process with a JVM of its own, in which users' queries run on Spark, apart from the pipeline.

A query can hold a JVM beyond every deadline (a regular expression that is evaluated while the query is planned), or
take all its memory. Here that costs the worker and never the service: the worker is killed and replaced.

The worker is started with one end of a control socket. For each query it receives one end of a further socket pair, on
which the request goes in and the result comes out, in frames. The control socket closes when this process ends, however
it ends, and the worker then ends itself. A worker is always ended by SIGKILL to its process group, which its JVM is in:
it holds nothing that another process could not sweep.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from headwater.errors import BY_CODE, HeadwaterError, QueryFailed, QueryInterrupted, ResultTooLarge, Unavailable
from headwater.spark.scratch import sweep

log = logging.getLogger(__name__)

WorkerState = Literal["off", "not started", "starting", "ready", "failed"]
EndReason = Literal["timeout", "cancelled", "scratch", "memory", "died", "closed"]

START_SECONDS = 180.0
"""How long a worker may take to start: minutes only where JVM packages are still to be fetched."""
RETRY_AFTER = 5
"""Seconds after which a replacement is most likely there."""
SCRATCH_EVERY = 1.0
MAX_FRAME = 256 * 1024**2
EXIT_MEMORY = 73
"""What a worker exits with when its JVM ran out of memory."""
JVM_OUT_OF_MEMORY = 3
"""What a JVM with -XX:+ExitOnOutOfMemoryError exits with."""

_HEADER = struct.Struct(">cI")
_COMMAND = "from headwater.engine.query_worker import main; main()"


# -- frames -------------------------------------------------------------------------------------------------------


def send_frame(connection: socket.socket, kind: bytes, content: bytes | memoryview = b"") -> None:
    """Send one frame: its kind in one byte, its length, its content."""
    connection.sendall(_HEADER.pack(kind, len(content)))
    if len(content):
        connection.sendall(content)


def receive_frame(connection: socket.socket) -> tuple[bytes, bytearray]:
    """The next frame; EOFError when the other side is gone."""
    kind, length = _HEADER.unpack(_receive(connection, _HEADER.size))
    if length > MAX_FRAME:
        raise EOFError("frame is too large")  # not a frame: the other side cannot be trusted any more
    return kind, _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, place = memoryview(content), 0
    while place < length:
        try:
            count = connection.recv_into(view[place:])
        except OSError as broken:
            raise EOFError(str(broken)) from None
        if count == 0:
            raise EOFError("connection is closed")
        place += count
    return content


def send_error(connection: socket.socket, error: HeadwaterError) -> None:
    """Send an error in a frame of kind E."""
    about = {
        "code": error.code,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "data": dict(error.data),
    }
    send_frame(connection, b"E", json.dumps(about, default=str).encode())


def read_error(content: bytes | bytearray) -> HeadwaterError:
    """The error in a frame of kind E, as the class that raised it."""
    about = json.loads(content)
    kind = BY_CODE.get(about["code"], HeadwaterError)
    return kind(about["message"], detail=about["detail"], hint=about["hint"], **about["data"])


# -- the process ----------------------------------------------------------------------------------------------------


class WorkerProcess:
    """One worker from its start to its end. It has ended when `ended` is set, and then `reason` is final."""

    def __init__(self, config: Mapping[str, Any], scratch: Path) -> None:
        self._scratch = scratch
        self._lock = threading.Lock()
        self._killed_for: EndReason | None = None
        self._error: HeadwaterError | None = None
        self._folder: Path | None = None
        self._reaped = False
        self.answered = threading.Event()
        self.ended = threading.Event()
        self.has_started = False
        self.queries = 0
        self.alone = False
        """Whether one query only was running when it ended."""
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = self._process.pid
        with suppress(OSError):  # it died at once, which its watcher notices
            send_frame(self._control, b"C", json.dumps(config).encode())
        threading.Thread(target=self._watch, name="headwater-query-worker", daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether it has started, and is not known to have ended."""
        return self.has_started and not self._reaped

    @property
    def reason(self) -> EndReason:
        """Why it ended."""
        if self._killed_for is not None:
            return self._killed_for
        # SIGKILL is the kernel's, for want of memory: we say what we kill for, and a process that fails dies otherwise.
        return "memory" if self._process.returncode in (EXIT_MEMORY, -signal.SIGKILL) else "died"

    @property
    def start_error(self) -> HeadwaterError:
        """Why it did not start."""
        return self._error or Unavailable("the query worker did not start", hint="The service's log may say why.")

    def open_query(self) -> socket.socket:
        """A connection for one query; `close_query` follows. EOFError when the worker is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"Q"], [theirs.fileno()])
                    self.queries += 1
            except OSError:
                ours.close()
                raise EOFError("the worker is gone") from None
        return ours

    def close_query(self) -> None:
        with self._lock:
            self.queries -= 1

    def kill(self, reason: EndReason) -> None:
        """End the worker and its JVM now; the first reason counts, and so does a death that came before."""
        with self._lock:
            if self._reaped:  # its number may mean another group by now
                return
            if self._killed_for is None and not self._has_exited():
                self._killed_for = reason
                self.alone = self.queries == 1
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _has_exited(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def scratch_bytes(self) -> int:
        """Bytes in the worker's temporary files now."""
        total = 0
        for folder, _, files in os.walk(self._folder or os.devnull):
            for file in files:
                with suppress(OSError):
                    total += os.stat(os.path.join(folder, file)).st_blocks * 512  # noqa: PTH116, PTH118
        return total

    def _watch(self) -> None:
        """Read what the worker says about itself until it ends, then remove what it left behind."""
        try:
            kind, content = receive_frame(self._control)
            if kind == b"R":
                self._folder = Path(json.loads(content)["scratch"])
                self.has_started = True
            else:
                self._error = read_error(content)
            self.answered.set()
            while self._control.recv(1):
                pass
        except (EOFError, OSError):
            pass
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            if self._killed_for is None:
                self.alone = self.queries == 1
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # a JVM outlives a worker that died alone
            self._process.wait()
            self._reaped = True
        _wait_for_group(self.pid)
        sweep(self._scratch)
        self.ended.set()
        self.answered.set()

    def close(self) -> None:
        """End the worker, and wait until it is gone."""
        self.kill("closed")
        self.ended.wait(10)
        self._control.close()


def _wait_for_group(group: int) -> None:
    """Wait until a killed process group is gone: a JVM that is just dying may still write."""
    deadline = time.monotonic() + 2
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)


# -- the holder -----------------------------------------------------------------------------------------------------


class QueryWorker:
    """Holds at most one worker: started on first use, and replaced as soon as it ended."""

    def __init__(
        self,
        config: Callable[[], Mapping[str, Any]],
        scratch: Path,
        *,
        max_scratch_bytes: int,
        on_replace: Callable[[EndReason], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._scratch = scratch
        self._max_scratch_bytes = max_scratch_bytes
        self._on_replace = on_replace
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._failed = False
        self._closed = False

    @property
    def state(self) -> WorkerState:
        """How far the worker is; asking does not start it."""
        process = self._process
        if process is None or process.ended.is_set():
            return "failed" if self._failed else "not started"
        return "ready" if process.ready else "starting"

    @property
    def pid(self) -> int | None:
        """The worker's process id, which is its process group's as well."""
        return None if self._process is None else self._process.pid

    def process(self, check: Callable[[], None]) -> WorkerProcess:
        """A worker that is ready; `check` is called while it starts, and may raise.

        One that ended after it was ready is being replaced: its successor is waited for.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            process = self._current()
            self._wait(process.answered, process, deadline, check)
            if process.ready:
                self._failed = False
                return process
            if not process.has_started:
                self._failed = True
                raise process.start_error
            self._wait(process.ended, process, deadline, check)

    def _wait(self, event: threading.Event, process: WorkerProcess, deadline: float, check: Callable[[], None]) -> None:
        while not event.wait(0.1):
            check()
            if time.monotonic() > deadline:
                process.kill("died")
                raise Unavailable(f"the query worker did not start within {START_SECONDS:g} s")

    def _current(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise Unavailable("the lake is closed")
            if self._process is None or self._process.ended.is_set():
                self._process = WorkerProcess(self._config(), self._scratch)
                watch = threading.Thread(
                    target=self._watch, args=(self._process,), name="headwater-query-scratch", daemon=True
                )
                watch.start()
            return self._process

    def _watch(self, process: WorkerProcess) -> None:
        """Kill a worker whose temporary files are too large, and replace one that ended after it was ready."""
        process.answered.wait()
        while not process.ended.wait(SCRATCH_EVERY):
            if process.queries and process.scratch_bytes() > self._max_scratch_bytes:
                process.kill("scratch")
        if process.reason == "closed" or self._closed:
            return
        log.warning("query worker ended", extra={"pid": process.pid, "reason": process.reason})
        if process.has_started:
            self._on_replace(process.reason)
            with suppress(HeadwaterError):
                self._current()

    def lost(self, process: WorkerProcess) -> HeadwaterError:
        """The error of a query whose worker ended although the query did nothing that would have it killed."""
        process.ended.wait(10)
        if process.alone and process.reason == "memory":
            return QueryFailed(
                "query needs more memory than there is for queries",
                hint="Read less at once, avoid huge values, or raise query_worker_memory as far as the machine allows.",
            )
        if process.alone and process.reason == "scratch":
            return ResultTooLarge(
                f"query needs more than {self._max_scratch_bytes} bytes of temporary files",
                hint="Read less at once, or raise query_max_scratch_bytes.",
            )
        return QueryInterrupted(
            "query was interrupted",
            detail=f"The process that runs queries on Spark was replaced: {_EXPLAINED[process.reason]}.",
            hint="Run the query again.",
            retry_after=RETRY_AFTER,
        )

    def close(self) -> None:
        """End the worker for good."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.close()


_EXPLAINED: Mapping[EndReason, str] = {
    "timeout": "another query did not stop at its deadline",
    "cancelled": "another query did not stop when it was cancelled",
    "scratch": "the temporary files of all queries together were too large",
    "memory": "one of the queries ran out of memory",
    "died": "it ended unexpectedly",
    "closed": "the service is stopping",
}
