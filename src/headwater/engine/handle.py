"""A topic as a Python program holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.sql.row_statements import delete_of, update_of
from headwater.topics.describe import description
from headwater.topics.ingest import Ingested
from headwater.topics.produce import Ack, Format, Source

if TYPE_CHECKING:
    import pandas as pd

    from headwater.engine.lake import Lake


class TopicHandle:
    """A topic of an open lake."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self.name = name

    def append(
        self,
        records: bytes | str | Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch | pd.DataFrame,
        *,
        producer: str | None = None,
        sequence: int = 0,
    ) -> Ack:
        """Store NDJSON, dicts, Arrow or pandas; return when it is on disk. A retry with the same producer and
        sequence is stored once."""
        format, block = _block(records)
        return self._lake.append(self.name, [block], format, Source("python", producer, sequence))

    def flush(self) -> list[Ingested]:
        """Commit what waits in the log to the table now."""
        return self._lake.flush(self.name)

    def delete(self, where: str) -> dict[str, Any]:
        """Delete the rows for which the condition is true; what it did."""
        return self._lake.execute(delete_of(self.name, where)).rows()[0]

    def update(self, assignments: Mapping[str, str], where: str) -> dict[str, Any]:
        """Set columns to SQL expressions in the rows for which the condition is true; what it did."""
        return self._lake.execute(update_of(self.name, assignments, where)).rows()[0]

    def describe(self) -> dict[str, Any]:
        """Everything about the topic, as plain data."""
        return description(self._lake.topics.load(self.name), self._lake.log)

    def __repr__(self) -> str:
        return f"<topic {self.name}>"


def _block(records: Any) -> tuple[Format, Any]:
    if isinstance(records, str):
        return "ndjson", records.encode()
    if isinstance(records, bytes | bytearray | memoryview):
        return "ndjson", bytes(records)
    if isinstance(records, pa.Table | pa.RecordBatch):
        return "arrow", records
    if hasattr(records, "columns") and hasattr(records, "dtypes"):
        return "pandas", records
    return "rows", [records] if isinstance(records, Mapping) else list(records)
