"""What a Spark task does with its part of a streamed result: write it to disk as it comes, one batch at a time.

Spark's own ways to stream hold a whole partition in the driver, and a partition can be larger than the driver. This
module runs in workers, so it imports little but Arrow, which they have loaded already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
LOOK_EVERY = 16 * 1024**2
"""Bytes that a task writes between two looks at what the query's other tasks have written."""


class ResultLimit(Exception):
    """A result that is larger than it may be. The driver knows it by its text: `rows 10` or `bytes 1024`."""


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes Arrow batches that are already serialized into one IPC stream file per partition.

    The limits hold while rows are written. No partition has more than `max_rows` rows, and all of them together have
    little more than `max_bytes` bytes.
    """

    folder: str
    schema: bytes
    max_rows: int | None = None
    max_bytes: int | None = None

    def __call__(self, index: int, batches: Iterable[bytes]) -> Iterator[str]:
        """Write a partition's batches; yields the file's name, or nothing for an empty partition."""
        messages = iter(batches)
        first = next(messages, None)
        if first is None:
            return
        file = Path(self.folder) / f"part-{index:08d}.arrow"
        with file.open("wb") as sink:
            sink.write(self.schema)
            for message in self._limited(first, messages):
                sink.write(message)
            sink.write(END_OF_STREAM)
        yield file.name

    def _limited(self, first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
        schema = None if self.max_rows is None else pa.ipc.read_schema(pa.py_buffer(self.schema))
        rows, unseen = 0, LOOK_EVERY
        for message in chain([first], others):
            if self.max_rows is not None:
                rows += pa.ipc.read_record_batch(pa.py_buffer(message), schema).num_rows
                if rows > self.max_rows:
                    raise ResultLimit(f"rows {self.max_rows}")
            unseen += len(message)
            if self.max_bytes is not None and unseen >= LOOK_EVERY:
                unseen = 0
                if len(message) + sum(part.stat().st_size for part in os.scandir(self.folder)) > self.max_bytes:
                    raise ResultLimit(f"bytes {self.max_bytes}")
            yield message
