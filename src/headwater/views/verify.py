"""Compares a view with its query, run anew over the very snapshots that the view's contents stand for.

The query's own text is run, not what a refresh would run: a mistake in taking it apart shows too. Numbers that are not
exact are compared as far as they are meant to agree: floats to nine digits, sketches not at all. Spark adds up the
values of an average of BIGINT as floats, in any order, so that large ones of both signs leave nothing of the small
ones; a view has the exact sum. Such averages of plain columns are computed exactly here, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.types import LongType
from pyspark.sql import SparkSession
from sqlglot import exp

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import STATES, View
from headwater.errors import SnapshotGone
from headwater.spark.jobs import query_errors
from headwater.storage.compare_spark import compare
from headwater.storage.scan import ManifestCache
from headwater.types import TableName
from headwater.views.analyse import Opaque, parsed
from headwater.views.analyse.functions import function_name, pinned
from headwater.views.plan import SourceRange, check_sources
from headwater.views.refresh import Workspace
from headwater.views.sources import Head
from headwater.views.text import plain_query

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
        shown = [name for name, _, _ in layout.outputs if name not in _skipped(layout, view)]
        kept = ", ".join(f"`{name}`" for name in shown)
        limit = _sampled(layout, sample)
        with query_errors():
            found = compare(
                space.run(f"SELECT {kept} FROM ({view.read}){limit}"),
                space.run(f"SELECT {kept} FROM ({_text(view, _long_columns(heads))}){limit}"),
            )
    return Verified(
        view.name,
        view.snapshot_id,
        found.rows,
        found.extra,
        found.missing,
        found.examples,
        tuple(name for name, _, _ in layout.outputs if name not in shown),
        sample,
        time.perf_counter() - started,
    )


def _long_columns(heads: Mapping[TableName, Head]) -> frozenset[str]:
    """Names that stand for BIGINT columns only, in lower case."""
    fields = [field for head in heads.values() for field in head.table.schema().fields]
    others = {field.name.lower() for field in fields if not isinstance(field.field_type, LongType)}
    return frozenset(field.name.lower() for field in fields) - others


def _text(view: View, long_columns: frozenset[str]) -> str:
    """The query with now() as it was at the refresh, and with averages of `long_columns` exact."""
    text = plain_query(view.definition.query)
    moment = view.position.now
    try:
        tree = pinned(parsed(text)) if moment is not None else parsed(text)
    except Opaque:
        return text

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Placeholder) and moment is not None:
            said = f"TIMESTAMP '{moment}'"
            return exp.Var(this=said if node.name == "now" else f"CAST({said} AS DATE)")
        if _is_long_average(node, long_columns):
            column = node.expressions[0].sql(dialect="spark")
            return exp.Var(this=f"CAST(SUM(CAST({column} AS DECIMAL(20,0))) AS DOUBLE) / NULLIF(COUNT({column}), 0)")
        return node

    if moment is None and not any(_is_long_average(node, long_columns) for node in tree.walk()):
        return text
    return str(tree.transform(put).sql(dialect="spark"))


def _is_long_average(node: exp.Expr, long_columns: frozenset[str]) -> bool:
    if not isinstance(node, exp.Anonymous) or function_name(node) not in ("avg", "mean"):
        return False
    if isinstance(node.parent, exp.Window | exp.Filter) or len(node.expressions) != 1:
        return False
    return isinstance(node.expressions[0], exp.Column) and node.expressions[0].name.lower() in long_columns


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


def _sampled(layout: Layout, sample: int | None) -> str:
    """A condition that picks about `sample` groups, the same ones on both sides."""
    shown = {name for name, _, _ in layout.outputs}
    keys = [key for key in layout.keys if key in shown]
    if sample is None or not keys:
        return ""
    listed = ", ".join(f"`{key}`" for key in keys)
    return f" WHERE PMOD(XXHASH64({listed}), GREATEST(1, (SELECT COUNT(*) FROM {STATES}) DIV {sample})) = 0"
