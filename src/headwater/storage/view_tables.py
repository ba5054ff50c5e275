"""The table behind a view: made with its first contents, or given those of another query, by one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.update import RemovePropertiesUpdate
from pyiceberg.types import IcebergType, NestedField

from headwater.catalog.iceberg import Tables, named_errors
from headwater.catalog.progress import P_STREAM
from headwater.catalog.views import View
from headwater.errors import StaleCommit, ViewExists
from headwater.sql.schema_text import parse_type
from headwater.storage.commit import Change, commit, require_files
from headwater.storage.layout import view_layout
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.snapshot import ExactFiles
from headwater.storage.writer import Target
from headwater.types import VIEWS, TableName


def create_view_table(
    catalog: Catalog,
    name: TableName,
    schema: Schema,
    location: str,
    properties: Mapping[str, str],
    files: Sequence[DataFile],
    summary: Mapping[str, str],
) -> int:
    """Make the table with these files as its first snapshot; ViewExists if the name is taken."""
    require_files(name.name, files)
    with named_errors():
        catalog.create_namespace_if_not_exists(VIEWS)
        transaction = catalog.create_table_transaction(
            name.identifier, schema, location=location, properties=dict(properties)
        )
        snapshot_id = transaction.table_metadata.new_snapshot_id()
        ExactFiles(transaction, files, (), "append", dict(summary), snapshot_id).commit()
        try:
            transaction.commit_transaction()
        except (TableAlreadyExistsError, CommitFailedException):  # a creation requires one thing: that there is none
            raise ViewExists(f'materialized view "{name.name}" already exists') from None
    return snapshot_id


def replace_view_table(
    tables: Tables,
    old: View,
    schema: Schema,
    properties: Mapping[str, str],
    files: Sequence[DataFile],
    summary: Mapping[str, str],
    cache: ManifestCache,
) -> int:
    """Let files and columns take the place of all that the view has; StaleCommit if it moved since it was loaded."""

    def check(table: Table) -> None:
        if table.metadata.current_snapshot_id != old.snapshot_id or str(table.metadata.table_uuid) != old.id:
            raise StaleCommit(
                f'materialized view "{old.name}" changed while its successor was built', hint="Run the statement again."
            )

    removed = plan_scan(old.table, old.snapshot_id, AlwaysTrue(), cache).files
    # A view that a stream kept is kept in another way by a successor that does not say how far its stream is.
    gone = [P_STREAM] if P_STREAM in old.table.metadata.properties and P_STREAM not in properties else []
    updates = (RemovePropertiesUpdate(removals=gone),) if gone else ()
    change = Change(files, removed, "overwrite", summary, properties, schema, updates)
    return commit(lambda: tables.load_for_commit(old.table_name), change, check).snapshot_id


def view_target(view: View) -> Target:
    """Where and how the view's files are written."""
    return Target(
        view.name,
        view.table.location(),
        view.table.schema(),
        view.table.spec(),
        view_layout(view.definition.options),
        dict(view.table.metadata.properties),
    )


def view_table_schema(columns: Iterable[tuple[str, str]], last_id: int) -> Schema:
    """The Iceberg schema of a view's table of columns with Spark's types, with field ids above `last_id`."""
    fields = [
        NestedField(number, name, stored_type(of), required=False) for number, (name, of) in enumerate(columns, start=1)
    ]
    numbers = iter(range(last_id + 1, 2**31))
    return assign_fresh_schema_ids(Schema(*fields), next_id=lambda: next(numbers))


def stored_type(of: str) -> IcebergType:
    """Spark's type as Iceberg stores it, which lacks the small integers."""
    return parse_type({"tinyint": "int", "smallint": "int", "void": "string"}.get(of, of))
