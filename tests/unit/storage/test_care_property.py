"""Whatever happens to a table in whatever order: every state that its metadata names can be read as it was."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue

from headwater.storage.commit import Change, tag
from headwater.storage.maintenance.deletions import run_deletions
from headwater.storage.maintenance.expire import Keep, plan_expiry, run_expiry
from headwater.storage.maintenance.manifests import run_manifests
from headwater.storage.maintenance.orphans import orphan_plan, run_orphans
from headwater.storage.scan import ManifestCache, plan_scan

OPERATIONS = ("append", "append", "compact", "delete", "tag", "untag", "roll back", "expire", "manifests", "sweep")


class Model:
    """The rows of every state that there was, beside the table itself."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.states: dict[int, list[int]] = {}
        self.noted: set[str] = set()

    def do(self, operation: str, number: int) -> None:
        getattr(self, operation.replace(" ", "_"))(number)
        current = self.kept.topic.snapshot_id
        if current is not None and current not in self.states:
            self.states[current] = self.kept.numbers()

    def append(self, number: int) -> None:
        before = self._current()
        snapshot = self.kept.append(1 + number % 3)
        first = self.kept.topic.committed - (1 + number % 3)
        self.states[snapshot] = sorted([*before, *range(first, self.kept.topic.committed)])

    def compact(self, number: int) -> None:
        """All files become one; the rows of a file are those of its offsets."""
        live, rows = self.kept.live(), self._current()
        if live and rows == list(range(rows[0], rows[0] + len(rows))):
            done = self.kept.change(Change(self.kept.files(len(rows), start=rows[0]), live, "replace"))
            self.states[done.snapshot_id] = rows

    def delete(self, number: int) -> None:
        live = self.kept.live()
        if len(live) > 1:
            self.kept.change(Change((), [live[number % len(live)]], "overwrite"))

    def tag(self, number: int) -> None:
        if known := self._known():
            name = "headwater-view-v" if number % 2 else f"users-{number % 3}"
            tag(self.kept.load, name, known[number % len(known)])

    def untag(self, number: int) -> None:
        names = sorted(set(self.kept.table.metadata.refs) - {"main"})
        if names:
            tag(self.kept.load, names[number % len(names)], None)

    def roll_back(self, number: int) -> None:
        if known := self._known():
            with self.kept.load().manage_snapshots() as snapshots:
                snapshots.set_current_snapshot(known[number % len(known)])

    def expire(self, number: int) -> None:
        keep, later = Keep(0, 1 + number % 3), time.time() + 1000

        def note(files: Any) -> None:
            self.noted |= {file.path for file in files}

        run_expiry(self.kept.load, lambda table: plan_expiry(table.metadata, keep, later), note, self.kept.cache)

    def manifests(self, number: int) -> None:
        run_manifests(self.kept.load, ManifestCache(), least=2)

    def sweep(self, number: int) -> None:
        """Everything that may ever be deleted, at once."""
        if number % 2:
            run_deletions(self.kept.load, sorted(self.noted), ManifestCache(), lambda _: None)
            self.noted.clear()
        plan = orphan_plan(self.kept.load, ManifestCache(), time.time() + 1000, lambda: self.noted)
        run_orphans(self.kept.load, ManifestCache(), plan)

    def check(self) -> None:
        for snapshot in self._known():
            assert self.kept.numbers(snapshot) == self.states[snapshot], "a state that is kept is not what it was"

    def _current(self) -> list[int]:
        return self.states.get(self.kept.topic.snapshot_id, [])

    def _known(self) -> list[int]:
        return sorted(each.snapshot_id for each in self.kept.table.metadata.snapshots)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 100)), min_size=3, max_size=14))
def test_every_state_that_is_kept_can_be_read(make: Any, work: list[tuple[str, int]]) -> None:
    kept = make()
    model = Model(kept)
    try:
        for operation, number in [("append", 1), *work, ("expire", 0), ("sweep", 1)]:
            model.do(operation, number)
        model.check()
        live = plan_scan(kept.table, kept.topic.snapshot_id, AlwaysTrue(), ManifestCache()).files
        assert {Path(file.file_path.removeprefix("file://")) for file in live} <= kept.stored()
        if len(model._known()) == 1:
            parquet = {path for path in kept.stored() if path.suffix == ".parquet"}
            assert len(parquet) == len(live), "nothing stays that no state needs"
    finally:
        kept.topics.tables.close()
        (kept.folder / "catalog.db").unlink()
        shutil.rmtree(kept.folder / "warehouse", ignore_errors=True)
