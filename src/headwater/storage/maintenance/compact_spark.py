"""Groups of files as a Spark job. It leaves one slot of Spark free, so that an ingest never waits for a long task.

What it leaves idle it uses by threads inside its tasks, and those step back behind everything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql import SparkSession

from headwater.errors import QueryCancelled
from headwater.spark.jobs import RunningQuery, query_errors
from headwater.storage.maintenance.compact import Means, Outcome, Rewrite, run_rewrites
from headwater.storage.writer import Target

LOOK_EVERY = 0.5
"""Seconds between looks at whether the work is still wanted."""


def run_job(
    session: SparkSession,
    rewrites: Sequence[Rewrite],
    into: Target,
    memory: int,
    cancelled: Callable[[], bool],
) -> list[Outcome]:
    """What became of each group; QueryCancelled if `cancelled` said so meanwhile."""
    context = session.sparkContext
    slots = int(context.defaultParallelism)
    tasks = max(1, min(len(rewrites), slots - 1))
    scratch = context.getConf().get("spark.local.dir")
    shares = [rewrites[place::tasks] for place in range(tasks)]
    # Removed here: a task that is cancelled does not come to it.
    with TemporaryDirectory(prefix="compaction-", dir=scratch, ignore_cleanup_errors=True) as folder:
        means = Means(memory, Path(folder), max(1, slots // tasks))

        def task(assigned: Iterator[Sequence[Rewrite]]) -> Iterator[Outcome]:
            attempt = TaskContext.get().taskAttemptId()
            for some in assigned:
                yield from run_rewrites(some, into, means, attempt)

        with _cancellable(session, cancelled), query_errors():
            outcomes = context.parallelize(shares, tasks).mapPartitions(task).collect()
    for outcome in outcomes:
        for file in outcome.files:
            file.spec_id = into.spec.spec_id  # pickling loses it
    return list(outcomes)


@contextmanager
def _cancellable(session: SparkSession, cancelled: Callable[[], bool]) -> Iterator[None]:
    query = RunningQuery(session, f"headwater-compaction-{uuid4().hex}")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY):
            if cancelled():
                query.cancel()
                return

    if cancelled():
        raise QueryCancelled("compaction was cancelled")
    watcher = threading.Thread(target=watch, name="headwater-compaction-watch", daemon=True)
    watcher.start()
    try:
        with query:
            yield
    finally:
        done.set()
        watcher.join()
