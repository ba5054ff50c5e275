"""Tags and branches that users make: Iceberg's refs, set and removed by commits that try again after a lost race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from headwater.errors import Conflict, HeadwaterError, SnapshotGone
from headwater.sql.statements import CreateRef, DropRef
from headwater.storage.commit import attempts
from headwater.storage.time_travel import Named, find_snapshot


@dataclass(frozen=True, slots=True)
class RefSet:
    """What became of a ref, and what it was before if it was there."""

    name: str
    ref: SnapshotRef
    before: SnapshotRef | None

    @property
    def changed(self) -> bool:
        return self.ref != self.before


def create_ref(load: Callable[[], Table], asked: CreateRef) -> RefSet:
    """Let a name stand for a snapshot; Conflict if it stands for another one and is not to be replaced."""
    named = Named("topic", asked.topic)
    for _ in attempts(f"the making of a {asked.kind}"):
        table = load()
        before = table.metadata.refs.get(asked.name)
        if before is not None and asked.if_not_exists:
            return RefSet(asked.name, before, before)
        wanted = _wanted(asked, find_snapshot(table, asked.at, named).snapshot_id)
        if before == wanted:
            return RefSet(asked.name, wanted, before)
        _check_free(asked, before, named)
        if _committed(load, table, asked.name, before, wanted):
            return RefSet(asked.name, wanted, before)
    raise AssertionError


def _wanted(asked: CreateRef, snapshot_id: int) -> SnapshotRef:
    age = round(asked.retain * 1000) if asked.retain is not None else None
    return SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": asked.kind, "max-ref-age-ms": age})


def _check_free(asked: CreateRef, before: SnapshotRef | None, named: Named) -> None:
    if before is None or (asked.or_replace and before.snapshot_ref_type.value == asked.kind):
        return
    kind = before.snapshot_ref_type.value
    raise Conflict(
        f'{kind} "{asked.name}" of {named} exists already',
        detail=f"It stands for snapshot {before.snapshot_id}.",
        hint=f"Use CREATE OR REPLACE {kind.upper()}, or another name." if kind == asked.kind else "Use another name.",
    )


def drop_ref(load: Callable[[], Table], asked: DropRef) -> SnapshotRef | None:
    """Take a name away; the ref that it was, None if there was none and that is fine."""
    for _ in attempts(f"the drop of a {asked.kind}"):
        table = load()
        before = table.metadata.refs.get(asked.name)
        if before is None or before.snapshot_ref_type.value != asked.kind:
            if asked.if_exists and before is None:
                return None
            raise _missing(asked, before)
        if _committed(load, table, asked.name, before, None):
            return before
    raise AssertionError


def _missing(asked: DropRef, before: SnapshotRef | None) -> HeadwaterError:
    named = Named("topic", asked.topic)
    if before is None:
        hint = f"`SHOW {'TAGS' if asked.kind == 'tag' else 'BRANCHES'} OF {asked.topic}` lists them."
        return SnapshotGone(f'{asked.kind} "{asked.name}" of {named} does not exist', hint=hint)
    kind = before.snapshot_ref_type.value
    return Conflict(f'"{asked.name}" of {named} is a {kind}', hint=f"Use DROP {kind.upper()}.")


def _committed(
    load: Callable[[], Table], table: Table, name: str, before: SnapshotRef | None, wanted: SnapshotRef | None
) -> bool:
    """Set or remove a ref as it was seen; False if somebody was quicker."""
    at = fence(name, before.snapshot_id if before is not None else None)
    try:
        with table.transaction() as transaction:
            transaction._apply((ref_update(name, wanted),), (at,))
    except (CommitFailedException, ValueError):  # it was moved, or the snapshot expired just now: look again
        return False
    except HeadwaterError:
        raise
    except Exception:  # the outcome is unknown: the table says what happened
        if load().metadata.refs.get(name) != wanted:
            raise
    return True


def ref_update(name: str, wanted: SnapshotRef | None) -> SetSnapshotRefUpdate | RemoveSnapshotRefUpdate:
    """The update that makes a ref what it should be; None removes it."""
    if wanted is None:
        return RemoveSnapshotRefUpdate.model_validate({"ref-name": name})
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, **wanted.model_dump(by_alias=True)})


def fence(name: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    """A commit with this fails if the ref is at another snapshot; None means that it must not exist."""
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})
