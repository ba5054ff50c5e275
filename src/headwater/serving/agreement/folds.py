"""Views inside queries: the SQL that makes a view's rows of its stored table takes the place of the view's name.

That SQL computes all that the view shows. What a query does not mention is taken out of it first, from the inside too:
the query then is planned faster, and reads no column that it does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from pyiceberg.schema import Schema
from sqlglot import exp

from headwater.catalog.views import STATES
from headwater.serving.agreement.listing import OPEN, Listed
from headwater.serving.agreement.parsing import has_only, parse
from headwater.serving.agreement.values import Folded, NotProven

REMEMBERED = 256
"""Views, times ways to ask of them, of which it is remembered what comes of them."""

Mentioned = frozenset[str] | None
"""Names in lower case; None stands for all there are."""

_NARROWED = ("expressions", "from_", "joins", "laterals", "where", "group", "having", "order", "limit", "offset")
"""What a SELECT may have whose rows do not depend on how many columns it has: not DISTINCT, for one."""


def mentioned(tree: exp.Expression) -> Mentioned:
    """All names in a query; all there are where a star, or a join by common names, may mean any."""
    stars = (star.parent for star in tree.find_all(exp.Star))
    counts = all(isinstance(call, exp.Anonymous) and str(call.this).lower() == "count" for call in stars)
    natural = any(join.args.get("method") for join in tree.find_all(exp.Join))
    return _names([tree]) if counts and not natural else None


def fold(view: Folded, wanted: Mentioned = None) -> exp.Expression:
    """The query that a view stands for, over the name of its stored table, with the columns that are wanted at least.

    Callers share it, and must not change it.
    """
    tree = _parsed(view.sql, view.states)
    if wanted is None:
        return tree
    narrow = tree.copy()
    _narrow(narrow, wanted)
    return narrow


@lru_cache(maxsize=REMEMBERED)
def _parsed(sql: str, states: str) -> exp.Expression:
    tree = parse(sql)
    for table in tree.find_all(exp.Table):
        if table.name.lower() == STATES:
            table.set("this", exp.to_identifier(states, quoted=True))
    return tree


def shown(view: Folded, wanted: Mentioned) -> Mentioned:
    """Those of the wanted names that a view shows: what differs in others only has the same fold."""
    columns = listed(view)
    if wanted is None or not columns.whole:
        return None
    return frozenset(name.lower() for name in columns.names) & wanted


def listed(table: Schema | Folded) -> Listed:
    """The names of a table's columns."""
    if isinstance(table, Schema):
        return Listed(tuple(column.name for column in table.fields), True)
    try:
        tree = fold(table)
    except NotProven:
        return OPEN
    known = tree.expressions and not any(item.is_star for item in tree.expressions)
    return Listed(tuple(item.alias_or_name for item in tree.expressions), True) if known else OPEN


@lru_cache(maxsize=REMEMBERED)
def sorts(view: Folded) -> bool:
    """Whether making the view's rows sorts them."""
    return fold(view).find(exp.Order) is not None


def _narrow(node: exp.Expression, wanted: Mentioned) -> None:
    """Take out of a query, and of the queries in its FROM, what computes columns that are not wanted."""
    if isinstance(node, exp.Subquery):
        _narrow(node.this, wanted if has_only(node, "this", "alias") else None)
    elif isinstance(node, exp.Union):
        sides = [_plain_select(node.this), _plain_select(node.expression)]
        places = _places(node, sides, wanted)
        for side, written in zip(sides, (node.this, node.expression), strict=True):
            if side is not None and places is not None:
                _narrow_select(side, wanted, places)
            else:
                _narrow(written, None)
    elif isinstance(node, exp.Select):
        wanted = wanted if _is_narrowed(node) else None
        _narrow_select(node, wanted, _kept_places(node, wanted))


def _is_narrowed(node: exp.Select) -> bool:
    group = node.args.get("group")
    return has_only(node, *_NARROWED) and (group is None or has_only(group, "expressions"))


def _kept_places(node: exp.Select, wanted: Mentioned) -> set[int]:
    """Which items of a select list are wanted, by the query around or by number or name in its own clauses."""
    if wanted is None:
        return set(range(len(node.expressions)))
    clauses = [node.args[key] for key in ("group", "having", "order") if node.args.get(key)]
    keys = [key.this if isinstance(key, exp.Ordered) else key for clause in clauses for key in clause.expressions]
    numbers = [int(key.this) for key in keys if isinstance(key, exp.Literal) and not key.is_string]
    names, last = wanted | _names(clauses), max(numbers, default=0)
    return {
        place
        for place, item in enumerate(node.expressions)
        if place < last or item.is_star or item.alias_or_name.lower() in names
    } or {0}


def _places(node: exp.Union, sides: Sequence[exp.Select | None], wanted: Mentioned) -> set[int] | None:
    """Which columns of a union both sides keep; None when it has to stay as it is."""
    if wanted is None or not has_only(node, "this", "expression"):
        return None
    found: set[int] = set()
    for side in sides:
        if side is None or not _is_narrowed(side) or any(item.is_star for item in side.expressions):
            return None
        found |= _kept_places(side, wanted)
    return found


def _narrow_select(node: exp.Select, wanted: Mentioned, places: set[int]) -> None:
    node.set("expressions", [item for place, item in enumerate(node.expressions) if place in places])
    joins = node.args.get("joins") or []
    own = [child for child in node.iter_expressions() if not isinstance(child, exp.From | exp.Join)]
    needed: Mentioned = _names([*own, *(join.args["on"] for join in joins if join.args.get("on"))])
    if any(item.is_star for item in node.expressions):
        needed = None if wanted is None or needed is None else needed | wanted
    for source in (node.args.get("from_"), *joins):
        if source is not None:
            _narrow(source.this, needed)


def _plain_select(node: exp.Expression) -> exp.Select | None:
    while isinstance(node, exp.Subquery) and has_only(node, "this"):
        node = node.this
    return node if isinstance(node, exp.Select) else None


def _names(nodes: Iterable[exp.Expression]) -> frozenset[str]:
    return frozenset(name.name.lower() for node in nodes for name in node.find_all(exp.Identifier))
