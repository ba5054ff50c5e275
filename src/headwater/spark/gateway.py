"""The JVM process behind a session: started quietly and apart from the terminal, and ended when the session ends.

PySpark keeps its gateway in class attributes and leaves the JVM running until Python exits. Here a JVM can be ended and
another one started in the same process, also after the first one died.
"""

from __future__ import annotations

import os
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
from headwater.spark.compiled import define
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


def launch(conf: Mapping[str, str], output: Path) -> SparkSession:
    """Start a JVM and a session in it; what the JVM prints goes to the file `output`."""
    if SparkContext._active_spark_context is not None:
        raise Unavailable(
            "spark is already running in this process",
            detail="One process can hold one Spark context, and this one belongs to other code.",
            hint="Stop that session before the lake starts its own.",
        )
    with _worker_python(conf["spark.master"]), _keep_interrupt_handler():
        gateway = None
        try:
            gateway = _launch_jvm(conf, output)
            session = _session(conf, gateway)
            define(session, "BrotliCodec", "org.apache.hadoop.io.compress.CompressionCodec")
            return session
        except BaseException as error:
            said = _last_lines(output)
            _end_jvm(gateway)
            _forget()
            if isinstance(error, Exception):
                raise Unavailable("spark did not start", detail=said or f"{error}.") from error
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


def _launch_jvm(conf: Mapping[str, str], output: Path) -> Any:
    # A session of its own keeps signals of the terminal and of the process group away from the JVM: it ends when we
    # say so, or when its standard input closes because this process is gone.
    with output.open("ab") as stream:
        return launch_gateway(_LaunchConf(conf), {"start_new_session": True, "stdout": stream, "stderr": stream})


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
def _worker_python(master: str) -> Iterator[None]:
    """Have local workers run this very interpreter; a cluster's own setting is kept."""
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    before = {name: os.environ.get(name) for name in names}
    if is_local(master):
        os.environ.update(dict.fromkeys(names, sys.executable))
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


def _last_lines(output: Path, count: int = 5) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
        return " ".join([line for line in lines if line and "incubator modules" not in line][-count:])
    return ""


def is_local(master: str) -> bool:
    """Whether `master` runs everything inside the driver's JVM."""
    return master == "local" or master.startswith("local[")
