"""Which conditions of a query reach the stored tables below it, through subqueries, WITH, views, unions and groups.

A condition on a query's column holds for the stored rows below where that column is a stored one, unchanged, and where
a row has an effect on rows with its own value only. So nothing passes LIMIT, window functions or an outer join that may
put nulls in the row's place, and GROUP BY lets its keys through alone. What is not understood lets nothing through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

from pyiceberg.expressions import Or
from pyiceberg.schema import Schema
from sqlglot import exp

from headwater.serving.agreement.carrying import Columns, cut, equate, narrow, outputs, renamed, side_by_side
from headwater.serving.agreement.folds import REMEMBERED, Mentioned, fold, mentioned, shown
from headwater.serving.agreement.parsing import check_unfolded, has_only
from headwater.serving.agreement.pruning import applying
from headwater.serving.agreement.relations import items, table_name
from headwater.serving.agreement.scope import Column, Reference, Relation, Scope
from headwater.serving.agreement.values import Folded, NotProven, Tables

Known = Mapping[str, Callable[[], Columns | None]]
"""Common table expressions in sight, and inside a view its stored table."""

MAX_REFERENCES = 1_000
"""Common table expressions that read one another read a table as often as there are ways to it."""

TRANSPARENT: Mapping[type[exp.Expression], tuple[str, ...]] = {
    exp.Select: (
        *("expressions", "from_", "joins", "laterals", "where", "group", "having", "distinct", "order", "with_"),
        "hint",
    ),
    exp.Subquery: ("this", "alias", "order", "with_"),
    **dict.fromkeys((exp.Union, exp.Intersect, exp.Except), ("this", "expression", "distinct", "order", "with_")),
}
"""What a query may have for conditions to pass it: LIMIT, QUALIFY, samples, pivots and the like are not here."""


def reaching(tree: exp.Expression, tables: Tables) -> dict[str, Reference]:
    """By stored table, what holds for all of its rows that have an effect on the result, wherever it is read."""
    walk = Reaching(tables, mentioned(tree))
    try:
        check_unfolded(tree)
        walk.query(tree, {})
    except (NotProven, RecursionError):
        return _unfiltered(tree, tables)
    found: dict[str, Reference] = {}
    for each in sorted(walk.references, key=lambda reference: reference.table):
        before = found.get(each.table)
        if before is None or each.filter != before.filter:
            found[each.table] = each if before is None else replace(each, filter=Or(before.filter, each.filter))
    return found


def _unfiltered(tree: exp.Expression, tables: Tables) -> dict[str, Reference]:
    found: dict[str, Reference] = {}
    for node in tree.find_all(exp.Table):
        try:
            name = table_name(node, tables)
        except NotProven:
            continue
        table = tables[name]
        stored = Reference(table.states, table.schema) if isinstance(table, Folded) else Reference(name, table)
        found[stored.table] = stored
    return dict(sorted(found.items()))


class Reaching:
    """Walks a query from its tables upwards; each condition narrows the references that it speaks about."""

    def __init__(self, tables: Tables, names: Mentioned) -> None:
        self.tables = tables
        self.names = names
        self.references: list[Reference] = []

    def query(self, node: exp.Expression, known: Known) -> Columns | None:
        """The columns of a query's result; None when they are not known."""
        known = self._with(node.args.get("with_"), known)
        found: Columns | None = None
        if isinstance(node, exp.Select):
            found = self._select(node, known)
        elif isinstance(node, exp.SetOperation):
            found = side_by_side(self.query(node.this, known), self.query(node.expression, known))
        elif isinstance(node, exp.Subquery):
            found = self.query(node.this, known)
        elif isinstance(node, exp.Table):
            self._source(node, known)
        else:
            self._inside(node, known)
        opaque = type(node) not in TRANSPARENT or not has_only(node, *TRANSPARENT[type(node)])
        return cut(found) if opaque else found

    def _with(self, node: exp.Expression | None, known: Known) -> Known:
        for common in node.expressions if node is not None else ():
            name = common.alias.lower()
            if node is not None and node.args.get("recursive"):
                known = {**known, name: lambda: None}
                self.query(common.this, known)
            else:
                known = {**known, name: partial(self._common, common, known)}
        return known

    def _common(self, common: exp.Expression, known: Known) -> Columns | None:
        return renamed(self.query(common.this, known), common)

    def _inside(self, node: exp.Expression, known: Known, *but: str) -> None:
        """Find the queries and tables anywhere inside a node, its arguments `but` left out."""
        for key, value in node.args.items():
            for child in value if isinstance(value, list) else (value,):
                if key in but or not isinstance(child, exp.Expression):
                    continue
                if isinstance(child, exp.Select | exp.SetOperation | exp.Subquery | exp.Table):
                    self.query(child, known)
                else:
                    self._inside(child, known)

    # -- FROM -----------------------------------------------------------------------------------------------------

    def _item(self, node: exp.Expression, known: Known) -> Relation:
        columns: Columns | None = None
        if isinstance(node, exp.Table):
            columns = self._source(node, known)
        elif isinstance(node, exp.Subquery):
            columns = self.query(node, known)
        else:
            self._inside(node, known)
        return Relation(node.alias_or_name or None, renamed(columns, node) or ())

    def _source(self, node: exp.Table, known: Known) -> Columns | None:
        """The columns of a table that is named; none are known of one that is sampled, pivoted or joined in place."""
        self._inside(node, known)
        common = known.get(node.name.lower()) if not node.db and isinstance(node.this, exp.Identifier) else None
        try:
            name = table_name(node, self.tables) if common is None else ""
        except NotProven:
            return None
        columns = common() if common is not None else self._stored_or_folded(name)
        return columns if has_only(node, "this", "alias", "db") else None

    def _stored_or_folded(self, name: str) -> Columns | None:
        table = self.tables[name]
        if isinstance(table, Schema):
            return self._stored(name, table)
        columns, below = _folded(table, shown(table, self.names))
        own = {each: self._refer(replace(each)) for each in below}
        return columns and tuple(
            replace(column, stored=tuple((own[each], of) for each, of in column.stored)) for column in columns
        )

    def _refer(self, reference: Reference) -> Reference:
        if len(self.references) == MAX_REFERENCES:
            raise NotProven("the statement names too many tables")
        self.references.append(reference)
        return reference

    def _stored(self, name: str, schema: Schema) -> Columns:
        reference = self._refer(Reference(name, schema))
        return tuple(Column(of.name, "", None, stored=((reference, of),)) for of in schema.fields)

    # -- SELECT ---------------------------------------------------------------------------------------------------

    def _select(self, node: exp.Select, known: Known) -> Columns | None:
        relations = [self._item(item, known) for item in items(node)]
        self._inside(node, known, "from_", "joins", "with_")
        for join in node.args.get("joins") or ():
            self._inside(join, known, "this")
        asked = applying(node)
        equate(node, relations, asked.kept)
        scope = Scope(tuple(relations))
        for relation, conditions in zip(relations, asked.conditions, strict=False):
            narrow(relation, conditions, scope)
        rows = [
            relation if keeps else Relation(relation.qualifier, cut(relation.columns) or ())
            for relation, keeps, visible in zip(relations, asked.kept, asked.visible, strict=False)
            if visible
        ]
        return outputs(node, Scope(tuple(rows)))


@lru_cache(maxsize=REMEMBERED)
def _folded(view: Folded, wanted: Mentioned) -> tuple[Columns | None, tuple[Reference, ...]]:
    """The columns of a view, and the places where its fold reads its states."""
    walk = Reaching({}, None)
    states = partial(walk._stored, view.states, view.schema)
    try:
        columns = walk.query(fold(view, wanted), {view.states: states})
    except NotProven:
        walk.references.clear()
        states()
        columns = None
    return columns, tuple(walk.references)
