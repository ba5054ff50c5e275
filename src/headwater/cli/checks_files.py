"""The doctor's view of one table's files: manifest lists, manifests, data files, and what of them can be repaired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from headwater.cli.checks import Check
from headwater.cli.screen import counted, sized
from headwater.errors import Corrupt
from headwater.storage.writer import local_path
from headwater.types import TOPICS

_TOTALS = {"total-data-files": "data files", "total-records": "records", "total-files-size": "bytes"}


@dataclass(slots=True)
class Contents:
    """What the metadata of a table says, as far as it can be read: live files by snapshot; what is wrong with the
    current one, and with past ones; what is wrong with which files, once they were looked at."""

    files: dict[int, dict[str, DataFile]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    wrong_past: list[str] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    manifests: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    deep: bool = False

    def of(self, snapshot: Snapshot | None) -> dict[str, DataFile]:
        return self.files.get(snapshot.snapshot_id, {}) if snapshot is not None else {}


def read_contents(table: StaticTable, *, deep: bool) -> Contents:
    """What the current snapshot refers to, or every snapshot does; what cannot be read is told, not raised."""
    current, found, entries = table.current_snapshot(), Contents(deep=deep), _Entries(table)
    if current is not None:
        found.wrong = [*_read(current, entries, found), *_wrong_totals(current, found)]
    past = [each for each in table.metadata.snapshots if current is None or each.snapshot_id != current.snapshot_id]
    for snapshot in past if deep else ():
        found.wrong_past += _read(snapshot, entries, found)
    found.manifests = len(entries.read)
    return found


def _read(snapshot: Snapshot, entries: _Entries, found: Contents) -> list[str]:
    """Read a snapshot's files into `found`; what is wrong that was not told before."""
    told = len(entries.wrong)
    try:
        manifests = snapshot.manifests(entries.io)
    except Exception:  # whatever a missing or damaged file raises in the reader
        found.unreadable.add(snapshot.snapshot_id)
        return [f"manifest list {local_path(snapshot.manifest_list)} cannot be read: {_reason(snapshot.manifest_list)}"]
    live: dict[str, DataFile] = {}
    for manifest in manifests:
        read = entries.of(manifest, snapshot)
        if read is None:
            found.unreadable.add(snapshot.snapshot_id)
        for entry in read or ():
            if entry.status != ManifestEntryStatus.DELETED:
                live[entry.data_file.file_path] = entry.data_file
    found.files[snapshot.snapshot_id] = live
    return entries.wrong[told:]


class _Entries:
    """The entries of manifests, each read and checked once."""

    def __init__(self, table: StaticTable) -> None:
        self.io = table.io
        self.read: dict[str, list[ManifestEntry] | None] = {}
        self.wrong: list[str] = []

    def of(self, manifest: ManifestFile, snapshot: Snapshot) -> list[ManifestEntry] | None:
        path = manifest.manifest_path
        if path not in self.read:
            self.read[path] = self._checked(manifest, snapshot)
        return self.read[path]

    def _checked(self, manifest: ManifestFile, snapshot: Snapshot) -> list[ManifestEntry] | None:
        path = local_path(manifest.manifest_path)
        try:
            entries = list(manifest.fetch_manifest_entry(self.io, discard_deleted=False))
            size = path.stat().st_size
        except Exception:  # the same
            named_by = f"manifest list {local_path(snapshot.manifest_list)} names it"
            self.wrong.append(f"manifest {path} cannot be read: {_reason(manifest.manifest_path)}; {named_by}")
            return None
        if size != manifest.manifest_length:
            self.wrong.append(f"manifest {path} has {size} bytes instead of {manifest.manifest_length}")
        live = [entry.data_file for entry in entries if entry.status != ManifestEntryStatus.DELETED]
        listed = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        rows = (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        held = sum(file.record_count for file in live)
        if (len(live), held) != (listed, rows):
            said = f"lists {len(live)} files with {held} records instead of {listed} with {rows}"
            self.wrong.append(f"manifest {path} {said}")
        return entries


def _wrong_totals(snapshot: Snapshot, contents: Contents) -> Iterator[str]:
    """Where a snapshot's summary and its manifests disagree."""
    if snapshot.summary is None or snapshot.snapshot_id in contents.unreadable:
        return
    files = contents.of(snapshot).values()
    counts = (
        len(files),
        sum(file.record_count for file in files),
        sum(file.file_size_in_bytes for file in files),
    )
    for (name, noun), found in zip(_TOTALS.items(), counts, strict=True):
        said = snapshot.summary[name]
        if said not in (None, str(found)):  # as text, because a damaged summary may hold anything
            yield f"snapshot {snapshot.snapshot_id} says that it has {said} {noun}, its manifests list {found}"


def check_metadata(name: str, table: StaticTable, contents: Contents) -> Check:
    """Whether manifests can be read and agree with each other and with the summaries."""
    label = f"metadata of {name}"
    if contents.wrong:
        message = f"{counted(len(contents.wrong), 'thing')} wrong: {'; '.join(contents.wrong[:3])}"
        return Check(label, "fail", message, _advice(name, table, contents))
    if contents.wrong_past:
        message = f"{len(contents.wrong_past)} wrong about past states: {'; '.join(contents.wrong_past[:3])}"
        action = "The current state is in order. Restore the files from a backup, or let those snapshots expire."
        return Check(label, "warn", message, action)
    said = f"{counted(len(contents.files), 'snapshot')}, {counted(contents.manifests, 'manifest')}: they agree"
    return Check(label, "ok", said)


def check_files(qualified: str, table: StaticTable, contents: Contents) -> Check:
    """Whether the files exist with their sizes, and if it is to be deep, their checksums and rows; notes the others."""
    name, deep = qualified.partition(".")[2], contents.deep
    current = contents.of(table.current_snapshot())
    if table.metadata.current_snapshot_id in contents.unreadable:
        message = f"not all of its files are known: {contents.wrong[0]}"
        return Check(qualified, "fail", message, _advice(name, table, contents))
    wrong = {path: reason for path, file in current.items() if (reason := _wrong(file, deep))}
    past = {path: file for files in contents.files.values() for path, file in files.items() if path not in current}
    lost = {path: reason for path, file in past.items() if (reason := _wrong(file, deep))}
    contents.damaged = wrong | lost
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        message = f"{len(wrong)} of {len(current)} data files are not as recorded: {next(iter(wrong.values()))}{more}"
        first = "See first what can be repaired of each file. " if deep and qualified.startswith(f"{TOPICS}.") else ""
        return Check(qualified, "fail", message, first + _advice(name, table, contents))
    total = sized(sum(file.file_size_in_bytes for file in current.values()))
    how = "every one matches its checksums" if deep else "all in place"
    said = f"{counted(len(current), 'data file')}, {total}, {how}"
    if lost:
        message = f"{said}; {len(lost)} files of past states are not as recorded: {next(iter(lost.values()))}"
        return Check(qualified, "warn", message, "Restore them from a backup, or let those snapshots expire.")
    return Check(qualified, "ok", f"{said}{f', {len(past)} more of past states' if past else ''}")


def _advice(name: str, table: StaticTable, contents: Contents) -> str:
    """What can be done about snapshots that cannot be read, or files that are damaged."""
    backup = "Restore the files from a backup"
    if table.metadata.properties.get("headwater.kind") == "view":
        if table.metadata.current_snapshot_id in contents.unreadable:  # a refresh has to know which files it replaces
            return f"`DROP MATERIALIZED VIEW {name}`, and create it again from its sources."
        return f"Run `REFRESH MATERIALIZED VIEW {name} FULL`, which computes it anew from its sources."
    if not contents.deep:  # past states were not looked at
        return f"{backup}, or run `headwater doctor --deep`, which says what can be repaired."
    for snapshot in list(ancestors_of(table.current_snapshot(), table.metadata))[1:]:
        files = contents.files.get(snapshot.snapshot_id)
        if files is None or snapshot.snapshot_id in contents.unreadable or contents.damaged.keys() & files.keys():
            continue
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
        rows = sum(file.record_count for file in files.values())
        return (
            f"{backup}, or return to the state of {at:%Y-%m-%d %H:%M:%S} UTC, which has {rows:,} records and "
            f"does not need them: `ROLLBACK TOPIC {name} TO VERSION {snapshot.snapshot_id}`."
        )
    return f"{backup}: no state of the table that is still kept does without them."


def _wrong(file: DataFile, deep: bool) -> str | None:
    path = local_path(file.file_path)
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    if found != file.file_size_in_bytes:
        return f"{path} has {found} bytes instead of {file.file_size_in_bytes}"
    return _damaged(path, file.record_count) if deep else None


def _damaged(path: Path, rows: int) -> str | None:
    from headwater.storage.checksums import verify_file

    try:
        # What another writer left without checksums is found by decoding it, if at all.
        return None if verify_file(path, None, rows) else _undecodable(path)
    except Corrupt as error:
        return f"{path} is damaged: {error.detail}"
    except OSError as error:
        return f"{path} cannot be read: {error}"


def _undecodable(path: Path) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for _ in pq.ParquetFile(path, page_checksum_verification=True).iter_batches():
            pass
    except (pa.ArrowException, OSError) as error:
        return f"{path} is damaged: {str(error).splitlines()[0]}"
    return None


def _reason(location: str) -> str:
    """Why a file of metadata could not be read: what its reader raises says little to a person."""
    try:
        return "it is damaged" if local_path(location).stat().st_size else "it is empty"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"the system says: {error.strerror}"
