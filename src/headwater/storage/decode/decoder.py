"""The way into a topic for every format: built once for a schema, then used by any number of threads.

Nothing is inferred: the schema decides, and every format is held to it with the same strictness.

* Required fields must be there and not be null, at every level; optional ones may be either. Unknown and repeated
  fields are errors.
* Integers are JSON integers in range (not 1.0, not "1"). Floats take any JSON number that does not overflow, and NaN,
  Infinity and -Infinity. Decimals take numbers and text, exactly: more decimals than the scale are an error, unless
  they are zeros.
* A date is "2024-05-01", a time "10:30:00.5", a timestamp both with a T or a space; up to six decimals, years 0001 to
  9999. A timestamp with time zone takes Z or an offset, and is UTC without one; a timestamp without time zone takes
  neither.
* A uuid is its canonical text; binary and fixed are padded base64. A map is an object whose keys are the text of the
  map's keys, or an array of {"key": …, "value": …}.
* Python's rows may also hold datetime, date, time, Decimal, UUID and bytes. Arrow and pandas columns are cast where
  nothing is lost; in pandas, NaN means missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema

from headwater.errors import RecordsRejected
from headwater.storage.decode.csvbody import cells_of, decode_csv
from headwater.storage.decode.infer import without_nothing
from headwater.storage.decode.json_records import lines_of
from headwater.storage.decode.ndjson import NdjsonPlan, check_ndjson, decode_ndjson, readable_by_arrow
from headwater.storage.decode.outcome import Decoded
from headwater.storage.decode.records import RecordPlan, check_records, json_text
from headwater.storage.decode.sift import Sieve
from headwater.storage.decode.sizes import Account, ignore_size, row_bytes
from headwater.storage.decode.tables import decode_arrow, frame_records, frame_table, has_object_columns

if TYPE_CHECKING:
    import pandas as pd


class RecordDecoder:
    """Decodes records of one schema. `max_rejects` stops at that many bad rows; `first_row` numbers the first one;
    `account` hears how many bytes the records take before they are decoded, and raises if these are too many.

    A `tolerant` one, which is slower, passes over unknown fields that say nothing, such as nulls.
    """

    __slots__ = ("_ndjson", "_records", "_row_bytes", "_schema", "_tolerant", "arrow_schema")

    def __init__(self, schema: Schema, *, tolerant: bool = False) -> None:
        self._tolerant = tolerant
        self._schema = schema
        self._records = RecordPlan.of(schema)
        self._ndjson = NdjsonPlan.of(schema) if readable_by_arrow(schema) else None
        self.arrow_schema: pa.Schema = self._records.rows.schema
        self._row_bytes = row_bytes(self.arrow_schema)

    def ndjson(
        self, data: bytes, *, max_rejects: int | None = None, first_row: int = 0, account: Account = ignore_size
    ) -> Decoded:
        """One JSON object per line; blank lines are skipped."""
        sieve = self._sieve(max_rejects, first_row, account)
        if self._tolerant:
            return check_ndjson(self._records, data, sieve, self._told)
        if self._ndjson is None:
            return check_ndjson(self._records, data, sieve)
        return decode_ndjson(self._ndjson, data, sieve)

    def json(self, data: bytes, *, max_rejects: int | None = None, account: Account = ignore_size) -> Decoded:
        """An array of objects, or one object; RecordsRejected when the body is not that."""
        return self.ndjson(lines_of(data), max_rejects=max_rejects, account=account)

    def csv(
        self, data: bytes, *, max_rejects: int | None = None, first_row: int = 0, account: Account = ignore_size
    ) -> Decoded:
        """A header and rows; RecordsRejected when the header does not match the schema."""
        ignored = [name for name, cells in _columns(data) if not cells] if self._tolerant else ()
        return decode_csv(self._schema, data, self._sieve(max_rejects, first_row, account), ignored)

    def arrow(
        self,
        data: pa.Table | pa.RecordBatch,
        *,
        max_rejects: int | None = None,
        first_row: int = 0,
        account: Account = ignore_size,
    ) -> Decoded:
        """A table's rows; RecordsRejected when its columns can never fit."""
        if self._tolerant:
            data = _told_columns(data, {field.name for field in self._schema.fields})
        return decode_arrow(self._schema, self._records.check, data, self._sieve(max_rejects, first_row, account))

    def rows(
        self, rows: Sequence[Mapping[str, object]], *, max_rejects: int | None = None, account: Account = ignore_size
    ) -> Decoded:
        """Python dicts."""
        return check_records(self._records, rows, self._sieve(max_rejects, 0, account), read=self._told, raw=json_text)

    def pandas(self, frame: pd.DataFrame, *, max_rejects: int | None = None, account: Account = ignore_size) -> Decoded:
        """A frame's rows without its index; columns of Python objects are checked value by value."""
        if has_object_columns(frame):
            if not frame.columns.is_unique:
                raise RecordsRejected("frame has columns of the same name")
            sieve = self._sieve(max_rejects, 0, account)
            records = frame_records(frame, self._schema)
            return check_records(self._records, records, sieve, read=self._told, raw=json_text)
        return self.arrow(frame_table(frame), max_rejects=max_rejects, account=account)

    def _told(self, record: object) -> object:
        """What a record says."""
        return without_nothing(record, self._schema.as_struct()) if self._tolerant else record

    def _sieve(self, max_rejects: int | None, first_row: int, account: Account) -> Sieve:
        return Sieve(self.arrow_schema, max_rejects, self._row_bytes, first_row, account)


def _told_columns(data: pa.Table | pa.RecordBatch, known: set[str]) -> pa.Table:
    """The rows without unknown columns that hold nothing but nulls; as they are, if their memory is not valid."""
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    try:
        table.validate(full=True)
    except (pa.ArrowInvalid, ValueError):
        return table
    told = [n for n, column in enumerate(table.columns) if column.null_count < table.num_rows]
    return table.select([n for n, name in enumerate(table.column_names) if name in known or n in told])


def _columns(body: bytes) -> Iterator[tuple[str, int]]:
    """The columns of a CSV body, each with the number of its cells that are not empty."""
    names, cells = cells_of(body)
    for place, name in enumerate(names):
        yield name, cells.num_rows - cells.column(place).null_count
