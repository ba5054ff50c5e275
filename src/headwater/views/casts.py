"""Joined and united columns of different types, with the casts that Spark makes silently written out. Pure.

The rules of a refresh use the value of a key on both sides of a join: they collect it here and restrict the other side
by it there. That holds only if equal keys are the same value, and so of the same type: the strings '1' and '01' both
equal the number 1, and two BIGINT may equal one DOUBLE. So both sides are brought to the type in which Spark compares
them. Integers of different widths stay as they are: equal ones are the same number, and files can be skipped by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from headwater.views.analyse.common import parse, quoted
from headwater.views.analyse.conditions import equality, key_pairs
from headwater.views.analyse.scope import Opaque
from headwater.views.relation import (
    Analysed,
    Inner,
    Item,
    Join,
    Project,
    Relation,
    Scan,
    Union,
    column,
    columns,
)

INTEGERS = frozenset(("tinyint", "smallint", "int", "bigint"))


def column_type(name: str) -> str:
    """The entry of a view's types for the type of a column of the tree."""
    return f"type of {name}"


def comparison_type(pair: tuple[str, str]) -> str:
    """The entry of a view's types for the type in which Spark compares two columns of the tree."""
    return f"type of {pair[0]} = {pair[1]}"


def compared_pairs(node: Relation) -> list[tuple[str, str]]:
    """The pairs of columns that a join compares for equality."""
    conditions = node.conditions if isinstance(node, Inner | Join) else ()
    return [pair for each in conditions if (pair := equality(each)) is not None]


def with_casts(analysed: Analysed, types: Mapping[str, str]) -> Analysed:
    """The query with every key of a join, and every column of a union, in one type; Opaque if a type is unknown."""
    return replace(analysed, root=_cast(analysed.root, types))


def _cast(node: Relation, types: Mapping[str, str]) -> Relation:
    match node:
        case Scan():
            return node
        case Inner():
            inputs = [_cast(each, types) for each in node.inputs]
            conditions, wanted = _compared(node.conditions, types)
            return Inner(tuple(_extended(each, wanted) for each in inputs), conditions)
        case Join():
            conditions, wanted = _compared(node.conditions, types)
            left = _extended(_cast(node.left, types), wanted)
            right = _extended(_cast(node.right, types), wanted)
            return Join(left, right, node.kind, conditions, key_pairs(conditions, columns(left), columns(right)))
        case Union():
            return Union(tuple(_united(_cast(each, types), node.names, types) for each in node.children), node.names)
        case _:
            return replace(node, child=_cast(node.child, types))


def _compared(
    conditions: Sequence[exp.Expression], types: Mapping[str, str]
) -> tuple[tuple[exp.Expression, ...], dict[str, set[str]]]:
    """The conditions over columns of one type each, and the types to which columns have to be cast for them."""
    written, wanted = [], dict[str, set[str]]()
    for condition in conditions:
        pair = equality(condition)
        if pair is None or not _differ(pair, types):
            written.append(condition)
            continue
        common = _known(types, comparison_type(pair))
        sides = []
        for name in pair:
            if types[column_type(name)] != common:
                wanted.setdefault(name, set()).add(common)
                name = _cast_name(name, common)
            sides.append(column(name))
        written.append(exp.EQ(this=sides[0], expression=sides[1]))
    return tuple(written), wanted


def _differ(pair: tuple[str, str], types: Mapping[str, str]) -> bool:
    left, right = (_known(types, column_type(name)) for name in pair)
    return left != right and not {left, right} <= INTEGERS


def _known(types: Mapping[str, str], entry: str) -> str:
    if (found := types.get(entry)) is None:
        raise Opaque("an earlier version of Headwater built it, without the types of joined and united columns")
    return found


def _extended(node: Relation, wanted: Mapping[str, set[str]]) -> Relation:
    """The node with a further column for every cast of one of its columns."""
    made = [
        Item(_cast_name(name, of), _cast_to(name, of)) for name in columns(node) for of in sorted(wanted.get(name, ()))
    ]
    return Project(node, (*(Item(name, column(name)) for name in columns(node)), *made)) if made else node


def _united(child: Relation, names: Sequence[str], types: Mapping[str, str]) -> Relation:
    """The child of a union with its columns in the union's types."""
    items = []
    for name, mine in zip(names, columns(child), strict=True):
        common = _known(types, column_type(name))
        if _known(types, column_type(mine)) == common:
            items.append(Item(mine, column(mine)))
        else:
            items.append(Item(_cast_name(mine, common), _cast_to(mine, common)))
    return child if all(item.column is not None for item in items) else Project(child, tuple(items))


def _cast_name(name: str, of: str) -> str:
    return f"{name} as {of}"


def _cast_to(name: str, of: str) -> exp.Expression:
    return parse(f"CAST({quoted(name)} AS {of})")


def cast_column(expr: exp.Expression) -> tuple[str, str] | None:
    """The column that an expression merely casts, and the type to which it does."""
    if isinstance(expr, exp.Cast) and isinstance(expr.this, exp.Column) and not expr.this.table:
        return str(expr.this.name), expr.to.sql(dialect="spark")
    return None
