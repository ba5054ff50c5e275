"""Iceberg metadata that is on disk before anything refers to it.

PyIceberg writes manifests and metadata, then moves the catalog's pointer, which SQLite makes durable at once. Without
an fsync in between, a power cut could leave a pointer to a file that is not there, and a table that cannot be read.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

IMPLEMENTATION = "headwater.catalog.durable_files.DurableFileIO"
"""What the catalog's property `py-io-impl` says."""


def sync_file(path: Path) -> None:
    """Make a file and its name durable."""
    for name in (path, path.parent):
        handle = os.open(name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's own file access; local files are durable once they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        plain = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return _LocalFile(location, path, plain._filesystem, plain._buffer_size) if scheme == "file" else plain


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _Synced(super().create(overwrite), Path(self._path))


class _Synced:
    """A stream to a local file whose closing waits for the disk."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            sync_file(self._path)

    def __enter__(self) -> _Synced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
