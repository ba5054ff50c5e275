"""One Iceberg transaction: files that come, files that go, a summary, and properties, all of it or nothing.

A commit is made for a base. Whoever commits says by `check` what must still hold there; if it does not, the commit is
refused (StaleCommit) and nothing is written. If only other things moved (an append beside a compaction, a tag), it is
tried again on the new base.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

from headwater.errors import Conflict, HeadwaterError, SnapshotGone, StaleCommit
from headwater.storage.snapshot import ExactFiles
from headwater.storage.writer import local_name
from headwater.types import Offsets

log = logging.getLogger(__name__)

ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class MadeFor:
    """The columns and the partitioning for which files were written, by their ids.

    Files for others cannot be committed: what became NOT NULL meanwhile may be null in them, and a manifest has files
    of one partitioning.
    """

    schema_id: int
    spec_id: int

    @classmethod
    def of(cls, table: Table) -> MadeFor:
        return cls(table.schema().schema_id, table.spec().spec_id)


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does: `replace` keeps all rows as they are (compaction), `overwrite` does not.

    Without any file it still makes a snapshot, so that positions in `properties` have versions.
    """

    added: Sequence[DataFile] = field(default=(), repr=False)
    removed: Sequence[DataFile] = field(default=(), repr=False)
    operation: Literal["append", "overwrite", "replace"] = "append"
    summary: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None  # replaces the table's columns; its field ids are new to the table
    updates: tuple[TableUpdate, ...] = field(default=(), repr=False)  # others of the table's metadata
    made_for: MadeFor | None = None  # what the added files were written for; not checked if it is None

    def __post_init__(self) -> None:
        if self.operation == "append" and self.removed:
            raise ValueError("an append removes no files")


@dataclass(frozen=True, slots=True)
class Committed:
    """The snapshot that a commit made, and what it added."""

    snapshot_id: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Position:
    """Names under which a table keeps what it consumed: a property, and two entries of the snapshot summary."""

    property: str
    summary_from: str
    summary_to: str


def commit(load: Callable[[], Table], change: Change, check: Callable[[Table], None]) -> Committed:
    """Apply `change` once; `check` sees every base that is tried and raises StaleCommit if the change does not fit it.

    A file to remove that is no longer live is a StaleCommit too.
    """
    for _ in attempts("a commit"):
        table = load()
        check(table)
        require_files(table.name()[-1], change.added)
        if change.made_for not in (None, MadeFor.of(table)):
            raise StaleCommit(
                f'columns or partitioning of table "{table.name()[-1]}" were altered meanwhile',
                hint="Nothing was written; plan the work again.",
            )
        snapshot_id = table.metadata.new_snapshot_id()
        try:
            _commit(table, change, snapshot_id)
        except CommitFailedException:
            log.info("commit lost a race, trying again", extra={"table": table.name()})
            continue
        except HeadwaterError:
            raise
        except Exception:
            # The outcome is unknown (a lost reply, a locked file after the swap): the history says what happened.
            if not _on_main(load(), snapshot_id):
                raise
        return _committed(snapshot_id, change.added)
    raise AssertionError


def append(
    load: Callable[[], Table],
    files: Sequence[DataFile],
    consumed: Offsets,
    position: Position,
    table_id: str,
    made_for: MadeFor | None = None,
    properties: Mapping[str, str] | None = None,
) -> Committed:
    """Commit `files` as the records `consumed`, once; position and `properties` are set in the same transaction."""
    summary = {position.summary_from: str(consumed.start), position.summary_to: str(consumed.end)}
    moved = {**(properties or {}), position.property: str(consumed.end)}
    change = Change(files, summary=summary, properties=moved, made_for=made_for)

    def check(table: Table) -> None:
        at = int(table.metadata.properties[position.property])
        if str(table.metadata.table_uuid) != table_id or at != consumed.start:
            raise StaleCommit(
                f'commit of {consumed} to table "{table.name()[-1]}" came too late',
                detail=f"The table's position is {at}, or the table was made anew.",
                hint="Nothing was written twice; plan the work again.",
            )

    return commit(load, change, check)


def tag(load: Callable[[], Table], name: str, snapshot_id: int | None) -> None:
    """Let the tag `name` point to a snapshot, which then does not expire; None removes it."""
    for _ in attempts("tagging"):
        table = load()
        if _tagged(table, name) == snapshot_id:
            return
        if snapshot_id is not None and table.metadata.snapshot_by_id(snapshot_id) is None:
            raise SnapshotGone(f'snapshot {snapshot_id} of table "{table.name()[-1]}" does not exist')
        try:
            with table.manage_snapshots() as snapshots:
                if snapshot_id is None:
                    snapshots.remove_tag(name)
                else:
                    snapshots.create_tag(snapshot_id, name)
        except (CommitFailedException, ValueError):
            continue  # somebody moved the tag, or the snapshot expired just now: look again
        except Exception:
            if _tagged(load(), name) != snapshot_id:
                raise
        return


def attempts(what: str) -> Iterator[int]:
    """Tries of a commit, each after a short pause; Conflict when there were too many."""
    for attempt in range(ATTEMPTS):
        yield attempt
        time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
    raise Conflict(f"the table changed {ATTEMPTS} times during {what}", hint="Try again.")


def require_files(table: str, added: Sequence[DataFile]) -> None:
    """StaleCommit unless the files are there: whoever took longer than orphans may live finds them deleted."""
    gone = [file.file_path for file in added if not os.path.exists(local_name(file.file_path))]  # noqa: PTH110
    if gone:
        raise StaleCommit(
            f'{len(gone)} of {len(added)} new files of table "{table}" are not there any more',
            detail=f"One of them is {min(gone)}.",
            hint="Nothing was written; plan the work again. If it takes long, raise the setting orphan_age.",
        )


def _commit(table: Table, change: Change, snapshot_id: int) -> None:
    with table.transaction() as transaction:
        if change.properties:
            transaction.set_properties(dict(change.properties))
        if change.schema is not None:
            new_id = max(schema.schema_id for schema in table.metadata.schemas) + 1
            schema = Schema(*change.schema.fields, schema_id=new_id)
            transaction._apply((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        if change.updates:
            transaction._apply(change.updates)
        ExactFiles(transaction, change.added, change.removed, change.operation, change.summary, snapshot_id).commit()


def _on_main(table: Table, snapshot_id: int) -> bool:
    line = ancestors_of(table.metadata.current_snapshot(), table.metadata)
    return any(snapshot.snapshot_id == snapshot_id for snapshot in line)


def _tagged(table: Table, name: str) -> int | None:
    ref = table.metadata.refs.get(name)
    return ref.snapshot_id if ref is not None else None


def _committed(snapshot_id: int, files: Sequence[DataFile]) -> Committed:
    rows = sum(file.record_count for file in files)
    return Committed(snapshot_id, len(files), rows, sum(file.file_size_in_bytes for file in files))
