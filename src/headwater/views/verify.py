"""Compares a view with its query, run anew over the very snapshots that the view's contents stand for.

The query's own text is run, not what a refresh would run: a mistake in taking it apart shows too. Numbers that are not
exact are compared as far as they are meant to agree: floats to nine digits, sketches not at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from sqlglot import exp

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import STATES, View
from headwater.errors import SnapshotGone
from headwater.spark.jobs import query_errors
from headwater.storage.scan import ManifestCache
from headwater.types import TableName
from headwater.views.analyse import Opaque, parsed
from headwater.views.analyse.functions import function_name, pinned
from headwater.views.plan import SourceRange, check_sources
from headwater.views.refresh import Workspace
from headwater.views.sources import Head
from headwater.views.text import plain_query

EXAMPLES = 5
COMPARED = 20_000
"""Rows that differ in any digit, up to which they are compared one by one."""

_UNSURE = frozenset(("row_number", "ntile", "first", "first_value", "last", "last_value", "any_value", "lag", "lead"))
_UNSURE |= frozenset(("collect_list", "array_agg", "max_by", "min_by", "nth_value", "mode", "listagg", "string_agg"))


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome: rows that the view has and the query lacks, and the other way round, with examples of each."""

    view: str
    snapshot_id: int | None
    rows: int
    extra: int
    missing: int
    examples: tuple[str, ...]
    skipped: tuple[str, ...]
    sample: int | None
    seconds: float

    @property
    def equal(self) -> bool:
        return not self.extra and not self.missing


def run_verification(
    view: View, heads: Mapping[TableName, Head], sample: int | None, session: SparkSession, cache: ManifestCache
) -> Verified:
    """Compare the view's current snapshot with its query at the view's position."""
    started = time.perf_counter()
    check_sources(view, heads)
    position, layout = view.position, Layout.from_json(view.layout)
    ranges = {}
    for source in view.sources:
        head, at = heads[source.table], position.snapshots[source.table]
        if at is not None and head.table.metadata.snapshot_by_id(at) is None:
            raise SnapshotGone(
                f'snapshot {at} of "{head.name}" has expired', hint="Refresh the view, then verify it again."
            )
        ranges[head.name] = SourceRange(head, at, at, None)
    with Workspace(session, ranges, cache) as space:
        space.provide_sources(view.sources)
        space.provide_table(view.table_name, view.table, view.snapshot_id, STATES)
        compared = [name for name, _, _ in layout.outputs if name not in _skipped(layout, view)]
        kept = ", ".join(_rounded(name, of) for name, of, _ in layout.outputs if name in compared)
        limit = _sampled(layout, sample)
        ours = f"SELECT {kept} FROM ({view.read}){limit}"
        theirs = f"SELECT {kept} FROM ({_text(view)}){limit}"
        with query_errors():
            space.run(ours).createOrReplaceTempView("__ours")
            space.run(theirs).createOrReplaceTempView("__theirs")
            rows = int(space.run("SELECT COUNT(*) FROM __ours").collect()[0][0])
            extra = _difference(space, "__ours", "__theirs")
            missing = _difference(space, "__theirs", "__ours")
    extra_rows, missing_rows = _paired(extra, missing)
    examples = [f"only in the view: {row}" for row in extra_rows[:EXAMPLES]]
    examples += [f"only in the query: {row}" for row in missing_rows[:EXAMPLES]]
    return Verified(
        view.name,
        view.snapshot_id,
        rows,
        len(extra_rows),
        len(missing_rows),
        tuple(examples),
        tuple(name for name, _, _ in layout.outputs if name not in compared),
        sample,
        time.perf_counter() - started,
    )


def _text(view: View) -> str:
    """The query with now() as it was at the refresh."""
    text = plain_query(view.definition.query)
    moment = view.position.now
    if moment is None:
        return text
    try:
        tree = pinned(parsed(text))
    except Opaque:
        return text

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Placeholder):
            said = f"TIMESTAMP '{moment}'"
            return exp.Var(this=said if node.name == "now" else f"CAST({said} AS DATE)")
        return node

    return str(tree.transform(put).sql(dialect="spark"))


def _skipped(layout: Layout, view: View) -> frozenset[str]:
    """Outputs that two runs of the query need not agree on: sketches, and choices among equals."""
    try:
        tree = parsed(plain_query(view.definition.query))
    except Opaque:
        return frozenset()
    unsure = any(_is_unsure(node) for node in tree.walk())
    sketches = {f"value{n}" for n, state in enumerate(layout.states) if "hll" in state.merges}
    found = {name for name, _, sql in layout.outputs if any(each in sql for each in sketches)}
    if unsure and isinstance(tree, exp.Select):
        for (name, _, _), item in zip(layout.outputs, tree.expressions, strict=False):
            if any(_is_unsure(node) for node in item.walk()):
                found.add(name)
    return frozenset(found) if len(found) < len(layout.outputs) else frozenset()


def _is_unsure(node: exp.Expr) -> bool:
    return (name := function_name(node)) is not None and name in _UNSURE


def _rounded(name: str, of: str) -> str:
    quoted = f"`{name}`"
    if of in ("double", "float"):
        digits = f"9 - CAST(FLOOR(LOG10(ABS({quoted}))) AS INT)"
        plain = f"{quoted} IS NULL OR {quoted} = 0 OR isnan({quoted}) OR ABS({quoted}) > 1e300"
        shifted = f"POWER(10D, {digits})"
        return f"CASE WHEN {plain} THEN {quoted} + 0D ELSE ROUND({quoted} * {shifted}) / {shifted} END AS {quoted}"
    return f"SORT_ARRAY({quoted}) AS {quoted}" if of.startswith("array") else quoted


def _sampled(layout: Layout, sample: int | None) -> str:
    """A condition that picks about `sample` groups, the same ones on both sides."""
    shown = {name for name, _, _ in layout.outputs}
    keys = [key for key in layout.keys if key in shown]
    if sample is None or not keys:
        return ""
    listed = ", ".join(f"`{key}`" for key in keys)
    return f" WHERE PMOD(XXHASH64({listed}), GREATEST(1, (SELECT COUNT(*) FROM {STATES}) DIV {sample})) = 0"


def _difference(space: Workspace, left: str, right: str) -> list[Any]:
    return list(space.run(f"SELECT * FROM {left} EXCEPT ALL SELECT * FROM {right} LIMIT {COMPARED}").collect())


def _paired(extra: Sequence[Any], missing: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Rows that differ after all: those that only a last digit tells apart are taken as equal."""
    waiting: dict[tuple[Any, ...], list[Any]] = {}
    for row in missing:
        waiting.setdefault(_exact(row), []).append(row)
    unmatched = []
    for row in extra:
        candidates = waiting.get(_exact(row), [])
        found = next((each for each in candidates if _close(row, each)), None)
        if found is None:
            unmatched.append(row)
        else:
            candidates.remove(found)
    return unmatched, [row for rows in waiting.values() for row in rows]


def _exact(row: Any) -> tuple[Any, ...]:
    return tuple(None if isinstance(value, float) else repr(value) for value in row)


def _close(one: Any, other: Any) -> bool:
    return all(
        not isinstance(a, float)
        or not isinstance(b, float)
        or math.isclose(a, b, rel_tol=1e-8)
        or (math.isnan(a) and math.isnan(b))
        for a, b in zip(one, other, strict=True)
    )
