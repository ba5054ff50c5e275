"""Whether rows of a past snapshot may become a table's rows again, after its columns were altered."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headwater.catalog.evolve_fields import paths
from headwater.sql.alter_changes import dotted
from headwater.storage.scan import ManifestCache, live_manifests
from headwater.storage.time_travel import columns_at


def why_unfit(table: Table, past: Snapshot, cache: ManifestCache) -> str | None:
    """What keeps the past snapshot's rows from being the table's, as a sentence; None if nothing does."""
    if (column := _required_since(columns_at(table, past), table.schema())) is not None:
        return f'Column "{column}" is NOT NULL now and was not then.'
    for manifest in live_manifests(past, table, cache):
        for part in table.metadata.specs()[manifest.partition_spec_id].fields:
            if part.source_id not in table.schema().field_ids:
                return f'Its files are partitioned by a column that was dropped since ("{part.name}").'
    return None


def _required_since(then: Schema, now: Schema) -> str | None:
    """A field that must not be null now, and was not there or could be null then."""
    required = {field.field_id for _, field in paths(then.fields) if field.required}
    return next(
        (dotted(path) for path, field in paths(now.fields) if field.required and field.field_id not in required), None
    )
