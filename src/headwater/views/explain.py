"""Plans of refreshes and the way a view is kept, in words and as plain data: what EXPLAIN answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headwater.catalog.view_layout import Layout, StateColumns
from headwater.types import ViewOptions, id_text
from headwater.views.change import AppendDelta, Recompute, RecomputeKeys, Skip
from headwater.views.define import Defined
from headwater.views.deltas import Leaf
from headwater.views.plan import RefreshPlan, SourceRange

_METHODS = {
    "skip": "nothing to do",
    "append": "append the delta",
    "keys": "compute the touched keys anew",
    "full": "recompute",
}
_VERSIONS = {"delta": "the change", "new": "as it is now", "old": "as it was"}


# -- a refresh ------------------------------------------------------------------------------------------------------


def describe(plan: RefreshPlan) -> dict[str, Any]:
    """The plan as plain data."""
    change = plan.change
    reads = None if isinstance(change, Skip) else change.reads
    return {
        "view": plan.view.name,
        "method": plan.method,
        "rule": change.rule if isinstance(change, AppendDelta | RecomputeKeys) else None,
        "reason": plan.chosen,
        "snapshot": id_text(plan.base),
        "sources": [_describe_source(each) for each in plan.ranges],
        "keys": [{"name": keys.name, "sql": keys.sql, "hint": keys.hint} for keys in reads.keys] if reads else [],
        "reads": [_describe_leaf(leaf) for leaf in reads.leaves] if reads else [],
        "rows": plan.rows,
        "full_rows": plan.full_rows,
        "sql": _statements(change),
    }


def _describe_source(each: SourceRange) -> dict[str, Any]:
    added, removed = (each.changes.added, each.changes.removed) if each.changes is not None else ((), ())
    return {
        "source": each.head.name,
        "start": id_text(each.start),
        "end": id_text(each.end),
        "known": each.changes is not None,
        "rows_added": sum(file.record_count for file in added),
        "rows_removed": sum(file.record_count for file in removed),
        "files_added": len(added),
        "files_removed": len(removed),
        "bytes": each.changes.bytes if each.changes is not None else 0,
    }


def _describe_leaf(leaf: Leaf) -> dict[str, Any]:
    return {
        "table": leaf.table,
        "version": leaf.version,
        "columns": list(dict.fromkeys(leaf.columns)),
        "pruned_by": [{"column": prune.column, "keys": prune.keys} for prune in leaf.prunes],
        "compared_as": [{"column": column, "type": of} for column, of in leaf.casts],
    }


def _statements(change: Skip | AppendDelta | RecomputeKeys | Recompute) -> list[str]:
    match change:
        case Skip():
            return []
        case RecomputeKeys():
            return [change.retract, change.insert]
        case AppendDelta() | Recompute():
            return [change.sql]


def render(plan: RefreshPlan) -> list[str]:
    """The plan as lines of text."""
    said = describe(plan)
    rule = f" (rule {said['rule']})" if said["rule"] else ""
    lines = [f"refresh {said['view']}: {_METHODS[plan.method]}{rule}", f"why: {said['reason']}"]
    for source in said["sources"]:
        lines += _render_source(source)
    lines += [f"first: keys {keys['name']}{' (to skip files)' if keys['hint'] else ''}" for keys in said["keys"]]
    lines += [_render_leaf(leaf) for leaf in said["reads"]]
    if said["sql"]:
        lines.append(f"estimate: {_counted(plan.rows, 'row')} to read; a recompute would read {plan.full_rows:,}")
    lines += [f"sql: {' '.join(sql.split())}" for sql in said["sql"]]
    return lines


def _render_source(source: dict[str, Any]) -> list[str]:
    start = "empty" if source["start"] is None else source["start"]
    if source["start"] == source["end"]:
        return [f"source {source['source']}: snapshot {source['end']}, unchanged"]
    return [f"source {source['source']}: snapshot {start} → {source['end']}", f"  {_render_changes(source)}"]


def _render_changes(source: dict[str, Any]) -> str:
    if not source["known"]:
        return "what changed is not known"
    came = f"{_counted(source['rows_added'], 'row')} came in {_counted(source['files_added'], 'file')}"
    went = f"{_counted(source['rows_removed'], 'row')} went with {_counted(source['files_removed'], 'file')}"
    size = _counted(source["bytes"], "byte")
    if source["files_added"] and source["files_removed"]:
        return f"{came}, {went}, {size}; rows in both were only copied, and cancel"
    if not source["files_added"] and not source["files_removed"]:
        return "no row came or went: files were only put together"
    return f"{came if source['files_added'] else went}, {size}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _render_leaf(leaf: dict[str, Any]) -> str:
    pruned = ", ".join(f"{each['column']} in {each['keys']}" for each in leaf["pruned_by"])
    only = f", only where {pruned}" if pruned else ""
    for each in leaf["compared_as"]:
        only += f"; {each['column']} is compared as {each['type']}, so no file is skipped by it"
    return f"read {leaf['table']}, {_VERSIONS[leaf['version']]}: {', '.join(leaf['columns']) or 'no column'}{only}"


# -- a view ---------------------------------------------------------------------------------------------------------


def kept(layout: Layout, options: ViewOptions) -> str:
    """How a view follows its sources, as a whole sentence."""
    if options.method == "full":
        return "Every refresh recomputes it, because refresh = 'full'."
    if layout.recomputes is not None:
        return f"Every refresh recomputes it: {layout.recomputes}."
    if layout.kind == "latest":
        return "A stream keeps it: it emits the groups that changed, and the newest row of a group counts."
    if layout.kind == "rows":
        keys = ", or all rows of a touched key are computed anew" if layout.keys else ""
        return f"Refreshes are incremental: rows of the answer follow from rows of the change{keys}."
    if layout.invertible:
        return "Refreshes are incremental: groups are kept as states that add up."
    return (
        "Refreshes are incremental: groups are kept as states that add up; where rows leave the sources, the touched "
        "groups are computed anew."
    )


def describe_view(layout: Layout, options: ViewOptions) -> dict[str, Any]:
    """How a view is kept, as plain data."""
    return {
        "kind": layout.kind,
        "incremental": layout.recomputes is None and options.method != "full",
        "kept": kept(layout, options),
        "keys": list(layout.keys),
        "states": [
            {"columns": list(state.columns), "value": _value(state), "invertible": state.invertible}
            for state in layout.states
        ],
        "on_read": list(_on_read(layout)),
    }


def _value(state: StateColumns) -> str:
    """The aggregate's value over the columns that hold its state."""
    value = state.final
    for mark, name in zip(state.suffixes or map(str, range(len(state.columns))), state.columns, strict=True):
        value = value.replace(f"{{{mark}}}", name)
    return value


def _on_read(layout: Layout) -> Iterable[str]:
    if layout.having:
        yield f"HAVING {' AND '.join(layout.having)}"
    if layout.order:
        yield "ORDER BY " + ", ".join(f"{sort.column}{' DESC' if sort.descending else ''}" for sort in layout.order)
    if layout.limit is not None:
        yield f"LIMIT {layout.limit}"
    if layout.offset is not None:
        yield f"OFFSET {layout.offset}"


def describe_defined(defined: Defined) -> dict[str, Any]:
    """How a view would be kept, as plain data."""
    return {
        "view": defined.definition.name,
        **describe_view(defined.layout, defined.definition.options),
        "columns": [{"name": name, "type": of} for name, of, _ in defined.layout.outputs],
        "sources": [head.name for head in defined.heads],
        "table": [{"name": name, "type": of} for name, of in defined.columns],
    }


def render_defined(defined: Defined) -> list[str]:
    """How a view would be kept, as lines of text."""
    said = describe_defined(defined)
    lines = [
        f"view {said['view']}: {said['kept']}",
        f"columns: {_typed(said['columns'])}",
        f"sources: {', '.join(said['sources'])}",
        f"table holds: {said['kind']}" + (f", by {', '.join(said['keys'])}" if said["keys"] else ""),
    ]
    for state in said["states"]:
        invertible = "rows can be taken back" if state["invertible"] else "rows cannot be taken back"
        lines.append(f"state of {state['value']}: {', '.join(state['columns'])}; {invertible}")
    lines += [f"on read: {each}" for each in said["on_read"]]
    lines.append(f"table columns: {_typed(said['table'])}")
    return lines


def _typed(columns: Iterable[dict[str, str]]) -> str:
    return ", ".join(f"{each['name']} {each['type']}" for each in columns)
