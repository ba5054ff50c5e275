"""Small Java classes of ours, for work that would take a round trip per object from Python, or that Parquet looks for.

They are compiled once on a machine, by the compiler that Spark ships, into a jar in the cache. The jar is on the class
paths of the driver and of the executors: a Brotli page is decompressed wherever a task runs.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

from headwater.errors import Unavailable
from headwater.spark import built
from headwater.spark.java import Java
from headwater.spark.jobs import reason_of
from headwater.spark.packages import Progress, ensure_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES = ("BrotliCodec", "LocalCheckpoints", "PlanWalker", "TaskSets")
KEPT = 4
"""Jars of other versions on this machine that stay, the newest ones."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_instances = threading.Lock()


def compiled(session: SparkSession, name: str) -> Any:
    """The one instance of the Java class `name` in the session's JVM."""
    gateway = session.sparkContext._gateway
    with _instances:
        # Not getattr: a gateway answers for any name with a member of its entry point.
        instances = vars(gateway).setdefault("headwater_classes", {})
        if name not in instances:
            instances[name] = gateway.jvm.java.lang.Class.forName(name).newInstance()
        return instances[name]


def ensure_class_path(cache: Path, progress: Progress, java: Java) -> tuple[Path, ...]:
    """What the JVM needs beside Spark, verified: the pinned packages, fetched if they are missing, and our classes."""
    packages = ensure_packages(cache, progress, java)
    return (*packages, ensure_classes(cache, java, packages))


def ensure_classes(cache: Path, java: Java, jars: Sequence[Path]) -> Path:
    """The jar of our classes, compiled against Spark and `jars` if it is not in the cache as it was built."""
    folder = cache / "classes"
    file = folder / f"headwater-{_version(jars)}.jar"
    try:
        built.close_folder(folder)
        if built.is_intact(file):
            return file
        content = _compile(java, jars)
        written = file.with_name(f"{file.stem}.{os.getpid()}.tmp")
        try:
            written.write_bytes(content)
            written.replace(file)  # two processes that build at once write the same bytes
        finally:
            written.unlink(missing_ok=True)
        built.record(file)
    except OSError as error:
        raise Unavailable(
            f'package cache "{folder}" cannot be written',
            detail=f"{error}.",
            hint="Set HEADWATER_CACHE_DIR to a folder that can be.",
        ) from error
    for old in sorted(folder.glob("headwater-*.jar"), key=lambda each: each.stat().st_mtime, reverse=True)[KEPT + 1 :]:
        built.remove(old)
    return file


def _version(jars: Sequence[Path]) -> str:
    parts = [_source(name) for name in CLASSES] + [jar.name for jar in (*jars, *_spark_jars())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _source(name: str) -> str:
    return files("headwater.spark").joinpath(f"{name}.java").read_text(encoding="utf-8")


def _spark_jars() -> list[Path]:
    spec = find_spec("pyspark")
    roots = (spec and spec.submodule_search_locations) or ()
    return sorted(jar for root in roots for jar in Path(root).glob("jars/*.jar"))


def _compile(java: Java, jars: Sequence[Path]) -> bytes:
    """Our classes as the bytes of a jar, the same whenever they are compiled from the same sources."""
    jar = io.BytesIO()
    with _jvm(java, (*_spark_jars(), *jars)) as jvm, zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in CLASSES:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(_source(name))
            bytecodes = compiler.getBytecodes()
            for each in sorted(bytecodes):
                archive.writestr(zipfile.ZipInfo(f"{each.replace('.', '/')}.class", _EPOCH), bytes(bytecodes[each]))
    return jar.getvalue()


@contextmanager
def _jvm(java: Java, class_path: Sequence[Path]) -> Iterator[Any]:
    """A JVM without Spark, for as long as the block runs; Unavailable if it does not start, or if the block fails."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    # Not py4j's launch_gateway: of a JVM that does not start it leaves the process behind, and not what that printed.
    command = [str(java.executable), "-classpath", os.pathsep.join(map(str, class_path)), "py4j.GatewayServer"]
    command += ["--die-on-broken-pipe", "--enable-auth", "0"]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors)
        except OSError as error:
            raise _not_compiled(str(error)) from None
        with process:
            assert process.stdout is not None
            try:
                printed = []
                while not (line := process.stdout.readline()).strip().isdigit():
                    printed.append(line)
                    if not line:
                        process.wait()
                        errors.seek(0)
                        raise _not_compiled(b"".join((*printed, errors.read())).decode(errors="replace"))
                port, token = int(line), process.stdout.readline().strip().decode()
                parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
                gateway = JavaGateway(gateway_parameters=parameters)
                try:
                    yield gateway.jvm
                except Exception as error:  # py4j's kinds; their text is read from the JVM
                    raise _not_compiled(str(error)) from None
                finally:
                    gateway.shutdown()
            finally:
                process.kill()


def _not_compiled(reason: str) -> Unavailable:
    return Unavailable(
        "spark did not start",
        detail=f"Headwater's Java classes could not be compiled: {reason_of(reason)[0][:500]}.",
        hint="Check that Java starts, and has memory to.",
    )
