"""Closed windows that late records belong to, computed anew from the topic and put in place of the old rows.

What a batch corrects is committed with the batch, so a repeated batch corrects the same windows to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.manifest import DataFile
from sqlglot import exp

from headwater.catalog.topics import Topics
from headwater.catalog.view_layout import EPOCH
from headwater.catalog.views import BASE, SIGN, STATES, View
from headwater.errors import InvalidStatement
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.view_tables import view_target
from headwater.streaming.checkpoint import Batch
from headwater.streaming.late_rows import Late
from headwater.streaming.lateness import late_rules
from headwater.streaming.plan import Continuous, parsed
from headwater.types import OFFSET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TAKEN = 10_000
"""Windows that one batch corrects one by one; more are corrected from the first to the last of them."""


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """The column of a view that tells a row's window: by its start, or by its end."""

    name: str
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Corrected:
    """Rows that changed, each with its sign in the last column, and the files that hold them for the view."""

    rows: pa.Table
    files: tuple[DataFile, ...]


def window_column(plan: Continuous) -> WindowColumn | None:
    """The column that tells the window of a row, if the query groups by one at its top."""
    tree = parsed(plan.outline.text)
    if not isinstance(tree, exp.Select) or not tree.args.get("group"):
        return None
    for (name, _), item in zip(plan.outline.outputs, tree.expressions, strict=False):
        written = item.unalias().sql(dialect="spark").lower().replace("`", "")
        if written.endswith(("window.start", "window.end")):
            return WindowColumn(name, written.endswith("end"))
    return None


def check_correctable(plan: Continuous) -> None:
    """InvalidStatement unless late records can be folded into closed windows of the view."""
    rules = late_rules(plan)
    windows = len(plan.outline.windows) == 1 and [rule.kind for rule in rules.values()] == ["window"]
    if windows and len(plan.outline.inputs) == 1 and window_column(plan) is not None:
        return
    raise InvalidStatement(
        f"materialized view \"{plan.name}\" does not take late = 'correct'",
        detail="It takes a query that groups one stream by TUMBLE or HOP of its event time, with its start or end.",
        hint="Use late = 'keep', or a view with refresh = 'immediate', which is always complete.",
    )


class Corrector:
    """Corrects the closed windows of one view."""

    def __init__(
        self, plan: Continuous, topics: Topics, spark: Callable[[], SparkSession], cache: ManifestCache
    ) -> None:
        column = window_column(plan)
        assert column is not None
        self._plan = plan
        self._topics = topics
        self._spark = spark
        self._cache = cache
        self._column = column
        (self._input,) = plan.outline.streams
        self._rule = late_rules(plan)[self._input.table.name]

    def correct(self, view: View, batch: Batch, late: Late) -> Corrected:
        """The windows that the late records belong to, as they are with them."""
        from headwater.spark.arrow_spark import collect
        from headwater.storage.write_spark import write_frame

        starts = self._rule.closed(late.moments, batch.late_below_ms * 1000)
        with self._changed(view, batch, starts) as changed:
            rows = collect(changed).sort_by(SIGN)  # what goes before what comes
            if not rows.num_rows:
                return Corrected(rows, ())
            stored = changed.selectExpr("*", f"FALSE AS {BASE}")
            if self._plan.layout.kind == "latest":
                # The newest row of a group counts: nothing is taken back.
                stored = stored.where(f"{SIGN} > 0").selectExpr("*", f"CAST({batch.number} AS BIGINT) AS {EPOCH}")
            return Corrected(rows, tuple(write_frame(stored, view_target(view))))

    @contextmanager
    def _changed(self, view: View, batch: Batch, starts: Sequence[int]) -> Iterator[DataFrame]:
        from headwater.spark.gate_spark import isolated
        from headwater.storage.read_spark import read_files

        own = isolated(self._spark())
        end = batch.ends[self._input.table.name]
        topic = self._topics.load(self._input.table.name)
        # A batch that is repeated after a long time may find its snapshot expired; offsets tell what it had.
        kept = topic.table.metadata.snapshot_by_id(end.snapshot or 0) is not None
        snapshot = end.snapshot if kept else topic.snapshot_id
        files = plan_scan(topic.table, snapshot, self._times(starts), self._cache).files
        stored = plan_scan(view.table, view.snapshot_id, self._windows(starts), self._cache).files
        with read_files(own, topic.table_name, files) as records, read_files(own, view.table_name, stored) as states:
            records.where(self._inside(starts)).where(f"`{OFFSET}` < {end.offset}").createOrReplaceTempView(
                self._input.name
            )
            states.createOrReplaceTempView(STATES)
            new = own.sql(self._plan.outline.batch).where(self._is_one_of(starts))
            old = own.sql(view.read).where(self._is_one_of(starts))
            old = old.selectExpr(*(f"CAST(`{name}` AS {of}) AS `{name}`" for name, of in new.dtypes))
            changed = new.exceptAll(old).selectExpr("*", f"1 AS {SIGN}")
            changed = changed.unionAll(old.exceptAll(new).selectExpr("*", f"-1 AS {SIGN}"))
            yield changed.localCheckpoint()

    def _times(self, starts: Sequence[int]) -> BooleanExpression:
        """Which files of the topic may hold records of the windows: most of a long topic are not read."""
        return _between(self._time, starts[0], starts[-1] + self._rule.size)

    def _windows(self, starts: Sequence[int]) -> BooleanExpression:
        """Which files of the view may hold rows of the windows."""
        told = self._told(starts)
        return _between(self._column.name, told[0], told[-1])

    def _inside(self, starts: Sequence[int]) -> str:
        micros = f"unix_micros(CAST(`{self._time}` AS TIMESTAMP))"
        return f"{micros} >= {starts[0]} AND {micros} < {starts[-1] + self._rule.size}"

    @property
    def _time(self) -> str:
        assert self._input.stream is not None
        return self._input.stream.event_time

    def _told(self, starts: Sequence[int]) -> list[int]:
        """What the view's column says of windows that start then."""
        return [each + (self._rule.size if self._column.is_end else 0) for each in starts]

    def _is_one_of(self, starts: Sequence[int]) -> str:
        moment = f"unix_micros(CAST(`{self._column.name}` AS TIMESTAMP))"
        moved = self._told(starts)
        if len(moved) > _TAKEN:
            return f"{moment} BETWEEN {moved[0]} AND {moved[-1]}"
        return f"{moment} IN ({', '.join(map(str, moved))})"


def _between(column: str, first: int, last: int) -> BooleanExpression:
    """A filter of moments, in microseconds since 1970."""
    return And(GreaterThanOrEqual(Reference(column), first), LessThanOrEqual(Reference(column), last))  # type: ignore
