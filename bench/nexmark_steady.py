"""The cost of one micro-batch while a query runs: events come piece by piece, each when the last one is in the answer.

On both sides the query has already caught up, and what is timed begins when a piece can be read: here, when its commit
to the topics has returned; by hand, when its files have got their names. It ends when the answer's table has it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.nexmark import Events
from bench.nexmark_queries import QUERIES
from bench.nexmark_spark import ByHand
from headwater.catalog.progress import progress_of
from headwater.engine import Lake

POLL, PATIENCE = 0.002, 120.0
WARM = 2
"""The first micro-batches, which do not count."""


def steady_headwater(lake: Lake, name: str, pieces: Iterator[Events]) -> float:
    """The median of seconds from a commit until a running view has it; the lake's loops run already."""
    view, inputs, seconds = f"{name}_steady", QUERIES[name].inputs, []
    lake.sql(QUERIES[name].view(view))
    expected = _rows_in(lake, name, view)
    for piece in pieces:
        for stream, table in piece.tables():
            if stream in inputs:
                lake.topic(stream).append(table)
                expected += len(table)
        lake.flush()
        seconds.append(_until(lambda want=expected: _rows_in(lake, name, view) >= want))
    lake.sql(f"DROP MATERIALIZED VIEW {view}")
    return statistics.median(seconds[WARM:])


def steady_by_hand(runner: ByHand, files: Path, name: str, first: int, pieces: Iterator[Events]) -> float:
    """The same for a hand-written query; its files are numbered from `first` on, and are gone afterwards."""
    query, seconds, made = runner.follow(name), [], []
    try:
        query.processAllAvailable()
        for number, piece in enumerate(pieces, first):
            for stream, table in piece.tables():
                if stream in QUERIES[name].inputs:
                    made.append(_appear(table, files / stream / f"{number:04}.parquet"))
            started = time.perf_counter()
            query.processAllAvailable()
            seconds.append(time.perf_counter() - started)
    finally:
        query.stop()
        for file in made:
            file.unlink()
    return statistics.median(seconds[WARM:])


def _appear(table: pa.Table, file: Path) -> Path:
    """Whole from the moment on at which it has its name; names with a dot are not looked at."""
    hidden = file.with_name(f".{file.name}")
    pq.write_table(table, hidden, compression="zstd")
    return hidden.rename(file)


def _rows_in(lake: Lake, name: str, view: str) -> int:
    """The rows that are in the view's table, or, where a batch that closes no window is no commit, that were read."""
    if QUERIES[name].closes:
        return lake.streams.status(view)[0].rows_in
    progress = progress_of(lake.views.load(view).table.metadata.properties)
    assert progress is not None, f"{view} is not kept by a stream"
    return progress.rows_in


def _until(seen: Callable[[], bool]) -> float:
    started = time.perf_counter()
    while not seen():
        if time.perf_counter() - started > PATIENCE:
            raise SystemExit(f"a micro-batch was not in the view for {PATIENCE:g} s")
        time.sleep(POLL)
    return time.perf_counter() - started
