"""What a view sends on: the rows of every epoch, read from the files that its commit added.

The view's table is the outbox: an epoch is committed first and sent then, so what is sent is what was committed, and
an epoch that a crash left unsent is found and sent by the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from headwater.catalog.progress import S_EPOCH, Progress
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import SIGN, View
from headwater.storage.changes import made_by
from headwater.storage.checksums import decoding
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import local_path
from headwater.streaming.outbox import At

log = logging.getLogger(__name__)

PART_ROWS = 2**17
"""Of a file, so many rows are sent at once: a transaction of Kafka ends after a minute, done or not, and an append must
fit into the log. Numbers of parts follow from it, so it stays."""


class Outlet(Protocol):
    """Where rows go; it knows what it has got."""

    @property
    def sent(self) -> At | None: ...

    def send(self, at: At, rows: pa.Table) -> None:
        """Send a part of an epoch, whole or not at all, unless it was sent before."""
        ...


class Sender:
    """Sends the epochs of one view to its outlet."""

    def __init__(self, outlet: Outlet, cache: ManifestCache) -> None:
        self._outlet = outlet
        self._cache = cache

    def __call__(self, view: View, progress: Progress) -> None:
        """Send what is committed and was not sent."""
        sent = self._outlet.sent
        # Of the last epoch that was sent, parts may be left.
        done = sent[1] - 1 if sent is not None and sent[0] == progress.generation else -1
        unsent = list(_epochs(view, done))
        if sent is None:
            # An epoch begins once those before it were sent: a note that is gone leaves only the newest in doubt.
            if any(_said(each, "added-data-files") for each in unsent[1:]):
                log.warning(
                    "how far a view was sent is forgotten: its last rows are repeated", extra={"view": view.name}
                )
            del unsent[1:]
        for snapshot in reversed(unsent):
            self._send(view, (progress.generation, int(_said(snapshot, S_EPOCH) or 0)), snapshot, sent)

    def _send(self, view: View, epoch: tuple[int, int], snapshot: Snapshot, sent: At | None) -> None:
        files = {str(file.file_path): file for file in made_by(view.table, snapshot, self._cache).added}
        number = 0
        for path in sorted(files):
            parts = max(1, -(-files[path].record_count // PART_ROWS))
            if sent is None or sent < (*epoch, number + parts - 1):
                rows = _rows(view, path)
                for part in range(parts):
                    if sent is None or sent < (*epoch, number + part):
                        self._outlet.send((*epoch, number + part), rows.slice(part * PART_ROWS, PART_ROWS))
            number += parts


def last_epoch(table: Table) -> int | None:
    """The snapshot of the last epoch. All before it were sent when it began, it may not be yet: until the next one is
    there it must stay, also when a compaction has come after it."""
    found = ancestors_of(table.metadata.current_snapshot(), table.metadata)
    return next((each.snapshot_id for each in found if _said(each, S_EPOCH) is not None), None)


def _rows(view: View, file: str) -> pa.Table:
    """The rows of a file as the view shows them; those that take others back are not sent."""
    names = [sql for _, _, sql in Layout.from_json(view.layout).outputs]
    path = local_path(file)
    with decoding(path):
        rows = pq.read_table(path, columns=[*names, SIGN], page_checksum_verification=True)
    return rows.filter(pc.greater(rows.column(SIGN), 0)).select(names)


def _epochs(view: View, done: int) -> Iterator[Snapshot]:
    """The snapshots of epochs above `done`, the newest first, back to the one that began this generation."""
    for snapshot in ancestors_of(view.table.metadata.current_snapshot(), view.table.metadata):
        said = _said(snapshot, S_EPOCH)
        if said is None:
            continue  # a compaction
        if int(said) <= done:
            return
        yield snapshot
        if snapshot.summary is not None and snapshot.summary.operation is Operation.OVERWRITE:
            return


def _said(snapshot: Snapshot, name: str) -> str | None:
    return snapshot.summary[name] if snapshot.summary is not None else None
