"""Literals and the types that casts name."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headwater.serving.agreement import types as t
from headwater.serving.agreement.arithmetic import negated, rounded_quotient
from headwater.serving.agreement.casts import cast, double, explicit, instant, moment_name, moment_sql
from headwater.serving.agreement.parsing import WRITTEN_CAST, only
from headwater.serving.agreement.scope import text_literal
from headwater.serving.agreement.values import NotProven, Typed, spelled

if TYPE_CHECKING:
    from headwater.serving.agreement.expressions import Expressions

_TYPES: dict[Any, pa.DataType] = {
    exp.DType.BOOLEAN: t.BOOLEAN,
    exp.DType.INT: t.INT,
    exp.DType.BIGINT: t.BIGINT,
    exp.DType.FLOAT: t.FLOAT,
    exp.DType.DOUBLE: t.DOUBLE,
    exp.DType.TEXT: t.STRING,
    exp.DType.DATE: t.DATE,
    exp.DType.TIMESTAMPTZ: t.TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: t.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: t.TIMESTAMP_NTZ,
}
_DOUBLE = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?\Z", re.IGNORECASE)


def literal(self: Expressions, node: exp.Expression) -> Typed:
    text = str(node.this)
    if node.is_string:
        return Typed(text_literal(text), t.STRING, text, True, literal=text)
    return number(text)


def number(text: str) -> Typed:
    """A number as Spark reads it: INT, BIGINT, DECIMAL by its digits, DOUBLE with an exponent."""
    if text.lstrip("-").isdecimal():
        value = int(text)
        if not -(2**63) <= value < 2**63:
            raise NotProven("whole numbers beyond 64 bits are not proven to agree")
        of = t.INT if -(2**31) <= value < 2**31 else t.BIGINT
        return Typed(cast(str(value), of), of, str(value), True, literal=value)
    if "e" in text.lower():
        return _suffixed(text, t.DOUBLE)
    if not text.lstrip("-").replace(".", "", 1).isdecimal():
        raise NotProven(f"number {text} is not proven to agree")
    whole, _, scale = text.lstrip("-").partition(".")
    of = t.decimal(max(len(whole.lstrip("0")) + len(scale), 1), len(scale))
    exact = Decimal(text)
    return Typed(f"CAST('{exact:f}' AS {t.duck_name(of)})", of, f"{exact:f}", True, literal=exact)


def boolean(self: Expressions, node: exp.Expression) -> Typed:
    return Typed("TRUE" if node.this else "FALSE", t.BOOLEAN, "true" if node.this else "false", True)


def null(self: Expressions, node: exp.Expression) -> Typed:
    return Typed("NULL", t.NULL, "NULL", True)


def negative(self: Expressions, node: exp.Expression) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number(f"-{node.this.this}")
    if isinstance(node.this, exp.TryCast) and not node.this.meta.get(WRITTEN_CAST):
        return _suffixed(f"-{node.this.this.this}", data_type(node.this.args["to"]))
    value = self.operand(node.this)
    if not t.is_numeric(value.type):
        raise NotProven("a minus sign on this type is not proven to agree")
    return Typed(negated(value), value.type, spelled("(- {})", value), value.constant)


def data_type(node: exp.Expression) -> pa.DataType:
    """The type that a cast names."""
    only(node, "this", "expressions", "nested")
    if node.this == exp.DType.DECIMAL and len(node.expressions) == 2:
        precision, scale = (int(parameter.name) for parameter in node.expressions)
        if precision > 0 and 0 <= scale <= precision:
            return t.decimal(precision, scale)
    elif node.this in _TYPES and not node.expressions:
        return _TYPES[node.this]
    raise NotProven(f'type "{node.sql("spark").lower()}" is not proven to agree')


def written_cast(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "to", "_type")
    to = data_type(node.args["to"])
    if node.meta.get(WRITTEN_CAST):
        value = explicit(self.expr(node.this), to)
        quotient = node.this.unnest()
        if not isinstance(quotient, exp.Div):
            return value
        sql = rounded_quotient(self.expr(quotient.this), self.expr(quotient.expression), to)
        return value if sql is None else replace(value, sql=sql)
    return _suffixed(str(node.this.this), to)


def _suffixed(text: str, to: pa.DataType) -> Typed:
    if to == t.DOUBLE and _DOUBLE.match(text):
        value = float(text)
        # Outside this range Java writes an exponent.
        name = repr(value) if value == 0 or 1e-3 <= abs(value) < 1e7 else None
        return Typed(double(value), t.DOUBLE, name, True, literal=value)
    if to == t.BIGINT and text.lstrip("-").isdecimal() and -(2**63) <= int(text) < 2**63:
        return Typed(cast(text, to), to, str(int(text)), True, literal=int(text))
    raise NotProven(f"number {text} is not proven to agree")


def typed_literal(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "to", "_type")
    to = data_type(node.args["to"])
    if to not in t.DATETIMES or not isinstance(node.this, exp.Literal) or not node.this.is_string:
        raise NotProven("this literal is not proven to agree")
    moment = instant(str(node.this.this), to)
    return Typed(moment_sql(moment, to), to, moment_name(moment, to), True, literal=moment)
