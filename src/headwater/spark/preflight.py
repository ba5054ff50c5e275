"""The first job on a cluster: whether its executors have what the tasks of this driver need, and if not, what is
missing.

Otherwise each of these fails deep inside some task, with a stack trace from a machine that the user does not see.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headwater.errors import InvalidSetting, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 120.0
"""Seconds for a cluster to give us an executor and for that to run a task."""
REACH = 5.0
"""Seconds for a master to accept a connection."""

_MASTER = re.compile(r"([^,/:]+|\[[0-9A-Fa-f:]+\]):(\d+)")


@dataclass(frozen=True, slots=True)
class Probe:
    """Looks around in an executor; yields what is missing there as whole sentences."""

    python: tuple[int, ...]
    version: str
    jars: tuple[str, ...]
    marker: str

    def __call__(self, _: Iterable[int]) -> Iterator[str]:
        host = socket.gethostname()
        if (found := _version()) != self.version:
            yield f"The executor on {host} has headwater {found}, this driver {self.version}."
        if sys.version_info[:2] != self.python:
            theirs, ours = (".".join(map(str, each)) for each in (sys.version_info[:2], self.python))
            yield f"The executor on {host} runs Python {theirs}, this driver Python {ours}."
        if absent := [jar for jar in self.jars if not os.access(jar, os.R_OK)]:
            yield f"The executor on {host} cannot read {absent[0]}, which is on its class path."
        yield from self._warehouse(host)

    def _warehouse(self, host: str) -> Iterator[str]:
        if not self.marker:
            return
        marker = Path(self.marker)
        try:
            known = marker.read_text() == marker.name
        except OSError:
            known = False
        if not known:
            yield f"The executor on {host} does not see the warehouse {marker.parent} of this driver."
        elif not os.access(marker.parent, os.W_OK | os.X_OK):
            yield f"The executor on {host} may not write to the warehouse {marker.parent}."


def check_master(master: str) -> None:
    """Unavailable at once if no standalone master accepts a connection; Spark itself would try for a minute."""
    if not master.startswith("spark://"):
        return
    places = _MASTER.findall(master.removeprefix("spark://"))
    if not places:
        raise InvalidSetting('setting "spark_master" is not valid', detail=f'"{master}" names no host and port.')
    reasons = []
    for host, port in places:
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
            return
        except (OSError, OverflowError) as failed:
            reasons.append(str(failed))
    raise Unavailable(
        f'spark master "{master}" cannot be reached',
        detail=f"{reasons[-1]}.",
        hint="Start it, or correct the setting spark_master.",
    )


def check_cores(master: str, conf: Mapping[str, str]) -> None:
    """InvalidSetting unless two applications of ours can run on a cluster at the same time.

    A standalone master gives an application without a limit all cores that are free, and nothing to the next one.
    """
    if master.startswith("spark://") and "spark.cores.max" not in conf:
        raise InvalidSetting(
            'setting "spark_master" needs "spark.cores.max" in the setting "spark_conf"',
            detail="Queries run in a second Spark application, and a standalone cluster gives all its cores to the "
            "first one that has no limit.",
            hint='Set spark_conf = { "spark.cores.max" = "4" }, with half of the cluster\'s cores; or set '
            'query_worker = "never" to run queries in the pipeline\'s application.',
        )


def check_executors(session: SparkSession, warehouse: str, jars: Sequence[Path]) -> None:
    """Unavailable with one sentence about what is missing, unless executors can run the tasks of this driver."""
    context = session.sparkContext
    group = f"headwater-preflight-{uuid.uuid4().hex}"
    place = urlsplit(warehouse)
    marker = Path(place.path) / f".{group}" if place.scheme in ("", "file") else None
    probe = Probe(sys.version_info[:2], _version(), tuple(map(str, jars)), str(marker) if marker is not None else "")
    timer = threading.Timer(PATIENCE, lambda: context.cancelJobGroup(group))
    timer.daemon = True
    try:
        if marker is not None:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text(marker.name)
        context.setJobGroup(group, "preflight")
        timer.start()
        tasks = max(context.defaultParallelism, 1)
        missing = context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
    except Exception as failed:  # py4j's kinds; the message has to be read while the JVM still answers
        raise _not_ready(_sentence(str(failed), context.pythonExec)) from None
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
        if marker is not None:
            with suppress(OSError):
                marker.unlink()
    if missing:
        raise _not_ready(sorted(set(missing))[0])


def _version() -> str:
    """The version of the package that this module is part of, here or in an executor."""
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def _not_ready(sentence: str) -> Unavailable:
    return Unavailable(
        "spark cluster cannot run Headwater's tasks",
        detail=sentence,
        hint="Executors need the same Python and headwater, the JVM packages and the warehouse, at the same paths; "
        "PYSPARK_PYTHON names their Python. See docs/guides/operating.md, Spark clusters.",
    )


def _sentence(message: str, python: str) -> str:
    """One sentence about a failed probe, from Spark's message."""
    from headwater.spark.jobs import reason_of

    if found := re.search(r"No module named '?([A-Za-z0-9_.]+)", message):
        return f'The executors\' Python ("{python}") has no module "{found[1].partition(".")[0]}".'
    if found := re.search(r'Cannot run program "([^"]+)"', message):
        return f'The executors have no Python at "{found[1]}".'
    if re.search(r"(?:different|inconsistent)[^.]*version|PYTHON_VERSION_MISMATCH", message):
        theirs = re.search(r"worker\D*?(\d+)\D+(\d+)", message)
        version = f"{theirs[1]}.{theirs[2]}" if theirs else "of another version"
        return f"The executors run Python {version}, this driver Python {'.'.join(map(str, sys.version_info[:2]))}."
    if "cancelled" in message:
        return f"No executor has run a task within {PATIENCE:.0f} seconds."
    return f"{reason_of(message)[0]}."
