"""Which files the metadata of a table refers to. Whoever deletes asks here, and deletes nothing if this raises.

Files are compared by their plain local paths: metadata may spell one as `file:/a` and another as `file:///a`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headwater.storage.scan import ManifestCache
from headwater.storage.writer import local_name

log = logging.getLogger(__name__)


def plain(location: str) -> str:
    """A location as a local path, spelt in one way."""
    return os.path.normpath(local_name(location))


@dataclass(frozen=True, slots=True)
class Reachable:
    """Files that snapshots refer to, by plain path, with their sizes; what has no recorded size has 0."""

    data: dict[str, int] = field(repr=False)
    manifests: dict[str, int] = field(repr=False)
    lists: dict[str, int] = field(repr=False)

    def paths(self) -> dict[str, int]:
        return {**self.data, **self.manifests, **self.lists}


def reachable(snapshots: Iterable[Snapshot], io: FileIO, cache: ManifestCache, *, lenient: bool = False) -> Reachable:
    """Everything that the snapshots refer to; raises if any of their manifests cannot be read.

    A `lenient` answer leaves out what those name. Nobody may conclude from it that a file is not referred to.
    """
    found = list(snapshots)
    manifests: dict[str, ManifestFile] = {}
    data: dict[str, int] = {}
    for snapshot in found:
        with _passing_over(snapshot.manifest_list, lenient):
            manifests |= {manifest.manifest_path: manifest for manifest in cache.manifests(snapshot, io)}
    for manifest in manifests.values():
        with _passing_over(manifest.manifest_path, lenient):
            data |= {plain(file.file_path): file.file_size_in_bytes for file in _live(manifest, io, cache)}
    lengths = {plain(path): manifest.manifest_length for path, manifest in manifests.items()}
    return Reachable(data, lengths, {plain(snapshot.manifest_list): 0 for snapshot in found})


@contextmanager
def _passing_over(path: str, lenient: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a missing or damaged file raises in the reader
        if not lenient:
            raise
        log.warning("manifest cannot be read", extra={"file": path, "error": str(error)})


def _live(manifest: ManifestFile, io: FileIO, cache: ManifestCache) -> tuple[DataFile, ...]:
    if not manifest.has_added_files() and not manifest.has_existing_files():
        return ()
    return cache.files(manifest, io)


def referred(table: Table, metadata_location: str, cache: ManifestCache) -> set[str]:
    """Every file that the table's metadata, which is at `metadata_location`, names in any way."""
    files = set(reachable(table.metadata.snapshots, table.io, cache).paths())
    return files | {plain(metadata_location)} | {plain(each) for each in _beside(table.metadata)}


def _beside(metadata: TableMetadata) -> Iterable[str]:
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (each.statistics_path for each in metadata.statistics)
    yield from (each.statistics_path for each in metadata.partition_statistics)


def inside(path: str, folder: str) -> bool:
    """Whether a plain path lies below a folder, by its words and with all links followed."""
    try:
        real = os.path.realpath(path)
    except OSError:
        return False
    return _below(path, folder) and _below(real, os.path.realpath(folder))


def _below(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder and path != folder
