"""Which files a query can skip: conditions on one topic's columns as PyIceberg expressions.

A filter here is never stricter than the query. It keeps what it does not understand, and it allows for values that
column statistics leave out: Spark holds NaN to be larger than any number, Iceberg's bounds do not contain it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from sqlglot import exp

from headwater.serving.agreement import types as t
from headwater.serving.agreement.casts import EXACT_DOUBLE_DIGITS, instant
from headwater.serving.agreement.values import NotProven

Resolve = Callable[[exp.Expression], NestedField | None]
"""A column node to the field of the one topic in question, None when it means something else."""
Value = bool | int | float | str | bytes | Decimal
"""What PyIceberg takes as a literal; dates, timestamps and UUIDs are written as text."""

EXACT_DOUBLE_WHOLE = 2**53
"""Below this, every whole number is a double of its own."""
_WIDE = Context(prec=76)
"""Room for any DECIMAL; Python's own context stops at 28 digits."""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""How Spark writes a UUID when it compares one with text; such texts are ordered as the bytes are."""
_KINDS: Mapping[type[IcebergType], pa.DataType] = {
    DateType: t.DATE,
    TimestampType: t.TIMESTAMP_NTZ,
    TimestamptzType: t.TIMESTAMP,
}
_BITS: Mapping[type[IcebergType], int] = {IntegerType: 31, LongType: 63}
_MIRRORED: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
}
_NEGATED: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
}


def made(predicate: Any, *args: object) -> BooleanExpression:
    """A predicate from a name and values, as PyIceberg takes them but does not declare."""
    found: BooleanExpression = predicate(*args)
    return found


def kept(node: exp.Expression, resolve: Resolve, negated: bool = False) -> BooleanExpression:
    """The part of a condition that one topic's files can be checked against; AlwaysTrue where there is none."""
    if isinstance(node, exp.Paren):
        return kept(node.this, resolve, negated)
    if isinstance(node, exp.Not):
        return kept(node.this, resolve, not negated)
    if isinstance(node, exp.And | exp.Or):
        both = And if isinstance(node, exp.And) != negated else Or
        return both(kept(node.this, resolve, negated), kept(node.expression, resolve, negated))
    try:
        return _leaf(node, resolve, negated)
    except NotProven:
        return AlwaysTrue()


def _leaf(node: exp.Expression, resolve: Resolve, negated: bool) -> BooleanExpression:
    kind = type(node)
    if kind in _MIRRORED:
        return _comparison(_NEGATED[kind] if negated else kind, node.this, node.expression, resolve)
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return _distinct(node, resolve, negated == isinstance(node, exp.NullSafeEQ))
    if isinstance(node, exp.Between):
        return _between(node, resolve, negated)
    if isinstance(node, exp.Column):
        return _flag(resolve(node), not negated)
    if _calls(node, "startswith", 2):
        return _starting(resolve(node.expressions[0]), node.expressions[1], negated)
    field = resolve(node.this) if isinstance(node, exp.Is | exp.In | exp.Like) else None
    if field is None:
        return AlwaysTrue()
    if isinstance(node, exp.Is):
        return _is(node, field, negated)
    if isinstance(node, exp.In):
        return _membership(node, field, negated)
    return _prefix(node, field, negated != bool(node.args.get("negate")))


def _is(node: exp.Is, field: NestedField, negated: bool) -> BooleanExpression:
    if isinstance(node.expression, exp.Null):
        return made(NotNull, field.name) if negated else made(IsNull, field.name)
    if not isinstance(node.expression, exp.Boolean):
        return AlwaysTrue()
    wanted = bool(node.expression.this)
    return Or(made(IsNull, field.name), _flag(field, not wanted)) if negated else _flag(field, wanted)


def _flag(field: NestedField | None, wanted: bool) -> BooleanExpression:
    is_flag = field is not None and isinstance(field.field_type, BooleanType)
    return made(EqualTo, field.name, wanted) if field is not None and is_flag else AlwaysTrue()


def _distinct(node: exp.Expression, resolve: Resolve, differs: bool) -> BooleanExpression:
    """`x <=> 1` and its opposite, which are never unknown."""
    left, right = node.this, node.expression
    if _is_literal(left) or isinstance(left, exp.Null):
        left, right = right, left
    field = resolve(left)
    if field is None:
        return AlwaysTrue()
    if isinstance(right, exp.Null):
        return made(NotNull, field.name) if differs else made(IsNull, field.name)
    compared = _compared(exp.NEQ if differs else exp.EQ, field, literal(right, field.field_type))
    return Or(made(IsNull, field.name), compared) if differs else compared


def _comparison(
    kind: type[exp.Expression], left: exp.Expression, right: exp.Expression, resolve: Resolve
) -> BooleanExpression:
    if _is_literal(left):
        left, right, kind = right, left, _MIRRORED[kind]
    if day_of := _day_of(left):
        field = resolve(day_of)
        return AlwaysTrue() if field is None else _compared_day(kind, field, right)
    field = resolve(left)
    return AlwaysTrue() if field is None else _compared(kind, field, literal(right, field.field_type))


def _day_of(node: exp.Expression) -> exp.Expression | None:
    """The timestamp whose day a node is: CAST(x AS DATE), date(x), to_date(x)."""
    if isinstance(node, exp.TryCast) and node.args["to"].this == exp.DType.DATE:
        timestamp: exp.Expression = node.this
        return timestamp
    if _calls(node, "date", 1) or _calls(node, "to_date", 1):
        found: exp.Expression = node.expressions[0]
        return found
    return None


def _calls(node: exp.Expression, name: str, arguments: int) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() == name and len(node.expressions) == arguments


def _compared_day(kind: type[exp.Expression], field: NestedField, right: exp.Expression) -> BooleanExpression:
    if not isinstance(field.field_type, TimestampType | TimestamptzType) or kind is exp.NEQ:
        return AlwaysTrue()
    day = dt.date.fromisoformat(str(literal(right, DateType())))
    if day.year == dt.MAXYEAR:
        return AlwaysTrue()
    zone = "+00:00" if isinstance(field.field_type, TimestamptzType) else ""
    start, end = (f"{when.isoformat()}T00:00:00{zone}" for when in (day, day + dt.timedelta(days=1)))
    bounds: dict[type[exp.Expression], BooleanExpression] = {
        exp.EQ: And(made(GreaterThanOrEqual, field.name, start), made(LessThan, field.name, end)),
        exp.LT: made(LessThan, field.name, start),
        exp.LTE: made(LessThan, field.name, end),
        exp.GT: made(GreaterThanOrEqual, field.name, end),
        exp.GTE: made(GreaterThanOrEqual, field.name, start),
    }
    return bounds[kind]


def _compared(kind: type[exp.Expression], field: NestedField, value: Value) -> BooleanExpression:
    name = field.name
    bound: BooleanExpression
    match kind:
        case exp.EQ:
            return made(EqualTo, name, value)
        case exp.NEQ:
            bound = made(NotEqualTo, name, value)
        case exp.LT:
            return made(LessThan, name, value)
        case exp.LTE:
            return made(LessThanOrEqual, name, value)
        case exp.GT:
            bound = made(GreaterThan, name, value)
        case _:
            bound = made(GreaterThanOrEqual, name, value)
    return Or(bound, made(IsNaN, name)) if isinstance(field.field_type, FloatType | DoubleType) else bound


def _between(node: exp.Between, resolve: Resolve, negated: bool) -> BooleanExpression:
    low, high = node.args["low"], node.args["high"]
    if negated:
        return Or(_comparison(exp.LT, node.this, low, resolve), _comparison(exp.GT, node.this, high, resolve))
    return And(_side(exp.GTE, node.this, low, resolve), _side(exp.LTE, node.this, high, resolve))


def _side(
    kind: type[exp.Expression], left: exp.Expression, right: exp.Expression, resolve: Resolve
) -> BooleanExpression:
    try:
        return _comparison(kind, left, right, resolve)
    except NotProven:
        return AlwaysTrue()


def _membership(node: exp.In, field: NestedField, negated: bool) -> BooleanExpression:
    if node.args.get("query") or not node.expressions:
        return AlwaysTrue()
    items = [item for item in node.expressions if not isinstance(item, exp.Null)]
    # Spark brings a list to one type: beside a double, whole numbers are doubles too.
    as_doubles = any(number is not None and number[1] for number in map(_written_number, items))
    values = [literal(item, field.field_type, as_double=as_doubles) for item in items]
    if len(values) < len(node.expressions) and (negated or not values):
        return AlwaysFalse()  # with a null among them, no value is surely none of them
    if not negated:
        return made(In, field.name, values)
    kept = made(NotIn, field.name, values)
    return Or(kept, made(IsNaN, field.name)) if isinstance(field.field_type, FloatType | DoubleType) else kept


def _prefix(node: exp.Expression, field: NestedField, negated: bool) -> BooleanExpression:
    pattern = node.expression
    if not isinstance(field.field_type, StringType) or not _is_literal(pattern) or not pattern.is_string:
        return AlwaysTrue()
    prefix, _, rest = str(pattern.this).partition("%")
    if "_" in prefix or not prefix:
        return AlwaysTrue()
    if str(pattern.this) == prefix:
        return _compared(exp.NEQ if negated else exp.EQ, field, prefix)
    if negated:
        return AlwaysTrue() if rest else made(NotStartsWith, field.name, prefix)
    return made(StartsWith, field.name, prefix)


def _starting(field: NestedField | None, prefix: exp.Expression, negated: bool) -> BooleanExpression:
    if field is None or not isinstance(field.field_type, StringType):
        return AlwaysTrue()
    if not _is_literal(prefix) or not prefix.is_string or not prefix.this:
        return AlwaysTrue()
    return made(NotStartsWith if negated else StartsWith, field.name, str(prefix.this))


def _is_literal(node: exp.Expression) -> bool:
    if isinstance(node, exp.Neg | exp.Cast):
        return isinstance(node.this, exp.Literal) or (isinstance(node, exp.Neg) and _is_literal(node.this))
    return isinstance(node, exp.Literal | exp.Boolean | exp.HexString)


def literal(node: exp.Expression, of: IcebergType, *, as_double: bool = False) -> Value:
    """A literal as a value of a column's type, when comparing as that type means what Spark means; else NotProven."""
    if isinstance(node, exp.Boolean) and isinstance(of, BooleanType):
        return bool(node.this)
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        return _moment(str(node.this.this), node.args["to"].this, of)
    if isinstance(node, exp.Literal) and node.is_string:
        if isinstance(of, StringType) or (isinstance(of, UUIDType) and _UUID.fullmatch(str(node.this))):
            return str(node.this)
        return _moment(str(node.this), None, of)
    if isinstance(node, exp.HexString):
        return _binary(bytes.fromhex(f"{node.this:0>{len(node.this) + len(node.this) % 2}}"), of)
    if (number := _written_number(node)) is None:
        raise NotProven("not a literal of the column's type")
    return _number(number[0], of, number[1] or as_double)


def _written_number(node: exp.Expression) -> tuple[Decimal, bool] | None:
    """A number as it is written, and whether it is a DOUBLE, as `1e0`, `1D` and `CAST(1 AS DOUBLE)` are."""
    sign = "-" if isinstance(node, exp.Neg) else ""
    inner = node.this if sign else node
    is_cast = isinstance(inner, exp.Cast) and inner.args["to"].this == exp.DType.DOUBLE
    inner = inner.this if is_cast else inner
    if not isinstance(inner, exp.Literal) or inner.is_string:
        return None
    try:
        return Decimal(f"{sign}{inner.this}"), is_cast or "e" in str(inner.this).lower()
    except InvalidOperation:
        raise NotProven("a number that is no decimal") from None


def _binary(value: bytes, of: IcebergType) -> bytes:
    if isinstance(of, BinaryType) or (isinstance(of, FixedType) and len(of) == len(value)):
        return value
    raise NotProven("not a literal of the column's type")


def _moment(text: str, written: object, of: IcebergType) -> str:
    to = _KINDS.get(type(of))
    if to is None or (written not in (None, exp.DType.DATE) and to == t.DATE):
        raise NotProven("not a literal of the column's type")
    moment = instant(text, to)
    if isinstance(moment, dt.datetime):
        return moment.isoformat(timespec="microseconds")
    return moment.isoformat()


def _number(value: Decimal, of: IcebergType, is_double: bool) -> Value:
    """A number as a value of the column's type, if there is one that compares with all others as the number does.

    Beside a double, Spark compares any number as a double, and a BIGINT or a long DECIMAL may equal its neighbours.
    """
    bits = _BITS.get(type(of))
    if bits and value == value.to_integral_value() and -(2**bits) <= value < 2**bits:
        if bits == 31 or not is_double or abs(value) < EXACT_DOUBLE_WHOLE:
            return int(value)
    elif isinstance(of, DecimalType) and (not is_double or of.precision <= EXACT_DOUBLE_DIGITS):
        exact = _rounded(value, of.scale)
        if exact == value and len(exact.as_tuple().digits) <= of.precision:
            return exact
    # A FLOAT column is compared as DOUBLE; the bound must be the same number in both.
    elif isinstance(of, DoubleType) or (isinstance(of, FloatType) and _as_float(float(value)) == value):
        return float(value)
    raise NotProven("not a literal of the column's type")


def _rounded(value: Decimal, scale: int) -> Decimal:
    try:
        return _WIDE.quantize(value, Decimal((0, (1,), -scale)))
    except InvalidOperation:
        raise NotProven("more digits than a decimal has") from None


def _as_float(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True)
class Applying:
    """For each item of FROM: the conditions that every row of it must meet to have an effect on the result, whether
    the query around sees its own rows, not nulls in their place, and whether it sees its columns at all."""

    conditions: list[list[exp.Expression]]
    kept: list[bool]
    visible: list[bool]


def applying(select: exp.Select) -> Applying:
    """What the joins and the WHERE of a SELECT ask of the items of its FROM."""
    joins = select.args.get("joins") or []
    found: list[list[exp.Expression]] = [[]]
    kept_rows, visible = [True], [True]
    for number, join in enumerate(joins, 1):
        side, kind, on = join.side.upper(), join.kind.upper(), join.args.get("on")
        before = [n for n in range(number) if kept_rows[n]]
        found.append([])
        kept_rows.append(side not in ("LEFT", "FULL"))
        visible.append(kind not in ("SEMI", "ANTI"))
        meets = {"LEFT": [number], "FULL": []}.get(side, before if side == "RIGHT" else [*before, number])
        if kind == "SEMI":
            meets = [*before, number]
        for item in meets if on else ():
            found[item].append(on)
        if side in ("RIGHT", "FULL"):
            kept_rows[:number] = [False] * number
        elif kind in ("SEMI", "ANTI"):
            kept_rows[number] = False
    if where := select.args.get("where"):
        for item, keeps in enumerate(kept_rows):
            if keeps:
                found[item].append(where.this)
    return Applying(found, kept_rows, visible)
