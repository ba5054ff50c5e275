"""Finding the Java that runs Spark, before Spark fails with a message about something else.

`JAVA_HOME` wins over `PATH`, exactly as in Spark's own scripts: an unusable `JAVA_HOME` is an error here and is never
passed over, because Spark would not pass it over either.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import JavaMissing

OLDEST = 17
HINT = (
    f"Install a JDK {OLDEST} or later: `apt install openjdk-17-jre-headless` on Debian and Ubuntu, "
    "`brew install openjdk@17` on macOS; then put its `java` on PATH or set JAVA_HOME to its folder."
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was seen to run, and its feature version (17, 21, …)."""

    executable: Path
    version: int


def find_java() -> Java:
    """The Java that Spark will use, seen to run and new enough; otherwise JavaMissing."""
    executable = _locate()
    version = parse_version(_run_version(executable))
    if version is None:
        raise JavaMissing(f'java "{executable}" does not say which version it is', hint=HINT)
    if version < OLDEST:
        raise JavaMissing(
            f'java "{executable}" is version {version}', detail=f"Spark needs Java {OLDEST} or later.", hint=HINT
        )
    return Java(executable, version)


def parse_version(output: str) -> int | None:
    """The feature version in what `java -version` prints: 8 for "1.8.0_292", 17 for "17.0.15"."""
    if not (found := _VERSION.search(output)):
        return None
    major, minor = int(found[1]), found[2]
    return int(minor) if major == 1 and minor else major


def _locate() -> Path:
    if home := os.environ.get("JAVA_HOME"):
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK):
            raise JavaMissing(f'JAVA_HOME "{home}" has no bin/java', hint=HINT)
        return executable
    if on_path := shutil.which("java"):
        return Path(on_path)
    raise JavaMissing("java is not installed", detail="It is neither on PATH nor in JAVA_HOME.", hint=HINT)


def _run_version(executable: Path) -> str:
    try:
        ran = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f'java "{executable}" does not run', detail=f"{error}.", hint=HINT) from error
    return ran.stderr + ran.stdout
