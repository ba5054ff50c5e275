"""Which views are to be refreshed now, and in which order: pure, over what was seen of them and of their sources.

A view is due by its own mode. Whatever it stands on is refreshed with it, so that all of it stands for one set of
source snapshots; only a view that is refreshed by hand stays as it is until somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Literal

from headwater.types import VIEWS, TableName, ViewOptions

PULLED = ("immediate", "periodic", "on_query")
"""The modes of views that are refreshed when a view above them is."""


@dataclass(frozen=True, slots=True)
class At:
    """A table at a moment: which one it is, its snapshot, and a word that changes when its definition does."""

    id: str
    snapshot: int | None
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the schedule knows of a view; `position` is what it has consumed, `clock` whether time alone changes it."""

    name: str
    options: ViewOptions
    at: At
    position: Mapping[TableName, tuple[str | None, int | None]]
    refreshed_at: float = 0.0
    clock: bool = False


Shape = tuple[str | None, ...]
"""What decides whether a view's query means anything: the view and its sources as they are, None for a missing one."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How the refreshes of a view went that this process began."""

    started_at: float = 0.0
    ended_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    shape: Shape | None = None
    error: str | None = None

    def failed(self, began: float, error: str, shape: Shape, now: float, wait: float) -> Standing:
        """The standing after one more failure; the next try has to wait, unless the shape changes."""
        return Standing(began, now, self.failures + 1, now + wait, shape, error)


@dataclass(frozen=True, slots=True)
class Scene:
    """All views and the tables that they read, as one look found them; standings by the id of the view's table."""

    views: Mapping[str, Watched]
    tables: Mapping[TableName, At]
    standings: Mapping[str, Standing] = field(default_factory=dict)

    def standing(self, name: str) -> Standing:
        return self.standings.get(self.views[name].at.id, Standing())

    def pulled(self, name: str) -> list[str]:
        """The views that it reads and that are refreshed with it."""
        named = [table.name for table in self.views[name].position if table.namespace == VIEWS]
        return [each for each in named if each in self.views and self.views[each].options.mode in PULLED]

    def shape(self, name: str) -> Shape:
        view = self.views[name]
        seen = (view.at, *(self.tables.get(source) for source in sorted(view.position)))
        return tuple(None if at is None else f"{at.id} {at.shape}" for at in seen)

    def changed(self, name: str) -> str | None:
        """Which of its sources is not as the view consumed it; None if all are."""
        for source, consumed in self.views[name].position.items():
            at = self.tables.get(source)
            if at is None:
                return f'"{source.name}" is gone'
            if (at.id, at.snapshot) != consumed:
                return f'"{source.name}" moved'
        return None


Trigger = Literal["immediate", "schedule"]


@dataclass(frozen=True, slots=True)
class Due:
    """A view to refresh and why. `below` is all that it stands on; of that, `after` is refreshed in the same round."""

    name: str
    reason: str
    trigger: Trigger
    after: frozenset[str] = frozenset()
    below: frozenset[str] = frozenset()


def plan_due(scene: Scene, busy: Set[str], now: float) -> tuple[Due, ...]:
    """The refreshes to begin now, each after those that it builds on; nothing that touches a view in `busy`."""
    pulled = {name: scene.pulled(name) for name in sorted(scene.views)}
    order = list(TopologicalSorter(pulled).static_order())
    below: dict[str, frozenset[str]] = {}
    moved: dict[str, str | None] = {}
    for name in order:
        below[name] = frozenset(pulled[name]).union(*(below[each] for each in pulled[name]))
        moved[name] = scene.changed(name) or next((moved[each] for each in pulled[name] if moved[each]), None)
    held = {name for name in order if name in busy or not _may_try(scene, name, now)}
    due: dict[str, tuple[str, Trigger]] = {}
    for name in reversed(order):  # from above: what a due view stands on is due for its sake
        wanted = _wanted(scene, name, moved[name], now)
        if wanted is None or held & (below[name] | {name}):
            continue
        due[name] = wanted
        due |= {each: (f'"{name}" reads it', wanted[1]) for each in below[name] if moved[each] and each not in due}
    return tuple(Due(name, *due[name], below[name].intersection(due), below[name]) for name in order if name in due)


def _wanted(scene: Scene, name: str, moved: str | None, now: float) -> tuple[str, Trigger] | None:
    view = scene.views[name]
    match view.options.mode:
        case "immediate" if moved is not None:
            return moved, "immediate"
        case "periodic" if now >= next_start(view, scene.standing(name), now):
            why = moved or ("time has passed" if view.clock else None)
            return None if why is None else (why, "schedule")
        case _:
            return None


def next_start(view: Watched, standing: Standing, now: float) -> float:
    """When a periodic view is to be refreshed again; one that failed, and that nobody refreshed since, is overdue.

    What a clock dated that was ahead says nothing, and must not hold up refreshes until the clock is there again.
    """
    if standing.ended_at < view.refreshed_at <= now:  # by another process, of which only the commit is known
        return view.refreshed_at + view.options.interval
    return 0.0 if standing.failures or standing.started_at > now else standing.started_at + view.options.interval


def _may_try(scene: Scene, name: str, now: float) -> bool:
    standing = scene.standing(name)
    return not standing.started_at <= now < standing.retry_at or standing.shape != scene.shape(name)


def retry_after(failures: int, first: float, longest: float, chance: float) -> float:
    """Seconds to wait after so many failures in a row: twice as long each time, spread by `chance` in [0, 1)."""
    return min(longest, first * 2.0 ** min(failures - 1, 60)) * (0.5 + chance / 2)
