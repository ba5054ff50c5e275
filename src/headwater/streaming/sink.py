"""What batches emit becomes commits to the view's table: rows, epoch and counts in one transaction, once.

Crash behaviour: before the commit, files are orphans and Spark repeats the batch; after it, a repeated batch finds its
epoch in the table and does nothing. Whoever runs an older generation of the view, or runs it a second time, finds the
table ahead of itself and ends (StaleCommit).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headwater.catalog.progress import BATCHES_UNCOMMITTED, P_STREAM, S_EPOCH, Progress, progress_of
from headwater.catalog.view_layout import EPOCH
from headwater.catalog.views import (
    BASE,
    P_POSITION,
    P_SIGNED,
    S_METHOD,
    S_POSITION,
    S_SIGNED,
    SIGN,
    Position,
    View,
    Views,
)
from headwater.errors import StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.storage.commit import Change, commit
from headwater.storage.view_tables import view_target
from headwater.storage.writer import Target
from headwater.streaming.checkpoint import Batch, last_read, read_batch
from headwater.streaming.plan import Continuous
from headwater.streaming.reading import TopicFiles
from headwater.topics.ingest import remove_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

IDLE_COMMIT = 30.0
"""Seconds after which a batch that emitted nothing is committed all the same, so that the table tells how far it is."""


@dataclass(frozen=True, slots=True)
class Handled:
    """What was done about late records: how many there were, and files that correct the view; `signed` if some rows of
    these take others back."""

    late: int = 0
    files: tuple[DataFile, ...] = ()
    signed: bool = False


LateHandler = Callable[[View, Batch], Handled]


@dataclass(slots=True)
class Backfilled:
    """What the first run of a query has written: files that are in no table yet."""

    files: list[DataFile] = field(default_factory=list)


class Sink:
    """Keeps what one run of a query emits. With `backfill`, files are gathered there and nothing is committed."""

    def __init__(
        self,
        plan: Continuous,
        views: Views,
        checkpoint: Path,
        read: TopicFiles,
        progress: Progress,
        *,
        into: Target | None = None,
        backfill: Backfilled | None = None,
        late: LateHandler | None = None,
        send: Callable[[View, Progress], None] | None = None,
    ) -> None:
        self._plan = plan
        self._views = views
        self._checkpoint = checkpoint
        self._read = read
        self.progress = progress
        self._into = into
        self._backfill = backfill
        self._late = late
        self._send = send
        self._last_commit, self._told = time.monotonic(), (progress.late, progress.skipped)
        self._committed_epoch = progress.epoch
        self._idle: tuple[Batch, Progress] | None = None
        self.read = {topic: place.offset for topic, place in last_read(checkpoint).items()}
        """Up to which offset every topic has been read."""

    def __call__(self, frame: DataFrame, number: int) -> None:
        """One batch, run by Spark's thread."""
        batch = read_batch(self._checkpoint, number)
        self._keep(frame, batch)
        self.read = {topic: place.offset for topic, place in batch.ends.items()}

    def _keep(self, frame: DataFrame, batch: Batch) -> None:
        number = batch.number
        if self._backfill is None and self._is_done(number):
            log.info("epoch is in the view already", extra={"view": self._plan.name, "epoch": number})
            # Run all the same: what the query has seen of time and keeps as state follows from running it.
            frame.write.format("noop").mode("overwrite").save()
            self.send()
            return
        from headwater.storage.write_spark import write_frame

        files = write_frame(self._stored(frame, number), self._target(), short=self._short)
        failpoint("stream.written")
        if self._backfill is not None:  # it reads everything at once, and nothing of it is late
            self._account(batch, files, Handled())
            self._backfill.files += files
            return
        handled = Handled() if self._late is None else self._late(self._views.load(self._plan.name), batch)
        self._account(batch, files, handled)
        self._commit(batch, [*files, *handled.files], signed=handled.signed)
        self.send()
        failpoint("stream.sent")

    def send(self) -> None:
        """Send on what is committed and was not sent, if that is asked for."""
        if self._send is not None:
            self._send(self._views.load(self._plan.name), self.progress)

    def _is_done(self, number: int) -> bool:
        found = self._current(self._views.load(self._plan.name).table)
        return found.epoch >= number

    def _current(self, table: Table) -> Progress:
        found = progress_of(table.metadata.properties)
        if found is None or found.generation != self.progress.generation:
            raise StaleCommit(
                f'materialized view "{self._plan.name}" has another query by now', hint="It goes on with that one."
            )
        return found

    def _target(self) -> Target:
        return view_target(self._views.load(self._plan.name)) if self._into is None else self._into

    @property
    def _short(self) -> bool:
        tables = self._views.tables
        from headwater.storage.write_spark import short_rows

        return not self._plan.grouped and short_rows(tables.load(each.table) for each in self._plan.outline.inputs)

    def _stored(self, frame: DataFrame, number: int) -> DataFrame:
        """The frame's rows as the view's table has them."""
        hidden = [f"1 AS {SIGN}", f"FALSE AS {BASE}"]
        if self._plan.layout.kind == "latest":
            hidden.append(f"CAST({number} AS BIGINT) AS {EPOCH}")
        return frame.selectExpr("*", *hidden)

    def _account(self, batch: Batch, files: Sequence[DataFile], handled: Handled) -> None:
        spans = [self._read.span(batch, topic) for topic in batch.ends]
        self.progress = replace(
            self.progress,
            epoch=batch.number,
            watermark_ms=batch.watermark_ms,
            rows_in=self.progress.rows_in + sum(span.rows for span in spans),
            rows_out=self.progress.rows_out + sum(file.record_count for file in files),
            late=self.progress.late + handled.late,
            skipped=self.progress.skipped + sum(span.changed for span in spans),
        )

    def settle(self) -> None:
        """Commit how far the last batches came that emitted nothing; for when the query has ended."""
        if self._idle is not None:
            batch, self.progress = self._idle
            self._put(batch, (), signed=False)

    def _commit(self, batch: Batch, files: Sequence[DataFile], *, signed: bool) -> None:
        has_news = files or (self.progress.late, self.progress.skipped) != self._told
        is_due = time.monotonic() - self._last_commit >= IDLE_COMMIT
        # A backup cuts the checkpoint back to the table's epoch, so the table may not lag further behind than that.
        if has_news or is_due or batch.number - self._committed_epoch >= BATCHES_UNCOMMITTED:
            self._put(batch, files, signed=signed)
        else:
            self._idle = batch, self.progress

    def _put(self, batch: Batch, files: Sequence[DataFile], *, signed: bool) -> None:
        view = self._views.load(self._plan.name)
        position, takes_back = position_at(view, batch).to_json(), str(view.signed or signed).lower()
        summary = {S_POSITION: position, S_METHOD: "stream", S_SIGNED: takes_back, S_EPOCH: str(batch.number)}
        properties = {P_STREAM: self.progress.to_json(), P_POSITION: position, P_SIGNED: takes_back}

        def check(table: Table) -> None:
            if str(table.metadata.table_uuid) != view.id or self._current(table).epoch >= batch.number:
                raise StaleCommit(f'epoch {batch.number} of materialized view "{view.name}" came too late')

        try:
            commit(
                lambda: self._views.tables.load_for_commit(view.table_name),
                Change(files, (), "append", summary, properties),
                check,
            )
        except StaleCommit:
            remove_files(files)
            raise
        self._last_commit, self._told = time.monotonic(), (self.progress.late, self.progress.skipped)
        self._committed_epoch = batch.number
        self._idle = None
        failpoint("stream.committed")


def position_at(view: View, batch: Batch) -> Position:
    """What the view stands for after a batch: the snapshots up to which its streams were read."""
    known = view.position
    moved = {source: batch.ends[source.name].snapshot for source in known.snapshots if source.name in batch.ends}
    return Position({**known.snapshots, **moved}, known.ids, known.now)
