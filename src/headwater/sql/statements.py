"""What can be asked of Headwater, one frozen value per statement. Every surface builds these; the engine runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headwater.sql.alter_changes import Origin, TopicChange
from headwater.sql.moments import NEWEST, AsOf
from headwater.types import StreamDefinition, TopicDefinition, ViewDefinition

Engine = Literal["auto", "duckdb", "spark"]

SHOWN_REFRESHES = 20
"""How many refreshes are shown unless the statement says it."""

SHOWN_STEPS = 50
"""How many steps of maintenance are shown unless the statement says it."""

MaintenanceStep = Literal["retention", "compact", "expire", "manifests", "deletions", "orphans"]
"""What the care of a table consists of, in the order in which it is done."""

SHOWN_SNAPSHOTS = 100
"""How many snapshots are shown unless the statement says it."""

RefKind = Literal["tag", "branch"]

SAMPLED_ROWS = 100_000
"""Rows on which recommendations are tried unless the statement says it."""


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
class AlterTopic:
    """Make the changes in their order, all of them or none; with `dry_run` only say what they would do."""

    name: str
    changes: tuple[TopicChange, ...]
    dry_run: bool = False
    origins: tuple[Origin, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ShowSchemas:
    """The columns that a topic has had, from the first to those it has now."""

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


@dataclass(frozen=True, slots=True)
class ShowSnapshots:
    """The latest snapshots of a topic or a view, newest first; `kind` is what the name is known to be."""

    name: str
    limit: int = SHOWN_SNAPSHOTS
    kind: Literal["topic", "view", "any"] = "any"


@dataclass(frozen=True, slots=True)
class ShowRefs:
    """The tags or branches of a topic; both when `kind` is None."""

    topic: str
    kind: RefKind | None = None


@dataclass(frozen=True, slots=True)
class CreateRef:
    """Name a snapshot of a topic; `retain` seconds after which the name may go, for ever when it is None."""

    kind: RefKind
    name: str
    topic: str
    at: AsOf = NEWEST
    retain: float | None = None
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropRef:
    kind: RefKind
    name: str
    topic: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RollbackTopic:
    """Make a topic what it was, if its snapshot is still `base` where that is said; `dry_run` tells what would be."""

    topic: str
    to: AsOf
    base: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CherryPick:
    """Apply to a topic what a snapshot did that is not part of it any more."""

    topic: str
    version: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DiffTopic:
    """How a topic at `end` differs from itself at `start`, in numbers."""

    topic: str
    start: AsOf
    end: AsOf


@dataclass(frozen=True, slots=True)
class Optimize:
    """Pack and sort a topic's files where that pays; all of them if `full`. `dry_run` only says what would be done."""

    topic: str
    full: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Maintain:
    """Take care of a topic or a view, or of all tables; every step when `only` is empty."""

    name: str | None = None
    only: tuple[MaintenanceStep, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ShowMaintenance:
    """The latest steps of maintenance, those that run included, newest first; of all tables when `name` is None."""

    name: str | None = None
    limit: int = SHOWN_STEPS


@dataclass(frozen=True, slots=True)
class ShowParquetStats:
    """What a topic's files are made of, column by column; `distinct` false leaves out how many values there are."""

    topic: str
    distinct: bool = True


@dataclass(frozen=True, slots=True)
class ShowParquetSchema:
    """The Parquet columns of a topic's newest file, and how other files differ."""

    topic: str


@dataclass(frozen=True, slots=True)
class Recommend:
    """What would store a topic in less space or read it quicker, tried on a sample; `apply` alters the topic so."""

    topic: str
    apply: bool = False
    sample_rows: int = SAMPLED_ROWS


@dataclass(frozen=True, slots=True)
class CreateStream:
    definition: StreamDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class DropStream:
    """Forget a stream; the topic stays."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterStream:
    """Change the options that `values` names, and no others; values are those that WITH takes, checked already."""

    name: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ShowStreams:
    pass


@dataclass(frozen=True, slots=True)
class DescribeStream:
    name: str


@dataclass(frozen=True, slots=True)
class StartStream:
    """Run a continuous view, or the connector of a stream."""

    name: str


@dataclass(frozen=True, slots=True)
class StopStream:
    """Finish what is under way of a continuous view or a connector, and do not run it again until it is started."""

    name: str


@dataclass(frozen=True, slots=True)
class RestartStream:
    """Stop and start a continuous view or a connector."""

    name: str


@dataclass(frozen=True, slots=True)
class ShowStreamStatus:
    """How continuous views and connectors run; all of them when `name` is None."""

    name: str | None = None


ParquetStatement = ShowParquetStats | ShowParquetSchema | Recommend
CareStatement = Optimize | Maintain | ShowMaintenance
TopicStatement = CreateTopic | DropTopic | ShowTopics | DescribeTopic | AlterTopic | ShowSchemas | FlushTopic
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
StreamStatement = (
    CreateStream
    | DropStream
    | AlterStream
    | ShowStreams
    | DescribeStream
    | StartStream
    | StopStream
    | RestartStream
    | ShowStreamStatus
)
SnapshotStatement = ShowSnapshots | ShowRefs | CreateRef | DropRef | RollbackTopic | CherryPick | DiffTopic
Statement = (
    Query
    | Explain
    | TopicStatement
    | RowStatement
    | ViewStatement
    | StreamStatement
    | SnapshotStatement
    | CareStatement
    | ParquetStatement
)
