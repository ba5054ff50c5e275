"""Names in a query: which column of which relation a name means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from headwater.views.relation import column


class Opaque(Exception):
    """The query, or a part of it, cannot be taken apart; the reason is shown by EXPLAIN REFRESH."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Source:
    """A relation in FROM: columns as (name in the query, name in the tree); a name may be missing."""

    alias: str
    columns: tuple[tuple[str | None, str], ...]
    hidden: frozenset[str] = frozenset()  # lower-cased names that only a qualified reference means (JOIN ... USING)

    def find(self, name: str, *, qualified: bool) -> list[str]:
        if not qualified and name.lower() in self.hidden:
            return []
        return [tree for shown, tree in self.columns if shown is not None and shown.lower() == name.lower()]


@dataclass(slots=True)
class Scope:
    """The relations that a SELECT sees, and those of the query around it."""

    sources: list[Source] = field(default_factory=list)
    outer: Scope | None = None
    outer_used: set[str] = field(default_factory=set)

    def resolve(self, parts: Sequence[str]) -> exp.Expression | None:
        """The column, or the field in it, that a dotted name means here or outside; None if nothing does."""
        if (found := self._here(parts)) is not None:
            return found
        if self.outer is not None and (found := self.outer.resolve(parts)) is not None:
            self.outer_used.update(str(each.name) for each in found.find_all(exp.Column))
            return found
        return None

    def _here(self, parts: Sequence[str]) -> exp.Expression | None:
        if len(parts) > 1:
            for source in self.sources:
                if source.alias.lower() == parts[0].lower() and (found := source.find(parts[1], qualified=True)):
                    return _field(_one(found, parts[1]), parts[2:])
        found = [tree for source in self.sources for tree in source.find(parts[0], qualified=False)]
        return _field(_one(found, parts[0]), parts[1:]) if found else None


def _one(found: Sequence[str], name: str) -> str:
    if len(found) > 1:
        raise Opaque(f'column "{name}" is ambiguous')
    return found[0]


def _field(tree: str, path: Sequence[str]) -> exp.Expression:
    reached: exp.Expression = column(tree)
    for name in path:
        reached = exp.Dot(this=reached, expression=exp.to_identifier(name, quoted=True))
    return reached


class Namer:
    """Gives every relation and computed column of one query a name of its own."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._counter = 0

    def relation(self, alias: str) -> str:
        name, number = alias.lower(), 2
        while name in self._used:
            name, number = f"{alias.lower()}#{number}", number + 1
        self._used.add(name)
        return name

    def fresh(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}#{self._counter}"


def resolved(node: exp.Expression, lookup: Callable[[Sequence[str]], exp.Expression | None]) -> exp.Expression:
    """The expression with every column replaced by what its name means; lambda variables stay."""

    def visit(each: exp.Expression, bound: frozenset[str]) -> exp.Expression:
        if isinstance(each, exp.Lambda):
            bound = bound | {str(variable.name).lower() for variable in each.expressions}
        if isinstance(each, exp.Column) and not isinstance(each.this, exp.Star):
            parts = [str(part.name) for part in each.parts]
            if parts[0].lower() in bound:
                return each.copy()
            found = lookup(parts)
            if found is None:
                raise Opaque(f'name "{".".join(parts)}" is not understood')
            return found.copy()
        if isinstance(each, exp.Query) or (isinstance(each, exp.Star) and not _is_count(each.parent)):
            raise Opaque(f"{'a subquery' if isinstance(each, exp.Query) else '*'} in this place is not understood")
        return _rebuilt(each, lambda child: visit(child, bound))

    return visit(node, frozenset())


def _is_count(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "count"


def _rebuilt(node: exp.Expression, visit: Callable[[exp.Expression], exp.Expression]) -> exp.Expression:
    args: dict[str, object] = {}
    for key, value in node.args.items():
        if isinstance(value, exp.Expression):
            args[key] = visit(value)
        elif isinstance(value, list):
            args[key] = [visit(each) if isinstance(each, exp.Expression) else each for each in value]
        else:
            args[key] = value
    return type(node)(**args)


def rebuilt(node: exp.Expression, visit: Callable[[exp.Expression], exp.Expression]) -> exp.Expression:
    """A copy of the node with `visit` applied to its direct children."""
    return _rebuilt(node, visit)
