"""The job that keeps one view by a streaming query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headwater.catalog.progress import Progress, progress_of
from headwater.catalog.views import View, Views
from headwater.streaming.keep import Keeper
from headwater.streaming.plan import Continuous, not_streamed_any_more

if TYPE_CHECKING:
    from headwater.streaming.run import Observed, Run

LOOK_EVERY = 1.0
"""Seconds between two looks at the topics: what other processes commit wakes nobody here."""
DRAIN = 30.0


class ViewJob:
    """Runs the query of a view until it is stopped, or the view has another query."""

    def __init__(self, view: View, views: Views, keeper: Keeper, plan: Callable[[View], Continuous]) -> None:
        self.name = view.name
        self._view = view
        self._views = views
        self._keeper = keeper
        self._plan = plan
        self._run: Run | None = None

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        plan = self._plan(self._view)
        run = self._run = self._keeper.resume(plan, self._view)
        try:
            try:
                run.start()
            except Exception:
                if (why := self._keeper.check(plan)) is not None:  # another Spark than the one that began it
                    raise not_streamed_any_more(self.name, why) from None
                raise
            while not stop.is_set() and self._is_mine():
                wake.wait(LOOK_EVERY)
                wake.clear()
                run.look()
                if not run.active:
                    run.wait()  # raises why
                    return
        finally:
            run.stop(grace=DRAIN)

    def _is_mine(self) -> bool:
        if not self._views.exists(self.name):
            return False
        view = self._views.load(self.name)
        if _runs_by(view) != _runs_by(self._view):
            return False  # it is started again, by what was altered
        found = progress_of(view.table.metadata.properties)
        return found is not None and self._run is not None and found.folder == self._run.sink.progress.folder

    @property
    def observed(self) -> Observed | None:
        return self._run.observed() if self._run is not None else None

    @property
    def read(self) -> Mapping[str, int]:
        """Up to which offset every topic has been read by this run."""
        return self._run.sink.read if self._run is not None else {}

    @property
    def progress(self) -> Progress | None:
        """As of the last batch, which need not be in the table yet."""
        return self._run.sink.progress if self._run is not None else None


def _runs_by(view: View) -> tuple[object, ...]:
    """The options that a run keeps to from its start."""
    return view.definition.options.trigger, view.definition.options.kafka_options
