"""Decimal quotients in DuckDB's SQL: exactly the digits that rounding half away from zero gives, once or twice."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

import duckdb
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.serving.agreement.arithmetic import divided, quotient_type, rounded_quotient
from headwater.serving.agreement.values import Typed

EXACT = Context(prec=200, rounding=ROUND_HALF_UP)


def quotient(left: int, right: int, *scales: int) -> Decimal:
    """left / right, rounded to each of the scales in turn."""
    with localcontext(EXACT):
        found = Decimal(left) / Decimal(right)
        for scale in scales:
            found = found.quantize(Decimal(1).scaleb(-scale))
        return found


UNITS = st.integers(-(10**21), 10**21) | st.integers(-(10**6), 10**6) | st.sampled_from([0, 1, -1, 10**14, 10**18])


@given(UNITS, st.integers(1, 10**12) | st.sampled_from([1, 2, 3, 7, 8, 10**11, 10**12 - 1, 10**12]))
@example(10**14 - 1, 1)
@example(10**14, 1)
@example(-(10**14), 3)
@example(5, 10**5)
@example(1, 2 * 10**4)
def test_a_sum_over_a_count(units: int, count: int) -> None:
    of, by, to = pa.decimal128(22, 2), pa.decimal128(20, 0), pa.decimal128(28, 6)
    left, right = f"CAST('{Decimal(units).scaleb(-2):f}' AS DECIMAL(22,2))", f"CAST('{count}' AS DECIMAL(20,0))"
    first = quotient_type(of, by)
    db = duckdb.connect()

    def value(sql: str) -> Decimal:
        row = db.execute(f"SELECT {sql} FROM (SELECT {left} AS l, {right} AS r)").fetchone()
        assert row is not None and isinstance(row[0], Decimal)
        return row[0]

    assert value(divided("l", of, "r", by, to)) == quotient(units, count * 100, 6)
    twice = rounded_quotient(Typed("l", of, "l"), Typed("r", by, "r"), to)
    assert twice is not None
    if abs(units) < 10**19:  # beyond, 38 digits do not hold the first quotient, and DuckDB raises
        assert value(twice) == quotient(units, count * 100, first.scale, 6)
