"""The past states that AS OF names: snapshots by their ids, or the newest one that there was at a time."""

from __future__ import annotations

from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headwater.errors import SnapshotGone
from headwater.sql.moments import parse_moment
from headwater.sql.names import Relation

NEAREST = 3


def snapshot_as_of(table: Table, relation: Relation, kind: str) -> Snapshot | None:
    """The snapshot that a relation asks for, None if it asks for the newest; SnapshotGone if there is no such one."""
    if relation.version is not None:
        return table.metadata.snapshot_by_id(relation.version) or _gone(table, relation, kind)
    if relation.timestamp is not None:
        return _at(table, parse_moment(relation.timestamp)) or _too_old(table, relation, kind)
    return None


def _at(table: Table, moment: datetime) -> Snapshot | None:
    latest = round(moment.timestamp() * 1000)
    for entry in reversed(table.metadata.snapshot_log):
        if entry.timestamp_ms <= latest:
            return table.metadata.snapshot_by_id(entry.snapshot_id)
    return None


def _gone(table: Table, relation: Relation, kind: str) -> Snapshot:
    newest = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True)[:NEAREST]
    told = ", ".join(map(_shown, newest))
    raise SnapshotGone(
        f'snapshot {relation.version} of {kind} "{relation.name}" does not exist',
        detail=f"It has expired, or never was. The newest are {told}." if told else "There is none yet.",
    )


def _too_old(table: Table, relation: Relation, kind: str) -> Snapshot:
    kept = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms)
    asked = f"{parse_moment(relation.timestamp or ''):%Y-%m-%d %H:%M:%S} UTC"
    raise SnapshotGone(
        f'{kind} "{relation.name}" has no snapshot as old as {asked}',
        detail=f"The oldest is {_shown(kept[0])}, the newest {_shown(kept[-1])}." if kept else "There is none yet.",
    )


def _shown(snapshot: Snapshot) -> str:
    when = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return f"{snapshot.snapshot_id} of {when:%Y-%m-%d %H:%M:%S} UTC"
