"""A view's first contents, or those of one that replaces another: computed beside, and swapped in by one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.types import NestedField
from pyspark.sql import SparkSession

from headwater.catalog.iceberg import Tables, named_errors
from headwater.catalog.views import S_METHOD, S_POSITION, S_SIGNED, Position, View, view_properties
from headwater.errors import StaleCommit, ViewExists
from headwater.observability.failpoints import failpoint
from headwater.sql.schema_text import parse_type
from headwater.storage.commit import Change, commit
from headwater.storage.layout import view_layout
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.snapshot import ExactFiles
from headwater.storage.write_spark import write_frame
from headwater.storage.writer import Target
from headwater.types import VIEWS, TableName
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
    schema = table_schema(defined, 0 if old is None else old.table.metadata.last_column_id)
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
            snapshot_id = _create(tables.catalog, name, schema, location, properties, files, position)
        else:
            snapshot_id = _replace(tables, old, schema, properties, files, position, cache)
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


def _create(
    catalog: Catalog,
    name: TableName,
    schema: Schema,
    location: str,
    properties: dict[str, str],
    files: list[DataFile],
    position: Position,
) -> int:
    with named_errors():
        catalog.create_namespace_if_not_exists(VIEWS)
        transaction = catalog.create_table_transaction(
            name.identifier, schema, location=location, properties=properties
        )
        snapshot_id = transaction.table_metadata.new_snapshot_id()
        ExactFiles(transaction, files, (), "append", _summary(position), snapshot_id).commit()
        try:
            transaction.commit_transaction()
        except TableAlreadyExistsError:
            raise ViewExists(f'materialized view "{name.name}" already exists') from None
    return snapshot_id


def _replace(
    tables: Tables,
    old: View,
    schema: Schema,
    properties: dict[str, str],
    files: list[DataFile],
    position: Position,
    cache: ManifestCache,
) -> int:
    def check(table: Table) -> None:
        if table.metadata.current_snapshot_id != old.snapshot_id or str(table.metadata.table_uuid) != old.id:
            raise StaleCommit(
                f'materialized view "{old.name}" changed while its successor was built', hint="Run the statement again."
            )

    removed = plan_scan(old.table, old.snapshot_id, AlwaysTrue(), cache).files
    change = Change(files, removed, "overwrite", _summary(position), properties, schema)
    return commit(lambda: tables.load_for_commit(old.table_name), change, check).snapshot_id


def _summary(position: Position) -> dict[str, str]:
    return {S_POSITION: position.to_json(), S_METHOD: METHOD, S_SIGNED: "false"}


def table_schema(defined: Defined, last_id: int) -> Schema:
    """The Iceberg schema of a view's table, with field ids above `last_id`."""
    fields = [
        NestedField(number, name, parse_type(_stored(of)), required=False)
        for number, (name, of) in enumerate(defined.columns, start=1)
    ]
    numbers = iter(range(last_id + 1, 2**31))
    return assign_fresh_schema_ids(Schema(*fields), next_id=lambda: next(numbers))


def _stored(of: str) -> str:
    """The type as Iceberg has it: it lacks the small integers."""
    return {"tinyint": "int", "smallint": "int", "void": "string"}.get(of, of)
