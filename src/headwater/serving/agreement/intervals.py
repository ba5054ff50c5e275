"""Dates and timestamps plus or minus a literal interval."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from headwater.serving.agreement import types as t
from headwater.serving.agreement.casts import aware, cast, naive
from headwater.serving.agreement.values import NotProven, Typed

_SECONDS = {"DAY": 86_400, "HOUR": 3_600, "MINUTE": 60, "SECOND": 1}
_MONTHS = {"YEAR": 12, "MONTH": 1}
_COUNT = re.compile(r"\d{1,6}\Z")


def moved(operator: str, node: exp.Expression, operand: Callable[[exp.Expression], Typed]) -> Typed:
    """`moment + INTERVAL n unit`, or `-`."""
    if not isinstance(node.expression, exp.Interval) or isinstance(node.this, exp.Interval) or operator not in "+-":
        raise NotProven("this interval arithmetic is not proven to agree")
    value, (count, unit) = operand(node.this), _parts(node.expression)
    if value.type not in t.DATETIMES:
        raise NotProven("an interval beside this type is not proven to agree")
    if unit in _MONTHS:
        return _by_months(operator, value, count, unit)
    if value.type == t.DATE:
        return _date_by_days(operator, value, count, unit)
    sql = f"({naive(value)} {operator} to_microseconds({count * _SECONDS[unit] * 1_000_000}))"
    name = value.name and f"{value.name} {operator} {_name(count, unit)}"
    return Typed(aware(sql) if value.type == t.TIMESTAMP else sql, value.type, name, value.constant)


def moved_by_micros(operator: str, value: Typed, count: Typed) -> Typed:
    """`moment + INTERVAL '0.000001' SECOND * count`, or `-`: what the windows of a query are made of."""
    if value.type not in t.TIMESTAMPS or not t.is_integral(count.type) or operator not in "+-":
        raise NotProven("this interval arithmetic is not proven to agree")
    sql = f"({naive(value)} {operator} to_microseconds({cast(count.sql, t.BIGINT)}))"
    return Typed(aware(sql) if value.type == t.TIMESTAMP else sql, value.type, None, value.constant and count.constant)


def is_micros(node: exp.Expression) -> bool:
    """Whether a node is a number of microseconds as an interval: INTERVAL '0.000001' SECOND * count."""
    if not isinstance(node, exp.Mul) or not isinstance(node.this, exp.Interval):
        return False
    unit = node.this.args.get("unit")
    return isinstance(unit, exp.Var) and unit.name.upper() == "SECOND" and node.this.this.name == "0.000001"


def micros_of(node: exp.Expression) -> int:
    """The microseconds of a literal interval of a fixed length."""
    count, unit = _parts(node) if isinstance(node, exp.Interval) else (0, "")
    if unit not in _SECONDS:
        raise NotProven("this interval is not proven to agree")
    return count * _SECONDS[unit] * 1_000_000


def _parts(node: exp.Interval) -> tuple[int, str]:
    unit = node.args.get("unit")
    if not isinstance(unit, exp.Var) or not isinstance(node.this, exp.Literal) or not _COUNT.match(node.this.name):
        raise NotProven("this interval is not proven to agree")
    name = unit.name.upper().removesuffix("S")
    count = int(node.this.name)
    if name == "WEEK":
        return count * 7, "DAY"
    if name not in _SECONDS and name not in _MONTHS:
        raise NotProven(f'interval unit "{name.lower()}" is not proven to agree')
    return count, name


def _name(count: int, unit: str) -> str:
    digits = f"{count:02d}" if unit in ("HOUR", "MINUTE", "SECOND") else str(count)
    return f"INTERVAL '{digits}' {unit}"


def _by_months(operator: str, value: Typed, count: int, unit: str) -> Typed:
    sql = f"({naive(value)} {operator} to_months({count * _MONTHS[unit]}))"
    name = value.name and f"{value.name} {operator} {_name(count, unit)}"
    if value.type == t.DATE:
        return Typed(cast(sql, t.DATE), t.DATE, name, value.constant)
    return Typed(aware(sql) if value.type == t.TIMESTAMP else sql, value.type, name, value.constant)


def _date_by_days(operator: str, value: Typed, count: int, unit: str) -> Typed:
    if unit != "DAY":
        raise NotProven("hours beside a date are not proven to agree")
    name = value.name and f"date_add({value.name}, extractansiintervaldays({_name(count, unit)}))"
    return Typed(f"({value.sql} {operator} {count})", t.DATE, name if operator == "+" else None, value.constant)
