"""GROUP BY: keys, aggregates, and grouping sets as rows that are repeated once per set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from headwater.views.analyse.common import parse, quoted, unique, with_columns
from headwater.views.analyse.functions import function_name, is_aggregate, uses_clock
from headwater.views.analyse.scope import Namer, Opaque, rebuilt
from headwater.views.analyse.windows import window_rebuilt
from headwater.views.relation import Aggregate, Generate, Item, Relation, column

SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


class Masked(Item):
    """A key of grouping sets: in the select list it is written as the unmasked expression."""

    __slots__ = ("written",)

    def __init__(self, name: str, expr: exp.Expression, written: exp.Expression) -> None:
        Item.__init__(self, name, expr)
        object.__setattr__(self, "written", written)


class Groups:
    """Collects the aggregates of a SELECT while its expressions are rewritten over the groups."""

    def __init__(self, namer: Namer, keys: Sequence[Item]) -> None:
        self._namer = namer
        self._keys = keys
        self._values: dict[str, Item] = {}

    def over(self, node: exp.Expression) -> exp.Expression:
        """The expression in terms of keys and aggregates."""
        for item in self._keys:
            if getattr(item, "written", item.expr) == node:
                return column(item.name)
        if isinstance(node, exp.Window):
            return window_rebuilt(node, self.over)
        name = function_name(node)
        if name in ("grouping", "grouping_id"):
            return self._grouping(node, name)
        if is_aggregate(node):
            if uses_clock(node):
                raise Opaque("now() inside an aggregate has no delta rule")
            text = node.sql(dialect="spark")
            if text not in self._values:
                self._values[text] = Item(self._namer.fresh("value"), node)
            return column(self._values[text].name)
        if isinstance(node, exp.Column):
            raise Opaque(f'column "{node.name}" is neither grouped nor aggregated')
        return rebuilt(node, self.over)

    def _grouping(self, node: exp.Expression, name: str) -> exp.Expression:
        gid = next((item for item in self._keys if item.name.startswith("grouping_id#")), None)
        masked = [item for item in self._keys if isinstance(item, Masked)]
        if gid is None:
            raise Opaque(f"{name}() without grouping sets is not understood")
        arguments = list(node.iter_expressions())
        if name == "grouping_id" and not arguments:
            return column(gid.name)
        for bit, item in enumerate(reversed(masked)):
            if name == "grouping" and [item.written] == arguments:  # type: ignore[attr-defined]
                return parse(f"CAST(SHIFTRIGHT({quoted(gid.name)}, {bit}) & 1 AS TINYINT)")
        raise Opaque(f"this {name}() is not understood")

    def relation(self, child: Relation) -> Aggregate:
        keys = tuple(Item(item.name, item.expr) for item in self._keys)
        return Aggregate(child, keys, tuple(self._values.values()))


def expanded(
    namer: Namer, root: Relation, plain: Sequence[exp.Expression], sets: Sequence[Sequence[exp.Expression]]
) -> tuple[Relation, list[Item]]:
    """Grouping sets: each row once per set, with the keys that the set lacks as null."""
    every = unique([*plain, *(expr for each in sets for expr in each)])
    root, trees = with_columns(namer, root, every)
    number = namer.fresh("set")
    numbers = ", ".join(str(index) for index in range(len(sets)))
    root = Generate(root, parse(f"EXPLODE(ARRAY({numbers}))"), (number,))
    present = [{expr.sql() for expr in (*plain, *each)} for each in sets]
    grouping = [sum(1 << bit for bit, e in enumerate(reversed(every)) if e.sql() not in p) for p in present]
    items = []
    for expr, tree in zip(every, trees, strict=True):
        within = [str(index) for index, p in enumerate(present) if expr.sql() in p]
        masked = parse(f"CASE WHEN {quoted(number)} IN ({', '.join(within) or '-1'}) THEN {quoted(tree)} END")
        items.append(Item(namer.fresh("key"), masked))
    cases = " ".join(f"WHEN {index} THEN CAST({value} AS BIGINT)" for index, value in enumerate(grouping))
    gid = Item(namer.fresh("grouping_id"), parse(f"CASE {quoted(number)} {cases} END"))
    extra = [Item(namer.fresh("set"), column(number)), gid]
    return root, [*(Masked(item.name, item.expr, expr) for item, expr in zip(items, every, strict=True)), *extra]


def grouping_sets(
    node: exp.Expression, key: Callable[[exp.Expression], exp.Expression], parts: list[list[exp.Expression]]
) -> list[list[exp.Expression]]:
    """The sets of keys that ROLLUP, CUBE or GROUPING SETS mean."""
    parts = [_members(each, key) for each in node.expressions] or parts
    if isinstance(node, exp.Rollup):
        return [[e for part in parts[:length] for e in part] for length in range(len(parts), -1, -1)]
    if isinstance(node, exp.Cube):
        return [
            [e for bit, part in enumerate(parts) if not mask >> (len(parts) - 1 - bit) & 1 for e in part]
            for mask in range(1 << len(parts))
        ]
    return parts


def _members(node: exp.Expression, key: Callable[[exp.Expression], exp.Expression]) -> list[exp.Expression]:
    if isinstance(node, exp.Tuple):
        return [key(each) for each in node.expressions]
    if isinstance(node, SETS):
        raise Opaque("nested grouping sets are not understood")
    return [key(node)]
