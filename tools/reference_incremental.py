"""The page that says what a refresh costs for which query: planned anew from the constructs that the tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.property.test_view_rules import INCREMENTAL
from tests.property.view_model import TABLES, ViewModel

from headwater.views.analyse import Opaque
from headwater.views.analyse.functions import VOLATILE
from headwater.views.change import AppendDelta, ChangePlan, Recompute, RecomputeKeys, Skip, plan_change, untracked
from headwater.views.deltas import Clock

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]

METHODS: Mapping[type, str] = {Skip: "skip", AppendDelta: "append", RecomputeKeys: "keys", Recompute: "full"}
LATER = Clock("2026-01-01 00:00:00", "2026-01-01 00:01:00")

SHARE = {"examples of functions": (1019, 1044), "forms": (320, 325)}
"""What `python -m tools.incremental_share` printed last: how many of how many texts are read in their meaning."""

RECOMPUTED = {
    "MIN, MAX and float sums without groups": "SELECT MIN(v) AS m, SUM(f) AS s FROM t",
    "other aggregates without groups": "SELECT MAX_BY(s, v) AS m FROM t",
    "window functions without PARTITION BY": "SELECT id, RANK() OVER (ORDER BY v) AS r FROM t",
    "window functions that share no partition": (
        "SELECT id, SUM(v) OVER (PARTITION BY g) AS a, SUM(v) OVER (PARTITION BY k) AS b FROM t"
    ),
    "a total inside the query": "SELECT t.id, v / a.s AS share FROM t CROSS JOIN (SELECT SUM(v) AS s FROM t) a",
    "a scalar subquery without correlation": "SELECT id FROM t WHERE v > (SELECT AVG(v) FROM t)",
    "outer joins without an equality": "SELECT t.id, u.name FROM t LEFT JOIN u ON t.k < u.k",
    "full joins without an equality": "SELECT t.id, u.name FROM t FULL JOIN u ON t.k < u.k",
    "NOT IN a subquery": "SELECT g FROM t WHERE k NOT IN (SELECT k FROM u)",
    "EXISTS or IN below OR": "SELECT g FROM t WHERE v > 1 OR EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "INTERSECT ALL, EXCEPT ALL": "SELECT g FROM t INTERSECT ALL SELECT k FROM u",
    "LIMIT inside a query": "SELECT g FROM (SELECT g FROM t LIMIT 3) q",
    "LATERAL with a subquery": "SELECT t.g FROM t JOIN LATERAL (SELECT 1) q",
    "TABLESAMPLE": "SELECT g FROM t TABLESAMPLE (10 PERCENT)",
    "PIVOT": "SELECT * FROM t PIVOT (SUM(v) FOR g IN (1, 2))",
    "several ROLLUP, CUBE or GROUPING SETS": "SELECT g, k, COUNT(*) AS n FROM t GROUP BY ROLLUP(g), CUBE(k)",
}
"""Queries that some change makes recompute; the page says which change, and why."""

CLOCK = {
    "a bound of WHERE": "SELECT g, COUNT(*) AS n FROM t WHERE CAST(s AS TIMESTAMP) > NOW() - INTERVAL '1' DAY GROUP BY g",
    "the select list": "SELECT id, NOW() AS at FROM t",
    "an aggregate": "SELECT g, MAX(NOW()) AS at FROM t GROUP BY g",
    "a join condition": "SELECT t.id FROM t JOIN u ON t.k = u.k AND CAST(t.s AS TIMESTAMP) > NOW()",
}

REFUSED = {
    "a function of chance": ("SELECT id, RAND() AS r FROM t", 'function "rand" is not allowed in a materialized view'),
    "no source": ("SELECT 1 AS one", 'materialized view "v" reads no topic'),
    "two columns of one name": ("SELECT g, g FROM t", 'materialized view "v" has two columns "g"'),
    "* over two topics": ("SELECT * FROM t JOIN u USING (k)", 'materialized view "v" has two columns "_offset"'),
    "WITH RECURSIVE": (
        "WITH RECURSIVE r AS (SELECT g FROM t UNION ALL SELECT g FROM r) SELECT g FROM r",
        "WITH RECURSIVE is not allowed in queries",
    ),
    "a hidden column's name": (
        "SELECT g AS __g FROM t",
        'column "__g" of materialized view "v" begins with two underscores',
    ),
    "the log's tail": ("SELECT g FROM t WITH TAIL OFF", "a view's query has no WITH TAIL"),
    "a method that cannot be": (
        "SELECT g FROM t INTERSECT ALL SELECT k FROM u WITH (refresh = 'incremental')",
        'materialized view "v" cannot refresh incrementally',
    ),
    "a statement that is not a query": ("DELETE FROM t", 'unexpected "DELETE" in CREATE MATERIALIZED VIEW'),
    "files": ("SELECT * FROM csv.`/tmp/x.csv`", 'relation "csv./tmp/x.csv" is not allowed in queries'),
}
"""Queries that CREATE refuses, and its message; an integration test gives them to CREATE."""


def page(table: Table) -> str:
    """The page, with tables as `table` renders them."""
    return "\n".join(
        [
            INTRODUCTION,
            table(
                ("construct", "example", "rows came", "rows went", "reads beside the change"),
                (_incremental(name, query) for name, query in INCREMENTAL.items()),
            ),
            RECOMPUTES,
            table(
                ("construct", "example", "recomputes", "reason"),
                (_recomputed(name, query) for name, query in RECOMPUTED.items()),
            ),
            SHARES,
            table(
                ("of", "read in their meaning", "share"),
                (
                    (name, f"{same} of {all_of_them}", f"{same / all_of_them:.1%}")
                    for name, (same, all_of_them) in SHARE.items()
                ),
            ),
            MOVING,
            table(
                ("now() in", "example", "when time has passed", "reason"),
                (_moving(name, query) for name, query in CLOCK.items()),
            ),
            REFUSES,
            table(
                ("what", "example", "message"),
                ((name, f"`` {query} ``", message) for name, (query, message) in REFUSED.items()),
            ),
            f"Functions that answer differently although no source changed: {_functions()}.\n",
        ]
    )


INTRODUCTION = f"""\
# What is incremental

A refresh follows the change of its sources by one of three methods, and `EXPLAIN REFRESH` says which and why:

- **append**: what follows from the change is computed and appended. No other row of the view is touched.
- **keys**: the groups, partitions or keys that the change touches are computed anew; the rest stays.
- **full**: everything is computed anew.

Every row of these tables was planned by the code that plans refreshes, and the tests refresh each of the first table many
times over changing data and compare it with the query. The examples read {", ".join(f"`{name}`" for name in TABLES)}: `f` is a DOUBLE, `d` a DECIMAL, `s`, `num` and
`name` are text, `day` is a DATE, `since` a TIMESTAMP, all other columns are BIGINT. "Rows went" is any change in which rows left a source: `DELETE`, `UPDATE`, or a view below that took rows
back. With `refresh = 'auto'` a refresh also recomputes if following the change is estimated to read more rows than that.

## Followed at the cost of the change
"""
RECOMPUTES = """
## Recomputed

What always recomputes, CREATE tells, and refuses it if `refresh = 'incremental'`; of the others, the refresh then fails when it would
have to recompute.
A view that reads a view with a LIMIT recomputes too, and so does any query of which Spark cannot say that its parts mean what the whole means.
"""
SHARES = """
## Functions and expressions

Before CREATE takes a query apart, it asks Spark whether the text that Headwater writes for the parsed query means what the original text means. If
not, the view recomputes. Which functions a query calls does not matter otherwise, only which aggregates: a test runs the check over operators, literals and clauses
of every kind (forms), and `python -m tools.incremental_share` also over the documented examples of all functions that Spark has. It prints these numbers, and what is missing.
"""
MOVING = """
## The clock

`now()` and `current_date` are one moment for each refresh. When time has passed since the last one:
"""
REFUSES = """
## Refused by CREATE
"""


def _functions() -> str:
    return ", ".join(f"`{name}`" for name in sorted(VOLATILE))


def _incremental(name: str, query: str) -> tuple[str, ...]:
    model = ViewModel(query, 0)
    came, went = ([plan_change(model.view, {each: left}) for each in model.analysed.tables] for left in (False, True))
    return name, f"`{query}`", _methods(came), _methods(went), _beside([*came, *went])


def _methods(plans: Iterable[ChangePlan]) -> str:
    return " or ".join(dict.fromkeys(METHODS[type(plan)] for plan in plans))


def _beside(plans: Iterable[ChangePlan]) -> str:
    """The tables that the plans read besides what changed: whole, or where keys of the change restrict them."""
    whole: dict[str, bool] = {}
    for plan in plans:
        for leaf in () if isinstance(plan, Skip) else plan.reads.leaves:
            if leaf.version != "delta":
                whole[leaf.table] = whole.get(leaf.table, False) or not leaf.prunes
    return (
        ", ".join(f"`{table}`{'' if all_of_it else ' by keys'}" for table, all_of_it in sorted(whole.items()))
        or "nothing"
    )


def always(query: str, clock: Sequence[str] = ()) -> str | None:
    """Why every refresh recomputes the query, as CREATE says; None if some do not."""
    try:
        view = ViewModel(query, 0, clock).view
    except Opaque as opaque:
        return opaque.reason
    return untracked(view, Clock(clock[0], clock[0]) if clock else None)


def _recomputed(name: str, query: str) -> tuple[str, str, str, str]:
    if (reason := always(query)) is not None:
        return name, f"`{query}`", "always", reason
    model = ViewModel(query, 0)
    full = list(_full(model))
    reasons = dict.fromkeys(reason for _, reason in full)
    if not full or len(reasons) != 1:
        raise AssertionError(f"{name} does not recompute, or for several reasons: {full}")
    moved = [(table, left) for table in model.analysed.tables for left in (False, True)]
    if len(full) == len(moved):
        raise AssertionError(f"{name} always recomputes, and CREATE does not say so")
    when = " or ".join(dict.fromkeys(change for change, _ in full))
    return name, f"`{query}`", when, next(iter(reasons))


def _full(model: ViewModel) -> Iterator[tuple[str, str]]:
    """The changes that recompute, with the reason."""
    several = len(model.analysed.tables) > 1
    for table in model.analysed.tables:
        for left in (False, True):
            plan = plan_change(model.view, {table: left})
            if isinstance(plan, Recompute):
                yield f"`{table}` changed" if several else "rows went" if left else "rows came", plan.reason


def _moving(name: str, query: str) -> tuple[str, str, str, str]:
    if (told := always(query, [LATER.old])) is not None:
        return name, f"`{query}`", "full", told
    plan = plan_change(ViewModel(query, 0, [LATER.old]).view, {}, LATER)
    reason = plan.reason if isinstance(plan, Recompute | RecomputeKeys) else ""
    return name, f"`{query}`", METHODS[type(plan)], reason or "rows enter or leave by the bound alone"
