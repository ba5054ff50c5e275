"""What becomes of late records: they are counted, kept beside the view, or folded into the windows they belong to."""

from __future__ import annotations

from headwater.catalog.progress import progress_of
from headwater.catalog.topics import Topics
from headwater.catalog.views import View
from headwater.streaming.checkpoint import Batch
from headwater.streaming.correct import Corrector
from headwater.streaming.late_rows import Late, LateFinder
from headwater.streaming.late_topics import corrections_table, late_table
from headwater.streaming.lateness import late_rules
from headwater.streaming.outbox import Append, Outbox
from headwater.streaming.plan import Continuous
from headwater.streaming.reading import TopicFiles
from headwater.streaming.sink import Handled
from headwater.topics.log import Log
from headwater.types import CORRECTIONS_SUFFIX, LATE_SUFFIX


class LateKeeper:
    """Handles the late records of every batch of one query."""

    def __init__(
        self,
        plan: Continuous,
        topics: Topics,
        read: TopicFiles,
        corrector: Corrector | None,
        log: Log,
        append: Append,
    ) -> None:
        self._plan = plan
        self._finder = LateFinder(plan, late_rules(plan), topics, read)
        self._corrector = corrector
        self._log = log
        self._append = append

    def __call__(self, view: View, batch: Batch) -> Handled:
        found = self._finder.find(batch)
        count = sum(each.rows.num_rows for each in found)
        if not count:
            return Handled()
        policy = view.definition.options.late
        if policy == "keep":
            self._keep(view, batch, found)
        if policy == "correct" and self._corrector is not None:
            return self._correct(view, batch, found[0], count)
        return Handled(count)

    def _keep(self, view: View, batch: Batch, found: list[Late]) -> None:
        outbox = self._outbox(view, LATE_SUFFIX)
        for number, each in enumerate(found):
            outbox.send((_generation(view), batch.number, number), late_table(each, batch.number, batch.late_below_ms))

    def _correct(self, view: View, batch: Batch, late: Late, count: int) -> Handled:
        assert self._corrector is not None
        done = self._corrector.correct(view, batch, late)
        if done.rows.num_rows:
            told = corrections_table(done.rows, batch.number)
            self._outbox(view, CORRECTIONS_SUFFIX).send((_generation(view), batch.number, 0), told)
        return Handled(count, done.files, self._plan.layout.kind == "rows" and bool(done.files))

    def _outbox(self, view: View, suffix: str) -> Outbox:
        return Outbox(view.name + suffix, f"stream/{view.id}/{suffix.strip('_')}", self._log, self._append)


def _generation(view: View) -> int:
    found = progress_of(view.table.metadata.properties)
    assert found is not None
    return found.generation
