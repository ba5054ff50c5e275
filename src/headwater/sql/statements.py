"""What can be asked of Headwater, one frozen value per statement. Every surface builds these; the engine runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headwater.types import TopicDefinition, ViewDefinition

Engine = Literal["auto", "duckdb", "spark"]

SHOWN_REFRESHES = 20
"""How many refreshes are shown unless the statement says it."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    definition: TopicDefinition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTopic:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTopics:
    pass


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    name: str


@dataclass(frozen=True, slots=True)
class FlushTopic:
    """Commit what waits in the log now; all topics when `name` is None."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A reading statement in Spark SQL. `tail` false reads committed data only."""

    text: str
    engine: Engine = "auto"
    tail: bool = True
    max_rows: int | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    query: Query
    analyze: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class CreateView:
    definition: ViewDefinition
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class ExplainCreateView:
    """How a view would be kept, without making it."""

    definition: ViewDefinition


@dataclass(frozen=True, slots=True)
class DropView:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterView:
    """Change the options that `set` names, and no others; values are those that WITH takes, checked already."""

    name: str
    set: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ShowViews:
    pass


@dataclass(frozen=True, slots=True)
class DescribeView:
    name: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare a view with its query recomputed: `sample` groups of it, or all of it when `sample` is None."""

    sample: int | None = None


@dataclass(frozen=True, slots=True)
class RefreshView:
    """Bring a view up to date, by recomputing it if `full`; `verify` checks it afterwards."""

    name: str
    full: bool = False
    verify: Verify | None = None


@dataclass(frozen=True, slots=True)
class VerifyView:
    """Check a view as it is, without refreshing it; `sample` is that of Verify."""

    name: str
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class ExplainRefresh:
    """What the next refresh would do, and why."""

    name: str
    full: bool = False


@dataclass(frozen=True, slots=True)
class ShowRefreshes:
    """The latest refreshes, newest first; those of all views when `name` is None."""

    name: str | None = None
    limit: int = SHOWN_REFRESHES


@dataclass(frozen=True, slots=True)
class CompactView:
    name: str


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Delete the rows of a topic for which `condition` is true; every row when it is None."""

    topic: str
    condition: str | None


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """Set columns to expressions in the rows for which `condition` is true; in every row when it is None."""

    topic: str
    assignments: tuple[tuple[str, str], ...]
    condition: str | None


TopicStatement = CreateTopic | DropTopic | ShowTopics | DescribeTopic | FlushTopic
RowStatement = DeleteRows | UpdateRows
ViewStatement = (
    CreateView
    | ExplainCreateView
    | DropView
    | AlterView
    | ShowViews
    | DescribeView
    | RefreshView
    | VerifyView
    | ExplainRefresh
    | ShowRefreshes
    | CompactView
)
Statement = Query | Explain | TopicStatement | RowStatement | ViewStatement
