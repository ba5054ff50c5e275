"""A view's changes as its snapshots bring them: one step per snapshot, in order, each row with what happened to it.

A step is the difference of two readings of the view, at a snapshot and at the one before it. A row of a view that holds
plain rows is new (`+`) or gone (`-`). A view that holds groups shows each group that changed as it is now (`~`), and a
group that is not there any more as it was (`-`). Two things keep the cost at what changed, and change no answer:

- Where a snapshot only appended whole rows, those rows are the difference, and nothing else is read.
- Otherwise both readings are cut down to the groups of which a row came or went.

Only DuckDB reads parts of a table. What it cannot answer as Spark does is compared as a whole, on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import IntegerType

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import BASE, SIGN, View, Views
from headwater.errors import QueryFailed, SnapshotGone
from headwater.serving.held_rows import HeldRows
from headwater.serving.moment import Given, Part
from headwater.serving.plan import Mask
from headwater.serving.result import Result
from headwater.serving.tail_request import TailRequest, mark_number, quoted
from headwater.serving.tailing import Page, Run
from headwater.sql.moments import AsOf
from headwater.sql.statements import Query
from headwater.storage.changes import Changes, between
from headwater.storage.scan import ManifestCache
from headwater.storage.time_travel import Named, find_snapshot, line_of

OP = "_op"
NEW, GONE, NOW = "+", "-", "~"
PAGE_ROWS = 1000
MAX_TOUCHED = 200_000
"""Rows that came and went up to which readings are cut down to their groups."""
_NOTHING, _WHOLE = "0", "0:"
"""In marks: before the first row, and before a snapshot whose rows are all shown as new."""
_SORTED = frozenset(["boolean", "tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz"])


@dataclass(frozen=True, slots=True)
class Step:
    """From a snapshot of a view (None: before the first) to another."""

    start: int | None
    end: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The rows of these files are what changed."""

    files: tuple[DataFile, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Compared:
    """Two readings are compared: for the groups of which these files have rows, or as wholes if there are none."""

    touched: tuple[DataFile, ...] = field(repr=False)


def plan_step(view: View, layout: Layout, changes: Changes) -> Appended | Compared:
    """How a step is read that comes to these changes of the view's files."""
    if layout.limit is not None or layout.offset is not None:
        return Compared(())  # which rows are among the first depends on all
    if not changes.removed and layout.kind != "states" and all(_only_adds(view, file) for file in changes.added):
        return Appended(changes.added)
    return Compared((*changes.added, *changes.removed) if changes.rows <= MAX_TOUCHED else ())


def _only_adds(view: View, file: DataFile) -> bool:
    """Whether no row of the file takes another one back."""
    lower = (file.lower_bounds or {}).get(view.schema.find_field(SIGN).field_id)
    return lower is not None and int(from_bytes(IntegerType(), lower)) > 0


def step_text(asked: TailRequest, layout: Layout, step: Step, *, appended: bool) -> str:
    """Spark SQL for the rows of a step, each with what happened to it, those that are gone first."""
    news = _news(asked.name, layout, step, appended)
    gone_first = f"`{OP}` = '{GONE}' DESC"
    order = ", ".join([gone_first, *(quoted(name) for name, of, _ in layout.outputs if of in _SORTED)])
    chosen = f"`{OP}`, {asked.selected}" if asked.columns else "*"
    return f"SELECT {chosen} FROM ({news}) AS `{asked.name}` WHERE {asked.condition} ORDER BY {order}"  # noqa: S608


def _news(name: str, layout: Layout, step: Step, appended: bool) -> str:
    mark = NEW if layout.kind == "rows" else NOW
    after = f"SELECT * FROM mv('{name}') VERSION AS OF {step.end}"  # noqa: S608
    if appended or step.start is None:
        return _marked(mark, after)
    before = f"SELECT * FROM mv('{name}') VERSION AS OF {step.start}"  # noqa: S608
    came, went = f"{after} EXCEPT ALL {before}", f"{before} EXCEPT ALL {after}"
    if layout.kind != "rows" and not layout.keys:
        return _marked(mark, came)
    shown = {sql.strip("`"): name for name, _, sql in layout.outputs}
    if layout.kind != "rows" and all(key in shown for key in layout.keys):
        same = " AND ".join(f"b.{quoted(shown[key])} <=> a.{quoted(shown[key])}" for key in layout.keys)
        went = f"SELECT b.* FROM ({before}) AS b LEFT ANTI JOIN ({after}) AS a ON {same}"  # noqa: S608
    return f"{_marked(GONE, went)} UNION ALL {_marked(mark, came)}"


def _marked(mark: str, rows: str) -> str:
    return f"SELECT '{mark}' AS `{OP}`, * FROM ({rows})"  # noqa: S608


class ViewTail:
    """The changes of one view."""

    def __init__(self, views: Views, manifests: ManifestCache, held: HeldRows, run: Run, asked: TailRequest) -> None:
        self._views = views
        self._manifests = manifests
        self._held = held
        self._run = run
        self._asked = asked
        view = views.load(asked.name)
        self._made_by = (view.id, view.schema.schema_id)
        columns = [name.lower() for name, _, _ in Layout.from_json(view.layout).outputs]
        asked.check_columns(f'materialized view "{view.name}"', columns)
        self._seen, self._skip = self._first(view)
        self._step: Step | None = None
        self._given = 0
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._result: Result | None = None
        if view.snapshot_id is not None:  # a mistake in the condition is told now, not when something changes
            nothing = Given(parts={view.snapshot_id: Part(())})
            self._answered(view, Step(None, view.snapshot_id), nothing, appended=True).close()

    @property
    def at(self) -> str:
        if self._step is not None:
            return _mark(self._step, self._given)
        return _NOTHING if self._seen is None else str(self._seen)

    def poll(self) -> Page | None:
        if self._step is None and not self._begin():
            return None
        assert self._step is not None
        step, given = self._step, self._given
        batch = next(self._rows, None)
        if batch is None:
            self._seen, self._step = step.end, None
            return Page(pa.RecordBatch.from_pylist([], pa.schema([])), self.at, lambda _: self.at)
        self._given += batch.num_rows
        return Page(batch, self.at, lambda place: _mark(step, given + place + 1))

    def close(self) -> None:
        if self._result is not None:
            self._result.close()
        self._result, self._rows = None, iter(())

    def _first(self, view: View) -> tuple[int | None, int]:
        """The snapshot behind which the tail begins, and how many rows of the next one were shown already."""
        start = self._asked.start
        if self._asked.after is not None:
            return self._after(view, self._asked.after)
        if start.kind == "earliest":
            return None, 0
        if start.kind == "latest":
            return view.snapshot_id, 0
        at = AsOf(timestamp=start.moment.isoformat()) if start.moment is not None else AsOf(version=start.number)
        return find_snapshot(view.table, at, Named("materialized view", view.name)).snapshot_id, 0

    def _after(self, view: View, mark: str) -> tuple[int | None, int]:
        snapshot, _, place = mark.partition("/")
        if snapshot == _NOTHING:
            return None, 0
        from_nothing = snapshot.startswith(_WHOLE)
        snapshot = snapshot.removeprefix(_WHOLE)
        found = find_snapshot(view.table, AsOf(version=mark_number(snapshot)), Named("materialized view", view.name))
        before = None if from_nothing else found.parent_snapshot_id
        return (before, mark_number(place)) if place else (found.snapshot_id, 0)

    def _begin(self) -> bool:
        """Begin the next step that changes anything; whether there is one."""
        view = self._loaded()
        while (step := next_step(view, self._seen)) is not None:
            changes = between(view.table, step.start, step.end, self._manifests)
            if changes.rows:
                self._result = self._read(view, step, changes)
                self._step, self._given = step, self._skip
                self._rows, self._skip = _pages(self._result, self._skip), 0
                return True
            self._seen = step.end
        return False

    def _loaded(self) -> View:
        view = self._views.load(self._asked.name)
        if (view.id, view.schema.schema_id) != self._made_by:
            raise SnapshotGone(
                f'materialized view "{view.name}" was replaced while it was followed',
                detail="What its new query gives cannot be compared with what the old one gave.",
                hint="Follow it anew from latest.",
            )
        return view

    def _read(self, view: View, step: Step, changes: Changes) -> Result:
        layout = Layout.from_json(view.layout)
        plan = plan_step(view, layout, changes)
        given = self._cut_down(view, layout, step, plan)
        return self._answered(view, step, given, appended=isinstance(plan, Appended))

    def _answered(self, view: View, step: Step, given: Given | None, *, appended: bool) -> Result:
        """The rows of a step: from what is given if DuckDB can, else from the whole of both snapshots."""
        layout = Layout.from_json(view.layout)
        try:
            if given is not None:
                text = step_text(self._asked, layout, step, appended=appended)
                return self._run(Query(text, engine="duckdb"), given)
        except QueryFailed as failed:
            if type(failed) is not QueryFailed:  # it was stopped
                raise
        return self._run(Query(step_text(self._asked, layout, step, appended=False)), None)

    def _cut_down(self, view: View, layout: Layout, step: Step, plan: Appended | Compared) -> Given | None:
        """What of the two snapshots has to be read; None: all of them."""
        if isinstance(plan, Appended):
            return Given(parts={step.end: Part(plan.files)})
        keys = layout.keys or tuple(name for name in layout.columns if name not in (SIGN, BASE))
        if not plan.touched or (layout.kind != "rows" and not layout.keys):
            return None
        rows = self._held.read(plan.touched, view.schema.column_names)
        if rows is None:
            return None
        part = Part(mask=Mask(keys, rows.select(list(keys)).group_by(list(keys)).aggregate([]), True))
        return Given(parts={snapshot: part for snapshot in (step.start, step.end) if snapshot is not None})


def next_step(view: View, seen: int | None) -> Step | None:
    """The step behind a snapshot: to the next one on the way to now, or to now where that way is not known."""
    if view.snapshot_id is None or view.snapshot_id == seen:
        return None
    if seen is not None and view.table.metadata.snapshot_by_id(seen) is None:
        raise SnapshotGone(
            f'snapshot {seen} of materialized view "{view.name}" has expired',
            detail="What changed since cannot be told any more.",
            hint="Follow it anew from latest.",
        )
    own = takewhile(lambda each: each.schema_id == view.schema.schema_id, line_of(view.table, view.snapshot_id))
    newest: Sequence[int] = [snapshot.snapshot_id for snapshot in own]  # not those of a query that was replaced
    if seen is not None and seen not in newest:  # it was rolled back, or what came between has expired
        return Step(seen, view.snapshot_id)
    return Step(seen, newest[newest.index(seen) - 1] if seen is not None else newest[-1])


def _mark(step: Step, given: int) -> str:
    return f"{_WHOLE if step.start is None else ''}{step.end}/{given}"


def _pages(result: Result, skip: int) -> Iterator[pa.RecordBatch]:
    for batch in result.batches():
        left, skip = batch.slice(skip), max(0, skip - batch.num_rows)
        for start in range(0, left.num_rows, PAGE_ROWS):
            yield left.slice(start, PAGE_ROWS)
