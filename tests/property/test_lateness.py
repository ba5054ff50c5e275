"""Which records are late, and for which windows: by arithmetic, and by looking at every window there is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.streaming.lateness import LateRule

MOMENTS = st.lists(st.integers(-300, 300), min_size=1, max_size=20)


@st.composite
def hops(draw: st.DrawFn) -> LateRule:
    """Windows that overlap or touch, often of a size that is no multiple of their slide."""
    slide = draw(st.integers(1, 40))
    return LateRule("window", slide, draw(st.integers(slide, 150)))


def windows(rule: LateRule, moment: int) -> list[int]:
    """The starts of all windows that a moment falls into: every one between which it could be is looked at."""
    first = moment - rule.size - rule.slide
    return [
        start for start in range(first, moment + 1) if start % rule.slide == 0 and start <= moment < start + rule.size
    ]


@given(hops(), MOMENTS, st.integers(-300, 400))
def test_late_is_what_a_closed_window_holds(rule: LateRule, moments: list[int], watermark: int) -> None:
    closed = [[start for start in windows(rule, each) if start + rule.size <= watermark] for each in moments]
    found = np.array(moments, np.int64)
    assert rule.late(found, watermark).tolist() == [bool(each) for each in closed]
    assert rule.closed(found, watermark) == sorted({start for each in closed for start in each})


@given(hops(), st.integers(-300, 300))
def test_nothing_is_late_while_its_first_window_is_open(rule: LateRule, moment: int) -> None:
    first = min(windows(rule, moment))
    at = np.array([moment], np.int64)
    assert not rule.late(at, first + rule.size - 1).any()
    assert rule.late(at, first + rule.size).all()


@given(st.integers(1, 50), MOMENTS, st.integers(-300, 400))
def test_a_session_of_one_record_ends_a_gap_after_it(gap: int, moments: list[int], watermark: int) -> None:
    found = LateRule("session", size=gap).late(np.array(moments, np.int64), watermark)
    assert found.tolist() == [all(each + step < watermark for step in range(gap)) for each in moments]


@given(MOMENTS, st.integers(-300, 400))
def test_a_record_that_waits_by_its_own_time_is_late_at_the_watermark(moments: list[int], watermark: int) -> None:
    found = LateRule("time").late(np.array(moments, np.int64), watermark)
    assert found.tolist() == [each not in range(watermark + 1, 10_000) for each in moments]
