"""Views read as if they were folded: the rows that refreshes appended are folded once, in memory, and then held.

A view's files hold whole groups (base), and what refreshes appended since, which is small. Groups that were appended to
are folded once per snapshot. A read then takes these, and of the base the others: no more work than a plain table is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

from headwater.catalog.views import BASE, SIGN, STATES, Position, View
from headwater.serving.agreement import Agreed, ScanNeeds, agree
from headwater.serving.held_rows import HeldRows, Verify, worth_holding
from headwater.serving.plan import Mask, QueryPlan, Scan
from headwater.storage.scan import FileScan, ManifestCache, plan_scan
from headwater.storage.schemas import arrow_schema

MAX_HELD = 64 * 1024**2
"""Bytes of folded groups beyond which those that were not read for longest are let go."""

MAX_VIEWS = 256
"""Snapshots of views of which folded groups are held at most."""

Run = Callable[[QueryPlan], pa.Table]


@dataclass(frozen=True, slots=True)
class Settled:
    """A view's base files, the groups of them that do not count any more, and folded rows in their place."""

    view: View = field(repr=False)
    snapshot_id: int | None
    base: tuple[DataFile, ...] = field(repr=False)
    mask: Mask | None
    rows: pa.Table = field(repr=False)

    def scan(self, name: str, needs: ScanNeeds, kept: FileScan, position: Position) -> Scan:
        """What a query reads of it, which needs the `kept` files, and what that stands for."""
        needed = {file.file_path for file in kept.files}
        files = tuple(file for file in self.base if file.file_path in needed)
        found = FileScan(self.snapshot_id, files, len(self.base), 0, len(self.base) - len(files), 0)
        return Scan(name, self.view, needs, found, None, self.rows, position, self.mask)


class Settling:
    """Folds what was appended to views, and remembers it by snapshot."""

    def __init__(self, manifests: ManifestCache, verify: Verify) -> None:
        self._manifests = manifests
        self._files = HeldRows(verify)
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int | None], Settled] = OrderedDict()

    def settle(self, view: View, snapshot_id: int | None, unseen: pa.Table | None, run: Run) -> Settled | None:
        """The view at a snapshot with unseen rows, if there are any; None where it takes too much or is not proven."""
        key = (view.id, snapshot_id)
        with self._lock:
            if unseen is None and (found := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                return found
        made = self._made(view, snapshot_id, unseen, run)
        if made is not None and unseen is None:
            with self._lock:
                self._hold(key, made)
        return made

    def _hold(self, key: tuple[str, int | None], made: Settled) -> None:
        self._held[key] = made
        size = sum(each.rows.nbytes for each in self._held.values())
        while (size > MAX_HELD or len(self._held) > MAX_VIEWS) and len(self._held) > 1:
            size -= self._held.popitem(last=False)[1].rows.nbytes

    def _made(self, view: View, snapshot_id: int | None, unseen: pa.Table | None, run: Run) -> Settled | None:
        files = plan_scan(view.table, snapshot_id, AlwaysTrue(), self._manifests).files
        base = tuple(file for file in files if view.is_base(file))
        later = [file for file in files if not view.is_base(file)]
        schema = arrow_schema(view.schema)
        if later and not worth_holding(later):
            return None
        held = self._files.read(later, schema.names) if later else None
        parts = [rows.select(schema.names).cast(schema) for rows in (held, unseen) if rows is not None]
        appended = pa.concat_tables(parts) if parts else schema.empty_table()
        settled = Settled(view, snapshot_id, base, None, appended)
        mask = _touched(view, appended)
        if mask is None:
            return settled
        folded = _folded(settled, mask, run)
        return None if folded is None else replace(settled, mask=replace(mask, among=False), rows=folded)


def _touched(view: View, appended: pa.Table) -> Mask | None:
    """The rows of the base that appended ones are folded with: those of the same keys, or those that are taken back."""
    keys = view.keys
    if not keys and view.kind == "rows":
        appended = appended.filter(pc.less(appended[SIGN], 0))
        keys = tuple(name for name in appended.column_names if name not in (SIGN, BASE))
    if not appended.num_rows:
        return None
    values = (
        appended.select(list(keys)).group_by(list(keys)).aggregate([]) if keys else appended.select([0]).slice(0, 1)
    )
    return Mask(keys, values, True)


def _folded(settled: Settled, mask: Mask, run: Run) -> pa.Table | None:
    """The appended rows folded with those of the base that they concern."""
    view = settled.view
    verdict = agree(view.compact, {STATES: view.schema})
    if not isinstance(verdict, Agreed):
        return None
    files = FileScan(settled.snapshot_id, settled.base, len(settled.base), 0, 0, 0)
    scan = Scan(STATES, view, verdict.tables[STATES], files, None, settled.rows, view.position, mask)
    schema = arrow_schema(view.schema)
    return run(QueryPlan(view.compact, "duckdb", "folded once", (scan,), verdict)).select(schema.names).cast(schema)
