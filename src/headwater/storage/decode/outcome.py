"""What decoding hands back: the good rows as Arrow, the bad ones with their field and reason.

Decoding never raises for a bad row, because the topic decides whether one refuses the request or becomes a dead letter.
It raises `RecordsRejected` only for a body of which no row can be read at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import RecordsRejected
from headwater.storage.decode.sizes import RECORD_BYTES

RAW_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Reject:
    """One row that does not fit: where, which field (None: the row itself), why, and the record as it came."""

    row: int
    field: str | None
    reason: str
    raw: bytes

    def __str__(self) -> str:
        where = f'row {self.row}, field "{self.field}"' if self.field is not None else f"row {self.row}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Decoded:
    """The good rows in order and the bad ones; when `truncated`, reading stopped early and `table` has no rows.

    `size` is what all of them take in memory, if it was counted.
    """

    table: pa.Table
    rejects: tuple[Reject, ...]
    rows: int
    truncated: bool = False
    size: int = 0


class Unfit(Exception):
    """A value, column or row that does not fit; `field` is its dotted path, grown from the inside out."""

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field

    def within(self, step: str) -> Unfit:
        """The same misfit, seen from the value that holds it under `step`."""
        if self.field is None:
            self.field = step
        else:
            self.field = f"{step}{self.field}" if self.field.startswith("[") else f"{step}.{self.field}"
        return self


def too_heavy() -> Unfit:
    """Why a record is refused that would take more than RECORD_BYTES."""
    return Unfit(f"it may take more than {RECORD_BYTES} bytes once it is decoded")


def rejected(row: int, unfit: Unfit, raw: bytes) -> Reject:
    """The reject for one bad row, its raw record cut to the limit."""
    return Reject(row, unfit.field, unfit.reason, raw[:RAW_LIMIT])


def rejection(topic: str, decoded: Decoded, limit: int = 10) -> RecordsRejected:
    """The error for a request whose rows are refused, naming the first `limit` of them."""
    count, shown = len(decoded.rejects), decoded.rejects[:limit]
    total = f"the first {decoded.rows}" if decoded.truncated else f"{decoded.rows}"
    lines = "; ".join(str(reject) for reject in shown)
    more = f"; and {count - len(shown)} more" if count > len(shown) else ""
    return RecordsRejected(
        f'topic "{topic}" rejected {count} of {total} record{"s" if decoded.rows != 1 else ""}',
        detail=f"{lines}{more}.",
        hint="Nothing was written. Correct the records, or create the topic with on_invalid = 'dead_letter'.",
        rejects=[{"row": reject.row, "field": reject.field, "reason": reject.reason} for reject in shown],
        rejected=count,
        rows=decoded.rows,
        truncated=decoded.truncated,
    )
