"""Metadata of tables: each snapshot is parsed once and rendered once, and an update copies nothing.

For one commit PyIceberg reads a table's metadata twice, copies all of it about sixteen times and renders all of it,
which costs more with every snapshot that the table has. Metadata is frozen: an update makes a new value that shares the
parts it does not change, and what this process committed it need not read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from threading import Lock
from typing import Any
from uuid import UUID

from pydantic_core import from_json
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataWrapper
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.typedef import Identifier
from pyiceberg.utils.datetime import datetime_to_millis


class MetadataCache:
    """The newest known metadata of each table, with its location. Threads share it."""

    def __init__(self) -> None:
        self._newest: dict[Identifier, tuple[str, TableMetadata]] = {}
        self._rendered: dict[UUID, dict[int, tuple[Snapshot, str]]] = {}
        self._commits: Counter[Identifier] = Counter()
        self._lock = Lock()

    def load(self, table: Identifier, location: str, files: FileIO) -> TableMetadata:
        """The metadata in the file `location`; snapshots that the last known version has are not parsed again."""
        with self._lock:
            known = self._newest.get(table)
        if known is not None and known[0] == location:
            return known[1]
        metadata = read_metadata(location, files, known[1].snapshots if known is not None else ())
        self.put(table, location, metadata)
        return metadata

    def put(self, table: Identifier, location: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._newest[table] = (location, metadata)

    def committed(self, table: Identifier, location: str, metadata: TableMetadata) -> None:
        """This process has committed the metadata."""
        with self._lock:
            self._newest[table] = (location, metadata)
            self._commits[table] += 1

    def commits(self) -> dict[Identifier, int]:
        """How many commits this process has made to each table."""
        with self._lock:
            return dict(self._commits)

    def forget(self, table: Identifier) -> None:
        with self._lock:
            self._commits.pop(table, None)
            _, metadata = self._newest.pop(table, (None, None))
            if metadata is not None:
                self._rendered.pop(metadata.table_uuid, None)

    def render(self, metadata: TableMetadata) -> str:
        """The metadata as its file has it; snapshots that were rendered before are not rendered again."""
        with self._lock:
            known = self._rendered.get(metadata.table_uuid, {})
        rendered: dict[int, tuple[Snapshot, str]] = {}
        for snapshot in metadata.snapshots:
            last = known.get(snapshot.snapshot_id)
            if last is None or last[0] is not snapshot:
                last = (snapshot, snapshot.model_dump_json(exclude_none=True))
            rendered[snapshot.snapshot_id] = last
        with self._lock:
            self._rendered[metadata.table_uuid] = rendered
        rest = metadata.model_copy(update={"snapshots": []}).model_dump_json(exclude_none=True)
        before, marker, after = rest.partition('"snapshots":[]')  # quotes in a JSON string are escaped: it is the key
        assert marker
        return f'{before}"snapshots":[{",".join(text for _, text in rendered.values())}]{after}'


def read_metadata(location: str, files: FileIO, known: tuple[Snapshot, ...] | list[Snapshot] = ()) -> TableMetadata:
    """Parse a metadata file; a snapshot that equals one of `known` is that one."""
    with Compressor.get_compressor(location).stream_decompressor(files.new_input(location).open()) as stream:
        content = from_json(stream.read())
    if known and isinstance(content, dict) and isinstance(content.get("snapshots"), list):
        by_id = {each.snapshot_id: each for each in known}
        content["snapshots"] = [_known(each, by_id) for each in content["snapshots"]]
    return TableMetadataWrapper.model_validate(content).root


def _known(stored: Any, known: Mapping[int, Snapshot]) -> Any:
    """The known snapshot if it is the stored one. Another engine's expiry may have taken its parent's id away."""
    id = stored.get("snapshot-id") if isinstance(stored, dict) else None
    found = known.get(id) if isinstance(id, int) else None
    if found is None or found.manifest_list != stored.get("manifest-list"):
        return stored
    same = (stored.get("parent-snapshot-id"), stored.get("timestamp-ms"))
    return found if same == (found.parent_snapshot_id, found.timestamp_ms) else stored


def summary_count(snapshot: Snapshot | None, name: str) -> int:
    """A number in the summary of a snapshot; 0 if it has none, or is damaged there (the doctor says so)."""
    value = snapshot.summary[name] if snapshot is not None and snapshot.summary is not None else None
    return int(value) if value is not None and value.isascii() and value.isdigit() else 0


def apply_updates(
    base: TableMetadata, updates: tuple[TableUpdate, ...], base_location: str | None = None
) -> TableMetadata:
    """The metadata that follows from `base`; with `base_location`, its log of earlier versions names that file."""
    context = _TableMetadataUpdateContext()
    metadata = base
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    if context.has_changes():
        if base_location is not None:
            metadata = _update_table_metadata_log(metadata, base_location, base.last_updated_ms)
        if metadata.last_updated_ms == base.last_updated_ms:
            now = datetime_to_millis(datetime.now().astimezone())
            metadata = metadata.model_copy(update={"last_updated_ms": now})
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata


class SharingTransaction(Transaction):
    """A transaction that applies its updates when there are new ones, not at every look at the metadata."""

    _applied: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates, applied = self._table.metadata, self._updates, self._applied
        if applied is None or applied[0] is not base or applied[1] is not updates:
            self._applied = applied = (base, updates, apply_updates(base, updates))
        return applied[2]


class SharingTable(Table):
    """A table whose transactions share what they do not change."""

    def transaction(self) -> Transaction:
        return SharingTransaction(self)

    def manage_snapshots(self) -> ManageSnapshots:
        return ManageSnapshots(transaction=SharingTransaction(self, autocommit=True))
