"""PyIceberg's catalog, with times in a table's metadata that never go back.

A machine's clock may: it is corrected, or a machine is restored. Iceberg's Java library refuses metadata whose logs go
back by more than a minute, so that Spark could not read the table any more.
"""

from __future__ import annotations

from typing import TypeVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

Dated = TypeVar("Dated", Snapshot, SnapshotLogEntry)


class ForwardCatalog(SqlCatalog):
    """A catalog whose every commit is dated no earlier than the one before it."""

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        if current_table is not None:
            staged.metadata = not_before(staged.metadata, current_table.metadata)
        return staged


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
