"""Numbers: Spark's operators and rounding, written so that DuckDB computes the same digits or raises."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from headwater.serving.agreement import types as t
from headwater.serving.agreement.casts import cast, coerce, failing
from headwater.serving.agreement.values import NotProven, Typed

MAX_SHIFT = 10
"""Digits by which a dividend is lengthened at most in 64 bits."""

NEGATED_DIGITS = 34
"""Digits to which Spark rounds a decimal whose sign it changes."""

MAX_REPEATED = 300
"""Characters of operands up to which a division is written in two ways."""


def arithmetic(operator: str, left: Typed, right: Typed) -> tuple[str, pa.DataType]:
    """`left operator right` for numbers, one of + - * / % div."""
    if not (_number(left) and _number(right)):
        raise NotProven(f'operator "{operator}" on these types is not proven to agree')
    if operator == "div":
        return _whole_division(left, right)
    if _is_decimal_operation(operator, left, right):
        return _decimal_operation(operator, left, right)
    to = t.DOUBLE if operator == "/" else t.common_type(left.type, right.type)
    a, b = coerce(left, to), coerce(right, to)
    if operator in "/%":
        return _guarded(a, b, right, f"({a.sql} {operator} {b.sql})", to), to
    return f"({a.sql} {operator} {b.sql})", to


def negated(value: Typed) -> str:
    """`-value`; raises where Spark rounds it."""
    return _with_few_digits(value, cast(f"-({value.sql})", value.type))


def absolute(value: Typed) -> str:
    """`abs(value)`; raises where Spark rounds it."""
    return _with_few_digits(value, cast(f"abs({value.sql})", value.type))


def _with_few_digits(value: Typed, result: str) -> str:
    """`result`, or an error where a decimal has more digits than Spark keeps when it changes a sign."""
    if not t.is_decimal(value.type) or value.type.precision <= NEGATED_DIGITS:
        return result
    never = failing("the sign of a long decimal", value.type)
    return f"(CASE WHEN abs({value.sql}) >= {_literal(10**NEGATED_DIGITS, value.type)} THEN {never} ELSE {result} END)"


def _number(value: Typed) -> bool:
    return t.is_numeric(value.type)


def _guarded(left: Typed, right: Typed, written: Typed, quotient: str, to: pa.DataType) -> str:
    """`quotient`, or an error where Spark raises one: a zero divisor under a dividend that is not null."""
    if isinstance(written.literal, int | float | Decimal) and written.literal:
        return quotient
    never = failing("division by zero", to)
    return f"(CASE WHEN {right.sql} = 0 AND {left.sql} IS NOT NULL THEN {never} ELSE {quotient} END)"


def _whole_division(left: Typed, right: Typed) -> tuple[str, pa.DataType]:
    if not (t.is_integral(left.type) and t.is_integral(right.type)):
        raise NotProven('operator "div" on these types is not proven to agree')
    a, b = coerce(left, t.BIGINT), coerce(right, t.BIGINT)
    return _guarded(a, b, right, f"({a.sql} // {b.sql})", t.BIGINT), t.BIGINT


def _is_decimal_operation(operator: str, left: Typed, right: Typed) -> bool:
    kinds = (left.type, right.type)
    return any(map(t.is_decimal, kinds)) and not any(map(t.is_fractional, kinds))


def _decimal_operation(operator: str, left: Typed, right: Typed) -> tuple[str, pa.DataType]:
    a, b = _as_decimal(left), _as_decimal(right)
    if operator == "/":
        to = quotient_type(a.type, b.type)
        return _guarded(a, b, right, divided(a.sql, a.type, b.sql, b.type, to), to), to
    to = t.decimal_result(operator, a.type, b.type)
    if operator == "*":
        # DuckDB keeps 18 digits for factors of up to 18; a wide factor makes it keep 38.
        wide = cast(a.sql, t.decimal(t.MAX_PRECISION, a.type.scale)) if to.precision > 18 else a.sql
        return cast(f"{wide} * {b.sql}", to), to
    return cast(f"{cast(a.sql, to)} {operator} {cast(b.sql, to)}", to), to


def _as_decimal(value: Typed) -> Typed:
    if isinstance(value.literal, int) and t.is_integral(value.type):
        return coerce(value, t.decimal(len(str(abs(value.literal))), 0))
    return coerce(value, t.as_decimal(value.type))


def quotient_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of a decimal division in Spark, which gives up digits of the scale beyond 38."""
    scale = max(6, left.scale + right.precision + 1)
    whole = left.precision - left.scale + right.scale
    if whole + scale <= t.MAX_PRECISION:
        return t.decimal(whole + scale, scale)
    return t.decimal(t.MAX_PRECISION, max(t.MAX_PRECISION - whole, min(scale, 6)))


def divided(left: str, of: pa.DataType, right: str, by: pa.DataType, to: pa.DataType) -> str:
    """A decimal quotient rounded half away from zero, in whole numbers; raises where 38 digits do not suffice."""
    wide = _divided_wide(left, of, right, by, to)
    quick = _divided_quickly(left, of, right, by, to)
    return wide if quick is None else f"(CASE WHEN {quick[0]} THEN {quick[1]} ELSE {wide} END)"


def rounded_quotient(left: Typed, right: Typed, to: pa.DataType) -> str | None:
    """A decimal division that is cast to fewer digits, rounded once; None where that may differ from rounding twice.

    Rounding twice differs only where the quotient is nearer to a tie than half a unit of the first rounding. It is at
    least 1 / (2 * divisor) of a unit away from one, or on it.
    """
    if not _is_decimal_operation("/", left, right) or not t.is_decimal(to):
        return None
    a, b = _as_decimal(left), _as_decimal(right)
    first = quotient_type(a.type, b.type)
    quick = _divided_quickly(a.sql, a.type, b.sql, b.type, to)
    if quick is None or to.scale >= first.scale:
        return None
    twice = cast(_guarded(a, b, right, _divided_wide(a.sql, a.type, b.sql, b.type, first), first), to)
    bound = _literal(10 ** (first.scale - to.scale), b.type)
    return f"(CASE WHEN {quick[0]} AND {b.sql} < {bound} THEN {quick[1]} ELSE {twice} END)"


def _divided_wide(left: str, of: pa.DataType, right: str, by: pa.DataType, to: pa.DataType) -> str:
    if to.scale + by.scale < of.scale:
        raise NotProven("this decimal division is not proven to agree")
    n = f"CAST({_shifted(left, to.scale + by.scale)} AS HUGEINT)"
    d = f"CAST({_shifted(right, by.scale)} AS HUGEINT)"
    return _in_units(f"(2 * {n} + sign({n}) * abs({d})) // (2 * {d})", 38, to)


def _divided_quickly(
    left: str, of: pa.DataType, right: str, by: pa.DataType, to: pa.DataType
) -> tuple[str, str] | None:
    """The condition under which 64 bits suffice, which is nearly always, and the quotient in these: much faster."""
    more = to.scale + by.scale - of.scale
    if not 0 <= more <= MAX_SHIFT or max(of.scale, by.scale) > 18 or len(left) + len(right) > MAX_REPEATED:
        return None
    small = f"abs({left}) < {_literal(10 ** (18 - more), of)} AND {right} > 0 AND {right} < {_literal(10**18, by)}"
    n, d = _narrow_units(left, of.scale), _narrow_units(right, by.scale)
    return small, _in_units(f"sign({n}) * ((2 * {10**more} * abs({n}) + {d}) // (2 * {d}))", 18, to)


def _narrow_units(sql: str, scale: int) -> str:
    """The smallest units of a decimal of less than 19 digits; a wide one, cast to a whole number at once, is slow."""
    narrow = f"CAST({sql} AS DECIMAL(18,{scale}))"
    return f"CAST({narrow} * CAST('{10**scale}' AS DECIMAL({scale + 1},0)) AS BIGINT)"


def _in_units(units: str, digits: int, to: pa.DataType) -> str:
    unit = Decimal(1).scaleb(-to.scale)
    return cast(
        f"CAST({units} AS DECIMAL({digits},0)) * CAST('{unit:f}' AS DECIMAL({max(to.scale, 1)},{to.scale}))", to
    )


def _literal(units: int, of: pa.DataType) -> str:
    """A decimal of the scale of `of` with that many of its smallest units."""
    return f"CAST('{Decimal(units).scaleb(-of.scale):f}' AS DECIMAL(38,{of.scale}))"


def _shifted(sql: str, digits: int) -> str:
    return f"{sql} * CAST('{10**digits}' AS DECIMAL(38,0))" if digits else sql


def rounded(value: Typed, digits: int) -> tuple[str, pa.DataType]:
    """`round(value, digits)`, half away from zero, for 0 to 6 digits."""
    if not 0 <= digits <= 6:
        raise NotProven("rounding to this many digits is not proven to agree")
    if t.is_integral(value.type):
        return value.sql, value.type
    if t.is_decimal(value.type):
        scale = min(digits, value.type.scale)
        to = t.decimal(min(value.type.precision - value.type.scale + 1 + scale, t.MAX_PRECISION), scale)
        return cast(value.sql, to), to
    if value.type != t.DOUBLE:
        raise NotProven("rounding of floats is not proven to agree")
    return _rounded_double(value.sql, digits), t.DOUBLE


def _rounded_double(sql: str, digits: int) -> str:
    # Spark rounds the digits that a double prints, not its binary value: 2.675 becomes 2.68. The decimal in between
    # holds all 17 significant digits of any double near a half; a double beyond its range has no digits to round.
    limit = "1e16" if digits <= 4 else "1e14"
    exact = f"CAST(CAST(CAST({sql} AS VARCHAR) AS DECIMAL(38,{digits + 18})) AS DECIMAL(38,{digits}))"
    return f"(CASE WHEN abs({sql}) < {limit} THEN CAST(CAST({exact} AS VARCHAR) AS DOUBLE) ELSE {sql} END)"


def whole(function: str, value: Typed) -> tuple[str, pa.DataType]:
    """`floor` or `ceil`, which give BIGINT, or a decimal without a scale."""
    if t.is_integral(value.type):
        return cast(value.sql, t.BIGINT), t.BIGINT
    if t.is_decimal(value.type):
        if value.type.scale == 0:
            return value.sql, value.type
        to = t.decimal(value.type.precision - value.type.scale + 1, 0)
        return cast(f"{function}({cast(value.sql, t.decimal(t.MAX_PRECISION, value.type.scale))})", to), to
    if t.is_fractional(value.type):
        return _saturated(f"{function}({value.sql})"), t.BIGINT
    raise NotProven(f'function "{function}" on this type is not proven to agree')


def _saturated(sql: str) -> str:
    """A whole double as BIGINT in the way of Java: NaN is 0, and what is too large is the largest."""
    high, low = f"WHEN {sql} >= 9223372036854775808e0", f"WHEN {sql} < -9223372036854775808e0"
    return (
        f"(CASE WHEN isnan({sql}) THEN 0 {high} THEN 9223372036854775807 {low} THEN -9223372036854775808 "
        f"ELSE {cast(sql, t.BIGINT)} END)"
    )


def positive_zero(value: Typed) -> str:
    """A key as Spark groups it: -0.0 is 0.0."""
    return f"({value.sql} + {cast('0', value.type)})" if t.is_fractional(value.type) else value.sql
