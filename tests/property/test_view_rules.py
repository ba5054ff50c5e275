"""Incremental equals recomputed: for every rule by name, and for queries that nobody chose."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.view_model import TABLES, ViewModel, duck

from headwater.views import states
from headwater.views.analyse import Opaque
from headwater.views.change import VIEW, AppendDelta, Recompute, RecomputeKeys, Skip
from headwater.views.fold import read_sql

INCREMENTAL = {
    "filter and projection": "SELECT id, g, v + 1 AS v1 FROM t WHERE v > 1",
    "count, sum, avg": "SELECT g, COUNT(*) c, SUM(v) s, AVG(v) a, COUNT(d) cd, SUM(d) sd FROM t GROUP BY g",
    "min, max": "SELECT g, MIN(v) mn, MAX(f) mx FROM t GROUP BY g",
    "sums of floats": "SELECT g, SUM(f) sf, AVG(f) af, STDDEV(f) sdv, VAR_POP(f) vp FROM t GROUP BY g",
    "total": "SELECT COUNT(*) c, SUM(v) s FROM t",
    "count distinct, collect_set": (
        "SELECT g, COUNT(DISTINCT v) cv, COUNT(DISTINCT s, k) cs, SUM(d) sd, COLLECT_SET(s) cset FROM t GROUP BY g"
    ),
    "bool_and, bool_or, FILTER": (
        "SELECT g, BOOL_AND(v > 1) ba, BOOL_OR(v > 2) bo, COUNT(*) FILTER (WHERE v > 1) cf, "
        "SUM(d) FILTER (WHERE k = 1) sf FROM t GROUP BY g"
    ),
    "group by expressions": "SELECT s, UPPER(s) us, COUNT(*) c, SUM(v) * 2 + COUNT(*) z FROM t GROUP BY s, UPPER(s)",
    "rollup": "SELECT g, k, SUM(v) s, GROUPING_ID() gi FROM t GROUP BY ROLLUP(g, k)",
    "cube": "SELECT g, k, COUNT(*) s FROM t GROUP BY CUBE(g, k)",
    "grouping sets": "SELECT g, k, COUNT(*) s FROM t GROUP BY GROUPING SETS ((g), (k), ())",
    "an alias that shadows a column": "SELECT id, -v AS v, k AS g FROM t WHERE v > 0 ORDER BY v + g, id LIMIT 3",
    "having, order by, limit": ("SELECT g, SUM(v) s FROM t GROUP BY g HAVING COUNT(*) > 1 ORDER BY s DESC LIMIT 2"),
    "inner join": (
        "SELECT t.g, u.name, SUM(t.v) s, COUNT(*) c FROM t JOIN u ON t.k = u.k WHERE u.x > 0 GROUP BY t.g, u.name"
    ),
    "inner join of three": "SELECT t.id, u.name, w.y FROM t, u, w WHERE t.k = u.k AND w.k = u.k AND t.v > 0",
    "inner join of different types": "SELECT t.id, u.name FROM t JOIN u ON t.day = u.since JOIN w ON w.k = t.num",
    "left join of different types": "SELECT u.k, u.name, t.id, t.num FROM u LEFT JOIN t ON u.k = t.num",
    "full join of different types": "SELECT u.name, t.id FROM u FULL JOIN t ON t.day = u.since",
    "not exists with different types": (
        "SELECT t.id, t.num FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.num AND u.x > 0)"
    ),
    "in with different types": "SELECT t.id FROM t WHERE t.day IN (SELECT since FROM u)",
    "union all of different types": (
        "SELECT q.k, MAX(q.since) AS m, COUNT(*) AS c FROM "
        "(SELECT k, day AS since FROM t UNION ALL SELECT k, since FROM u) q GROUP BY q.k"
    ),
    "self join": "SELECT a.id, b.id AS id2 FROM t a JOIN t b ON a.k = b.k AND a.v < b.v",
    "left join": "SELECT t.id, t.v, u.name FROM t LEFT JOIN u ON t.k = u.k",
    "right join": "SELECT t.id, u.name FROM t RIGHT JOIN u ON t.k = u.k AND u.x > 1",
    "full join": "SELECT t.id, u.name, t.k, u.k AS uk FROM t FULL JOIN u ON t.k = u.k",
    "semi join": "SELECT t.id, t.v FROM t LEFT SEMI JOIN u ON t.k = u.k AND u.x > 0",
    "anti join": "SELECT t.id, t.v FROM t LEFT ANTI JOIN u ON t.k = u.k",
    "exists": "SELECT t.id, t.v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.x > 0)",
    "not exists": "SELECT t.id, t.v FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.x <> t.v)",
    "in": "SELECT t.id FROM t WHERE t.k IN (SELECT k FROM u WHERE x > 1)",
    "correlated scalar": "SELECT id FROM t WHERE v > (SELECT AVG(v) FROM t t2 WHERE t2.k = t.k)",
    "distinct": "SELECT DISTINCT g, k FROM t",
    "union": "SELECT g, k FROM t UNION SELECT x, k FROM u",
    "union all": "SELECT g, k FROM t UNION ALL SELECT x, k FROM u WHERE x > 1",
    "intersect": "SELECT g, k FROM t INTERSECT SELECT x, k FROM u",
    "except": "SELECT g, k FROM t EXCEPT SELECT x, k FROM u WHERE x > 0",
    "groups of an except": (
        "SELECT g, COUNT(*) c FROM (SELECT g, k FROM t EXCEPT SELECT x, k FROM u) q GROUP BY g HAVING COUNT(*) > 1"
    ),
    "* EXCEPT": "SELECT * EXCEPT (f, S) FROM t WHERE v > 1",
    "rank": "SELECT id, g, v, RANK() OVER (PARTITION BY g ORDER BY v) rn FROM t",
    "first rows of a group": (
        "SELECT * FROM (SELECT id, g, v, ROW_NUMBER() OVER (PARTITION BY g ORDER BY v, id, d, f, s, k) rn FROM t) q "
        "WHERE rn <= 2"
    ),
    "a WINDOW clause": (
        "SELECT id, g, SUM(v) OVER w s, COUNT(*) OVER (w RANGE UNBOUNDED PRECEDING) c FROM t "
        "WINDOW w AS (PARTITION BY g ORDER BY v)"
    ),
    "running sum": "SELECT g, SUM(v) OVER (PARTITION BY g ORDER BY v) s FROM t",
    "window over groups": "SELECT g, RANK() OVER (PARTITION BY g ORDER BY SUM(v)) r, SUM(v) sv FROM t GROUP BY g, k",
    "groups of groups": "SELECT b.c, COUNT(*) n FROM (SELECT k, COUNT(*) c FROM t GROUP BY k) b GROUP BY b.c",
    "join with groups": "SELECT u.name, b.s FROM u JOIN (SELECT k, SUM(v) s FROM t GROUP BY k) b ON u.k = b.k",
    "left join with float groups": (
        "SELECT u.name, b.s FROM u LEFT JOIN (SELECT k, SUM(f) s FROM t GROUP BY k) b ON u.k = b.k"
    ),
    "common table expressions": (
        "WITH a AS (SELECT g, v FROM t WHERE v > 0), b AS (SELECT g, SUM(v) s FROM a GROUP BY g) "
        "SELECT a.g, a.v, b.s FROM a JOIN b ON a.g = b.g"
    ),
    "any aggregate by its keys": "SELECT g, MAX_BY(s, id * 100 + v) m, COUNT(*) c FROM t GROUP BY g",
    "lateral view": "SELECT g, n, SUM(v) s FROM t LATERAL VIEW EXPLODE(ARRAY(1, 2)) e AS n GROUP BY g, n",
}


def run(query: str, seed: int) -> ViewModel:
    """A life of a view: additions, then changes of one table at a time, then of all, folded now and then."""
    model = ViewModel(query, seed)
    for step in range(11):
        if step < 3:
            model.refresh(deletes=0)
        elif step < 8:
            model.refresh(tables=["t"] if step < 6 else ["u"])
        else:
            model.refresh()
        model.check()
        if model.random.random() < 0.25:
            model.compact()
            model.check()
    return model


@pytest.mark.parametrize("query", INCREMENTAL.values(), ids=INCREMENTAL.keys())
def test_incremental_equals_recomputed(query: str) -> None:
    model = run(query, seed=1)
    assert not any(isinstance(plan, Recompute) for plan in model.plans)


def test_recomputes_what_has_no_rule() -> None:
    model = run("SELECT MIN(v) m, SUM(f) s FROM t", seed=2)
    reasons = {plan.reason for plan in model.plans if isinstance(plan, Recompute)}
    assert any("no groups to compute alone" in reason for reason in reasons)
    assert any(isinstance(plan, AppendDelta) for plan in model.plans)


EXPRESSIONS = ("v", "k", "v + k", "COALESCE(v, 0)", "CASE WHEN v > 1 THEN k ELSE g END", "id % 3")
CONDITIONS = ("v > 1", "k = 1", "s = 'a'", "v IS NULL", "g <> k", "v > 0 OR k = 2", "d < 2.5", "s IN ('a', 'b')")
AGGREGATES = (
    *("COUNT(*)", "COUNT(v)", "SUM(v)", "AVG(v)", "MIN(v)", "MAX(s)", "SUM(d)", "AVG(d)", "SUM(f)", "STDDEV(f)"),
    *("COUNT(DISTINCT v)", "COUNT(DISTINCT s)", "SUM(DISTINCT k)", "BOOL_OR(v > 1)", "COUNT(*) FILTER (WHERE v > 1)"),
)
KEYS = ("g", "k", "s", "g + k", "UPPER(s)", "id % 2")
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
EQUALITIES = ("q.k = u.k", "q.num = u.k", "u.x = q.num", "q.day = u.since", "q.d = u.k", "q.f = u.x")


def generated(choose: random.Random) -> str:
    """A query from a small grammar."""
    where = f" WHERE {choose.choice(CONDITIONS)}" if choose.random() < 0.6 else ""
    source = f"(SELECT * FROM t{where})" if choose.random() < 0.5 else "t"
    where = where if source == "t" else ""
    match choose.randrange(9):
        case 0:
            items = ", ".join(f"{e} AS e{n}" for n, e in enumerate(choose.sample(EXPRESSIONS, 2)))
            distinct = "DISTINCT " if choose.random() < 0.4 else ""
            return f"SELECT {distinct}{items} FROM {source} q{where}"
        case 1 | 2:
            keys = choose.sample(KEYS, choose.randint(1, 2))
            shown = ", ".join(f"{key} AS k{n}" for n, key in enumerate(keys))
            values = ", ".join(f"{a} AS a{n}" for n, a in enumerate(choose.sample(AGGREGATES, choose.randint(1, 3))))
            having = " HAVING COUNT(*) > 1" if choose.random() < 0.3 else ""
            return f"SELECT {shown}, {values} FROM {source} q{where} GROUP BY {', '.join(keys)}{having}"
        case 3:
            condition = choose.choice(EQUALITIES) + (" AND u.x > 0" if choose.random() < 0.3 else "")
            return f"SELECT q.id, q.v, u.name, u.x FROM {source} q {choose.choice(JOINS)} u ON {condition}"
        case 4:
            value = choose.choice(("COUNT(*)", "SUM(q.v)", "MIN(q.v)", "SUM(u.x)"))
            join = f"{source} q {choose.choice(JOINS)} u ON {choose.choice(EQUALITIES)}"
            return f"SELECT u.name, {value} AS a FROM {join} GROUP BY u.name"
        case 5:
            test = choose.choice(("EXISTS", "NOT EXISTS"))
            inner = f"SELECT 1 FROM u WHERE {choose.choice(EQUALITIES)} AND u.x > 0"
            return f"SELECT q.id, q.g FROM {source} q WHERE {test} ({inner})"
        case 6:
            call = choose.choice(("RANK()", "SUM(q.v)", "COUNT(*)", "DENSE_RANK()", "MAX(q.v)"))
            return f"SELECT q.id, q.g, {call} OVER (PARTITION BY q.g ORDER BY q.v) AS r FROM {source} q"
        case 7:
            inner = choose.choice(("COUNT(*)", "SUM(v)", "MAX(v)"))
            outer = choose.choice(("COUNT(*)", "SUM(b.a)", "MIN(b.a)"))
            return f"SELECT b.k, {outer} AS z FROM (SELECT g, k, {inner} a FROM t{where} GROUP BY g, k) b GROUP BY b.k"
        case _:
            word = choose.choice(("UNION ALL", "UNION"))
            return f"SELECT g, k FROM t{where} {word} SELECT x, k FROM u"


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=0, max_value=2**32))
def test_generated_queries(seed: int) -> None:
    model = ViewModel(generated(random.Random(seed)), seed)
    for step in range(6):
        model.refresh(deletes=0 if step < 2 else 3)
        model.check()
    model.compact()
    model.check()


def test_most_generated_queries_are_incremental() -> None:
    kinds: Counter[type] = Counter()
    for seed in range(40):
        model = ViewModel(generated(random.Random(seed)), seed)
        for _ in range(4):
            kinds[type(model.refresh())] += 1
    followed = kinds[AppendDelta] + kinds[RecomputeKeys]
    assert followed > 0.95 * (sum(kinds.values()) - kinds[Skip])


@pytest.mark.parametrize("broken", ["sum", "min"])
def test_a_broken_rule_is_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the properties are worth: a rule that ignores weights, and one that takes MIN for invertible."""
    if broken == "sum":
        monkeypatch.setattr(states, "_sum", lambda value, _="": f"SUM({value})")
        query = "SELECT g, SUM(d) s FROM t GROUP BY g"
    else:
        original = states._plain

        def invertible(*arguments: object, **options: object) -> object:
            found = original(*arguments, **options)  # type: ignore[arg-type]
            return None if found is None else states.State(found.partials, found.merges, found.final, True)

        monkeypatch.setattr(states, "_plain", invertible)
        query = "SELECT g, MIN(v) m FROM t GROUP BY g"
    with pytest.raises(AssertionError, match="only in the view"):
        for seed in range(5):
            run(query, seed)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT g FROM t WHERE k NOT IN (SELECT k FROM u)", "NOT IN with values that may be null"),
        ("SELECT g FROM (SELECT g FROM t LIMIT 3) q", "LIMIT inside a query"),
        ("SELECT t.g FROM t JOIN LATERAL (SELECT 1) q", "lateral"),
        ("SELECT g FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
    ],
)
def test_says_what_it_does_not_understand(query: str, reason: str) -> None:
    with pytest.raises(Opaque, match=reason):
        ViewModel(query, 0)


class Extremes(ViewModel):
    """Values at the ends of BIGINT, as long as every group's sum is one."""

    def _change(self, name: str, inserts: int, deletes: int) -> list[tuple[Any, ...]]:
        before = list(self.rows[name])
        while True:
            delta = super()._change(name, inserts, deletes)
            sums: Counter[Any] = Counter()
            for row in self.rows[name]:
                of = dict(zip((column for column, _ in TABLES[name]), row, strict=True))
                sums[of.get("g")] += of.get("v") or 0
            if all(-(2**63) <= total < 2**63 for total in sums.values()):
                return delta
            self.rows[name] = before

    def _row(self, name: str) -> tuple[Any, ...]:
        row = dict(zip((column for column, _ in TABLES[name]), super()._row(name), strict=True))
        if row.get("v") is not None and self.random.random() < 0.5:
            row["v"] = self.random.choice([-(2**63), 2**63 - 1, -(2**62), 2**62, 2**32, -(2**32) - 1])
        return tuple(row.values())


def test_sums_of_the_largest_numbers() -> None:
    model = Extremes("SELECT g, SUM(v) AS s, COUNT(v) AS c FROM t GROUP BY g", seed=7)
    for turn in range(60):
        model.refresh(inserts=4, deletes=3, tables=["t"])
        model.check()
        if turn % 20 == 19:
            model.compact()
            model.check()
    assert not any(isinstance(plan, Recompute | RecomputeKeys) for plan in model.plans)
    assert any(abs(row[3] or 0) >= 2**62 for row in model.rows["t"])


class Wild(ViewModel):
    """Floats of all sizes: what was added to a large one, and taken back with it, must not stay behind."""

    def _row(self, name: str) -> tuple[Any, ...]:
        row = dict(zip((column for column, _ in TABLES[name]), super()._row(name), strict=True))
        if row.get("f") is not None:
            row["f"] = self.random.choice([1e16, -1e16, 0.1, 1 / 3, 1e-9])
        return tuple(row.values())


def test_sums_of_floats_do_not_drift() -> None:
    model = Wild("SELECT g, SUM(f) AS s, AVG(f) AS a FROM t GROUP BY g", seed=5)
    column, by = [name for name, _ in TABLES["t"]].index("f"), [name for name, _ in TABLES["t"]].index("g")
    for turn in range(300):
        model.refresh(inserts=6, deletes=5, tables=["t"])
        if turn % 50 == 49:
            model.compact()
        if turn % 10:
            continue
        groups: dict[Any, list[float]] = {}
        for row in model.rows["t"]:
            groups.setdefault(row[by], [])
            groups[row[by]] += [row[column]] if row[column] is not None else []
        found = model.db.execute(duck(read_sql(model.layout, VIEW, signed=model.signed))).fetchall()
        assert {g for g, _, _ in found} == set(groups)
        for g, total, _ in found:
            exact, size = math.fsum(groups[g]), math.fsum(map(abs, groups[g]))
            assert abs((total or 0.0) - exact) <= 1e-12 * size + 1e-300, (turn, g, total, exact)
