"""How columns carry the values of stored rows upwards: through select lists, joins and set operations.

A column's `stored` says for which stored rows a condition on the column decides whether they matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from pyiceberg.expressions import And
from pyiceberg.types import NestedField, StructType
from sqlglot import exp

from headwater.serving.agreement.literals import data_type
from headwater.serving.agreement.parsing import WRITTEN_CAST, has_only
from headwater.serving.agreement.pruning import kept
from headwater.serving.agreement.scope import Column, Reference, Relation, Scope
from headwater.serving.agreement.types import spark_type
from headwater.serving.agreement.values import MAX_COLUMNS, NotProven

Columns = tuple[Column, ...]


def equate(select: exp.Select, relations: list[Relation], kept_rows: Sequence[bool]) -> None:
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


def narrow(relation: Relation, conditions: Sequence[exp.Expression], scope: Scope) -> None:
    """Add conditions that rows of a relation must meet to the stored rows that they are made of."""
    references = {reference: None for column in relation.columns for reference, _ in column.stored}
    for reference in references:
        for condition in conditions:
            resolve = partial(_field, scope, relation, reference)
            reference.filter = And(reference.filter, kept(condition, resolve))


def _field(scope: Scope, relation: Relation, reference: Reference, node: exp.Expression) -> NestedField | None:
    """The field of one reference whose value an expression is, if it is a column of the relation or inside one."""
    column = _column(node, scope)
    inside: tuple[str, ...] = ()
    if column is None and isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        column, inside = _inside(node, scope)
    if column is None or not any(column is own for own in relation.columns):
        return None
    of = next((of for held, of in column.stored if held is reference), None)
    return None if of is None else _nested(of, inside)


def _inside(node: exp.Column, scope: Scope) -> tuple[Column | None, tuple[str, ...]]:
    """The column that an expression reaches into, and the names of the fields that it follows there."""
    try:
        column, fields = scope.resolve([part.name for part in node.parts])
    except NotProven:
        return None, ()
    return column, tuple(fields)


def _nested(field: NestedField, names: Sequence[str]) -> NestedField | None:
    """The field that the names lead to inside of `field`, under its whole path; None if there is not exactly one."""
    for name in names:
        inner = field.field_type.fields if isinstance(field.field_type, StructType) else ()
        found = [each for each in inner if each.name.lower() == name.lower()]
        if len(found) != 1:
            return None
        field = found[0].model_copy(update={"name": f"{field.name}.{found[0].name}"})
    return field


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


def outputs(node: exp.Select, scope: Scope) -> Columns | None:
    """The columns of the select list. Beside GROUP BY, a column that stands alone is a key of it, or Spark refuses."""
    found: list[Column] = []
    for item in node.expressions:
        if item.is_star:
            starred = _starred(node, item, scope)
            if starred is None or len(found) + len(starred) > MAX_COLUMNS:
                return None
            found += starred
        else:
            column = _column(item.unalias(), scope)
            found.append(Column(item.alias_or_name, "", None, stored=column.stored if column is not None else ()))
    ranked = any(item.find(exp.Window) for item in node.expressions)
    return cut(tuple(found)) if ranked or _nulls_keys(node.args.get("group")) else tuple(found)


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


def side_by_side(left: Columns | None, right: Columns | None) -> Columns | None:
    """The columns of a set operation, whose rows come from both sides."""
    if left is None or right is None or len(left) != len(right):
        return cut(left)
    return tuple(replace(a, stored=_both(a, b)) for a, b in zip(left, right, strict=True))


def _both(left: Column, right: Column) -> tuple[tuple[Reference, NestedField], ...]:
    # Where the sides differ in type, Spark converts one of them: '9' is more than '10', 9 is not.
    stored = (*left.stored, *right.stored)
    alike = left.stored and right.stored and len({str(of.field_type) for _, of in stored}) == 1
    return stored if alike else ()


def cut(columns: Columns | None) -> Columns | None:
    """The same columns, of which nothing below is known."""
    return None if columns is None else tuple(replace(column, stored=()) for column in columns)


def renamed(columns: Columns | None, node: exp.Expression) -> Columns | None:
    """The columns under the names that an alias with a list of columns gives them."""
    alias = node.args.get("alias")
    given = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    if not given or columns is None:
        return columns
    if len(given) != len(columns):
        return None
    return tuple(replace(column, name=name.name) for column, name in zip(columns, given, strict=True))
