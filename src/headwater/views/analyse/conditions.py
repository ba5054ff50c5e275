"""Conditions: splitting them, finding equalities, and placing each as deep in the tree as it may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from headwater.views.relation import Filter, Inner, Join, Relation, column_name, columns, columns_of


def conjuncts(condition: exp.Expression | None) -> list[exp.Expression]:
    """The parts that all have to hold."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]


def equality(condition: exp.Expression) -> tuple[str, str] | None:
    """The two columns that a condition says are equal."""
    if not isinstance(condition, exp.EQ):
        return None
    left, right = column_name(condition.this), column_name(condition.expression)
    return (left, right) if left is not None and right is not None else None


def key_pairs(
    conditions: Iterable[exp.Expression], left: Sequence[str], right: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The equalities between a column of `left` and one of `right`, as (left, right)."""
    found = []
    for condition in conditions:
        if (pair := equality(condition)) is None:
            continue
        if pair[0] in left and pair[1] in right:
            found.append(pair)
        elif pair[1] in left and pair[0] in right:
            found.append((pair[1], pair[0]))
    return tuple(dict.fromkeys(found))


def place(node: Relation, condition: exp.Expression) -> Relation:
    """The node with only the rows where the condition holds; below inner joins, and left of others, where it can be."""
    used = columns_of(condition)
    match node:
        case Inner():
            for number, each in enumerate(node.inputs):
                if used and used <= set(columns(each)):
                    inputs = (*node.inputs[:number], place(each, condition), *node.inputs[number + 1 :])
                    return Inner(inputs, node.conditions)
            return Inner(node.inputs, (*node.conditions, condition))
        case Join(kind="left" | "semi" | "anti") if used and used <= set(columns(node.left)):
            return Join(place(node.left, condition), node.right, node.kind, node.conditions, node.keys)
        case Filter():
            return Filter(place(node.child, condition), node.condition)
        case _:
            return Filter(node, condition)


def inner(inputs: Sequence[Relation], conditions: Iterable[exp.Expression] = ()) -> Relation:
    """The inner join of all inputs, those that are inner joins themselves taken apart."""
    flat: list[Relation] = []
    kept: list[exp.Expression] = []
    for each in inputs:
        if isinstance(each, Inner):
            flat += each.inputs
            kept += each.conditions
        else:
            flat.append(each)
    node: Relation = Inner(tuple(flat), tuple(kept)) if len(flat) > 1 else flat[0]
    for condition in conditions:
        node = place(node, condition)
    return node


def joined(left: Relation, right: Relation, kind: str, conditions: Sequence[exp.Expression]) -> Join:
    """A join of a kind that is not inner. Conditions on the right side alone are placed there."""
    kept: list[exp.Expression] = []
    for condition in conditions:
        used = columns_of(condition)
        if kind != "full" and used and used <= set(columns(right)):
            right = place(right, condition)
        else:
            kept.append(condition)
    keys = key_pairs(kept, columns(left), columns(right))
    return Join(left, right, kind, tuple(kept), keys)  # type: ignore[arg-type]
