"""Arrow tables and pandas frames into decoded tables: columns by name, lossless casts only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType

from headwater.errors import RecordsRejected
from headwater.storage.decode.check import RowCheck
from headwater.storage.decode.columns import RowPlan, plan_rows
from headwater.storage.decode.leaves import arrow_leaf
from headwater.storage.decode.outcome import Decoded, Unfit
from headwater.storage.decode.records import json_text
from headwater.storage.decode.sift import Sieve
from headwater.storage.decode.sizes import weigh_rows
from headwater.types import SYSTEM_COLUMNS

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd


def decode_arrow(schema: Schema, check: RowCheck, data: pa.Table | pa.RecordBatch, sieve: Sieve) -> Decoded:
    """The table's rows; RecordsRejected when its columns can never fit, or its memory is not valid Arrow."""
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    try:
        # Arrow that came over a wire may point outside of its buffers: nothing may touch it before this.
        table.validate(full=True)
    except (pa.ArrowInvalid, ValueError) as error:
        raise RecordsRejected("arrow data is not valid", detail=f"{error}.") from None
    plan = _planned(schema, table.schema)
    return sieve.sift(_weighed(plan, check, batch, sieve) for batch in table.to_batches())


def _weighed(plan: RowPlan, check: RowCheck, batch: pa.RecordBatch, sieve: Sieve) -> ArrowBatch:
    sieve.announce(batch.num_rows)  # before anything is allocated for a row: a column of nulls has billions for nothing
    sums = weigh_rows(batch, plan.schema, lambda size: sieve.account(sieve.size + size))
    return ArrowBatch(plan, check, batch, sums)


def _planned(schema: Schema, given: pa.Schema) -> RowPlan:
    try:
        return plan_rows(list(given), schema, arrow_leaf)
    except Unfit as unfit:
        raise columns_rejected("arrow columns", unfit) from None


def columns_rejected(what: str, unfit: Unfit) -> RecordsRejected:
    """The error for a body whose columns do not match the topic's."""
    hint = "Headwater assigns this column; leave it out." if unfit.field in SYSTEM_COLUMNS else None
    return RecordsRejected(
        f"{what} do not match the schema", detail=f'Column "{unfit.field}": {unfit.reason}.', hint=hint
    )


PYTHON_ROW_BYTES = 1024**2
"""A row that takes more once it is decoded does not become Python values: they take up to a hundred times as much, and
a list may hold one long text millions of times."""


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """Rows of a caller's record batch."""

    plan: RowPlan
    check: RowCheck
    batch: pa.RecordBatch
    sums: npt.NDArray[np.int64] | None
    """What the rows before each one take once they are decoded; None if that is what they take now."""

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def weigh(self, rows: range) -> int:
        return 0 if self.sums is None else int(self.sums[rows.stop] - self.sums[rows.start])

    def accept(self, rows: Sequence[int]) -> pa.Table:
        return self.plan.table(some_rows(self.batch, rows))

    def explain(self, row: int) -> Unfit | None:
        if self._is_heavy(row):
            return None
        try:
            self.check(self._values(row))
        except Unfit as unfit:
            return unfit
        return None

    def raw(self, row: int) -> bytes:
        return json_text(self._values(row))

    def _is_heavy(self, row: int) -> bool:
        return self.weigh(range(row, row + 1)) > PYTHON_ROW_BYTES

    def _values(self, row: int) -> dict[str, object]:
        """The row as Python values, without the lists, maps and structs of a heavy one."""
        heavy = self._is_heavy(row)
        fields = [field for field in self.batch.schema if not (heavy and _is_nested(field.type))]
        return {field.name: _value(self.batch.column(field.name)[row]) for field in fields}


def _is_nested(of: pa.DataType) -> bool:
    if isinstance(of, pa.BaseExtensionType):
        return _is_nested(of.storage_type)
    return bool(pa.types.is_nested(of.value_type if pa.types.is_dictionary(of) else of))


def some_rows(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Some rows of a batch, without a copy when they are neighbours."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return batch.slice(rows[0], len(rows))
    return batch.take(pa.array(rows))


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # a moment that Python has no value for
        return None if pa.types.is_nested(scalar.type) else scalar.cast(pa.string()).as_py()


def frame_records(frame: pd.DataFrame, schema: Schema) -> Iterator[Mapping[str, object]]:
    """A frame's rows with its missing values as None, and whole floats as integers where the schema has integers."""
    integers = {field.name for field in schema.fields if isinstance(field.field_type, IntegerType | LongType)}
    for record in frame.to_dict("records"):
        yield {str(name): _frame_value(value, name in integers) for name, value in record.items()}


def _frame_value(value: object, integer: bool) -> object:
    import pandas as pd

    if value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value):
        return None
    return int(value) if integer and isinstance(value, float) and value.is_integer() else value


def has_object_columns(frame: pd.DataFrame) -> bool:
    """Whether a column holds arbitrary Python objects, whose Arrow type would have to be guessed."""
    return any(dtype == np.dtype(object) for dtype in frame.dtypes)


def frame_table(frame: pd.DataFrame) -> pa.Table:
    """A frame of typed columns as Arrow, with its missing values as nulls."""
    return pa.Table.from_pandas(frame, preserve_index=False)
