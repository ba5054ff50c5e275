"""Subqueries of WHERE as joins: EXISTS and IN as semi and anti joins, a scalar aggregate as a left join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from headwater.views.analyse.common import query_of, this_of, with_columns
from headwater.views.analyse.conditions import conjuncts, joined
from headwater.views.analyse.functions import contains_aggregate, function_name
from headwater.views.analyse.groups import Groups
from headwater.views.analyse.scope import Opaque, rebuilt
from headwater.views.relation import Item, column, columns, columns_of

if TYPE_CHECKING:
    from headwater.views.analyse.select import Select


def exists(
    outer: Select, query: exp.Expression, negated: bool, extra: Sequence[tuple[exp.Expression, int]] = ()
) -> None:
    """A semi or anti join with the subquery, on the conditions that name columns of both."""
    if not isinstance(query, exp.Select):
        raise Opaque("a set operation in a subquery of WHERE is not understood")
    inside = query.copy()
    linking: list[exp.Expression] = []
    select = outer.within(inside)
    select.read_from()
    kept = []
    for condition in conjuncts(this_of(inside.args.get("where"))):
        if condition.find(exp.Query) is not None:
            kept.append(condition)
            continue
        found = select.expression(condition)
        if columns_of(found) <= set(columns(select.root)):
            kept.append(condition)
        else:
            linking.append(found)
    grouped = inside.args.get("group") is not None or any(contains_aggregate(e) for e in inside.expressions)
    if linking and (grouped or inside.args.get("limit") or inside.args.get("distinct")):
        raise Opaque("a correlated subquery with groups is not understood")
    if linking:
        for condition in kept:
            select.where(condition)
        right = select.root
        values = [select.expression(inside.expressions[place].unalias()) for _, place in extra]
    else:
        answer = outer.reader.query(inside, outer.scope)
        if answer.on_read.cuts:
            raise Opaque("LIMIT inside a query has no delta rule")
        right = answer.root
        values = [column(answer.columns[place][1]) for _, place in extra]
    right, names = with_columns(outer.reader.namer, right, values)
    pairs = [exp.EQ(this=left, expression=column(name)) for (left, _), name in zip(extra, names, strict=True)]
    outer.root = joined(outer.root, right, "anti" if negated else "semi", [*linking, *pairs])


def in_query(outer: Select, node: exp.In, negated: bool) -> None:
    query = query_of(node.args["query"])
    value = outer.expression(node.this)
    outer.root, (name,) = with_columns(outer.reader.namer, outer.root, [value])
    if negated:
        answer = outer.reader.query(query, outer.scope) if isinstance(query, exp.Select) else None
        nullable = {name} | ({answer.columns[0][1]} if answer else {""})
        if not nullable <= outer.reader.required:
            raise Opaque("NOT IN with values that may be null has no delta rule; NOT EXISTS has")
    exists(outer, query, negated, [(column(name), 0)])


def with_scalars(outer: Select, condition: exp.Expression) -> exp.Expression:
    """The condition with scalar subqueries replaced by columns of joined aggregates."""

    def visit(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Exists) or (isinstance(node, exp.In) and node.args.get("query") is not None):
            raise Opaque("EXISTS and IN with a subquery are understood only as conditions of their own")
        if isinstance(node, exp.Subquery):
            return scalar(outer, query_of(node))
        if isinstance(node, exp.Column):
            return outer.expression(node)
        return rebuilt(node, visit)

    return visit(condition)


def scalar(outer: Select, query: exp.Expression) -> exp.Expression:
    """A subquery of one aggregate, joined on its correlated equalities."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1 or query.args.get("group"):
        raise Opaque("a scalar subquery that is not one aggregate is not understood")
    wanted = query.expressions[0].unalias()
    if not contains_aggregate(wanted) or any(
        function_name(each) in ("count", "count_if", "approx_count_distinct") for each in wanted.find_all(exp.Func)
    ):
        raise Opaque("a scalar subquery that is not one aggregate other than a count is not understood")
    select = outer.within(query)
    select.read_from()
    links: list[tuple[exp.Expression, exp.Expression]] = []
    for condition in conjuncts(this_of(query.args.get("where"))):
        if condition.find(exp.Query) is None:
            found = select.expression(condition)
            if not columns_of(found) <= set(columns(select.root)):
                links.append(_link(found, set(columns(select.root))))
                continue
        select.where(condition)
    keys = [Item(outer.reader.namer.fresh("key"), inside) for inside, _ in links]
    groups = Groups(outer.reader.namer, keys)
    value = groups.over(select.expression(wanted))
    right, (name,) = with_columns(outer.reader.namer, groups.relation(select.root), [value])
    outer.root, outside = with_columns(outer.reader.namer, outer.root, [outside for _, outside in links])
    conditions = [
        exp.EQ(this=column(left), expression=column(item.name)) for left, item in zip(outside, keys, strict=True)
    ]
    outer.root = joined(outer.root, right, "left", conditions)
    return column(name)


def _link(condition: exp.Expression, inside: set[str]) -> tuple[exp.Expression, exp.Expression]:
    """A correlated equality as (side of the subquery, side of the query around it)."""
    if isinstance(condition, exp.EQ):
        left, right = condition.this, condition.expression
        for mine, other in ((left, right), (right, left)):
            if columns_of(mine) <= inside and not columns_of(other) & inside:
                return mine, other
    raise Opaque("a correlated scalar subquery is understood only with equalities")
