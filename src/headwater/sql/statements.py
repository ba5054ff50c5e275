"""What can be asked of Headwater, one frozen value per statement. Every surface builds these; the engine runs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headwater.types import TopicDefinition

Engine = Literal["auto", "duckdb", "spark"]


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


Statement = CreateTopic | DropTopic | ShowTopics | DescribeTopic | FlushTopic | Query | Explain
