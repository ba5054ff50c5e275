"""Which names a query offers where: the columns of what stands in FROM, the names of a select list, and what may hide.

`whole` is the word for certainty. Whatever may bring a name in unseen takes it away: table functions, LATERAL,
generators, pivots, columns whose name Spark makes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from headwater.serving.agreement.functions import CASTS
from headwater.serving.agreement.operators import ARITHMETIC, COMPARISONS
from headwater.serving.agreement.parsing import PLAIN_NAME, has_only, names_alias
from headwater.serving.agreement.values import MAX_COLUMNS

OPERATORS = (
    *(*COMPARISONS, *ARITHMETIC, exp.And, exp.Or, exp.Not, exp.Neg, exp.DPipe, exp.Is, exp.Between, exp.In),
    *(exp.Like, exp.ILike, exp.RegexpLike, exp.Case, exp.If, exp.Exists, exp.Filter, exp.Window),
)
"""Nodes that Spark names by more than a plain word, and whose children are expressions over the same names."""

SELECT_PARTS = (
    *("expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "limit", "offset", "with_"),
    *("hint", "windows"),
)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENING = words(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer session_window stack
    variant_explode variant_explode_outer window
    """
)
"""Functions that add columns with names of their own."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Names of columns, as they were written; `whole` when there surely are no others."""

    names: tuple[str, ...] = ()
    whole: bool = False

    def has(self, name: str) -> bool:
        return any(each.lower() == name for each in self.names)


OPEN = Listed()
NONE = Listed(whole=True)


@dataclass(frozen=True, slots=True)
class Source:
    """One item of FROM: the qualifier it goes by, and its columns."""

    qualifier: str | None
    columns: Listed


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may speak about: columns of FROM, names of the select list, and the query around it.

    With `unique`, a name that two sources have is a mistake.
    """

    sources: tuple[Source, ...]
    tables: Mapping[str, Listed] = field(repr=False)
    outer: Scope | None = None
    aliases: Listed = NONE
    unique: bool = True

    @property
    def whole(self) -> bool:
        return self.aliases.whole and all(source.columns.whole for source in self.sources)

    def matching(self, parts: Sequence[str]) -> list[Source]:
        """The sources that have the column: with a qualifier if that fits any, as Spark looks for it."""
        found = [s for s in self.qualified(parts[0]) if len(parts) > 1 and s.columns.has(parts[1])]
        return found or [source for source in self.sources if source.columns.has(parts[0])]

    def qualified(self, name: str) -> list[Source]:
        return [source for source in self.sources if source.qualifier is not None and source.qualifier.lower() == name]

    def outward(self) -> Iterator[Scope]:
        """This scope, and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


def opens(node: exp.Select) -> bool:
    """Whether a SELECT may have names that its FROM does not show."""
    return (
        not has_only(node, *SELECT_PARTS)
        or names_alias(node.args.get("where"))
        or any(called(call) in OPENING for call in node.find_all(exp.Anonymous))
    )


def called(call: exp.Expression) -> str:
    return str(call.this).lower()


def renamed(columns: Listed, alias: exp.Expression | None) -> Listed:
    """The columns under the names that an alias with a list of columns gives them."""
    given = alias.args.get("columns") if alias is not None else None
    return Listed(tuple(name.name for name in given), True) if given else columns


def aliased(node: exp.Expression, columns: Listed, name: str | None) -> Source:
    return Source(node.alias or name, renamed(columns, node.args.get("alias")))


def joined(listed: Sequence[Listed]) -> Listed:
    """The columns side by side; none are known where there are too many."""
    if sum(len(each.names) for each in listed) > MAX_COLUMNS:
        return OPEN
    return Listed(tuple(name for each in listed for name in each.names), all(each.whole for each in listed))


def item_names(node: exp.Expression, scope: Scope) -> Listed:
    """The names that an item of the select list has in the result, without those that are no plain words."""
    node = core(node)
    if node.is_star:
        return _star(node, scope)
    if isinstance(node, exp.Alias):
        return Listed((node.alias,), True)
    if isinstance(node, exp.Column):
        return Listed((node.name,), True)
    if isinstance(node, exp.Literal):  # its name is its text
        return OPEN if PLAIN_NAME.match(node.name) else NONE
    if isinstance(node, exp.Dot):
        return Listed((node.expression.name,), True)
    return NONE if isinstance(node, (exp.Anonymous, exp.Bracket, exp.Subquery, *OPERATORS)) else OPEN


def core(node: exp.Expression) -> exp.Expression:
    """What gives an item its name: a column keeps it through parentheses and casts."""
    if isinstance(node, exp.Paren | exp.Cast):
        return core(node.this)
    if isinstance(node, exp.Anonymous) and called(node) in CASTS and len(node.expressions) == 1:
        return core(node.expressions[0])
    return node


def _star(node: exp.Expression, scope: Scope) -> Listed:
    star = node.this if isinstance(node, exp.Column) else node
    if not has_only(star) or not has_only(node, "this", "table"):
        return OPEN
    qualifier = node.text("table").lower()
    sources = scope.qualified(qualifier) if qualifier else scope.sources
    return joined([source.columns for source in sources]) if sources else OPEN
