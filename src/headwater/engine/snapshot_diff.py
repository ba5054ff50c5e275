"""DIFF TOPIC: how two states of a topic differ, in numbers: rows, files, columns, partitioning and ordering."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from headwater.catalog.definitions import topic_definition
from headwater.catalog.topics import Topic
from headwater.serving.change_rows import CHANGE, DELETED, INSERTED, TO, TopicChanges, topic_changes
from headwater.serving.result import Result
from headwater.sql.moments import AsOf
from headwater.sql.schema_text import render_type
from headwater.sql.snapshot_statements import changes_query
from headwater.sql.statements import Query
from headwater.storage.scan import ManifestCache
from headwater.storage.time_travel import columns_at
from headwater.types import TopicDefinition, id_text

_NESTED: dict[type[IcebergType], str] = {StructType: "STRUCT", ListType: "ARRAY", MapType: "MAP"}


def diff_topic(
    topic: Topic, start: AsOf, end: AsOf, cache: ManifestCache, query: Callable[[Query], Result]
) -> dict[str, Any]:
    """The difference as plain data; rows are read only if some went."""
    found = topic_changes(topic, start, end, cache)
    counts = _counts(found, query)
    before, after = (topic.table.metadata.snapshot_by_id(each) for each in (found.start, found.end))
    assert before is not None and after is not None
    changes = found.changes
    return {
        "topic": topic.name,
        "from": id_text(found.start),
        "to": id_text(found.end),
        "inserted": counts.get(INSERTED, 0),
        "deleted": counts.get(DELETED, 0),
        "updated": counts.get(TO, 0),
        "files_added": len(changes.added),
        "files_removed": len(changes.removed),
        "bytes_added": sum(file.file_size_in_bytes for file in changes.added),
        "bytes_removed": sum(file.file_size_in_bytes for file in changes.removed),
        "schema_changes": list(schema_changes(columns_at(topic.table, before), columns_at(topic.table, after))),
        "partitioning": _moved(*(_partitioning(topic, each, cache) for each in (before, after))),
        "ordering": _moved(*(_ordering(topic, each, cache) for each in (before, after))),
    }


def _counts(found: TopicChanges, query: Callable[[Query], Result]) -> dict[str, int]:
    if found.changes.append_only:
        return {INSERTED: found.changes.rows}
    rows = changes_query(found.topic.name, AsOf(version=found.start), AsOf(version=found.end))
    counted = Query(f"SELECT {CHANGE}, count(*) AS n FROM ({rows.text}) GROUP BY {CHANGE}")  # noqa: S608
    return {row[CHANGE]: row["n"] for row in query(counted).rows()}


def schema_changes(before: Schema, after: Schema) -> Iterator[str]:
    """What happened to columns and their fields, told by field id; one line each."""
    old, new = _fields(before), _fields(after)
    for field_id, (name, of, required) in new.items():
        if field_id not in old:
            yield f"added {name} {of}"
            continue
        was, was_of, was_required = old[field_id]
        if was != name:
            yield f"renamed {was} to {name}"
        if was_of != of:
            yield f"changed {name} from {was_of} to {of}"
        if was_required != required:
            yield f"{name} is {'not null' if required else 'nullable'} now"
    yield from (f"dropped {name} {of}" for field_id, (name, of, _) in old.items() if field_id not in new)


def _fields(schema: Schema) -> dict[int, tuple[str, str, bool]]:
    """Fields by id: the full name, the type, and whether it is never null; of nested ones only the kind."""
    found = {}
    for field_id, name in sorted(schema._lazy_id_to_name.items()):
        field = schema.find_field(field_id)
        of = field.field_type
        found[field_id] = (name, _NESTED.get(type(of)) or render_type(of), field.required)
    return found


# Snapshots do not say how the table was to be laid out when they were made. Their newest files do.


def _partitioning(topic: Topic, snapshot: Snapshot, cache: ManifestCache) -> str | None:
    """How the newest of the snapshot's files are partitioned; None where it never changed."""
    specs = topic.table.metadata.specs()
    if len(specs) < 2:
        return None
    newest = max((each.partition_spec_id for each in cache.manifests(snapshot, topic.table.io)), default=0)
    found = _defined(topic, snapshot, specs[newest], UNSORTED_SORT_ORDER).partitioning
    return ", ".join(map(str, found)) or "none"


def _ordering(topic: Topic, snapshot: Snapshot, cache: ManifestCache) -> str | None:
    """How the newest of the snapshot's files are sorted; None where it never changed."""
    orders = {order.order_id: order for order in topic.table.metadata.sort_orders}
    if len(orders) < 2:
        return None
    io = topic.table.io
    files = (file for manifest in cache.manifests(snapshot, io) for file in cache.files(manifest, io))
    newest = max((file.sort_order_id or 0 for file in files), default=0)
    found = _defined(topic, snapshot, topic.table.spec(), orders.get(newest, UNSORTED_SORT_ORDER)).ordering
    return ", ".join(map(str, found)) or "none"


def _defined(topic: Topic, snapshot: Snapshot, spec: PartitionSpec, order: SortOrder) -> TopicDefinition:
    # Files may be sorted by a column that was dropped since they were written.
    needed = {field.source_id for field in order.fields}
    known = [columns_at(topic.table, snapshot), *reversed(topic.table.metadata.schemas)]
    columns = next((each for each in known if needed <= set(each.field_ids)), known[0])
    return topic_definition(topic.name, columns, spec, topic.table.metadata.properties, order)


def _moved(before: str | None, after: str | None) -> str | None:
    return None if before == after else f"{before} -> {after}"
