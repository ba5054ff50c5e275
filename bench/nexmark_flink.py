"""PyFlink beside us: an environment of its own in the cache folder, made once, and the queries run in it.

Flink needs older packages than Headwater, so they never share an environment. Its reader of Parquet files is fetched
like our own JVM packages, checked against its checksum; Hadoop's classes and Zstandard, which it needs too, are those
that PySpark has.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headwater.config import default_cache
from headwater.spark.java import find_java
from headwater.spark.packages import ensure_packages

VERSION = "2.3.0"
LOCK = Path(__file__).with_name("nexmark_flink.lock")
JOB = Path(__file__).with_name("nexmark_flink_job.py")
FROM_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "zstd-jni-*.jar")


@dataclass(frozen=True, slots=True)
class Flink:
    """Where PyFlink is, and the jars that its jobs need."""

    python: Path
    jars: tuple[Path, ...]


def ensure_flink() -> Flink:
    """The environment of Flink, made on the first call on a machine."""
    cache = default_cache()
    jars = ensure_packages(cache, _say, find_java(), groups=("flink",), lock_file=LOCK)
    return Flink(_environment(cache / f"flink-{VERSION}"), (*jars, *_spark_jars()))


def run_flink(
    flink: Flink, data: Path, out: Path, queries: Iterable[str], disorder: float
) -> Iterator[tuple[str, float | str]]:
    """Each query's seconds, or the reason why it has none; all of them in one process, one after the other."""
    asked = {
        "data": str(data),
        "out": str(out),
        "jars": [str(jar) for jar in flink.jars],
        "queries": list(queries),
        "disorder": disorder,
    }
    out.mkdir(parents=True, exist_ok=True)
    said = out / "flink.log"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            [flink.python, JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as job,
    ):
        assert job.stdin and job.stdout
        job.stdin.write(json.dumps(asked) + "\n")
        job.stdin.close()
        for line in job.stdout:
            if line.startswith('{"query"'):
                found = json.loads(line)
                yield found["query"], found.get("seconds", found.get("error", ""))
    if job.returncode:
        raise SystemExit(f"Flink ended with {job.returncode}: {said.read_text()[-2000:]}")


def _environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not (folder / ".made").exists():
        _say(f"installing apache-flink {VERSION}, about 250 MB")
        uv = _uv()
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, f"apache-flink=={VERSION}"], check=True)
        (folder / ".made").touch()
    return python


def _uv() -> list[str | Path]:
    """The uv of `make setup`, or the one on PATH."""
    own = Path(sys.prefix) / "tools" / "bin" / "uv"
    found = own if own.exists() else shutil.which("uv")
    if not found:
        raise SystemExit("the environment of Flink is made by uv: run `make setup`, or put uv on PATH")
    return [found]


def _spark_jars() -> Iterator[Path]:
    spec = find_spec("pyspark")
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    for pattern in FROM_SPARK:
        yield next(folder.glob(pattern))


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
