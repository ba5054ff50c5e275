"""A table's snapshots: which of them a name or a time means, and what is known of each.

From metadata alone. What moves a table between its snapshots is in `time_travel_rollback` and `time_travel_pick`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from headwater.catalog.definitions import S_FROM, S_TO
from headwater.catalog.metadata import summary_count
from headwater.catalog.views import S_METHOD
from headwater.errors import SnapshotGone
from headwater.sql.moments import AsOf, parse_moment
from headwater.types import RESERVED_REF, Offsets, id_text

NEAREST = 3

S_SOURCE = "source-snapshot-id"
"""Iceberg's own entry of a summary: the snapshot that was picked."""
S_PICKED_FROM = "headwater.picked-from"
S_PICKED_TO = "headwater.picked-to"
"""The offsets that a picked snapshot brought back: not those of an ingest, which follow each other."""
S_RESTORED = "headwater.restored-rows"
"""How many records of a damaged file were written anew."""

_MADE_BY = {
    S_SOURCE: "cherry-pick",
    S_FROM: "ingest",
    "headwater.deleted-rows": "delete",
    "headwater.updated-rows": "update",
    "headwater.retired-rows": "retention",
    "headwater.altered": "alter",
    S_RESTORED: "restore",
}
"""What made a snapshot, by the entry of its summary that only that maker writes; the first one that is there counts."""


@dataclass(frozen=True, slots=True)
class Named:
    """A table as an error speaks of it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


# -- which one is meant -----------------------------------------------------------------------------------------------


def find_snapshot(table: Table, at: AsOf, named: Named) -> Snapshot:
    """The snapshot that is meant; SnapshotGone if there is no such one."""
    if at.version is not None:
        return table.metadata.snapshot_by_id(at.version) or _gone(table, at.version, named)
    if at.ref is not None:
        return _referred(table, at.ref, named)
    if at.timestamp is not None:
        moment = parse_moment(at.timestamp)
        return _current_at(table, moment) or _too_old(table, moment, named)
    return table.metadata.current_snapshot() or _empty(named)


def _current_at(table: Table, moment: datetime) -> Snapshot | None:
    """What main was at a time; a rollback since then does not change the answer. None if that is not known any more."""
    latest = round(moment.timestamp() * 1000)
    entry = next((each for each in reversed(table.metadata.snapshot_log) if each.timestamp_ms <= latest), None)
    found = table.metadata.snapshot_by_id(entry.snapshot_id) if entry is not None else None
    return found if found is None or entry is table.metadata.snapshot_log[-1] else _still_at(table, found, latest)


def _still_at(table: Table, found: Snapshot, latest: int) -> Snapshot | None:
    """The snapshot, unless one that was made right after it has expired: that one may have been current by then."""
    later = {each.sequence_number or 0: each for each in table.metadata.snapshots}
    first = (found.sequence_number or 0) + 1
    for number in range(first, max(later) + 1):
        if number not in later:
            return None
        if later[number].timestamp_ms > latest:
            break
    return found


def _referred(table: Table, name: str, named: Named) -> Snapshot:
    ref = table.metadata.refs.get(name)
    found = table.metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None
    if found is not None:
        return found
    own = sorted(each for each in table.metadata.refs if not each.startswith(RESERVED_REF))
    near = get_close_matches(name, own, n=1)
    raise SnapshotGone(
        f'tag or branch "{name}" of {named} does not exist',
        detail=f"There are {', '.join(own)}." if own else "There is none yet.",
        hint=f'Did you mean "{near[0]}"?' if near else None,
    )


def _gone(table: Table, version: int, named: Named) -> Snapshot:
    newest = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True)[:NEAREST]
    told = ", ".join(map(_shown, newest))
    raise SnapshotGone(
        f"snapshot {version} of {named} does not exist",
        detail=f"It has expired, or never was. The newest are {told}." if told else "There is none yet.",
    )


def _too_old(table: Table, moment: datetime, named: Named) -> Snapshot:
    kept = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms)
    asked, known = f"{moment:%Y-%m-%d %H:%M:%S} UTC", table.metadata.snapshot_log
    if known and known[0].timestamp_ms <= moment.timestamp() * 1000:
        older = [each for each in kept if made_at(each) <= moment]
        raise SnapshotGone(
            f"snapshot that {named} had at {asked} has expired",
            detail=f"The last one before that is left is {_shown(older[-1])}." if older else None,
        )
    raise SnapshotGone(
        f"{named} has no snapshot as old as {asked}",
        detail=f"The oldest is {_shown(kept[0])}, the newest {_shown(kept[-1])}." if kept else "There is none yet.",
    )


def _empty(named: Named) -> Snapshot:
    raise SnapshotGone(f"{named} has no snapshot yet", hint="FLUSH commits what waits in its log.")


def _shown(snapshot: Snapshot) -> str:
    return f"{snapshot.snapshot_id} of {made_at(snapshot):%Y-%m-%d %H:%M:%S} UTC"


# -- what is known of them --------------------------------------------------------------------------------------------


def made_at(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def columns_at(table: Table, snapshot: Snapshot) -> Schema:
    """The columns that the table had when the snapshot was made; those of now where the metadata does not tell."""
    found = (each for each in table.metadata.schemas if each.schema_id == snapshot.schema_id)
    return next(found, table.schema())


def line_of(table: Table, snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors that have not expired, newest first."""
    found = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    return iter(ancestors_of(found, table.metadata))


def offsets_of(snapshot: Snapshot) -> Offsets | None:
    """The offsets whose records a snapshot brought, if it brought any: by an ingest, or picked from one."""
    for first, last in ((S_FROM, S_TO), (S_PICKED_FROM, S_PICKED_TO)):
        start, end = said(snapshot, first), said(snapshot, last)
        if start is not None and end is not None:
            return Offsets(int(start), int(end))
    return None


def said(snapshot: Snapshot, key: str) -> str | None:
    """An entry of the snapshot's summary."""
    return snapshot.summary[key] if snapshot.summary is not None else None


def maker_of(snapshot: Snapshot) -> str:
    """What made a snapshot, in a word: ingest, delete, update, compaction, refresh … or the engine that says so."""
    if (method := said(snapshot, S_METHOD)) is not None:
        return "compaction" if method == "compact" else f"refresh ({method})"
    for key, maker in _MADE_BY.items():
        if said(snapshot, key) is not None:
            return maker
    if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
        return "compaction" if said(snapshot, "added-data-files") else "maintenance"
    return said(snapshot, "engine-name") or "another program"


def list_snapshots(table: Table, limit: int | None = None) -> list[dict[str, Any]]:
    """The latest snapshots as plain data, newest first."""
    main = {snapshot.snapshot_id for snapshot in line_of(table, table.metadata.current_snapshot_id)}
    newest = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0, reverse=True)
    return [_about(table, snapshot, main) for snapshot in newest[:limit]]


def _about(table: Table, snapshot: Snapshot, main: set[int]) -> dict[str, Any]:
    offsets = offsets_of(snapshot)
    return {
        "snapshot": id_text(snapshot.snapshot_id),
        "parent": id_text(snapshot.parent_snapshot_id),
        "at": made_at(snapshot),
        "made_by": maker_of(snapshot),
        "operation": snapshot.summary.operation.value if snapshot.summary is not None else None,
        "rows_added": summary_count(snapshot, "added-records"),
        "rows_removed": summary_count(snapshot, "deleted-records"),
        "rows": summary_count(snapshot, "total-records"),
        "files_added": summary_count(snapshot, "added-data-files"),
        "files_removed": summary_count(snapshot, "deleted-data-files"),
        "files": summary_count(snapshot, "total-data-files"),
        "bytes_added": summary_count(snapshot, "added-files-size"),
        "bytes_removed": summary_count(snapshot, "removed-files-size"),
        "bytes": summary_count(snapshot, "total-files-size"),
        "offset_from": offsets.start if offsets is not None else None,
        "offset_to": offsets.end if offsets is not None else None,
        "schema": snapshot.schema_id,
        "current": snapshot.snapshot_id == table.metadata.current_snapshot_id,
        "on_main": snapshot.snapshot_id in main,
        "refs": sorted(name for name, ref in table.metadata.refs.items() if ref.snapshot_id == snapshot.snapshot_id),
    }


def list_refs(table: Table, kind: str | None = None) -> list[dict[str, Any]]:
    """Tags and branches as plain data, by name; the tags of views are told from those that users made."""
    found = sorted(table.metadata.refs.items())
    return [describe_ref(table, name, ref) for name, ref in found if kind in (None, ref.snapshot_ref_type.value)]


def describe_ref(table: Table, name: str, ref: SnapshotRef) -> dict[str, Any]:
    snapshot = table.metadata.snapshot_by_id(ref.snapshot_id)
    return {
        "name": name,
        "kind": ref.snapshot_ref_type.value,
        "snapshot": id_text(ref.snapshot_id),
        "at": made_at(snapshot) if snapshot is not None else None,
        "rows": summary_count(snapshot, "total-records") if snapshot is not None else None,
        "retain_seconds": ref.max_ref_age_ms / 1000 if ref.max_ref_age_ms is not None else None,
        "owner": "view" if name.startswith(RESERVED_REF) else "headwater" if name == "main" else "user",
    }
