"""A query's result while it is paged: a small one in memory, a larger one on disk.

So memory stays flat, small answers need neither disk nor file descriptor, and nothing is left behind when the process
dies.
"""

from __future__ import annotations

import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headwater.errors import QueryNotFound, ResultTooLarge
from headwater.serving.result import Result

BATCH_ROWS = 8192
SMALL_BYTES = 64 * 1024
"""Results up to this size stay in memory."""
PAGE_BYTES = 8 * 1024**2


def slices(batch: pa.RecordBatch, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most `rows` rows."""
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class Spool:
    """Written once by the query's thread, then read in pages by any; its file has no name and dies with the process."""

    def __init__(self, folder: Path, max_rows: int, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.SpooledTemporaryFile(SMALL_BYTES, dir=str(folder))  # noqa: SIM115
        self._lock = threading.Lock()
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._starts: list[int] = []
        self._writer: pa.RecordBatchFileWriter | None = None
        self._reader: pa.RecordBatchFileReader | None = None
        self.schema = pa.schema([])
        self.rows = 0
        self.bytes = 0

    @property
    def is_on_disk(self) -> bool:
        """Whether the result occupies a file descriptor."""
        return not self._file.closed and self._file._rolled  # type: ignore[attr-defined]

    def open(self, result: Result) -> None:
        self.schema = result.schema
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), result.schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; ResultTooLarge above the limits."""
        assert self._writer is not None
        for part in slices(batch):
            self._starts.append(self.rows)
            self.rows += part.num_rows
            self.bytes += part.nbytes
            self._check()
            self._writer.write_batch(part)

    def _check(self) -> None:
        if self.rows > self._max_rows:
            raise ResultTooLarge(
                f"result has more than {self._max_rows} rows",
                hint="Add a LIMIT, raise max_rows or the setting query_max_rows, or stream it with Accept: "
                "application/x-ndjson.",
            )
        if self.bytes > self._max_bytes:
            raise ResultTooLarge(
                f"result has more than {self._max_bytes} bytes",
                hint="Add a LIMIT, or stream it with Accept: application/vnd.apache.arrow.stream.",
            )

    def finish(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self._file.flush()
        self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))

    def fail(self, error: Exception) -> None:
        self.close()

    def stop(self, error: Exception) -> None:
        pass  # writing never waits

    def page(self, offset: int, limit: int, max_bytes: int = PAGE_BYTES) -> list[pa.RecordBatch]:
        """Up to `limit` rows from `offset` on; fewer when they have more than `max_bytes`, but one at least."""
        found: list[pa.RecordBatch] = []
        size, end = 0, min(self.rows, offset + limit)
        while offset < end:
            batch = self._batch_at(offset, end)
            batch = _within(batch, max_bytes - size, first=not found)
            if batch.num_rows == 0:
                break
            found.append(batch)
            size += batch.nbytes
            offset += batch.num_rows
        return found

    def _batch_at(self, offset: int, end: int) -> pa.RecordBatch:
        place = bisect_right(self._starts, offset) - 1
        with self._lock:
            if self._reader is None:
                raise QueryNotFound("the query's result is gone", hint="Run it again.")
            batch = self._reader.get_batch(place)
        return batch.slice(offset - self._starts[place], end - offset)

    def close(self) -> None:
        """Give the disk space back; safe to call twice."""
        with self._lock:
            self._reader = None
            self._file.close()


def _within(batch: pa.RecordBatch, size: int, *, first: bool) -> pa.RecordBatch:
    """The first rows of the batch that have at most `size` bytes together; one row at least if it is the `first`."""
    while batch.nbytes > size and batch.num_rows > 1:
        batch = batch.slice(0, batch.num_rows // 2)
    return batch if batch.nbytes <= size or first else batch.slice(0, 0)
