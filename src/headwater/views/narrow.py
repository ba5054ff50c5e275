"""A tree without the columns that nothing above uses: less to read, and less that could stand in a rule's way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from headwater.views.relation import (
    Aggregate,
    Analysed,
    Distinct,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Project,
    Relation,
    Scan,
    Union,
    Window,
    column,
    columns,
    columns_of,
)


def narrowed(analysed: Analysed) -> Analysed:
    """The same query with only the columns that its answer, or the way to it, needs."""
    wanted = {*analysed.outputs, *(order.column for order in analysed.on_read.order)}
    return Analysed(_narrow(analysed.root, wanted), analysed.outputs, analysed.on_read)


def _narrow(node: Relation, wanted: set[str]) -> Relation:
    """The node with at least the columns `wanted`, and as few others as can be."""
    match node:
        case Scan():
            kept = tuple(pair for pair in node.columns if pair[0] in wanted)
            return replace(node, columns=kept or node.columns[:1])
        case Filter():
            return Filter(_narrow(node.child, wanted | columns_of(node.condition)), node.condition)
        case Project():
            items = _kept(node.items, wanted) or node.items[:1]
            return Project(_narrow(node.child, _used(items)), items)
        case Generate():
            below = (wanted - set(node.names)) | columns_of(node.generator)
            return Generate(_narrow(node.child, below), node.generator, node.names, node.outer)
        case Inner():
            needed = wanted | _all(node.conditions)
            return Inner(tuple(_narrow(each, needed & set(columns(each))) for each in node.inputs), node.conditions)
        case Join():
            needed = wanted | _all(node.conditions)
            left = _narrow(node.left, needed & set(columns(node.left)))
            right = _narrow(node.right, needed & set(columns(node.right)))
            return Join(left, right, node.kind, node.conditions, node.keys)
        case Union():
            return _narrow_union(node, wanted)
        case Aggregate():
            values = _kept(node.values, wanted)
            return Aggregate(_narrow(node.child, _used((*node.keys, *values))), node.keys, values)
        case Distinct():
            return Distinct(_narrow(node.child, set(columns(node.child))))
        case Window():
            items = _kept(node.items, wanted)
            below = (wanted - {item.name for item in node.items}) | _used(items) | set(node.partition)
            child = _narrow(node.child, below & set(columns(node.child)))
            return Window(child, items, node.partition) if items else child


def _narrow_union(node: Union, wanted: set[str]) -> Union:
    places = [place for place, name in enumerate(node.names) if name in wanted] or [0]
    children = []
    for child in node.children:
        mine = [columns(child)[place] for place in places]
        narrow = _narrow(child, set(mine))
        if columns(narrow) != tuple(mine):  # columns are matched by position
            narrow = Project(narrow, tuple(Item(name, column(name)) for name in mine))
        children.append(narrow)
    return Union(tuple(children), tuple(node.names[place] for place in places))


def _kept(items: tuple[Item, ...], wanted: set[str]) -> tuple[Item, ...]:
    return tuple(item for item in items if item.name in wanted)


def _used(items: Iterable[Item]) -> set[str]:
    return {name for item in items for name in columns_of(item.expr)}


def _all(conditions: Iterable[exp.Expression]) -> set[str]:
    return {name for condition in conditions for name in columns_of(condition)}
