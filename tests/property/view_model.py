"""A view kept by the very SQL that a refresh plans, over tables in DuckDB: thousands of refreshes in seconds.

The rules write Spark SQL; for the grammar that is used here sqlglot translates it to DuckDB's without loss. What Spark
itself makes of it is for the integration tests to say.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from headwater.catalog.view_layout import Layout
from headwater.views.analyse import analyse, open_tables
from headwater.views.casts import column_type, compared_pairs, comparison_type, with_casts
from headwater.views.change import (
    VIEW,
    AppendDelta,
    ChangePlan,
    Incremental,
    Reads,
    Recompute,
    RecomputeKeys,
    Skip,
    plan_change,
    plan_recompute,
)
from headwater.views.deltas import Clock, Differ
from headwater.views.fold import compacted, read_sql
from headwater.views.layout import plan_layout
from headwater.views.relation import Aggregate, Inner, Join, Relation, Union, Window, children, walk
from headwater.views.relation import columns as columns_of

TABLES = {
    "t": (
        ("id", "BIGINT"),
        ("g", "BIGINT"),
        ("k", "BIGINT"),
        ("v", "BIGINT"),
        ("d", "DECIMAL(10,2)"),
        ("f", "DOUBLE"),
        ("s", "VARCHAR"),
        ("num", "VARCHAR"),
        ("day", "DATE"),
    ),
    "u": (("k", "BIGINT"), ("name", "VARCHAR"), ("x", "BIGINT"), ("since", "TIMESTAMP")),
    "w": (("k", "BIGINT"), ("y", "BIGINT")),
}
_SPARK = {"BIGINT": "bigint", "DOUBLE": "double", "VARCHAR": "string", "INTEGER": "int", "HUGEINT": "bigint"}
_SPARK |= {"BOOLEAN": "boolean", "TINYINT": "tinyint", "TIMESTAMP": "timestamp_ntz"}


def duck(sql: str) -> str:
    return sqlglot.transpile(sql, read="spark", write="duckdb")[0]


class ViewModel:
    """A view, its sources, and what its table holds."""

    def __init__(self, query: str, seed: int, clock: Sequence[str] = ()) -> None:
        self.query = query
        self.random = random.Random(seed)
        self.db = duckdb.connect()
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self.plans: list[ChangePlan] = []
        self.signed, self.folded = False, True
        self.moments = list(clock)
        self.moment = self.moments.pop(0) if self.moments else None
        for name, columns in TABLES.items():
            listed = ", ".join(f"{column} {of}" for column, of in columns)
            for version, extra in (("old", ""), ("new", ""), ("delta", ", __w INT")):
                self.db.execute(f"CREATE TABLE {name}__{version} ({listed}{extra})")
        opened = {name: [(column, False) for column, _ in columns] for name, columns in TABLES.items()}
        self.analysed = analyse(query, lambda required: open_tables(opened, required))
        typed = self._types() | self._key_types()
        self.analysed = with_casts(self.analysed, typed)
        outputs = self._describe(self._direct())
        layout = plan_layout(self.analysed, [name for name, _ in outputs], [of for _, of in outputs], typed)
        self.layout = Layout.from_json(layout.to_json())
        assert self.layout == layout
        self.view = Incremental(self.analysed, self.layout, typed)
        first = plan_recompute(self.view, "first", self._clock(self.moment))
        self._provide(first.reads)
        self.db.execute(f"CREATE TABLE {VIEW} AS {duck(first.sql)}")

    # -- what happens -------------------------------------------------------------------------------------------------

    def refresh(self, *, inserts: int = 6, deletes: int = 3, tables: Iterable[str] = TABLES) -> ChangePlan:
        """Change some tables, and let the view follow."""
        changed = {}
        for name in TABLES:
            delta = self._change(name, inserts, deletes) if name in set(tables) else self._change(name, 0, 0)
            if delta and name in self.analysed.tables:
                changed[name] = any(row[-1] < 0 for row in delta)
        before, self.moment = self.moment, self.moments.pop(0) if self.moments else self.moment
        plan = plan_change(self.view, changed, self._clock(before, self.moment))
        self.plans.append(plan)
        self._apply(plan)
        return plan

    def compact(self) -> None:
        """Fold the view's rows."""
        self.db.execute(f"CREATE TABLE __folded AS {duck(compacted(self.layout, VIEW, signed=self.signed, base=True))}")
        listed = ", ".join(f'"{name}"' for name in self.layout.columns)
        self.db.execute(f"CREATE OR REPLACE TABLE {VIEW} AS SELECT {listed} FROM __folded")
        self.db.execute("DROP TABLE __folded")
        self.signed, self.folded = False, True

    def check(self) -> None:
        """The view's rows are the query's rows, as bags."""
        unlimited = replace(self.layout, limit=None, offset=None, order=())
        found = _bag(self.db.execute(duck(read_sql(unlimited, VIEW, signed=self.signed))).fetchall())
        wanted = _bag(self.db.execute(duck(self._direct())).fetchall())
        if self.folded:
            assert found == _bag(self.db.execute(duck(read_sql(unlimited, VIEW, signed=False, base=True))).fetchall())
        assert found == wanted, (
            f"{self.query}\nonly in the view: {found - wanted}\nonly in the query: {wanted - found}\n{self.plans[-1:]}"
        )

    # -- how ----------------------------------------------------------------------------------------------------------

    def _apply(self, plan: ChangePlan) -> None:
        if isinstance(plan, Skip):
            return
        self.folded = isinstance(plan, Recompute)
        self._provide(plan.reads)
        listed = ", ".join(f'"{name}"' for name in self.layout.columns)
        match plan:
            case AppendDelta():
                self.db.execute(f"INSERT INTO {VIEW} ({listed}) SELECT {listed} FROM ({duck(plan.sql)})")
                self.signed |= plan.signed
            case RecomputeKeys():
                self.db.execute(f"CREATE OR REPLACE TEMP TABLE __back AS {duck(plan.retract)}")
                self.db.execute(f"INSERT INTO {VIEW} ({listed}) SELECT {listed} FROM __back")
                self.db.execute(f"INSERT INTO {VIEW} ({listed}) SELECT {listed} FROM ({duck(plan.insert)})")
                self.signed = True
            case Recompute():
                self.db.execute(f"CREATE OR REPLACE TABLE {VIEW} AS {duck(plan.sql)}")
                self.signed = False

    def _provide(self, reads: Reads) -> None:
        for leaf in reads.leaves:
            if leaf.prunes:  # a hint: everything is always enough
                source = f"SELECT * FROM {leaf.table}__{leaf.version}"
                self.db.execute(f'CREATE OR REPLACE TEMP VIEW "{leaf.name}" AS {source}')
        for keys in reads.keys:
            self.db.execute(f'CREATE OR REPLACE TEMP TABLE "{keys.name}" AS SELECT DISTINCT * FROM ({duck(keys.sql)})')

    def _change(self, name: str, inserts: int, deletes: int) -> list[tuple[Any, ...]]:
        old = list(self.rows[name])
        new, delta = list(old), []
        for _ in range(self.random.randint(0, deletes)):
            if new:
                delta.append((*new.pop(self.random.randrange(len(new))), -1))
        for _ in range(self.random.randint(0, inserts)):
            row = self._row(name)
            new.append(row)
            delta.append((*row, 1))
        if old and deletes and self.random.random() < 0.3:  # a row that was only copied to another file
            copied = self.random.choice(old)
            delta += [(*copied, 1), (*copied, -1)]
        self.rows[name] = new
        for version, rows in (("old", old), ("new", new), ("delta", delta)):
            self.db.execute(f"DELETE FROM {name}__{version}")
            if rows:
                marks = "(" + ", ".join("?" * len(rows[0])) + ")"
                values = [value for row in rows for value in row]
                self.db.execute(f"INSERT INTO {name}__{version} VALUES {', '.join([marks] * len(rows))}", values)
        return delta

    def _row(self, name: str) -> tuple[Any, ...]:
        choose = self.random
        made: list[Any] = []
        for column, of in TABLES[name]:
            if column == "id":
                made.append(choose.randrange(1000))
            elif choose.random() < 0.12:
                made.append(None)
            elif of == "BIGINT":
                made.append(choose.randrange(4))
            elif of == "DOUBLE":
                made.append(choose.choice([0.5, 1.5, 2.25, -3.0]))
            elif column == "num":  # numbers as text, some in two ways
                made.append(choose.choice(["0", "1", "01", "2", "02", "3"]))
            elif of == "VARCHAR":
                made.append(choose.choice("abc"))
            elif of == "DATE":
                made.append(date(2026, 1, choose.randint(1, 3)))
            elif of == "TIMESTAMP":
                made.append(datetime(2026, 1, choose.randint(1, 3), choose.choice([0, 0, 12])))
            else:
                made.append(choose.randrange(400) / 100)
        return tuple(made)

    def _direct(self) -> str:
        """The query itself over the new versions, without ORDER BY and LIMIT, and with now() as it is meant."""
        tree = sqlglot.parse_one(self.query, read="spark")
        common = {each.alias for each in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            if table.name in TABLES and table.name not in common:
                if not table.alias:
                    table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name)))
                table.set("this", exp.to_identifier(f"{table.name}__new"))
        tree.set("limit", None)
        tree.set("order", None)
        text = tree.sql(dialect="spark")
        return text.replace("NOW()", f"TIMESTAMP '{self.moment}'") if self.moment else text

    def _clock(self, old: str | None, new: str | None = None) -> Clock | None:
        return None if old is None else Clock(old, new or old)

    def _types(self) -> dict[str, str]:
        found: dict[str, str] = {}
        differ = Differ({}, self._clock(self.moment))
        for node in walk(self.analysed.root):
            if not isinstance(node, Aggregate | Window):
                continue
            child = differ.content(node.child, "new")
            for item in node.values if isinstance(node, Aggregate) else node.items:
                text = item.expr.sql(dialect="spark")
                found[text] = self._describe(f"SELECT {text} AS a FROM ({child})")[0][1]
                if (argument := _argument(item.expr)) is not None:
                    of = self._describe(f"SELECT {argument.sql(dialect='spark')} AS a FROM ({child})")[0][1]
                    found["argument of " + text] = of
        return found

    def _key_types(self) -> dict[str, str]:
        """The types of joined and united columns, and those in which Spark compares them."""
        found: dict[str, str] = {}
        differ = Differ({}, self._clock(self.moment))

        def describe(node: Relation) -> None:
            for name, (_, of) in zip(columns_of(node), self._describe(differ.content(node, "new")), strict=True):
                found[column_type(name)] = of

        for node in walk(self.analysed.root):
            if isinstance(node, Inner | Join | Union):
                for each in (node, *children(node)):
                    describe(each)
            for left, right in compared_pairs(node):
                both = [found[column_type(name)] for name in (left, right)]
                known = ("timestamp_ntz", "date", "double", "decimal(10,2)", "bigint")
                common = next((of for of in known if of in both), both[0])
                found[comparison_type((left, right))] = "decimal(22,2)" if common.startswith("decimal") else common
        return found

    def _describe(self, sql: str) -> list[tuple[str, str]]:
        return [(row[0], _spark_type(row[1])) for row in self.db.execute(f"DESCRIBE {duck(sql)}").fetchall()]


def _argument(call: exp.Expression) -> exp.Expression | None:
    while isinstance(call, exp.Window | exp.Filter):
        call = call.this
    arguments = list(call.iter_expressions())
    if arguments and isinstance(arguments[0], exp.Distinct):
        arguments = list(arguments[0].expressions)
    return arguments[0] if arguments and not isinstance(arguments[0], exp.Star) else None


def _spark_type(of: str) -> str:
    return "decimal" + of[7:].lower() if of.startswith("DECIMAL") else _SPARK.get(of, of.lower())


def _bag(rows: Iterable[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(_comparable(value) for value in row) for row in rows)


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return tuple(sorted(map(str, value))) if isinstance(value, list) else value
