"""Expressions that aggregate or rank: over a query's groups, and over windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sqlglot import exp

from headwater.serving.agreement import types as t
from headwater.serving.agreement.aggregates import AGGREGATES, FRAMED, RANKINGS, Built, Call, count_rows
from headwater.serving.agreement.arithmetic import positive_zero
from headwater.serving.agreement.casts import cast, coerce, failing
from headwater.serving.agreement.expressions import Expressions
from headwater.serving.agreement.functions import whole_literal
from headwater.serving.agreement.parsing import only
from headwater.serving.agreement.scope import Column, quoted
from headwater.serving.agreement.values import NotProven, Typed, written_call

_WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_RUNNING = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def is_aggregate(node: exp.Expression) -> bool:
    """Whether a node is a call of an aggregate function, known or not by its arguments."""
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in AGGREGATES


def aggregates(node: exp.Expression) -> bool:
    """Whether an expression aggregates the rows of its own query: not inside a subquery, nor over a window."""
    if isinstance(node, exp.Query | exp.Subquery):
        return False
    if isinstance(node, exp.Window):
        inner = node.this.iter_expressions()
        return any(aggregates(child) for child in inner) or any(
            aggregates(child) for key, child in _children(node) if key != "this"
        )
    return is_aggregate(node) or any(aggregates(child) for child in node.iter_expressions())


def _children(node: exp.Expression) -> list[tuple[str, exp.Expression]]:
    found: list[tuple[str, exp.Expression]] = []
    for key, value in node.args.items():
        values = value if isinstance(value, list) else [value]
        found += [(key, child) for child in values if isinstance(child, exp.Expression)]
    return found


def aggregate(node: exp.Expression, args: Callable[[exp.Expression], Typed], call: Call) -> Typed:
    """An aggregate call whose arguments `args` translates; `call` gives each of DuckDB's calls its DISTINCT or OVER."""
    name = str(node.this).lower()
    proven = AGGREGATES[name]
    nodes = list(node.expressions)
    if name == "count" and len(nodes) == 1 and isinstance(nodes[0], exp.Star):
        return _typed(count_rows(call), "count(1)")
    distinct = len(nodes) == 1 and isinstance(nodes[0], exp.Distinct)
    if distinct:
        only(nodes[0], "expressions")
        nodes = list(nodes[0].expressions)
    if not 1 <= len(nodes) <= proven.most or (distinct and not proven.distinct):
        raise NotProven(f'function "{name}" with these arguments is not proven to agree')
    values = [args(argument) for argument in nodes]
    if distinct and not all(t.is_comparable(value.type) for value in values):
        raise NotProven(f'function "{name}" on distinct values of this type is not proven to agree')
    prefix = "DISTINCT " if distinct else ""
    built = proven.build(values, lambda function, argument: call(function, prefix + argument))
    shown = written_call(name, [value.name for value in values])
    return _typed(built, shown and shown.replace("(", f"({prefix}", 1))


def _typed(built: Built, name: str | None) -> Typed:
    return Typed(built[0], built[1], name)


class Rows(Expressions):
    """Expressions over rows: window functions are allowed, aggregates are not.

    `aliases` are names of the select list, where a clause may speak about them.
    """

    aliases: Mapping[str, Typed] = MappingProxyType({})

    def expr(self, node: exp.Expression) -> Typed:
        if self.aliases and isinstance(node, exp.Column) and not node.table and node.name.lower() in self.aliases:
            found = self.aliases[node.name.lower()]
            self.reads.count_text(found.sql)
            return found
        return super().expr(node)

    def call(self, node: exp.Anonymous) -> Typed:
        if is_aggregate(node):
            raise NotProven("an aggregate here is not proven to agree")
        return super().call(node)

    def window(self, node: exp.Window) -> Typed:
        only(node, "this", "partition_by", "order", "spec", "over")
        partition = [self._key(key) for key in node.args.get("partition_by") or ()]
        order = [self._ordered(item) for item in (node.args["order"].expressions if node.args.get("order") else ())]
        spec = _frame(node.args.get("spec"))
        if isinstance(node.this, exp.Anonymous) and str(node.this.this).lower() in RANKINGS:
            return self._ranking(node.this, partition, order, spec)
        frame = spec or (_RUNNING if order else _WHOLE)
        over, shown = _over(partition, order, frame), _over(partition, order, frame, named=True)
        if isinstance(node.this, exp.Anonymous) and str(node.this.this).lower() in FRAMED:
            found = self._framed(node.this, order, over)
        elif is_aggregate(node.this) and not any(isinstance(a, exp.Distinct) for a in node.this.expressions):
            found = aggregate(node.this, self.expr, lambda function, argument: f"{function}({argument}) OVER ({over})")
            if str(node.this.this).lower() in ("min", "max") and t.is_fractional(found.type):
                # Which zero it is depends on the order of rows, and the engines compare them in another one.
                never = failing("a smallest or largest value of zero", found.type)
                found = replace(found, sql=f"(CASE WHEN {found.sql} = 0 THEN {never} ELSE {found.sql} END)")
        else:
            raise NotProven("this window function is not proven to agree")
        return Typed(found.sql, found.type, found.name and shown and f"{found.name} OVER ({shown})")

    def _key(self, node: exp.Expression) -> Typed:
        key = self.expr(node)
        if not t.is_comparable(key.type) or key.constant:
            raise NotProven("partitioning by this is not proven to agree")
        return Typed(positive_zero(key), key.type, key.name)

    def _ordered(self, node: exp.Expression) -> Typed:
        value = self.expr(node.this)
        if not t.is_comparable(value.type) or value.constant:
            raise NotProven("ordering by this is not proven to agree")
        suffix = direction(node)
        return Typed(f"{value.sql} {suffix}", value.type, value.name and f"{value.name} {suffix}")

    def _framed(self, node: exp.Anonymous, order: Sequence[Typed], over: str) -> Typed:
        if not order or len(node.expressions) != 1:
            raise NotProven(f'function "{node.this}" here is not proven to agree')
        value = self.expr(node.expressions[0])
        name = str(node.this).lower()
        return Typed(f"{name}({value.sql}) OVER ({over})", value.type, written_call(name, [value.name]))

    def _ranking(self, node: exp.Anonymous, partition: list[Typed], order: list[Typed], spec: str | None) -> Typed:
        name = str(node.this).lower()
        if not order or spec:
            raise NotProven(f'function "{name}" over this window is not proven to agree')
        if name in ("lag", "lead"):
            return self._neighbour(name, node.expressions, partition, order)
        args = [self.expr(argument) for argument in node.expressions]
        if len(args) != (name == "ntile"):
            raise NotProven(f'function "{name}" with these arguments is not proven to agree')
        counts = [str(whole_literal(argument, 1)) for argument in args]
        proven = RANKINGS[name]
        shown = _over(partition, order, proven.frame, named=True)
        call = f"{name}({', '.join(counts)}) OVER ({_over(partition, order, '')})"
        assert proven.type is not None
        written = shown and f"{proven.shown}({', '.join(counts)}) OVER ({shown})"
        return Typed(cast(call, proven.type), proven.type, written)

    def _neighbour(
        self, name: str, nodes: Sequence[exp.Expression], partition: list[Typed], order: list[Typed]
    ) -> Typed:
        if not 1 <= len(nodes) <= 3:
            raise NotProven(f'function "{name}" with these arguments is not proven to agree')
        args = [self.expr(argument) for argument in nodes]
        value, distance = args[0], whole_literal(args[1], 1) if len(args) > 1 else 1
        default = coerce(args[2], value.type) if len(args) > 2 else Typed("NULL", value.type, "NULL", True)
        if not default.constant or not t.is_comparable(value.type):
            raise NotProven(f'function "{name}" with these arguments is not proven to agree')
        step = -distance if name == "lag" else distance
        frame = f"ROWS BETWEEN {step} FOLLOWING AND {step} FOLLOWING"
        shown = _over(partition, order, frame, named=True)
        written = written_call(name, [value.name, str(distance), default.name])
        sql = f"{name}({value.sql}, {distance}, {default.sql}) OVER ({_over(partition, order, '')})"
        return Typed(sql, value.type, written and shown and f"{written} OVER ({shown})")


def direction(node: exp.Expression) -> str:
    """ASC or DESC with where nulls go, as Spark orders them."""
    only(node, "this", "desc", "nulls_first")
    nulls = "NULLS FIRST" if node.args.get("nulls_first") else "NULLS LAST"
    return f"{'DESC' if node.args.get('desc') else 'ASC'} {nulls}"


def _over(partition: Sequence[Typed], order: Sequence[Typed], frame: str, named: bool = False) -> str:
    """A window in SQL, or as Spark writes it in names; empty when some name in it is not known."""
    if named and any(item.name is None for item in (*partition, *order)):
        return ""
    keys = ", ".join((key.name or "") if named else key.sql for key in partition)
    sorts = ", ".join((key.name or "") if named else key.sql for key in order)
    parts = (f"PARTITION BY {keys}" if keys else "", f"ORDER BY {sorts}" if sorts else "", frame)
    return " ".join(part for part in parts if part)


def _frame(spec: exp.Expression | None) -> str | None:
    if spec is None:
        return None
    only(spec, "kind", "start", "start_side", "end", "end_side")
    kind = str(spec.args["kind"]).upper()
    bounds = [_bound(spec, "start"), _bound(spec, "end")]
    if kind == "RANGE" and any(bound[0].isdigit() for bound in bounds):
        raise NotProven("a range of values as a frame is not proven to agree")
    if kind not in ("ROWS", "RANGE"):
        raise NotProven("this frame is not proven to agree")
    return f"{kind} BETWEEN {bounds[0]} AND {bounds[1]}"


def _bound(spec: exp.Expression, end: str) -> str:
    bound, side = spec.args.get(end), spec.args.get(f"{end}_side")
    if isinstance(bound, exp.Literal) and str(bound.this).isdecimal() and side:
        return f"{bound.this} {str(side).upper()}"
    if bound == "UNBOUNDED" and side:
        return f"UNBOUNDED {str(side).upper()}"
    if bound == "CURRENT ROW":
        return "CURRENT ROW"
    raise NotProven("this frame is not proven to agree")


class Groups(Rows):
    """Expressions over groups: keys and aggregates, collected as columns of an inner query."""

    def __init__(self, rows: Rows, keys: Sequence[Typed], alias: str) -> None:
        super().__init__(rows.scope, rows.reads, rows.subquery, rows.whole_structs)
        self.rows = rows
        self.alias = alias
        self.keys: Mapping[str, str] = {key.sql: f"k{number}" for number, key in reversed(list(enumerate(keys)))}
        self.aggregates: dict[str, str] = {}

    def expr(self, node: exp.Expression) -> Typed:
        if self.aliases and isinstance(node, exp.Column):
            return super().expr(node)
        if not aggregates(node) and not isinstance(node, exp.Window):
            found = self._key_or_constant(node)
            if found is not None:
                return found
        if isinstance(node, exp.Filter) or is_aggregate(node):
            return self._aggregate(node)
        return super().expr(node)

    def _key_or_constant(self, node: exp.Expression) -> Typed | None:
        try:
            found = self.rows.expr(node)
        except NotProven:
            if isinstance(node, exp.Column | exp.Dot):
                raise
            return None
        if name := self.keys.get(found.sql):
            return Typed(f"{self.alias}.{name}", found.type, found.name, False, found.attribute)
        return found if found.constant else None

    def column(self, column: Column, written: str) -> Typed:
        if (name := self.keys.get(column.sql)) and column.type is not None:
            return Typed(f"{self.alias}.{name}", column.type, written, attribute=written)
        raise NotProven(f'column "{written}" is neither grouped nor aggregated')

    def _aggregate(self, node: exp.Expression) -> Typed:
        shown: str | None
        call, suffix, shown = node, "", ""
        if isinstance(node, exp.Filter):
            only(node, "this", "expression")
            call, test = node.this, self.rows.expr(node.expression.this)
            if test.type != t.BOOLEAN or not is_aggregate(call):
                raise NotProven("this filter is not proven to agree")
            suffix, shown = f" FILTER (WHERE {test.sql})", test.name and f" FILTER (WHERE {test.name})"
        found = aggregate(call, self.rows.expr, lambda function, argument: f"{function}({argument}){suffix}")
        name = self.aggregates.setdefault(found.sql, f"a{len(self.aggregates)}")
        written = None if found.name is None or shown is None else found.name + shown
        return Typed(f"{self.alias}.{name}", found.type, written)

    def inner_columns(self, keys: Sequence[Typed]) -> str:
        """The select list of the inner query: the keys, then the aggregates."""
        columns = [f"{positive_zero(key)} AS {quoted(f'k{number}')}" for number, key in enumerate(keys)]
        columns += [f"{sql} AS {quoted(name)}" for sql, name in self.aggregates.items()]
        return ", ".join(columns) or "1"
