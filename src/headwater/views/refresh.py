"""Runs a refresh plan on Spark: reads versions of tables as it says, writes files, commits them with the position.

One commit carries the rows and what they stand for. It is fenced: if another refresh moved the position meanwhile, or
a compaction changed the rows that the plan takes back, nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, IntegerType, LongType, StringType
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog.iceberg import Tables
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import P_POSITION, P_SIGNED, S_METHOD, S_POSITION, S_SIGNED, STATES, SourceColumns, View
from headwater.errors import StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.spark.arrow_spark import query_folder, to_spark
from headwater.spark.gate_spark import isolated
from headwater.spark.jobs import query_errors
from headwater.storage.changes import Changes
from headwater.storage.checksums import decoding
from headwater.storage.commit import Change, Committed, commit
from headwater.storage.identity_spark import identities
from headwater.storage.read_spark import read_files, read_snapshot
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.schemas import arrow_field
from headwater.storage.view_tables import view_target
from headwater.storage.write_spark import write_frame
from headwater.storage.writer import Target, local_path
from headwater.types import TableName
from headwater.views.change import VIEW, AppendDelta, Reads, Recompute, RecomputeKeys, Skip
from headwater.views.deltas import KEY, WEIGHT, Keys, Leaf, net_rows
from headwater.views.plan import RefreshPlan, SourceRange
from headwater.views.prune import KeySet
from headwater.views.sources import Head

MAX_KEYS = 5_000_000
"""Touched keys beyond which they are not collected: they stay a query, and prune nothing."""

WORTH_PRUNING = 16 * 1024**2
"""Bytes of a table from which on it pays to find out which of its files are needed."""

FEW_ROWS = 1_000_000
"""Changed rows up to which the driver reads their keys itself."""

DIRECT = (IntegerType, LongType, StringType, DateType)
"""Types whose values are the same in files and in Spark."""

ONE_FILE = 300_000
"""Changed rows up to which a refresh writes one file."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did."""

    view: str
    method: str
    reason: str
    sources: tuple[SourceRange, ...]
    rows_read: int
    rows_written: int
    files: int
    bytes: int
    seconds: float
    snapshot_id: int | None


def run_refresh(plan: RefreshPlan, tables: Tables, session: SparkSession, cache: ManifestCache) -> Refreshed:
    """Bring the view to the plan's position; StaleCommit if somebody else moved it meanwhile."""
    started = time.perf_counter()
    failpoint("refresh.planned")
    if isinstance(plan.change, Skip):
        committed = _move(plan, tables) if any(each.moved for each in plan.ranges) else None
        return _refreshed(plan, committed, 0, started)
    with Workspace(session, {each.head.name: each for each in plan.ranges}, cache) as space:
        files, removed, signed, rows_read = _write(plan, space, cache)
    failpoint("refresh.written")
    try:
        committed = _commit(plan, tables, files, removed, signed)
    except StaleCommit:
        remove_files(files)
        raise
    failpoint("refresh.committed")
    return _refreshed(plan, committed, rows_read, started)


def remove_files(files: Sequence[DataFile]) -> None:
    """Delete written files that no table will ever refer to."""
    for file in files:
        local_path(file.file_path).unlink(missing_ok=True)


def _write(
    plan: RefreshPlan, space: Workspace, cache: ManifestCache
) -> tuple[list[DataFile], Sequence[DataFile], bool, int]:
    """The new files, those to remove, whether the table then holds rows that take others back, and the rows read."""
    into, change, view = view_target(plan.view), plan.change, plan.view
    match change:
        case AppendDelta():
            space.provide(change.reads)
            files = _write_frame(space.run(change.sql), into, plan)
            return files, (), view.signed or change.signed, space.rows_read
        case RecomputeKeys():
            space.provide(change.reads)
            space.provide_view(view, change.retract)
            files = _write_frame(space.run(f"{change.retract} UNION ALL {change.insert}"), into, plan)
            return files, (), True, space.rows_read
        case Recompute():
            space.provide(change.reads)
            frame = space.run(change.sql)
            if keys := Layout.from_json(view.layout).keys:
                frame = frame.sortWithinPartitions(*[f"`{key}`" for key in keys])
            files = write_frame(frame, into)
            old = plan_scan(view.table, view.snapshot_id, AlwaysTrue(), cache).files
            return files, old, False, space.rows_read
        case Skip():
            raise AssertionError
        case _:
            assert_never(change)


def _write_frame(frame: DataFrame, into: Target, plan: RefreshPlan) -> list[DataFile]:
    return write_frame(frame.coalesce(1) if plan.delta_rows <= ONE_FILE else frame, into)


def _move(plan: RefreshPlan, tables: Tables) -> Committed:
    """Sources moved without changing: the position follows, so that their old snapshots may go."""
    return _commit(plan, tables, (), (), plan.view.signed)


def _commit(
    plan: RefreshPlan, tables: Tables, files: Sequence[DataFile], removed: Sequence[DataFile], signed: bool
) -> Committed:
    base_matters = not isinstance(plan.change, AppendDelta | Skip)

    def check(table: Table) -> None:
        properties = table.metadata.properties
        moved = properties.get(P_POSITION) != plan.view.table.metadata.properties.get(P_POSITION)
        other = str(table.metadata.table_uuid) != plan.view.id
        rewritten = base_matters and table.metadata.current_snapshot_id != plan.base
        if moved or other or rewritten:
            raise StaleCommit(
                f'refresh of materialized view "{plan.view.name}" came too late',
                detail="Another refresh or a compaction was quicker.",
                hint="Nothing was written twice; refresh again.",
            )

    position = plan.position.to_json()
    now_signed = str(signed).lower()
    change = Change(
        files,
        removed,
        "overwrite" if isinstance(plan.change, Recompute) else "append",
        {S_POSITION: position, S_METHOD: plan.method, S_SIGNED: now_signed},
        {P_POSITION: position, P_SIGNED: now_signed},
    )
    return commit(lambda: tables.load_for_commit(plan.view.table_name), change, check)


def _refreshed(plan: RefreshPlan, committed: Committed | None, rows_read: int, started: float) -> Refreshed:
    return Refreshed(
        plan.view.name,
        plan.method,
        plan.chosen,
        plan.ranges,
        rows_read,
        committed.rows if committed else 0,
        committed.files if committed else 0,
        committed.bytes if committed else 0,
        time.perf_counter() - started,
        committed.snapshot_id if committed else plan.view.snapshot_id,
    )


class Workspace:
    """A Spark session of its own in which the tables that some SQL reads are provided under the names it uses."""

    def __init__(self, session: SparkSession, ranges: Mapping[str, SourceRange], cache: ManifestCache) -> None:
        self.session = isolated(session)
        self._ranges = ranges
        self._cache = cache
        self._stack = ExitStack()
        self._keys: dict[str, pa.Table | None] = {}
        self._folder: Path | None = None
        self.rows_read = 0

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, sql: str) -> DataFrame:
        with query_errors():
            return self.session.sql(sql)

    def provide(self, reads: Reads) -> None:
        """Make every table and every set of keys that the SQL reads; keys may build on keys before them."""
        waiting = list(reads.leaves)
        for keys in reads.keys:
            waiting = self._provide_ready(waiting)
            self._provide_keys(keys, reads)
        if left := self._provide_ready(waiting):
            raise AssertionError(f"tables that nothing provides: {left}")

    def _provide_ready(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        left = []
        for leaf in leaves:
            if all(prune.keys in self._keys for prune in leaf.prunes):
                self._frame(leaf).createOrReplaceTempView(f"`{leaf.name}`")
            else:
                left.append(leaf)
        return left

    # -- keys -----------------------------------------------------------------------------------------------------

    def _provide_keys(self, keys: Keys, reads: Reads) -> None:
        found = self._changed_values(keys)
        if keys.hint:
            if found is None and self._worth(keys, reads):
                found = self._collected(keys.sql)
            self._keys[keys.name] = found
            return
        if found is None:
            found = self._collected(keys.sql)
        self._keys[keys.name] = found
        frame = self.run(f"SELECT DISTINCT * FROM ({keys.sql})") if found is None else self._local(found)
        frame.createOrReplaceTempView(f"`{keys.name}`")

    def _changed_values(self, keys: Keys) -> pa.Table | None:
        """The keys read straight from the changed files, where they are columns there: no job, a few milliseconds."""
        if keys.origin is None:
            return None
        table, columns = keys.origin
        source = self._ranges[table]
        changes, schema = source.changes, source.head.table.schema()
        plain = all(isinstance(schema.find_field(name).field_type, DIRECT) for name in columns)
        if changes is None or changes.rows > FEW_ROWS or not plain or source.tail is not None:
            return None
        parts = []
        for file in (*changes.added, *changes.removed):
            path = local_path(file.file_path)
            with decoding(path):
                if not _has_as_they_are(pq.read_schema(path), columns, schema):
                    return None
                parts.append(pq.read_table(path, columns=list(columns), page_checksum_verification=True))
        named = [f"{KEY}{place}" for place in range(keys.width)]
        rows = pa.concat_tables(parts).rename_columns(named)
        return rows.group_by(named).aggregate([])

    def _worth(self, keys: Keys, reads: Reads) -> bool:
        """Whether a table that these keys would prune is large enough for a look at the keys."""
        sizes = [
            sum(file.file_size_in_bytes for file in self._files(leaf))
            for leaf in reads.leaves
            if any(prune.keys == keys.name for prune in leaf.prunes)
        ]
        return max(sizes, default=0) >= WORTH_PRUNING

    def _collected(self, sql: str) -> pa.Table | None:
        with query_errors():
            found: pa.Table = self.session.sql(f"SELECT DISTINCT * FROM ({sql}) LIMIT {MAX_KEYS + 1}").toArrow()
        return found if found.num_rows <= MAX_KEYS else None

    def _local(self, table: pa.Table) -> DataFrame:
        return self._shown(table).hint("broadcast")

    def _shown(self, table: pa.Table) -> DataFrame:
        if self._folder is None:
            self._folder = self._stack.enter_context(query_folder(self.session))
        return to_spark(self.session, table, self._folder)

    # -- tables ---------------------------------------------------------------------------------------------------

    def _frame(self, leaf: Leaf) -> DataFrame:
        source = self._ranges[leaf.table]
        head, is_delta = source.head, leaf.version == "delta"
        stored = self._delta(source, leaf) if is_delta else self._version(source, leaf)
        columns = list(dict.fromkeys(leaf.columns))
        names = [f"`{name}`" for name in columns]
        weighted = [*names, f"1 AS {WEIGHT}"] if is_delta else names
        if source.tail is not None and source.tail.num_rows and leaf.version != "old":
            self.rows_read += source.tail.num_rows
            tail = self._shown(source.tail.select(columns)).selectExpr(*weighted)
            # Rows are not united with a relation that Spark knows to be empty: its optimiser then loses the columns
            # that a correlated subquery refers to.
            return tail if stored is None else stored.select(*names, *([WEIGHT] if is_delta else ())).unionAll(tail)
        if stored is None:
            stored = self._read(head.table_name, ()).selectExpr("*", *([f"1 AS {WEIGHT}"] if is_delta else ()))
        if head.view is not None and leaf.name == leaf.table:  # a query that was not taken apart reads the view itself
            stored.createOrReplaceTempView(STATES)
            rows = self.session.sql(head.view.read)
            self.session.catalog.dropTempView(STATES)
            return rows
        return stored.select(*names, *([WEIGHT] if is_delta else ()))

    def _delta(self, source: SourceRange, leaf: Leaf) -> DataFrame | None:
        """The weighted rows of the changed files; None if there are none."""
        changes = source.changes or Changes((), ())
        if not changes.added and not changes.removed:
            return None
        self.rows_read += changes.rows
        name = source.head.table_name
        columns = list(dict.fromkeys(leaf.columns))
        names = [f"`{column}`" for column in columns]
        added = self._read(name, changes.added).selectExpr(*names, f"1 AS {WEIGHT}")
        if not changes.removed:
            return added
        both = added.unionAll(self._read(name, changes.removed).selectExpr(*names, f"-1 AS {WEIGHT}"))
        both.createOrReplaceTempView("`__both`")
        # Rows that were only copied from file to file cancel here, before they cost anything.
        net = net_rows("__both", [(each, each) for each in columns], WEIGHT, identities(added.select(*names).schema))
        return self.session.sql(
            f"SELECT {', '.join(names)}, CAST(SIGN({WEIGHT}) AS INT) AS {WEIGHT} "
            f"FROM (SELECT * FROM ({net}) WHERE {WEIGHT} <> 0) "
            f"LATERAL VIEW EXPLODE(SEQUENCE(CAST(1 AS BIGINT), ABS({WEIGHT}))) __n AS __n"
        )

    def _version(self, source: SourceRange, leaf: Leaf) -> DataFrame | None:
        """The rows of one version of a table; None if no file has any."""
        snapshot_id = source.end if leaf.version == "new" else source.start
        if snapshot_id is None:
            return None
        pruning = [prune for prune in leaf.prunes if self._keys.get(prune.keys) is not None]
        if not pruning and _is_current_schema(source.head, snapshot_id):
            self.rows_read += source.head.rows(snapshot_id)
            return read_snapshot(self.session, source.head.table_name, snapshot_id)
        files, condition = self._files(leaf), AlwaysTrue()
        for prune in pruning:
            keys = self._keys[prune.keys]
            assert keys is not None
            found = KeySet(keys.column(prune.position), source.head.table.schema().find_field(prune.column))
            files, condition = found.files(files), And(condition, found.row_filter)  # type: ignore[assignment]
        self.rows_read += sum(file.record_count for file in files)
        return self._read(source.head.table_name, files, condition) if files else None

    def _files(self, leaf: Leaf) -> Sequence[DataFile]:
        source = self._ranges[leaf.table]
        snapshot_id = source.end if leaf.version == "new" else source.start
        return plan_scan(source.head.table, snapshot_id, AlwaysTrue(), self._cache).files

    def _read(
        self, table: TableName, files: Sequence[DataFile], condition: BooleanExpression | None = None
    ) -> DataFrame:
        return self._stack.enter_context(read_files(self.session, table, files, condition))

    def provide_sources(self, sources: Iterable[SourceColumns]) -> None:
        """Whole sources under their plain names, for a query that is run as it is written."""
        leaves = [Leaf(s.table.name, s.table.name, "new", tuple(name for name, _ in s.columns)) for s in sources]
        self.provide(Reads(tuple(leaves)))

    def provide_table(self, name: TableName, table: Table, snapshot_id: int | None, under: str) -> None:
        """All rows of a table at a snapshot."""
        files = plan_scan(table, snapshot_id, AlwaysTrue(), self._cache).files
        self._read(name, files).createOrReplaceTempView(under)

    def provide_view(self, view: View, retract: str) -> None:
        """The view's own rows, of the files that may hold one of the keys that `retract` names."""
        files: Sequence[DataFile] = plan_scan(view.table, view.snapshot_id, AlwaysTrue(), self._cache).files
        condition: BooleanExpression = AlwaysTrue()
        keys = next((found for name, found in self._keys.items() if f"`{name}`" in retract), None)
        if keys is not None:
            for place, name in enumerate(Layout.from_json(view.layout).keys):
                found = KeySet(keys.column(place), view.table.schema().find_field(name))
                files, condition = found.files(files), And(condition, found.row_filter)
        self.rows_read += sum(file.record_count for file in files)
        self._read(view.table_name, files, condition).createOrReplaceTempView(VIEW)


def _has_as_they_are(stored: pa.Schema, columns: Iterable[str], schema: Schema) -> bool:
    """Whether a file has these columns as the table has them now: it may be older than a name or a type."""
    wanted = [arrow_field(schema.find_field(name)) for name in columns]
    return all(each.name in stored.names and stored.field(each.name).equals(each, True) for each in wanted)


def _is_current_schema(head: Head, snapshot_id: int) -> bool:
    snapshot = head.table.metadata.snapshot_by_id(snapshot_id)
    return snapshot is not None and snapshot.schema_id == head.table.metadata.current_schema_id
