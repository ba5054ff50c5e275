"""Folding what refreshes appended: when it pays, and how it is done without moving the view's position.

A view's table holds base rows, whole groups each, and rows that refreshes appended since. A read takes base rows that
no refresh touched as they are, and has to look up and merge the others, so its cost grows with the appended rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from headwater.catalog.iceberg import Tables
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import P_POSITION, P_SIGNED, S_METHOD, S_POSITION, S_SIGNED, View, Views
from headwater.errors import Conflict, StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.spark.gate_spark import isolated
from headwater.storage.commit import Change, commit
from headwater.storage.read_spark import read_files
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.view_tables import view_target
from headwater.storage.write_spark import write_frame
from headwater.views.change import VIEW
from headwater.views.compact_policy import Files, appended
from headwater.views.fold import compacted
from headwater.views.refresh import ONE_FILE, remove_files

ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    view: str
    files_before: int
    files_after: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    snapshot_id: int


def run_compaction(
    view: View, views: Views, session: SparkSession, cache: ManifestCache, *, whole: bool = True
) -> Compacted:
    """Fold all rows of the view's table into base rows, or only those that refreshes appended into fewer."""
    started = time.perf_counter()
    every = plan_scan(view.table, view.snapshot_id, AlwaysTrue(), cache).files
    chosen: Sequence[DataFile] = every if whole else appended(view, every).files
    files = _fold(view, chosen, session, whole=whole)
    failpoint("compact.written")
    try:
        snapshot_id = _swap(view, views.tables, files, chosen, whole=whole)
    except (StaleCommit, Conflict):
        remove_files(files)
        raise
    failpoint("compact.committed")
    before, after = Files.of(chosen), Files.of(files)
    return Compacted(
        view.name,
        len(chosen),
        len(files),
        before.rows,
        after.rows,
        before.bytes,
        after.bytes,
        time.perf_counter() - started,
        snapshot_id,
    )


def _fold(view: View, chosen: Sequence[DataFile], session: SparkSession, *, whole: bool) -> list[DataFile]:
    layout, own = Layout.from_json(view.layout), isolated(session)
    with read_files(own, view.table_name, chosen) as rows:
        rows.createOrReplaceTempView(VIEW)
        frame = own.sql(compacted(layout, VIEW, signed=view.signed, base=whole))
        if sum(file.record_count for file in chosen) <= ONE_FILE:
            frame = frame.coalesce(1)
        if layout.keys:
            frame = frame.sortWithinPartitions(*[f"`{key}`" for key in layout.keys])
        return write_frame(frame, view_target(view))


def _swap(view: View, tables: Tables, files: Sequence[DataFile], removed: Sequence[DataFile], *, whole: bool) -> int:
    """Put the folded files in place of the others.

    Rows that a refresh appended meanwhile stay beside them, and its position counts. Only where rows take others back
    it must not have: what it took back is no longer there in the form in which it was taken back.
    """
    signed = view.signed and not whole
    for _ in range(ATTEMPTS):
        base = tables.load_for_commit(view.table_name)
        properties = base.metadata.properties
        moved = base.metadata.current_snapshot_id != view.snapshot_id
        if str(base.metadata.table_uuid) != view.id or (moved and (view.signed or properties[P_SIGNED] == "true")):
            raise StaleCommit(
                f'materialized view "{view.name}" was refreshed while it was compacted', hint="Try again."
            )
        expected = base.metadata.current_snapshot_id

        def check(table: Table, expected: int | None = expected) -> None:
            if table.metadata.current_snapshot_id != expected:
                raise _too_late(view)

        now_signed = str(signed).lower()
        summary = {S_POSITION: properties[P_POSITION], S_METHOD: "compact", S_SIGNED: now_signed}
        change = Change(files, removed, "replace", summary, {P_SIGNED: now_signed})
        try:
            return commit(lambda: tables.load_for_commit(view.table_name), change, check).snapshot_id
        except StaleCommit:
            continue  # look again: an append in between does no harm
    raise Conflict(f'materialized view "{view.name}" was refreshed all the time while it was compacted')


def _too_late(view: View) -> StaleCommit:
    return StaleCommit(f'materialized view "{view.name}" was refreshed while it was compacted', hint="Try again.")
