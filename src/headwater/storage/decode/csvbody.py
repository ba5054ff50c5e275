"""CSV with a header into decoded tables.

Arrow cuts the text into cells; an empty cell is null and a quoted empty one is an empty text. Cells become values by
the text forms that JSON uses too; a cell of a list, map or struct column holds JSON.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from headwater.errors import RecordsRejected
from headwater.storage.decode.check import MISSING, NULL, key_check
from headwater.storage.decode.columns import Member, RowPlan, plan_column
from headwater.storage.decode.leaves import Convert, csv_leaf, storage_leaf
from headwater.storage.decode.outcome import Decoded, Unfit
from headwater.storage.decode.records import json_text
from headwater.storage.decode.scalars import Check
from headwater.storage.decode.shapes import plain_field, storage_type
from headwater.storage.decode.sift import Sieve
from headwater.storage.decode.sizes import REJECT_BYTES, JsonWeight
from headwater.storage.decode.tables import columns_rejected, some_rows

_BOM = b"\xef\xbb\xbf"
_LARGEST_BLOCK = 2**31 - 1


def decode_csv(schema: Schema, data: bytes, sieve: Sieve, ignored: Collection[str] = ()) -> Decoded:
    """The rows below the header; RecordsRejected when the header does not match or a quote stays open.

    Columns that are `ignored` are passed over if the schema does not have them.
    """
    head, _, body = data.removeprefix(_BOM).partition(b"\n")
    names = _header(head)
    try:
        plan = _planned(schema, names, ignored)
    except Unfit as unfit:
        raise columns_rejected("csv columns", unfit) from None
    if body.count(b'"') % 2:
        raise RecordsRejected("csv body has a quote that is never closed")
    return sieve.sift([_read(plan, names, body, sieve)] if body.strip(b"\r\n") else [])


def cells_of(data: bytes) -> tuple[list[str], pa.Table]:
    """The header, and the rows that have as many cells, as they are written."""
    head, _, body = data.removeprefix(_BOM).partition(b"\n")
    names = _header(head)
    if not body.strip(b"\r\n"):
        return names, pa.Table.from_arrays([pa.array([], pa.binary())] * len(names), names=names)
    return names, _cells(names, body, lambda _: "skip")


def _header(head: bytes) -> list[str]:
    try:
        names = next(csv.reader([head.decode().rstrip("\r")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordsRejected("csv header cannot be read", detail=f"{error}.") from None
    if not names:
        raise RecordsRejected("csv header is missing", hint="The first line names the columns.")
    return names


@dataclass(frozen=True, slots=True)
class CsvPlan:
    """The columns in the schema's order: how they are converted, and how one cell is explained."""

    rows: RowPlan
    cells: tuple[tuple[NestedField, int | None, Check], ...]
    weight: JsonWeight
    nested: tuple[int, ...]
    """The columns whose cells hold JSON."""


def _planned(schema: Schema, names: Sequence[str], ignored: Collection[str]) -> CsvPlan:
    known = {field.name for field in schema.fields} | set(ignored)
    for place, name in enumerate(names):
        if name not in known:
            raise Unfit("unknown field", name)
        if name in names[:place]:
            raise Unfit("field appears more than once", name)
    members, cells = [], []
    for field in schema.fields:
        index = names.index(field.name) if field.name in names else None
        if index is None and field.required:
            raise Unfit(MISSING, field.name)
        members.append(Member(field, index, _convert(field.field_type)))
        cells.append((field, index, key_check(field.field_type)))
    rows = RowPlan(tuple(members), pa.schema([plain_field(field) for field in schema.fields]))
    nested = [index for field, index, _ in cells if index is not None and not field.field_type.is_primitive]
    return CsvPlan(rows, tuple(cells), JsonWeight.of(schema), tuple(nested))


def _convert(of: IcebergType) -> Convert:
    if isinstance(of, ListType | MapType | StructType):
        return _json_cells(of)
    leaf = csv_leaf(pa.string(), of)

    def convert(column: pa.Array) -> pa.Array:
        words = column.cast(pa.string())
        return words if leaf is None else leaf(words)

    return convert


def _json_cells(of: IcebergType) -> Convert:
    check, stored = key_check(of), storage_type(of)
    settle = plan_column(stored, of, storage_leaf)

    def convert(column: pa.Array) -> pa.Array:
        values = [None if cell is None else check(cell) for cell in column.cast(pa.string()).to_pylist()]
        built = pa.array(values, stored)
        return built if settle is None else settle(built)

    return convert


def _read(plan: CsvPlan, names: list[str], body: bytes, sieve: Sieve) -> CsvBatch:
    wrong: list[pv.InvalidRow] = []
    stop: list[BaseException] = []

    def skip(row: pv.InvalidRow) -> str:
        wrong.append(row)
        try:
            sieve.account(sieve.size + len(wrong) * REJECT_BYTES)
        except BaseException as refused:  # Arrow would print it and go on
            stop.append(refused)
            return "error"
        return "skip"

    try:
        batches = _cells(names, body, skip).combine_chunks().to_batches()
    except RecordsRejected:
        if stop:
            raise stop[0] from None
        raise
    batch = batches[0] if batches else pa.RecordBatch.from_arrays([pa.array([], pa.binary())] * len(names), names=names)
    return CsvBatch(plan, batch, [row.number - 1 for row in wrong], wrong)


def _cells(names: list[str], body: bytes, skip: Callable[[pv.InvalidRow], str]) -> pa.Table:
    """Cells as they are written; `skip` is told of rows that have not as many as the header."""
    try:
        return pv.read_csv(
            pa.BufferReader(body),
            # One block and one thread: only then do refused rows carry their number.
            pv.ReadOptions(use_threads=False, block_size=min(len(body) + 1, _LARGEST_BLOCK), column_names=names),
            pv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            pv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise RecordsRejected("csv body cannot be read", detail=f"{error}.") from None


@dataclass(frozen=True, slots=True)
class CsvBatch:
    """Rows of a CSV body: those with as many cells as the header in `batch`, the others in `wrong` at `places`."""

    plan: CsvPlan
    batch: pa.RecordBatch
    places: list[int]
    wrong: list[pv.InvalidRow]

    def __len__(self) -> int:
        return int(self.batch.num_rows) + len(self.wrong)

    def weigh(self, rows: range) -> int:
        if not self.plan.nested:
            return 0
        first, last = (row - bisect_left(self.places, row) for row in (rows.start, rows.stop))
        return sum(self._weigh_cells(index, first, last) for index in self.plan.nested)

    def _weigh_cells(self, index: int, first: int, last: int) -> int:
        column = self.batch.column(index)
        _, offsets, data = column.buffers()
        if data is None:
            return 0
        start, stop = np.frombuffer(offsets, np.int32)[[column.offset + first, column.offset + last]]
        return self.plan.weight.weigh(0, data.slice(int(start), int(stop - start)).to_pybytes())

    def accept(self, rows: Sequence[int]) -> pa.Table:
        if self.wrong and any(self._wrong(row) for row in rows):
            raise Unfit("another number of cells than the header has")
        places = [row - bisect_left(self.places, row) for row in rows] if self.wrong else rows
        return self.plan.rows.table(some_rows(self.batch, places))

    def explain(self, row: int) -> Unfit | None:
        if wrong := self._wrong(row):
            return Unfit(f"expected {wrong.expected_columns} cells, got {wrong.actual_columns}")
        try:
            for field, index, check in self.plan.cells:
                if index is not None:
                    _explain_cell(field, self._cell(row, index), check)
        except Unfit as unfit:
            return unfit
        return None

    def raw(self, row: int) -> bytes:
        if wrong := self._wrong(row):
            return str(wrong.text).encode("utf-8", "surrogateescape")
        cells = {name: self._cell(row, index) for index, name in enumerate(self.batch.schema.names)}
        return json_text({name: cell and cell.decode("utf-8", "replace") for name, cell in cells.items()})

    def _wrong(self, row: int) -> pv.InvalidRow | None:
        place = bisect_left(self.places, row)
        return self.wrong[place] if place < len(self.places) and self.places[place] == row else None

    def _cell(self, row: int, index: int) -> bytes | None:
        cell: bytes | None = self.batch.column(index)[row - bisect_left(self.places, row)].as_py()
        return cell


def _explain_cell(field: NestedField, cell: bytes | None, check: Check) -> None:
    """Unfit, if the cell is not a value of the field."""
    if cell is None:
        if field.required:
            raise Unfit(NULL, field.name)
        return
    try:
        check(cell.decode())
    except UnicodeDecodeError:
        raise Unfit("not valid UTF-8", field.name) from None
    except Unfit as unfit:
        raise unfit.within(field.name) from None
