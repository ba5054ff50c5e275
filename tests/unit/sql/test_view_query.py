"""A query over a view from the parts that flags and parameters give."""

from __future__ import annotations

import pytest

from headwater.errors import InvalidName
from headwater.sql.parse import parse
from headwater.sql.statements import Query
from headwater.sql.view_query import view_query


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (view_query("v"), "SELECT * FROM mv('v')"),
        (view_query("v", fresh=True), "SELECT * FROM mv('v', fresh => true)"),
        (view_query("v", limit=0), "SELECT * FROM mv('v')\nLIMIT 0"),
        (view_query("v", "a > 1 OR b"), "SELECT * FROM mv('v')\nWHERE (\na > 1 OR b\n)"),
        (view_query("v", "  where a > 1", limit=3), "SELECT * FROM mv('v')\nWHERE (\na > 1\n)\nLIMIT 3"),
        (view_query("v", "wherever = 1"), "SELECT * FROM mv('v')\nWHERE (\nwherever = 1\n)"),
        (view_query("v", "a -- why"), "SELECT * FROM mv('v')\nWHERE (\na -- why\n)"),
        (view_query("v", "   "), "SELECT * FROM mv('v')"),
    ],
)
def test_the_parts_make_a_query_that_parses(query: Query, text: str) -> None:
    assert query.text == text
    assert parse(text) == query


def test_a_name_that_cannot_be_a_view_s_is_refused() -> None:
    with pytest.raises(InvalidName):
        view_query("v') UNION SELECT * FROM topic('t")
