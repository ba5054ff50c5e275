"""Random schemas, rows and queries for views on Spark: everything follows from one random generator.

Queries are made over relations, which are topics or views alike, so that views stand on views of any shape. Answers are
determined by the rows alone: nothing is ordered by what may tie, and overflow and division are out of reach. The keys
of the two topics are of one family, but not always of one type, so that joins compare a number with a text, or a day
with a moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

TYPES: dict[str, Callable[[random.Random], Any]] = {
    "INT": lambda r: r.randrange(-2, 4),
    "BIGINT": lambda r: r.choice([0, 1, 2, 3, 10**12]),
    "DOUBLE": lambda r: r.choice([0.5, 1.25, -3.0, 0.0, -0.0, 1e6, float("nan")]),
    "FLOAT": lambda r: r.choice([0.5, 2.0, -0.25]),
    "DECIMAL(9,2)": lambda r: r.choice(["0.10", "12.34", "-1.00", "7.50"]),
    "DECIMAL(20,4)": lambda r: r.choice(["1.0000", "99999999.1234", "-5.5000"]),
    "DECIMAL(38,18)": lambda r: r.choice(["12345678901234567.123456789012345678", "-0.000000000000000001", "-7"]),
    "STRING": lambda r: r.choice(["a", "b", "B", "", "é"]),
    "BOOLEAN": lambda r: r.random() < 0.5,
    "DATE": lambda r: r.choice([*(f"2026-01-0{day}" for day in range(1, 5)), "1969-12-31", "0001-01-01", "9999-12-31"]),
    "TIMESTAMP": lambda r: r.choice(
        [
            *(f"2026-01-0{day}T0{day}:30:00Z" for day in range(1, 4)),
            "1969-12-31T23:59:59.999999Z",
            "9999-12-30T00:00:00Z",
        ]
    ),
    "TIMESTAMP_NTZ": lambda r: f"2026-01-0{r.randint(1, 3)}T0{r.randint(0, 2)}:15:00.000001",
    "BINARY": lambda r: r.choice(["AA==", "/w=="]),
    "MAP<STRING, INT>": lambda r: r.choice([{}, {"a": 1}, {"a": None}, {"b": 2, "a": None}]),
}
FAMILIES: dict[str, dict[str, Callable[[random.Random], Any]]] = {
    "number": {
        "INT": lambda r: r.randrange(4),
        "BIGINT": lambda r: r.choice([0, 1, 2, 3, 2**53 + 1]),
        "DECIMAL(9,2)": lambda r: r.choice(["0.00", "1.00", "2.00", "2.50"]),
        "DOUBLE": lambda r: r.choice([0.0, -0.0, 1.0, 2.5, 2.0**53]),
        "STRING": lambda r: r.choice(["0", "1", "01", " 2", "3"]),
    },
    "day": {
        "DATE": lambda r: f"2026-01-0{r.randint(1, 4)}",
        "TIMESTAMP": lambda r: f"2026-01-0{r.randint(1, 4)}T{r.choice(['00', '00', '12'])}:00:00Z",
        "TIMESTAMP_NTZ": lambda r: f"2026-01-0{r.randint(1, 4)}T{r.choice(['00', '00', '12'])}:00:00",
        "STRING": lambda r: f"2026-01-0{r.randint(1, 4)}",
    },
}
"""Values of keys by their types, which Spark compares with each other; every text can be cast to the others."""
_LITERALS = {
    "string": "'a'",
    "date": "DATE '2026-01-02'",
    "timestamp": "TIMESTAMP '2026-01-02 00:00:00'",
    "timestamp_ntz": "TIMESTAMP_NTZ '2026-01-02 00:00:00'",
    "binary": "X'00'",
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as Spark writes it
    required: bool = False
    family: str = ""  # of a key

    @property
    def number(self) -> bool:
        return self.type in ("int", "bigint", "double", "float") or self.type.startswith("decimal")

    @property
    def float(self) -> bool:
        return self.type in ("double", "float")

    @property
    def plain(self) -> bool:
        """Whether it may be grouped, compared and counted; a sum of floats may differ in its last digit."""
        return not self.type.startswith(("array", "map")) and not self.float

    @property
    def wide(self) -> bool:
        """Whether its average may have more digits than a decimal holds."""
        return self.type.startswith("decimal(38")


@dataclass(frozen=True, slots=True)
class Relation:
    """Something to query: a topic, or a view."""

    name: str
    columns: tuple[Column, ...]

    def some(self, choose: random.Random, test: Callable[[Column], bool]) -> Column | None:
        found = [column for column in self.columns if test(column)]
        return choose.choice(found) if found else None


def topic(choose: random.Random, name: str, key: str, family: str) -> Relation:
    """A topic with an id, a key to join by and some columns of random types."""
    columns = [Column("id", "BIGINT", True), Column("k", key, choose.random() < 0.3, family)]
    for number in range(choose.randint(3, 6)):
        columns.append(Column(f"c{number}", choose.choice(list(TYPES)), choose.random() < 0.2))
    return Relation(name, tuple(columns))


def row(choose: random.Random, relation: Relation, number: int) -> dict[str, Any]:
    """A row of a topic."""
    made: dict[str, Any] = {}
    for column in relation.columns:
        null = not column.required and choose.random() < 0.15
        values = FAMILIES[column.family] if column.family else TYPES
        made[column.name] = number if column.name == "id" else None if null else values[column.type](choose)
    return made


def as_spark(relation: Relation) -> Relation:
    """The topic's columns with Spark's names of types."""
    return Relation(relation.name, tuple(replace(c, type=c.type.lower()) for c in relation.columns))


def condition(choose: random.Random, relation: Relation, alias: str) -> str:
    column = relation.some(choose, lambda c: c.plain or c.type == "double")
    if column is None:
        return "TRUE"
    name = f"{alias}.{column.name}"
    if column.float:
        return choose.choice([f"{name} > 0.5D", f"{name} >= -0.0D", f"{name} < 1D", f"{name} = 0D"])
    if choose.random() < 0.2:
        return f"{name} IS {choose.choice(['', 'NOT '])}NULL"
    if column.type == "boolean":
        return choose.choice([name, f"NOT {name}"])
    if column.number:
        return choose.choice([f"{name} > 0", f"{name} <> 1", f"{name} BETWEEN 0 AND 2", f"{name} IN (1, 2)"])
    if column.type in _LITERALS:
        return f"{name} {choose.choice(['>=', '<', '<>', '='])} {_LITERALS[column.type]}"
    return f"{name} IS NOT NULL"


def where(choose: random.Random, relation: Relation, alias: str, share: float = 0.5) -> str:
    if choose.random() > share:
        return ""
    first = condition(choose, relation, alias)
    if choose.random() < 0.3:
        first = f"({first} {choose.choice(['AND', 'OR'])} {condition(choose, relation, alias)})"
    return f" WHERE {first}"


def expression(choose: random.Random, column: Column, alias: str) -> str:
    name = f"{alias}.{column.name}"
    others = [name, name, f"COALESCE({name}, {name})", f"CASE WHEN {name} IS NULL THEN NULL ELSE {name} END"]
    if column.type in ("int", "double"):
        others += [f"{name} + 1", f"-{name}"]
    if column.type == "string":
        others += [f"UPPER({name})", f"CONCAT({name}, 'x')"]
    if column.type in ("date", "timestamp"):
        others.append(f"YEAR({name})")
    return choose.choice(others)


def aggregate(choose: random.Random, relation: Relation, alias: str) -> str:
    """An aggregate of one of the relation's columns."""
    counted = relation.some(choose, lambda c: c.plain)
    if counted is None or choose.random() < 0.2:
        return choose.choice(["COUNT(*)", f"COUNT(*) FILTER (WHERE {condition(choose, relation, alias)})"])
    name = f"{alias}.{counted.name}"
    found = [f"COUNT({name})", f"COUNT(DISTINCT {name})", f"COUNT_IF({condition(choose, relation, alias)})"]
    if counted.type not in ("boolean", "binary"):
        found += [f"MIN({name})", f"MAX({name})"]
    if counted.type in ("string", "int", "date"):
        found.append(f"SORT_ARRAY(COLLECT_SET({name}))")
    if counted.type == "boolean":
        found += [f"BOOL_AND({name})", f"BOOL_OR({name})"]
    if (summed := relation.some(choose, lambda c: c.number)) is not None:
        number = f"{alias}.{summed.name}"
        found += [f"{call}({number})" for call in ("SUM", "SUM", "STDDEV", "VAR_POP", "MEDIAN")]
        found += [] if summed.wide else [f"AVG({number})"] * 2
        if not summed.float:
            found += [f"SUM(DISTINCT {number})", f"SUM({number}) FILTER (WHERE {condition(choose, relation, alias)})"]
    return choose.choice(found)


def grouped(choose: random.Random, relation: Relation, alias: str, source: str) -> str:
    """GROUP BY over `source`, in which `alias` has the relation's columns."""
    plain = [column for column in relation.columns if column.plain and column.name != "id"]
    keys = [f"{alias}.{c.name}" for c in choose.sample(plain, min(len(plain), choose.randint(0, 2)))]
    values = [f"{aggregate(choose, relation, alias)} AS a{n}" for n in range(choose.randint(1, 3))]
    shown = ", ".join([*(f"{key} AS g{n}" for n, key in enumerate(keys)), *values])
    if not keys:
        return f"SELECT {shown} FROM {source}"
    listed = ", ".join(keys)
    how = choose.choice([listed] * 4 + [f"ROLLUP({listed})", f"CUBE({listed})"])
    having = choose.choice(["", "", f" HAVING COUNT(*) > {choose.randint(1, 2)}"])
    return f"SELECT {shown} FROM {source} GROUP BY {how}{having}"


def query(choose: random.Random, relations: Sequence[Relation]) -> str:
    """A query over one relation, or two that have a column `k`."""
    one = choose.choice(relations)
    keyed = [each for each in relations if any(column.name == "k" for column in each.columns)]
    if len(keyed) > 1 and choose.random() < 0.55:
        left, right = choose.sample(keyed, 2)
        return choose.choice([_joined, _joined, _tested, _joined_groups])(choose, left, right)
    shapes = [_filtered, _distinct, _grouped, _grouped, _union, _ranked, _grouped_twice, _above_average, _top]
    return choose.choice(shapes)(choose, one)


def _items(
    choose: random.Random, relation: Relation, alias: str, most: int, prefix: str = "e", *, maps: bool = True
) -> str:
    """Some columns of a relation, under names of their own."""
    every = [column for column in relation.columns if maps or not column.type.startswith("map")]
    taken = choose.sample(every, min(len(every), choose.randint(1, most)))
    return ", ".join(f"{expression(choose, c, alias)} AS {prefix}{n}" for n, c in enumerate(taken))


def _filtered(choose: random.Random, one: Relation) -> str:
    key = ", q.k AS k" if any(c.name == "k" for c in one.columns) else ""
    return f"SELECT {_items(choose, one, 'q', 4)}{key} FROM {one.name} q{where(choose, one, 'q', 0.8)}"


def _distinct(choose: random.Random, one: Relation) -> str:
    return f"SELECT DISTINCT {_items(choose, one, 'q', 2, maps=False)} FROM {one.name} q{where(choose, one, 'q')}"


def _grouped(choose: random.Random, one: Relation) -> str:
    inside = f"(SELECT * FROM {one.name} i{where(choose, one, 'i', 0.6)})"
    return grouped(choose, one, "q", f"{inside} q" if choose.random() < 0.5 else f"{one.name} q")


def _grouped_twice(choose: random.Random, one: Relation) -> str:
    keys = choose.sample([c for c in one.columns if c.plain], min(2, len([c for c in one.columns if c.plain])))
    shown = ", ".join(f"q.{c.name} AS g{n}" for n, c in enumerate(keys)) or "1 AS g0"
    group = f" GROUP BY {', '.join(f'q.{c.name}' for c in keys)}" if keys else ""
    inner = f"SELECT {shown}, COUNT(*) AS n FROM {one.name} q{where(choose, one, 'q', 0.3)}{group}"
    return f"SELECT b.n, COUNT(*) AS groups, MAX(b.g0) AS most FROM ({inner}) b GROUP BY b.n"


def _union(choose: random.Random, one: Relation) -> str:
    items = _items(choose, one, "q", 2, maps=False)
    word = choose.choice(["UNION ALL", "UNION ALL", "UNION"])
    first, second = (f"SELECT {items} FROM {one.name} q{where(choose, one, 'q', 0.9)}" for _ in range(2))
    return f"{first} {word} {second}"


def _ranked(choose: random.Random, one: Relation) -> str:
    by, over = one.some(choose, lambda c: c.plain), one.some(choose, lambda c: c.plain)
    if by is None or over is None:
        return _filtered(choose, one)
    spec = f"(PARTITION BY q.{by.name} ORDER BY q.{over.name})"
    call = choose.choice(["RANK()", "DENSE_RANK()", "COUNT(*)", f"MAX(q.{over.name})"])
    inner = f"SELECT q.{by.name} AS p, q.{over.name} AS o, {call} OVER {spec} AS r FROM {one.name} q"
    best = " WHERE r IS NOT NULL" if call.startswith("MAX") else " WHERE r <= 2"
    return f"SELECT * FROM ({inner}) w{best if choose.random() < 0.5 else ''}"


def _top(choose: random.Random, one: Relation) -> str:
    """The first rows by an expression over names that mean an output column, and a column of the source."""
    if (by := one.some(choose, lambda c: c.type in ("int", "bigint") and c.name not in ("id", "k"))) is None or not any(
        column.name == "id" for column in one.columns
    ):
        return _filtered(choose, one)
    shown = f"q.id, -q.{by.name} AS {by.name}"
    order = f"{by.name} + {choose.choice(['0', 'id', f'q.{by.name}'])} {choose.choice(['', 'DESC'])}, id"
    return f"SELECT {shown} FROM {one.name} q ORDER BY {order} LIMIT {choose.randint(2, 5)}"


def _above_average(choose: random.Random, one: Relation) -> str:
    by = one.some(choose, lambda c: c.plain)
    value = one.some(choose, lambda c: c.number and not c.float and not c.wide)
    if by is None or value is None:
        return _filtered(choose, one)
    inner = f"SELECT {choose.choice(['AVG', 'MAX', 'SUM'])}(i.{value.name}) FROM {one.name} i"
    link = f" WHERE i.{by.name} = q.{by.name}" if choose.random() < 0.7 else ""
    return f"SELECT {_items(choose, one, 'q', 2)} FROM {one.name} q WHERE q.{value.name} >= ({inner}{link})"


def _on(choose: random.Random, left: Relation, right: Relation) -> str:
    more = choose.choice(["", "", f" AND {condition(choose, right, 'y')}", f" AND {condition(choose, left, 'x')}"])
    return f"x.k = y.k{more}"


def _joined(choose: random.Random, left: Relation, right: Relation) -> str:
    kind = choose.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
    items = _items(choose, left, "x", 2)
    if "SEMI" not in kind and "ANTI" not in kind:
        items += ", " + _items(choose, right, "y", 2, "f") + ", x.k AS k"
    filtered = where(choose, left, "x", 0.3)
    return f"SELECT {items} FROM {left.name} x {kind} {right.name} y ON {_on(choose, left, right)}{filtered}"


def _joined_groups(choose: random.Random, left: Relation, right: Relation) -> str:
    kind = choose.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
    return grouped(choose, left, "x", f"{left.name} x {kind} {right.name} y ON {_on(choose, left, right)}")


def _tested(choose: random.Random, left: Relation, right: Relation) -> str:
    inner = f"SELECT y.k FROM {right.name} y"
    tests = [
        f"{word}EXISTS ({inner} WHERE y.k = x.k{choose.choice(['', ' AND ' + condition(choose, right, 'y')])})"
        for word in ("", "NOT ")
    ]
    tests.append(f"x.k IN ({inner}{where(choose, right, 'y')})")
    if all(column.required for each in (left, right) for column in each.columns if column.name == "k"):
        tests.append(f"x.k NOT IN ({inner}{where(choose, right, 'y')})")
    return f"SELECT {_items(choose, left, 'x', 3)} FROM {left.name} x WHERE {choose.choice(tests)}"
