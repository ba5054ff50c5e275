"""A pruning filter as people write it, for EXPLAIN."""

from __future__ import annotations

from typing import Any

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
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)

_COMPARISONS: dict[type[BooleanExpression], str] = {
    EqualTo: "=",
    NotEqualTo: "<>",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StartsWith: "STARTS WITH",
    NotStartsWith: "NOT STARTS WITH",
}
_TESTS: dict[type[BooleanExpression], str] = {
    IsNull: "IS NULL",
    NotNull: "IS NOT NULL",
    IsNaN: "IS NAN",
    NotNaN: "IS NOT NAN",
}


def filter_text(of: BooleanExpression) -> str:
    """The filter in SQL's words; `none` when every file is kept."""
    return "none" if isinstance(of, AlwaysTrue) else _text(of)


def _text(of: Any) -> str:
    match of:
        case AlwaysTrue():
            return "TRUE"
        case AlwaysFalse():
            return "FALSE"
        case And():
            return f"{_inner(of.left)} AND {_inner(of.right)}"
        case Or():
            return f"{_inner(of.left)} OR {_inner(of.right)}"
        case Not():
            return f"NOT {_inner(of.child)}"
        case In() | NotIn():
            values = ", ".join(sorted(str(literal) for literal in of.literals))
            return f"{_name(of)} {'IN' if isinstance(of, In) else 'NOT IN'} ({values})"
    if type(of) in _COMPARISONS:
        return f"{_name(of)} {_COMPARISONS[type(of)]} {of.literal}"
    return f"{_name(of)} {_TESTS[type(of)]}"


def _name(predicate: Any) -> str:
    return str(predicate.term.name)


def _inner(of: Any) -> str:
    return f"({_text(of)})" if isinstance(of, Or) else _text(of)
