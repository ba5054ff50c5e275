"""Views that streams keep, from CREATE to DROP: planned, backfilled, swapped in, caught up, dropped.

A view's first contents, and those of a changed query, are computed beside what there is: the whole of the topics is
read as one batch, in which no record can be late. One commit puts them in place together with the definition, the
generation and the epoch; the query then goes on from the checkpoint that the backfill left. Crash behaviour: before
that commit nothing but a folder and files that no table names has been made.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.expressions import LessThan, Reference
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema

from headwater.catalog.progress import P_STREAM, S_EPOCH, Progress, progress_of
from headwater.catalog.topics import Topics
from headwater.catalog.view_layout import EPOCH
from headwater.catalog.views import (
    BASE,
    S_METHOD,
    S_POSITION,
    S_SIGNED,
    SIGN,
    Position,
    SourceColumns,
    View,
    Views,
    view_properties,
)
from headwater.connections import Connections
from headwater.errors import StaleCommit, StreamFailed, ViewExists
from headwater.observability.failpoints import failpoint
from headwater.storage.layout import view_layout
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.view_tables import create_view_table, replace_view_table, view_table_schema
from headwater.storage.writer import Target
from headwater.streaming.checkpoint_damage import check_checkpoint
from headwater.streaming.correct import Corrector
from headwater.streaming.late_keeper import LateKeeper
from headwater.streaming.lateness import late_rules
from headwater.streaming.offsets import Place, head_of
from headwater.streaming.outbox import Append, Outbox
from headwater.streaming.plan import Continuous, NotStreamed
from headwater.streaming.reading import TopicFiles
from headwater.streaming.sending import Sender
from headwater.streaming.sink import Backfilled, Sink
from headwater.topics.ingest import remove_files
from headwater.topics.log import Log
from headwater.types import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.streaming.frames_spark import Opened
    from headwater.streaming.run import Run


ATTEMPTS = 20
ABANDONED = 86_400.0
"""Seconds after which the checkpoint of a view that was never made is deleted."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Spark SQL over the view's table, as `catalog.views` describes it."""

    read: str
    read_base: str
    read_signed: str
    compact: str


class Keeper:
    """Makes and runs the streams of one lake's views; checkpoints are below `folder`."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        folder: Path,
        spark: Callable[[], SparkSession],
        cache: ManifestCache,
        log: Log,
        append: Append,
        connections: Connections,
        outlet_prefix: str,
    ) -> None:
        self._log = log
        self._outlet_prefix = outlet_prefix
        self._append = append
        self.connections = connections
        self._topics = topics
        self._views = views
        self._folder = folder
        self._spark = spark
        self._cache = cache

    # -- definitions ----------------------------------------------------------------------------------------------

    def check(self, plan: Continuous) -> NotStreamed | None:
        """Why Spark would not run the plan; None if it would."""
        from headwater.streaming.frames_spark import unsupported

        return unsupported(self._spark(), plan, self._views.load)

    def too_early(self, plan: Continuous) -> NotStreamed | None:
        """Why the records that are there cannot be read as a stream: its time begins in 1970, and what is older than
        a window that is closed by then would be dropped."""
        rules = late_rules(plan)
        for each in plan.outline.streams:
            if each.stream is None or each.table.name not in rules:
                continue
            topic = self._topics.load(each.table.name)
            early = LessThan(Reference(each.stream.event_time), 0)  # type: ignore  # in microseconds since 1970
            if plan_scan(topic.table, topic.snapshot_id, early, self._cache).files:
                return NotStreamed(f'"{topic.name}" has records of before 1970, where the time of a stream begins')
        return None

    def build(self, plan: Continuous, texts: Texts, old: View | None) -> Progress:
        """Compute the view and make it, or let it take the place of `old`; readers see all of it or nothing."""
        generation = 1 if old is None else _generation(old) + 1
        folder = self._new_folder(plan.name)
        try:
            return self._build(plan, texts, old, Progress(generation, folder.name), folder)
        except BaseException:
            if not self._is_in(plan.name, folder.name):
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _build(self, plan: Continuous, texts: Texts, old: View | None, begun: Progress, folder: Path) -> Progress:
        name = TableName.view(plan.name)
        columns = [*plan.outline.outputs, *_hidden(plan)]
        schema = view_table_schema(columns, 0 if old is None else old.table.metadata.last_column_id)
        location = self._topics.new_location(name) if old is None else old.table.location()
        layout = view_layout(plan.outline.definition.options)
        into = Target(name.name, location, schema, UNPARTITIONED_PARTITION_SPEC, layout, {})
        gathered = Backfilled()
        heads = {each.topic: each for each in self._heads(plan)}
        run = self._run(plan, folder, begun, lambda: heads.values(), into=into, backfill=gathered)
        try:
            run.start(once=True)
            run.wait()
            if not gathered.files and plan.layout.kind == "latest" and not plan.layout.keys:
                gathered.files += self._of_nothing(plan, into)
            failpoint("stream.backfilled")
            position = self._position(plan, heads)
            properties = self._properties(plan, texts, position) | {P_STREAM: run.sink.progress.to_json()}
            summary = {
                S_POSITION: position.to_json(),
                S_METHOD: "stream",
                S_SIGNED: "false",
                S_EPOCH: str(run.sink.progress.epoch),
            }
            if old is None:
                create_view_table(
                    self._views.tables.catalog, name, schema, location, properties, gathered.files, summary
                )
            else:
                self._swap(plan.name, schema, properties, gathered, summary)
        except BaseException as failed:
            if isinstance(failed, StaleCommit | ViewExists) or not self._is_in(plan.name, folder.name):
                remove_files(gathered.files)
            raise
        finally:
            run.stop()
        failpoint("stream.created")
        return run.sink.progress

    def _of_nothing(self, plan: Continuous, into: Target) -> list[DataFile]:
        """The row that a total over no records has, until a batch emits another."""
        from headwater.spark.gate_spark import isolated
        from headwater.storage.read_spark import read_files
        from headwater.storage.write_spark import write_frame

        own = isolated(self._spark())
        with ExitStack() as stack:
            for each in plan.outline.inputs:
                stack.enter_context(read_files(own, each.table, ())).createOrReplaceTempView(each.name)
            rows = own.sql(plan.outline.batch)
            hidden = (f"1 AS {SIGN}", f"FALSE AS {BASE}", f"CAST(-1 AS BIGINT) AS {EPOCH}")
            return write_frame(rows.selectExpr("*", *hidden), into)

    def _swap(
        self,
        name: str,
        schema: Schema,
        properties: Mapping[str, str],
        gathered: Backfilled,
        summary: Mapping[str, str],
    ) -> None:
        """Put the new contents in place of whatever the view has by now: the old query may have gone on meanwhile."""
        for attempt in range(ATTEMPTS):
            old = self._views.load(name)
            try:
                replace_view_table(self._views.tables, old, schema, properties, gathered.files, summary, self._cache)
                return
            except StaleCommit:
                if attempt == ATTEMPTS - 1:
                    raise

    def _is_in(self, name: str, folder: str) -> bool:
        """Whether the view was made after all, although something failed."""
        found = progress_of(self._views.load(name).table.metadata.properties) if self._views.exists(name) else None
        return found is not None and found.folder == folder

    def drop(self, view: View) -> None:
        """Delete the checkpoint of a view that is dropped, or that has another query by now; nothing may run it."""
        found = progress_of(view.table.metadata.properties)
        if found is not None:
            shutil.rmtree(self._folder / found.folder, ignore_errors=True)

    def sweep(self) -> None:
        """Delete checkpoints that no view has, and that are so old that no view is being made with them."""
        views, damaged = self._views.survey()
        if damaged:  # a checkpoint may be theirs
            return
        known = {found.folder for view in views if (found := progress_of(view.table.metadata.properties))}
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            if folder.name not in known and folder.stat().st_mtime < time.time() - ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)

    # -- running --------------------------------------------------------------------------------------------------

    def resume(self, plan: Continuous, view: View) -> Run:
        """The query of a view, ready to go on where the view's last epoch ended."""
        progress = progress_of(view.table.metadata.properties)
        assert progress is not None
        self._check_checkpoint(view, progress)
        return self._run(plan, self._folder / progress.folder, progress, lambda: self._heads(plan), view=view)

    def _check_checkpoint(self, view: View, progress: Progress) -> None:
        checkpoint = self._folder / progress.folder / "checkpoint"
        if not (checkpoint / "offsets").exists():
            raise StreamFailed(
                f'checkpoint of materialized view "{view.name}" is gone',
                detail=f'There is no folder "{self._folder / progress.folder}".',
                hint=f"Build the view again from its topics: CREATE OR REPLACE MATERIALIZED VIEW {view.name} AS ...",
            )
        check_checkpoint(view.name, checkpoint)

    def _run(
        self,
        plan: Continuous,
        folder: Path,
        progress: Progress,
        heads: Callable[[], Iterable[Place]],
        *,
        into: Target | None = None,
        backfill: Backfilled | None = None,
        view: View | None = None,
    ) -> Run:
        from headwater.streaming.run import Run

        ids = {source.name: id for source, id in view.position.ids.items()} if view is not None else {}
        read = TopicFiles(self._topics, ids, self._cache, folder / "cut")
        checkpoint = folder / "checkpoint"
        sink = Sink(
            plan,
            self._views,
            checkpoint,
            read,
            progress,
            into=into,
            backfill=backfill,
            late=LateKeeper(plan, self._topics, read, self._corrector(plan), self._log, self._append),
            send=self.sender(view) if view is not None else None,
        )
        return Run(plan, self._open(plan, read), sink, checkpoint, heads)

    def _corrector(self, plan: Continuous) -> Corrector | None:
        if plan.outline.definition.options.late != "correct":
            return None
        return Corrector(plan, self._topics, self._spark, self._cache)

    def sender(self, view: View) -> Sender | None:
        """What sends the view's epochs on; None if they stay."""
        options = view.definition.options
        if options.into_topic:
            outbox = Outbox(options.into_topic, f"stream/{view.id}/into", self._log, self._append)
            return Sender(outbox, self._cache)
        if options.into_kafka:
            from headwater.streaming.into_kafka import KafkaOutlet

            return Sender(KafkaOutlet(view, self.connections, self._outlet_prefix), self._cache)
        return None

    def _open(self, plan: Continuous, files: Callable[[Place, Place], str]) -> Opened:
        from headwater.streaming.frames_spark import open_frame

        return open_frame(self._spark(), plan, self._views.load, files)

    def _heads(self, plan: Continuous) -> list[Place]:
        return [head_of(self._topics.load(each.table.name)) for each in plan.outline.streams]

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _position(self, plan: Continuous, heads: dict[str, Place]) -> Position:
        tables = {
            each.table: (self._topics if each.table.namespace == "topics" else self._views).load(each.table.name)
            for each in plan.outline.inputs
        }
        snapshots = {table: found.snapshot_id for table, found in tables.items()}
        read = {table: heads[table.name].snapshot for table in tables if table.name in heads}
        return Position({**snapshots, **read}, {table: found.id for table, found in tables.items()})

    def _properties(self, plan: Continuous, texts: Texts, position: Position) -> dict[str, str]:
        return view_properties(
            plan.outline.definition,
            layout=plan.layout.to_json(),
            read=texts.read,
            read_base=texts.read_base,
            read_signed=texts.read_signed,
            compact=texts.compact,
            types={},
            sources=tuple(
                SourceColumns(each.table, tuple((name, False) for name in each.columns)) for each in plan.outline.inputs
            ),
            position=position,
        )

    def _new_folder(self, name: str) -> Path:
        from ulid import ULID

        folder = self._folder / f"{name}-{str(ULID()).lower()}"
        folder.mkdir(parents=True)
        return folder


def _generation(view: View) -> int:
    found = progress_of(view.table.metadata.properties)
    return 0 if found is None else found.generation


def _hidden(plan: Continuous) -> list[tuple[str, str]]:
    epoch = [(EPOCH, "bigint")] if plan.layout.kind == "latest" else []
    return [*epoch, (SIGN, "int"), (BASE, "boolean")]
