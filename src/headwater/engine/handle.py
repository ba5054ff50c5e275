"""A topic as a Python program holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headwater.engine.time_travel import Moment, TimeTravelManager
from headwater.errors import InvalidInput
from headwater.serving.result import Result
from headwater.sql.parquet_statements import recommend_of
from headwater.sql.row_statements import delete_of, update_of
from headwater.sql.statements import (
    SAMPLED_ROWS,
    SHOWN_SNAPSHOTS,
    DescribeTopic,
    MaintenanceStep,
    Optimize,
    ShowParquetSchema,
    ShowParquetStats,
    ShowSchemas,
    Statement,
)
from headwater.topics.ingest import Ingested
from headwater.topics.produce import Ack, Format, Source

if TYPE_CHECKING:
    import pandas as pd

    from headwater.engine.lake import Lake
    from headwater.sources.files import FileFormat


class Holder(Protocol):
    """A lake, as far as a topic needs it: open here, or behind a service."""

    def execute(self, statement: Statement) -> Result: ...

    def append(self, name: str, blocks: Iterable[Any], format: Format, source: Source) -> Ack: ...

    def flush(self, name: str | None = None) -> list[Ingested]: ...

    def maintain(
        self, name: str | None = None, *, only: Sequence[MaintenanceStep] = (), dry_run: bool = False
    ) -> list[dict[str, Any]]: ...

    def alter_topic(self, name: str, *changes: str, dry_run: bool = False) -> Result: ...


class TopicHandle:
    """A topic of a lake."""

    def __init__(self, lake: Holder, name: str) -> None:
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

    def parquet_stats(self, *, distinct: bool = True) -> dict[str, Any]:
        """What the topic's files are made of, column by column; without `distinct` no data is read for it."""
        return dict(self._lake.execute(ShowParquetStats(self.name, distinct)).info)

    def parquet_schema(self) -> dict[str, Any]:
        """The Parquet types of the newest file, and how other files differ."""
        return dict(self._lake.execute(ShowParquetSchema(self.name)).info)

    def recommend(self, *, apply: bool = False, sample_rows: int = SAMPLED_ROWS) -> dict[str, Any]:
        """What would store the topic in less space or read it with less work; `apply` alters the topic so."""
        return dict(self._lake.execute(recommend_of(self.name, apply=apply, sample_rows=sample_rows)).info)

    def flush(self) -> list[Ingested]:
        """Commit what waits in the log to the table now."""
        return self._lake.flush(self.name)

    def delete(self, where: str) -> dict[str, Any]:
        """Delete the rows for which the condition is true; what it did."""
        return self._lake.execute(delete_of(self.name, where)).rows()[0]

    def update(self, assignments: Mapping[str, str], where: str) -> dict[str, Any]:
        """Set columns to SQL expressions in the rows for which the condition is true; what it did."""
        return self._lake.execute(update_of(self.name, assignments, where)).rows()[0]

    def maintain(self, *, only: Sequence[MaintenanceStep] = (), dry_run: bool = False) -> list[dict[str, Any]]:
        """Take care of the topic's table; each step, with its outcome and what it did."""
        return self._lake.maintain(self.name, only=only, dry_run=dry_run)

    def optimize(self, *, full: bool = False, dry_run: bool = False) -> dict[str, Any]:
        """Pack and sort the topic's files where that pays, or all of them; what it did."""
        return dict(self._lake.execute(Optimize(self.name, full, dry_run)).info["steps"][0])

    def alter(self, *changes: str, dry_run: bool = False) -> dict[str, Any]:
        """Make changes such as "ADD COLUMN discount DOUBLE", all of them or none; what they did."""
        return dict(self._lake.alter_topic(self.name, *changes, dry_run=dry_run).info)

    def schemas(self) -> list[dict[str, Any]]:
        """The columns that the topic has had, from the first to those it has now."""
        return self._lake.execute(ShowSchemas(self.name)).rows()

    def describe(self) -> dict[str, Any]:
        """Everything about the topic, as plain data."""
        return dict(self._lake.execute(DescribeTopic(self.name)).info)

    # -- the past -------------------------------------------------------------------------------------------------

    @property
    def _past(self) -> TimeTravelManager:
        return TimeTravelManager(self._lake)

    def snapshots(self, limit: int = SHOWN_SNAPSHOTS) -> list[dict[str, Any]]:
        """The latest snapshots, newest first."""
        return self._past.list_snapshots(self.name, limit)

    def read_at(self, at: Moment) -> Result:
        """The rows at a snapshot, a tag or branch, or a time."""
        return self._past.read_at(self.name, at)

    def changes(self, start: Moment, end: Moment, *, where: str | None = None) -> Result:
        """The rows that came, went or changed between two states, with `_change` saying which."""
        return self._past.changes(self.name, start, end, where=where)

    def diff(self, start: Moment, end: Moment) -> dict[str, Any]:
        """How two states differ, in numbers."""
        return self._past.diff(self.name, start, end)

    def tag(
        self, name: str, at: Moment | None = None, *, retain: str | float | None = None, replace: bool = False
    ) -> None:
        """Name a snapshot, the newest unless said otherwise, which then does not expire."""
        self._past.tag(self.name, name, at, retain=retain, replace=replace)

    def untag(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a tag."""
        self._past.untag(self.name, name, if_exists=if_exists)

    def rollback(self, to: Moment, *, dry_run: bool = False, base: int | str | None = None) -> dict[str, Any]:
        """Make the topic what it was; what that does, or would do. With `base`, only if that is still its snapshot."""
        return self._past.rollback(self.name, to, dry_run=dry_run, base=base)

    def cherry_pick(self, snapshot_id: int | str, *, dry_run: bool = False) -> dict[str, Any]:
        """Apply what a snapshot did that is not part of the topic any more."""
        return self._past.cherry_pick(self.name, snapshot_id, dry_run=dry_run)

    def __repr__(self) -> str:
        return f"<topic {self.name}>"


class LocalTopic(TopicHandle):
    """A topic of a lake that is open here, which can read files of this machine."""

    def __init__(self, lake: Lake, name: str) -> None:
        super().__init__(lake, name)
        self._open = lake

    def convert(
        self, paths: str | Path | Iterable[str | Path], *, format: FileFormat | None = None, dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Bring existing files, or those of folders, into the topic; what became of each."""
        return self._open.convert(self.name, paths, format=format, dry_run=dry_run)


def _block(records: Any) -> tuple[Format, Any]:
    if isinstance(records, str):
        return "ndjson", records.encode("utf-8", "surrogatepass")  # a lone surrogate is refused where its line is
    if isinstance(records, bytes | bytearray | memoryview):
        return "ndjson", bytes(records)
    if isinstance(records, pa.Table | pa.RecordBatch):
        return "arrow", records
    if hasattr(records, "columns") and hasattr(records, "dtypes"):
        return "pandas", records
    if isinstance(records, Mapping):
        return "rows", [records]
    if not isinstance(records, Iterable):
        raise InvalidInput(
            "records are not in a form that can be appended",
            detail=f"Expected NDJSON, dicts, an Arrow table or a pandas frame, got {type(records).__name__}.",
        )
    return "rows", list(records)
