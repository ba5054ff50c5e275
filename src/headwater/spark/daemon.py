"""The process that forks Spark's Python workers, with two costs of every task taken out.

Spark puts `pyspark.zip` and its core jar first on the workers' path, and a worker invalidates all import caches before
each task: reading the directories of those archives again takes longer than most tasks of ours. Where PySpark is
installed as a package, they are dropped from the path. And what our tasks import is imported here, once, before a fork.

Spark runs this module (`spark.python.daemon.module`); nothing else imports it.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from importlib.machinery import PathFinder

PRELOAD = "HEADWATER_PRELOAD"
"""Comma-separated names of modules to import before the first fork."""
UMASK = "HEADWATER_UMASK"
"""The umask of workers, in octal digits: an executor's own is that of the machine that it runs on."""


def path_without_archives(path: list[str]) -> list[str]:
    """`path` without Spark's own archives, if PySpark can be found without them; otherwise `path`."""
    kept = [entry for entry in path if not _is_spark_archive(entry)]
    complete = all(PathFinder.find_spec(package, kept) for package in ("pyspark", "py4j"))
    return kept if complete else path


def _is_spark_archive(entry: str) -> bool:
    name = entry.rpartition("/")[2]
    return name == "pyspark.zip" or re.fullmatch(r"py4j-.*-src\.zip|spark-core_.*\.jar", name) is not None


def preload(names: str) -> None:
    """Import what tasks need; a module that is missing is the task's error to report, not ours."""
    for name in filter(None, names.split(",")):
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"headwater worker cannot preload {name}: {error}\n")


def main() -> None:
    """Serve workers to the JVM until it closes our standard input."""
    os.umask(int(os.environ.get(UMASK, "077"), 8))
    sys.path[:] = path_without_archives(sys.path)
    sys.path_importer_cache.clear()
    from pyspark.daemon import manager

    preload(os.environ.get(PRELOAD, ""))
    gc.collect()
    gc.freeze()  # a worker collects garbage after every task; what is loaded here stays out of that
    manager()


if __name__ == "__main__":
    main()
