"""Groups of files written anew, in a Spark worker: verified, read, brought into the table's columns, sorted, written.

A source is verified before anything of it is read, so that damage is never copied into a file with a good checksum.
Memory is bounded: rows are read batch by batch, and what must be sorted beyond it lies in the scratch folder. A group
that is alone uses all threads: its rows are dealt out by key ranges, and each thread sorts and writes ranges that
follow each other.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile
from pyiceberg.types import DoubleType, FloatType

from headwater.errors import Corrupt, HeadwaterError
from headwater.storage.checksums import damaged, decoding, verify_file
from headwater.storage.external_sort import sorted_batches
from headwater.storage.field_ids import plan_reading
from headwater.storage.maintenance.ranges import Ranges, deal_out, held_rows, plan_ranges
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import PartitionedWriter, Target, local_path

_FLOATS = (FloatType, DoubleType)

BATCH_ROWS = 64 * 1024
BATCH_BYTES = 16 * 1024**2
NICE = 10
"""How far the threads that rewrite step back behind those that ingest and answer."""
LEAST = 4
"""A thread that shares in a sort writes at least one part in so many of the target size."""
SLACK = 1.25
"""How much larger than the target a packed file may become before it is cut; a small rest would be packed again."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file to rewrite, as the table's metadata describes it."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A group as a worker gets it: the ids of its new files begin with `ids`; `run` sorts across files."""

    number: int
    sources: tuple[Source, ...]
    ids: str
    run: bool
    with_nans: frozenset[int] = frozenset()  # fields in which some source may have NaN

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)


@dataclass(frozen=True, slots=True)
class Means:
    """What a task may use: bytes of memory for each sort, a folder for what does not fit, and threads."""

    memory: int
    folder: Path
    threads: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a group: its new files, or why there are none; `damaged` are the sources that are to blame."""

    number: int
    files: tuple[DataFile, ...]
    seconds: float
    failed: Exception | None = None
    damaged: tuple[Corrupt, ...] = ()


def run_rewrites(rewrites: Sequence[Rewrite], into: Target, means: Means, attempt: int) -> Iterator[Outcome]:
    """All groups of a task; one that fails leaves no files, and does not stop the others."""
    numbers = count()
    means.folder.mkdir(parents=True, exist_ok=True)

    def rewrite(each: Rewrite, given: Means) -> Outcome:
        started = time.perf_counter()
        new_id = lambda: f"{each.ids}_{attempt}_{next(numbers)}"  # noqa: E731
        try:
            if wrong := _damage(each.sources, given.threads):
                return Outcome(each.number, (), time.perf_counter() - started, wrong[0], wrong)
            files = _rewritten(each, into, given, new_id)
            return Outcome(each.number, tuple(files), time.perf_counter() - started)
        except (HeadwaterError, OSError, pa.ArrowException) as failed:
            # As a value: Spark would turn it into text, and the other groups would stop.
            return Outcome(each.number, (), time.perf_counter() - started, failed)

    if len(rewrites) < means.threads:
        yield from (rewrite(each, means) for each in rewrites)
        return
    with _pool(means.threads) as pool:
        shared = replace(means, memory=means.memory // means.threads, threads=1)
        yield from pool.map(lambda each: rewrite(each, shared), rewrites)


def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "headwater-compact", initializer=_step_back)


def _step_back() -> None:
    """Let everything else on the machine go first. Linux keeps this per thread, and it ends with the thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _rewritten(each: Rewrite, into: Target, means: Means, new_id: Callable[[], str]) -> list[DataFile]:
    with _pool(means.threads) as pool:
        if not into.layout.ordered:
            files = pool.submit(_packed, each, into, new_id).result()
        else:
            files = _sorted(each, into, means, new_id, pool)
    return _checked(each, files)


def _damage(sources: Sequence[Source], threads: int) -> tuple[Corrupt, ...]:
    """What is wrong with the files, each of which is read."""
    with _pool(threads) as pool:
        return tuple(found for found in pool.map(_wrong, sources) if found is not None)


def _wrong(source: Source) -> Corrupt | None:
    path = local_path(source.path)
    try:
        if not path.exists():
            return damaged(path, "The file does not exist.")
        if (size := path.stat().st_size) != source.bytes:
            return damaged(path, f"It has {size} bytes instead of {source.bytes}.")
        verify_file(path, None, source.rows)
    except Corrupt as found:
        return found
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return damaged(path, f"The disk cannot read it: {error.strerror}.")
    return None


def _checked(each: Rewrite, files: list[DataFile]) -> list[DataFile]:
    """Corrupt unless the new files hold as many rows as the old ones."""
    written = sum(file.record_count for file in files)
    if written != each.rows:
        for file in files:
            local_path(file.file_path).unlink(missing_ok=True)
        raise Corrupt(f'new files of group "{each.ids}" hold {written} rows instead of {each.rows}')
    return files


def _packed(each: Rewrite, into: Target, new_id: Callable[[], str]) -> list[DataFile]:
    return _written(read_sources(each.sources, into), _with_slack(into), new_id, _nan_paths(each, into))


def _sorted(
    each: Rewrite, into: Target, means: Means, new_id: Callable[[], str], pool: ThreadPoolExecutor
) -> list[DataFile]:
    target = into if each.run else _with_slack(into)
    memory = means.memory // means.threads
    paths = [local_path(source.path) for source in each.sources]
    writers, nans = _writers(each, into, means.threads), _nan_paths(each, into)
    ranges = plan_ranges(paths, each.rows, into, memory, writers)

    def sort(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sorted_batches(
            batches,
            arrow_schema(into.schema),
            into.layout,
            memory=memory,
            folder=means.folder,
            boundaries=ranges.along,
        )

    if ranges.count == 1:
        rows = sort(read_sources(each.sources, into))
        return pool.submit(_written, rows, target, new_id, nans, presorted=True).result()
    with TemporaryDirectory(prefix="compact-", dir=means.folder) as folder:
        dealt = _dealt(each, into, ranges, Path(folder), means.threads, pool)
        parts = [
            pool.submit(
                _written,
                (row for number in share for row in sort(held_rows(dealt, number))),
                target,
                new_id,
                nans,
                presorted=True,
            )
            for share in ranges.shares(writers)
        ]
        return _all_or_none(parts)


def _writers(each: Rewrite, into: Target, threads: int) -> int:
    """How many threads write: each makes files of its own, which are not to be small."""
    if not each.run:
        return 1
    return max(1, min(threads, sum(source.bytes for source in each.sources) // (into.layout.target_bytes // LEAST)))


def _dealt(
    each: Rewrite, into: Target, ranges: Ranges, folder: Path, threads: int, pool: ThreadPoolExecutor
) -> list[list[Path]]:
    """For each range the files on disk that hold its rows, in the order of the sources."""
    step = -(-len(each.sources) // threads)
    shares = [each.sources[at : at + step] for at in range(0, len(each.sources), step)]
    work = [
        pool.submit(deal_out, read_sources(share, into), ranges, folder / str(number))
        for number, share in enumerate(shares)
    ]
    wait(work)  # all of them: their folder goes when one has failed
    parts = [future.result() for future in work]
    return [[part[number] for part in parts if number in part] for number in range(ranges.count)]


def _all_or_none(parts: Sequence[Future[list[DataFile]]]) -> list[DataFile]:
    """What all parts wrote; if one failed, what the others wrote is deleted."""
    files: list[DataFile] = []
    failed: BaseException | None = None
    for part in parts:
        try:
            files += part.result()
        except BaseException as error:
            failed = failed or error
    if failed is not None:
        for file in files:
            local_path(file.file_path).unlink(missing_ok=True)
        raise failed
    return files


def _nan_paths(each: Rewrite, into: Target) -> frozenset[str]:
    """Told to the writer beforehand: it would end a file where the first NaN comes, and leave small ones."""
    paths = parquet_path_to_id_mapping(into.schema).items()
    floats = [(path, number) for path, number in paths if isinstance(into.schema.find_type(number), _FLOATS)]
    return frozenset(path for path, number in floats if number in each.with_nans)


def _with_slack(into: Target) -> Target:
    return replace(into, layout=replace(into.layout, target_bytes=int(into.layout.target_bytes * SLACK)))


def _written(
    batches: Iterable[pa.RecordBatch],
    into: Target,
    new_id: Callable[[], str],
    with_nans: frozenset[str],
    *,
    presorted: bool = False,
) -> list[DataFile]:
    writer = PartitionedWriter(into, new_id, presorted=presorted, with_nans=with_nans)
    try:
        for batch in _cut(batches, into.layout.row_group_rows):
            writer.write(pa.Table.from_batches([batch]))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _cut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that end where row groups do: the writer would go on to the end of a batch."""
    lacking = rows
    for batch in batches:
        while batch.num_rows >= lacking:
            yield batch.slice(0, lacking)
            batch, lacking = batch.slice(lacking), rows
        if batch.num_rows:
            yield batch
            lacking -= batch.num_rows


def read_sources(sources: Iterable[Source], into: Target) -> Iterator[pa.RecordBatch]:
    """The rows of the files in the table's current columns; Corrupt if one cannot be decoded."""
    for source in sources:
        path = local_path(source.path)
        with decoding(path), pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            reading = plan_reading(file.schema_arrow, into.schema, source.path)
            # Not Arrow's own threads: they do not step back.
            rows = batch_rows(file.metadata)
            for batch in file.iter_batches(rows, columns=list(reading.columns), use_threads=False):
                yield reading.batch(batch)


def batch_rows(metadata: pq.FileMetaData) -> int:
    """How many rows are read at once: few where they are large."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * int(metadata.num_rows) // max(1, size)))
