"""Which files of a table can hold rows with certain keys: by the files' statistics, value by value.

Keys are compared with statistics only where both are of one type. Keys of another type skip nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
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
from pyiceberg.expressions.literals import DateLiteral, TimestampLiteral
from pyiceberg.manifest import DataFile
from pyiceberg.types import (
    DateType,
    IcebergType,
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

_INTEGER_LIMIT = 2**31


class KeySet:
    """The values that a column of a join or a restriction takes, ready to be compared with statistics."""

    def __init__(self, values: pa.ChunkedArray, column: NestedField) -> None:
        self.column = column
        self.has_null = values.null_count > 0
        self.usable = is_comparable(values.type, column.field_type)
        found = _raw(pc.unique(pc.drop_null(values))) if self.usable else []
        if isinstance(column.field_type, IntegerType):  # keys may be of the wider type; no row has those beyond
            found = [value for value in found if -_INTEGER_LIMIT <= value < _INTEGER_LIMIT]
        self._values: list[Any] = sorted(found)

    @property
    def row_filter(self) -> BooleanExpression:
        """A condition that holds for every row with one of the keys."""
        if not self.usable:
            return AlwaysTrue()
        name = self.column.name
        if not self._values:
            return _made(IsNull, name) if self.has_null else AlwaysFalse()
        if len(self._values) <= FEW:
            found: BooleanExpression = _made(In, name, [self._literal(value) for value in self._values])
        else:
            low, high = self._literal(self._values[0]), self._literal(self._values[-1])
            found = And(_made(GreaterThanOrEqual, name, low), _made(LessThanOrEqual, name, high))
        return Or(found, _made(IsNull, name)) if self.has_null else found

    def _literal(self, value: Any) -> Any:
        """The value for a filter. Days and microseconds stay numbers: Python has no dates beyond the year 9999."""
        match self.column.field_type:
            case DateType():
                return DateLiteral(value)
            case TimestampType() | TimestamptzType():
                return TimestampLiteral(value)
            case _:
                return value

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


def is_comparable(keys: pa.DataType, column: IcebergType) -> bool:
    """Whether keys of one type equal values of a column exactly where their raw values do."""
    match column:
        case IntegerType() | LongType():
            return bool(pa.types.is_signed_integer(keys))
        case DateType():
            return bool(pa.types.is_date32(keys))
        case TimestampType():
            return bool(pa.types.is_timestamp(keys)) and keys.tz is None
        case TimestamptzType():
            return bool(pa.types.is_timestamp(keys)) and keys.tz is not None
        case StringType():
            return bool(pa.types.is_string(keys) or pa.types.is_large_string(keys))
        case _:
            return False


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
