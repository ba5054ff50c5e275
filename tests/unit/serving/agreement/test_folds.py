"""Views inside queries: what a query does not mention is left out of a view's SQL, and the answer stays what it was."""

from __future__ import annotations

from itertools import combinations

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DecimalType, IntegerType, LongType, NestedField, StringType

from headwater.serving.agreement import Agreed, Folded, Unproven, agree

STATES = Schema(
    NestedField(1, "g", IntegerType()),
    NestedField(2, "s", StringType()),
    NestedField(3, "__a0_n", LongType()),
    NestedField(4, "__a1_s", DecimalType(22, 2)),
    NestedField(5, "__rows", LongType()),
    NestedField(6, "__base", BooleanType()),
)
ROWS = pa.table(
    {
        "g": pa.array([1, 1, 2, None, 1, None, 3, 2], pa.int32()),
        "s": pa.array(["a", "b", "a", "a", "a", "a", "c", "a"], pa.string()),
        "__a0_n": pa.array([5, 2, 3, 4, 1, 1, 7, -3], pa.int64()),
        "__a1_s": pa.array([1, 2, 3, 4, 5, 6, 7, -3], pa.decimal128(22, 2)),
        "__rows": pa.array([5, 2, 3, 4, 1, 1, 7, -3], pa.int64()),
        "__base": pa.array([True, True, True, True, False, False, False, False]),
    }
)


def scan(alias: str) -> str:
    columns = {"g": "g", "s": "s", "__a0_n": "n", "__a1_s": "t", "__rows": "r", "__base": "base"}
    return f"SELECT {', '.join(f'`{of}` AS `{alias}.{name}`' for of, name in columns.items())} FROM `__states`"


def keys(alias: str) -> str:
    """The groups that were touched since the last build, and how they are joined."""
    shown = ", ".join(f"`{alias}.{name}` AS `{alias}.{name}`" for name in ("g", "s"))
    on = " AND ".join(f"`v.{name}` IS NOT DISTINCT FROM `{alias}.{name}`" for name in ("g", "s"))
    delta = f"SELECT * FROM ({scan(alias)}) WHERE NOT `{alias}.base`"
    return f"(SELECT DISTINCT * FROM (SELECT {shown} FROM ({delta}))) ON {on}"


BASE = f"SELECT * FROM ({scan('v')}) WHERE `v.base`"
SHOWN = ", ".join(f"`v.{name}` AS `v.{name}`" for name in ("g", "s", "r", "n", "t"))
DELTA = SHOWN.replace("`v.", "`n.").replace("AS `n.", "AS `v.")
MERGED = "`v.g` AS `v.g`, `v.s` AS `v.s`, SUM(`v.r`) AS `v.r`, SUM(`v.n`) AS `v.n`, SUM(`v.t`) AS `v.t`"
GROUPS = f"SELECT {MERGED} FROM ({scan('v')}) GROUP BY 1, 2"
TOUCHED = (
    f"(SELECT {SHOWN} FROM (SELECT * FROM ({BASE}) LEFT ANTI JOIN {keys('t')})) UNION ALL "
    f"(SELECT {SHOWN} FROM (SELECT {MERGED} FROM ((SELECT {SHOWN} FROM (SELECT * FROM ({BASE}) LEFT SEMI JOIN "
    f"{keys('u')})) UNION ALL (SELECT {DELTA} FROM (SELECT * FROM ({scan('n')}) WHERE NOT `n.base`))) GROUP BY 1, 2))"
)
VALUES = {
    "g": "CAST(`v.g` AS INT)",
    "s": "CAST(`v.s` AS STRING)",
    "n": "CAST(COALESCE(`v.n`, 0) AS BIGINT)",
    "t": "CAST(CASE WHEN `v.n` > 0 THEN `v.t` END AS DECIMAL(22,2))",
    "m": "CAST(CAST(`v.t` AS DECIMAL(22,2)) / CAST(`v.n` AS DECIMAL(20,0)) AS DECIMAL(26,6))",
}
COLUMNS = tuple(VALUES)


def shown(rows: str, order: str = "") -> str:
    names = ", ".join(f"`v.out.{name}` AS `{name}`" for name in VALUES)
    values = ", ".join(f"{value} AS `v.out.{name}`" for name, value in VALUES.items())
    found = f"SELECT {values} FROM (SELECT * FROM ({rows}) WHERE `v.r` > 0)"
    return (
        f"SELECT {names} FROM (SELECT * FROM ({found}){order} LIMIT 3){order}"
        if order
        else (f"SELECT {names} FROM ({found})")
    )


FOLDS = {
    "merged": shown(GROUPS),
    "touched": shown(TOUCHED),
    "sorted": shown(TOUCHED, " ORDER BY `v.out.n` DESC NULLS LAST"),
    "distinct": "SELECT `x.g` AS `g`, `x.s` AS `s`, 1 AS `n`, CAST(2 AS DECIMAL(22,2)) AS `t`, 3 AS `m` FROM "
    "(SELECT DISTINCT `g` AS `x.g`, `s` AS `x.s`, `__base` AS `x.b` FROM `__states`)",
}


def answer(text: str, view: str) -> list[tuple[object, ...]]:
    verdict = agree(text, {"v": Folded(FOLDS[view], "views.v", STATES)})
    assert isinstance(verdict, Agreed), verdict
    with duckdb.connect() as duck:
        needs = verdict.tables["views.v"]
        duck.register("views.v", ROWS.select(sorted(needs.columns)))
        return sorted(duck.sql(verdict.sql).fetchall(), key=repr)


@pytest.mark.parametrize("view", list(FOLDS))
def test_a_query_of_some_columns_is_the_query_of_all_cut_down(view: str) -> None:
    whole = answer("select * from v", view)
    assert len(whole) >= 3
    for count in range(1, len(COLUMNS) + 1):
        for some in combinations(COLUMNS, count):
            places = [COLUMNS.index(name) for name in some]
            expected = sorted((tuple(row[place] for place in places) for row in whole), key=repr)
            assert answer(f"select {', '.join(some)} from v", view) == expected, some


def test_both_ways_to_merge_states_are_one() -> None:
    assert answer("select * from v", "merged") == answer("select * from v", "touched")
    assert answer("select count(*) as n from v", "merged") == [(len(answer("select * from v", "merged")),)]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("select n from v where g = 1", {"g", "s", "__a0_n", "__rows", "__base"}),
        ("select V.N from v", {"g", "s", "__a0_n", "__rows", "__base"}),
        ("select count(*) from v", {"g", "s", "__rows", "__base"}),
        ("select * from v", {"g", "s", "__a0_n", "__a1_s", "__rows", "__base"}),
        ("select n from (select * from v)", {"g", "s", "__a0_n", "__a1_s", "__rows", "__base"}),
        ("select x.n from v x join v y using (t)", None),
        ("select struct(*) from v", None),
    ],
)
def test_only_columns_that_matter_are_read(text: str, columns: set[str] | None) -> None:
    verdict = agree(text, {"v": Folded(FOLDS["touched"], "views.v", STATES)})
    if columns is None:
        assert isinstance(verdict, Unproven)
    else:
        assert isinstance(verdict, Agreed), verdict
        assert verdict.tables["views.v"].columns == columns


def test_nothing_is_said_of_a_view_whose_columns_are_not_written_out() -> None:
    view = Folded("SELECT * FROM `__states`", "views.v", STATES)
    assert isinstance(agree("select s from v", {"v": view}), Agreed)
    assert isinstance(agree("select nothing from v", {"v": view}), Unproven)


def test_the_type_of_a_state_is_part_of_what_is_remembered() -> None:
    sql = "SELECT SUM(`x`) AS `t` FROM `__states`"
    found = []
    for of in (LongType(), DecimalType(10, 2), LongType()):
        verdict = agree("select t from v", {"v": Folded(sql, "views.v", Schema(NestedField(1, "x", of)))})
        assert isinstance(verdict, Agreed)
        found.append(verdict.output[0].type)
    assert found == [pa.int64(), pa.decimal128(20, 2), pa.int64()]
