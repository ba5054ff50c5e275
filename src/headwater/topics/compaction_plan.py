"""Which files of a topic are worth rewriting, from its metadata alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import PrimitiveType

from headwater.catalog.topics import Topic
from headwater.sql.units import counted
from headwater.storage.changes import between
from headwater.storage.layout import layout_of
from headwater.storage.maintenance.effect import CompactionPlan, Wish, predict
from headwater.storage.maintenance.policy import Group, Rules, Seen, order_mark, plan_groups, run_of
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.writer import local_path
from headwater.types import OFFSET, TIMESTAMP


def plan_compaction(
    topic: Topic,
    cache: ManifestCache,
    *,
    now: float,
    full: bool = False,
    asked: bool = False,
    damaged: Collection[str] = (),
) -> CompactionPlan:
    """What is worth rewriting at `now`; nothing but metadata is read.

    `asked` is an explicit wish: all files count as cold. `full` brings all files into the current layout. Files that
    are known to be `damaged`, by their paths, are passed over.
    """
    layout, options = layout_of(topic), topic.definition.options
    sorting = "zorder" if layout.clustering else "sort" if layout.ordering else None
    cold_before = now - options.compact_after
    rules = Rules(layout.target_bytes, topic.table.spec().spec_id, sorting, cold_before, asked, full)  # type: ignore[arg-type]
    every = plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), cache).files
    bad = {file.file_path for file in every if damaged and str(local_path(file.file_path)) in damaged}
    files = [file for file in every if file.file_path not in bad]
    groups = plan_groups(list(_seen(topic, files, _changed(topic.table, cold_before, cache))), rules)
    effect, wish = predict(groups, topic.table.metadata), Wish(now, full, asked)
    reason = _reason(groups, every) + (f", {counted(len(bad), 'damaged file')} passed over" if bad else "")
    paths = tuple(sorted(str(local_path(path)) for path in bad))
    return CompactionPlan(topic.name, topic.id, groups, reason, effect, wish, paths)


def _reason(groups: Sequence[Group], files: Sequence[DataFile]) -> str:
    if not groups:
        return f"none of {len(files)} files is worth rewriting"
    by_kind: dict[str, int] = defaultdict(int)
    for group in groups:
        by_kind[group.kind] += len(group.files)
    words = {"pack": "small", "sort": "cold and not sorted", "zorder": "cold and not clustered", "full": "rewritten"}
    return ", ".join(f"{count} of {len(files)} files are {words[kind]}" for kind, count in by_kind.items())


def _changed(table: Table, since: float, cache: ManifestCache) -> dict[str, float]:
    """When files came that a statement rewrote lately; the records in them are older."""
    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    found: dict[str, float] = {}
    for snapshot in table.metadata.snapshots:
        at = snapshot.timestamp_ms / 1000
        rewrote = snapshot.summary is not None and snapshot.summary.operation is Operation.OVERWRITE
        if rewrote and at >= since and snapshot.parent_snapshot_id in known:
            changes = between(table, snapshot.parent_snapshot_id, snapshot.snapshot_id, cache)
            found |= {file.file_path: at for file in changes.added}
    return found


def _seen(topic: Topic, files: Sequence[DataFile], changed: dict[str, float]) -> Iterator[Seen]:
    schema, layout = topic.schema, layout_of(topic)
    mark = order_mark(layout, schema)
    first_key = (*(key.column for key in layout.ordering), *layout.clustering, None)[0]
    head = topic.table.metadata.current_snapshot()
    unknown = head.timestamp_ms * 1000 if head is not None else 0
    for file in files:
        if file.file_format != FileFormat.PARQUET:
            continue  # another tool's; it can be read, but not by us
        newest = _bound(file.upper_bounds, schema, TIMESTAMP)
        run, other = run_of(file.file_path, mark)
        yield Seen(
            file,
            file.spec_id,
            tuple(file.partition[place] for place in range(len(file.partition))),
            file.file_size_in_bytes,
            file.record_count,
            max((unknown if newest is None else newest) / 1e6, changed.get(file.file_path, -math.inf)),
            _bound(file.lower_bounds, schema, OFFSET) or 0,
            _bound(file.lower_bounds, schema, first_key) if first_key is not None else None,
            run,
            layout.sort_order_id is not None and file.sort_order_id == layout.sort_order_id,
            other or file.sort_order_id not in (None, 0, layout.sort_order_id),
        )


def _bound(bounds: dict[int, bytes] | None, schema: Schema, column: str) -> Any:
    field = schema.find_field(column)
    found = (bounds or {}).get(field.field_id)
    if found is None or not isinstance(field.field_type, PrimitiveType):
        return None
    return from_bytes(field.field_type, found)
