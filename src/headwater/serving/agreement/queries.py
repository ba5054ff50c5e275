"""SELECT, set operations and WITH in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
from sqlglot import exp

from headwater.serving.agreement import types as t
from headwater.serving.agreement.arithmetic import positive_zero
from headwater.serving.agreement.casts import coerce
from headwater.serving.agreement.expressions import Expressions
from headwater.serving.agreement.folds import REMEMBERED, Mentioned, fold, shown
from headwater.serving.agreement.grouping import Groups, Rows, aggregates, direction
from headwater.serving.agreement.operators import in_query
from headwater.serving.agreement.parsing import names_alias, only
from headwater.serving.agreement.relations import MAX_REPEATS, From, Known, Query, Reads, repeated
from headwater.serving.agreement.scope import Scope
from headwater.serving.agreement.values import MAX_COLUMNS, Ambiguous, Folded, NotProven, Tables, Typed

SET_OPERATIONS: Mapping[type[exp.Expression], str] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}
_MODIFIERS = ("order", "limit", "offset", "with_")


class Queries:
    """Translates queries over known tables, collecting what they read."""

    def __init__(
        self,
        tables: Tables,
        reads: Reads,
        whole_structs: bool = False,
        mentioned: Mentioned = None,
        most_repeats: int | None = MAX_REPEATS,
    ) -> None:
        self.reads = reads
        self.most_repeats = most_repeats
        self.whole_structs = whole_structs
        self.mentioned = mentioned
        self.known = Known(tables, {})
        self._unread: dict[int, Callable[[], Query]] = {}

    def query(self, node: exp.Expression) -> Query:
        """Any query: a SELECT, a set operation, or one in parentheses."""
        known = self.known
        self.known = self._with(node.args.get("with_"))
        try:
            if isinstance(node, exp.Select):
                found = Select(self, node).query()
            elif type(node) in SET_OPERATIONS:
                found = self._set_operation(node)
            elif isinstance(node, exp.Subquery) and not node.args.get("alias"):
                only(node, "this", *_MODIFIERS)
                found = self._modified(self.query(node.this), node)
            else:
                raise NotProven(f"{type(node).__name__.lower()} is not proven to agree")
        finally:
            self.known = known
        self.reads.count_text(found.sql)
        return found

    def _with(self, node: exp.Expression | None) -> Known:
        if node is None:
            return self.known
        only(node, "expressions")
        known = self.known
        for common in node.expressions:
            only(common, "this", "alias")
            only(common.args["alias"], "this")
            name, visible = common.alias.lower(), known
            found = {**known.expressions, name: self._inlined(common.this, visible)}
            known = replace(known, expressions=found)
        return known

    def _inlined(self, node: exp.Expression, visible: Known) -> Callable[[], Query]:
        def translate() -> Query:
            self._unread.pop(id(node), None)
            outer, self.known = self.known, visible
            try:
                return self.query(node)
            finally:
                self.known = outer

        self._unread[id(node)] = translate
        return translate

    def folded(self, view: Folded) -> tuple[Query, frozenset[str]]:
        """The query that a view stands for, and the columns that it reads of the view's states."""
        return _folded(view, shown(view, self.mentioned), self.whole_structs)

    def prove_unread(self) -> None:
        """Prove the common table expressions that nothing read: Spark looks at them, too."""
        self.reads = Reads()
        while self._unread:
            next(iter(self._unread.values()))()

    def subquery(self, node: exp.Expression) -> tuple[str, Sequence[tuple[str, pa.DataType]]]:
        """A query inside an expression; it sees no columns of the query around it."""
        found = self.query(node)
        return found.sql, [(name or "", of) for name, of in found.columns]

    def _set_operation(self, node: exp.Expression) -> Query:
        only(node, "this", "expression", "distinct", *_MODIFIERS)
        left, right = self.query(node.this), self.query(node.expression)
        types = _unified(left, right)
        distinct = bool(node.args.get("distinct"))
        by_value = distinct or not isinstance(node, exp.Union)
        word = SET_OPERATIONS[type(node)] + ("" if distinct else " ALL")
        sql = f"{self._side(left, types, by_value)} {word} {self._side(right, types, by_value)}"
        named = tuple((name, of) for (name, _), of in zip(left.columns, types, strict=True))
        return self._modified(Query(sql, named), node)

    def _side(self, query: Query, types: Sequence[pa.DataType], by_value: bool) -> str:
        columns = []
        for number, ((_, of), to) in enumerate(zip(query.columns, types, strict=True)):
            if by_value and not t.is_comparable(to):
                raise NotProven(f'comparison of "{to}" is not proven to agree')
            value = coerce(Typed(f"c{number}", of, None), to)
            columns.append(f"{positive_zero(value) if by_value else value.sql} AS c{number}")
        return f"(SELECT {', '.join(columns)} FROM ({query.sql}) AS {self.reads.alias()})"  # noqa: S608  of translated parts

    def _modified(self, query: Query, node: exp.Expression) -> Query:
        """ORDER BY and LIMIT over a query's own columns."""
        order = node.args.get("order")
        limit = limits(node)
        if not order and not limit:
            return query
        keys = [self._position(query, item) for item in order.expressions] if order else []
        columns = ", ".join(f"c{number}" for number in range(len(query.columns)))
        sql = f"SELECT {columns} FROM ({query.sql}) AS {self.reads.alias()}"  # noqa: S608  of translated parts
        return Query(sql + (f" ORDER BY {', '.join(keys)}" if keys else "") + limit, query.columns, bool(keys))

    def _position(self, query: Query, item: exp.Expression) -> str:
        found = output_position(item.this, [name for name, _ in query.columns])
        if found is None:
            raise NotProven("ordering a set operation by an expression is not proven to agree")
        return sort_key(found, query.columns[found][1], item)


@lru_cache(maxsize=REMEMBERED)
def _folded(view: Folded, wanted: Mentioned, whole_structs: bool) -> tuple[Query, frozenset[str]]:
    reads = Reads()
    # Unlike a sequence that a query asks for, a view's row is repeated as often as it was stored.
    queries = Queries({view.states: view.schema}, reads, whole_structs, most_repeats=None)
    query = queries.query(fold(view, wanted))
    return query, frozenset(reads.columns[view.states])


def _left_out(node: exp.Expression, names: Sequence[str]) -> str:
    """The column that EXCEPT leaves out of a star, which must have exactly one of this name."""
    name = node.name.lower()
    if not isinstance(node, exp.Column) or node.table or [each.lower() for each in names].count(name) != 1:
        raise NotProven("what except leaves out of a star is not proven to agree")
    return name


def _unified(left: Query, right: Query) -> list[pa.DataType]:
    """The types of a set operation's columns: both sides have the same, one has NULL, or they are decimals, of which
    Spark takes the wider."""
    types = [(one, other) for (_, one), (_, other) in zip(left.columns, right.columns, strict=False)]
    alike = all(
        one == other or t.NULL in (one, other) or (t.is_decimal(one) and t.is_decimal(other)) for one, other in types
    )
    if len(left.columns) != len(right.columns) or not alike:
        raise NotProven("a set operation on different types is not proven to agree")
    return [t.common_type(one, other) for one, other in types]


def _unites(one: pa.DataType, other: pa.DataType) -> bool:
    return one == other or t.NULL in (one, other) or (t.is_decimal(one) and t.is_decimal(other))


def sort_key(position: int, of: pa.DataType, item: exp.Expression) -> str:
    """An ORDER BY item by position."""
    if not t.is_comparable(of):
        raise NotProven(f'ordering by "{of}" is not proven to agree')
    return f"{position + 1} {direction(item)}"


def output_position(node: exp.Expression, names: Sequence[str | None]) -> int | None:
    """The select list's column that an ordinal or a bare name means; None when it is neither."""
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
        if not 1 <= int(node.this) <= len(names):
            raise NotProven(f"there is no column {node.this}")
        return int(node.this) - 1
    if not isinstance(node, exp.Column) or node.table:
        return None
    found = [number for number, name in enumerate(names) if name and name.lower() == node.name.lower()]
    if len(found) > 1:
        raise NotProven(f'column "{node.name}" is ambiguous')
    return found[0] if found else None


def limits(node: exp.Expression) -> str:
    """LIMIT and OFFSET, which are literals."""
    found = ""
    for key in ("limit", "offset"):
        if clause := node.args.get(key):
            only(clause, "expression")
            count = clause.expression
            if not isinstance(count, exp.Literal) or count.is_string or not str(count.this).isdecimal():
                raise NotProven(f'"{key}" of anything but a number is not proven to agree')
            if int(count.this) >= 2**31:
                raise NotProven(f'"{key}" of this size is not proven to agree')
            found += f" {key.upper()} {count.this}"
    return found


def with_aliases(base: Rows, aliases: Mapping[str, Typed], node: exp.Expression) -> Typed:
    """An expression that may use names of the select list; NotProven where such a name is also another column's."""
    used = {c.name.lower() for c in node.find_all(exp.Column) if not c.table} & aliases.keys()
    for name in list(used):
        try:
            base.scope.resolve([name])
        except NotProven:
            continue
        used.discard(name)
        if base.expr(exp.column(name)).sql != aliases[name].sql:
            raise NotProven(f'"{name}" names a column and an alias')
    base.aliases = {name: aliases[name] for name in used}
    try:
        return base.expr(node)
    finally:
        base.aliases = {}


class Select:
    """Translates one SELECT: rows, then groups, then the select list, then the order."""

    def __init__(self, queries: Queries, node: exp.Select) -> None:
        only(node, "expressions", "from_", "joins", "laterals", "where", "group", "having", "distinct", *_MODIFIERS)
        self.queries = queries
        self.node = node
        self.reads = queries.reads
        origin = From(queries.known, self.reads, queries.query, queries.folded)
        self.origin, scope = origin.translate(node, self._on)
        for lateral in node.args.get("laterals") or ():
            expr, most = self._plain(scope).expr, queries.most_repeats
            self.origin, scope = repeated(self.origin, scope, lateral, self.reads.alias(), expr, most)
        self.rows = self._rows(scope)

    def _rows(self, scope: Scope) -> Rows:
        return Rows(scope, self.reads, self.queries.subquery, self.queries.whole_structs)

    def _on(self, scope: Scope, node: exp.Expression) -> str:
        if node.find(exp.Query, exp.Exists):
            raise NotProven("a subquery in a join condition is not proven to agree")
        return self._plain(scope).condition(node)

    def _plain(self, scope: Scope) -> Expressions:
        return Plain(scope, self.reads, self.queries.subquery, self.queries.whole_structs)

    def query(self) -> Query:
        """The whole of it."""
        where = self.node.args.get("where")
        origin = f" FROM {self.origin}" if self.origin else ""
        if names_alias(where):
            raise NotProven("a name in parentheses after where is an alias in Spark")
        if where is not None:
            plain = self._plain(self.rows.scope)
            origin += " WHERE " + " AND ".join(_condition(plain, part) for part in _conjuncts(where.this))
        keys = self._keys()
        if not keys and not self._aggregated():
            return self._assembled(self.rows, lambda: origin, None)
        alias = self.reads.alias()
        groups = Groups(self._rows(self.rows.scope), keys, alias)

        def inner() -> str:
            grouped = ", ".join(str(number + 1) for number in range(len(keys)))
            tail = f" GROUP BY {grouped}" if keys else ""
            return f" FROM (SELECT {groups.inner_columns(keys)}{origin}{tail}) AS {alias}"

        return self._assembled(groups, inner, self.node.args.get("having"))

    def _aggregated(self) -> bool:
        parts = [*self.node.expressions, *(self.node.args["order"].expressions if self.node.args.get("order") else ())]
        if any(aggregates(part) for part in parts):
            return True
        if self.node.args.get("having") or self.node.args.get("group"):
            raise NotProven("having without aggregates is not proven to agree")
        return False

    def _keys(self) -> list[Typed]:
        group = self.node.args.get("group")
        if group is None:
            return []
        only(group, "expressions", "all")
        keys = [self._key(node) for node in self._written_keys(group)]
        if any(not t.is_comparable(key.type) for key in keys):
            raise NotProven("grouping by this type is not proven to agree")
        return keys

    def _written_keys(self, group: exp.Expression) -> list[exp.Expression]:
        """The group keys: with ALL, whatever the select list has without an aggregate in it."""
        if not group.args.get("all"):
            return list(group.expressions)
        if any(node.is_star for node in self.node.expressions):
            raise NotProven("a star beside group by all is not proven to agree")
        return [node.unalias() for node in self.node.expressions if not aggregates(node)]

    def _key(self, node: exp.Expression) -> Typed:
        chosen = self.node.expressions
        plain = self._plain(self.rows.scope)
        if isinstance(node, exp.Literal) and not node.is_string:
            position = output_position(node, [None] * len(chosen))
            if position is None or any(e.is_star for e in chosen):
                raise NotProven("grouping by a number is not proven to agree")
            return plain.expr(chosen[position].unalias())
        try:
            return plain.expr(node)
        except Ambiguous:
            raise
        except NotProven:
            found = [e for e in chosen if isinstance(node, exp.Column) and not node.table and _is_named(e, node.name)]
            if len(found) != 1:
                raise
            return plain.expr(found[0].unalias())

    def _assembled(self, over: Rows, origin: Callable[[], str], having: exp.Expression | None) -> Query:
        output = self._output(over)
        names = [name for name, _ in output]
        aliases = {name.lower(): value for name, value in output if name}
        kept = f" WHERE {self._having(over, aliases, having)}" if having is not None else ""
        distinct = self.node.args.get("distinct")
        order = self.node.args.get("order")
        keys = [self._sort(over, output, aliases, item) for item in order.expressions] if order else []
        columns = [self._chosen(value, bool(distinct)) for _, value in output]
        if distinct is not None:
            only(distinct)
        listed = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(columns))
        sql = f"SELECT {'DISTINCT ' if distinct else ''}{listed}{origin()}{kept}"
        sql += f" ORDER BY {', '.join(keys)}" if keys else ""
        types = [value.type for _, value in output]
        return Query(sql + limits(self.node), tuple(zip(names, types, strict=True)), bool(keys))

    def _chosen(self, value: Typed, distinct: bool) -> str:
        if not distinct:
            return value.sql
        if not t.is_comparable(value.type):
            raise NotProven("distinct values of this type are not proven to agree")
        return positive_zero(value)

    def _having(self, over: Rows, aliases: Mapping[str, Typed], node: exp.Expression) -> str:
        found = with_aliases(over, aliases, node.this)
        if found.type != t.BOOLEAN or node.find(exp.Window):
            raise NotProven("this having is not proven to agree")
        return found.sql

    def _output(self, over: Rows) -> list[tuple[str | None, Typed]]:
        output: list[tuple[str | None, Typed]] = []
        for node in self.node.expressions:
            if node.is_star:
                output += self._star(over, node)
            elif isinstance(node, exp.Alias):
                only(node, "this", "alias")
                output.append((node.alias, over.expr(node.this)))
            else:
                value = over.expr(node)
                output.append((value.attribute or value.name, value))
            if len(output) > MAX_COLUMNS:
                raise NotProven("it has too many columns")
        return output

    def _star(self, over: Rows, node: exp.Expression) -> list[tuple[str | None, Typed]]:
        star = node.this if isinstance(node, exp.Column) else node
        only(star, "except_")
        qualifier = node.table if isinstance(node, exp.Column) else None
        if isinstance(node, exp.Column):
            only(node, "this", "table")
        columns = over.scope.star(qualifier)
        but = [_left_out(each, [column.name for column in columns]) for each in star.args.get("except_") or ()]
        return [(each.name, over.column(each, each.name)) for each in columns if each.name.lower() not in but]

    def _sort(
        self, over: Rows, output: Sequence[tuple[str | None, Typed]], aliases: Mapping[str, Typed], item: exp.Expression
    ) -> str:
        position = output_position(item.this, [name for name, _ in output])
        if position is None:
            if self.node.args.get("distinct"):
                raise NotProven("ordering distinct rows by an expression is not proven to agree")
            if item.this.find(exp.Window):
                raise NotProven("ordering by a window function is not proven to agree")
            value = with_aliases(over, aliases, item.this)
            equal = [number for number, (_, other) in enumerate(output) if other.sql == value.sql]
            if not equal and (not t.is_comparable(value.type) or value.constant):
                raise NotProven("ordering by this is not proven to agree")
            if not equal:
                return f"{value.sql} {direction(item)}"
            position = equal[0]
        return sort_key(position, output[position][1].type, item)


def _is_named(node: exp.Expression, name: str) -> bool:
    return str(node.alias_or_name).lower() == name.lower()


def _conjuncts(node: exp.Expression) -> list[exp.Expression]:
    if isinstance(node, exp.Paren):
        return _conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*_conjuncts(node.this), *_conjuncts(node.expression)]
    return [node]


def _condition(plain: Expressions, node: exp.Expression) -> str:
    inner = node.this if isinstance(node, exp.Not) else node
    if isinstance(inner, exp.In) and inner.args.get("query"):
        return f"{'NOT ' if inner is not node else ''}{in_query(plain, inner).sql}"
    return plain.condition(node)


class Plain(Rows):
    """Expressions in WHERE, ON and GROUP BY: neither aggregates nor window functions."""

    def window(self, node: exp.Window) -> Typed:
        return Expressions.window(self, node)
