"""Rows of two sides that differ in their last digits only are the same rows."""

from __future__ import annotations

from headwater.storage.compare_spark import unmatched

NAN = float("nan")


def test_rows_that_only_a_last_digit_tells_apart_are_the_same() -> None:
    assert unmatched([("a", 0.30000000000000004)], [("a", 0.3)]) == ([], [])
    assert unmatched([("a", NAN)], [("a", NAN)]) == ([], [])
    assert unmatched([("a", 0.3)], [("b", 0.3)]) == ([0], [0])
    assert unmatched([("a", 0.31)], [("a", 0.3)]) == ([0], [0])
    assert unmatched([("a", None)], [("a", 0.0)]) == ([0], [0])


def test_every_row_has_one_partner() -> None:
    assert unmatched([(1, 0.5), (1, 0.5)], [(1, 0.5)]) == ([1], [])
    assert unmatched([(1, 0.5)], [(1, 0.7), (1, 0.5), (2, 0.5)]) == ([], [0, 2])
