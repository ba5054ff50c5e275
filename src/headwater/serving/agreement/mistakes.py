"""Names that Spark would not find either: mistakes that are told at once, without a JVM to say so.

Only what is certain is told. A scope is judged when all its names are known (`listing.py`). Expressions are followed
through the nodes listed here; what is inside any other node is not looked at, and Spark judges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from headwater.errors import HeadwaterError, InvalidStatement, TopicNotFound
from headwater.serving.agreement.folds import listed
from headwater.serving.agreement.listing import (
    OPEN,
    OPERATORS,
    Listed,
    Scope,
    Source,
    aliased,
    core,
    item_names,
    joined,
    opens,
    renamed,
    words,
)
from headwater.serving.agreement.parsing import PLAIN_NAME, has_only
from headwater.serving.agreement.values import Mistake, Tables
from headwater.sql.cursor import closest
from headwater.types import TOPICS

FOLLOWED = (*OPERATORS, exp.Paren, exp.Alias, exp.Distinct, exp.Tuple, exp.Where, exp.Having, exp.Order, exp.Ordered)
"""Nodes whose children are expressions over the same names."""

UNITS = words("year quarter month week day dayofyear hour minute second millisecond microsecond nanosecond")
"""Words that look like columns as arguments of functions on dates."""

SILENT = words(
    """
    current_date current_time current_timestamp current_user session_user user localtimestamp grouping__id all default
    _metadata _file _pos _spec_id _partition _deleted _row_id _last_updated_sequence_number
    """
)
"""Names that Spark may know although no relation lists them."""

MOST_SHOWN = 20


class Mistaken(Exception):
    """Ends a search: the first mistake is told."""

    def __init__(self, error: HeadwaterError, *named: exp.Expression) -> None:
        places = [node.meta for node in named if "start" in node.meta]
        start, end = (places[0]["start"], places[-1]["end"] + 1) if places else (None, None)
        self.mistake = Mistake(error, start, end)


def mistake(tree: exp.Expression, tables: Tables) -> Mistake | None:
    """The first name in a query that surely means nothing or two things; None when there is none that is certain."""
    try:
        Names(tables).query(tree, {}, None)
    except Mistaken as found:
        return found.mistake
    return None


class Names:
    """Looks every name of a query up, and raises Mistaken for the first that cannot be right."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def query(self, node: exp.Expression, tables: Mapping[str, Listed], outer: Scope | None) -> Listed:
        """The result columns of a query whose common table expressions are `tables`."""
        tables = self._with(node.args.get("with_"), tables, outer)
        if isinstance(node, exp.Select):
            return self._select(node, tables, outer)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, tables, outer)
        if isinstance(node, exp.Subquery):
            return self.query(node.this, tables, outer)
        return OPEN

    def _with(
        self, node: exp.Expression | None, tables: Mapping[str, Listed], outer: Scope | None
    ) -> Mapping[str, Listed]:
        for common in node.expressions if node is not None else ():
            recursive = node is not None and node.args.get("recursive")
            columns = OPEN if recursive else self.query(common.this, tables, outer)
            tables = {**tables, common.alias.lower(): renamed(columns, common.args["alias"])}
        return tables

    def _set_operation(self, node: exp.Expression, tables: Mapping[str, Listed], outer: Scope | None) -> Listed:
        left = self.query(node.this, tables, outer)
        self.query(node.expression, tables, outer)
        scope = Scope((Source(None, left),), tables, outer)
        for item in node.args["order"].expressions if node.args.get("order") else ():
            if isinstance(item.this, exp.Column) and not item.this.table:  # a qualifier may still reach the left side
                self._check(item, scope)
        return left

    def _select(self, node: exp.Select, tables: Mapping[str, Listed], outer: Scope | None) -> Listed:
        rows = self._from(node, tables, outer)
        if opens(node):
            rows = replace(rows, sources=(*rows.sources, Source(None, OPEN)))
        self._check(node.args.get("where"), rows)
        columns = joined([item_names(item, rows) for item in node.expressions])
        given = joined([item_names(item, rows) for item in node.expressions if not _is_bare(core(item))])
        listing = replace(rows, aliases=replace(given, whole=columns.whole))
        group = node.args.get("group")
        for item in (*(group.expressions if group is not None else ()), *node.expressions):
            self._check(item, listing)
        for key in ("having", "order"):  # these look at the select list first
            self._check(node.args.get(key), replace(rows, aliases=columns, unique=False))
        return columns

    # -- FROM ---------------------------------------------------------------------------------------------------

    def _from(self, select: exp.Select, tables: Mapping[str, Listed], outer: Scope | None) -> Scope:
        origin = select.args.get("from_")
        if origin is None:
            return Scope((), tables, outer)
        scope = Scope((self._source(origin.this, tables, outer),), tables, outer)
        for join in select.args.get("joins") or ():
            both = (*scope.sources, self._source(join.this, tables, outer))
            merged = join.args.get("using") or join.args.get("method")
            scope = replace(scope, unique=scope.unique and not merged)
            self._check(join.args.get("on"), replace(scope, sources=both))
            if not has_only(join, "this", "side", "kind", "on", "using", "method"):
                both = (*both, Source(None, OPEN))
            if join.kind.upper() not in ("SEMI", "ANTI"):
                scope = replace(scope, sources=both)
        return scope

    def _source(self, node: exp.Expression, tables: Mapping[str, Listed], outer: Scope | None) -> Source:
        if isinstance(node, exp.Subquery) and has_only(node, "this", "alias"):
            return aliased(node, self.query(node.this, tables, outer), None)
        plain = isinstance(node, exp.Table) and has_only(node, "this", "alias", "db")
        if not plain or not isinstance(node.this, exp.Identifier) or node.text("db").lower() not in ("", TOPICS):
            return Source(None, OPEN)
        if not node.text("db") and node.name.lower() in tables:
            return aliased(node, tables[node.name.lower()], node.name)
        if node.name.lower() not in self.tables:
            raise Mistaken(no_table(node.name, self.tables), node.this)
        return aliased(node, listed(self.tables[node.name.lower()]), node.name)

    # -- expressions --------------------------------------------------------------------------------------------

    def _check(self, node: exp.Expression | None, scope: Scope) -> None:
        if isinstance(node, exp.Column | exp.Dot):
            self._column(node, scope)
        elif isinstance(node, exp.Query):
            self.query(node, scope.tables, scope)
        elif isinstance(node, exp.Cast | exp.Bracket):  # a bare word in brackets may be meant as a map's key
            self._check(node.this, scope)
        elif isinstance(node, exp.Anonymous):
            for argument in node.expressions:
                if not (isinstance(argument, exp.Column) and argument.name.lower() in UNITS):
                    self._check(argument, scope)
        elif node is not None and isinstance(node, FOLLOWED):
            for child in node.iter_expressions():
                self._check(child, scope)

    def _column(self, node: exp.Expression, scope: Scope) -> None:
        root = node
        while isinstance(root, exp.Dot):
            root = root.this
        if not isinstance(root, exp.Column):
            self._check(root, scope)
        elif not isinstance(root.this, exp.Star) and all(
            PLAIN_NAME.match(i.name) for i in node.find_all(exp.Identifier)
        ):
            self._resolve([part for part in root.parts if isinstance(part, exp.Identifier)], scope)

    def _resolve(self, written: Sequence[exp.Identifier], scope: Scope) -> None:
        parts = [part.name.lower() for part in written]
        if parts[0] in SILENT:
            return
        found = scope.matching(parts)
        if len(found) > 1 and scope.unique and scope.whole:
            raise Mistaken(_ambiguous(written, found), *written)
        for each in scope.outward():
            if not each.whole or each.matching(parts) or each.aliases.has(parts[0]):
                return
        if len(parts) > 2 and not any(each.qualified(parts[0]) for each in scope.outward()):
            return  # it may begin with a catalog
        raise Mistaken(_no_column(written, parts, scope), *written)


def _is_bare(node: exp.Expression) -> bool:
    """Whether an item is a column alone, which does not vouch for its own name."""
    return isinstance(node, exp.Column) and not node.table


def no_table(name: str, names: Iterable[str]) -> HeadwaterError:
    """What to say of a name that is neither a topic's nor a view's, of those that there are."""
    near = closest(name, tuple(names))
    hint = f'Did you mean "{near}"?' if near else "`SHOW TOPICS` and `SHOW MATERIALIZED VIEWS` list them."
    return TopicNotFound(f'topic or view "{name}" does not exist', hint=hint)


def _no_column(written: Sequence[exp.Identifier], parts: Sequence[str], scope: Scope) -> HeadwaterError:
    asked = [source for each in scope.outward() for source in each.qualified(parts[0])] if len(parts) > 1 else []
    if asked:
        known = {name: None for source in asked for name in source.columns.names}
        near = closest(parts[1], tuple(known))
        detail = f'Columns of "{written[0].name}" are {_list(known)}.'
    else:
        known = {name: None for each in scope.outward() for name in _names(each, qualified=len(parts) > 1)}
        near = closest(".".join(parts), tuple(known))
        detail = f"Columns here are {_list(known)}." if known else "There is no table to read it from."
    hint = f'Did you mean "{near}"?' if near else None
    return InvalidStatement(f'column "{_dotted(written)}" does not exist', detail=detail, hint=hint)


def _names(scope: Scope, *, qualified: bool) -> Iterator[str]:
    for source in scope.sources:
        prefix = f"{source.qualifier}." if qualified and source.qualifier else ""
        yield from (prefix + name for name in source.columns.names)
    if not qualified:
        yield from scope.aliases.names


def _list(names: Mapping[str, None]) -> str:
    shown = list(names)[:MOST_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _ambiguous(written: Sequence[exp.Identifier], found: Sequence[Source]) -> HeadwaterError:
    owners = [source.qualifier for source in found if source.qualifier]
    name = _dotted(written)
    distinct = len(set(map(str.lower, owners))) == len(found) and len(written) == 1
    return InvalidStatement(
        f'column "{name}" is ambiguous',
        detail=f"{len(found)} tables of this FROM have it.",
        hint=f"Write {' or '.join(f'{owner}.{name}' for owner in owners)}." if distinct else "Give each an alias.",
    )


def _dotted(written: Sequence[exp.Identifier]) -> str:
    return ".".join(part.name for part in written)
