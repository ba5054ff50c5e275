"""One Iceberg transaction: files, the consumed range in the summary, the position in a property.

A commit names the position it starts from. If the table is at another, somebody else consumed those records already and
the commit fails (StaleCommit); if only other things moved (a compaction), it is tried again on the new base.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headwater.errors import Conflict, StaleCommit
from headwater.types import Offsets

log = logging.getLogger(__name__)

ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Position:
    """Names under which a table keeps what it consumed: a property, and two entries of the snapshot summary."""

    property: str
    summary_from: str
    summary_to: str


@dataclass(frozen=True, slots=True)
class Committed:
    snapshot_id: int
    consumed: Offsets
    files: int
    rows: int
    bytes: int


def append(
    load: Callable[[], Table], files: Sequence[DataFile], consumed: Offsets, position: Position, table_id: str
) -> Committed:
    """Commit `files` as the records `consumed`, once; the position moves in the same transaction."""
    for attempt in range(ATTEMPTS):
        table = load()
        _check_base(table, consumed, position, table_id)
        try:
            return _commit(table, files, consumed, position)
        except CommitFailedException:
            log.info("commit lost a race, trying again", extra={"table": table.name(), "attempt": attempt})
            time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
        except Exception:
            # The outcome is unknown (a lost reply, a locked file after the swap): the position says what happened.
            if landed := _landed(load(), consumed, position):
                return Committed(landed, consumed, len(files), _rows(files), _bytes(files))
            raise
    raise Conflict(f'table "{table.name()[-1]}" changed {ATTEMPTS} times during a commit', hint="Try again.")


def _check_base(table: Table, consumed: Offsets, position: Position, table_id: str) -> None:
    at = int(table.metadata.properties[position.property])
    if str(table.metadata.table_uuid) != table_id or at != consumed.start:
        raise StaleCommit(
            f'commit of {consumed} to table "{table.name()[-1]}" came too late',
            detail=f"The table's position is {at}, or the table was made anew.",
            hint="Nothing was written twice; plan the work again.",
        )


def _commit(table: Table, files: Sequence[DataFile], consumed: Offsets, position: Position) -> Committed:
    summary = {position.summary_from: str(consumed.start), position.summary_to: str(consumed.end)}
    with table.transaction() as transaction:
        transaction.set_properties({position.property: str(consumed.end)})
        with transaction.update_snapshot(snapshot_properties=summary).merge_append() as snapshot:
            for file in files:
                snapshot.append_data_file(file)
    current = table.metadata.current_snapshot()
    assert current is not None
    return Committed(current.snapshot_id, consumed, len(files), _rows(files), _bytes(files))


def _landed(table: Table, consumed: Offsets, position: Position) -> int | None:
    """The snapshot on the main branch that committed exactly `consumed`."""
    for snapshot in table.metadata.snapshots[::-1]:
        summary = snapshot.summary
        if summary is None or summary[position.summary_from] is None:
            continue
        if (summary[position.summary_from], summary[position.summary_to]) == (str(consumed.start), str(consumed.end)):
            at = int(table.metadata.properties[position.property])
            return snapshot.snapshot_id if at >= consumed.end else None
    return None


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _bytes(files: Sequence[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
