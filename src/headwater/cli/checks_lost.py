"""The doctor's view of a topic's damaged files: which records each holds, and where else in the lake they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from headwater.catalog.definitions import P_OPTION
from headwater.cli.checks import Check, Repair
from headwater.cli.checks_files import Contents
from headwater.cli.checks_offsets import WINDOW, file_bounds, known_gaps, log_row
from headwater.cli.screen import counted
from headwater.config import LakePaths, Settings
from headwater.errors import Corrupt
from headwater.state.sqlite import connect
from headwater.storage.checksums import verify_file
from headwater.storage.writer import local_path
from headwater.types import OFFSET, Offsets

MOST = 20
"""Damaged files of a topic that are looked at one by one."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Held:
    """The offsets of a damaged file's records, as far as they are known: `exact`, or some of these; None if the file
    may hold too many to search for."""

    offsets: np.ndarray | None = field(repr=False)
    exact: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """A past state with undamaged files that have some of the offsets; `same` if no row was changed since."""

    snapshot: Snapshot
    files: tuple[DataFile, ...] = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    same: bool


def check_lost(
    name: str, table: StaticTable, contents: Contents, paths: LakePaths, settings: Settings
) -> Iterator[Check]:
    """For each damaged file of the current state: its records, and what can be done. All files were read before."""
    current = contents.of(table.current_snapshot())
    damaged = [file for path, file in current.items() if path in contents.damaged]
    search = _Search(name, table, contents, paths, settings)
    for file in damaged[:MOST]:
        yield search.check(file)
    if len(damaged) > MOST:
        message = f"{len(damaged) - MOST} more damaged files were not searched"
        yield Check(f"file of {name}", "fail", message, "Repair the others, and run the check again.")


class _Search:
    """Looks for the records of one topic's damaged files."""

    def __init__(self, name: str, table: StaticTable, contents: Contents, paths: LakePaths, settings: Settings) -> None:
        self._name = name
        self._table = table
        self._contents = contents
        self._paths = paths
        self._settings = settings
        self._current = contents.of(table.current_snapshot())
        self._known: dict[str, np.ndarray] = {}

    def check(self, file: DataFile) -> Check:
        held = self._held(file)
        low, high = file_bounds(file, self._table)
        records = counted(file.record_count, "record")
        if held.offsets is not None and held.exact:
            which = f"{records}, offsets {_ranges(held.offsets)}"
        else:
            which = f"{records} with offsets from {low} to {high}"
        said = f"{self._contents.damaged[file.file_path].rstrip('.')}; it holds {which}"
        action, repair = self._advice(file, held)
        return Check(f"file of {self._name}", "fail", said, action, repair)

    # -- what it holds ----------------------------------------------------------------------------------------------

    def _held(self, file: DataFile) -> Held:
        own = _own_offsets(file)
        if own is not None:
            return Held(np.unique(own), exact=True)
        low, high = file_bounds(file, self._table)
        if high - low >= WINDOW:
            return Held(None, exact=False)
        free = np.ones(high - low + 1, dtype=bool)
        for gap in known_gaps(self._table):
            free[max(0, gap.start - low) : max(0, gap.end - low)] = False
        for other in self._current.values():
            if other.file_path not in self._contents.damaged:
                free[self._within(other, low, high) - low] = False
        offsets = np.flatnonzero(free) + low
        return Held(offsets, exact=len(offsets) == file.record_count)

    def _within(self, file: DataFile, low: int, high: int) -> np.ndarray:
        """The offsets of an undamaged file that are between the two."""
        first, last = file_bounds(file, self._table)
        if last < low or first > high:
            return np.array([], np.int64)
        if file.file_path not in self._known:
            self._known[file.file_path] = _offsets(file)
        offsets = self._known[file.file_path]
        return offsets[(offsets >= low) & (offsets <= high)]

    # -- where else it is -------------------------------------------------------------------------------------------

    def _advice(self, file: DataFile, held: Held) -> tuple[str, Repair | None]:
        backup = "Restore the file from a backup"
        copy = self._copy(file, held.offsets) if held.offsets is not None else None
        if copy is not None and copy.same and len(copy.offsets) == file.record_count and self._is_alone(file, held):
            what = f"{counted(file.record_count, 'record')} of {local_path(file.file_path).name}"
            repair = Repair(
                f"write {what} again from version {copy.snapshot.snapshot_id} of topic {self._name}",
                partial(self._restore, file, copy),
            )
            kept = f"Nothing is lost: version {copy.snapshot.snapshot_id} has all of them in undamaged files."
            return f"{kept} Run `headwater doctor --deep --repair`.", repair
        parts = [self._log(held), self._past(copy, held)]
        known = " ".join(part for part in parts if part)
        return f"{backup}. {known or 'Nothing else in the lake has these records.'}", None

    def _is_alone(self, file: DataFile, held: Held) -> bool:
        """Whether no other damaged file may hold what was found."""
        low, high = file_bounds(file, self._table)
        others = [each for each in self._current.values() if each.file_path in self._contents.damaged]
        spans = [file_bounds(each, self._table) for each in others if each.file_path != file.file_path]
        return held.exact or all(last < low or first > high for first, last in spans)

    def _copy(self, file: DataFile, wanted: np.ndarray) -> Copy | None:
        """The newest past state that has all of the offsets in undamaged files, or the one that has most of them."""
        line = list(ancestors_of(self._table.current_snapshot(), self._table.metadata))
        best: Copy | None = None
        same = True
        low, high = file_bounds(file, self._table)
        for child, snapshot in pairwise(line):
            same = same and _keeps_rows(child)
            files = [each for path, each in self._contents.of(snapshot).items() if self._is_sound_copy(path)]
            found = [(each, np.intersect1d(self._within(each, low, high), wanted)) for each in files]
            holding = tuple(each for each, some in found if len(some))
            offsets = np.unique(np.concatenate([wanted[:0], *(some for _, some in found)]))
            if len(offsets) > (0 if best is None else len(best.offsets)):
                best = Copy(snapshot, holding, offsets, same)
            if best is not None and len(best.offsets) >= file.record_count:
                return best
        return best

    def _is_sound_copy(self, path: str) -> bool:
        return path not in self._current and path not in self._contents.damaged

    def _past(self, copy: Copy | None, held: Held) -> str:
        if copy is None:
            return ""
        count = counted(len(copy.offsets), "record")
        changed = "" if copy.same else ", before rows of the topic were changed"
        state = f"{self._name} VERSION AS OF {copy.snapshot.snapshot_id}"
        query = f"SELECT * FROM {state} WHERE {OFFSET} BETWEEN {copy.offsets[0]} AND {copy.offsets[-1]}"  # noqa: S608
        lost = ""
        if held.offsets is not None and held.exact and len(rest := np.setdiff1d(held.offsets, copy.offsets)):
            lost = f" No other state has the offsets {_ranges(rest)}."
        return f"A past state has {count} of it{changed}: `{query}`.{lost}"

    def _log(self, held: Held) -> str:
        if self._table.metadata.properties.get(P_OPTION + "log") == "kafka":
            return "Its log is in Kafka, which may still have them."
        if held.offsets is None or not len(held.offsets):
            return ""
        ranges = [each for each in self._logged() if np.any((held.offsets >= each.start) & (held.offsets < each.end))]
        if not ranges:
            return ""
        listed = ", ".join(map(str, ranges[:_SHOWN]))
        keep = f"keep a copy of {self._paths.state.name} before anything else runs"
        return f"The log still has the offsets {listed}: {keep}."

    def _logged(self) -> list[Offsets]:
        try:
            with closing(connect(self._paths.state, self._settings.busy_timeout, read_only=True)) as db:
                row = log_row(db, self._table)
                if row is None:
                    return []
                found = db.execute("SELECT first_offset, rows FROM log_entries WHERE topic = ? ORDER BY 1", (row[0],))
                return [Offsets(first, first + rows) for first, rows in found]
        except sqlite3.Error:  # the checks of the log report it
            return []

    def _restore(self, file: DataFile, copy: Copy) -> None:
        from headwater.catalog.iceberg import Tables
        from headwater.catalog.topics import Topics
        from headwater.topics.restore import restore

        place = (self._paths.catalog, self._paths.warehouse, self._settings.busy_timeout)
        with closing(Tables(*place)) as tables:
            id = str(self._table.metadata.table_uuid)
            restore(Topics(tables), self._name, id, file, copy.files, copy.offsets)


def _keeps_rows(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation in (Operation.APPEND, Operation.REPLACE)


def _own_offsets(file: DataFile) -> np.ndarray | None:
    """The offsets that a damaged file holds, if that column of it is as it was written."""
    path = local_path(file.file_path)
    try:
        if path.stat().st_size == file.file_size_in_bytes and verify_file(path, {OFFSET}, file.record_count):
            return _offsets(file)
    except (Corrupt, OSError, pa.ArrowException):
        pass
    return None


def _offsets(file: DataFile) -> np.ndarray:
    try:
        read = pq.ParquetFile(local_path(file.file_path)).read(columns=[OFFSET])
    except (pa.ArrowException, OSError):  # gone since it was verified
        return np.array([], np.int64)
    return np.asarray(read.column(OFFSET).to_numpy() if OFFSET in read.column_names else [], np.int64)


def _ranges(offsets: Sequence[int] | np.ndarray) -> str:
    """The offsets as ranges, the first few of them."""
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    parts = [Offsets(int(part[0]), int(part[-1]) + 1) for part in np.split(np.asarray(offsets), cuts) if len(part)]
    more = f" and {len(parts) - _SHOWN} more ranges" if len(parts) > _SHOWN else ""
    return ", ".join(map(str, parts[:_SHOWN])) + more
