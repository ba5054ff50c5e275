"""A round of refreshes: one set of source snapshots for several views, so that views which meet again above agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headwater.catalog.views import P_POSITION
from headwater.errors import StaleCommit
from headwater.types import TableName
from headwater.views.change import Skip
from headwater.views.plan import RefreshPlan, SourceRange
from headwater.views.sources import Head


@dataclass(slots=True)
class Round:
    """The topics as they were when it began, and the position of each view that stands for them."""

    heads: Mapping[TableName, Head]
    positions: dict[TableName, str] = field(default_factory=dict)

    def check(self, plan: RefreshPlan, load: Callable[[TableName], Head | None]) -> None:
        """StaleCommit if the plan would mix moments: others refreshed the view, or one below it, past this round."""
        for each in plan.ranges:
            if self._is_past(each) or _is_behind(each, load):
                raise StaleCommit(
                    f'refresh of materialized view "{plan.view.name}" came too late',
                    detail=f'"{each.head.name}" was followed further by another refresh meanwhile.',
                    hint="Nothing was written twice; refresh again.",
                )

    def _is_past(self, source: SourceRange) -> bool:
        expected = self.positions.get(source.head.table_name)
        return expected is not None and source.head.table.metadata.properties.get(P_POSITION) != expected

    def reached(self, plan: RefreshPlan) -> None:
        """Remember where a view stands that the round has brought to its heads."""
        stayed = isinstance(plan.change, Skip) and not any(each.moved for each in plan.ranges)
        position = plan.view.table.metadata.properties[P_POSITION] if stayed else plan.position.to_json()
        self.positions[plan.view.table_name] = position


def _is_behind(source: SourceRange, load: Callable[[TableName], Head | None]) -> bool:
    """Whether the view stands for a snapshot that is newer than the round's."""
    if source.start is None or source.head.table.metadata.snapshot_by_id(source.start) is not None:
        return False
    now = load(source.head.table_name)  # unknown to the round: it came later, or it has expired
    return now is not None and now.table.metadata.snapshot_by_id(source.start) is not None
