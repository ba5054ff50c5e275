"""The JVM process behind a session: started quietly and apart from the terminal, and ended when the session ends.

PySpark keeps its gateway in class attributes and leaves the JVM running until Python exits. Here a JVM can be ended and
another one started in the same process, also after the first one died.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headwater.errors import Unavailable
from headwater.spark.session import STOP_TIMEOUT

LAUNCH = frozenset(
    {"spark.master", "spark.driver.memory", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions"}
)
"""What must be known before the JVM runs. The rest is set inside it, and so never shows in a process list."""


class _LaunchConf:
    """The part of SparkConf that `launch_gateway` reads; a real one would need the JVM that is to be launched."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802
        return [(key, value) for key, value in self._values.items() if key in LAUNCH]


def launch(conf: Mapping[str, str], output: Path, umask: int, *, own_group: bool = True) -> SparkSession:
    """Start a JVM and a session in it; what the JVM prints goes to the file `output`.

    Without `own_group` the JVM is in this process's group, so that one signal ends both.
    """
    if SparkContext._active_spark_context is not None:
        raise Unavailable(
            "spark is already running in this process",
            detail="One process can hold one Spark context, and this one belongs to other code.",
            hint="Stop that session before the lake starts its own.",
        )
    with _worker_python(conf), _keep_interrupt_handler():
        gateway = None
        try:
            gateway = _launch_jvm(conf, output, umask, own_group)
            return _session(conf, gateway)
        except BaseException as error:
            cause = _cause(error, output)  # the JVM's exceptions can be read only while it lives
            _end_jvm(gateway)
            _forget()
            if isinstance(error, Exception):
                raise Unavailable(
                    "spark did not start", detail=f"{cause}.", hint="Check the settings that begin with spark_."
                ) from None
            raise


def is_alive(session: SparkSession) -> bool:
    """Whether the session's JVM runs and its context still takes jobs."""
    process = session.sparkContext._gateway.proc
    if process is not None and process.poll() is not None:
        return False
    try:
        return session.sparkContext._jsc is not None and not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j raises several kinds when the other side is gone; all mean the same
        return False


def end(session: SparkSession, timeout: float = STOP_TIMEOUT) -> None:
    """Stop the session and end its JVM, whatever state they are in; one that takes longer to end is killed."""
    context = session.sparkContext
    with _quiet_py4j():
        if not is_alive(session):
            context._jsc = None  # what is left to stop is on this side
        with suppress(Exception):
            context.stop()
        _end_jvm(context._gateway, timeout)
    _forget()


def _launch_jvm(conf: Mapping[str, str], output: Path, umask: int, own_group: bool) -> Any:
    # A session of its own keeps signals of the terminal and of the process group away from the JVM: it ends when we
    # say so, or when its standard input closes because this process is gone.
    with output.open("ab") as stream:
        quiet = {"start_new_session": own_group, "stdout": stream, "stderr": stream, "umask": umask}
        return launch_gateway(_LaunchConf(conf), quiet)


def _session(conf: Mapping[str, str], gateway: Any) -> SparkSession:
    spark_conf = SparkConf(loadDefaults=True, _jvm=gateway.jvm)
    for key, value in conf.items():
        spark_conf.set(key, value)
    context = SparkContext(conf=spark_conf, gateway=gateway)
    # PySpark logs every refused query to stderr besides raising it.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # A JVM that dies breaks this server's connection; its traceback on stderr would say nothing that we do not.
    context._accumulatorServer.handle_error = lambda request, address: None
    return SparkSession(context)


def _end_jvm(gateway: Any, timeout: float = STOP_TIMEOUT) -> None:
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:
        return  # started by spark-submit, which owns it
    with suppress(OSError):
        if process.stdin:
            process.stdin.close()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _forget() -> None:
    """Clear what PySpark remembers of a JVM that is gone, so that the next session starts its own."""
    with SparkContext._lock:
        if context := SparkContext._active_spark_context:
            context._jsc = None
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextmanager
def _worker_python(conf: Mapping[str, str]) -> Iterator[None]:
    """Have workers run this very interpreter, on a cluster unless another one is named."""
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    before = {name: os.environ.get(name) for name in names}
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local(conf["spark.master"]) or not before["PYSPARK_PYTHON"]:
        os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python", sys.executable)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Undo PySpark's SIGINT handler, which would cancel every job of the process on Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Silence py4j's own complaints while its other side goes away."""
    import logging

    logger = logging.getLogger("py4j")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _cause(error: BaseException, output: Path) -> str:
    """Why Spark did not start, in one line: the root of the JVM's exception, or what the JVM printed or logged last."""
    found = ""
    with suppress(Exception):
        root = error.java_exception  # type: ignore[attr-defined]
        while (below := root.getCause()) is not None:
            root = below
        found = str(root.getMessage() or root.toString())
    if not found or "stopped" in found:  # a context that was stopped by something that only the log tells
        found = _last_error(output.with_name("spark.log")) or _last_error(output) or found or str(error)
    return re.sub(r"\s+", " ", found).strip().rstrip(".")[:500]


def _last_error(log: Path) -> str:
    """The last line of a log that tells of an error, or the last one of all; stack traces are not told."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if line and not re.match(r"at |\.\.\. \d+ more|WARNING: Using incubator", line)]
        named = [line for line in lines if re.search(r"\bERROR\b|\bError\b|Exception|Invalid|rror:", line)]
        told = (named or lines)[-1:]
        return re.sub(r'^(\S+T\S+ ERROR \w+|Exception in thread "main" [\w.$]+): ', "", told[0]) if told else ""
    return ""


def is_local(master: str) -> bool:
    """Whether `master` runs everything inside the driver's JVM."""
    return master == "local" or master.startswith("local[")
