"""How a decoded table is cut into log entries."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.topics.log_entries import digest, serialise
from headwater.topics.produce import ENTRY_BYTES, ENTRY_ROWS, entries_of

WIDE = pa.table({"s": ["x" * 1000] * 30_000, "n": range(30_000)})
NARROW = pa.table({"n": range(300_000)})
FEW = pa.table({"s": ["a", None, "c"], "n": [1, 2, None]})


@pytest.mark.parametrize("table", [WIDE, NARROW, FEW], ids=["wide", "narrow", "few"])
def test_entries_hold_the_rows_in_order_and_are_bounded(table: pa.Table) -> None:
    entries = list(entries_of(table))
    assert pa.Table.from_batches(entries).equals(table)
    assert all(0 < entry.num_rows <= ENTRY_ROWS for entry in entries)
    assert all(serialise(entry).data.size <= 1.1 * ENTRY_BYTES for entry in entries)


@pytest.mark.parametrize("table", [WIDE, NARROW, FEW], ids=["wide", "narrow", "few"])
def test_entries_are_the_same_however_the_body_arrived(table: pa.Table) -> None:
    """A retry with the same sequence may come in other blocks, and must be known again."""

    def stored(arrived: pa.Table) -> bytes:
        return digest([[serialise(entry) for entry in entries_of(arrived)]])

    third = table.num_rows // 3
    pieces = pa.concat_tables([table.slice(0, third), table.slice(third, third), table.slice(2 * third)])
    inside = pa.concat_tables([table, table]).combine_chunks().slice(table.num_rows // 2, 0)
    assert stored(pieces) == stored(pa.concat_tables([inside, table])) == stored(table)


def test_no_rows_are_no_entries() -> None:
    assert list(entries_of(FEW.slice(0, 0))) == []
    assert list(entries_of(pa.Table.from_batches([], schema=FEW.schema))) == []
