"""A SELECT taken apart: relations, conditions, groups, window functions, the select list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headwater.views.analyse.common import parse, query_of, quoted, this_of, unique
from headwater.views.analyse.conditions import conjuncts, inner, joined, place
from headwater.views.analyse.functions import (
    contains_aggregate,
    function_name,
)
from headwater.views.analyse.groups import SETS, Groups, expanded, grouping_sets
from headwater.views.analyse.scope import Namer, Opaque, Scope, Source, resolved
from headwater.views.analyse.subqueries import exists, in_query, with_scalars
from headwater.views.analyse.windows import Windows, written_out
from headwater.views.relation import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Item,
    OnRead,
    Order,
    Project,
    Relation,
    Scan,
    Union,
    column,
    columns,
)

Opened = tuple[Relation, tuple[tuple[str, str], ...]]
Open = Callable[[str, str], Opened | None]
"""(table, alias) to its relation and columns as (name, name in the tree); None when there is no such table."""

_SELECT = {"expressions", "from_", "joins", "laterals", "where", "group", "having", "distinct", "order", "limit"}
_SELECT |= {"offset", "with_", "kind", "hint", "qualify", "operation_modifiers"}
_GENERATORS = frozenset(("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query makes: columns as (name shown or None, name in the tree)."""

    root: Relation
    columns: tuple[tuple[str | None, str], ...]
    on_read: OnRead = field(default_factory=OnRead)


@dataclass(frozen=True, slots=True)
class Reader:
    """Takes queries apart; `common` are the common table expressions in sight."""

    open: Open
    namer: Namer
    required: set[str]  # columns of the tree that are never null
    common: Mapping[str, tuple[exp.Expression, Reader]] = field(default_factory=dict)

    def query(self, node: exp.Expression, outer: Scope | None = None) -> Answer:
        """Any query: a SELECT, a set operation, one in parentheses."""
        reader = self.with_common(node.args.get("with_"))
        match node:
            case exp.Select():
                return Select(reader, node, outer).answer()
            case exp.Union():
                return reader._union(node, outer)
            case exp.Intersect() | exp.Except():
                return reader._compared(node, outer)
            case exp.Subquery() if not node.args.get("alias"):
                inside = reader.query(node.this, outer)
                return reader._modified(inside, node)
            case _:
                raise Opaque(f"{_words(node).upper()} is not understood")

    def with_common(self, node: exp.Expression | None) -> Reader:
        if node is None:
            return self
        if node.args.get("recursive"):
            raise Opaque("WITH RECURSIVE has no delta rule")
        reader = self
        for common in node.expressions:
            if common.args["alias"].columns:
                raise Opaque("column names of a common table expression are not understood")
            reader = replace(reader, common={**reader.common, common.alias.lower(): (common.this, reader)})
        return reader

    def _union(self, node: exp.Expression, outer: Scope | None) -> Answer:
        left, right = self._sides(node, outer)
        names = self._names(left)
        union: Relation = Union((_only(left), _only(right)), names)
        if node.args.get("distinct"):
            union = Distinct(union)
        return self._modified(Answer(union, _shown(left, names)), node)

    def _compared(self, node: exp.Expression, outer: Scope | None) -> Answer:
        """INTERSECT and EXCEPT: the rows of both sides in groups; those stay that are on the sides they have to be."""
        if not node.args.get("distinct"):
            raise Opaque("INTERSECT ALL and EXCEPT ALL are not understood")
        left, right = self._sides(node, outer)
        mark, names = self.namer.fresh("left"), self._names(left)
        sides = tuple(
            Project(_only(side), (*(Item(tree, column(tree)) for _, tree in side.columns), Item(mark, parse(here))))
            for side, here in ((left, "1"), (right, "0"))
        )
        keys = tuple(Item(self.namer.fresh("key"), column(name)) for name in names)
        lefts, all_rows = self.namer.fresh("value"), self.namer.fresh("value")
        values = (Item(lefts, parse(f"SUM({quoted(mark)})")), Item(all_rows, parse("COUNT(*)")))
        groups = Aggregate(Union(sides, (*names, mark)), keys, values)
        also = ">" if isinstance(node, exp.Intersect) else "="
        kept = Filter(groups, parse(f"{quoted(lefts)} > 0 AND {quoted(all_rows)} {also} {quoted(lefts)}"))
        outputs = self._names(left)
        root = Project(kept, tuple(Item(name, column(key.name)) for name, key in zip(outputs, keys, strict=True)))
        return self._modified(Answer(root, _shown(left, outputs)), node)

    def _sides(self, node: exp.Expression, outer: Scope | None) -> tuple[Answer, Answer]:
        left, right = self.query(node.this, outer), self.query(node.expression, outer)
        if left.on_read.cuts or right.on_read.cuts:
            raise Opaque("LIMIT inside a query has no delta rule")
        if len(left.columns) != len(right.columns) or node.args.get("by_name"):
            raise Opaque("a set operation on different columns is not understood")
        return left, right

    def _names(self, side: Answer) -> tuple[str, ...]:
        name = self.namer.relation("union")
        return tuple(self.namer.fresh(name) for _ in side.columns)

    def _modified(self, inside: Answer, node: exp.Expression) -> Answer:
        """ORDER BY and LIMIT over a query's own columns."""
        if not any(node.args.get(key) for key in ("order", "limit", "offset")):
            return inside
        if inside.on_read.cuts:
            raise Opaque("LIMIT inside a query has no delta rule")
        order = []
        for item in node.args["order"].expressions if node.args.get("order") else ():
            tree = _output(item.this, inside.columns)
            if tree is None:
                raise Opaque("ORDER BY of an expression over a set operation is not understood")
            order.append(_ordered(item, tree))
        return replace(inside, on_read=OnRead(tuple(order), _number(node, "limit"), _number(node, "offset")))


def _shown(side: Answer, names: Sequence[str]) -> tuple[tuple[str | None, str], ...]:
    """The columns of a set operation, which are called as those of its left side."""
    return tuple((name, tree) for (name, _), tree in zip(side.columns, names, strict=True))


def _only(answer: Answer) -> Relation:
    """The relation with exactly the answer's columns, in order."""
    wanted = tuple(tree for _, tree in answer.columns)
    if columns(answer.root) == wanted:
        return answer.root
    if len(set(wanted)) != len(wanted):
        raise Opaque("a column that is named twice is not understood here")
    return Project(answer.root, tuple(Item(tree, column(tree)) for tree in wanted))


class Select:
    """One SELECT, from its relations up."""

    def __init__(self, reader: Reader, node: exp.Select, outer: Scope | None) -> None:
        node = written_out(node)
        unknown = {key for key, value in node.args.items() if value} - _SELECT
        if unknown or node.args.get("kind"):
            word = sorted(unknown)[0].strip("_").upper() if unknown else "SELECT AS"
            raise Opaque(f"{word} is not understood")
        self.reader = reader
        self.node = node
        self.scope = Scope(outer=outer)
        self.root: Relation
        self.selected: list[tuple[str | None, exp.Expression]] = []

    def answer(self) -> Answer:
        self.read_from()
        for condition in conjuncts(this_of(self.node.args.get("where"))):
            self.where(condition)
        self.selected = [pair for item in self.node.expressions for pair in self._item(item)]
        order = self._order_expressions()
        having = conjuncts(this_of(self.node.args.get("having")))
        qualify = conjuncts(this_of(self.node.args.get("qualify")))
        grouped = self.node.args.get("group") is not None or any(
            contains_aggregate(each) for each in (*(expr for _, expr in self.selected), *having)
        )
        conditions = [self.expression(each, aliases=True) for each in having]
        qualified = [self.expression(each, aliases=True) for each in qualify]
        exprs = [expr for _, expr in self.selected]
        sorts = [self._sort_expression(each) if each is not None else None for each in order]
        if grouped:
            groups = Groups(self.reader.namer, self._keys())
            exprs = [groups.over(expr) for expr in exprs]
            conditions = [groups.over(each) for each in conditions]
            qualified = [groups.over(each) for each in qualified]
            sorts = [groups.over(each) if each is not None else None for each in sorts]
            self.root = groups.relation(self.root)
        elif having:
            raise Opaque("HAVING without groups is not understood")
        for condition in conditions:
            self.root = Filter(self.root, condition)
        windows = Windows(self.reader.namer, self.root)
        exprs = [windows.over(expr) for expr in exprs]
        qualified = [windows.over(each) for each in qualified]
        sorts = [windows.over(each) if each is not None else None for each in sorts]
        self.root = windows.relation()
        for condition in qualified:
            self.root = Filter(self.root, condition)
        return self._finish(exprs, sorts)

    # -- FROM -----------------------------------------------------------------------------------------------------

    def read_from(self) -> None:
        first = self.node.args.get("from_")
        if first is None:
            raise Opaque("a query without FROM has no source that could change")
        self.root = self._relation(first.this)
        for join in self.node.args.get("joins") or ():
            self._join(join)
        for lateral in self.node.args.get("laterals") or ():
            self._lateral(lateral)

    def _relation(self, node: exp.Expression) -> Relation:
        """A table, a common table expression or a subquery; its columns come into scope."""
        if any(node.args.get(key) for key in ("pivots", "sample", "joins", "laterals", "version", "when")):
            raise Opaque("PIVOT, TABLESAMPLE and AS OF in a view are not understood")
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            raise Opaque("an alias with column names is not understood")
        if isinstance(node, exp.Subquery):
            return self._derived(self.reader.query(node.this), node.alias or "")
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier) or node.args.get("db"):
            raise Opaque(f"{_words(node)} in FROM is not understood")
        name = str(node.name)
        if (common := self.reader.common.get(name.lower())) is not None:
            query, reader = common
            return self._derived(reader.query(query), node.alias or name)
        opened = self.reader.open(name.lower(), self.reader.namer.relation(node.alias or name))
        if opened is None:
            raise Opaque(f'"{name}" is not a topic or a view')
        relation, found = opened
        self.scope.sources.append(Source(node.alias or name, tuple(found)))
        return relation

    def _derived(self, answer: Answer, alias: str) -> Relation:
        if answer.on_read.cuts:
            raise Opaque("LIMIT inside a query has no delta rule")
        self.scope.sources.append(Source(alias, answer.columns))
        return answer.root

    def _join(self, node: exp.Join) -> None:
        kind, side = str(node.args.get("kind") or "").upper(), str(node.args.get("side") or "").upper()
        if node.args.get("method") or kind not in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"):
            raise Opaque(f"{node.args.get('method') or kind} JOIN is not understood")
        before = list(self.scope.sources)
        right = self._relation(node.this)
        using = [str(name.name) for name in node.args.get("using") or ()]
        conditions = [self.expression(each) for each in conjuncts(node.args.get("on"))]
        conditions += [self._using(name, before, side) for name in using]
        if kind in ("SEMI", "ANTI"):
            self.scope.sources = before
            self.root = joined(self.root, right, kind.lower(), conditions)
        elif side == "":
            self.root = inner((self.root, right), conditions)
        else:
            if side in ("RIGHT", "FULL"):
                self.reader.required.difference_update(columns(self.root))
            if side in ("LEFT", "FULL"):
                self.reader.required.difference_update(columns(right))
            left, right = (right, self.root) if side == "RIGHT" else (self.root, right)
            self.root = joined(left, right, "full" if side == "FULL" else "left", conditions)

    def _using(self, name: str, before: Sequence[Source], side: str) -> exp.Expression:
        """`USING (name)`: an equality; the name alone means the left side's column."""
        if side in ("RIGHT", "FULL"):
            raise Opaque(f"{side} JOIN with USING is not understood")
        last = self.scope.sources[-1]
        left = Scope(list(before)).resolve([name])
        right = Scope([last]).resolve([name])
        if left is None or right is None:
            raise Opaque(f'column "{name}" of USING is not understood')
        self.scope.sources[-1] = replace(last, hidden=last.hidden | {name.lower()})
        return exp.EQ(this=left, expression=right)

    def _lateral(self, node: exp.Lateral) -> None:
        if not node.args.get("view"):
            raise Opaque("LATERAL with a subquery has no delta rule")
        self._generate(node.this, node.alias, [str(c.name) for c in node.args["alias"].columns], node.args.get("outer"))

    def _generate(self, call: exp.Expression, alias: str, shown: Sequence[str], outer: object) -> list[str]:
        if function_name(call) not in _GENERATORS or not shown:
            raise Opaque(f"generator {function_name(call) or _words(call)} without column names is not understood")
        name = self.reader.namer.relation(alias or "generated")
        names = tuple(f"{name}.{each}" for each in shown)
        self.root = Generate(self.root, self.expression(call), names, bool(outer))
        self.scope.sources.append(Source(alias, tuple(zip(shown, names, strict=True))))
        return list(names)

    # -- WHERE ----------------------------------------------------------------------------------------------------

    def where(self, condition: exp.Expression) -> None:
        negated = isinstance(condition, exp.Not)
        tested = condition.this if negated else condition
        while isinstance(tested, exp.Paren):
            tested = tested.this
        if isinstance(tested, exp.Exists):
            exists(self, query_of(tested), negated)
        elif isinstance(tested, exp.In) and tested.args.get("query") is not None:
            in_query(self, tested, negated)
        elif condition.find(exp.Query) is not None:
            joined_condition = with_scalars(self, condition)  # joins the subqueries to the root first
            self.root = place(self.root, joined_condition)
        else:
            self.root = place(self.root, self.expression(condition))

    # -- the select list ------------------------------------------------------------------------------------------

    def _item(self, item: exp.Expression) -> list[tuple[str | None, exp.Expression]]:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            return self._star(item)
        inside: exp.Expression = item.this if isinstance(item, exp.Alias) else item
        if function_name(inside) in _GENERATORS and isinstance(item, exp.Alias):
            (name,) = self._generate(inside, self.reader.namer.fresh("generated"), [item.alias], False)
            return [(item.alias, column(name))]
        if isinstance(inside, exp.Column):
            return [(item.alias or inside.name, self.expression(inside, aliases=True))]
        return [(item.alias or None, self.expression(inside, aliases=True))]

    def _star(self, item: exp.Expression) -> list[tuple[str | None, exp.Expression]]:
        star = item.this if isinstance(item, exp.Column) else item
        if any(star.args.get(key) for key in ("replace", "rename")):
            raise Opaque("* with REPLACE is not understood")
        but = {name.name.lower() for name in star.args.get("except_") or ()}
        table = item.table.lower() if isinstance(item, exp.Column) else None
        sources = [source for source in self.scope.sources if table is None or source.alias.lower() == table]
        if any(source.hidden for source in sources):
            raise Opaque("* over JOIN ... USING is not understood")
        return [
            (name, column(tree))
            for source in sources
            for name, tree in source.columns
            if (name or "").lower() not in but
        ]

    def expression(self, node: exp.Expression, *, aliases: bool = False) -> exp.Expression:
        """The expression over the tree's columns; names of earlier select items where no column has the name."""

        def lookup(parts: Sequence[str]) -> exp.Expression | None:
            if (found := self.scope.resolve(parts)) is not None:
                return found
            named = self._selected_as(parts[0])
            return named[0] if aliases and len(parts) == 1 and len(named) == 1 else None

        return resolved(node, lookup)

    def _sort_expression(self, node: exp.Expression) -> exp.Expression:
        """An expression of ORDER BY: a bare name means the output column of that name, even if a source has it too."""

        def lookup(parts: Sequence[str]) -> exp.Expression | None:
            named = self._selected_as(parts[0])
            if len(parts) == 1 and named:
                if len(named) > 1:
                    raise Opaque(f'ORDER BY "{parts[0]}" is ambiguous')
                return named[0]
            if named and not any(source.alias.lower() == parts[0].lower() for source in self.scope.sources):
                raise Opaque("ORDER BY of a field of an output column is not understood")
            return self.scope.resolve(parts)

        return resolved(node, lookup)

    def _selected_as(self, name: str) -> list[exp.Expression]:
        """The select items of a name."""
        return [expr for shown, expr in self.selected if shown is not None and shown.lower() == name.lower()]

    def _keys(self) -> list[Item]:
        """The items of GROUP BY: expressions, ordinals, names of the select list, or all."""
        group = self.node.args.get("group")
        if group is None:
            return []
        if group.args.get("all"):
            plain = [expr for _, expr in self.selected if not contains_aggregate(expr)]
            return [Item(self.reader.namer.fresh("key"), expr) for expr in plain]
        plain = [self._key(each) for each in group.expressions if not isinstance(each, SETS)]
        sets = [
            each for name in ("expressions", "rollup", "cube", "grouping_sets") for each in group.args.get(name) or []
        ]
        sets = [each for each in sets if isinstance(each, SETS)]
        if not sets:
            return [Item(self.reader.namer.fresh("key"), expr) for expr in unique(plain)]
        if len(sets) > 1:
            raise Opaque("more than one ROLLUP, CUBE or GROUPING SETS is not understood")
        if not sets[0].expressions or (isinstance(sets[0], exp.GroupingSets) and plain):  # GROUP BY a, b WITH ROLLUP
            return self._expanded([], grouping_sets(sets[0], self._key, [[each] for each in plain]))
        return self._expanded(plain, grouping_sets(sets[0], self._key, []))

    def _key(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Paren):
            return self._key(node.this)
        if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
            number = int(node.this)
            if not 1 <= number <= len(self.selected):
                raise Opaque(f"GROUP BY {number} names no column")
            return self.selected[number - 1][1]
        return self.expression(node, aliases=True)

    def _expanded(self, plain: Sequence[exp.Expression], sets: Sequence[Sequence[exp.Expression]]) -> list[Item]:
        self.root, items = expanded(self.reader.namer, self.root, plain, sets)
        return items

    def within(self, node: exp.Select) -> Select:
        """A subquery, which sees the columns of this query."""
        return Select(self.reader.with_common(node.args.get("with_")), node, self.scope)

    # -- ORDER BY, LIMIT ------------------------------------------------------------------------------------------

    def _order_expressions(self) -> list[exp.Expression | None]:
        """What ORDER BY items are, or None for those that name an output column."""
        order = self.node.args.get("order")
        shown = tuple((name, str(number)) for number, (name, _) in enumerate(self.selected))
        return [
            None if _output(item.this, shown) is not None else item.this
            for item in (order.expressions if order else ())
        ]

    def _finish(self, exprs: Sequence[exp.Expression], sorts: Sequence[exp.Expression | None]) -> Answer:
        namer = self.reader.namer
        names = [namer.fresh(name or "value") for name, _ in self.selected]
        items = [Item(name, expr) for name, expr in zip(names, exprs, strict=True)]
        shown = tuple((name, tree) for (name, _), tree in zip(self.selected, names, strict=True))
        self.reader.required.update(
            item.name for item in items if item.column is not None and item.column in self.reader.required
        )
        order = []
        clause = self.node.args.get("order")
        for item, sort in zip(clause.expressions if clause else (), sorts, strict=True):
            tree = _output(item.this, shown)
            if sort is not None or tree is None:
                assert sort is not None
                tree = next((each.name for each in items if each.expr == sort), None)
                if tree is None:
                    tree = namer.fresh("order")
                    items.append(Item(tree, sort))
            order.append(_ordered(item, tree))
        root: Relation = Project(self.root, tuple(items))
        if self.node.args.get("distinct"):
            if self.node.args["distinct"].args.get("on") or len(items) != len(shown):
                raise Opaque("DISTINCT ordered by a column that is not selected is not understood")
            root = Distinct(root)
        on_read = OnRead(tuple(order), _number(self.node, "limit"), _number(self.node, "offset"))
        return Answer(root, shown, on_read)


def _output(node: exp.Expression, shown: Sequence[tuple[str | None, str]]) -> str | None:
    """The output column that an ordinal or a bare name means."""
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
        return shown[int(node.this) - 1][1] if 1 <= int(node.this) <= len(shown) else None
    if isinstance(node, exp.Column) and not node.table:
        found = [tree for name, tree in shown if name is not None and name.lower() == node.name.lower()]
        return found[0] if len(found) == 1 else None
    return None


def _ordered(item: exp.Expression, tree: str) -> Order:
    descending = bool(item.args.get("desc"))
    nulls = item.args.get("nulls_first")
    return Order(tree, descending, not descending if nulls is None else bool(nulls))


def _number(node: exp.Expression, key: str) -> int | None:
    clause = node.args.get(key)
    if clause is None:
        return None
    value = clause.expression
    if not isinstance(value, exp.Literal) or value.is_string:
        raise Opaque(f"{key.upper()} of anything but a number is not understood")
    return int(value.this)


def _words(node: exp.Expression) -> str:
    return type(node).__name__.lower()


def open_tables(tables: Mapping[str, Sequence[tuple[str, bool]]], required: set[str]) -> Open:
    """Opens tables by their columns, given as (name, whether it is never null)."""

    def opened(table: str, alias: str) -> Opened | None:
        if table not in tables:
            return None
        # Names with two underscores are ours; a query that uses such a column is not taken apart.
        pairs = tuple((f"{alias}.{name}", name) for name, _ in tables[table] if not name.startswith("__"))
        required.update(f"{alias}.{name}" for name, never_null in tables[table] if never_null)
        return Scan(table, alias, pairs), tuple((name, tree) for tree, name in pairs)

    return opened
