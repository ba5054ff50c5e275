"""A view's first contents, or those of one that replaces another: computed beside, and swapped in by one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyspark.sql import SparkSession

from headwater.catalog.iceberg import Tables
from headwater.catalog.views import S_METHOD, S_POSITION, S_SIGNED, Position, View, view_properties
from headwater.errors import StaleCommit, ViewExists
from headwater.observability.failpoints import failpoint
from headwater.storage.layout import view_layout
from headwater.storage.scan import ManifestCache
from headwater.storage.view_tables import create_view_table, replace_view_table, view_table_schema
from headwater.storage.write_spark import write_frame
from headwater.storage.writer import Target
from headwater.types import TableName
from headwater.views.define import Defined, properties_of
from headwater.views.plan import SourceRange, drafted
from headwater.views.refresh import Refreshed, Workspace, remove_files
from headwater.views.sources import Head

METHOD = "full"


def build(
    defined: Defined,
    old: View | None,
    heads: Mapping[TableName, Head],
    now: str,
    tables: Tables,
    new_location: Callable[[TableName], str],
    session: SparkSession,
    cache: ManifestCache,
) -> Refreshed:
    """Compute the view at `heads` and make it, or let it take the place of `old`; readers see all of it or nothing."""
    started = time.perf_counter()
    name = TableName.view(defined.definition.name)
    schema = view_table_schema(defined.columns, 0 if old is None else old.table.metadata.last_column_id)
    location = new_location(name) if old is None else old.table.location()
    ranges = tuple(SourceRange(heads[s.table], None, heads[s.table].snapshot_id, None) for s in defined.sources)
    position = Position({r.head.table_name: r.end for r in ranges}, {r.head.table_name: r.head.id for r in ranges}, now)
    layout = view_layout(defined.definition.options)
    into = Target(name.name, location, schema, UNPARTITIONED_PARTITION_SPEC, layout, {})
    with Workspace(session, {each.head.name: each for each in ranges}, cache) as space:
        change = drafted(defined, ranges, now)
        space.provide(change.reads)
        frame = space.run(change.sql)
        if defined.layout.keys:
            frame = frame.sortWithinPartitions(*[f"`{key}`" for key in defined.layout.keys])
        files = write_frame(frame, into)
        rows_read = space.rows_read
    failpoint("refresh.written")
    try:
        properties = view_properties(defined.definition, **properties_of(defined, position))  # type: ignore[arg-type]
        if old is None:
            snapshot_id = create_view_table(
                tables.catalog, name, schema, location, properties, files, _summary(position)
            )
        else:
            snapshot_id = replace_view_table(tables, old, schema, properties, files, _summary(position), cache)
    except (StaleCommit, ViewExists):
        remove_files(files)
        raise
    failpoint("refresh.committed")
    return Refreshed(
        name.name,
        METHOD,
        "it was created" if old is None else "it was replaced",
        ranges,
        rows_read,
        sum(file.record_count for file in files),
        len(files),
        sum(file.file_size_in_bytes for file in files),
        time.perf_counter() - started,
        snapshot_id,
    )


def _summary(position: Position) -> dict[str, str]:
    return {S_POSITION: position.to_json(), S_METHOD: METHOD, S_SIGNED: "false"}
