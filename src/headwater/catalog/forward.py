"""PyIceberg's catalog, with times in a table's metadata that never go back, and without copies of it.

A machine's clock may: it is corrected, or a machine is restored. Iceberg's Java library refuses metadata whose logs go
back by more than a minute, so that Spark could not read the table any more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import Compressor
from pyiceberg.table import CommitTableResponse, StagedTable, Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from headwater.catalog.metadata import MetadataCache, SharingTable, apply_updates

Dated = TypeVar("Dated", Snapshot, SnapshotLogEntry)


class ForwardCatalog(SqlCatalog):
    """A catalog whose every commit is dated no earlier than the one before it."""

    def __init__(self, name: str, cache: MetadataCache, **properties: str) -> None:
        super().__init__(name, **properties)
        self._cache = cache

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if location is None:
            raise NoSuchTableError(f"Table without metadata: {orm_table.table_namespace}.{orm_table.table_name}")
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        metadata = self._cache.load(identifier, location, load_file_io(self.properties, location))
        return SharingTable(identifier, metadata, location, self._load_file_io(metadata.properties, location), self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        done = super().commit_table(table, requirements, updates)
        self._cache.committed(table.name(), done.metadata_location, done.metadata)
        return done

    def _write_metadata(self, metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:  # type: ignore[override]
        compress = Compressor.get_compressor(metadata_path).bytes_compressor()
        with io.new_output(metadata_path).create() as stream:
            stream.write(compress(self._cache.render(metadata).encode()))

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Delete the versions that left the log. Another commit that came in between may have done so."""
        if metadata.properties.get(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED) != "true":
            return
        kept = {each.metadata_file for each in metadata.metadata_log}
        for each in base.metadata_log:
            if each.metadata_file not in kept:
                with suppress(FileNotFoundError):
                    io.delete(each.metadata_file)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None:
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        base, base_location = current_table.metadata, current_table.metadata_location
        for requirement in requirements:
            requirement.validate(base)
        metadata = not_before(apply_updates(base, updates, base_location), base)
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location(self._parse_metadata_version(base_location) + 1)
        return StagedTable(
            table_identifier, metadata, location, self._load_file_io(metadata.properties, location), self
        )


def not_before(metadata: TableMetadata, base: TableMetadata) -> TableMetadata:
    """The metadata, with what is new in it dated no earlier than `base`."""
    least = base.last_updated_ms
    if metadata.last_updated_ms >= least:
        return metadata
    known = {each.snapshot_id for each in base.snapshots}
    logged = {(each.snapshot_id, each.timestamp_ms) for each in base.snapshot_log}
    snapshots = [each if each.snapshot_id in known else _dated(each, least) for each in metadata.snapshots]
    log = [
        each if (each.snapshot_id, each.timestamp_ms) in logged else _dated(each, least)
        for each in metadata.snapshot_log
    ]
    return metadata.model_copy(update={"last_updated_ms": least, "snapshots": snapshots, "snapshot_log": log})


def _dated(each: Dated, least: int) -> Dated:
    return each.model_copy(update={"timestamp_ms": max(each.timestamp_ms, least)})
