"""A pruning filter as the JSON that Iceberg's Java side reads.

It only helps to skip: what it cannot say exactly it leaves out, so that it never keeps less than the filter.
"""

from __future__ import annotations

import json
import math
from typing import Any
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    LiteralPredicate,
    Or,
    Reference,
    SetPredicate,
    UnaryPredicate,
)
from pyiceberg.expressions.literals import (
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
    UUIDLiteral,
)
from pyiceberg.expressions.visitors import rewrite_not

_AS_THEY_ARE = (BooleanLiteral, DateLiteral, DoubleLiteral, FloatLiteral, LongLiteral, StringLiteral, TimestampLiteral)
"""Dates and timestamps are numbers of days and microseconds, whatever the column's zone."""


def filter_json(row_filter: BooleanExpression) -> str:
    """The conditions of `row_filter` on top-level columns."""
    return json.dumps(_json(rewrite_not(row_filter)), allow_nan=False)


def _json(of: BooleanExpression) -> Any:
    match of:
        case And():
            return {"type": "and", "left": _json(of.left), "right": _json(of.right)}
        case Or():
            return {"type": "or", "left": _json(of.left), "right": _json(of.right)}
        case AlwaysFalse():
            return False
        case UnaryPredicate() | LiteralPredicate() | SetPredicate() if isinstance(of.term, Reference):
            return True if "." in of.term.name else _predicate(of, of.term.name)
        case _:
            return True


def _predicate(of: UnaryPredicate | LiteralPredicate | SetPredicate, column: str) -> Any:
    said = {"type": of.type, "term": column}
    if isinstance(of, LiteralPredicate):
        value = _value(of.literal)
        return True if value is None else {**said, "value": value}
    if isinstance(of, SetPredicate):
        values = [_value(literal) for literal in of.literals]
        return True if None in values else {**said, "values": values}
    return said


def _value(literal: Literal[Any]) -> Any:
    """A JSON value that Java turns into the column's type, None if there is none."""
    value = literal.value
    if isinstance(literal, DecimalLiteral):
        return format(value, "f")
    if isinstance(literal, UUIDLiteral):
        return str(UUID(bytes=value))
    if not isinstance(literal, _AS_THEY_ARE):
        return None
    if isinstance(value, float):
        # Iceberg's reader tells -0.0 from 0.0 when it looks into dictionaries; SQL does not.
        return value if math.isfinite(value) and value != 0 else None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value
