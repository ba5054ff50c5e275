"""Which files of a table can hold rows with certain keys: by the files' statistics, value by value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
    Or,
)
from pyiceberg.manifest import DataFile
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

FEW = 100
"""Keys up to which a filter names each of them."""

_COMPARABLE = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, StringType)


class KeySet:
    """The values that a column of a join or a restriction takes, ready to be compared with statistics."""

    def __init__(self, values: pa.ChunkedArray, column: NestedField) -> None:
        self.column = column
        self.has_null = values.null_count > 0
        self.usable = isinstance(column.field_type, _COMPARABLE)
        plain = pc.unique(pc.drop_null(values)) if self.usable else pa.array([], pa.null())
        self._values: list[Any] = sorted(_raw(plain)) if self.usable else []

    @property
    def row_filter(self) -> BooleanExpression:
        """A condition that holds for every row with one of the keys."""
        if not self.usable:
            return AlwaysTrue()
        name, values = self.column.name, [_literal(value, self.column) for value in self._bounds()]
        if not self._values:
            return _made(IsNull, name) if self.has_null else AlwaysFalse()
        if len(self._values) <= FEW and not isinstance(
            self.column.field_type, DateType | TimestampType | TimestamptzType
        ):
            found: BooleanExpression = _made(In, name, self._values)
        else:
            found = And(_made(GreaterThanOrEqual, name, values[0]), _made(LessThanOrEqual, name, values[1]))
        return Or(found, _made(IsNull, name)) if self.has_null else found

    def _bounds(self) -> list[Any]:
        return [self._values[0], self._values[-1]] if self._values else []

    def files(self, files: Sequence[DataFile]) -> list[DataFile]:
        """The files that may hold a row with one of the keys."""
        return [file for file in files if self._may_hold(file)] if self.usable else list(files)

    def _may_hold(self, file: DataFile) -> bool:
        field_id, of = self.column.field_id, self.column.field_type
        lower, upper = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
        if self.has_null and (file.null_value_counts or {}).get(field_id, 1) > 0:
            return True
        if lower is None or upper is None:
            counts = (file.null_value_counts or {}).get(field_id)
            return counts is None or counts < file.record_count
        assert isinstance(of, PrimitiveType)
        low, high = from_bytes(of, lower), from_bytes(of, upper)
        place = bisect_left(self._values, low)
        # The upper bound of a long text is cut; a cut bound is still above every value.
        return place < len(self._values) and self._values[place] <= high


def _made(kind: Any, *arguments: Any) -> BooleanExpression:
    """A predicate; PyIceberg's own annotations do not know the short form of its constructors."""
    found: BooleanExpression = kind(*arguments)
    return found


def _raw(values: pa.Array) -> list[Any]:
    """Values in the form in which statistics hold them: dates as days, timestamps as microseconds."""
    if pa.types.is_timestamp(values.type):
        return list(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).to_pylist())
    if pa.types.is_date(values.type):
        return list(values.cast(pa.int32()).to_pylist())
    return list(values.to_pylist())


def _literal(value: Any, column: NestedField) -> Any:
    match column.field_type:
        case TimestampType() | TimestamptzType():
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
            return moment if isinstance(column.field_type, TimestamptzType) else moment.replace(tzinfo=None)
        case DateType():
            return date(1970, 1, 1) + timedelta(days=value)
        case _:
            return value
