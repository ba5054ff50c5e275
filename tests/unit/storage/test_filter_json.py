from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    In,
    IsNull,
    LessThan,
    Not,
    NotStartsWith,
    Or,
    StartsWith,
)

from headwater.storage.filter_json import filter_json

SAID: list[tuple[BooleanExpression, Any]] = [
    (AlwaysTrue(), True),
    (AlwaysFalse(), False),
    (EqualTo("n", 3), {"type": "eq", "term": "n", "value": 3}),
    (EqualTo("b", True), {"type": "eq", "term": "b", "value": True}),
    (LessThan("g", 1.5), {"type": "lt", "term": "g", "value": 1.5}),
    (EqualTo("s", "x"), {"type": "eq", "term": "s", "value": "x"}),
    (LessThan("day", dt.date(1970, 1, 3)), {"type": "lt", "term": "day", "value": 2}),
    (LessThan("at", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)), {"type": "lt", "term": "at", "value": 1000000}),
    (EqualTo("d", Decimal("1E+2")), {"type": "eq", "term": "d", "value": "100"}),
    (EqualTo("u", uuid.UUID(int=4)), {"type": "eq", "term": "u", "value": "00000000-0000-0000-0000-000000000004"}),
    (IsNull("n"), {"type": "is-null", "term": "n"}),
    (StartsWith("s", "x"), {"type": "starts-with", "term": "s", "value": "x"}),
    (In("n", {1}), {"type": "eq", "term": "n", "value": 1}),
    (Not(IsNull("n")), {"type": "not-null", "term": "n"}),
    (Not(StartsWith("s", "x")), {"type": "not-starts-with", "term": "s", "value": "x"}),
    (
        And(EqualTo("n", 1), Or(IsNull("s"), EqualTo("s", "x"))),
        {
            "type": "and",
            "left": {"type": "eq", "term": "n", "value": 1},
            "right": {
                "type": "or",
                "left": {"type": "is-null", "term": "s"},
                "right": {"type": "eq", "term": "s", "value": "x"},
            },
        },
    ),
]

LEFT_OUT = [
    EqualTo("raw", b"ab"),
    EqualTo("place.city", "x"),
    GreaterThan("g", float("inf")),
    EqualTo("n", 2**70),
    In("raw", {b"a", b"b"}),
    Not(EqualTo("raw", b"ab")),
    NotStartsWith("place.city", "x"),
]


@pytest.mark.parametrize(("row_filter", "said"), SAID, ids=str)
def test_what_java_can_be_told(row_filter: BooleanExpression, said: Any) -> None:
    assert json.loads(filter_json(row_filter)) == said


def test_a_set_of_values() -> None:
    told = json.loads(filter_json(In("n", {1, 2})))
    assert (told["type"], told["term"], sorted(told["values"])) == ("in", "n", [1, 2])


@pytest.mark.parametrize("row_filter", LEFT_OUT, ids=str)
def test_what_cannot_be_told_keeps_everything(row_filter: BooleanExpression) -> None:
    assert json.loads(filter_json(row_filter)) is True
    both = json.loads(filter_json(And(row_filter, EqualTo("n", 1))))
    assert both == {"type": "and", "left": True, "right": {"type": "eq", "term": "n", "value": 1}}
