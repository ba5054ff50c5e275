"""How many times larger than what is stored the rows of a query may become.

DuckDB counts neither the text that a function makes nor the columns of a result against its memory limit, and it looks
for an interrupt only between chunks of rows. A few nested `replace`, a `||` that doubles at each step, or one column
that is selected ten thousand times would take all memory of the process. Such queries are left to Spark, which runs
them where they may be ended.
"""

from __future__ import annotations

from math import prod

from sqlglot import exp

from headwater.serving.agreement.values import NotProven

MAX_GROWTH = 256
"""Of one string: stored ones, or LITERAL characters of the statement, that it is made of."""
MAX_WIDTH = 1024
"""Of a row: its columns, each as often as the longest string may have grown."""
LITERAL = 100


def check_growth(tree: exp.Expression) -> int:
    """How many times longer strings may become; NotProven if that is too much.

    Nested queries multiply, since one may use what the other made, and so do the clauses of one: ORDER BY and HAVING
    use names of the select list, which uses what LATERAL VIEW made.
    """
    product = 1
    for select in tree.find_all(exp.Select):
        for clause, value in select.args.items():
            parts = value if isinstance(value, list) else [value]
            nodes = [part for part in parts if isinstance(part, exp.Expression) and not isinstance(part, exp.With)]
            growths = [max(1, _growth(node)) for node in nodes]
            product *= prod(growths) if clause == "laterals" else max(growths, default=1)
        if product > MAX_GROWTH:
            raise NotProven("its strings may become too long")
    return product


def check_width(columns: int, stored: int, growth: int) -> None:
    """NotProven if rows may become too wide: with more columns than the tables have, or grown strings in many."""
    if columns * growth > MAX_WIDTH and (growth > 1 or columns > stored):
        raise NotProven("its rows may become too wide")


def _growth(node: exp.Expression) -> int:
    """How many stored strings an expression may put together; queries inside of it count by themselves."""
    if isinstance(node, exp.Query):
        return 1
    inside = [_growth(child) for child in node.iter_expressions()]
    if isinstance(node, exp.Column | exp.Star):
        return 1
    if isinstance(node, exp.Literal):
        return len(str(node.this)) // LITERAL
    name = str(node.this).lower() if isinstance(node, exp.Anonymous) else ""
    if isinstance(node, exp.DPipe) or name == "concat":
        return sum(inside)
    if name == "replace" and len(node.expressions) == 3:
        return max(inside) * _replacement(node.expressions[1], node.expressions[2])
    return max(inside, default=0)


def _replacement(search: exp.Expression, by: exp.Expression) -> int:
    """How many times longer a text becomes in which every `search` is replaced."""
    if not isinstance(by, exp.Literal):
        return MAX_GROWTH + 1
    length = len(str(search.this)) if isinstance(search, exp.Literal) else 1
    return max(1, -(-len(str(by.this)) // max(1, length)))
