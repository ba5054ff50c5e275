"""A standalone Spark master and workers on loopback, from the pyspark package, for as long as a block runs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
PATIENCE = 120.0


@contextmanager
def cluster(folder: Path, secret: str = "") -> Iterator[str]:
    """The URL of a master with one worker; with a secret, both ask for it."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        master = _start(folder, "master", secret, running, "org.apache.spark.deploy.master.Master", "--port", "0")
        url = _wait(master, r"Starting Spark master at (spark://\S+)")
        _wait(master, r"New state: ALIVE")
        worker = _start(
            folder, "worker", secret, running, "org.apache.spark.deploy.worker.Worker",
            "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), url,
        )  # fmt: skip
        _wait(worker, r"Successfully registered with master")
        yield url
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)


def _start(folder: Path, name: str, secret: str, running: list[subprocess.Popen[bytes]], *command: str) -> Path:
    log, conf = folder / f"{name}.log", folder / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = stderr\nappender.stderr.type = Console\n"
        "appender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = PatternLayout\nappender.stderr.layout.pattern = %p %c{1}: %m%n%ex\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(conf)}
    environment["SPARK_DAEMON_MEMORY"] = "256m"
    if secret:
        options = f"-Dspark.authenticate=true -Dspark.authenticate.secret={secret} -Dspark.network.crypto.enabled=true"
        environment["SPARK_DAEMON_JAVA_OPTS"] = options
    kind, *arguments = command
    with log.open("wb") as stream:
        # `exec` in Spark's script: the process that is ended is the JVM itself.
        script = [str(HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        running.append(subprocess.Popen(script, stdout=stream, stderr=stream, env=environment, cwd=folder))
    return log


def _wait(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[found.re.groups and 1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {pattern}:\n{log.read_text(errors='replace')[-2000:]}")
