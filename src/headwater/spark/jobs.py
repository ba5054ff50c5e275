"""Running queries that can be stopped, and failures in Headwater's words.

Spark keeps the group of a job per thread: whoever runs a query does so inside `with RunningQuery(...)`, all of it in
one thread; anyone may cancel it from another.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from headwater.errors import (
    Corrupt,
    HeadwaterError,
    QueryCancelled,
    QueryFailed,
    ResultTooLarge,
    Unavailable,
    full_disk,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANCEL_EVERY = 0.2
"""Seconds between attempts to cancel a query that still runs."""

_PLACE = re.compile(r"\s*\(line (\d+), pos (\d+)\)|;? ?line (\d+) pos (\d+);?")
_LIMIT = re.compile(r"headwater\.spark\.spool\.ResultLimit: (rows|bytes) (\d+)")
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|[Cc]ancelled (?:because|part of)|Job \d+ cancelled")


class RunningQuery:
    """A query that one thread runs, inside a `with` block, and any thread may cancel; a block is entered once."""

    def __init__(self, session: SparkSession, query_id: str) -> None:
        self._context = session.sparkContext
        self._id = query_id
        self._lock = threading.Lock()
        self._cancelled = False
        self._finished = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether someone has asked to cancel."""
        return self._cancelled

    def __enter__(self) -> Self:
        if self._cancelled:
            self._finished.set()
            raise QueryCancelled("query was cancelled")
        self._context.setJobGroup(self._id, self._id, interruptOnCancel=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            self._context.setLocalProperty(key, None)

    def cancel(self) -> None:
        """Ask the query to stop and return at once; the thread that runs it gets QueryCancelled."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
        threading.Thread(target=self._cancel_until_finished, name=f"cancel {self._id}", daemon=True).start()

    def _cancel_until_finished(self) -> None:
        # Once is not enough: between two jobs there is nothing to cancel, and a query of several stages goes on with
        # the next one, which Spark does not check against cancelled groups.
        while not self._finished.is_set():
            with suppress(Exception):  # the session may stop at any moment, and then so does the query
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._id)
            self._finished.wait(CANCEL_EVERY)


@contextmanager
def query_errors() -> Iterator[None]:
    """Turn what Spark raises inside the block into the errors of `failure` or, if the JVM is gone, Unavailable."""
    from py4j.protocol import Py4JJavaError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise failure(str(error)) from error
    except (Py4JNetworkError, ConnectionError, EOFError) as error:
        raise Unavailable("spark stopped while the query ran", hint="Run the query again.") from error


def failure(message: str) -> HeadwaterError:
    """The error for a query that Spark let in and then failed, from Spark's message."""
    if _CANCELLED.search(message):
        return QueryCancelled("query was cancelled")
    if "No space left on device" in message:
        return full_disk()
    if limit := _LIMIT.search(message):
        name = "max_rows" if limit[1] == "rows" else "the setting query_max_result_bytes"
        return ResultTooLarge(f"result has more than {limit[2]} {limit[1]}", hint=f"Add a LIMIT, or raise {name}.")
    if "CRC checksum verification failed" in message:
        return Corrupt(
            "a data file that the query reads is damaged",
            detail="A page does not match its checksum.",
            hint="Run `headwater doctor --deep` to find every damaged file, and restore them from a backup.",
        )
    if "NullPointerException" in message:
        return QueryFailed(
            "query failed",
            detail="Spark met a null where it does not expect one. It cannot sort maps that hold null values, as "
            "GROUP BY, DISTINCT and set operations over a map do.",
            hint="Group by the entries of the map instead, or leave such maps out with a WHERE.",
        )
    return QueryFailed("query failed", detail=f"{reason_of(message)[0]}.")


def reason_of(message: str) -> tuple[str, int | None, int | None]:
    """What Spark's message says without its decoration, and the line and position (both from 1) it points to."""
    text = re.sub(r"^An error occurred while calling [^\n]*\n:\s*", "", message.strip())
    if found := re.search(r"\(\S+ executor \S+\): (?:[\w.$]+(?:Exception|Error): )?(.*)", text, re.DOTALL):
        text = found[1]
    head = re.split(r"\n\s*== |;\n'?\w+|\n\s*at |\n\nJVM stacktrace|\n\nDriver stacktrace", text, maxsplit=1)[0]
    place = _PLACE.search(head)
    line, position = (int(place[1] or place[3]), int(place[2] or place[4]) + 1) if place else (None, None)
    reason = _PLACE.sub("", head)
    reason = re.sub(r"^(?:[\w.$]+(?:Exception|Error): )?\[[A-Z0-9_.]+\]\s*", "", reason)
    reason = re.sub(r"^(?:[a-z]\w*\.)+[\w$]+(?:Exception|Error): ", "", reason)
    reason = re.sub(r"\s*SQLSTATE: \w+\s*", " ", reason)
    # Queries cannot change settings, so advice to do so would mislead.
    reason = re.sub(r"\s*If necessary,? set \S+ to \S+ to bypass this error\.?", "", reason)
    return re.sub(r"\s+", " ", reason).strip(" .;"), line, position
