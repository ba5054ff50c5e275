"""Small things that taking a SELECT apart needs in several places."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp, parse_one

from headwater.views.analyse.scope import Namer
from headwater.views.analyse.verbatim import VERBATIM
from headwater.views.relation import Item, Project, Relation, column, column_name, columns


def with_columns(namer: Namer, child: Relation, exprs: Sequence[exp.Expression]) -> tuple[Relation, list[str]]:
    """The child with a column for each expression, and the columns' names."""
    names, added = [], []
    for expr in exprs:
        name = column_name(expr)
        if name is None:
            name = namer.fresh("computed")
            added.append(Item(name, expr))
        names.append(name)
    if not added:
        return child, names
    kept = [Item(name, column(name)) for name in columns(child)]
    return Project(child, (*kept, *added)), names


def unique(exprs: Sequence[exp.Expression]) -> list[exp.Expression]:
    """Each expression once, in order."""
    return list({expr.sql(): expr for expr in exprs}.values())


def parse(text: str) -> exp.Expression:
    """An expression of our own in Spark SQL."""
    found = parse_one(text, read=VERBATIM)
    assert isinstance(found, exp.Expression)
    return found


def quoted(name: str) -> str:
    """A column of the tree in SQL."""
    return column(name).sql(dialect="spark")


def query_of(node: exp.Expression) -> exp.Expression:
    """The query inside brackets, EXISTS or a scalar subquery."""
    while isinstance(node, exp.Subquery | exp.Exists | exp.Paren):
        node = node.this
    return node


def this_of(node: exp.Expression | None) -> exp.Expression | None:
    """What a clause is about; None without the clause."""
    return None if node is None else node.this
