"""Iceberg metadata that is on disk before anything refers to it.

PyIceberg writes manifests and metadata, then moves the catalog's pointer, which SQLite makes durable at once. Without
an fsync in between, a power cut could leave a pointer to a file that is not there, and a table that cannot be read.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

from pyiceberg.io import PY_IO_IMPL, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from headwater.catalog.avro_frames import check_frames

FILES = {PY_IO_IMPL: "headwater.catalog.durable_files.DurableFileIO"}
"""The properties with which PyIceberg reads and writes files through this module."""


def local_path(location: str) -> Path:
    """The path behind a `file:` location, taken literally as Iceberg's readers do: `%` stands for itself."""
    return Path(local_name(location))


def local_name(location: str) -> str:
    """The same as text."""
    return location.removeprefix("file://") if location.startswith("file://") else location.removeprefix("file:")


def is_inside(location: str, folder: Path) -> bool:
    """Whether a location names something below `folder`, by its text: a lake may have links inside it."""
    path = local_name(location)
    return path == os.path.normpath(path) and Path(path).is_relative_to(folder) and Path(path) != folder


def sync_file(path: Path) -> None:
    """Make a file and its name durable."""
    for name in (path, path.parent):
        handle = os.open(name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's own file access; local files are durable once they are closed, and Avro files are read whole."""

    def new_input(self, location: str) -> PyArrowFile:
        plain = super().new_input(location)
        if not location.endswith(".avro"):
            return plain
        return _AvroFile(location, plain._path, plain._filesystem, plain._buffer_size)

    def new_output(self, location: str) -> PyArrowFile:
        plain = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return _LocalFile(location, path, plain._filesystem, plain._buffer_size) if scheme == "file" else plain

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file, if it is in the warehouse that this was opened for."""
        name = location if isinstance(location, str) else location.location
        warehouse = self.properties.get("warehouse")
        if warehouse is not None and not is_inside(name, local_path(warehouse)):
            # An OSError: PyIceberg deletes after a commit, which stands, and logs what could not be deleted.
            raise PermissionError(f"{name} is outside the lake's folder, {local_name(warehouse)}")
        super().delete(location)


class _AvroFile(PyArrowFile):
    def open(self, seekable: bool = True) -> InputStream:
        with super().open(seekable) as stream:
            body = stream.read()
        check_frames(body)
        return BytesIO(body)


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
