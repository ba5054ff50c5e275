"""What a file's column statistics say: whether any of its rows can match a filter, and if not, why.

PyIceberg's evaluator is extended by what follows from bounds that are equal or share a prefix: every value that is not
null is then equal to them, or shares it. A condition on a null is unknown, as in SQL: `<>` and NOT IN never match one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal as LiteralValue
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluationVisitor, bind, rewrite_not, visit
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

Reason = Literal["null counts", "bounds"]


def plan_statistics(schema: Schema, row_filter: BooleanExpression) -> Callable[[DataFile], Reason | None]:
    """Why no row of a file can match, by its statistics; None if one may."""
    if isinstance(row_filter, AlwaysTrue):
        return lambda _: None
    bound = bind(schema, rewrite_not(row_filter), case_sensitive=True)

    def reason(file: DataFile) -> Reason | None:
        if file.record_count < 0 or (file.record_count and visit(bound, _Statistics(file))):
            return None
        return "bounds" if visit(bound, _Counts(file)) else "null counts"

    return reason


class _Statistics(_InclusiveMetricsEvaluationVisitor):
    """Counts and bounds."""

    def visit_not_equal(self, term: BoundTerm, literal: LiteralValue[Any]) -> bool:
        return self._other_than(term, {literal.value})

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> bool:
        return self._other_than(term, literals)

    def _other_than(self, term: BoundTerm, values: set[Any]) -> bool:
        """Whether there may be a value that is none of these."""
        field = term.ref().field
        if self._contains_nulls_only(field.field_id):
            return False
        if isinstance(field.field_type, FloatType | DoubleType) and self.nan_counts.get(field.field_id) != 0:
            return True  # NaN is outside of all bounds
        low, high = self._bounds(term)
        return low is None or low != high or low not in values

    def visit_not_starts_with(self, term: BoundTerm, literal: LiteralValue[Any]) -> bool:
        if self._contains_nulls_only(term.ref().field.field_id):
            return False
        low, high = self._bounds(term)
        prefix: str = literal.value
        return low is None or high is None or not (low.startswith(prefix) and high.startswith(prefix))

    def _bounds(self, term: BoundTerm) -> tuple[Any, Any]:
        field, of = term.ref().field, term.ref().field.field_type
        assert isinstance(of, PrimitiveType)
        stored = (self.lower_bounds.get(field.field_id), self.upper_bounds.get(field.field_id))
        low, high = (None if each is None else from_bytes(of, each) for each in stored)
        return (low.bytes, high.bytes) if isinstance(low, UUID) and isinstance(high, UUID) else (low, high)


class _Counts(_Statistics):
    """Counts alone."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(file)
        self.lower_bounds, self.upper_bounds = {}, {}
