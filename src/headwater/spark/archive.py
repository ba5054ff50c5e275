"""The classes that Spark loads at every start, in one file that the JVM maps into memory to start more quickly.

The file is made once on a machine, by `headwater setup`, from what a JVM has loaded when it ends. A JVM or a class path
that it was not made for passes it over by itself, and starts as ever.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from headwater.spark import built
from headwater.spark.java import Java

KEPT = 4
"""Files of other installations on this machine that stay, the newest ones."""


def archive_file(cache: Path, java: Java, jars: Sequence[Path]) -> Path:
    """Where the file for this Java, this Spark and these packages is, or would be."""
    spark = find_spec("pyspark")
    parts = (
        str(java.executable.resolve()),
        str(java.executable.resolve().stat().st_mtime_ns),
        str(spark.origin if spark else ""),
        *map(str, jars),
    )
    return cache / "classes" / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.jsa"


def reading(file: Path) -> tuple[str, ...]:
    """Options of a JVM that starts with the file, if there is one and it is what was written."""
    built.close_folder(file.parent)
    return (f"-XX:SharedArchiveFile={file}",) if built.is_intact(file) else ()


def writing(file: Path) -> tuple[str, ...]:
    """Options of a JVM that makes the file when it ends."""
    return (f"-XX:ArchiveClassesAtExit={file}",)


def make_archive(file: Path, learn: Callable[[Path], None]) -> bool:
    """Have `learn` make the file, and tell whether it did; it is whole or not there, and the oldest others go."""
    built.close_folder(file.parent)
    written = file.with_name(f"{file.stem}.{os.getpid()}.tmp")
    try:
        learn(written)
        if written.is_file():
            written.replace(file)
            built.record(file)
    finally:
        written.unlink(missing_ok=True)
    for old in sorted(file.parent.glob("*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)[KEPT + 1 :]:
        built.remove(old)
    return file.is_file()
