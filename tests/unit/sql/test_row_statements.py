"""DELETE and UPDATE from their parts, as HTTP and Python give them."""

from __future__ import annotations

import pytest

from headwater.errors import HeadwaterError
from headwater.sql.parse import parse
from headwater.sql.row_statements import delete_of, update_of


def test_parts_and_text_give_the_same_statement() -> None:
    assert delete_of("t", " a = 'x, y' -- why") == parse("DELETE FROM t WHERE a = 'x, y' -- why")
    parts = update_of("t", {"A": "coalesce(b, 1)", "`b`": "NULL"}, "a IN (1, 2)")
    assert parts == parse("UPDATE t SET a = coalesce(b, 1), b = NULL WHERE a IN (1, 2)")


@pytest.mark.parametrize(
    ("name", "assignments", "condition", "message"),
    [
        ("t", {}, "TRUE", "update assigns no column"),
        ("t", {"a": "1"}, "  ", "in condition"),
        ("t", {"a": "-- nothing"}, "TRUE", "in value of column"),
        ("t", {"a": "1"}, "TRUE)", 'bracket ")" was not opened'),
        ("t", {"a": "(1"}, "TRUE", 'bracket "(" is not closed'),
        ("t", {"a": "1"}, "TRUE; DROP TOPIC t", "condition is more than one expression"),
        ("t", {"a": "1, b = 2"}, "TRUE", 'value of column "a" is more than one expression'),
        ("t", {"_offset": "1"}, "TRUE", 'system column "_offset" cannot be assigned'),
        ("t", {"a b": "1"}, "TRUE", 'unexpected "b" in column'),
        ("t", {"a": "1", "A": "2"}, "TRUE", 'column "a" is assigned twice'),
        ("t'; DROP", {"a": "1"}, "TRUE", "t'; DROP"),
    ],
)
def test_what_is_more_than_its_part_is_refused(
    name: str, assignments: dict[str, str], condition: str, message: str
) -> None:
    with pytest.raises(HeadwaterError) as refused:
        update_of(name, assignments, condition)
    assert message in refused.value.message
