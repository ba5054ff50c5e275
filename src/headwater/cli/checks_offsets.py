"""The doctor's view of a topic's offsets: which records snapshots brought, and that every offset is there once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType

from headwater.catalog.definitions import P_OFFSET, P_OPTION
from headwater.cli.checks import Check, failed
from headwater.cli.screen import counted
from headwater.errors import HeadwaterError
from headwater.state.sqlite import connect
from headwater.storage.time_travel import line_of, offsets_of
from headwater.storage.time_travel_gaps import common, merged, read_gaps, without
from headwater.storage.writer import local_path
from headwater.topics.log import LogTopic
from headwater.topics.log_entries import check_dense, list_entries
from headwater.types import OFFSET, Offsets

WINDOW = 2**27
"""Offsets that are looked at together: so many bytes of memory."""
_BACKUP = "Restore catalog.db and the warehouse from the same backup."


def check_position(topic: str, table: StaticTable, state: Path, timeout: float) -> Check:
    """Whether table and log together hold every offset once: the log goes on where the table ends."""
    name, committed = f"offsets of {topic}", _position(table)
    if table.metadata.properties.get(P_OPTION + "log") == "kafka":
        return Check(name, "ok", f"committed up to {committed}, its log is in Kafka and was not looked at")
    with closing(connect(state, timeout, read_only=True)) as db:
        row = log_row(db, table)
        if row is None:
            return Check(name, "ok", f"committed up to {committed}, nothing in the log")
        row_id, end = row
        if end < committed:
            message = f"the log ends at {end}, the table at {committed}: new records would get offsets that exist"
            return Check(name, "fail", message, f"Restore {state.name} and catalog.db from the same backup.")
        try:
            check_dense(LogTopic("", topic, committed), list_entries(db, row_id, committed), committed, end)
        except HeadwaterError as error:
            return failed(name, error)
    return Check(
        name, "ok", f"committed up to {committed}, the log holds {counted(end - committed, 'record')} after it"
    )


def log_row(db: sqlite3.Connection, table: StaticTable) -> tuple[int, int] | None:
    row = db.execute(
        "SELECT id, next_offset FROM log_topics WHERE topic = ? AND NOT dropped", (str(table.metadata.table_uuid),)
    ).fetchone()
    return None if row is None else (int(row[0]), int(row[1]))


def check_ranges(topic: str, table: StaticTable) -> Check:
    """Whether the ranges of the current line of snapshots follow each other, up to the position, without overlap.

    What a rollback took away is named in a property; what expired snapshots brought is not told any more.
    """
    name = f"snapshots of {topic}"
    try:
        gaps = [gap.offsets for gap in read_gaps(table)]
    except HeadwaterError as error:
        return failed(name, error, _BACKUP)
    found = [found for each in line_of(table, table.metadata.current_snapshot_id) if (found := offsets_of(each))]
    position, wrong = _position(table), ""
    if twice := _overlap(found):
        wrong = f"offsets {twice} were brought by two snapshots"
    elif found and (missing := without([Offsets(min(found).start, max(position, min(found).start))], [*found, *gaps])):
        wrong = f"no snapshot brought the offsets {', '.join(map(str, merged(missing)))}"
    elif found and (end := max(each.end for each in found)) > position:
        wrong = f"snapshots go up to offset {end}, the position is {position}"
    if wrong:
        return Check(name, "fail", wrong, _BACKUP)
    explained = f", {counted(sum(map(len, gaps)), 'offset')} taken away by rollbacks" if gaps else ""
    return Check(name, "ok", f"{counted(len(found), 'range')} of offsets up to {position}, without gap{explained}")


def _overlap(ranges: Sequence[Offsets]) -> Offsets | None:
    at: Offsets | None = None
    for each in sorted(ranges):
        if at is not None and (both := common([at], [each])):
            return both[0]
        at = each if at is None or each.end > at.end else at
    return None


def check_rows(topic: str, table: StaticTable, files: Sequence[DataFile]) -> Check:
    """Whether every offset in the files is below the position, in none of the gaps, and there once. Reads them."""
    name, position = f"rows of {topic}", _position(table)
    bounds = {file.file_path: file_bounds(file, table) for file in files}
    for file in files:
        low, high = bounds[file.file_path]
        if low < 0 or high >= position:
            message = f"{local_path(file.file_path)} holds offsets from {low} to {high}, the position is {position}"
            return Check(name, "fail", message, _BACKUP)
    rows = 0
    for start in range(0, position, WINDOW):
        window = Offsets(start, min(position, start + WINDOW))
        chosen = [file for file in files if bounds[file.file_path][0] < window.end]
        chosen = [file for file in chosen if bounds[file.file_path][1] >= window.start]
        seen = np.zeros(len(window), dtype=bool)
        for path, offsets in _read(chosen, window):
            if wrong := _mark(seen, offsets, window):
                return Check(name, "fail", f"{path} {wrong}", _advice(topic))
            rows += len(offsets)
        for gap in common(known_gaps(table), [window]):
            if seen[gap.start - start : gap.end - start].any():
                message = f"records are there with offsets of {gap}, which a rollback took away"
                return Check(name, "fail", message, _advice(topic))
    return Check(name, "ok", f"{counted(rows, 'record')}, each offset once")


def known_gaps(table: StaticTable) -> list[Offsets]:
    """What rollbacks took away; nothing if the property cannot be read, which another check tells."""
    try:
        return [gap.offsets for gap in read_gaps(table)]
    except HeadwaterError:
        return []


def _advice(topic: str) -> str:
    return f"Compare past states with `DIFF TOPIC {topic}`, and roll back to the last good one, or restore a backup."


def file_bounds(file: DataFile, table: StaticTable) -> tuple[int, int]:
    """The least and the greatest offset that a file may hold, by its statistics."""
    id = table.schema().find_field(OFFSET).field_id
    low, high = ((bounds or {}).get(id) for bounds in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None:
        return 0, _position(table) - 1
    return int(from_bytes(LongType(), low)), int(from_bytes(LongType(), high))


def _read(files: Iterable[DataFile], window: Offsets) -> Iterator[tuple[Path, np.ndarray]]:
    for file in files:
        path = local_path(file.file_path)
        try:
            read = pq.ParquetFile(path).read(columns=[OFFSET])
        except (pa.ArrowException, OSError):  # told with the files
            continue
        offsets = read.column(OFFSET).to_numpy()
        yield path, offsets[(offsets >= window.start) & (offsets < window.end)]


def _mark(seen: np.ndarray, offsets: np.ndarray, window: Offsets) -> str | None:
    """Note the offsets as seen; what is wrong if one of them was already."""
    places = offsets - window.start
    unique, counts = np.unique(places, return_counts=True)
    again = unique[(counts > 1) | seen[unique]]
    seen[unique] = True
    return f"holds offset {int(again[0]) + window.start}, which is there twice" if len(again) else None


def _position(table: StaticTable) -> int:
    return int(table.metadata.properties.get(P_OFFSET, "0"))
