"""What changed between two snapshots, as files: the rows of added files count +1, those of removed files -1.

A rewritten file is removed whole and added whole; rows that were only copied cancel in the sum. Compaction changes no
rows and is stepped over, so a file that was appended and then compacted away is still read from where it was written.
Nothing here reads rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from headwater.errors import SnapshotGone, Unavailable
from headwater.storage.scan import ManifestCache, read_manifest


@dataclass(frozen=True, slots=True)
class Changes:
    """Files whose rows came and files whose rows went; a row in both has not changed."""

    added: tuple[DataFile, ...] = field(repr=False)
    removed: tuple[DataFile, ...] = field(repr=False)

    @property
    def append_only(self) -> bool:
        return not self.removed

    @property
    def rows(self) -> int:
        """Rows to read, copied ones included."""
        return sum(file.record_count for file in (*self.added, *self.removed))

    @property
    def bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in (*self.added, *self.removed))


def between(table: Table, start: int | None, end: int | None, cache: ManifestCache) -> Changes:
    """What turns the rows of snapshot `start` into those of `end`; None is the empty table before the first snapshot.

    A rollback between them is walked back. SnapshotGone if either has expired; if one in between has, the live files
    of the two are compared: always right, but then compaction shows as changes.
    """
    if start == end:
        return Changes((), ())
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    for named in (start, end):
        if named is not None and named not in snapshots:
            raise _gone(table, named)
    if start is not None and end is not None:
        steps = _steps(snapshots, start, end)
        if steps is not None:
            undone, done = (_walked(each, table.io, cache) for each in steps)
            return _net((*undone.removed, *done.added), (*undone.added, *done.removed))
    return _compared(
        snapshots[start] if start is not None else None, snapshots[end] if end is not None else None, table.io, cache
    )


def made_by(table: Table, snapshot: Snapshot, cache: ManifestCache) -> Changes:
    """What one snapshot did to the one before it."""
    return _walked((snapshot,), table.io, cache)


def _steps(snapshots: dict[int, Snapshot], start: int, end: int) -> tuple[list[Snapshot], list[Snapshot]] | None:
    """The snapshots to undo from `start` and to do up to `end`, where their lines meet; None when they do not."""
    line = list(_line(snapshots, start))
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(line)}
    done: list[Snapshot] = []
    for at in _line(snapshots, end):
        if (place := places.get(at.snapshot_id)) is not None:
            return line[:place], done
        done.append(at)
    return None


def _line(snapshots: dict[int, Snapshot], of: int) -> Iterator[Snapshot]:
    """The snapshot and its ancestors that there are, newest first."""
    at: Snapshot | None = snapshots[of]
    while at is not None:
        yield at
        at = snapshots.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None


def _walked(steps: Iterable[Snapshot], io: FileIO, cache: ManifestCache) -> Changes:
    added: list[DataFile] = []
    removed: list[DataFile] = []
    for snapshot in steps:
        if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
            continue
        for manifest in cache.manifests(snapshot, io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                added += _entries(manifest, ManifestEntryStatus.ADDED, manifest.added_files_count, io, cache)
                removed += _entries(manifest, ManifestEntryStatus.DELETED, manifest.deleted_files_count, io, cache)
    return _net(added, removed)


def _entries(
    manifest: ManifestFile, status: ManifestEntryStatus, count: int | None, io: FileIO, cache: ManifestCache
) -> tuple[DataFile, ...]:
    """The files that the manifest's own snapshot added or deleted; others merely passed through it."""
    if count == 0:
        return ()
    if manifest.content is not ManifestContent.DATA:
        raise Unavailable("the table has delete files", detail="Headwater's tables are copy-on-write.")

    def read() -> tuple[DataFile, ...]:
        return tuple(entry.data_file for entry in read_manifest(manifest, io) if entry.status == status)

    return cache.remembered(f"{status.name} {manifest.manifest_path}", read)


def _compared(start: Snapshot | None, end: Snapshot | None, io: FileIO, cache: ManifestCache) -> Changes:
    before = cache.manifests(start, io) if start is not None else ()
    after = cache.manifests(end, io) if end is not None else ()
    common = set(before) & set(after)  # a manifest never changes: what both list, both have
    return _net(_live(after, common, io, cache), _live(before, common, io, cache))


def _live(
    manifests: Sequence[ManifestFile], without: set[ManifestFile], io: FileIO, cache: ManifestCache
) -> list[DataFile]:
    return [file for manifest in manifests if manifest not in without for file in cache.files(manifest, io)]


def _net(added: Sequence[DataFile], removed: Sequence[DataFile]) -> Changes:
    """Both without the files that came and went; files are equal by path."""
    came, went = Counter(added), Counter(removed)
    return Changes(tuple((came - went).elements()), tuple((went - came).elements()))


def _gone(table: Table, snapshot_id: int) -> SnapshotGone:
    return SnapshotGone(
        f'snapshot {snapshot_id} of table "{table.name()[-1]}" does not exist',
        detail="It has expired, or it was never a snapshot of this table.",
        snapshot=snapshot_id,
    )
