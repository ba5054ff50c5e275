"""Rollback: a table's current snapshot becomes one that it was before, in one transaction with the gaps that it makes.

No file is touched and no snapshot is made, so a rollback is undone by another one for as long as the snapshot that it
left exists. The position stays: what waits in the log is committed as if nothing had happened. Crash behaviour: all of
it, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType

from headwater.catalog.definitions import P_GAPS
from headwater.errors import Conflict, HeadwaterError, StaleCommit
from headwater.storage.changes import Changes, between
from headwater.storage.commit import attempts
from headwater.storage.past_columns import why_unfit
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.time_travel import Named, line_of
from headwater.storage.time_travel_gaps import Gap, gaps_at, merged, read_gaps, without, write_gaps
from headwater.storage.time_travel_refs import fence, ref_update
from headwater.types import OFFSET, Offsets


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What takes a topic from snapshot `base` to `target`; `at` is when it was planned (UTC).

    `changes` are the files that come and go. `left` are the snapshots that stop being ancestors of the current one,
    `regained` those that become ancestors again.
    """

    topic: str
    table_id: str
    base: int
    target: int
    at: str
    changes: Changes
    left: tuple[Snapshot, ...] = field(repr=False)
    regained: tuple[Snapshot, ...] = field(repr=False)
    old_gaps: tuple[Gap, ...]
    gaps: tuple[Gap, ...]

    @property
    def offsets_lost(self) -> tuple[Offsets, ...]:
        return merged(without(_offsets(self.gaps), _offsets(self.old_gaps)))

    @property
    def offsets_regained(self) -> tuple[Offsets, ...]:
        return merged(without(_offsets(self.old_gaps), _offsets(self.gaps)))


def _offsets(gaps: Sequence[Gap]) -> list[Offsets]:
    return [gap.offsets for gap in gaps]


def plan_rollback(topic: str, table: Table, target: Snapshot, cache: ManifestCache, at: str) -> RollbackPlan:
    """How the topic gets from its current snapshot to `target`; Conflict if that never was its current one."""
    base, to = table.metadata.current_snapshot_id, target.snapshot_id
    assert base is not None, "a table with a snapshot has a current one"
    line, goal = list(line_of(table, base)), list(line_of(table, to))
    _check_was_current(topic, table, line, to)
    if (why := why_unfit(table, target, cache)) is not None:
        raise Conflict(
            f'topic "{topic}" cannot be rolled back to snapshot {to}',
            detail=why,
            hint=("ALTER TOPIC takes NOT NULL away. " if "NOT NULL" in why else "")
            + f"A query can read the snapshot as it was: VERSION AS OF {to}.",
        )
    here, there = ({each.snapshot_id for each in snapshots} for snapshots in (line, goal))
    reach = _reach(plan_scan(table, to, AlwaysTrue(), cache).files, table)
    return RollbackPlan(
        topic,
        str(table.metadata.table_uuid),
        base,
        to,
        at,
        between(table, base, to, cache),
        tuple(each for each in line if each.snapshot_id not in there),
        tuple(each for each in goal if each.snapshot_id not in here),
        read_gaps(table),
        read_gaps(table) if base == to else gaps_at(table, to, reach, f"rollback to snapshot {to}", at),
    )


def _check_was_current(topic: str, table: Table, line: Sequence[Snapshot], target: int) -> None:
    was = {entry.snapshot_id for entry in table.metadata.snapshot_log} | {each.snapshot_id for each in line}
    if target not in was:
        raise Conflict(
            f'snapshot {target} of topic "{topic}" was never its current one',
            detail="It was made on a branch, and does not have what main had.",
            hint=f"Use CHERRY PICK VERSION {target} INTO {topic}.",
        )


def _reach(files: Sequence[DataFile], table: Table) -> int:
    """The offset behind the last one in some files."""
    field_id = table.schema().find_field(OFFSET).field_id
    bounds = [bound for file in files if (bound := (file.upper_bounds or {}).get(field_id)) is not None]
    return max((int(from_bytes(LongType(), bound)) + 1 for bound in bounds), default=0)


def run_rollback(load: Callable[[], Table], plan: RollbackPlan) -> None:
    """Apply the plan; StaleCommit if the topic is not at the snapshot any more that it was made for."""
    for _ in attempts("a rollback"):
        table = load()
        _check_base(table, plan)
        try:
            _commit(table, plan)
        except CommitFailedException:
            continue
        except HeadwaterError:
            raise
        except Exception:  # the outcome is unknown: the table says what happened
            if load().metadata.current_snapshot_id != plan.target:
                raise
        return


def _check_base(table: Table, plan: RollbackPlan) -> None:
    if (str(table.metadata.table_uuid), table.metadata.current_snapshot_id) != (plan.table_id, plan.base):
        raise StaleCommit(
            f"{Named('topic', plan.topic)} changed since the rollback was planned",
            detail=f"Its snapshot was {plan.base}, and is {table.metadata.current_snapshot_id} now.",
            hint="Nothing was changed; look at the plan again.",
        )


def _commit(table: Table, plan: RollbackPlan) -> None:
    moved = table.metadata.refs[MAIN_BRANCH].model_copy(update={"snapshot_id": plan.target})
    with table.transaction() as transaction:
        transaction.set_properties({P_GAPS: write_gaps(plan.gaps)})
        transaction._apply((ref_update(MAIN_BRANCH, moved),), (fence(MAIN_BRANCH, plan.base),))
