"""Parting good rows from bad ones: Arrow decides, Python explains.

A batch accepts a whole range of its rows or refuses it, quickly and without saying which row is at fault. Sifting
halves what was refused until it is small, asks Python which rows look bad, and then lets the batch itself judge those
one by one. So the verdict on a row is always the batch's and never depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Protocol

import pyarrow as pa

from headwater.storage.decode.outcome import RAW_LIMIT, Decoded, Reject, Unfit, rejected, too_heavy
from headwater.storage.decode.sizes import PIECE_BYTES, RECORD_BYTES, REJECT_BYTES, Account, ignore_size

_GROUP = 64
_MANY_CHUNKS = 64


class Batch(Protocol):
    """Rows that can be decoded in ranges."""

    def __len__(self) -> int: ...

    def accept(self, rows: Sequence[int]) -> pa.Table:
        """The decoded rows, at least one and in ascending order, or Unfit if any does not fit."""

    def explain(self, row: int) -> Unfit | None:
        """What Python finds wrong with a row; None if nothing."""

    def raw(self, row: int) -> bytes:
        """The record as it came."""

    def weigh(self, rows: range) -> int:
        """The bytes that the rows may take once they are decoded, as far as these depend on what they hold."""


@dataclass(slots=True)
class Sieve:
    """Collects what decoding yields until `max_rejects` bad rows were seen; rows are numbered from `first_row`.

    `account` hears how many bytes there are before they are decoded, and may raise; a row has at least `row_bytes`.
    """

    schema: pa.Schema
    max_rejects: int | None
    row_bytes: int
    first_row: int = 0
    account: Account = ignore_size
    size: int = 0
    rows: int = 0
    truncated: bool = False
    tables: list[pa.Table] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether enough bad rows were seen."""
        return self.max_rejects is not None and len(self.rejects) >= self.max_rejects

    def sift(self, batches: Iterable[Batch]) -> Decoded:
        """Everything that the batches hold, or what was seen before there were too many bad rows."""
        for batch in batches:
            if self.full and len(batch):
                self.truncated = True
            if self.truncated:
                break
            self._add(batch)
        return self.decoded()

    def announce(self, rows: int) -> None:
        """Say that so many rows are going to be decoded."""
        self.account(self.size + rows * self.row_bytes)

    def accept(self, table: pa.Table) -> None:
        """Add rows that were decoded."""
        self.tables.append(table)
        self.size += table.nbytes
        self.account(self.size)

    def whole(self, table: pa.Table) -> Decoded:
        """A body whose rows are all good."""
        self.accept(table)
        self.rows += table.num_rows
        return self.decoded()

    def _add(self, batch: Batch) -> None:
        start, end = self.rows, self.rows + len(batch)
        self.announce(len(batch))
        for part in chain.from_iterable(_judged(batch, rows) for rows in self._pieces(batch)):
            if isinstance(part, pa.Table):
                self.accept(part)
                continue
            row, unfit = part
            self.rows = start + row
            self.reject(unfit, batch.raw(row))
            if self.full and self.rows < end:
                self.truncated = True
                return
        self.rows = end

    def _pieces(self, batch: Batch) -> Iterator[range]:
        """The batch's rows in ranges that have at most PIECE_BYTES once they are decoded, but one row at least."""
        most = max(1, PIECE_BYTES // self.row_bytes)
        waiting = [range(start, min(start + most, len(batch))) for start in range(0, len(batch), most)]
        waiting.reverse()
        while waiting:
            rows = waiting.pop()
            if len(rows) > 1 and batch.weigh(rows) > PIECE_BYTES:
                middle = len(rows) // 2
                waiting += (rows[middle:], rows[:middle])
            else:
                yield rows

    def reject(self, unfit: Unfit, raw: bytes) -> None:
        """Add the next row as a bad one."""
        self.rejects.append(rejected(self.first_row + self.rows, unfit, raw))
        self.size += REJECT_BYTES + min(len(raw), RAW_LIMIT)
        self.account(self.size)
        self.rows += 1

    def decoded(self) -> Decoded:
        """What was collected."""
        if self.truncated or not self.tables:
            table = pa.Table.from_batches([], schema=self.schema)
        else:
            table = pa.concat_tables(self.tables)
            table = table.combine_chunks() if len(self.tables) > _MANY_CHUNKS else table
        return Decoded(table, tuple(self.rejects), self.rows, self.truncated, self.size)


def _judged(batch: Batch, rows: range) -> Iterator[pa.Table | tuple[int, Unfit]]:
    if len(rows) == 1 and batch.weigh(rows) > RECORD_BYTES:
        return iter([(rows[0], too_heavy())])
    return _parts(batch, rows)


def _parts(batch: Batch, rows: Sequence[int]) -> Iterator[pa.Table | tuple[int, Unfit]]:
    """The accepted tables and the refused rows, both in order."""
    if not rows:
        return
    try:
        yield batch.accept(rows)
        return
    except Unfit as unfit:
        refused = unfit
    if len(rows) == 1:
        yield rows[0], batch.explain(rows[0]) or refused
    elif len(rows) > _GROUP or not (bad := _bad_rows(batch, rows)):
        middle = len(rows) // 2
        yield from _parts(batch, rows[:middle])
        yield from _parts(batch, rows[middle:])
    else:
        rest = list(_parts(batch, [row for row in rows if row not in bad]))
        yield from (part for part in rest if isinstance(part, pa.Table))
        bad.update(part for part in rest if isinstance(part, tuple))
        yield from sorted(bad.items(), key=itemgetter(0))


def _bad_rows(batch: Batch, rows: Sequence[int]) -> dict[int, Unfit]:
    """The rows that Python finds bad and that the batch refuses on their own."""
    bad: dict[int, Unfit] = {}
    for row in rows:
        if unfit := batch.explain(row):
            try:
                batch.accept([row])
            except Unfit:
                bad[row] = unfit
    return bad
