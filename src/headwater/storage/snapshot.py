"""A PyIceberg snapshot that adds and removes exactly the files it is given.

PyIceberg's own overwrite finds manifests by a predicate over partition values, which not every type survives, carries
manifests without live files along for ever, never merges, and does not know the operation `replace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.concurrent import ExecutorFactory

from headwater.errors import StaleCommit
from headwater.storage.scan import read_manifest, read_manifest_list


class SpecifiedManifest(ManifestWriterV2):
    """A manifest with all that the specification requires in its header: PyIceberg leaves out which schema it has."""

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "schema-id": str(self._schema.schema_id)}


class ExactFiles(_MergeAppendFiles):
    """The files of the parent snapshot, without `removed`, with `added`; StaleCommit if a removed file is not there."""

    def __init__(
        self,
        transaction: Transaction,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        operation: Literal["append", "overwrite", "replace"],
        summary: Mapping[str, str],
        snapshot_id: int,
    ) -> None:
        # PyIceberg computes totals for the operations that it writes itself; `replace` has those of an overwrite.
        computed = Operation.APPEND if operation == "append" else Operation.OVERWRITE
        super().__init__(computed, transaction, transaction._table.io, snapshot_properties=dict(summary))
        self._named = Operation(operation)
        self._snapshot_id = snapshot_id
        self._added_data_files = list(added)
        self._deleted_data_files = set(removed)
        self._touched: dict[ManifestFile, list[ManifestEntry]] = {}

    def new_manifest_writer(self, spec: PartitionSpec) -> SpecifiedManifest:
        output, snapshot_id = self.new_manifest_output(), self._snapshot_id
        return SpecifiedManifest(spec, self.schema(), output, snapshot_id, self._compression)

    def _build_delete_files_partition_predicate(self) -> None:
        """Not needed: files are found by their paths."""

    def _deleted_entries(self) -> list[ManifestEntry]:
        # Called before anything is written, so a stale removal leaves nothing behind.
        self._touched = self._find_touched()
        entries = [entry for entries in self._touched.values() for entry in entries]
        found = {entry.data_file: entry for entry in entries if entry.data_file in self._deleted_data_files}
        if missing := self._deleted_data_files - found.keys():
            raise StaleCommit(
                f"{len(missing)} files to remove are not in the table any more",
                detail=f"One of them is {min(file.file_path for file in missing)}.",
                hint="Nothing was written; plan the work again.",
            )
        self._deleted_data_files = set(found)  # those that manifests hold know their partition spec
        return [_with_status(entry, ManifestEntryStatus.DELETED, self._snapshot_id) for entry in found.values()]

    def fetch_manifest_entry(self, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
        entries = read_manifest(manifest, self._io)
        return [entry for entry in entries if not discard_deleted or entry.status != ManifestEntryStatus.DELETED]

    def _parent_manifests(self) -> list[ManifestFile]:
        """The manifests of the parent with live files. The list is checked: what it lacks, the commit would lose."""
        if self._parent_snapshot_id is None:
            return []
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        if parent is None:
            raise ValueError(f"snapshot {self._parent_snapshot_id} could not be found")
        manifests = read_manifest_list(parent, self._io)
        return [each for each in manifests if each.has_added_files() or each.has_existing_files()]

    def _find_touched(self) -> dict[ManifestFile, list[ManifestEntry]]:
        """The manifests that list a file to remove, with their live entries."""
        if not self._deleted_data_files:
            return {}
        manifests = self._parent_manifests()
        read = ExecutorFactory.get_or_create().map(self.fetch_manifest_entry, manifests)
        return {
            manifest: entries
            for manifest, entries in zip(manifests, read, strict=True)
            if any(entry.data_file in self._deleted_data_files for entry in entries)
        }

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = self._parent_manifests()
        kept = [manifest for manifest in manifests if manifest not in self._touched]
        for manifest, entries in self._touched.items():
            if remaining := [entry for entry in entries if entry.data_file not in self._deleted_data_files]:
                kept.append(self._rewritten(manifest, remaining))
        return kept

    def _rewritten(self, manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> ManifestFile:
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in entries:
                writer.add_entry(_with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        return Summary(self._named, **super()._summary(snapshot_properties).additional_properties)

    def _validate_concurrency(self) -> None:
        """Not needed: a commit goes to the base that was checked, or fails."""

    def _refresh_for_retry(self) -> None:
        # A table's properties may ask PyIceberg to move the commit to a newer base by itself, unchecked.
        raise CommitFailedException("the table has changed")


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )
