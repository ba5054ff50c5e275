"""What a tail can be asked for, and what is told of a mistake before anything is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidInput, InvalidName, InvalidStatement
from headwater.serving.tail_request import EARLIEST, LATEST, TailStart, mark_number, tail_request, tail_start

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ("0", TailStart("number", 0)),
        (17, TailStart("number", 17)),
        ("10 min", TailStart("time", moment=NOW - timedelta(minutes=10))),
        ("1h 30m", TailStart("time", moment=NOW - timedelta(minutes=90))),
        ("2026-11-16 10:00:00", TailStart("time", moment=NOW - timedelta(hours=2))),
        ("2026-11-16T10:00:00+02:00", TailStart("time", moment=NOW - timedelta(hours=4))),
        ("2026-11-16", TailStart("time", moment=datetime(2026, 11, 16, tzinfo=UTC))),
        (datetime(2026, 11, 16, 10), TailStart("time", moment=NOW - timedelta(hours=2))),
        (
            datetime(2026, 11, 16, 10, tzinfo=timezone(timedelta(hours=1))),
            TailStart("time", moment=NOW - timedelta(hours=3)),
        ),
    ],
)
def test_where_a_tail_begins(given: str | int | datetime, start: TailStart) -> None:
    assert tail_start(given, NOW) == start


@pytest.mark.parametrize("given", ["", "soon", "-1", "1.5", "10 parsecs", "9" * 30, "²", "2026-13-01"])
def test_what_is_no_start_is_told(given: str) -> None:
    with pytest.raises(InvalidInput):
        tail_start(given, NOW)


def test_the_future_is_no_start() -> None:
    with pytest.raises(InvalidInput, match=r'start "2026-11-16 12:00:01 UTC" of a tail is in the future'):
        tail_start(NOW + timedelta(seconds=1), NOW)


@given(st.text(max_size=30))
def test_any_text_is_a_start_or_an_error(text: str) -> None:
    try:
        assert tail_start(text, NOW).kind in ("earliest", "latest", "number", "time")
    except InvalidInput as refused:
        assert refused.message


def test_a_request_keeps_its_condition_inside_brackets() -> None:
    asked = tail_request("orders", where="amount > 10 -- dear", columns=["city", " id", "city"])
    assert asked.condition == "(\namount > 10 -- dear\n)" or asked.condition == "(\namount > 10\n)"
    assert asked.selected == "`city`, `id`"
    assert tail_request("orders").condition == "TRUE"
    assert tail_request("orders", where="  ").where is None
    assert tail_request("orders", columns=["a`b"]).selected == "`a``b`"


@pytest.mark.parametrize("where", ["1 = 1) OR (1 = 1", "a; b", "a, b", "(a"])
def test_a_condition_cannot_leave_its_brackets(where: str) -> None:
    with pytest.raises(InvalidStatement):
        tail_request("orders", where=where)


def test_mistakes_of_a_request() -> None:
    with pytest.raises(InvalidName, match='topic or view name "Orders" is not allowed'):
        tail_request("Orders")
    with pytest.raises(InvalidInput, match="column of a tail has no name"):
        tail_request("orders", columns=["a", ""])
    with pytest.raises(InvalidInput, match='column "citty" of topic "orders" does not exist') as wrong:
        tail_request("orders", columns=["ID", "citty"]).check_columns('topic "orders"', ["id", "city"])
    assert wrong.value.hint == 'Did you mean "city"?'


def test_marks() -> None:
    assert [mark_number(mark) for mark in ("-1", "0", "17")] == [-1, 0, 17]
    for mark in ("", "x", "--1", "1/2", "9" * 20, "²"):
        with pytest.raises(InvalidInput, match="is not one of a tail"):
            mark_number(mark)
