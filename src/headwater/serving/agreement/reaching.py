"""Which conditions of a query reach the stored tables below it, through subqueries, WITH, views, unions and groups.

A condition on a query's column holds for the stored rows below where that column is a stored one, unchanged, and where
a row has an effect on rows with its own value only. So nothing passes LIMIT, window functions or an outer join that may
put nulls in the row's place, and GROUP BY lets its keys through alone. What is not understood lets nothing through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from pyiceberg.expressions import And, Or
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from sqlglot import exp

from headwater.serving.agreement.folds import REMEMBERED, Mentioned, fold, mentioned, shown
from headwater.serving.agreement.literals import data_type
from headwater.serving.agreement.parsing import WRITTEN_CAST, has_only
from headwater.serving.agreement.pruning import applying, kept
from headwater.serving.agreement.relations import items, table_name
from headwater.serving.agreement.scope import Column, Reference, Relation, Scope
from headwater.serving.agreement.types import spark_type
from headwater.serving.agreement.values import Folded, NotProven, Tables

Columns = tuple[Column, ...]
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
            found = _side_by_side(self.query(node.this, known), self.query(node.expression, known))
        elif isinstance(node, exp.Subquery):
            found = self.query(node.this, known)
        elif isinstance(node, exp.Table):
            self._source(node, known)
        else:
            self._inside(node, known)
        opaque = type(node) not in TRANSPARENT or not has_only(node, *TRANSPARENT[type(node)])
        return _cut(found) if opaque else found

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
        return _renamed(self.query(common.this, known), common)

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
        return Relation(node.alias_or_name or None, _renamed(columns, node) or ())

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
        _equate(node, relations, asked.kept)
        scope = Scope(tuple(relations))
        for relation, conditions in zip(relations, asked.conditions, strict=False):
            _narrow(relation, conditions, scope)
        rows = [
            relation if keeps else Relation(relation.qualifier, _cut(relation.columns) or ())
            for relation, keeps, shown in zip(relations, asked.kept, asked.visible, strict=False)
            if shown
        ]
        return _outputs(node, Scope(tuple(rows)))


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


def _equate(select: exp.Select, relations: list[Relation], kept_rows: Sequence[bool]) -> None:
    """Where a join matches equal values only, a row on its right has an effect on rows with that value on its left;
    in an inner join also the other way round."""
    for number, join in enumerate(select.args.get("joins") or (), 1):
        side, kind = join.side.upper(), join.kind.upper()
        if side in ("RIGHT", "FULL") or not join.args.get("on"):
            continue
        inner = not side and kind not in ("SEMI", "ANTI")
        scope = Scope(tuple(relations[: number + 1]))
        for one, other in _equal_columns(join.args["on"], scope):
            left, right = sorted((one, other), key=lambda column: _place(column, relations))
            place = _place(left, relations)
            if place < _place(right, relations) == number and kept_rows[place]:
                relations[place] = _sharing(relations[place], left, right)
                relations[number] = _sharing(relations[number], right, left) if inner else relations[number]


def _place(column: Column, relations: Sequence[Relation]) -> int:
    """Which item of FROM has the column; behind all of them when it has been replaced meanwhile."""
    found = (place for place, each in enumerate(relations) if any(column is own for own in each.columns))
    return next(found, len(relations))


def _equal_columns(on: exp.Expression, scope: Scope) -> Iterator[tuple[Column, Column]]:
    """The pairs of columns that a condition wants to be equal."""
    for part in on.flatten() if isinstance(on, exp.And) else (on,):
        if isinstance(part, exp.EQ | exp.NullSafeEQ):
            left, right = _column(part.this, scope), _column(part.expression, scope)
            if left is not None and right is not None and _both(left, right):
                yield left, right


def _sharing(relation: Relation, column: Column, other: Column) -> Relation:
    shared = tuple(replace(each, stored=_both(each, other)) if each is column else each for each in relation.columns)
    return Relation(relation.qualifier, shared)


def _narrow(relation: Relation, conditions: Sequence[exp.Expression], scope: Scope) -> None:
    references = {reference: None for column in relation.columns for reference, _ in column.stored}
    for reference in references:
        for condition in conditions:
            resolve = partial(_field, scope, relation, reference)
            reference.filter = And(reference.filter, kept(condition, resolve))


def _field(scope: Scope, relation: Relation, reference: Reference, node: exp.Expression) -> NestedField | None:
    """The field of one reference whose value an expression is, if it is a column of the relation."""
    column = _column(node, scope)
    if column is None or not any(column is own for own in relation.columns):
        return None
    return next((of for held, of in column.stored if held is reference), None)


def _column(node: exp.Expression, scope: Scope) -> Column | None:
    """The column whose value an expression is, be it in parentheses or cast to the type that it has; None otherwise."""
    if isinstance(node, exp.Paren):
        return _column(node.this, scope)
    if isinstance(node, exp.TryCast) and node.meta.get(WRITTEN_CAST):
        column = _column(node.this, scope)
        return column if column is not None and _has_type(column, node) else None
    if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
        return None
    try:
        column, fields = scope.resolve([part.name for part in node.parts])
    except NotProven:
        return None
    return None if fields else column


def _has_type(column: Column, cast: exp.Expression) -> bool:
    try:
        wanted = data_type(cast.args["to"])
        return all(spark_type(of.field_type) == wanted for _, of in column.stored)
    except NotProven:
        return False


def _outputs(node: exp.Select, scope: Scope) -> Columns | None:
    """The columns of the select list. Beside GROUP BY, a column that stands alone is a key of it, or Spark refuses."""
    found: list[Column] = []
    for item in node.expressions:
        if item.is_star:
            starred = _starred(node, item, scope)
            if starred is None:
                return None
            found += starred
        else:
            column = _column(item.unalias(), scope)
            found.append(Column(item.alias_or_name, "", None, stored=column.stored if column is not None else ()))
    ranked = any(item.find(exp.Window) for item in node.expressions)
    return _cut(tuple(found)) if ranked or _nulls_keys(node.args.get("group")) else tuple(found)


def _nulls_keys(group: exp.Expression | None) -> bool:
    """Whether a GROUP BY also gives rows in which a null stands for all values of a key."""
    if group is None:
        return False
    sets = any(isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets) for key in group.expressions)
    return sets or not has_only(group, "expressions", "all")


def _starred(select: exp.Select, node: exp.Expression, scope: Scope) -> list[Column] | None:
    star = node.this if isinstance(node, exp.Column) else node
    merged = any(join.args.get("using") or join.args.get("method") for join in select.args.get("joins") or ())
    if not has_only(star) or not has_only(node, "this", "table") or merged or select.args.get("laterals"):
        return None
    if any(not relation.columns for relation in scope.relations):
        return None
    try:
        return scope.star(node.text("table") or None)
    except NotProven:
        return None


def _side_by_side(left: Columns | None, right: Columns | None) -> Columns | None:
    """The columns of a set operation, whose rows come from both sides."""
    if left is None or right is None or len(left) != len(right):
        return _cut(left)
    return tuple(replace(a, stored=_both(a, b)) for a, b in zip(left, right, strict=True))


def _both(left: Column, right: Column) -> tuple[tuple[Reference, NestedField], ...]:
    # Where the sides differ in type, Spark converts one of them: '9' is more than '10', 9 is not.
    stored = (*left.stored, *right.stored)
    alike = left.stored and right.stored and len({str(of.field_type) for _, of in stored}) == 1
    return stored if alike else ()


def _cut(columns: Columns | None) -> Columns | None:
    """The same columns, of which nothing below is known."""
    return None if columns is None else tuple(replace(column, stored=()) for column in columns)


def _renamed(columns: Columns | None, node: exp.Expression) -> Columns | None:
    """The columns under the names that an alias with a list of columns gives them."""
    alias = node.args.get("alias")
    given = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    if not given or columns is None:
        return columns
    if len(given) != len(columns):
        return None
    return tuple(replace(column, name=name.name) for column, name in zip(columns, given, strict=True))
