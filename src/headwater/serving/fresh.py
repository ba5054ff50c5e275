"""A view read fresh without Spark: what it has not consumed is computed by DuckDB and put beside its stored rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.manifest import DataFile

from headwater.catalog.topics import Topic
from headwater.catalog.views import Position, View
from headwater.serving.agreement import Mistake, ScanNeeds, Unproven, agree
from headwater.serving.duck_files import unreadable
from headwater.serving.moment import ViewAtOnce
from headwater.serving.plan import QueryPlan, Scan
from headwater.storage.scan import FileScan
from headwater.storage.schemas import arrow_schema


@dataclass(frozen=True, slots=True)
class UnseenTable:
    """A table that the SQL of unseen rows names: files of a topic, and rows of its log."""

    name: str
    topic: Topic = field(repr=False)
    files: tuple[DataFile, ...] = field(repr=False)
    rows: pa.Table = field(repr=False)

    def scan(self, needs: ScanNeeds) -> Scan:
        files = FileScan(self.topic.snapshot_id, self.files, len(self.files), 0, 0, 0)
        return Scan(self.name, self.topic, needs, files, None, self.rows)


@dataclass(frozen=True, slots=True)
class UnseenRows:
    """The rows that a view would have more if it were refreshed now, as SQL; none where there is no SQL.

    `read` makes the view's rows of the stored and the unseen ones together, which are then at `position`.
    """

    view: View = field(repr=False)
    sql: str | None
    tables: tuple[UnseenTable, ...]
    read: str = field(repr=False)
    position: Position

    def plan(self) -> QueryPlan | None:
        """How they are computed: by DuckDB, or by Spark with the reason; None if there are none."""
        if self.sql is None:
            return None
        verdict = agree(self.sql, {table.name: table.topic.schema for table in self.tables})
        match verdict:
            case Unproven(reason):
                return QueryPlan(self.sql, "spark", reason, (), None)
            case Mistake(error):
                return QueryPlan(self.sql, "spark", error.message, (), None)
        scans = tuple(table.scan(verdict.tables[table.name]) for table in self.tables if table.name in verdict.tables)
        for scan in scans:
            if (why := unreadable(scan)) is not None:
                return QueryPlan(self.sql, "spark", why, (), None)
        return QueryPlan(self.sql, "duckdb", "proven to agree with Spark", scans, verdict)

    def beside(self, rows: pa.Table | None) -> ViewAtOnce:
        """The view with these rows beside its stored ones."""
        schema = arrow_schema(self.view.schema)
        found = schema.empty_table() if rows is None else rows.select(schema.names).cast(schema)
        return ViewAtOnce(self.view, self.view.snapshot_id, self.position, self.read, found)
