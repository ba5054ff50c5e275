"""Spark's plans as Python values: what a parsed plan is made of, and what an analyzed one reads.

Asking a JVM object for its parts over py4j costs a round trip per node, so a small Java class walks the plan inside the
JVM and returns text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.spark.compiled import compiled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


@dataclass(frozen=True, slots=True)
class PlanParts:
    """Everything that a parsed plan is made of, subqueries and CTEs included; a name is the tuple of its parts, and a
    hint its name and parameters."""

    root: str
    nodes: frozenset[str]
    values: frozenset[str]
    relations: frozenset[tuple[str, ...]]
    functions: frozenset[tuple[str, ...]]
    table_functions: frozenset[tuple[str, ...]]
    hints: frozenset[tuple[str, ...]]
    ctes: frozenset[str]
    flags: frozenset[str]


def parse_plan(session: SparkSession, text: str) -> Any:
    """Spark's own parsed, unresolved plan of `text`, as a JVM object; nothing is looked up or run."""
    return session._jsparkSession.sessionState().sqlParser().parsePlan(text)


def plan_parts(session: SparkSession, plan: Any) -> PlanParts:
    """The parts of a parsed plan."""
    return read_parts(_walker(session).parts(plan))


def read_parts(text: str) -> PlanParts:
    """The parts that PlanWalker wrote as lines."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for kind, *fields in _lines(text):
        found.setdefault(kind, set()).add(tuple(fields))
    names = {kind: frozenset(found.pop(kind, set())) for kind in ("relation", "function", "table_function", "hint")}
    single = {kind: frozenset(each for (each,) in found.pop(kind, set())) for kind in ("node", "value", "cte")}
    ((root,),) = found.pop("root")
    return PlanParts(
        root=root,
        nodes=single["node"],
        values=single["value"],
        relations=names["relation"],
        functions=names["function"],
        table_functions=names["table_function"],
        hints=names["hint"],
        ctes=single["cte"],
        flags=frozenset(found),
    )


@dataclass(frozen=True, slots=True)
class PlanReads:
    """What an analyzed plan is made of and reads.

    A leaf is its class and a description of its source, which is equal for two instances of the same source.
    """

    nodes: frozenset[str]
    leaves: frozenset[tuple[str, str]]


def plan_reads(frame: DataFrame) -> PlanReads:
    """What the frame's analyzed plan is made of and reads."""
    lines = list(_lines(_walker(frame.sparkSession).reads(frame._jdf.queryExecution().analyzed())))
    return PlanReads(
        nodes=frozenset(line[1] for line in lines if line[0] == "node"),
        leaves=frozenset((line[1], line[2]) for line in lines if line[0] == "leaf"),
    )


def _lines(text: str) -> Iterator[list[str]]:
    for line in text.split("\n"):
        if line:
            yield [_unescape(field) for field in line.split("\t")]


def _unescape(field: str) -> str:
    if "\\" not in field:
        return field
    characters = iter(field)
    return "".join(_ESCAPES[next(characters)] if each == "\\" else each for each in characters)


def _walker(session: SparkSession) -> Any:
    return compiled(session, "PlanWalker")
