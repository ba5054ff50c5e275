"""A query that an engine runs: what the engines have in common, and the two runs that are no engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from headwater.errors import QueryTimeout


def timed_out(seconds: float) -> QueryTimeout:
    """The error of a query that ran into its deadline."""
    return QueryTimeout(
        f"query ran longer than {seconds:g} s", hint="Raise its timeout, or the setting query_timeout if that was it."
    )


class Stoppable(Protocol):
    """Work that another thread may stop."""

    def cancel(self) -> None: ...


class Running(Protocol):
    """A query that an engine runs."""

    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Known:
    """A result that planning already had."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches()

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


class Begun:
    """A run whose first batch, and at least `rows` rows if there are so many, have been read and wait here."""

    def __init__(self, running: Running, rows: int) -> None:
        self.schema = running.schema
        self._running = running
        self._found = running.batches()
        self._held = list(_taken(self._found, rows))

    def batches(self) -> Iterator[pa.RecordBatch]:
        held, self._held = self._held, []
        yield from held
        yield from self._found

    def cancel(self) -> None:
        self._running.cancel()

    def close(self) -> None:
        self._running.close()


def _taken(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        yield batch
        seen += batch.num_rows
        if seen >= rows:
            return
