"""A query's plan: engine, reason, and for each topic and view the files, columns, bytes and offsets that it reads.

`EXPLAIN` prints this very value, and the executors run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.schema import Schema

from headwater.catalog.topics import Topic
from headwater.catalog.views import Position, View
from headwater.errors import QueryFailed
from headwater.serving.agreement import Agreed, ScanNeeds, Unproven
from headwater.serving.filter_text import filter_text
from headwater.sql.statements import Engine
from headwater.sql.units import counted
from headwater.storage.changes import Changes
from headwater.storage.scan import FileScan
from headwater.types import Offsets, id_text

Route = Literal["metadata", "duckdb", "spark"]

_SKIPPED = {
    "partition": "partition values",
    "statistics": "min/max statistics",
    "null_counts": "null counts",
    "bloom_filter": "bloom filter",
}


@dataclass(frozen=True, slots=True)
class Mask:
    """Which rows of files count: those whose keys are among `values` (`among`), or those whose are not.

    Without keys, all rows have the same.
    """

    keys: tuple[str, ...]
    values: pa.Table = field(repr=False)
    among: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """The changes from snapshot `start` to `end`, of which some files came and some went."""

    start: int
    end: int
    changes: Changes


@dataclass(frozen=True, slots=True)
class Scan:
    """What a query reads of one stored table, which the SQL calls `name`: a snapshot's files, and of a topic the log's
    tail after it; a view has a position instead. Of the files, only rows that the mask lets through count.

    `at` are the columns that it is read with, where those are not the table's own. With `changed`, what is read is not
    the rows of the files but how they differ."""

    name: str
    of: Topic | View = field(repr=False)
    needs: ScanNeeds
    files: FileScan
    tail: Offsets | None
    tail_rows: pa.Table = field(repr=False)
    position: Position | None = None
    mask: Mask | None = None
    at: Schema | None = field(default=None, repr=False)
    changed: Changed | None = None

    @property
    def schema(self) -> Schema:
        return self.of.schema if self.at is None else self.at

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns read, in the table's order."""
        return tuple(column.name for column in self.schema.fields if column.name in self.needs.columns)

    @property
    def bytes(self) -> int:
        return self.files.bytes_of(self.schema, self.columns)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What will run, and why there."""

    text: str
    engine: Route
    reason: str
    scans: tuple[Scan, ...]
    agreed: Agreed | None = field(repr=False)

    @property
    def bytes(self) -> int:
        return sum(scan.bytes for scan in self.scans)


def choose_engine(
    asked: Engine, verdict: Agreed | Unproven, answerable: bool, bytes_to_read: int, max_bytes: int
) -> tuple[Route, str]:
    """Where a query runs, and why. `answerable`: the files' metadata alone can answer it."""
    if asked == "spark":
        return "spark", "asked for"
    if isinstance(verdict, Unproven):
        if asked == "duckdb":
            raise QueryFailed(
                "query cannot run on DuckDB",
                detail=f"It would not surely answer as Spark does: {verdict.reason}.",
                hint="Use engine auto or spark.",
            )
        return "spark", verdict.reason
    if answerable and asked == "auto":
        return "metadata", "counts and bounds in the table's metadata answer it"
    if asked == "duckdb":
        return "duckdb", "asked for"
    if bytes_to_read > max_bytes:
        return "spark", f"{_size(bytes_to_read)} to read are more than duckdb_max_bytes ({_size(max_bytes)})"
    return "duckdb", f"proven to agree with Spark, {_size(bytes_to_read)} to read"


def describe(plan: QueryPlan) -> dict[str, Any]:
    """The plan as plain data: `EXPLAIN` in JSON."""
    return {
        "engine": plan.engine,
        "reason": plan.reason,
        "bytes": plan.bytes,
        "scans": [_describe_scan(scan) for scan in plan.scans],
        "sql": plan.agreed.sql if plan.agreed is not None and plan.engine != "spark" else plan.text,
    }


def _describe_scan(scan: Scan) -> dict[str, Any]:
    files = scan.files
    return {
        **_describe_source(scan),
        "snapshot": id_text(files.snapshot_id),
        "files": len(files.files),
        "files_total": files.total,
        "skipped_by_partition": files.skipped_by_partition,
        "skipped_by_statistics": files.skipped_by_statistics,
        "skipped_by_null_counts": files.skipped_by_null_counts,
        "skipped_by_bloom_filter": files.skipped_by_bloom_filter,
        "rows": files.rows,
        "bytes": scan.bytes,
        "columns": list(scan.columns),
        "filter": filter_text(scan.needs.filter),
        "tail": None if scan.tail is None else [scan.tail.start, scan.tail.end],
        **_describe_changes(scan.changed),
    }


def _describe_source(scan: Scan) -> dict[str, Any]:
    if isinstance(scan.of, Topic) or scan.position is None:
        return {"topic": scan.of.name}
    sources = {source.name: id_text(snapshot) for source, snapshot in sorted(scan.position.snapshots.items())}
    return {"view": scan.of.name, "fold": scan.of.kind, "held": scan.tail_rows.num_rows, "sources": sources}


def _describe_changes(changed: Changed | None) -> dict[str, Any]:
    if changed is None:
        return {}
    came, went = changed.changes.added, changed.changes.removed
    between = {"from": id_text(changed.start), "to": id_text(changed.end)}
    return {"changes": {**between, "files_added": len(came), "files_removed": len(went)}}


def render(plan: Mapping[str, Any]) -> list[str]:
    """The described plan as lines of text: `EXPLAIN`."""
    lines = [f"engine: {plan['engine']} ({plan['reason']})"]
    for scan in plan["scans"]:
        lines += _render_scan(scan)
    lines.append("sql: " + " ".join(plan["sql"].split()))
    return lines


def _render_scan(scan: Mapping[str, Any]) -> list[str]:
    skipped = [
        f"{scan[f'skipped_by_{by}']} skipped by {label}" for by, label in _SKIPPED.items() if scan[f"skipped_by_{by}"]
    ]
    noun = "state file" if scan.get("fold") == "states" else "file"
    kept = ", ".join([f"{scan['files']} of {counted(scan['files_total'], noun)}", *skipped])
    snapshot = "no snapshot yet" if scan["snapshot"] is None else f"snapshot {scan['snapshot']}"
    if changes := scan.get("changes"):
        snapshot = f"changes from snapshot {changes['from']} to snapshot {changes['to']}"
        kept = f"{changes['files_added']} came, {changes['files_removed']} went"
    return [
        f"scan {scan['topic']}: {snapshot}" if "topic" in scan else f"scan {scan['view']}: view, {snapshot}{_of(scan)}",
        f"  files: {kept}; {counted(scan['rows'], 'row')}, {_size(scan['bytes'])} in the columns read",
        f"  columns: {', '.join(scan['columns']) or 'none'}",
        f"  filter: {scan['filter']}",
        f"  tail: {_tail(scan)}" if "topic" in scan else f"  fold: {_fold(scan)}",
    ]


def _fold(scan: Mapping[str, Any]) -> str:
    held = f"; {counted(scan['held'], 'row')} of groups that changed since are held in memory" if scan["held"] else ""
    return f"{scan['fold']}{held}"


def _tail(scan: Mapping[str, Any]) -> str:
    if scan["tail"] is None:
        return "off"
    start, end = scan["tail"]
    return f"offsets [{start}, {end}), {counted(end - start, 'row')} from the log"


def _of(scan: Mapping[str, Any]) -> str:
    """What the snapshot of a view stands for."""
    at = [f"{source}@{'nothing' if snapshot is None else snapshot}" for source, snapshot in scan["sources"].items()]
    return f" of {', '.join(at)}" if at else ""


def _size(number: int) -> str:
    value, unit = float(number), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
