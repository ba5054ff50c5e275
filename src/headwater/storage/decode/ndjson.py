"""Newline-delimited JSON into Arrow, by Arrow's own reader wherever that is strict, and by Python where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, MapType

from headwater.storage.decode.check import RowCheck, loads, row_check
from headwater.storage.decode.columns import RowPlan, plan_rows
from headwater.storage.decode.leaves import Infinite, json_leaf
from headwater.storage.decode.lines import Lines, body_lines, negative_nans, suspicious_decimals
from headwater.storage.decode.outcome import Decoded, Unfit, too_heavy
from headwater.storage.decode.records import RecordPlan, check_records
from headwater.storage.decode.shapes import has_type, parse_type
from headwater.storage.decode.sift import Sieve
from headwater.storage.decode.sizes import PIECE_BYTES, RECORD_BYTES, JsonWeight, python_bytes
from headwater.storage.decode.smallbody import SMALL, SmallReader

_BLOCK = 1024 * 1024
_STRADDLES = "straddl"


@dataclass(frozen=True, slots=True)
class NdjsonPlan:
    """What is worked out once for a schema. `infinite` converts when infinities were checked to be written as such."""

    options: pj.ParseOptions
    finite: RowPlan
    infinite: RowPlan
    check: RowCheck
    small: SmallReader
    weight: JsonWeight
    has_decimals: bool
    has_floats: bool

    @classmethod
    def of(cls, schema: Schema) -> NdjsonPlan:
        fields = [pa.field(field.name, parse_type(field.field_type)) for field in schema.fields]
        return cls(
            pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error"),
            plan_rows(fields, schema, json_leaf),
            plan_rows(fields, schema, partial(json_leaf, infinities=True)),
            row_check(schema),
            SmallReader(schema),
            JsonWeight.of(schema),
            has_type(schema.as_struct(), DecimalType),
            has_type(schema.as_struct(), FloatType, DoubleType),
        )

    def explain(self, line: bytes, sieve: Sieve) -> Unfit | None:
        """What is wrong with one line, as far as Python can tell."""
        try:
            self.check(_load(line, sieve))
        except Unfit as unfit:
            return unfit
        return None


def readable_by_arrow(schema: Schema) -> bool:
    """Whether Arrow's JSON reader knows all of the schema's types."""
    return not has_type(schema.as_struct(), MapType)


def decode_ndjson(plan: NdjsonPlan, data: bytes, sieve: Sieve, small: int = SMALL) -> Decoded:
    """The body's records by Arrow's reader, or by Python's where the body is small and plainly good."""
    if len(data) <= small and not sieve.full:
        sieve.announce(data.count(b"\n") + 1)
        if plan.weight.weigh(0, data) <= PIECE_BYTES and (table := plan.small.table(data)) is not None:
            return sieve.whole(table)
    return sieve.sift(_batches(plan, data, sieve))


def _load(line: bytes, sieve: Sieve) -> object:
    """The values of a line; the account hears first what many of them take, besides the rows decoded so far."""
    if (size := python_bytes(line)) > PIECE_BYTES:
        sieve.account(sieve.size + size)
    return loads(line)


def _batches(plan: NdjsonPlan, data: bytes, sieve: Sieve) -> Iterator[NdjsonBatch]:
    for lines in body_lines(data):
        yield NdjsonBatch(plan, _without_hazards(plan, lines, sieve), sieve)


def _without_hazards(plan: NdjsonPlan, lines: Lines, sieve: Sieve) -> Lines:
    """The lines, with those marked odd that hold a number which the reader would crash on, or wrongly accept."""
    suspicious = suspicious_decimals(lines) if plan.has_decimals else []
    suspicious += negative_nans(lines) if plan.has_floats else []
    hazards = [row for row in suspicious if plan.explain(lines[row], sieve)]
    if not hazards:
        return lines
    odd = np.zeros(len(lines), bool) if lines.odd is None else lines.odd.copy()
    odd[hazards] = True
    return replace(lines, odd=odd)


@dataclass(frozen=True, slots=True)
class NdjsonBatch:
    """One segment's lines."""

    plan: NdjsonPlan
    lines: Lines
    sieve: Sieve

    def __len__(self) -> int:
        return len(self.lines)

    def raw(self, row: int) -> bytes:
        return self.lines[row]

    def explain(self, row: int) -> Unfit | None:
        return self.plan.explain(self.lines[row], self.sieve)

    def weigh(self, rows: range) -> int:
        return self.plan.weight.weigh(len(rows), *self.lines.span(rows))

    def accept(self, rows: Sequence[int]) -> pa.Table:
        if self.lines.has_odd(rows):
            raise Unfit("not a JSON object on one line")
        data = self.lines.text(rows)
        if not self.lines.ascii:
            _check_utf8(data)
        parsed = _read(data, self.plan.options)
        if parsed.num_rows != len(rows):
            raise Unfit("more than one value on the line")
        try:
            return _converted(self.plan.finite, parsed)
        except Infinite:
            if any(self.explain(row) for row in rows):
                raise
            return _converted(self.plan.infinite, parsed)


def _converted(rows: RowPlan, parsed: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.table(batch) for batch in parsed.to_batches()])


def _check_utf8(data: bytes | memoryview) -> None:
    """Unfit if the text is not UTF-8, which the reader does not look at."""
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        raise Unfit("not valid UTF-8") from None


def _read(data: bytes | memoryview, options: pj.ParseOptions) -> pa.Table:
    """The lines as parsed; Unfit if any is not JSON of this shape."""
    try:
        try:
            return _parse(data, options, min(_BLOCK, len(data) + 1))
        except pa.ArrowInvalid as error:
            if _STRADDLES not in str(error):
                raise
            return _parse(data, options, len(data) + 1)
    except pa.ArrowInvalid as error:
        raise Unfit(_reason(str(error))) from None


def _parse(data: bytes | memoryview, options: pj.ParseOptions, block: int) -> pa.Table:
    if len(data) <= block:
        # `read_json` would hand even this to another thread, and waking one costs a small body more than parsing it.
        reading = pj.ReadOptions(use_threads=False, block_size=block)
        return pj.open_json(pa.BufferReader(data), parse_options=options, read_options=reading).read_all()
    reading = pj.ReadOptions(use_threads=True, block_size=block)
    return pj.read_json(pa.BufferReader(data), parse_options=options, read_options=reading)


def _reason(message: str) -> str:
    return message.removeprefix("JSON parse error: ").rsplit(" in row ", 1)[0]


def check_ndjson(
    plan: RecordPlan, data: bytes, sieve: Sieve, read: Callable[[object], object] = lambda record: record
) -> Decoded:
    """The body's records by Python, for schemas that Arrow's reader does not know, once `read` has seen them."""

    def records() -> Iterator[bytes]:
        for lines in body_lines(data):
            sieve.announce(len(lines))
            yield from (lines[row] for row in range(len(lines)))

    def weighed(line: bytes) -> object:
        if plan.weight.weigh(1, line) > RECORD_BYTES:
            raise too_heavy()
        return read(_load(line, sieve))

    return check_records(plan, records(), sieve, read=weighed, raw=bytes)
