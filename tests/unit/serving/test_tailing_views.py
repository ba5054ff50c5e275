"""How a step of a view's tail is asked for, by what the view's table holds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from headwater.catalog.view_layout import Layout
from headwater.catalog.views import SIGN
from headwater.serving.agreement import Agreed, Folded, agree
from headwater.serving.tail_request import tail_request
from headwater.serving.tailing_views import Appended, Compared, Step, plan_step, step_text
from headwater.sql.names import normalise
from headwater.storage.changes import Changes

ROWS = Layout("rows", (("id", "bigint", "id"), ("tags", "map<string,int>", "tags")))
STATES = Layout("states", (("city", "string", "`city`"), ("n", "bigint", "value0")), ("city",))
HIDDEN = replace(STATES, keys=("__k0",), outputs=(("n", "bigint", "value0"),))
GLOBAL = replace(HIDDEN, keys=(), grouped=False)
VIEW: Any = SimpleNamespace(schema=Schema(NestedField(7, SIGN, IntegerType(), required=True)))


def file(lowest: int | None, rows: int = 10) -> DataFile:
    bounds = {} if lowest is None else {7: to_bytes(IntegerType(), lowest)}
    return DataFile.from_args(file_path=f"/{lowest}", record_count=rows, file_size_in_bytes=1, lower_bounds=bounds)


def test_rows_that_only_came_are_all_that_is_read() -> None:
    came = Changes((file(1),), ())
    assert plan_step(VIEW, ROWS, came) == Appended(came.added)
    assert plan_step(VIEW, replace(ROWS, kind="latest"), came) == Appended(came.added)
    assert plan_step(VIEW, STATES, came) == Compared(came.added)  # a state is not a row
    for other in (Changes((file(-1),), ()), Changes((file(None),), ()), Changes((file(1),), (file(1),))):
        assert plan_step(VIEW, ROWS, other) == Compared((*other.added, *other.removed))


def test_too_much_is_compared_as_a_whole() -> None:
    assert plan_step(VIEW, STATES, Changes((file(1, 10**6),), ())) == Compared(())
    assert plan_step(VIEW, replace(ROWS, limit=3), Changes((file(1),), ())) == Compared(())


AFTER, BEFORE = "SELECT * FROM mv('v') VERSION AS OF 2", "SELECT * FROM mv('v') VERSION AS OF 1"


@pytest.mark.parametrize(
    ("layout", "news"),
    [
        (
            ROWS,
            f"SELECT '-' AS `_op`, * FROM ({BEFORE} EXCEPT ALL {AFTER}) UNION ALL "
            f"SELECT '+' AS `_op`, * FROM ({AFTER} EXCEPT ALL {BEFORE})",
        ),
        (
            STATES,
            f"SELECT '-' AS `_op`, * FROM (SELECT b.* FROM ({BEFORE}) AS b LEFT ANTI JOIN ({AFTER}) AS a "
            f"ON b.`city` <=> a.`city`) UNION ALL SELECT '~' AS `_op`, * FROM ({AFTER} EXCEPT ALL {BEFORE})",
        ),
        (
            HIDDEN,
            f"SELECT '-' AS `_op`, * FROM ({BEFORE} EXCEPT ALL {AFTER}) UNION ALL "
            f"SELECT '~' AS `_op`, * FROM ({AFTER} EXCEPT ALL {BEFORE})",
        ),
        (GLOBAL, f"SELECT '~' AS `_op`, * FROM ({AFTER} EXCEPT ALL {BEFORE})"),
    ],
    ids=["rows", "states", "hidden keys", "no keys"],
)
def test_what_a_step_asks(layout: Layout, news: str) -> None:
    asked = tail_request("v", where="n > 1", columns=["n"])
    text = step_text(asked, layout, Step(1, 2), appended=False)
    order = {"bigint": True, "string": True}
    shown = "".join(f", `{name}`" for name, of, _ in layout.outputs if of in order)
    assert text == f"SELECT `_op`, `n` FROM ({news}) AS `v` WHERE (\nn > 1\n) ORDER BY `_op` = '-' DESC{shown}"


def test_the_first_step_and_one_that_only_appended_read_one_snapshot() -> None:
    for step, appended in ((Step(None, 2), False), (Step(1, 2), True)):
        text = step_text(tail_request("v"), ROWS, step, appended=appended)
        assert text.startswith(f"SELECT * FROM (SELECT '+' AS `_op`, * FROM ({AFTER})) AS `v`")


def test_duckdb_may_answer_every_kind() -> None:
    """Otherwise each step would need Spark."""
    schema = Schema(NestedField(1, "city", IntegerType()), NestedField(2, "n", IntegerType()))
    for layout in (replace(STATES, kind="rows"), STATES, replace(STATES, keys=("__k0",)), replace(STATES, keys=())):
        named = normalise(step_text(tail_request("v", where="n > 1"), layout, Step(1, 2), appended=False))
        tables = {each.alias_in_text: Folded("SELECT city, n FROM __states", "s", schema) for each in named.relations}
        assert isinstance(agree(named.text, tables), Agreed)
