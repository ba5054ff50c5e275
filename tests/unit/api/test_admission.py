"""The budget for bodies in flight."""

from __future__ import annotations

import pytest

from headwater.api.admission import Budget
from headwater.errors import Backpressure


def test_reservations_are_given_back() -> None:
    budget = Budget(100)
    with budget.reserve(60) as first:
        assert budget.held == 60
        first.cover(80)
        first.cover(10)  # never shrinks
        assert budget.held == 80
    assert budget.held == 0


def test_no_room_is_backpressure_and_holds_nothing() -> None:
    budget = Budget(100)
    with budget.reserve(60):
        with pytest.raises(Backpressure) as refused:
            budget.reserve(41)
        assert refused.value.retry_after == 1
        assert budget.held == 60
        with budget.reserve(40):
            assert budget.held == 100


def test_a_request_that_grows_is_refused_when_others_hold_the_rest() -> None:
    budget = Budget(100)
    with budget.reserve(50), budget.reserve(10) as growing:
        growing.cover(50)
        with pytest.raises(Backpressure):
            growing.cover(51)
    assert budget.held == 0


def test_a_request_alone_is_let_in_whatever_its_size() -> None:
    budget = Budget(100)
    with budget.reserve(1000) as alone:
        alone.cover(2000)
        assert budget.held == 2000
        with pytest.raises(Backpressure):
            budget.reserve(1)
