"""ALTER TOPIC: the plan checked against what is stored and who reads it, then one commit of the table's metadata.

The commit makes a snapshot of its own, so that every snapshot says which columns its rows are read in, and so that
nothing which was planned before can be committed after: appends and rewrites that are under way start over.

A column that becomes NOT NULL must not be null in any file, in the log, or in what a producer is about to append. The
files are checked first. Then appends are held while the log is checked and the table committed. Producers that decoded
their records before find, inside their own transaction, that the columns have changed: the topic is guarded from
before the commit on, so a crash anywhere leaves no gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headwater.catalog.definitions import user_columns
from headwater.catalog.evolve import Evolution, plan_evolution
from headwater.catalog.evolve_fields import find
from headwater.catalog.evolve_updates import plan_updates
from headwater.catalog.streams import streams_of
from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import Views
from headwater.errors import Conflict, Corrupt, InvalidSchema, StaleCommit, ViewInUse
from headwater.observability.failpoints import failpoint
from headwater.sql.alter_changes import Path, dotted
from headwater.sql.definition import notices
from headwater.sql.schema_text import render_type
from headwater.sql.statements import AlterTopic
from headwater.storage.commit import Change, commit
from headwater.storage.field_ids import plan_reading
from headwater.storage.nulls import holds_null, null_condition
from headwater.storage.projection import Projection, first_schema
from headwater.storage.scan import ManifestCache, live_manifests, plan_scan
from headwater.storage.writer import local_path
from headwater.topics.ingest import log_topic
from headwater.topics.log import Log
from headwater.types import SYSTEM_COLUMNS, id_text

log = logging.getLogger(__name__)

ATTEMPTS = 20
S_ALTERED = "headwater.altered"
"""In the summary of the snapshot that an ALTER makes, the changes as text."""

MatchesAny = Callable[[str, str], bool]
"""Whether any committed row of the topic matches the condition in Spark SQL."""


@dataclass(frozen=True, slots=True)
class Altered:
    """What was done to a topic as it was, or would be; and the snapshot that it made, if it made one."""

    topic: Topic
    evolution: Evolution
    snapshot_id: int | None


def told(altered: Altered, statement: AlterTopic) -> dict[str, Any]:
    """What an ALTER did, as plain data for every surface."""
    before, after = altered.topic.definition, altered.evolution.definition
    effects = zip(statement.changes, altered.evolution.effects, strict=True)
    return {
        "topic": statement.name,
        "dry_run": statement.dry_run,
        "snapshot": id_text(altered.snapshot_id),
        "changes": [
            {"topic": statement.name, "change": str(change), "effect": effect or "nothing to do"}
            for change, effect in effects
        ],
        "notices": [notice for notice in notices(after) if notice not in notices(before)],
    }


def check_streams(topic: Topic, columns: Schema) -> None:
    """InvalidSchema if a stream of the topic would lack a column that it has, or find another type there."""
    types = {field.name: render_type(field.field_type) for field in columns.fields}
    for stream in streams_of(topic):
        schema, event_time = stream.definition.schema, stream.definition.options.timestamp_field
        wanted = {field.name: render_type(field.field_type) for field in schema.fields} if schema is not None else {}
        if event_time and event_time not in SYSTEM_COLUMNS:
            wanted.setdefault(event_time, types.get(event_time, ""))
        for name, of in wanted.items():
            if types.get(name) != of:
                raise InvalidSchema(
                    f'stream "{stream.name}" has column "{name}" of topic "{topic.name}"',
                    hint=f"Drop the stream first, and create it again behind the change: DROP STREAM {stream.name}.",
                )


class Evolver:
    """Runs ALTER TOPIC on the topics of one lake. `prepare` sees the planned evolution before it is committed."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        log: Log,
        manifests: ManifestCache,
        matches_any: MatchesAny,
        prepare: Callable[[Topic, Evolution], None] = lambda *_: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._topics = topics
        self._views = views
        self._log = log
        self._manifests = manifests
        self._matches_any = matches_any
        self._prepare = prepare
        self._now = now

    def run(self, statement: AlterTopic) -> Altered:
        """Make all of the changes, or none; with `dry_run` check everything and make none."""
        for attempt in range(ATTEMPTS):
            topic = self._topics.load(statement.name)
            planned = plan_evolution(topic, statement)
            self._check(topic, planned)
            try:
                return self._commit(topic, planned, statement)
            except StaleCommit as stale:
                log.info("alter starts over", extra={"topic": topic.name, "attempt": attempt, "why": str(stale)})
        raise Conflict(f'topic "{statement.name}" changed {ATTEMPTS} times while it was altered', hint="Try again.")

    def _check(self, topic: Topic, planned: Evolution) -> None:
        self._check_views(topic, planned)
        check_streams(topic, planned.definition.schema)
        self._check_partitions(topic, planned)
        for path in planned.required:
            self._check_stored(topic, planned, path)

    def _commit(self, topic: Topic, planned: Evolution, statement: AlterTopic) -> Altered:
        said = ", ".join(map(str, statement.changes))
        updates = plan_updates(topic.table, topic.definition, planned, said, self._now())
        if statement.dry_run or not updates:
            self._check_tail(topic, planned)
            return Altered(topic, planned, None)
        self._prepare(topic, planned)
        if planned.required:
            self._log.guard(log_topic(topic))
        failpoint("alter.planned")
        with self._log.holding(log_topic(topic)) if planned.required else nullcontext():
            self._check_tail(topic, planned)
            change = Change(summary={S_ALTERED: said}, updates=updates)
            done = commit(lambda: self._topics.tables.load_for_commit(topic.table_name), change, _unmoved(topic))
            failpoint("alter.committed")
        return Altered(topic, planned, done.snapshot_id)

    def _check_views(self, topic: Topic, planned: Evolution) -> None:
        """ViewInUse while a view reads a column that would not be what it was."""
        if not planned.touched:
            return
        found: dict[str, list[str]] = {}
        for view in self._views.readers_of(topic.table_name):
            read = {name for source in view.sources if source.table == topic.table_name for name, _ in source.columns}
            for each in planned.touched:
                if each.column in read:
                    found.setdefault(view.name, []).append(f'"{each.column}" ({each.how})')
        if found:
            raise ViewInUse(
                f'columns of topic "{topic.name}" are read by materialized views',
                detail=" ".join(f'View "{view}" reads {", ".join(columns)}.' for view, columns in found.items()),
                hint="Drop those views, or replace them by ones that do not read these columns, and make them anew "
                "afterwards.",
                views=sorted(found),
            )

    def _check_partitions(self, topic: Topic, planned: Evolution) -> None:
        """Refuse to drop a column by which stored files are partitioned: what they hold could not be told."""
        metadata = topic.table.metadata
        snapshot, kept = metadata.current_snapshot(), set(planned.schema.field_ids)
        if snapshot is None or all(field.field_id in kept for field in topic.columns.fields):
            return
        live = {each.partition_spec_id for each in live_manifests(snapshot, topic.table, self._manifests)}
        for spec_id in live:
            for part in metadata.specs()[spec_id].fields:
                if part.source_id not in kept:
                    raise InvalidSchema(
                        f'column "{topic.schema.find_column_name(part.source_id)}" cannot be dropped',
                        detail="Files are stored that are partitioned by it.",
                        hint=f"Rewrite them first: OPTIMIZE TOPIC {topic.name} FULL.",
                    )

    def _check_stored(self, topic: Topic, planned: Evolution, path: Path) -> None:
        """Conflict if a stored row has no value for a field that is to be required."""
        files = plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), self._manifests).files
        was = _old_path(topic, planned, path)
        if not any(file.record_count for file in files):
            return
        if was is None or self._any_null(topic, was, files):
            raise _is_null(topic, path, "Some stored rows have no value for it.")
        if len(path) > 1 and any(_lacks(pq.read_schema(local_path(file.file_path)), planned) for file in files):
            raise _lacking(topic, path, "Some files", f"Rewrite them first: OPTIMIZE {topic.name} FULL.")

    def _any_null(self, topic: Topic, path: Path, files: Sequence[DataFile]) -> bool:
        """By the files' null counts; by a query where those cannot tell."""
        column = topic.schema.find_field(path[0])
        counts = [(file.null_value_counts or {}).get(column.field_id) for file in files]
        if len(path) == 1 and column.field_type.is_primitive and None not in counts:
            return any(counts)
        return self._matches_any(topic.name, null_condition(column.field_type, path[1:], f"`{path[0]}`"))

    def _check_tail(self, topic: Topic, planned: Evolution) -> None:
        """Conflict if a row that waits in the log has no value for a field that is to be required."""
        if not planned.required:
            return
        tail = self._log.tail(log_topic(topic), topic.committed)
        if tail is None:
            raise StaleCommit(f'topic "{topic.name}" was committed meanwhile')
        projection = Projection.to(topic.schema, first_schema(topic.table.metadata))
        for part in tail:
            rows: pa.RecordBatch = projection(part.batch)
            for path in planned.required:
                was = _old_path(topic, planned, path)
                if was is None or holds_null(rows.column(was[0]), was[1:]):
                    raise _is_null(topic, path, "Some rows that wait in the log have no value for it.")
                if len(path) > 1 and _lacks(part.batch.schema, planned):
                    raise _lacking(topic, path, "Some entries of the log", f"Commit them first: FLUSH {topic.name}.")


def _old_path(topic: Topic, planned: Evolution, path: Path) -> Path | None:
    """The path, by names that the topic has, to a field of the planned columns; None if they add it."""
    field = find(tuple(planned.schema.fields), path)
    assert field is not None
    was = topic.schema.find_column_name(field.field_id)
    return None if was is None else tuple(was.split("."))


def _unmoved(topic: Topic) -> Callable[[Table], None]:
    def check(table: Table) -> None:
        if table.metadata_location != topic.table.metadata_location:
            raise StaleCommit(f'topic "{topic.name}" moved while it was altered')

    return check


def _lacks(stored: pa.Schema, planned: Evolution) -> bool:
    """Whether rows that are stored so have no place for a field that is required inside a column.

    No value of theirs may be missing, where every struct or list that would hold one is null or empty. Readers refuse
    them all the same.
    """
    try:
        plan_reading(stored, user_columns(planned.schema), "")
    except Corrupt:
        return True
    return False


def _lacking(topic: Topic, path: Path, those: str, hint: str) -> Conflict:
    return Conflict(
        f'column "{dotted(path)}" of topic "{topic.name}" cannot become NOT NULL',
        detail=f"{those} are older than it, and are read only as long as it may be null.",
        hint=hint,
    )


def _is_null(topic: Topic, path: Path, detail: str) -> Conflict:
    where = f" WHERE {path[0]} IS NULL" if len(path) == 1 else ""
    return Conflict(
        f'column "{dotted(path)}" of topic "{topic.name}" cannot become NOT NULL',
        detail=detail,
        hint=f"Fill it first: UPDATE {topic.name} SET {path[0]} = ...{where}.",  # noqa: S608
    )
