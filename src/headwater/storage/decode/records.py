"""Decoding record by record in Python: for Python's own rows, and for JSON that Arrow's reader does not know."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from headwater.storage.decode.check import RowCheck, row_check
from headwater.storage.decode.columns import RowPlan, plan_rows
from headwater.storage.decode.leaves import storage_leaf
from headwater.storage.decode.outcome import Decoded, Unfit
from headwater.storage.decode.shapes import storage_type
from headwater.storage.decode.sift import Sieve
from headwater.storage.decode.sizes import PIECE_BYTES, JsonWeight

_BATCH = 64 * 1024
_PYTHON_FACTOR = 4
"""How much more a record takes as Python's values than as Arrow's, about."""

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """The check of a schema's records, and how checked ones become a table."""

    check: RowCheck
    source: pa.Schema
    rows: RowPlan
    weight: JsonWeight

    @classmethod
    def of(cls, schema: Schema) -> RecordPlan:
        source = pa.schema([pa.field(field.name, storage_type(field.field_type)) for field in schema.fields])
        rows = plan_rows(list(source), schema, storage_leaf)
        return cls(row_check(schema), source, rows, JsonWeight.of(schema))

    def table(self, checked: list[dict[str, object]]) -> pa.Table:
        """Checked records as a decoded table."""
        columns = [pa.array([record[field.name] for record in checked], field.type) for field in self.source]
        return self.rows.table(pa.RecordBatch.from_arrays(columns, schema=self.source))


def check_records(
    plan: RecordPlan,
    records: Iterable[Record],
    sieve: Sieve,
    *,
    read: Callable[[Record], object],
    raw: Callable[[Record], bytes],
) -> Decoded:
    """The records that `read` and the check let through, and the others."""
    good: list[dict[str, object]] = []
    most = max(1, min(_BATCH, PIECE_BYTES // (_PYTHON_FACTOR * sieve.row_bytes)))
    for record in records:
        if sieve.full:
            sieve.truncated = True
            return sieve.decoded()
        try:
            good.append(plan.check(read(record)))
            sieve.rows += 1
        except Unfit as unfit:
            sieve.reject(unfit, raw(record))
        if len(good) == most:
            sieve.accept(plan.table(good))
            good = []
    if good:
        sieve.accept(plan.table(good))
    return sieve.decoded()


def json_text(record: object) -> bytes:
    """A record as JSON text, for keeping it as it came; values that JSON lacks are written as text."""
    try:
        return json.dumps(_plain(record), ensure_ascii=False, separators=(",", ":"), default=str).encode(
            "utf-8", "replace"
        )
    except (ValueError, RecursionError, OverflowError):
        return f"<{type(record).__name__} that has no text>".encode()


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
    return _plain(value.tolist()) if isinstance(value, np.ndarray | np.generic) else value
