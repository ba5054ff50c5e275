"""A view's query as a tree of relational operators: what the rules of incremental refresh reason about.

Every column in the tree has a name of its own (`o.amount` for column amount of the relation o), so expressions refer to
columns by name alone and subtrees can be cut out, joined and rendered anywhere. Expressions are sqlglot trees and are
never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from sqlglot import exp

JoinKind = Literal["left", "full", "semi", "anti"]


@dataclass(frozen=True, slots=True)
class Item:
    """An expression under a name."""

    name: str
    expr: exp.Expression = field(hash=False)

    @property
    def column(self) -> str | None:
        """The column that the item merely renames."""
        return column_name(self.expr)


@dataclass(frozen=True, slots=True)
class Scan:
    """A table: `columns` are (name in the tree, name in the table). `weight` names a column of signed multiplicity.

    `identities` are columns of the table that are grouped by other SQL than themselves.
    """

    table: str
    alias: str
    columns: tuple[tuple[str, str], ...]
    weight: str | None = None
    identities: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    child: Relation
    condition: exp.Expression = field(hash=False)


@dataclass(frozen=True, slots=True)
class Project:
    child: Relation
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Generate:
    """One row for each element that `generator` makes of a row; the row's columns stay."""

    child: Relation
    generator: exp.Expression = field(hash=False)
    names: tuple[str, ...]
    outer: bool = False


@dataclass(frozen=True, slots=True)
class Inner:
    """The rows of all inputs beside each other where every condition holds."""

    inputs: tuple[Relation, ...]
    conditions: tuple[exp.Expression, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Join:
    """A join in which the sides differ. `keys` are the equalities among the conditions, as pairs (left, right)."""

    left: Relation
    right: Relation
    kind: JoinKind
    conditions: tuple[exp.Expression, ...] = field(hash=False)
    keys: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Union:
    """All rows of all children, whose columns are renamed to `names` by position."""

    children: tuple[Relation, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row per group; without keys, one row. `HAVING` is a Filter above it."""

    child: Relation
    keys: tuple[Item, ...]
    values: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Distinct:
    child: Relation


@dataclass(frozen=True, slots=True)
class Window:
    """Window functions beside the child's columns; every one of them is partitioned by at least `partition`."""

    child: Relation
    items: tuple[Item, ...]
    partition: tuple[str, ...]


Relation = Scan | Filter | Project | Generate | Inner | Join | Union | Aggregate | Distinct | Window


@dataclass(frozen=True, slots=True)
class Order:
    """One item of ORDER BY: a column of the tree."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class OnRead:
    """What is applied when a view is read: it changes nothing of what is stored."""

    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int | None = None

    @property
    def cuts(self) -> bool:
        """Whether rows are left out."""
        return self.limit is not None or self.offset is not None


@dataclass(frozen=True, slots=True)
class Analysed:
    """A query taken apart: `root` makes the columns `outputs`, and those that only `on_read` uses."""

    root: Relation
    outputs: tuple[str, ...]
    on_read: OnRead = OnRead()

    @property
    def scans(self) -> tuple[Scan, ...]:
        return tuple(node for node in walk(self.root) if isinstance(node, Scan))

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the query reads, each once, in the order of the text."""
        return tuple(dict.fromkeys(scan.table for scan in self.scans))


def children(node: Relation) -> tuple[Relation, ...]:
    match node:
        case Scan():
            return ()
        case Inner():
            return node.inputs
        case Join():
            return (node.left, node.right)
        case Union():
            return node.children
        case _:
            return (node.child,)


def walk(node: Relation) -> Iterator[Relation]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def columns(node: Relation) -> tuple[str, ...]:
    """The names of the columns that the node makes."""
    match node:
        case Scan():
            return tuple(name for name, _ in node.columns)
        case Filter() | Distinct():
            return columns(node.child)
        case Project():
            return tuple(item.name for item in node.items)
        case Generate():
            return (*columns(node.child), *node.names)
        case Inner():
            return tuple(name for each in node.inputs for name in columns(each))
        case Join(kind="semi" | "anti"):
            return columns(node.left)
        case Join():
            return (*columns(node.left), *columns(node.right))
        case Union():
            return node.names
        case Aggregate():
            return tuple(item.name for item in (*node.keys, *node.values))
        case Window():
            return (*columns(node.child), *(item.name for item in node.items))


def column(name: str) -> exp.Column:
    """A reference to a column of the tree."""
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def column_name(expr: exp.Expression) -> str | None:
    """The column that an expression merely refers to."""
    if isinstance(expr, exp.Column) and not expr.table:
        return str(expr.name)
    return None


def columns_of(expr: exp.Expression) -> frozenset[str]:
    """The columns that an expression refers to."""
    return frozenset(str(found.name) for found in expr.find_all(exp.Column) if not found.table)


def substitute(expr: exp.Expression, values: dict[str, exp.Expression]) -> exp.Expression:
    """The expression with columns replaced by expressions."""

    def put(node: exp.Expression) -> exp.Expression:
        name = column_name(node)
        return values[name].copy() if name is not None and name in values else node

    return expr.copy().transform(put)
