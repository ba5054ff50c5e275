"""`CHANGES BETWEEN`: the rows of a topic that came, went or changed between two snapshots, at the cost of the change.

Files that came hold rows with weight +1, files that went with -1 (`storage/changes.py`). Equal rows cancel, so what was
only copied does not show. Of what is left, a row that went and one that came under the same offset are an update.
Both engines say this in their own words: DuckDB here, Spark in `change_rows_spark`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from headwater.catalog.topics import Topic
from headwater.serving.agreement import ScanNeeds
from headwater.serving.plan import Changed, Scan
from headwater.sql.moments import AsOf
from headwater.storage.changes import Changes, between
from headwater.storage.scan import FileScan, ManifestCache
from headwater.storage.schemas import arrow_schema
from headwater.storage.time_travel import Named, find_snapshot
from headwater.types import OFFSET

CHANGE = "_change"
INSERTED, DELETED, FROM, TO = "inserted", "deleted", "updated_from", "updated_to"
WEIGHT = "__weight"


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """What turned a topic at snapshot `start` into the one at `end`, in the columns that the topic has now."""

    topic: Topic = field(repr=False)
    start: int
    end: int
    changes: Changes

    @property
    def schema(self) -> Schema:
        """The topic's columns, and what happened to the row."""
        columns = self.topic.schema
        kind = NestedField(columns.highest_field_id + 1, CHANGE, StringType(), required=True)
        return Schema(*columns.fields, kind, schema_id=columns.schema_id)

    def scan(self, name: str) -> Scan:
        """What a query reads of it: all columns of all files, since whether rows differ takes all of them."""
        columns = frozenset(column.name for column in self.topic.schema.fields)
        files = (*self.changes.added, *self.changes.removed)
        return Scan(
            name,
            self.topic,
            ScanNeeds(columns, AlwaysTrue()),
            FileScan(self.end, files, len(files), 0, 0, 0),
            None,
            pa.Table.from_batches([], arrow_schema(self.topic.schema)),
            at=self.schema,
            changed=Changed(self.start, self.end, self.changes),
        )


def topic_changes(topic: Topic, start: AsOf, end: AsOf, cache: ManifestCache) -> TopicChanges:
    """The changes between two states of a topic; SnapshotGone if one of them is not there."""
    named = Named("topic", topic.name)
    first, last = (find_snapshot(topic.table, at, named).snapshot_id for at in (start, end))
    return TopicChanges(topic, first, last, between(topic.table, first, last, cache))


def duck_changes(columns: Sequence[str], added: str, removed: str | None) -> str:
    """DuckDB's SQL for the change rows of two queries, which give quoted `columns`; without `removed` all rows came."""
    names = ", ".join(columns)
    if removed is None:
        return f"SELECT {names}, '{INSERTED}' AS {CHANGE} FROM ({added})"  # noqa: S608
    signed = f"SELECT {names}, 1 AS {WEIGHT} FROM ({added}) UNION ALL SELECT {names}, -1 FROM ({removed})"  # noqa: S608
    # Grouped, -0.0 and 0.0 are one value, and so are all NaN: what is shown is one that a file has.
    net = f"SELECT {names}, sum({WEIGHT}) AS {WEIGHT} FROM ({signed}) GROUP BY {names} HAVING sum({WEIGHT}) <> 0"  # noqa: S608
    pair = f'count(*) OVER (PARTITION BY "{OFFSET}") > 1'
    return f"SELECT {names}, {_kind(pair)} AS {CHANGE} FROM ({net})"  # noqa: S608


def _kind(pair: str) -> str:
    """Both engines' SQL for what happened to a row; `pair` tells whether its offset came and went."""
    came = f"CASE WHEN {pair} THEN '{TO}' ELSE '{INSERTED}' END"
    return f"CASE WHEN {WEIGHT} > 0 THEN {came} WHEN {pair} THEN '{FROM}' ELSE '{DELETED}' END"


def kind_in_spark() -> str:
    """Spark's SQL for what happened to a row that is left."""
    return _kind(f"count(*) OVER (PARTITION BY `{OFFSET}`) > 1")
